//! Counts the store's answers during a replay: the only source of its numbers.
//!
//! It also tracks the open jobs with their due times: virtual time stops at the next one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_core::{Claimed, Error, JobId, Lease, Receipt, Settled, SettledAs, Timestamp};
use tokio::sync::Notify;

/// The numbers of a replay; durations in microseconds of the store's time.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    pub(super) accepted: u64,
    pub(super) runs: u64,
    pub(super) covered: u64,
    /// From each window's first trigger to its start.
    pub(super) delays: Vec<u64>,
    /// From each job's due time to its start.
    pub(super) lateness: Vec<u64>,
}

#[derive(Debug, Default)]
struct Book {
    counted: Counted,
    due_of: HashMap<JobId, Timestamp>,
    dues: BTreeSet<(Timestamp, JobId)>,
    running: HashMap<Lease, u64>,
    /// Jobs that were claimed before their receipts were counted.
    claimed_early: HashSet<JobId>,
    /// A claim left something that is due: a run of its key has to end first (R11).
    held_back: bool,
    failed: Option<Error>,
}

/// A book that the wrapper of the store writes and the drivers read.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    book: Mutex<Book>,
    changed: Notify,
}

impl Ledger {
    /// An enqueue is about to be made: claims may overtake its receipts.
    pub(super) fn enqueuing(&self) {
        self.book().claimed_early.clear();
    }

    /// The store accepted triggers.
    pub(super) fn enqueued(&self, receipts: &[Receipt]) {
        let mut book = self.book();
        for receipt in receipts {
            if let Receipt::Accepted { job, due, .. } | Receipt::Debounced { job, due, .. } =
                receipt
            {
                book.counted.accepted += 1;
                if !book.claimed_early.contains(job) {
                    book.set_due(*job, *due);
                }
            }
        }
    }

    /// The store started jobs. Returns whether to claim again at once: something due was left, and
    /// nothing runs whose end would free it.
    pub(super) fn claimed(&self, claimed: &Claimed) -> bool {
        let mut book = self.book();
        let others_run = !book.running.is_empty();
        for job in &claimed.jobs {
            book.forget(job.id);
            book.claimed_early.insert(job.id);
            let lease = Lease { job: job.id, token: job.token };
            book.running.insert(lease, job.triggers);
            book.counted.runs += 1;
            book.counted.delays.push(micros(claimed.now, job.first_at));
            book.counted.lateness.push(micros(claimed.now, job.due_at));
        }
        let left = book.dues.first().is_some_and(|(due, _)| *due <= claimed.now);
        book.held_back = left && others_run;
        drop(book);
        self.changed.notify_one();
        left && !others_run
    }

    /// The store ended attempts. Returns whether to claim again what an earlier claim left.
    pub(super) fn settled(&self, settled: &[Settled]) -> bool {
        let mut book = self.book();
        for one in settled {
            let triggers = book.running.remove(&one.lease).unwrap_or_default();
            match one.became {
                SettledAs::Succeeded => book.counted.covered += triggers,
                SettledAs::Scheduled { due } => book.set_due(one.lease.job, due),
                SettledAs::Absorbed { by, due } => book.set_due(by, due),
                _ => {}
            }
        }
        let freed = std::mem::take(&mut book.held_back);
        drop(book);
        self.changed.notify_one();
        freed
    }

    /// The store failed: the replay ends with its error.
    pub(super) fn failed(&self, error: &Error) {
        let mut book = self.book();
        book.failed.get_or_insert_with(|| error.share());
        drop(book);
        self.changed.notify_one();
    }

    /// The earliest due time of a job that has not started.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.book().dues.first().map(|(due, _)| *due)
    }

    /// The number of runs that began.
    pub(super) fn runs(&self) -> u64 {
        self.book().counted.runs
    }

    /// The numbers so far.
    pub(super) fn counted(&self) -> Counted {
        self.book().counted.clone()
    }

    /// Waits until all that is due at `now` has started.
    pub(super) async fn all_started(&self, now: Timestamp) -> Result<(), Error> {
        self.until(|book| book.dues.first().is_none_or(|(due, _)| *due > now)).await
    }

    /// Waits until runs have covered every trigger.
    pub(super) async fn all_covered(&self) -> Result<(), Error> {
        self.until(|book| book.counted.covered >= book.counted.accepted).await
    }

    /// Waits for a condition, or for a failure of the store. One task may wait at a time.
    async fn until(&self, reached: impl Fn(&Book) -> bool) -> Result<(), Error> {
        loop {
            {
                let mut book = self.book();
                if let Some(error) = book.failed.take() {
                    return Err(error);
                }
                if reached(&book) {
                    return Ok(());
                }
            }
            self.changed.notified().await;
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn set_due(&mut self, job: JobId, due: Timestamp) {
        self.forget(job);
        self.due_of.insert(job, due);
        self.dues.insert((due, job));
    }

    fn forget(&mut self, job: JobId) {
        if let Some(due) = self.due_of.remove(&job) {
            self.dues.remove(&(due, job));
        }
    }
}

fn micros(at: Timestamp, earlier: Timestamp) -> u64 {
    u64::try_from(at.since(earlier).as_micros()).unwrap_or(u64::MAX)
}
