//! What a client does on a store that claims less (R18).

use std::sync::Arc;

use quell::job::JobFilter;
use quell::store::{MemoryStore, Store};
use quell::trigger::DedupFallback;
use quell::{ErrorKind, HoldUntil, Quell, Result, Timestamp};
use quell_conformance::{Capability, Lesser};
use quell_engine::Engine;
use quell_portable::{MemoryTable, Partition};

use crate::tasks::Reindex;

fn without(hidden: Capability) -> Arc<dyn Store> {
    Arc::new(Lesser::new(MemoryStore::new(Timestamp::from_secs(0)), &[hidden]))
}

/// The model store and the portable one, both without dedup keys.
fn keyless() -> [Arc<dyn Store>; 2] {
    let table = MemoryTable::new(Timestamp::from_secs(0));
    let portable = Engine::new(Partition::new(table, "p"));
    [without(Capability::Dedup), Arc::new(Lesser::new(portable, &[Capability::Dedup]))]
}

async fn jobs(quell: &Quell) -> Result<usize> {
    Ok(quell.store().jobs(&JobFilter::default()).await?.len())
}

#[tokio::test]
async fn r18_closed_refuses_a_dedup_key_before_anything_is_written() -> Result<()> {
    for store in keyless() {
        let quell = Quell::with_store(store).build()?;
        let error = quell.trigger(Reindex::page("a")).dedup("x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("`dedup`"), "{error}");
        let pages = ["a", "b"].map(Reindex::page);
        let error = quell.trigger_many(pages).dedup("x", HoldUntil::Done).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(jobs(&quell).await?, 0);
        quell.trigger(Reindex::page("a")).await?;
        assert_eq!(jobs(&quell).await?, 1, "without a key it is accepted");
    }
    Ok(())
}

#[tokio::test]
async fn r18_open_accepts_the_triggers_without_the_key() -> Result<()> {
    for store in keyless() {
        let quell = Quell::with_store(store).dedup_fallback(DedupFallback::Open).build()?;
        for page in ["a", "b"] {
            let receipt = quell.trigger(Reindex::page(page)).dedup("x").await?;
            assert_eq!(receipt.outcome(), "accepted");
        }
        let pages = ["c", "d"].map(Reindex::page);
        let receipts = quell.trigger_many(pages).dedup("x", HoldUntil::Done).await?;
        assert!(receipts.iter().all(|receipt| receipt.outcome() == "accepted"), "{receipts:?}");
        assert_eq!(jobs(&quell).await?, 4);
    }
    Ok(())
}

#[tokio::test]
async fn r18_open_changes_nothing_where_the_store_keeps_keys() -> Result<()> {
    let store = without(Capability::Push);
    let quell = Quell::with_store(store).dedup_fallback(DedupFallback::Open).build()?;
    quell.trigger(Reindex::page("a")).dedup("x").await?;
    let again = quell.trigger(Reindex::page("b")).dedup("x").await?;
    assert_eq!(again.outcome(), "duplicate");
    Ok(())
}

/// An idempotency key has no fallback: its caller relies on it.
#[tokio::test]
async fn r18_r19_an_idempotency_key_is_refused_where_no_keys_are_kept() -> Result<()> {
    for store in keyless() {
        let quell = Quell::with_store(store).dedup_fallback(DedupFallback::Open).build()?;
        let asked = quell.trigger(Reindex::page("a")).idempotency_key("x");
        assert_eq!(asked.await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(jobs(&quell).await?, 0);
    }
    Ok(())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r18_a_store_without_transactions_refuses_one_and_writes_nothing() -> Result<()> {
    use sqlx::{Connection, SqliteConnection};

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let store = quell::sqlite::SqliteOptions::new(&file).open().await?;
    let lesser = Lesser::new(store, &[Capability::Transactions]);
    let quell = Quell::with_store(Arc::new(lesser)).build()?;
    let mut db = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let error = quell.trigger(Reindex::page("a")).within(&mut tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("`transactions`"), "{error}");
    tx.commit().await.unwrap();
    assert_eq!(jobs(&quell).await?, 0);
    Ok(())
}
