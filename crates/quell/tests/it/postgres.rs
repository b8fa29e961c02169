//! The library on a real PostgreSQL server: triggers within callers' transactions that do not notify.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use quell::postgres::PostgresStore;
use quell::store::{Store, Wakeups};
use quell::trigger::AfterCommit;
use quell::{Quell, Result};
use quell_conformance::rig::until;
use quell_services::url_for_tests;
use sqlx::{Connection, PgConnection};
use tokio::sync::oneshot;

use crate::tasks::{App, Script, script};

/// How long a wake-up may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

async fn expect_woken(wakeups: &mut Wakeups) {
    let woken = tokio::time::timeout(PATIENCE, wakeups.next()).await;
    assert!(woken.unwrap().is_some());
}

#[tokio::test]
async fn r04_r34_after_a_commit_that_does_not_notify_the_caller_wakes_workers() -> Result<()> {
    let url = url_for_tests();
    let store = Arc::new(PostgresStore::open(&url).await?);
    let quell = Quell::with_store(Arc::<PostgresStore>::clone(&store)).build()?;
    let other = PostgresStore::open(&url).await?;
    let mut db = PgConnection::connect(url.split('?').next().unwrap()).await.unwrap();
    for many in [false, true] {
        let (mut here, mut elsewhere) = (store.wakeups(), other.wakeups());
        let mut tx = db.begin().await.unwrap();
        let after_commit: AfterCommit = match many {
            false => quell.trigger(Script::new(&["one"])).within_silently(&mut tx).await?,
            true => {
                let tasks = [Script::new(&["two"]), Script::new(&["three"])];
                quell.trigger_many(tasks).within_silently(&mut tx).await?
            }
        };
        tx.commit().await.unwrap();
        after_commit.wake();
        expect_woken(&mut here).await;
        expect_woken(&mut elsewhere).await;
    }
    let log = App::default();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = quell.worker(Arc::clone(&log)).register(script);
    let mut workers = tokio::task::JoinSet::new();
    workers.spawn(worker.run_until(async { drop(stopped.await) }));
    until("all were run", || async { log.runs().len() == 3 }).await;
    drop(stop);
    workers.join_all().await.into_iter().collect::<Result<()>>()
}

/// A handle that is forgotten only delays, and one that is used after a rollback starts nothing.
#[tokio::test]
async fn r04_r39_a_silent_trigger_whose_caller_forgets_to_wake_is_run_and_a_rollback_never_is()
-> Result<()> {
    let url = url_for_tests();
    for notifies in [true, false] {
        let store = Arc::new(PostgresStore::open(&url).await?);
        store.notify_in_transactions(notifies).await?;
        let quell = Quell::with_store(store).build()?;
        let log = App::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = quell.worker(Arc::clone(&log)).register(script);
        let mut workers = tokio::task::JoinSet::new();
        workers.spawn(worker.run_until(async { drop(stopped.await) }));
        let mut db = PgConnection::connect(url.split('?').next().unwrap()).await.unwrap();
        let mut undone = db.begin().await.unwrap();
        let task = Script::new(&["undone"]);
        let after_commit = quell.trigger(task).within_silently(&mut undone).await?;
        undone.rollback().await.unwrap();
        after_commit.wake();
        let mut tx = db.begin().await.unwrap();
        let forgotten = quell.trigger(Script::new(&["done"])).within_silently(&mut tx).await?;
        tx.commit().await.unwrap();
        drop(forgotten);
        until("it was run", || async { !log.runs().is_empty() }).await;
        drop(stop);
        workers.join_all().await.into_iter().collect::<Result<()>>()?;
        let runs: Vec<String> = log.runs().into_iter().map(|run| run.what).collect();
        assert_eq!(runs, ["done"], "notifies: {notifies}");
    }
    Ok(())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r43_the_store_has_ciphertext() -> Result<()> {
    let store = Arc::new(PostgresStore::open(&url_for_tests()).await?);
    crate::encryption::the_store_has_ciphertext_and_clients_see_plain_text(store).await
}
