//! Servers that die, stand still, are busy, forget, are full or lose what they had: each call says
//! what became of it as far as that can be known, nothing is half done, and all goes on without
//! being opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{keyed, lease, plain, task, until};
use quell_core::{
    Batch, Error, ErrorKind, JobFilter, JobState, NewTrigger, Outcome, Payload, Receipt, Result,
    SettledAs, Settlement, Store, TaskName, TriggerId,
};
use quell_redis::RedisStore;
use tokio::task::JoinSet;

use crate::place::{PATIENCE, Place, answers, at_last, dump, server};

/// How long calls wait for a server here.
const SOON: Duration = Duration::from_millis(300);
/// A write is on the disk before the server acknowledges it.
const DURABLE: [&str; 2] = ["appendonly yes", "appendfsync always"];

async fn take(store: &RedisStore, trigger: NewTrigger) -> Result<Receipt> {
    store.enqueue(None, vec![Batch::one(trigger)]).await?.remove(0).map(|mut all| all.remove(0))
}

fn is_unavailable(error: &Error, about: &str) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && error.to_string().contains(about), "{error:?}");
}

/// What is never said: that it failed, where it may have been done.
fn is_honest(error: &Error) {
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::UnknownOutcome),
        "{error:?}"
    );
}

async fn jobs(store: &RedisStore) -> usize {
    store.jobs(&JobFilter::default()).await.unwrap().len()
}

/// What a caller got as answers.
#[derive(Debug, Default)]
struct Log {
    accepted: Vec<TriggerId>,
    succeeded: Vec<quell_core::JobId>,
}

/// What callers share: the store, how many triggers failed, and the end.
struct Shared {
    store: RedisStore,
    failed: AtomicUsize,
    stop: tokio::sync::Notify,
}

/// Triggers, starts and ends until the test stops it.
async fn work(shared: Arc<Shared>, number: usize) -> Log {
    let mut log = Log::default();
    let store = &shared.store;
    let call = async {
        loop {
            let trigger = if fastrand::bool() { plain("1") } else { keyed(&format!("k{number}")) };
            match take(store, trigger).await {
                Ok(receipt) => log.accepted.extend(receipt.trigger()),
                Err(error) => {
                    is_honest(&error);
                    shared.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            let Ok(claimed) = store.claim(None, &Rig::claim_of(1)).await else { continue };
            for job in claimed.jobs {
                let end = Settlement { lease: lease(&job), outcome: Outcome::succeeded() };
                let Ok(settled) = store.settle(None, vec![end]).await else { continue };
                if settled[0].became == SettledAs::Succeeded {
                    log.succeeded.push(job.id);
                }
            }
        }
    };
    tokio::select! {
        () = call => {}
        () = shared.stop.notified() => {}
    }
    log
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r39_what_was_accepted_outlives_the_servers_death() {
    let mut server = server(&DURABLE);
    let store = Place::on(&server).options().timeout(SOON).open().await.unwrap();
    let (failed, stop) = (AtomicUsize::new(0), tokio::sync::Notify::new());
    let shared = Arc::new(Shared { store, failed, stop });
    let store = &shared.store;
    let mut workers = JoinSet::new();
    for number in 0..4 {
        workers.spawn(work(Arc::clone(&shared), number));
    }
    for round in 0..3 {
        let before = at_last("no jobs", async || store.counts().await).await;
        let total = |counts: Vec<quell_core::Counts>| counts.iter().map(|c| c.jobs).sum::<u64>();
        let before = total(before);
        until("work goes on", async || {
            store.counts().await.is_ok_and(|counts| total(counts) > before + 20)
        })
        .await;
        server.kill().unwrap();
        // Calls outlive a short absence, and fail in a longer one.
        if round == 0 {
            let failed = async || shared.failed.load(Ordering::Relaxed) > 0;
            until("a trigger fails", failed).await;
        } else {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..100))).await;
        }
        server.resume().unwrap();
    }
    answers(store).await;
    shared.stop.notify_waiters();
    let (mut accepted, mut ended) = (0, 0);
    for log in workers.join_all().await {
        for trigger in log.accepted {
            let job = store.job(trigger.job).await.unwrap();
            let job = job.unwrap_or_else(|| panic!("{trigger} is lost"));
            assert!(trigger.seq <= job.window.triggers, "{trigger} is lost: {job:?}");
            accepted += 1;
        }
        for id in log.succeeded {
            assert_eq!(store.job(id).await.unwrap().unwrap().state, JobState::Succeeded);
            ended += 1;
        }
    }
    let failed = shared.failed.load(Ordering::Relaxed);
    eprintln!("{accepted} accepted, {ended} ended, {failed} triggers failed");
    assert!(accepted > 60 && ended > 20, "{accepted} {ended}");
}

/// A restart with `appendonly no`, a failover to a replica that lags: names and numbers that a process
/// remembers may have become others' meanwhile.
#[tokio::test]
async fn r39_a_server_that_lost_what_it_had_is_not_believed_to_have_it() {
    let server = server(&[]);
    let place = Place::on(&server);
    let (one, other) = (place.open().await, place.open().await);
    let of = |name: &str| NewTrigger { task: TaskName::new(name).unwrap(), ..plain("1") };
    take(&one, of("t")).await.unwrap();
    assert_eq!(jobs(&one).await, 1);
    server.command(&["FLUSHALL"]).unwrap();
    // Each gives a number to a name, and one of them had given it to another name before.
    take(&other, of("u")).await.unwrap();
    take(&one, of("t")).await.unwrap();
    for store in [&one, &other, &place.open().await] {
        let jobs = store.jobs(&JobFilter::default()).await.unwrap();
        let tasks: Vec<&TaskName> = jobs.iter().map(|job| &job.task).collect();
        assert_eq!(tasks, [&task("t"), &TaskName::new("u").unwrap()]);
        let known: Vec<TaskName> =
            store.tasks().await.unwrap().into_iter().map(|info| info.name).collect();
        assert_eq!(known, [task("t"), TaskName::new("u").unwrap()], "a task is made again");
    }
}

#[tokio::test]
async fn r39_a_server_that_stands_still_is_told_in_time_and_goes_on() {
    let mut server = server(&[]);
    let store = Place::on(&server).options().timeout(SOON).open().await.unwrap();
    take(&store, plain("1")).await.unwrap();
    let running = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    let end = || vec![Settlement { lease: lease(&running), outcome: Outcome::succeeded() }];
    server.pause().unwrap();
    let calls = async {
        let mut unknown = 0;
        for trigger in [plain("2"), keyed("k")] {
            let error = take(&store, trigger).await.unwrap_err();
            is_honest(&error);
            unknown += usize::from(error.is_unknown_outcome());
        }
        is_honest(&store.claim(None, &Rig::claim_of(9)).await.unwrap_err());
        is_honest(&store.settle(None, end()).await.unwrap_err());
        is_unavailable(&store.counts().await.unwrap_err(), "does not answer in time");
        unknown
    };
    let unknown = tokio::time::timeout(PATIENCE, calls).await.unwrap();
    server.go_on().unwrap();
    answers(&store).await;
    assert!((1..=1 + unknown).contains(&jobs(&store).await));
    at_last("it goes on", async || take(&store, plain("3")).await).await;
    let settled = at_last("it goes on", async || store.settle(None, end()).await).await;
    assert!(matches!(settled[0].became, SettledAs::Succeeded | SettledAs::Refused));
    assert_eq!(store.job(running.id).await.unwrap().unwrap().state, JobState::Succeeded);
}

#[tokio::test]
async fn r39_somebodys_slow_script_is_told_and_passes() {
    let server = Arc::new(server(&["lua-time-limit 10"]));
    let store = Place::on(&server).open().await;
    take(&store, plain("1")).await.unwrap();
    let slow = Arc::clone(&server);
    let script = std::thread::spawn(move || {
        // It is killed, which is an error.
        let _killed = slow.command(&["EVAL", "while true do end", "0"]);
    });
    until("the server is busy", async || {
        store.counts().await.is_err_and(|error| error.to_string().contains("busy"))
    })
    .await;
    for trigger in [plain("2"), keyed("k")] {
        is_unavailable(
            &take(&store, trigger).await.unwrap_err(),
            "busy with a script of another client",
        );
    }
    is_unavailable(&store.claim(None, &Rig::claim_of(9)).await.unwrap_err(), "busy");
    server.command(&["SCRIPT", "KILL"]).unwrap();
    script.join().unwrap();
    answers(&store).await;
    assert_eq!(jobs(&store).await, 1, "what was refused was not taken");
    take(&store, plain("2")).await.unwrap();
}

#[tokio::test]
async fn r39_scripts_that_the_server_forgets_are_told_again() {
    let server = server(&[]);
    let place = Place::on(&server);
    let store = place.open().await;
    let redis = place.connect().await;
    let mut forgets = JoinSet::new();
    forgets.spawn(async move {
        loop {
            let flush = ["FLUSH", "SYNC"];
            redis::cmd("SCRIPT").arg(&flush).exec_async(&mut redis.clone()).await.unwrap();
        }
    });
    for round in 0..200 {
        take(&store, keyed(&format!("k{round}"))).await.unwrap();
        take(&store, plain("1")).await.unwrap();
        let job = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
        let end = Settlement { lease: lease(&job), outcome: Outcome::succeeded() };
        let settled = store.settle(None, vec![end]).await.unwrap();
        assert_eq!(settled[0].became, SettledAs::Succeeded);
    }
    assert_eq!(store.counts().await.unwrap().iter().map(|count| count.jobs).sum::<u64>(), 400);
}

#[tokio::test]
async fn r39_a_replica_is_told_and_all_goes_on_once_it_is_promoted() {
    let server = server(&[]);
    let place = Place::on(&server);
    let store = place.open().await;
    take(&store, plain("1")).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for trigger in [plain("2"), keyed("k")] {
        is_unavailable(&take(&store, trigger).await.unwrap_err(), "replica");
    }
    assert_eq!(jobs(&store).await, 1);
    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    take(&store, plain("2")).await.unwrap();
    assert_eq!(jobs(&store).await, 2);
}

#[tokio::test]
async fn r39_a_full_server_takes_no_trigger_and_lets_workers_catch_up() {
    let server = server(&["maxmemory-policy noeviction"]);
    let place = Place::on(&server);
    let (store, mut redis) = (place.open().await, place.connect().await);
    take(&store, plain("1")).await.unwrap();
    take(&store, plain("2")).await.unwrap();
    take(&store, keyed("open")).await.unwrap();
    let running = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    let limit = |bytes: &str| {
        server.command(&["CONFIG", "SET", "maxmemory", bytes]).unwrap();
    };
    limit("1");
    let before = dump(&mut redis).await;
    let large = NewTrigger { payload: Payload::from_stored("1".repeat(99_999)), ..plain("1") };
    let whole = vec![keyed("open"), plain("4"), keyed("k")];
    let several = [plain("3"), keyed("k"), keyed("open"), large.clone()].map(|one| vec![one]);
    for triggers in several.into_iter().chain([whole]) {
        let batch = Batch { triggers, dedup: None };
        let error = store.enqueue(None, vec![batch]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
        assert!(error.is_retryable() && error.to_string().contains("`maxmemory`"), "{error}");
    }
    assert_eq!(dump(&mut redis).await, before, "nothing was written");
    // What makes no job goes on: work ends, and more is started.
    assert!(store.renew(None, &[lease(&running)], Rig::LEASE).await.unwrap()[0].until().is_some());
    let end = Settlement { lease: lease(&running), outcome: Outcome::succeeded() };
    assert_eq!(store.settle(None, vec![end]).await.unwrap()[0].became, SettledAs::Succeeded);
    let next = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    store.cancel(None, next.id, "enough").await.unwrap();
    let keep = quell_core::Retention { succeeded: Some(Duration::ZERO), dead: None };
    assert_eq!(store.prune(None, &keep, 9).await.unwrap().jobs, 2);
    limit("0");
    take(&store, large).await.unwrap();
    assert_eq!(jobs(&store).await, 2);
}
