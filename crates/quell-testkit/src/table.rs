//! A table in memory that counts requests, rows and bytes, and whose writes fail where a test wants it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::table::{Bounds, Change, Committed, Page, Range, Row};
use quell_portable::{MemoryTable, Table};

/// A table that counts requests, rows and bytes.
#[derive(Clone, Debug)]
pub struct Counted {
    /// The table inside.
    pub table: MemoryTable,
    /// The number of requests.
    pub requests: Arc<AtomicU64>,
    /// The number of rows that were asked for, found or changed.
    pub rows: Arc<AtomicU64>,
    /// The bytes of what rows held that were read, and of what they were to hold.
    pub bytes: Arc<AtomicU64>,
    /// Each write fails while this is above 0.
    pub refuses: Arc<AtomicU64>,
    /// Whether the table has no time.
    pub has_no_time: Arc<AtomicBool>,
    /// The failures of the next writes.
    fails: Arc<Mutex<VecDeque<WriteFails>>>,
}

/// How a batch fails, without a row written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFails {
    /// Another process has changed a row.
    Conflict,
    /// The table is unavailable.
    Refused,
    /// The answer is lost.
    Unknown,
}

impl Counted {
    /// An empty table whose time is `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let (requests, refuses, has_no_time) = (Arc::default(), Arc::default(), Arc::default());
        let (table, fails) = (MemoryTable::new(now), Arc::default());
        let (rows, bytes) = (Arc::default(), Arc::default());
        Counted { table, requests, rows, bytes, refuses, has_no_time, fails }
    }

    /// Fails the next writes.
    pub fn fails_with(&self, fails: impl IntoIterator<Item = WriteFails>) {
        self.fails.lock().unwrap_or_else(PoisonError::into_inner).extend(fails);
    }

    /// Counts a request with this number of rows, and the bytes of these values.
    fn count<'v>(&self, rows: usize, values: impl Iterator<Item = &'v Arc<[u8]>>) {
        let bytes: usize = values.map(|value| value.len()).sum();
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.rows.fetch_add(rows as u64, Ordering::SeqCst);
        self.bytes.fetch_add(bytes as u64, Ordering::SeqCst);
    }
}

#[async_trait]
impl Table for Counted {
    fn bounds(&self) -> Bounds {
        self.table.bounds()
    }

    /// Not counted: the clock of a service is known from its last answer.
    async fn now(&self) -> Result<Timestamp> {
        if self.has_no_time.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the table has no time"));
        }
        self.table.now().await
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        let found = self.table.get(partition, rows).await?;
        self.count(rows.len(), found.iter().flatten().map(|row| &row.value));
        Ok(found)
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        let page = self.table.range(partition, range, limit).await?;
        self.count(page.rows.len(), page.rows.iter().map(|row| &row.value));
        Ok(page)
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        self.count(changes.len(), changes.iter().filter_map(|change| change.value.as_ref()));
        if self.refuses.load(Ordering::SeqCst) > 0 {
            return Err(Error::new(ErrorKind::Unavailable, "the table is unavailable"));
        }
        let fails = self.fails.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let kind = match fails {
            None => return self.table.commit(partition, changes).await,
            Some(WriteFails::Conflict) => return Ok(Committed::Conflict),
            Some(WriteFails::Refused) => ErrorKind::Unavailable,
            Some(WriteFails::Unknown) => ErrorKind::UnknownOutcome,
        };
        Err(Error::new(kind, "the table does not answer"))
    }
}
