//! Backups of a store in use, and their restoration (R1, R21).

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{all_jobs, lease, plain};
use quell_core::checkup::SKIPPED_IDS;
use quell_core::{Batch, ErrorKind, JobState, Store};
use quell_sqlite::{BackupOptions, BackupProgress, RestoreOptions, SqliteOptions, SqliteStore};
use tokio::task::JoinSet;

use crate::scene::{Scene, trigger};

fn beside(scene: &Scene, name: &str) -> PathBuf {
    scene.path().with_file_name(name)
}

fn names(scene: &Scene) -> Vec<String> {
    let folder = std::fs::read_dir(scene.path().parent().unwrap()).unwrap();
    let mut names: Vec<String> =
        folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Closes a store and waits until its connections are gone.
async fn closed(scene: &Scene, store: SqliteStore) {
    store.close().await.unwrap();
    drop(store);
    let file = scene.path().canonicalize().unwrap();
    let is_open = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter_map(|one| one.path().read_link().ok()).any(|path| path == file)
    };
    quell_conformance::rig::until("the file is closed", async || !is_open()).await;
}

async fn filled(store: &SqliteStore, jobs: usize) {
    let payload = format!("\"{}\"", "x".repeat(1_000));
    for _ in 0..jobs / 100 {
        let triggers = vec![plain(&payload); 100];
        store.enqueue(None, vec![Batch { triggers, dedup: None }]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_a_backup_under_load_has_all_that_was_acknowledged_before_it() {
    let scene = Scene::new();
    let store = Arc::new(scene.open().await);
    filled(&store, 3_000).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for _ in 0..4 {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        load.spawn(async move {
            let mut acknowledged = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                acknowledged.push(trigger(&*store, plain("1")).await.job().unwrap());
                if let Some(job) = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.pop() {
                    let done = quell_core::Settlement {
                        lease: lease(&job),
                        outcome: quell_core::Outcome::succeeded(),
                    };
                    store.settle(None, vec![done]).await.unwrap();
                }
            }
            acknowledged
        });
    }
    // Something of the load is there.
    quell_conformance::rig::until("the load has begun", async || {
        all_jobs(&*store).await.len() > 3_050
    })
    .await;
    let before = all_jobs(&*store).await;
    let (to, progress) = (beside(&scene, "quell.bak"), BackupProgress::default());
    let options = BackupOptions::new().bytes_per_second(8 << 20).progress(progress.clone());
    let made = store.backup(&to, options).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let acknowledged: Vec<_> = load.join_all().await.into_iter().flatten().collect();
    assert_eq!(made.bytes, std::fs::metadata(&to).unwrap().len());
    assert!(made.bytes > 3_000_000 && progress.bytes().0 > 0, "{made:?}");
    assert_eq!(Some(&made.store), store.location().map(|place| &place.id));
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(acknowledged.len() > before.len() - 3_000, "the load went on meanwhile");

    let elsewhere = Scene::new();
    let restored =
        SqliteOptions::new(elsewhere.path()).restore(&to, RestoreOptions::new()).await.unwrap();
    assert_eq!((restored.store, restored.aside), (made.store, None));
    let restored = elsewhere.open().await;
    let there = all_jobs(&restored).await;
    for (id, job) in &before {
        let copy = there.get(id).unwrap_or_else(|| panic!("job {id} is lost"));
        // It may have gone on before the copy.
        assert_eq!((&copy.payload, copy.window.triggers), (&job.payload, job.window.triggers));
    }
    let newest = acknowledged.iter().max().unwrap();
    let next = trigger(&restored, plain("1")).await.job().unwrap();
    assert!(next > *newest, "R21: ids after the backup do not come again: {next}, {newest}");
    for sql in ["pragma integrity_check", "select wrong from quell_recount"] {
        let found: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select cast(t.x as text) from ({}) t",
            if sql.starts_with("pragma") {
                "select integrity_check as x from pragma_integrity_check"
            } else {
                "select wrong as x from quell_recount"
            }
        )))
        .fetch_all(&mut elsewhere.connect().await)
        .await
        .unwrap();
        assert!(["ok", "0"].contains(&&*found[0]) && found.len() == 1, "{sql}: {found:?}");
    }
}

#[tokio::test]
async fn a_backup_replaces_nothing_unless_asked_and_never_the_store() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let to = beside(&scene, "other");
    std::fs::write(&to, "mine").unwrap();
    let refused = store.backup(&to, BackupOptions::new()).await.unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some("backup")));
    assert!(refused.to_string().contains("there already"), "{refused}");
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "mine");
    store.backup(&to, BackupOptions::new().replace(true)).await.unwrap();
    assert!(std::fs::metadata(&to).unwrap().len() > 4_096);
    for own in ["quell.db", "quell.db-wal", "quell.db-shm"] {
        let options = BackupOptions::new().replace(true);
        let refused = store.backup(beside(&scene, own), options).await.unwrap_err();
        assert!(refused.to_string().contains("the store itself"), "{own}: {refused}");
    }
    trigger(&store, plain("1")).await;
    assert_eq!(names(&scene), ["other", "quell.db", "quell.db-shm", "quell.db-wal"]);
}

#[tokio::test]
async fn a_backup_to_nowhere_and_of_nothing_say_why() {
    let scene = Scene::new();
    let missing = scene.options().backup(beside(&scene, "b"), BackupOptions::new()).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(names(&scene).is_empty(), "it makes no store");
    scene.execute("create table job (id)").await;
    let foreign = scene.options().backup(beside(&scene, "b"), BackupOptions::new()).await;
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::Foreign);
    std::fs::remove_file(scene.path()).unwrap();
    let store = scene.open().await;
    let nowhere = store.backup("/no/such/folder/b", BackupOptions::new()).await.unwrap_err();
    assert!(nowhere.to_string().contains("/no/such/folder"), "{nowhere}");
}

#[tokio::test]
async fn a_backup_that_no_one_waits_for_ends_and_leaves_nothing() {
    let scene = Scene::new();
    let store = scene.open().await;
    filled(&store, 2_000).await;
    let to = beside(&scene, "quell.bak");
    let progress = BackupProgress::default();
    let slow = BackupOptions::new().bytes_per_second(64 << 10).progress(progress.clone());
    let mut running = Box::pin(store.backup(&to, slow));
    let begun = quell_conformance::rig::until("it writes", async || progress.bytes().0 > 0);
    tokio::select! {
        _ = &mut running => panic!("it takes minutes"),
        () = begun => {}
    }
    let other = store.backup(&to, BackupOptions::new()).await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Contention, "{other}");
    drop(running);
    assert!(!to.exists());
    // What SQLite still writes has no name.
    quell_conformance::rig::until("its files are gone", async || {
        names(&scene) == ["quell.db", "quell.db-shm", "quell.db-wal"]
    })
    .await;
    store.backup(&to, BackupOptions::new()).await.unwrap();
}

#[tokio::test]
async fn what_a_killed_backup_left_is_replaced() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    std::fs::write(beside(&scene, "quell.bak.part"), "half").unwrap();
    let to = beside(&scene, "quell.bak");
    store.backup(&to, BackupOptions::new()).await.unwrap();
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!names(&scene).contains(&"quell.bak.part".to_owned()), "{:?}", names(&scene));
}

#[tokio::test]
async fn a_restore_into_a_store_in_use_is_refused() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let to = beside(&scene, "quell.bak");
    store.backup(&to, BackupOptions::new()).await.unwrap();
    trigger(&store, plain("2")).await;
    let options = scene.options().busy_timeout(Duration::from_millis(50));
    let refused = options.restore(&to, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Contention, "{refused}");
    assert!(refused.to_string().contains("stop all processes"), "{refused}");
    trigger(&store, plain("3")).await;
    assert_eq!(all_jobs(&store).await.len(), 3);
    assert_eq!(names(&scene), ["quell.bak", "quell.db", "quell.db-shm", "quell.db-wal"]);
}

#[tokio::test]
async fn r21_a_restore_keeps_the_store_before_and_gives_no_id_twice() {
    let scene = Scene::new();
    let store = scene.open().await;
    let first = trigger(&store, plain("1")).await.job().unwrap();
    let running = store.claim(None, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    let to = beside(&scene, "quell.bak");
    store.backup(&to, BackupOptions::new()).await.unwrap();
    let lost = trigger(&store, plain("2")).await.job().unwrap();
    closed(&scene, store).await;

    let restored = scene.options().restore(&to, RestoreOptions::new()).await.unwrap();
    assert_eq!(restored.running, 1);
    let aside = restored.aside.unwrap();
    assert!(aside.to_str().unwrap().contains("quell.db.before-restore-2"), "{aside:?}");
    assert_eq!(all_jobs(&SqliteOptions::new(&aside).open().await.unwrap()).await.len(), 2);

    let store = scene.open().await;
    assert_eq!(all_jobs(&store).await.keys().collect::<Vec<_>>(), [&first]);
    let next = trigger(&store, plain("3")).await.job().unwrap();
    assert!(next.get() > lost.get() && next.get() > SKIPPED_IDS, "{next}");
    // At least once: the attempt that ran at the backup expires, and the job runs again.
    let late = Some(restored.as_of + Duration::from_secs(3_600));
    let expired = store.reap(late, 9).await.unwrap();
    assert_eq!(expired.iter().map(|expired| expired.lease).collect::<Vec<_>>(), [lease(&running)]);
    let job = store.job(first).await.unwrap().unwrap();
    assert_eq!((job.state, job.failures), (JobState::Scheduled, 0), "{job:?}");
}

#[tokio::test]
async fn a_restore_may_discard_the_store_before() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let to = beside(&scene, "quell.bak");
    store.backup(&to, BackupOptions::new()).await.unwrap();
    closed(&scene, store).await;
    let how = RestoreOptions::new().discard(true);
    assert_eq!(scene.options().restore(&to, how).await.unwrap().aside, None);
    assert_eq!(names(&scene), ["quell.bak", "quell.db"]);
}

#[tokio::test]
async fn a_restore_refuses_what_is_no_backup_and_leaves_the_store() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    filled(&store, 500).await;
    let whole = beside(&scene, "whole");
    store.backup(&whole, BackupOptions::new()).await.unwrap();
    closed(&scene, store).await;
    // Connections that close at the same moment may leave SQLite's journal, and a check takes it
    // away.
    let besides_journals = || {
        let journal = |name: &String| ["quell.db-shm", "quell.db-wal"].contains(&name.as_str());
        names(&scene).into_iter().filter(|name| !journal(name)).collect::<Vec<_>>()
    };
    let before = besides_journals();
    let restore = async |name: &str| {
        let from = beside(&scene, name);
        let refused = scene.options().restore(&from, RestoreOptions::new()).await.unwrap_err();
        (refused.kind(), refused.to_string())
    };
    assert_eq!(restore("nothing").await.0, ErrorKind::NotFound);
    assert!(restore("quell.db").await.1.contains("the store itself"));
    let bytes = std::fs::read(&whole).unwrap();
    let bad = |bytes: &[u8]| std::fs::write(beside(&scene, "bad"), bytes).unwrap();
    bad("dear diary, ".repeat(1_000).as_bytes());
    assert_eq!(restore("bad").await.0, ErrorKind::Foreign);
    bad(b"");
    assert_eq!(restore("bad").await.0, ErrorKind::Foreign);
    let mut torn = bytes.clone();
    let middle = torn.len() / 2;
    torn[middle..middle + 9_000].fill(7);
    bad(&torn);
    let (kind, text) = restore("bad").await;
    assert_eq!(kind, ErrorKind::Corrupt, "{text}");
    bad(&bytes[..bytes.len() / 2]);
    assert_eq!(restore("bad").await.0, ErrorKind::Corrupt);
    bad(&bytes);
    let mut db = <sqlx::SqliteConnection as sqlx::Connection>::connect_with(
        &sqlx::sqlite::SqliteConnectOptions::new().filename(beside(&scene, "bad")),
    )
    .await
    .unwrap();
    sqlx::query("update quell_meta set schema_version = 99").execute(&mut db).await.unwrap();
    sqlx::Connection::close(db).await.unwrap();
    assert_eq!(restore("bad").await.0, ErrorKind::Newer);
    std::fs::remove_file(beside(&scene, "bad")).unwrap();
    assert_eq!(besides_journals(), before, "nothing is left behind");
    assert_eq!(all_jobs(&scene.open().await).await.len(), 501);
}

#[tokio::test]
async fn a_restore_replaces_a_store_that_is_damaged_and_no_other_database() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let to = beside(&scene, "quell.bak");
    store.backup(&to, BackupOptions::new()).await.unwrap();
    closed(&scene, store).await;
    for damaged in ["dear diary, ".repeat(1_000), "SQLite format 3\0 and no more".to_owned()] {
        std::fs::write(scene.path(), damaged).unwrap();
        std::fs::write(beside(&scene, "quell.db-wal"), "a journal of the old file").unwrap();
        let restored = scene.options().restore(&to, RestoreOptions::new()).await.unwrap();
        let aside = restored.aside.unwrap();
        assert!(!std::fs::read(&aside).unwrap().is_empty());
        assert!(!beside(&scene, "quell.db-wal").exists());
        let store = scene.open().await;
        assert_eq!(all_jobs(&store).await.len(), 1);
        closed(&scene, store).await;
    }
    std::fs::remove_file(scene.path()).unwrap();
    scene.execute("create table job (id)").await;
    let refused = scene.options().restore(&to, RestoreOptions::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Foreign, "{refused}");
}

/// A copy by hand of a store that was not closed has its newest rows in the journal beside it.
#[tokio::test]
async fn a_copy_with_its_journal_is_restored_whole() {
    let scene = Scene::new();
    let store = scene.open().await;
    for _ in 0..20 {
        trigger(&store, plain("1")).await;
    }
    for (file, copy) in [("quell.db", "copy"), ("quell.db-wal", "copy-wal")] {
        let (file, copy) = (beside(&scene, file), beside(&scene, copy));
        let copied = std::process::Command::new("cp").args([file, copy]).status();
        assert!(copied.unwrap().success());
    }
    assert!(std::fs::metadata(beside(&scene, "copy-wal")).unwrap().len() > 0);
    let elsewhere = Scene::new();
    let options = SqliteOptions::new(elsewhere.path());
    options.restore(beside(&scene, "copy"), RestoreOptions::new()).await.unwrap();
    assert_eq!(names(&elsewhere), ["quell.db"]);
    assert_eq!(all_jobs(&elsewhere.open().await).await.len(), 20);
}
