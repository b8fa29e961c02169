//! Peers that are half alive: connections that fall silent, an address that leads to another server
//! by now, connections that the server ended. Work goes on by itself, and each call says what became
//! of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain, until};
use quell_core::{
    Batch, ErrorKind, Outcome, Receipt, SettledAs, Settlement, Store, TriggerId, Wakeups,
};
use quell_redis::RedisStore;
use quell_services::proxy::{Proxy, Way};
use quell_services::{Redis, RedisSentinels};
use tokio::task::JoinSet;

use crate::place::{PATIENCE, Place, at_last, server};
use crate::wake::received;

/// After a fault, triggers are accepted again within this time: the goal.
const SOON: Duration = Duration::from_secs(15);

/// Callers that trigger all the time, and the answers that they received.
struct Load {
    store: Arc<RedisStore>,
    accepted: Arc<Mutex<Vec<TriggerId>>>,
    unknown: Arc<AtomicUsize>,
    callers: JoinSet<()>,
}

impl Load {
    fn on(store: RedisStore) -> Self {
        let store = Arc::new(store);
        let (accepted, unknown) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicUsize>::default());
        let mut callers = JoinSet::new();
        for _ in 0..6 {
            let (store, accepted) = (Arc::clone(&store), Arc::clone(&accepted));
            let unknown = Arc::clone(&unknown);
            callers.spawn(async move {
                loop {
                    let answer = store.enqueue(None, vec![Batch::one(plain("1"))]).await;
                    match answer.and_then(|mut each| each.remove(0)) {
                        Ok(receipts) => {
                            let ids = receipts.iter().filter_map(Receipt::trigger);
                            accepted.lock().unwrap().extend(ids);
                        }
                        Err(error) if error.is_unknown_outcome() => {
                            unknown.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    }
                }
            });
        }
        Load { store, accepted, unknown, callers }
    }

    fn count(&self) -> usize {
        self.accepted.lock().unwrap().len()
    }

    /// Waits until some more triggers are accepted.
    async fn goes_on(&self, limit: Duration) {
        let (before, began) = (self.count(), Instant::now());
        while self.count() < before + 50 {
            assert!(began.elapsed() < limit, "no trigger is accepted any more");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the callers. No accepted trigger is lost; returns how many there were.
    async fn end(mut self) -> usize {
        self.callers.shutdown().await;
        let accepted = std::mem::take(&mut *self.accepted.lock().unwrap());
        let count = accepted.len();
        for trigger in accepted {
            let job = self.store.job(trigger.job).await.unwrap();
            assert!(job.is_some(), "{trigger} is lost");
        }
        count
    }
}

/// A server behind a proxy.
fn behind_proxy() -> (Redis, Proxy, Place) {
    let server = server(&[]);
    let proxy = Proxy::start(server.port()).unwrap();
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    let place = Place { url, prefix: "quell".to_owned() };
    (server, proxy, place)
}

/// Waits until a notification of another process's trigger arrives.
async fn receives(wakeups: &mut Wakeups, other: &RedisStore) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        other.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap().remove(0).unwrap();
        let received =
            tokio::time::timeout(Duration::from_millis(200), received(wakeups, false)).await;
        if received.is_ok() {
            return;
        }
        assert!(Instant::now() < deadline, "no wake-up of another process arrives any more");
    }
}

async fn falls_silent(way: Way, timeout: Duration) {
    let (server, proxy, place) = behind_proxy();
    let store = place.options().timeout(timeout).open().await.unwrap();
    let other = Place::on(&server).open().await;
    let mut wakeups = store.wakeups();
    let load = Load::on(store);
    load.goes_on(SOON).await;
    assert!(proxy.silence(way) >= 2, "the calls' connection and the subscriber's");
    // What is on its way may still count.
    load.goes_on(SOON).await;
    load.goes_on(SOON).await;
    assert!(load.unknown.load(Ordering::Relaxed) > 0, "it was not silent");
    receives(&mut wakeups, &other).await;
    // What the proxy held back arrives now, on connections that the store no longer reads.
    proxy.heal();
    load.goes_on(SOON).await;
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_triggers_resume_after_all_connections_fell_silent() {
    falls_silent(Way::Both, Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_triggers_resume_after_the_server_hears_nothing_any_more() {
    falls_silent(Way::Up, Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_triggers_resume_after_nothing_of_the_server_is_heard_any_more() {
    falls_silent(Way::Down, Duration::from_secs(2)).await;
}

/// A silence that ends before the deadline costs nothing but time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r39_a_silence_that_ends_in_time_loses_and_repeats_nothing() {
    let (_server, proxy, place) = behind_proxy();
    let load = Load::on(place.open().await);
    for way in [Way::Both, Way::Up, Way::Down] {
        load.goes_on(SOON).await;
        assert!(proxy.silence(way) >= 2);
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.heal();
    }
    load.goes_on(SOON).await;
    assert_eq!(load.unknown.load(Ordering::Relaxed), 0);
    let store = Arc::clone(&load.store);
    let accepted = u64::try_from(load.end().await).unwrap();
    let jobs = store.counts().await.unwrap().iter().map(|counts| counts.jobs).sum::<u64>();
    // Callers were stopped in the middle of a call.
    assert!((accepted..=accepted + 6).contains(&jobs), "{jobs} jobs of {accepted}");
}

/// Has one server follow another, and waits until it has all.
async fn follow(replica: &Redis, master: &Redis) {
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).unwrap();
    until("the replica follows", async || {
        replica.command(&["INFO", "replication"]).unwrap().contains("master_link_status:up")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_an_address_that_leads_to_another_server_is_followed() {
    let (old, proxy, place) = behind_proxy();
    let new = server(&["repl-diskless-sync-delay 0"]);
    follow(&new, &old).await;
    let store = place.open().await;
    let mut wakeups = store.wakeups();
    let load = Load::on(store);
    load.goes_on(SOON).await;
    // The old master lives on as a replica of the new one, and connections to it stay.
    proxy.lead_to(new.port());
    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    follow(&old, &new).await;
    load.goes_on(SOON).await;
    let running = at_last("claims go on", async || load.store.claim(None, &Rig::claim_of(1)).await);
    let job = running.await.jobs.remove(0);
    let end = Settlement { lease: lease(&job), outcome: Outcome::succeeded() };
    let settled = load.store.settle(None, vec![end]).await.unwrap();
    assert_eq!(settled[0].became, SettledAs::Succeeded);
    receives(&mut wakeups, &Place::on(&new).open().await).await;
    let seen = new.command(&["HGET", "quell:{all}:jobs", &job.id.to_string()]).unwrap();
    assert!(!seen.is_empty(), "the new master has it");
}

/// The connections that make calls.
fn clients(server: &Redis) -> Vec<String> {
    let list = server.command(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    list.lines().filter(|line| !line.contains("cmd=client")).map(str::to_owned).collect()
}

#[tokio::test]
async fn r01_r39_a_call_on_a_connection_that_the_server_ended_is_made() {
    let server = server(&[]);
    let store = Place::on(&server).open().await;
    let trigger = async || {
        store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap().remove(0).unwrap();
    };
    for _ in 0..3 {
        trigger().await;
        // Redis counts seconds by their beginnings: from 2 on, one is over.
        let is_idle = || {
            let busy = [" idle=0 ", " idle=1 "];
            clients(&server).iter().all(|client| !busy.iter().any(|idle| client.contains(idle)))
        };
        until("the connection is idle", async || is_idle()).await;
        let killed = server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        assert_eq!(killed, "1");
    }
    trigger().await;
    server.command(&["CONFIG", "SET", "timeout", "1"]).unwrap();
    for _ in 0..2 {
        until("the server ends the idle connection", async || clients(&server).is_empty()).await;
        trigger().await;
    }
    assert_eq!(store.counts().await.unwrap().iter().map(|count| count.jobs).sum::<u64>(), 6);
}

/// The store did not probe the connection before: answers had come a moment ago.
#[tokio::test]
async fn r39_a_look_on_a_connection_that_ended_a_moment_ago_is_made_again() {
    let server = server(&[]);
    let store = Place::on(&server).open().await;
    for _ in 0..5 {
        store.counts().await.unwrap();
        assert_eq!(server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap(), "1");
        store.counts().await.unwrap();
    }
}

/// A call that waits long for the server ends no other: it was not silent.
#[tokio::test]
async fn r39_a_connection_on_which_answers_come_is_kept() {
    let (master, mut replica) = (server(&["repl-diskless-sync-delay 0"]), server(&[]));
    follow(&replica, &master).await;
    let options = Place::on(&master).options().wait_replicas(1).timeout(Duration::from_secs(2));
    let store = options.open().await.unwrap();
    let id = || {
        let list = master.command(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
        let own = list.lines().find(|line| line.contains("cmd=wait")).map(str::to_owned);
        own.and_then(|line| line.split(' ').next().map(str::to_owned))
    };
    let trigger = || store.enqueue(None, vec![Batch::one(plain("1"))]);
    trigger().await.unwrap().remove(0).unwrap();
    let before = id().unwrap();
    replica.pause().unwrap();
    let waiting = futures_util::future::join_all((0..4).map(|_| trigger())).await;
    assert!(waiting.iter().all(|answer| answer.as_ref().is_err_and(|e| e.is_unknown_outcome())));
    replica.go_on().unwrap();
    at_last("writes go on", async || trigger().await?.remove(0)).await;
    assert_eq!(id().unwrap(), before, "the connection was replaced");
}

async fn sentinel_store(sentinels: &RedisSentinels) -> RedisStore {
    let (addresses, name) = (sentinels.addresses(), RedisSentinels::MASTER);
    let url = format!("redis+sentinel://{addresses}/{name}?timeout_ms=3000");
    quell_redis::RedisOptions::from_url(&url).unwrap().open().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_the_master_that_sentinels_choose_is_followed() {
    let mut sentinels = RedisSentinels::start(2).unwrap();
    let store = sentinel_store(&sentinels).await;
    let mut wakeups = store.wakeups();
    let load = Load::on(store);
    load.goes_on(PATIENCE).await;
    let first = sentinels.master().unwrap();
    sentinels.fail_over().unwrap();
    let second = sentinels.await_other_than(first).unwrap();
    load.goes_on(PATIENCE).await;
    // The Sentinels take no second failover before the first is over.
    until("the old master is a replica", async || {
        let about = sentinels.server(first).unwrap().command(&["INFO", "replication"]);
        // A server that becomes a replica closes the connections of its clients.
        about.is_ok_and(|about| about.contains("master_link_status:up"))
    })
    .await;
    sentinels.server_mut(second).unwrap().kill().unwrap();
    let third = sentinels.await_other_than(second).unwrap();
    load.goes_on(PATIENCE).await;
    let place = Place::on(sentinels.server(third).unwrap());
    receives(&mut wakeups, &place.open().await).await;
    let newest = load.accepted.lock().unwrap().last().copied().unwrap();
    let id = newest.job.to_string();
    let row = sentinels.server(third).unwrap().command(&["HGET", "quell:{all}:jobs", &id]).unwrap();
    assert!(!row.is_empty(), "the new master has what was accepted last");
}

#[tokio::test]
async fn r40_sentinels_that_know_no_such_master_are_told() {
    let sentinels = RedisSentinels::start(0).unwrap();
    let url = format!("redis+sentinel://{}/other?timeout_ms=2000", sentinels.addresses());
    let error = quell_redis::RedisOptions::from_url(&url).unwrap().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no Sentinel knows a master of that name"), "{error}");
}
