//! Notices: what a message of a timer says, and which of them a step must have sent before it commits.
//!
//! The promise that lets workers sleep: whatever is due or expires at a time, a message that comes at
//! that time or before is on its way, or a process holds one of the queue under its lock. So a message
//! is sent *before* the rows are written. Where they surely were not, it is cancelled, as a message may
//! start a process. One that comes all the same finds nothing and is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use quell_core::{Error, ErrorKind, JobId, QueueName, Result, Timestamp};
use quell_engine::{Changes, Entry, Index, RowName};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tracing::debug;

use crate::held::Held;
use crate::timer::{Message, ScheduleResult, Scheduled, Timer};

/// Jobs that one message names at most.
pub(crate) const JOBS: usize = 500;
/// Messages of steps that wrote nothing which are kept to be cancelled, at most.
const MOST_LOST: usize = 1_000;
/// How long a commit waits for the timer to cancel such messages.
const CANCEL: Duration = Duration::from_millis(250);

/// What a message says: in this queue something is due, or expires, at this time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// The form of the message, for builds that come later.
    pub(crate) v: u8,
    /// The store that it is for, by its random name; [`Notices::send`] sets it. None in messages of
    /// builds that knew no other stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
    /// The queue; none for ticks of schedules, and where all queues are meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<QueueName>,
    /// When, by the table's clock.
    pub(crate) at: Timestamp,
    /// When it was sent.
    pub(crate) sent: Timestamp,
    /// The jobs; none where the whole queue is to be looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) jobs: Vec<JobId>,
    /// How often no process could do what it requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) tries: u32,
    /// Whether a process that held it may have died of what it had started.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) watches: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(tries: &u32) -> bool {
    *tries == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(watches: &bool) -> bool {
    !*watches
}

impl Notice {
    const VERSION: u8 = 1;

    pub(crate) fn new(queue: Option<QueueName>, sent: Timestamp, at: Timestamp) -> Self {
        let (v, jobs) = (Self::VERSION, Vec::new());
        Notice { v, store: None, queue, at, sent, jobs, tries: 0, watches: false }
    }

    /// The notice of a message.
    ///
    /// # Errors
    /// Of kind [`Corrupt`](ErrorKind::Corrupt) where it is not Quell's, or of a newer build.
    pub(crate) fn read(body: &[u8]) -> Result<Notice> {
        let read: serde_json::Result<Notice> = serde_json::from_slice(body);
        let wrong = match read {
            Ok(notice) if notice.v == Self::VERSION => return Ok(notice),
            Ok(notice) => format!("it has form {}, this build reads {}", notice.v, Self::VERSION),
            Err(error) => error.to_string(),
        };
        Err(Error::new(ErrorKind::Corrupt, format!("this message is not one of Quell's: {wrong}")))
    }
}

/// A timer, and what this process holds of its messages.
#[derive(Debug)]
pub(crate) struct Notices {
    pub(crate) timer: Arc<dyn Timer>,
    pub(crate) held: Held,
    /// The random name of the store, once it was read.
    pub(crate) store: OnceCell<String>,
    /// Messages of steps that surely wrote nothing.
    lost: Mutex<Vec<Scheduled>>,
}

impl Notices {
    pub(crate) fn new(timer: Arc<dyn Timer>) -> Self {
        Notices { timer, held: Held::default(), store: OnceCell::new(), lost: Mutex::default() }
    }

    /// Sends the notices of a step, which writes nothing where this fails. Returns those that
    /// [`lose`](Notices::lose) takes.
    pub(crate) async fn send_all(
        &self,
        notices: Vec<Notice>,
        now: Timestamp,
    ) -> Result<Vec<Scheduled>> {
        let (mut sent, mut failed) = (Vec::new(), None);
        for one in join_all(notices.into_iter().map(|notice| self.schedule(notice, now))).await {
            match one {
                Ok(scheduled) => sent.extend(scheduled),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let Some(error) = failed else { return Ok(sent) };
        self.lose(sent);
        self.cancel_lost().await;
        Err(match error.kind() {
            ErrorKind::Unavailable | ErrorKind::UnknownOutcome => {
                let message = format!(
                    "the timer took no message, so nothing was written, try again: {error}"
                );
                Error::new(ErrorKind::Unavailable, message).with_source(error)
            }
            _ => error,
        })
    }

    /// Leaves messages of a step that surely wrote nothing to be cancelled. A try that conflicted does not
    /// wait for that: the engine spreads the tries that follow over a multiple of what it took.
    pub(crate) fn lose(&self, sent: Vec<Scheduled>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.extend(sent);
        lost.truncate(MOST_LOST);
    }

    /// Cancels messages that were lost, as far as the timer does so at once: one that comes all the same
    /// is ignored.
    pub(crate) async fn cancel_lost(&self) {
        let lost = std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        let cancels = lost.iter().map(|scheduled| async move {
            if let Err(error) = self.timer.cancel(scheduled).await {
                debug!(%error, "cannot cancel message");
            }
        });
        if timeout(CANCEL, join_all(cancels)).await.is_err() {
            debug!("cancelling messages timed out");
        }
    }

    /// Sends one notice, in the name of this store unless it is another's.
    ///
    /// # Errors
    /// As those of the timer; of kind [`Internal`](ErrorKind::Internal) where the name of the store was
    /// not read before.
    pub(crate) async fn send(&self, notice: Notice, now: Timestamp) -> Result<()> {
        self.schedule(notice, now).await.map(drop)
    }

    async fn schedule(&self, notice: Notice, now: Timestamp) -> ScheduleResult {
        let store = notice.store.clone().or_else(|| self.store.get().cloned());
        if store.is_none() {
            let message = "cannot send a notice: the name of its store has not been read";
            return Err(Error::new(ErrorKind::Internal, message));
        }
        let notice = Notice { store, ..notice };
        let body = serde_json::to_vec(&notice).map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot encode a notice as JSON").with_source(error)
        })?;
        self.timer.schedule(&Message { body, name: None }, now, notice.at).await
    }

    /// The notices that a step needs: of each row that is due, expires or ticks earlier than a message
    /// is known to come, and of queues in which a due job may be next now. `was_there` says whether a row
    /// was there before.
    pub(crate) fn needed(
        &self,
        (changes, turns): (&Changes, &BTreeSet<QueueName>),
        now: Timestamp,
        was_there: impl Fn(&RowName) -> bool,
    ) -> Vec<Notice> {
        let mut due: BTreeMap<(Option<QueueName>, Timestamp), Vec<JobId>> = BTreeMap::new();
        for (index, Entry { place, name, note }) in &changes.enter {
            let queue = match index {
                Index::Line(queue, _) => Some(queue.clone()),
                Index::Leases => match note.as_ref().map(|note| &note.queue) {
                    Some(queue) if self.held.holds(queue) => continue,
                    queue => queue.cloned(),
                },
                Index::Plan => None,
                _ => continue,
            };
            // A row that only moves to a later time has a message, which is sent on when it comes.
            let is_covered = changes.leave.iter().any(|(left, was, of)| {
                is_same(left, index) && of == name && now < was.at && was.at <= place.at
            });
            if !is_covered {
                let jobs = due.entry((queue, place.at)).or_default();
                jobs.extend(job_of(name));
            }
        }
        for name in changes.rows.keys().filter(|name| was_there(name)) {
            // R32: what was paused may run, what was limited may start.
            match name {
                RowName::Queue(queue) => drop(due.entry((Some(queue.clone()), now)).or_default()),
                RowName::Task(_) => drop(due.entry((None, now)).or_default()),
                _ => {}
            }
        }
        for queue in turns {
            due.entry((Some(queue.clone()), now)).or_default();
        }
        let mut needed = Vec::with_capacity(due.len());
        for ((queue, at), jobs) in due {
            let notice = Notice::new(queue, now, at);
            if jobs.is_empty() {
                needed.push(notice.clone());
            }
            needed.extend(
                jobs.chunks(JOBS).map(|jobs| Notice { jobs: jobs.to_vec(), ..notice.clone() }),
            );
        }
        needed
    }
}

fn is_same(left: &Index, entered: &Index) -> bool {
    match (left, entered) {
        // A change of priority keeps a job in its line.
        (Index::Line(..), Index::Line(..)) => true,
        (left, entered) => left == entered,
    }
}

fn job_of(name: &RowName) -> Option<JobId> {
    match name {
        RowName::Job(id) => Some(*id),
        _ => None,
    }
}
