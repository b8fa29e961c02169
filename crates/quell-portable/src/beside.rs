//! The row of an open window beside the row of its key, so that one read gives a trigger both.
//!
//! The engine changes no open window without the row of its key, so the copy that is there says what the
//! row of the job says, and a batch that names the version of the key's row needs none of the job's. Only
//! steps that make jobs read copies: all others see the row itself, and whether it can be decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_engine::{Changes, Row, RowName};

use crate::names::of_row;
use crate::partition::decode_value;
use crate::table::{self, Change};

/// What stands between the row of a key and the copy. No JSON that is written without spaces has it.
const END: u8 = b'\n';
/// Rows of jobs that are longer have no copy.
const LONGEST: usize = 8 << 10;

/// The rows that a step read, by their names in the table; none where there is none.
type Read = BTreeMap<String, Option<table::Row>>;

/// Rows of open windows that a step read beside those of their keys, by their names in the table.
#[derive(Debug)]
pub(crate) struct Copies(Option<BTreeMap<String, Arc<[u8]>>>);

impl Copies {
    /// None yet; says whether the step reads copies at all.
    pub(crate) fn new(reads: bool) -> Self {
        Copies(reads.then(BTreeMap::new))
    }

    /// The rows of these that were read beside others and not by themselves. A copy that cannot be
    /// decoded is none: then the row is read.
    pub(crate) fn found(&mut self, read: &Read, names: &BTreeSet<RowName>) -> Vec<(RowName, Row)> {
        let Some(copies) = self.0.as_mut().filter(|copies| !copies.is_empty()) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for name in names {
            let stored = of_row(name);
            let Some(copy) = copies.get(&stored).filter(|_| !read.contains_key(&stored)) else {
                continue;
            };
            match decode_value(name, copy) {
                Ok(row) => found.push((name.clone(), row)),
                Err(_) => drop(copies.remove(&stored)),
            }
        }
        found
    }

    /// Keeps what stands beside a row that was read.
    pub(crate) fn note(&mut self, read: &Read, name: &RowName, row: &Row) {
        let (Some(copies), Row::Key(jobs)) = (&mut self.0, row) else { return };
        let Some(Some(stored)) = read.get(&of_row(name)) else { return };
        if let (Some(open), (_, Some(copy))) = (jobs.open, split(&stored.value)) {
            copies.insert(of_row(&RowName::Job(open)), copy.into());
        }
    }

    /// Whether a row, by its name in the table, was read beside another.
    pub(crate) fn has(&self, stored: &str) -> bool {
        self.0.as_ref().is_some_and(|copies| copies.contains_key(stored))
    }
}

/// The row of a key, and the copy beside it.
pub(crate) fn split(value: &[u8]) -> (&[u8], Option<&[u8]>) {
    match value.iter().position(|byte| *byte == END) {
        Some(end) => {
            let (row, copy) = value.split_at(end);
            (row, copy.get(1..))
        }
        None => (value, None),
    }
}

/// The rows of keys that a step writes, each with that of its open window, by their names in the table.
pub(crate) fn windows(changes: &Changes) -> BTreeMap<String, RowName> {
    let window = |(name, row): (&RowName, &Option<Row>)| {
        let Some(Row::Key(jobs)) = row else { return None };
        Some((of_row(name), RowName::Job(jobs.open?)))
    };
    changes.rows.iter().filter_map(window).collect()
}

/// The batch with a copy beside each of these rows of keys: of the row that the batch writes, or the one
/// that was there before.
pub(crate) fn with_copies(
    batch: &[Change],
    windows: &BTreeMap<String, RowName>,
    read: &Read,
    most: usize,
) -> Vec<Change> {
    let written: BTreeMap<&str, &Arc<[u8]>> = batch
        .iter()
        .filter_map(|change| Some((change.row.as_str(), change.value.as_ref()?)))
        .collect();
    let beside = |change: &Change| {
        let window = windows.get(&change.row)?;
        let copy = match written.get(of_row(window).as_str()) {
            Some(copy) => &copy[..],
            None => split(&read.get(&change.row)?.as_ref()?.value)
                .1
                .filter(|copy| is_of(window, copy))?,
        };
        join(change.value.as_ref()?, copy, most)
    };
    let with = |change: &Change| {
        let value = beside(change).or_else(|| change.value.clone());
        Change { value, ..change.clone() }
    };
    batch.iter().map(with).collect()
}

fn is_of(name: &RowName, copy: &[u8]) -> bool {
    let named: Result<(RowName, serde::de::IgnoredAny), _> = serde_json::from_slice(copy);
    named.is_ok_and(|(named, _)| named == *name)
}

/// The row of a key with a copy; none where that is too long.
fn join(row: &[u8], copy: &[u8], most: usize) -> Option<Arc<[u8]>> {
    let length = row.len().saturating_add(copy.len()).saturating_add(1);
    (copy.len() <= LONGEST && length <= most).then(|| [row, &[END], copy].concat().into())
}
