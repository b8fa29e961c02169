//! Notifications to and from other processes (R19, R34), by `NOTIFY` and `LISTEN`.
//!
//! A notification is sent after the commit that it is about, in a transaction of its own: inside that
//! commit, it would make all commits of the server that notify wait for each other's writes to disk.
//! Notifications that are queued while one is in flight are sent together. One that does not arrive is
//! sent again on another connection; one that is lost only delays (R39).
//!
//! A notification of work is `ORIGIN DUE QUEUE`; with [`FREED`] as `DUE`, only a limit lets more start.
//! `wait ORIGIN JOB…` comes from processes that wait for ends, and `ended ORIGIN JOB…` from the process
//! that ended the jobs. `cancelled ORIGIN JOB…` names running jobs that were cancelled, and
//! `settings ORIGIN` reports a changed setting of the store. The first words of these are no numbers, so
//! that a process which knows only notifications of work ignores them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_core::{JobId, QueueName, Timestamp};
use tokio::sync::Notify;
use tracing::debug;

use crate::connections::Connections;
use crate::sql::Sql;

/// Between two tries to send the same hints.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// How often hints are sent that did not arrive.
const TRIES: usize = 3;
/// Begins a hint of those who wait for the ends of jobs.
const WAIT: &str = "wait";
/// Begins a hint that jobs have ended.
const ENDED: &str = "ended";
/// Begins a hint that running jobs were cancelled.
const CANCELLED: &str = "cancelled";
/// Begins a hint that a setting of the store has changed.
const SETTINGS: &str = "settings";
/// Begins a notification without content, which shows a listener that it is connected.
const PROBE: &str = "probe";
/// Jobs that one hint names, of 20 digits each at most: PostgreSQL carries less than 8,000 bytes.
const NAMED: usize = 100;
/// The due time in a hint that a queue's limits let more start: no due time of a job has changed, so
/// claims go on from where they were.
pub(crate) const FREED: Timestamp = Timestamp::from_micros(i64::MIN + 1);
/// Stands for every queue; no name has it.
const ANY: &str = "*";

/// Hints that wait to be sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Distinguishes this store's notifications from others'.
    origin: u64,
    pending: Mutex<Pending>,
    ready: Notify,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Pending {
    /// By queue; none stands for all of them.
    wakes: BTreeMap<Option<QueueName>, Timestamp>,
    /// Queues whose limits let more start.
    frees: BTreeSet<QueueName>,
    waits: BTreeSet<JobId>,
    ended: BTreeSet<JobId>,
    cancelled: BTreeSet<JobId>,
    probe: bool,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        // Zero stands for callers' own transactions.
        let origin = fastrand::u64(1..);
        Outbox { origin, pending: Mutex::default(), ready: Notify::new() }
    }

    /// Takes hints to send.
    pub(crate) fn put(&self, wakes: impl IntoIterator<Item = (Option<QueueName>, Timestamp)>) {
        self.add(|pending| {
            for (queue, due) in wakes {
                let earliest = pending.wakes.entry(queue).or_insert(due);
                *earliest = due.min(*earliest);
            }
        });
    }

    /// Takes queues whose limits let more start.
    pub(crate) fn put_frees(&self, queues: impl IntoIterator<Item = QueueName>) {
        self.add(|pending| pending.frees.extend(queues));
    }

    /// Takes jobs for whose end someone here waits.
    pub(crate) fn put_waits(&self, jobs: Vec<JobId>) {
        self.add(|pending| pending.waits.extend(jobs));
    }

    /// Takes jobs that have ended and for which others wait.
    pub(crate) fn put_ends(&self, jobs: Vec<JobId>) {
        self.add(|pending| pending.ended.extend(jobs));
    }

    /// Takes running jobs that were cancelled.
    pub(crate) fn put_cancelled(&self, jobs: Vec<JobId>) {
        self.add(|pending| pending.cancelled.extend(jobs));
    }

    /// Requests a notification that this process receives, too, if it still receives any.
    pub(crate) fn put_probe(&self) {
        self.add(|pending| pending.probe = true);
    }

    fn add(&self, add: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = *pending == Pending::default();
        add(&mut pending);
        if was_empty && *pending != Pending::default() {
            self.ready.notify_one();
        }
    }

    fn take(&self) -> Vec<String> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let Pending { wakes, frees, waits, ended, cancelled, probe } =
            std::mem::take(&mut *pending);
        drop(pending);
        let hint = |(queue, due): (Option<QueueName>, Timestamp)| {
            let queue = queue.as_ref().map_or(ANY, QueueName::as_str);
            format!("{:x} {} {queue}", self.origin, due.as_micros())
        };
        let frees = frees.into_iter().map(|queue| (Some(queue), FREED));
        let mut hints: Vec<String> = wakes.into_iter().chain(frees).map(hint).collect();
        hints.extend(self.naming(WAIT, &waits));
        hints.extend(self.naming(ENDED, &ended));
        hints.extend(self.naming(CANCELLED, &cancelled));
        hints.extend(probe.then(|| format!("{PROBE} {:x}", self.origin)));
        hints
    }

    /// Hints that name jobs.
    fn naming(&self, word: &str, jobs: &BTreeSet<JobId>) -> Vec<String> {
        let names: Vec<String> = jobs.iter().map(JobId::to_string).collect();
        let hint = |names: &[String]| format!("{word} {:x} {}", self.origin, names.join(" "));
        names.chunks(NAMED).map(hint).collect()
    }
}

/// Sends hints until the task that runs it is dropped, on a connection of its own: calls go on
/// meanwhile on the one that they just used.
pub(crate) async fn publish_outbox(pool: Connections, sql: Arc<Sql>, outbox: Arc<Outbox>) {
    // The first hint should not wait for its connection; where there is none yet, it tries again.
    if let Ok(db) = pool.acquire().await {
        db.release();
    }
    let (mut hints, mut tries) = (Vec::new(), 0);
    loop {
        if hints.is_empty() {
            outbox.ready.notified().await;
            (hints, tries) = (outbox.take(), 0);
        }
        // It writes nothing, so there is nothing to wait for on the disk.
        let query = sql.query(
            "select set_config('synchronous_commit', 'off', true), pg_notify($1, hint)
               from unnest($2::text[]) hint",
        );
        let query = query.bind(sql.channel().to_owned()).bind(hints.clone());
        match crate::tx::one_shot(&pool, &sql, query).await {
            Ok(_) => hints.clear(),
            // A second notification of the same harms nothing.
            Err(_) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
            Err(error) => {
                debug!(%error, "hints to other processes were lost, polling finds the work");
                hints.clear();
            }
        }
    }
}

/// A notification from another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// In a queue, or in any, something is due.
    Wake(Option<QueueName>, Timestamp),
    /// Someone waits for the ends of these jobs.
    Wait(Vec<JobId>),
    /// These jobs have ended.
    Ended(Vec<JobId>),
    /// These jobs ran and were cancelled.
    Cancelled(Vec<JobId>),
    /// A setting of the store has changed.
    Settings,
}

impl Outbox {
    /// Decodes a hint of another store; none for this store's own and for what is no hint.
    pub(crate) fn read(&self, hint: &str) -> Option<Hint> {
        read(hint, self.origin)
    }
}

fn read(hint: &str, own: u64) -> Option<Hint> {
    let (first, rest) = hint.split_once(' ')?;
    match first {
        WAIT => others_jobs(rest, own).map(Hint::Wait),
        ENDED => others_jobs(rest, own).map(Hint::Ended),
        CANCELLED => others_jobs(rest, own).map(Hint::Cancelled),
        SETTINGS => Some(Hint::Settings),
        _ => {
            foreign(first, own)?;
            let (due, queue) = rest.split_once(' ')?;
            let due = due.parse().ok().map(Timestamp::from_micros)?;
            let queue = if queue == ANY { None } else { Some(QueueName::new(queue).ok()?) };
            Some(Hint::Wake(queue, due))
        }
    }
}

/// The jobs that another store names.
fn others_jobs(text: &str, own: u64) -> Option<Vec<JobId>> {
    let (origin, jobs) = text.split_once(' ')?;
    foreign(origin, own)?;
    jobs.split(' ').map(|job| job.parse().ok()).collect()
}

/// The origin of a hint, if it is not this store.
fn foreign(origin: &str, own: u64) -> Option<u64> {
    u64::from_str_radix(origin, 16).ok().filter(|origin| *origin != own)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest number of a job.
    const LAST: u64 = i64::MAX as u64;

    #[test]
    fn r34_hints_of_others_are_read_and_ones_own_are_not() {
        let queue = QueueName::new("q:1").unwrap();
        let outbox = Outbox::new();
        outbox.put([(Some(queue.clone()), Timestamp::from_secs(9))]);
        outbox.put([(Some(queue.clone()), Timestamp::from_secs(3))]);
        let hints = outbox.take();
        assert_eq!(hints.len(), 1);
        let due = Timestamp::from_secs(3);
        assert_eq!(read(&hints[0], outbox.origin), None);
        assert_eq!(read(&hints[0], 0), Some(Hint::Wake(Some(queue), due)));
        let early = Timestamp::from_micros(-5);
        assert_eq!(read("0 -5 *", outbox.origin), Some(Hint::Wake(None, early)));
        for other in ["", "test 1", "probe 1", "0", "0 x *", "0 1", "zz 1 q", "0 1 <q>"] {
            assert_eq!(read(other, outbox.origin), None, "{other}");
        }
    }

    #[test]
    fn r31_r34_a_freed_slot_hides_no_due_time_of_its_queue() {
        let queue = QueueName::new("q").unwrap();
        let (outbox, due) = (Outbox::new(), Timestamp::from_secs(3));
        outbox.put_frees([queue.clone(), queue.clone()]);
        outbox.put([(Some(queue.clone()), due)]);
        let hints = outbox.take();
        let read = hints.iter().filter_map(|hint| read(hint, 0)).collect::<Vec<_>>();
        assert_eq!(read, [due, FREED].map(|due| Hint::Wake(Some(queue.clone()), due)));
    }

    #[test]
    fn r19_jobs_that_others_name_are_read_and_ones_own_are_not() {
        let outbox = Outbox::new();
        let jobs = |ids: &[u64]| ids.iter().copied().map(JobId::new).collect::<Vec<_>>();
        outbox.put_waits(jobs(&[7, 5]));
        outbox.put_waits(jobs(&[7]));
        outbox.put_ends(jobs(&[LAST]));
        outbox.put_cancelled(jobs(&[9]));
        let hints = outbox.take();
        let read_by = |own| hints.iter().filter_map(|hint| read(hint, own)).collect::<Vec<_>>();
        let ended = Hint::Ended(jobs(&[LAST]));
        let cancelled = Hint::Cancelled(jobs(&[9]));
        assert_eq!(read_by(0), [Hint::Wait(jobs(&[5, 7])), ended, cancelled]);
        assert!(read_by(outbox.origin).is_empty());
        assert!(outbox.take().is_empty());
        for other in ["wait", "wait 1", "wait 1 ", "wait x 5", "ended 1 5 x", "ended 1 5,6"] {
            assert_eq!(read(other, 0), None, "{other}");
        }
    }

    #[test]
    fn r19_many_jobs_are_named_in_hints_that_fit() {
        let outbox = Outbox::new();
        outbox.put_ends((0..NAMED as u64 + 1).map(|id| JobId::new(LAST - id)).collect());
        let hints = outbox.take();
        assert_eq!(hints.len(), 2);
        assert!(hints.iter().all(|hint| hint.len() < 8_000));
    }

    #[test]
    fn r39_a_process_that_knows_hints_of_work_only_ignores_the_others() {
        for word in [WAIT, ENDED, CANCELLED, SETTINGS, PROBE] {
            assert!(u64::from_str_radix(word, 16).is_err(), "it would be read as an origin");
        }
    }
}
