//! Whose turn it is in a partition of strict order (R41).
//!
//! The jobs of such a partition start one at a time. A job takes its place when its time comes: at its
//! acceptance, or when its delay or its window ends. A job that has started and waits to start again
//! comes before all that have not. Who waits for another attempt of its key (R10, R11) holds up no
//! other job until that has ended: it may wait for a job that is behind it.

use crate::{Job, JobId, JobState, Timestamp};

/// The place of a job that waits among those of its partition: the smallest is next.
///
/// ```
/// use quell_core::turn::Turn;
/// use quell_core::{JobId, Timestamp};
///
/// let (early, late) = (Timestamp::from_secs(1), Timestamp::from_secs(9));
/// // A retry, however late, is before what has not started.
/// assert!(Turn::of(true, late, JobId::new(7)) < Turn::of(false, early, JobId::new(2)));
/// assert!(Turn::of(false, early, JobId::new(5)) < Turn::of(false, late, JobId::new(3)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Turn {
    /// It has started before. Of several, that with the smallest id is next.
    Begun(JobId),
    /// It has not.
    New(Timestamp, JobId),
}

impl Turn {
    /// The place of a job that is due at `due`.
    #[must_use]
    pub fn of(has_begun: bool, due: Timestamp, id: JobId) -> Self {
        if has_begun { Turn::Begun(id) } else { Turn::New(due, id) }
    }

    /// The job.
    #[must_use]
    pub fn job(self) -> JobId {
        match self {
            Turn::Begun(id) | Turn::New(_, id) => id,
        }
    }
}

impl Job {
    /// Whether it has started before and waits to start again: for a retry, after a snooze, a release
    /// or an expired lease, or because it was redriven.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.state == JobState::Scheduled && self.starts() > 0
    }

    /// Its place in a partition of strict order (R41); none where it holds up no other.
    #[must_use]
    pub fn turn(&self) -> Option<Turn> {
        let stands = self.state == JobState::Scheduled && !self.waits && self.partition.is_some();
        stands.then(|| Turn::of(self.has_begun(), self.window.due_at, self.id))
    }
}
