//! What each call asks of a table does not grow with what the store holds.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use quell_conformance::Rig;
use quell_conformance::budget::{Ledger, judge};
use quell_core::{Result, Store};
use quell_engine::Engine;
use quell_portable::Partition;
use quell_testkit::Counted;

/// Requests, rows and bytes by the thousand.
const SLACK: u64 = 60;

/// Calls that may ask for more, and what bounds them.
const GROWING: &[(&str, &str)] = &[
    ("claim under limits", "it counts what runs in the partition, which its workers' slots bound"),
    ("backlog", "a look reads 10,000 waiting jobs at most"),
    ("explain", "advice on keys looks through the newest 2,000 jobs at most"),
];

/// A table whose requests are counted.
struct Books(Counted);

impl Books {
    fn asked(&self) -> u64 {
        let Counted { requests, rows, bytes, .. } = &self.0;
        requests.load(SeqCst) + rows.load(SeqCst) + bytes.load(SeqCst) / 1_000
    }
}

impl Ledger for Books {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(Engine::new(Partition::new(self.0.clone(), "p")))
    }

    async fn close(&self, store: Arc<dyn Store>) {
        drop(store);
    }

    async fn count(&self, call: impl AsyncFnOnce(&dyn Store) -> Result<()>) -> Result<u64> {
        let store = self.open().await;
        let before = self.asked();
        call(&*store).await?;
        Ok(self.asked() - before)
    }
}

#[tokio::test]
async fn r35_no_call_asks_a_table_for_more_where_more_is_held() {
    let fresh = async || Books(Counted::new(Rig::START));
    let costs = judge(fresh, SLACK, GROWING).await.unwrap();
    eprintln!("{}", costs.join("\n"));
}
