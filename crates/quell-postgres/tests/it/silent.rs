//! Silent peers: connections on which nothing arrives and which neither side closes, and idle ones
//! that the server ended (R39).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{keyed, lease, plain, until};
use quell_core::{Batch, ErrorKind, Key, NewTrigger, QueueName, Result, Settlement, Store};
use quell_postgres::PostgresStore;
use tokio::task::JoinSet;

use crate::proxy::{BOTH, Cut, DOWN, Proxy, Silence, UP, cuts_of};
use crate::scene::{Scene, jobs};

/// Triggers must be accepted again so soon after all connections fell silent, by default.
const RESUMES: Duration = Duration::from_secs(15);

pub(crate) async fn proxy_before(scene: &Scene) -> Proxy {
    let server = scene.plain_url().rsplit(':').next().unwrap().split('/').next().unwrap();
    Proxy::start(server.parse().unwrap()).await
}

/// The URL of the scene's schema through a proxy.
pub(crate) fn through(proxy: &Proxy, scene: &Scene, more: &str) -> String {
    let (head, tail) = scene.plain_url().rsplit_once(':').unwrap();
    let database = tail.split_once('/').unwrap().1;
    let schema = scene.schema();
    format!("{head}:{}/{database}?sslmode=disable&schema={schema}{more}", proxy.port())
}

async fn take(store: &PostgresStore, trigger: NewTrigger) -> Result<()> {
    store.enqueue(None, vec![Batch::one(trigger)]).await.map(drop)
}

/// Callers that trigger again and again, one call at a time each.
#[derive(Debug, Default)]
struct Load {
    accepted: AtomicU64,
    unknown: AtomicU64,
    refused: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    fn start(store: &Arc<PostgresStore>, callers: u64) -> (Arc<Load>, JoinSet<()>) {
        let load = Arc::new(Load::default());
        let mut all = JoinSet::new();
        for caller in 0..callers {
            let (store, load) = (Arc::clone(store), Arc::clone(&load));
            all.spawn(async move {
                while !load.is_over.load(Ordering::Relaxed) {
                    let trigger = match caller % 2 {
                        0 => plain("1"),
                        _ => keyed(&format!("k{caller}")),
                    };
                    match take(&store, trigger).await.map_err(|error| error.kind()) {
                        Ok(()) => load.accepted.fetch_add(1, Ordering::Relaxed),
                        Err(ErrorKind::UnknownOutcome) => {
                            load.unknown.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(ErrorKind::Unavailable) => load.refused.fetch_add(1, Ordering::Relaxed),
                        Err(other) => panic!("{other:?}"),
                    };
                }
            });
        }
        (load, all)
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    async fn end(&self, mut callers: JoinSet<()>) {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = callers.join_next().await {
            ended.unwrap();
        }
    }
}

/// All connections fall silent under load, in the named direction; new ones work.
async fn falls_silent(silence: Silence, heals: bool) {
    let scene = Scene::new();
    let proxy = proxy_before(&scene).await;
    let store = Arc::new(PostgresStore::open(&through(&proxy, &scene, "")).await.unwrap());
    let (load, callers) = Load::start(&store, 6);
    until("there is load", async || load.accepted() > 200).await;
    proxy.silence(silence);
    let (fell, before) = (Instant::now(), load.accepted());
    while load.accepted() < before + 100 {
        assert!(fell.elapsed() < RESUMES, "nothing is accepted after {:?}", fell.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    if heals {
        proxy.heal();
        let before = load.accepted();
        until("it goes on", async || load.accepted() > before + 100).await;
    }
    load.end(callers).await;
    let (accepted, unknown) = (load.accepted(), load.unknown.load(Ordering::Relaxed));
    let covered = scene.sql("select coalesce(sum(triggers), 0) from quell.job");
    let covered: u64 = covered.parse().unwrap();
    assert!(
        (accepted..=accepted + unknown).contains(&covered),
        "{accepted} accepted, {unknown} unknown, {covered} there"
    );
}

#[tokio::test]
async fn r39_triggers_go_on_after_every_connection_fell_silent() {
    falls_silent(BOTH, false).await;
}

#[tokio::test]
async fn r39_triggers_go_on_while_replies_are_lost_and_after_they_come_again() {
    falls_silent(DOWN, true).await;
}

#[tokio::test]
async fn r39_triggers_go_on_while_requests_are_lost() {
    falls_silent(UP, false).await;
}

#[tokio::test]
async fn r01_r39_a_call_without_an_answer_ends_and_says_what_is_known() {
    let scene = Scene::new();
    let proxy = proxy_before(&scene).await;
    let url = through(&proxy, &scene, "&timeout_ms=1000&connections=1");
    let store = PostgresStore::open(&url).await.unwrap();
    take(&store, plain("1")).await.unwrap();
    let run = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    let kind = |answer: Result<()>| answer.unwrap_err().kind();
    let soon = Duration::from_secs(20);
    // What is one statement may have committed.
    proxy.silence(BOTH);
    let reported = tokio::time::timeout(soon, take(&store, plain("2"))).await.expect("it ends");
    assert_eq!(kind(reported), ErrorKind::UnknownOutcome);
    // A claim on a new connection works at once: the silent one has lost its place.
    store.claim(None, &Rig::claim_of(1)).await.unwrap();
    // What begins a transaction has not.
    take(&store, keyed("k")).await.unwrap();
    let outcome = quell_conformance::rig::fails(Duration::from_secs(1), false);
    let settlement = Settlement { lease: lease(&run), outcome };
    proxy.silence(BOTH);
    let reported = tokio::time::timeout(soon, store.settle(None, vec![settlement.clone()])).await;
    assert_eq!(kind(reported.expect("it ends").map(drop)), ErrorKind::Unavailable);
    store.settle(None, vec![settlement]).await.unwrap();
    let job = store.job(run.id).await.unwrap().unwrap();
    assert_eq!(job.state, quell_core::JobState::Scheduled);
    // Reading changes nothing.
    proxy.silence(BOTH);
    let reported = tokio::time::timeout(soon, store.job(run.id)).await.expect("it ends");
    assert_eq!(kind(reported.map(drop)), ErrorKind::Unavailable);
    store.job(run.id).await.unwrap();
}

/// What is made before the trigger's own statement is no part of its outcome.
#[tokio::test]
async fn r01_a_trigger_whose_names_were_being_made_was_surely_not_accepted() {
    let scene = Scene::new();
    let proxy = proxy_before(&scene).await;
    let url = through(&proxy, &scene, "&timeout_ms=1000&connections=1");
    let store = PostgresStore::open(&url).await.unwrap();
    let mut queues = 0;
    let mut trigger = || {
        queues += 1;
        let (queue, partition) = (format!("new{queues:03}"), format!("p{queues:03}"));
        NewTrigger {
            queue: QueueName::new(queue).unwrap(),
            partition: Some(Key::new(partition).unwrap()),
            ..plain("1")
        }
    };
    // Whatever it needs is prepared.
    for _ in 0..2 {
        take(&store, trigger()).await.unwrap();
    }
    proxy.set(None);
    take(&store, trigger()).await.unwrap();
    let (replies, _) = proxy.unset();
    let speaks = |cut| matches!(cut, Cut::Before(_)).then_some(cut);
    let mut reported = Vec::new();
    for cut in cuts_of(&replies).into_iter().filter_map(speaks) {
        for _ in 0..2 {
            take(&store, trigger()).await.unwrap();
        }
        let Cut::Before(at) = cut else { unreachable!() };
        let before = jobs(&store).await;
        proxy.set(Some(Cut::Silent(at.max(1))));
        let kind = take(&store, trigger()).await.map_err(|error| error.kind());
        let was_cut = proxy.unset().1;
        proxy.close_all();
        let accepted = until_counted(&store).await - before;
        match kind {
            Ok(()) => assert_eq!(accepted, 1, "{cut:?}"),
            Err(ErrorKind::Unavailable) => assert_eq!(accepted, 0, "{cut:?}"),
            Err(ErrorKind::UnknownOutcome) => {}
            Err(other) => panic!("{other:?}"),
        }
        assert!(was_cut || kind.is_ok());
        reported.push(kind);
    }
    // The outcome is unknown while the call's own statement is in flight, which is the last one.
    let first = reported.iter().position(|kind| *kind == Err(ErrorKind::UnknownOutcome)).unwrap();
    assert!(reported[..first].contains(&Err(ErrorKind::Unavailable)), "{reported:?}");
    let statements = replies.len();
    let own = own_reply(&replies);
    assert!(first >= reported.len() - own, "{own} messages of {statements} bytes: {reported:?}");
}

/// How many jobs there are, once the store has a connection again.
async fn until_counted(store: &PostgresStore) -> u64 {
    until("it goes on", async || store.counts().await.is_ok()).await;
    jobs(store).await
}

/// How many cuts fall into the last statement of these replies.
fn own_reply(replies: &[u8]) -> usize {
    let cuts = cuts_of(replies);
    let ends: Vec<usize> = cuts
        .iter()
        .filter_map(|cut| match cut {
            Cut::After(at) if *at < replies.len() => Some(*at),
            _ => None,
        })
        .collect();
    let last = ends.last().copied().unwrap_or(0);
    cuts.iter().filter(|cut| matches!(cut, Cut::Before(at) if *at >= last)).count()
}

#[tokio::test]
async fn r39_a_server_that_falls_silent_as_a_whole_is_told_within_the_limits() {
    let scene = Scene::new();
    let proxy = proxy_before(&scene).await;
    let url = through(&proxy, &scene, "&timeout_ms=1000");
    let store = PostgresStore::open(&url).await.unwrap();
    take(&store, plain("1")).await.unwrap();
    proxy.black_hole();
    for _ in 0..3 {
        let reported =
            tokio::time::timeout(Duration::from_secs(20), take(&store, plain("2"))).await;
        assert!(reported.expect("it ends").is_err());
    }
    let opened = tokio::time::timeout(Duration::from_secs(20), PostgresStore::open(&url)).await;
    assert_eq!(opened.expect("it ends").unwrap_err().kind(), ErrorKind::Unavailable);
    proxy.heal();
    until("it goes on", async || take(&store, plain("3")).await.is_ok()).await;
    assert!(jobs(&store).await >= 2);
}

#[tokio::test]
async fn r34_r39_a_listener_that_hears_nothing_any_more_listens_again() {
    let scene = Scene::new();
    let proxy = proxy_before(&scene).await;
    let other = scene.store().await;
    let store = PostgresStore::open(&through(&proxy, &scene, "")).await.unwrap();
    assert!(store.capabilities().push);
    let mut wakeups = store.wakeups();
    proxy.silence(BOTH);
    take(&other, plain("1")).await.unwrap();
    // It is made up for: whatever was missed, workers look once it listens again.
    let woken = tokio::time::timeout(Duration::from_secs(30), wakeups.next()).await;
    assert!(woken.expect("it looks again").is_some());
    // It receives later notifications at once.
    let received = async {
        loop {
            take(&other, plain("2")).await.unwrap();
            let next = tokio::time::timeout(Duration::from_secs(1), wakeups.next()).await;
            if next.is_ok_and(|wakeup| wakeup.is_some_and(|wakeup| wakeup.queue.is_some())) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), received)
        .await
        .expect("it receives the notifications of others again");
}

#[tokio::test]
async fn r34_r39_a_teller_without_an_answer_tells_on_another_connection() {
    let scene = Scene::new();
    let proxy = proxy_before(&scene).await;
    let other = scene.store().await;
    let store = PostgresStore::open(&through(&proxy, &scene, "&timeout_ms=1000")).await.unwrap();
    take(&store, plain("0")).await.unwrap();
    proxy.silence(BOTH);
    let mut wakeups = other.wakeups();
    let _unknown = take(&store, plain("1")).await;
    until("a trigger is accepted", async || take(&store, plain("2")).await.is_ok()).await;
    let received =
        async { while wakeups.next().await.is_some_and(|wakeup| wakeup.queue.is_none()) {} };
    tokio::time::timeout(Duration::from_secs(20), received).await.expect("others are notified");
}

/// Ends the sessions of calls in this schema's application, and waits until they are gone.
async fn end_sessions(scene: &Scene, application: &str) {
    scene.sql(&format!(
        "select pg_terminate_backend(pid) from pg_stat_activity
          where application_name = '{application}' and state = 'idle'"
    ));
    sessions_end(scene, application).await;
}

async fn sessions_end(scene: &Scene, application: &str) {
    let count =
        format!("select count(*) from pg_stat_activity where application_name = '{application}'");
    // The server may end the session that asks, too.
    let counted = || String::from_utf8(scene.psql(&count).stdout).unwrap();
    until("the sessions end", async || counted().trim() == "0").await;
}

#[tokio::test]
async fn r39_a_call_on_a_connection_that_the_server_ended_is_made_again() {
    let server = quell_services::Postgres::start(&["fsync=off"]).unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let store = scene.store().await;
    for round in 0..20 {
        take(&store, plain("1")).await.unwrap();
        take(&store, keyed("k")).await.unwrap();
        end_sessions(&scene, "quell").await;
        match round % 4 {
            0 => take(&store, plain("2")).await.unwrap(),
            1 => take(&store, keyed("k")).await.unwrap(),
            2 => drop(store.claim(None, &Rig::claim_of(1)).await.unwrap()),
            _ => drop(store.counts().await.unwrap()),
        }
    }
    let covered: u64 = {
        let filter = quell_core::JobFilter { limit: 1_000, ..Default::default() };
        store.jobs(&filter).await.unwrap().iter().map(|job| job.window.triggers).sum()
    };
    assert_eq!(covered, 20 + 20 + 5 + 5, "each once");
}

#[tokio::test]
async fn r39_a_session_that_idled_too_long_for_the_server_is_made_again() {
    let server = quell_services::Postgres::start(&["fsync=off", "idle_session_timeout=100ms"]);
    let server = server.unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let store = scene.store().await;
    for _ in 0..5 {
        take(&store, plain("1")).await.unwrap();
        sessions_end(&scene, "quell").await;
        take(&store, plain("2")).await.unwrap();
    }
    assert_eq!(jobs(&*store).await, 10);
}
