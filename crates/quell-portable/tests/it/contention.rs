//! What workers learn where others write all the time: their polls back off, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use quell_conformance::Rig;
use quell_conformance::rig::plain;
use quell_core::{Batch, ErrorKind, JobState, Result, Steps, Timestamp};
use quell_engine::Engine;
use quell_portable::{Bounds, Change, Committed, MemoryTable, Page, Partition, Range, Row, Table};

/// A table on which, for a while, another process always commits first.
#[derive(Clone, Debug)]
struct Contended {
    table: MemoryTable,
    loses: Arc<AtomicBool>,
    tries: Arc<AtomicUsize>,
}

#[async_trait]
impl Table for Contended {
    fn bounds(&self) -> Bounds {
        self.table.bounds()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.table.now().await
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        self.table.get(partition, rows).await
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        self.table.range(partition, range, limit).await
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        if self.loses.load(Ordering::SeqCst) {
            self.tries.fetch_add(1, Ordering::SeqCst);
            return Ok(Committed::Conflict);
        }
        self.table.commit(partition, changes).await
    }
}

#[tokio::test(start_paused = true)]
async fn r35_a_claim_that_conflicts_every_time_reports_contention_and_starts_nothing() {
    let (loses, tries) = (Arc::default(), Arc::default());
    let table = Contended { table: MemoryTable::new(Rig::START), loses, tries };
    let store = Engine::new(Partition::new(table.clone(), "p"));
    let batch = Batch::one(plain("1"));
    let receipts = store.enqueue(Some(Rig::START), vec![batch]).await.unwrap().remove(0).unwrap();
    let id = receipts[0].job().unwrap();
    table.loses.store(true, Ordering::SeqCst);
    let error = store.claim(Some(Rig::START), &Rig::claim_of(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contention, "{error}");
    assert!(table.tries.load(Ordering::SeqCst) > 10, "it is tried again before it is given up");
    table.loses.store(false, Ordering::SeqCst);
    assert_eq!(store.job(id).await.unwrap().unwrap().state, JobState::Scheduled);
    let claimed = store.claim(Some(Rig::START), &Rig::claim_of(1)).await.unwrap();
    assert_eq!(claimed.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id]);
}
