//! The library on real SQLite files: virtual time on a real store, callers' transactions, many
//! callers at once, two workers on one file, and what a worker does while nothing happens.

use std::sync::Arc;
use std::time::Duration;

use quell::sqlite::{SqliteOptions, SqliteStore, Synchronous};
use quell::store::Store;
use quell::{ErrorKind, JobState, Quell, Receipt, Result, TaskName};
use quell_conformance::rig::until;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::anywhere::bursts_run_in_virtual_time;
use crate::tasks::{App, Reindex, Script, reindex, script, secs};

/// A store in a folder of its own.
async fn store() -> Result<(Arc<SqliteStore>, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("app.db"));
    Ok((Arc::new(options.synchronous(Synchronous::Normal).open().await?), folder))
}

async fn connect(folder: &TempDir) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(folder.path().join("app.db"));
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn count(store: &Arc<SqliteStore>, task: &str, state: JobState) -> u64 {
    let task = TaskName::new(task).unwrap();
    let counts = store.counts().await.unwrap();
    counts.iter().filter(|c| c.task == task && c.state == state).map(|c| c.jobs).sum()
}

#[tokio::test]
async fn r08_virtual_time_runs_on_a_real_store_too() -> Result<()> {
    let (store, _folder) = store().await?;
    bursts_run_in_virtual_time(store).await
}

#[tokio::test]
async fn r04_a_trigger_counts_from_the_callers_commit_and_vanishes_with_its_rollback() -> Result<()>
{
    let (store, folder) = store().await?;
    let quell = Quell::with_store(Arc::<SqliteStore>::clone(&store)).build()?;
    let mut db = connect(&folder).await;
    sqlx::query("create table invoice (id integer)").execute(&mut db).await.unwrap();

    let mut tx = db.begin().await.unwrap();
    let receipt = quell.trigger(Script::new(&["undone"])).dedup("x").within(&mut tx).await?;
    assert_eq!(receipt, Receipt::Pending);
    tx.rollback().await.unwrap();
    assert!(store.counts().await?.is_empty());

    let log = App::default();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = quell.worker(Arc::clone(&log)).register(script);
    let mut workers = tokio::task::JoinSet::new();
    workers.spawn(worker.run_until(async { drop(stopped.await) }));

    let mut tx = db.begin().await.unwrap();
    sqlx::query("insert into invoice values (7)").execute(&mut *tx).await.unwrap();
    quell.trigger(Script::new(&["done"])).dedup("x").within(&mut tx).await?;
    let batch = [Script::new(&["", "b"]), Script::new(&["", "", "c"])];
    assert_eq!(quell.trigger_many(batch).within(&mut tx).await?.len(), 2);
    let after_commit = quell.trigger(Script::new(&["silent"])).within_silently(&mut tx).await?;
    assert_eq!(count(&store, "script", JobState::Succeeded).await, 0);
    tx.commit().await.unwrap();
    until("the worker noticed the commit by itself", || async { log.runs().len() == 4 }).await;
    after_commit.wake();
    assert_eq!(log.runs()[0].what, "done", "in order, and the rolled-back key was free");

    let again = quell.trigger(Script::new(&[])).dedup("x").await?;
    assert_eq!(again.outcome(), "duplicate", "the key counts from the commit");
    drop(stop);
    workers.join_all().await.into_iter().collect::<Result<()>>()
}

#[tokio::test]
async fn r04_a_database_without_a_store_is_refused_with_what_to_do() -> Result<()> {
    let (store, _folder) = store().await?;
    let quell = Quell::with_store(store).build()?;
    let elsewhere = tempfile::tempdir().unwrap();
    let options =
        SqliteConnectOptions::new().filename(elsewhere.path().join("x.db")).create_if_missing(true);
    let mut db = SqliteConnection::connect_with(&options).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let error = quell.trigger(Script::new(&[])).within(&mut tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign);
    assert!(error.to_string().contains("SqliteStore::open"), "{error}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_callers_at_once_share_commits_and_each_gets_its_own_answer() -> Result<()> {
    let (store, _folder) = store().await?;
    let quell = Quell::with_store(Arc::<SqliteStore>::clone(&store)).build()?;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..64_usize {
        let quell = quell.clone();
        callers.spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..20 {
                let page = format!("page-{}", caller % 8);
                let receipt = quell.trigger(Reindex { page }).await.unwrap();
                ids.push(receipt.trigger().unwrap());
            }
            ids
        });
    }
    let mut ids: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 64 * 20, "every trigger has an id of its own");
    assert_eq!(count(&store, "reindex", JobState::Scheduled).await, 8);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r31_two_workers_on_one_file_run_each_job_once() -> Result<()> {
    let (first, folder) = store().await?;
    let second = Arc::new(SqliteOptions::new(folder.path().join("app.db")).open().await?);
    let log = App::default();
    let mut workers = tokio::task::JoinSet::new();
    let mut stops = Vec::new();
    for store in [&first, &second] {
        let quell = Quell::with_store(Arc::<SqliteStore>::clone(store)).build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        let worker = quell.worker(Arc::clone(&log)).register(script);
        workers.spawn(worker.run_until(async { drop(stopped.await) }));
    }
    let quell = Quell::with_store(Arc::<SqliteStore>::clone(&first)).build()?;
    for _ in 0..10 {
        quell.trigger_many((0..50).map(|_| Script::new(&[]))).await?;
    }
    until("all 500 have run", || async {
        count(&second, "script", JobState::Succeeded).await == 500
    })
    .await;
    assert_eq!(log.runs().len(), 500, "none ran twice");
    drop(stops);
    workers.join_all().await.into_iter().collect::<Result<()>>()
}

#[tokio::test]
async fn r34_a_trigger_of_another_process_wakes_the_worker() -> Result<()> {
    let (store, folder) = store().await?;
    let quell = Quell::with_store(store).build()?;
    let log = App::default();
    let (stop, stopped) = oneshot::channel::<()>();
    // Polling alone would take an hour.
    let poll = quell::worker::PollSettings { base: secs(3_600), ceiling: secs(3_600) };
    let worker = quell.worker(Arc::clone(&log)).register(script).poll(poll);
    let mut workers = tokio::task::JoinSet::new();
    workers.spawn(worker.run_until(async { drop(stopped.await) }));
    let url = format!("sqlite://{}", folder.path().join("app.db").display());
    let other = Quell::open(&url).await?;
    for n in 1..=3 {
        other.trigger(Script::new(&[])).await?;
        until("the other's trigger ran", || async { log.runs().len() == n }).await;
    }
    drop(stop);
    workers.join_all().await.into_iter().collect::<Result<()>>()
}

#[tokio::test]
async fn r29_shutdown_gives_unfinished_work_back_unspent() -> Result<()> {
    let (store, _folder) = store().await?;
    let quell = Quell::with_store(Arc::<SqliteStore>::clone(&store)).build()?;
    quell.trigger(Script::new(&["hang"])).await?;
    let log = App::default();
    let worker = quell.worker(Arc::clone(&log)).register(script).grace(Duration::from_millis(20));
    let begun = async { until("the handler hangs", || async { log.runs().len() == 1 }).await };
    worker.run_until(begun).await?;
    let job = store.jobs(&quell::job::JobFilter::default()).await?.remove(0);
    assert_eq!((job.state, job.attempt, job.starts()), (JobState::Scheduled, 0, 1));
    assert_eq!(job.window.reason, quell::job::DueReason::Released);
    Ok(())
}

/// A worker that waits writes nothing: the WAL does not grow.
#[tokio::test]
async fn r34_an_idle_worker_writes_its_heartbeats_and_nothing_else() -> Result<()> {
    let (store, folder) = store().await?;
    let quell = Quell::with_store(store).build()?;
    let wal = || std::fs::metadata(folder.path().join("app.db-wal")).unwrap();
    let poll = quell::worker::PollSettings { base: Duration::from_millis(5), ceiling: secs(1) };
    let worker = quell.worker(App::default()).register(script).register(reindex).poll(poll);
    let idle = async {
        // The next heartbeat comes 10 s after the first.
        quell_conformance::rig::until("the worker is seen", || async {
            quell.workers().await.unwrap().rows.len() == 1
        })
        .await;
        let before = (wal().len(), wal().modified().unwrap());
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!((wal().len(), wal().modified().unwrap()), before);
    };
    worker.run_until(idle).await?;
    assert_eq!(quell.workers().await?.rows, [], "it has stopped");
    Ok(())
}
