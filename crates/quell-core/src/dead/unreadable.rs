//! Jobs whose rows cannot be decoded (R25): set aside, listed, and restored to where they were.
//!
//! A row is unreadable because something damaged it, or because a newer Quell wrote it. The store
//! call that meets such a row sets it aside and goes on without it, so that it harms no other job.
//! Workers try to restore such rows: a newer process can decode what an older one could not.

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{Error, JobId, JobState, QueueName, TaskName, Timestamp};

/// A job that was set aside because its row cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableJob {
    /// Its id.
    pub id: JobId,
    /// Its queue, where that can be decoded.
    pub queue: Option<QueueName>,
    /// Its task, where that can be decoded.
    pub task: Option<TaskName>,
    /// Its state before, where that can be decoded.
    pub was: Option<JobState>,
    /// When it was set aside, in store time.
    pub set_aside_at: Timestamp,
    /// What cannot be decoded.
    pub reason: String,
}

impl UnreadableJob {
    /// A job whose row has only its id in a form that can be decoded.
    #[must_use]
    pub fn new(id: JobId, set_aside_at: Timestamp, reason: String) -> Self {
        UnreadableJob { id, queue: None, task: None, was: None, set_aside_at, reason }
    }
}

setters!(UnreadableJob {
    queue? QueueName,
    task? TaskName,
    was? JobState,
});

/// A page of the jobs that were set aside, newest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadablePage {
    /// Only ids below this one: the last of the page before.
    pub before: Option<JobId>,
    /// At most this many; 0 means [`UnreadablePage::MAX`], and no page is larger.
    pub limit: usize,
}

setters!(UnreadablePage {
    before? JobId,
    limit: usize,
});

impl UnreadablePage {
    /// The size of the largest page.
    pub const MAX: usize = 200;

    /// The page's size.
    #[must_use]
    pub fn size(&self) -> usize {
        if self.limit == 0 { Self::MAX } else { self.limit.min(Self::MAX) }
    }
}

/// The most rows that one call sets aside. The next call goes on with the rest.
pub const MAX_PER_CALL: usize = 100;
/// The largest reason on record, in bytes.
const MAX_REASON_BYTES: usize = 1_024;

/// The reason on record for a row that was set aside: the error's message, bounded.
///
/// ```
/// use quell_core::{Error, JobId, unreadable};
///
/// let error = Error::unreadable(JobId::new(7), "state 77 is unknown");
/// assert_eq!(unreadable::reason(&error), "cannot decode the row of job 7: state 77 is unknown");
/// ```
#[must_use]
pub fn reason(error: &Error) -> String {
    let mut reason = error.to_string();
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    reason
}
