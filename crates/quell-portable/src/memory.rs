//! A table in memory: the smallest there is, for tests and to learn from.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use quell_core::{Result, Timestamp};

use crate::table::{Bounds, Change, Committed, Condition, Page, Range, Row, Table, Version};

/// A table in memory, with the bounds of a service. Clones are the same table.
#[derive(Clone, Debug)]
pub struct MemoryTable {
    kept: Arc<Mutex<Kept>>,
    bounds: Bounds,
    /// Rows of one page.
    page: usize,
}

#[derive(Debug)]
struct Kept {
    now: Timestamp,
    /// How many rows were ever written: each version is another.
    writes: u64,
    /// What rows hold and their versions, by partition and name.
    rows: BTreeMap<(String, String), Value>,
}

/// What a row holds, and its version.
type Value = (Arc<[u8]>, u64);

impl MemoryTable {
    /// An empty table whose clock stands at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let kept = Kept { now, writes: 0, rows: BTreeMap::new() };
        let bounds =
            Bounds { changes: 100, batch_bytes: 4 << 20, row_bytes: 1 << 20, name_bytes: 512 };
        MemoryTable { kept: Arc::new(Mutex::new(kept)), bounds, page: usize::MAX }
    }

    /// The same table with other bounds.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        MemoryTable { bounds, ..self }
    }

    /// The same table, which gives no more rows at a time than this, as a service may.
    #[must_use]
    pub fn with_page_limit(self, page: usize) -> Self {
        MemoryTable { page: page.max(1), ..self }
    }

    /// Moves its clock to `now`, if that is later.
    pub fn advance(&self, now: Timestamp) {
        let mut kept = self.locked();
        kept.now = kept.now.max(now);
    }

    fn locked(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Table for MemoryTable {
    fn bounds(&self) -> Bounds {
        self.bounds
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.locked().now)
    }

    fn latest(&self) -> Option<Timestamp> {
        Some(self.locked().now)
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        let kept = self.locked();
        let get = |name: &String| {
            let (value, version) = kept.rows.get(&(partition.to_owned(), name.clone()))?;
            Some(row(name, value, *version))
        };
        Ok(rows.iter().map(get).collect())
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        let kept = self.locked();
        let name = |name: &str| (partition.to_owned(), name.to_owned());
        if range.from >= range.to {
            return Ok(Page::default());
        }
        let mut found = kept.rows.range(name(&range.from)..name(&range.to));
        let first = found.by_ref().take(limit.min(self.page));
        let rows = first.map(|((_, name), (value, version))| row(name, value, *version));
        let rows = rows.collect();
        Ok(Page { rows, next: found.next().map(|((_, name), _)| name.clone()) })
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        self.bounds.check(&changes)?;
        let mut kept = self.locked();
        let holds = |change: &Change| {
            let known = kept.rows.get(&(partition.to_owned(), change.row.clone()));
            match &change.condition {
                Condition::Absent => known.is_none(),
                Condition::Version(version) => {
                    known.is_some_and(|(_, known)| known.to_string() == version.as_str())
                }
                Condition::Present => known.is_some(),
                Condition::Any => true,
            }
        };
        if !changes.iter().all(holds) {
            return Ok(Committed::Conflict);
        }
        let mut versions = Vec::with_capacity(changes.len());
        for Change { row, value, .. } in changes {
            let name = (partition.to_owned(), row);
            kept.writes = kept.writes.saturating_add(1);
            let version = kept.writes;
            versions.push(value.as_ref().map(|_| Version::new(version.to_string())));
            match value {
                Some(value) => kept.rows.insert(name, (value, version)),
                None => kept.rows.remove(&name),
            };
        }
        Ok(Committed::Done(versions))
    }
}

fn row(name: &str, value: &Arc<[u8]>, version: u64) -> Row {
    let version = Version::new(version.to_string());
    Row { name: name.to_owned(), value: Arc::clone(value), version }
}
