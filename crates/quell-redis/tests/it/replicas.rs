//! Writes that wait for a replica: the caller receives the outcome, and calls that write nothing do
//! not wait.

use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain, until};
use quell_core::{Batch, ErrorKind, Outcome, SettledAs, Settlement, Store};
use quell_services::Redis;

use crate::place::{Place, server};

/// A master with a replica that has all of it.
async fn pair() -> (Redis, Redis) {
    let (master, replica) = (server(&["repl-diskless-sync-delay 0"]), server(&[]));
    let port = master.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    until("the replica follows", async || {
        replica.command(&["INFO", "replication"]).unwrap().contains("master_link_status:up")
    })
    .await;
    (master, replica)
}

fn waits(server: &Redis) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let of_wait = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    of_wait.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn r01_who_writes_nothing_waits_for_no_replica() {
    let (master, mut replica) = pair().await;
    let options = Place::on(&master).options().wait_replicas(1).timeout(Duration::from_secs(3));
    let store = options.open().await.unwrap();
    store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap().remove(0).unwrap();
    let job = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    assert!(waits(&master) >= 2, "what is written is waited for");
    replica.pause().unwrap();
    let before = waits(&master);
    let began = Instant::now();
    for _ in 0..20 {
        let idle = store.claim(None, &Rig::claim_of(1)).await.unwrap();
        assert!(idle.jobs.is_empty() && idle.next.expiry.is_some(), "{idle:?}");
    }
    store.counts().await.unwrap();
    assert_eq!(waits(&master), before, "{:?} for nothing", began.elapsed());
    // What is refused was not done: that is no unknown outcome.
    let stale = quell_core::Lease { token: Rig::token(99), ..lease(&job) };
    let end = |lease| vec![Settlement { lease, outcome: Outcome::succeeded() }];
    let refused = store.settle(None, end(stale)).await.unwrap();
    assert_eq!(refused[0].became, SettledAs::Refused);
    let error = store.settle(None, end(lease(&job))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas have it"), "{error}");
    replica.go_on().unwrap();
    store.enqueue(None, vec![Batch::one(plain("2"))]).await.unwrap().remove(0).unwrap();
}
