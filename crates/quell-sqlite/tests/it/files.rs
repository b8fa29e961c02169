//! Files that are missing, not ours, not writable, too new or full: each error says which (R1, R40).

use quell_conformance::Rig;
use quell_conformance::rig::plain;
use quell_core::{Batch, ErrorKind, Result, Store};
use quell_sqlite::{SqliteOptions, SqliteStore};
use sqlx::Row;

use crate::scene::{Scene, trigger};

/// The kind and the text of the error that opening a store ended in.
fn refused(opened: Result<SqliteStore>) -> (ErrorKind, String) {
    let error = opened.unwrap_err();
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn a_file_that_is_no_database_is_foreign() {
    let scene = Scene::new();
    std::fs::write(scene.path(), "dear diary, ".repeat(1_000)).unwrap();
    let (kind, text) = refused(SqliteStore::open(&scene.url()).await);
    assert_eq!(kind, ErrorKind::Foreign);
    assert!(text.contains("quell.db") && text.contains("name another file"), "{text}");
    assert!(std::fs::read_to_string(scene.path()).unwrap().starts_with("dear diary"));
}

#[tokio::test]
async fn a_meta_table_of_someone_else_is_foreign_and_left_alone() {
    for other in [
        "create table quell_meta (colour text); insert into quell_meta values ('blue')",
        "create table quell_meta (colour text)",
        "create table quell_meta (schema_version text); insert into quell_meta values ('blue')",
    ] {
        let scene = Scene::new();
        scene.execute(other).await;
        let (kind, text) = refused(scene.options().open().await);
        assert_eq!(kind, ErrorKind::Foreign, "{other}: {text}");
        assert!(text.contains("quell_meta"), "{text}");
        let mut db = scene.connect().await;
        let tables = sqlx::query("select name from sqlite_schema").fetch_all(&mut db).await;
        assert_eq!(tables.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn an_applications_own_tables_may_live_in_the_same_file() {
    let scene = Scene::new();
    scene.execute("create table job (id); insert into job values (7)").await;
    trigger(&scene.open().await, plain("1")).await;
    let mut db = scene.connect().await;
    let row = sqlx::query("select id from job").fetch_one(&mut db).await.unwrap();
    assert_eq!(row.get::<i64, _>(0), 7);
}

#[tokio::test]
async fn a_file_of_a_newer_quell_is_left_alone() {
    let scene = Scene::new();
    drop(scene.open().await);
    let newest = sqlx::query_scalar::<_, i64>("select schema_version from quell_meta");
    let newest = newest.fetch_one(&mut scene.connect().await).await.unwrap();
    scene.execute("update quell_meta set schema_version = 99").await;
    let (kind, text) = refused(scene.options().open().await);
    assert_eq!(kind, ErrorKind::Newer);
    let said = format!("schema version 99, this Quell knows up to {newest}: update this program");
    assert!(text.contains(&said), "{text}");
}

#[tokio::test]
async fn a_file_of_a_layout_that_no_release_wrote_is_left_alone() {
    let scene = Scene::new();
    drop(scene.open().await);
    scene.execute("update quell_meta set schema_version = 10").await;
    let (kind, text) = refused(scene.options().open().await);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("schema version 10") && text.contains("name another file"), "{text}");
    let version = sqlx::query_scalar::<_, i64>("select schema_version from quell_meta");
    assert_eq!(version.fetch_one(&mut scene.connect().await).await.unwrap(), 10);
}

#[tokio::test]
async fn a_folder_that_is_missing_is_named() {
    let (kind, text) = refused(SqliteOptions::new("/no/such/folder/quell.db").open().await);
    assert_eq!(kind, ErrorKind::Unavailable);
    assert!(text.contains("/no/such/folder") && text.contains("directory"), "{text}");
}

#[tokio::test]
async fn a_read_only_store_can_be_looked_at_and_refuses_triggers() {
    let scene = Scene::new();
    trigger(&scene.open().await, plain("1")).await;
    let url = format!("{}?mode=ro", scene.url());
    let store = SqliteStore::open(&url).await.unwrap();
    assert_eq!(store.counts().await.unwrap().len(), 1);
    let error = store.enqueue(None, vec![Batch::one(plain("2"))]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    assert!(error.to_string().contains("write access"), "{error}");
}

#[tokio::test]
async fn a_read_only_file_without_a_schema_says_so() {
    let scene = Scene::new();
    scene.execute("create table job (id)").await;
    let url = format!("{}?mode=ro", scene.url());
    assert_eq!(refused(SqliteStore::open(&url).await).0, ErrorKind::ReadOnly);
}

#[tokio::test]
async fn r01_a_full_disk_refuses_triggers_and_loses_nothing() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    rig.trigger(plain("1")).await;
    let payload = format!("\"{}\"", "x".repeat(900_000));
    // SQLite treats a file at its largest size as it does a full disk.
    let store = scene.options().max_bytes(300 << 10).open().await.unwrap();
    let error = store.enqueue(None, vec![Batch::one(plain(&payload))]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.is_retryable(), "{error}");
    assert_eq!(rig.claim_one().await.payload.as_str(), "1");
    trigger(&store, plain("2")).await;
}

#[tokio::test]
async fn urls_that_mean_no_file_are_refused_by_field() {
    for url in ["postgres://db", "sqlite://", "sqlite::memory:", "sqlite://a.db?synchronous=off"] {
        let error = SqliteOptions::from_url(url).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("url")), "{url}");
        assert!(error.to_string().contains(url), "{error}");
    }
}

#[tokio::test]
async fn a_store_is_in_wal_mode_and_opens_again_as_it_was() {
    let scene = Scene::new();
    let before = {
        let rig = scene.rig().await;
        rig.trigger(plain("1")).await;
        rig.dump().await
    };
    let mut db = scene.connect().await;
    let mode: String = sqlx::query_scalar("pragma journal_mode").fetch_one(&mut db).await.unwrap();
    assert_eq!(mode, "wal");
    assert_eq!(scene.rig().await.dump().await, before);
}

#[tokio::test]
async fn many_may_open_a_new_file_at_once() {
    for _ in 0..10 {
        let scene = Scene::new();
        let opened = futures_util::future::join_all((0..8).map(|_| scene.options().open())).await;
        for store in opened {
            trigger(&store.unwrap(), plain("1")).await;
        }
        let rig: Rig = scene.rig().await;
        assert_eq!(rig.jobs().await.len(), 8);
    }
}
