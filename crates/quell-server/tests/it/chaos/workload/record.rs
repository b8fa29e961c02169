//! What callers and workers record for the judge of a chaos run beside the event history: where
//! handler bodies begin and end, and what callers asked, were answered, committed and rolled back.
//!
//! One JSON line and one `write` for each entry, so a kill loses at most the last one.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use quell::{Key, TaskName, Timestamp};
use serde::{Deserialize, Serialize};

use quell_server::history::host_time;

/// One entry. Times `at` are the host's, `started` is the attempt's start as the worker reckons it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    /// A handler's body begins.
    Begin { at: Timestamp, job: u64, started: Timestamp, task: TaskName, key: Option<Key> },
    /// It ends, or is cancelled.
    End { at: Timestamp, job: u64, started: Timestamp },
    /// A caller is about to trigger an order with an idempotency key.
    Ask { order: u64 },
    /// The answer names the job.
    Answer { order: u64, job: u64, existing: bool, output: Option<String> },
    /// No answer came, or an error that does not say whether the order was accepted.
    Unanswered { order: u64, kind: String },
    /// The key with another payload was refused as a conflict that names this job.
    Conflict { order: u64 },
    /// The key with another payload was accepted.
    Taken { order: u64 },
    /// A caller committed a transaction with this order and its trigger.
    Committed { order: u64 },
    /// A caller rolled back a transaction with this order and its trigger.
    RolledBack { order: u64 },
}

/// A file of entries.
#[derive(Debug)]
pub(crate) struct Record(File);

impl Record {
    /// Creates the file, or appends to it.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        Ok(Record(file.with_context(|| format!("cannot write {}", path.display()))?))
    }

    /// Appends an entry. On a full disk it is missing, and the judge then leaves its case out.
    pub(crate) fn write(&self, entry: &Entry) {
        let Ok(mut line) = serde_json::to_vec(entry) else { return };
        line.push(b'\n');
        let _missing = (&self.0).write_all(&line);
    }
}

/// The host's clock.
pub(crate) fn now() -> Timestamp {
    host_time()
}
