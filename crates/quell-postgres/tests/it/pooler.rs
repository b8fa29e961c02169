//! Behind PgBouncer: everything works; a transaction pooler only takes the pushing away.

use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::rig::{keyed, lease, plain};
use quell_conformance::{Opened, Rig};
use quell_core::{Batch, Store};
use quell_postgres::PostgresStore;
use quell_services::{PgBouncer, Pooling, Postgres};

#[tokio::test]
async fn r34_behind_a_transaction_pooler_it_polls_and_keeps_every_promise() {
    let server = Postgres::start(&["fsync=off"]).unwrap();
    let pooler = PgBouncer::start(&server, Pooling::Transaction).unwrap();
    let store = std::sync::Arc::new(PostgresStore::open(&pooler.url()).await.unwrap());
    assert!(!store.capabilities().push);
    let mut rig = Rig::new(Opened { store, guard: Box::new((server, pooler)) });
    // Enough calls that each session of the pool serves several of them.
    for round in 0..40 {
        let key = format!("k{}", round % 3);
        rig.at(round * 20).trigger(keyed(&key)).await;
        rig.trigger(plain("1")).await;
        let now = rig.claim_one().await;
        rig.at(round * 20 + 10);
        let run = rig.claim_one().await;
        assert_eq!(run.triggers, 1);
        rig.succeed(&now).await;
        if round % 2 == 0 {
            rig.succeed(&run).await;
        } else {
            rig.fail(&run, Duration::from_secs(1)).await;
            assert!(rig.renew(lease(&run)).await.is_none());
            let again = rig.at(round * 20 + 11).claim_one().await;
            rig.succeed(&again).await;
        }
    }
    assert_eq!(rig.states().await.len(), 80);
}

#[tokio::test]
async fn r34_a_session_pooler_is_as_good_as_none() {
    let server = Postgres::start(&["fsync=off"]).unwrap();
    let pooler = PgBouncer::start(&server, Pooling::Session).unwrap();
    let url = format!("{}?connections=1", pooler.url());
    let (one, other) = (
        PostgresStore::open(&url).await.unwrap(),
        PostgresStore::open(&server.url()).await.unwrap(),
    );
    assert!(one.capabilities().push);
    let mut wakeups = one.wakeups();
    other.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(20), wakeups.next()).await;
    assert!(woken.unwrap().is_some());
}
