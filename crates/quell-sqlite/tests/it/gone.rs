//! Files that are deleted, moved or replaced under an open store, and who may read them (R1).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use quell_conformance::rig::{all_jobs, plain};
use quell_core::{Batch, ErrorKind, Store, Trouble};
use quell_sqlite::{SqliteOptions, SqliteStore};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};

use crate::scene::{Scene, trigger};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn beside(scene: &Scene, end: &str) -> std::path::PathBuf {
    scene.path().with_extension(format!("db{end}"))
}

/// Every call of a store whose file is gone says so, and health checks know it.
async fn is_lost(store: &SqliteStore, what: &str) {
    let refused = store.enqueue(None, vec![Batch::one(plain("2"))]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{what}: {refused}");
    let text = refused.to_string();
    assert!(text.contains("quell.db") && text.contains("restore a backup"), "{what}: {text}");
    let read = store.counts().await.unwrap_err();
    assert_eq!(read.kind(), ErrorKind::Unavailable, "{what}: {read}");
    assert!(store.trouble().is_some_and(|trouble| trouble.is_final()), "{what}");
    assert_eq!(store.close().await.unwrap_err().kind(), ErrorKind::Unavailable, "{what}");
}

#[tokio::test]
async fn r01_nothing_is_accepted_into_a_file_that_was_deleted() {
    for end in ["", "-wal", "-shm"] {
        let scene = Scene::new();
        let store = scene.open().await;
        trigger(&store, plain("1")).await;
        assert_eq!(store.trouble(), None);
        std::fs::remove_file(beside(&scene, end)).unwrap();
        is_lost(&store, end).await;
    }
}

#[tokio::test]
async fn r01_nothing_is_accepted_into_a_file_that_was_replaced_even_if_it_comes_back() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let aside = scene.path().with_extension("aside");
    std::fs::rename(scene.path(), &aside).unwrap();
    std::fs::write(scene.path(), "").unwrap();
    is_lost(&store, "replaced").await;
    std::fs::rename(&aside, scene.path()).unwrap();
    is_lost(&store, "back").await;
    drop(store);
    let store = scene.open().await;
    assert_eq!(all_jobs(&store).await.len(), 1, "what was accepted is there");
    trigger(&store, plain("2")).await;
}

/// The file goes while a write transaction is open: its commit is not acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_a_commit_into_a_file_that_is_gone_is_not_acknowledged() {
    let scene = Scene::new();
    let store = std::sync::Arc::new(scene.open().await);
    trigger(&*store, plain("1")).await;
    let mut other = scene.connect().await;
    sqlx::query("begin immediate").execute(&mut other).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    calls.spawn({
        let store = std::sync::Arc::clone(&store);
        async move { store.enqueue(None, vec![Batch::one(plain("2"))]).await }
    });
    // The call has looked at the names once its transaction waits for the lock: then they go.
    let mut waits =
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(scene.path()))
            .await
            .unwrap();
    for _ in 0..200 {
        let _data: i64 = sqlx::query_scalar("select count(*) from quell_job")
            .fetch_one(&mut waits)
            .await
            .unwrap();
        tokio::task::yield_now().await;
    }
    std::fs::remove_file(scene.path()).unwrap();
    sqlx::query("rollback").execute(&mut other).await.unwrap();
    let refused = calls.join_next().await.unwrap().unwrap().unwrap_err();
    let kinds = [ErrorKind::UnknownOutcome, ErrorKind::Unavailable];
    assert!(kinds.contains(&refused.kind()), "{refused}");
    assert!(store.trouble().is_some_and(|trouble| trouble.is_final()));
}

#[tokio::test]
async fn files_of_a_new_store_are_their_owners_alone() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    for end in ["", "-wal", "-shm"] {
        assert_eq!(mode(&beside(&scene, end)), 0o600, "{end}");
    }
    let left = std::fs::read_dir(scene.path().parent().unwrap()).unwrap().count();
    assert_eq!(left, 3, "nothing else is left in the folder");
    let checkup = store.checkup().await.unwrap();
    assert_eq!(checkup.warnings().count(), 0, "{checkup}");

    std::fs::set_permissions(scene.path(), PermissionsExt::from_mode(0o644)).unwrap();
    let checkup = store.checkup().await.unwrap();
    let warnings: Vec<String> = checkup.warnings().collect();
    assert!(matches!(&*warnings, [one] if one.contains("chmod 600")), "{warnings:?}");
    assert_eq!(checkup.problems().count(), 0, "{checkup}");
}

#[tokio::test]
async fn after_a_close_the_file_alone_is_the_store() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.open().await, scene.open().await);
    for store in [&ours, &theirs] {
        for _ in 0..20 {
            trigger(store, plain("1")).await;
        }
    }
    assert!(std::fs::metadata(beside(&scene, "-wal")).unwrap().len() > 0);
    ours.close().await.unwrap();
    trigger(&theirs, plain("1")).await;
    theirs.close().await.unwrap();
    assert_eq!(std::fs::metadata(beside(&scene, "-wal")).unwrap().len(), 0);
    let copy = Scene::new();
    // By another process: a file that this one closes would lose SQLite's locks.
    let copied = std::process::Command::new("cp").args([scene.path(), copy.path()]).status();
    assert!(copied.unwrap().success());
    assert_eq!(all_jobs(&copy.open().await).await.len(), 41);
}

#[tokio::test]
async fn r01_a_full_disk_is_known_until_a_write_succeeds() {
    let scene = Scene::new();
    trigger(&scene.open().await, plain("1")).await;
    let store = scene.options().max_bytes(300 << 10).open().await.unwrap();
    assert_eq!(store.trouble(), None);
    let payload = format!("\"{}\"", "x".repeat(900_000));
    let refused = store.enqueue(None, vec![Batch::one(plain(&payload))]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    let trouble = store.trouble().unwrap();
    assert!(matches!(&trouble, Trouble::Full(why) if why.contains("quell.db")), "{trouble}");
    assert!(!trouble.is_final());
    let checkup = store.checkup().await.unwrap();
    assert_eq!(checkup.problems().collect::<Vec<_>>(), [trouble.to_string()]);
    // Reading is no proof of space.
    store.counts().await.unwrap();
    assert!(store.trouble().is_some());
    trigger(&store, plain("2")).await;
    assert_eq!(store.trouble(), None);
}

#[tokio::test]
async fn a_url_may_bound_the_file() {
    let scene = Scene::new();
    let url = |bytes: &str| format!("{}?max_bytes={bytes}", scene.url());
    let store = SqliteStore::open(&url("1048576")).await.unwrap();
    let payload = format!("\"{}\"", "x".repeat(500_000));
    trigger(&store, plain(&payload)).await;
    let refused = store.enqueue(None, vec![Batch::one(plain(&payload))]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    for wrong in ["", "-1", "9", "many"] {
        let error = SqliteOptions::from_url(&url(wrong)).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("url")), "{wrong}");
        assert!(error.to_string().contains("from 1048576 on"), "{error}");
    }
}

#[tokio::test]
async fn a_log_that_a_reader_keeps_long_is_a_problem_in_the_checkup() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let checkup = store.checkup().await.unwrap();
    assert_eq!(checkup.problems().count(), 0, "{checkup}");
    // A log of that size takes long to write: its length alone is looked at, so it may be sparse.
    let log = std::process::Command::new("truncate")
        .args(["--size=200M", beside(&scene, "-wal").to_str().unwrap()])
        .status();
    assert!(log.unwrap().success());
    let problems: Vec<String> = store.checkup().await.unwrap().problems().collect();
    assert!(matches!(&*problems, [one] if one.contains("a reader")), "{problems:?}");
}
