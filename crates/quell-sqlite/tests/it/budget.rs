//! What each call reads does not grow with what the store holds.

use std::sync::Arc;

use quell_conformance::budget::{Ledger, judge};
use quell_core::{Result, Store};

use crate::scene::Scene;

/// In pages: one more level of each index of the tables that a call reads, and a page for each row of a
/// list.
const SLACK: u64 = 60;
/// Bytes of a page.
const PAGE: u64 = 4_096;

/// Calls that may read more, and what bounds them.
const GROWING: &[(&str, &str)] =
    &[("backlog", "a look reads the entries of 10,000 waiting jobs at most")];

/// A file whose pages are counted as they are read, which is once by each opening of it.
struct Books(Scene);

impl Books {
    /// The bytes that this process has read.
    fn read() -> u64 {
        let counters = std::fs::read_to_string("/proc/self/io").unwrap();
        let read = counters.lines().find_map(|line| line.strip_prefix("rchar: "));
        read.unwrap().parse().unwrap()
    }
}

impl Ledger for Books {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.open().await)
    }

    async fn close(&self, store: Arc<dyn Store>) {
        drop(store);
        let file = self.0.path().canonicalize().unwrap();
        let is_open = || {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            open.filter_map(|one| one.path().read_link().ok()).any(|path| path == file)
        };
        quell_conformance::rig::until("the file is closed", async || !is_open()).await;
    }

    async fn count(&self, call: impl AsyncFnOnce(&dyn Store) -> Result<()>) -> Result<u64> {
        let store = self.open().await;
        let before = Books::read();
        call(&*store).await?;
        let read = Books::read() - before;
        self.close(store).await;
        Ok(read / PAGE)
    }
}

#[tokio::test]
async fn r35_no_call_reads_more_pages_where_more_is_held() {
    let costs = judge(async || Books(Scene::new()), SLACK, GROWING).await.unwrap();
    eprintln!("{}", costs.join("\n"));
}
