//! Which queues and tasks exist: a trigger creates those that do not, and otherwise seldom needs their
//! settings.
//!
//! Invariant: it holds names and no settings. Their rows are never removed (a deleted queue keeps one), so
//! what is known never becomes wrong.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::rows::RowName;

/// The most names that are kept; above it, it begins again.
const MOST: usize = 10_000;

/// The names of queues and tasks that exist.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeSet<RowName>>);

impl Known {
    fn names(&self) -> MutexGuard<'_, BTreeSet<RowName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a queue or a task is known to exist.
    pub(crate) fn has(&self, name: &RowName) -> bool {
        self.names().contains(name)
    }

    /// Adds names that a step read or has written.
    pub(crate) fn learn(&self, names: Vec<RowName>) {
        if names.is_empty() {
            return;
        }
        let mut known = self.names();
        if known.len().saturating_add(names.len()) > MOST {
            known.clear();
        }
        known.extend(names);
    }
}
