//! What a process does in each queue, as far as its timer must know: the message that it holds, the
//! claims in flight, the jobs that it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_core::{Claimed, JobId, NextDue, QueueName, Timestamp};
use tokio::sync::Notify;

use crate::notice::Notices;

/// Jobs that are remembered of one held message; of more, the queue is looked at once more.
const MOST: usize = 10_000;
/// How long a worker has to take back a lease that it saw had expired, before the next look.
const AGAIN: Duration = Duration::from_secs(1);

/// All queues.
#[derive(Debug, Default)]
pub(crate) struct Held {
    queues: Mutex<BTreeMap<QueueName, Seen>>,
    /// The queues that workers of this process have asked for.
    served: Mutex<BTreeSet<QueueName>>,
    /// How many ticks were asked for, and answered.
    ticks: Mutex<(u64, u64)>,
    /// Something of it has changed.
    pub(crate) changed: Notify,
}

/// One queue.
#[derive(Debug, Default)]
struct Seen {
    message: Option<Message>,
    /// Claims in flight.
    claiming: u32,
    /// Jobs that run here, and until when their leases hold.
    running: BTreeMap<JobId, Timestamp>,
}

/// A message that is held.
#[derive(Debug, Default)]
struct Message {
    /// Jobs that it and those that were folded into it named, and that have not started here.
    ready: BTreeSet<JobId>,
    /// Whether others may run jobs that no message covers any more.
    watches: bool,
    /// What the last claim said that began after it came.
    next: Option<NextDue>,
    /// Claims in flight that began before it came.
    older: u32,
}

/// What to do about a message that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// There is more to do here, or a claim or job is in flight.
    Hold,
    /// No claim was made since it came, and nothing runs here.
    Idle,
    /// All that it covers is done or has another message, but for this.
    Done(Left),
}

/// What a message covered that needs another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Jobs that did not start here.
    pub(crate) jobs: Vec<JobId>,
    /// When a limit lets the first of them start, where that is known.
    pub(crate) due: Option<Timestamp>,
    /// Whether others may run jobs that no message covers any more.
    pub(crate) watches: bool,
    /// When to see whether their leases have expired.
    pub(crate) expiry: Option<Timestamp>,
}

/// A batch in flight. After one that failed or was dropped it is unknown whether it started jobs.
#[derive(Debug)]
pub(crate) struct Doubt<'h> {
    held: Option<&'h Held>,
    queues: &'h BTreeSet<QueueName>,
}

impl<'h> Doubt<'h> {
    /// The doubt about what starts in these queues.
    pub(crate) fn of(notices: Option<&'h Arc<Notices>>, queues: &'h BTreeSet<QueueName>) -> Self {
        Doubt { held: notices.map(|notices| &notices.held), queues }
    }

    /// It is known what became of the batch.
    pub(crate) fn end(mut self) {
        self.held = None;
    }
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        let Some(held) = self.held else { return };
        self.queues.iter().for_each(|queue| held.watch(queue));
    }
}

impl Held {
    /// Jobs may run in a queue that no process knows of: the process that holds its message watches for
    /// their leases.
    fn watch(&self, queue: &QueueName) {
        if let Some(message) = self.queues().get_mut(queue).and_then(|seen| seen.message.as_mut()) {
            message.watches = true;
        }
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<QueueName, Seen>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker of this process asks for what is due in these queues.
    pub(crate) fn serve<'q>(&self, queues: impl Iterator<Item = &'q QueueName>) {
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in queues {
            if !served.contains(queue) {
                served.insert(queue.clone());
            }
        }
    }

    /// Whether workers of this process take jobs of a queue; `true` where none has asked for any yet.
    pub(crate) fn serves(&self, queue: &QueueName) -> bool {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.is_empty() || served.contains(queue)
    }

    /// Whether this process holds a message of a queue: it covers what starts here.
    pub(crate) fn holds(&self, queue: &QueueName) -> bool {
        self.queues().get(queue).is_some_and(|seen| seen.message.is_some())
    }

    /// Holds a message; where one is held already, that one covers this one, too. Says whether it is the
    /// first.
    pub(crate) fn hold(&self, queue: &QueueName, jobs: &[JobId], watches: bool) -> bool {
        let mut queues = self.queues();
        let seen = queues.entry(queue.clone()).or_default();
        let is_first = seen.message.is_none();
        let older = seen.claiming;
        let message = seen.message.get_or_insert_with(Message::default);
        // What a claim said that began before this message came does not count.
        (message.next, message.older) = (None, older);
        message.ready.extend(jobs);
        message.watches |= watches;
        while message.ready.len() > MOST {
            message.ready.pop_last();
            message.watches = true;
        }
        is_first
    }

    /// A claim begins; it ends with [`claimed`](Held::claimed).
    pub(crate) fn claims(&self, queue: &QueueName) {
        let mut queues = self.queues();
        let seen = queues.entry(queue.clone()).or_default();
        seen.claiming = seen.claiming.saturating_add(1);
    }

    /// A claim has ended; none where it failed, and may have started jobs that no worker runs.
    pub(crate) fn claimed(&self, queue: &QueueName, claimed: Option<&Claimed>) {
        let mut queues = self.queues();
        let seen = queues.entry(queue.clone()).or_default();
        seen.claiming = seen.claiming.saturating_sub(1);
        for job in claimed.into_iter().flat_map(|claimed| &claimed.jobs) {
            seen.running.insert(job.id, job.lease_until);
        }
        if let Some(message) = &mut seen.message {
            for job in claimed.into_iter().flat_map(|claimed| &claimed.jobs) {
                message.ready.remove(&job.id);
            }
            message.watches |= claimed.is_none();
            if message.older == 0 {
                message.next = claimed.map(|claimed| claimed.next).or(message.next);
            }
            message.older = message.older.saturating_sub(1);
        }
        drop(queues);
        self.changed.notify_waiters();
    }

    /// Nothing in a queue starts before its settings change, which a message announces: those that are
    /// held cover no jobs any more.
    pub(crate) fn paused(&self, queue: &QueueName) {
        if let Some(message) = self.queues().get_mut(queue).and_then(|seen| seen.message.as_mut()) {
            message.ready.clear();
        }
    }

    /// Leases hold until another time, or no longer.
    pub(crate) fn renewed(&self, renewals: impl Iterator<Item = (JobId, Option<Timestamp>)>) {
        let mut queues = self.queues();
        for (job, until) in renewals {
            for seen in queues.values_mut().filter(|seen| seen.running.contains_key(&job)) {
                match until {
                    Some(until) => drop(seen.running.insert(job, until)),
                    None => drop(seen.running.remove(&job)),
                }
            }
        }
        drop(queues);
        self.changed.notify_waiters();
    }

    /// Whether this process runs a job.
    pub(crate) fn runs(&self, queue: &QueueName, job: JobId) -> bool {
        self.queues().get(queue).is_some_and(|seen| seen.running.contains_key(&job))
    }

    /// When the first lease of what this process runs expires.
    pub(crate) fn runs_until(&self, queue: &QueueName) -> Option<Timestamp> {
        let queues = self.queues();
        queues.get(queue).and_then(|seen| seen.running.values().min().copied())
    }

    /// What to do about the message of a queue at `now`; if it is done with, it is held no longer.
    pub(crate) fn judge(&self, queue: &QueueName, now: Timestamp) -> Fate {
        let mut queues = self.queues();
        let Some(seen) = queues.get_mut(queue) else { return Fate::Done(Left::default()) };
        seen.running.retain(|_, until| *until > now);
        let Some(message) = &seen.message else { return Fate::Done(Left::default()) };
        if seen.claiming > 0 || !seen.running.is_empty() {
            return Fate::Hold;
        }
        let Some(next) = message.next else { return Fate::Idle };
        if next.due.is_some_and(|due| due <= next.now) {
            return Fate::Hold;
        }
        // A worker that has seen that a lease has expired takes it back.
        let look_at = |expiry| if expiry <= next.now { next.now + AGAIN } else { expiry };
        let left = Left {
            jobs: message.ready.iter().copied().collect(),
            due: next.due,
            watches: message.watches,
            expiry: next.expiry.filter(|_| message.watches).map(look_at),
        };
        seen.message = None;
        Fate::Done(left)
    }

    /// Holds the message of a queue no longer; says which jobs that it named have not started here, and
    /// whether it watched for leases of others that expire.
    pub(crate) fn let_go(&self, queue: &QueueName) -> (Vec<JobId>, bool) {
        let mut queues = self.queues();
        let message = queues.get_mut(queue).and_then(|seen| seen.message.take());
        let message = message.unwrap_or_default();
        (message.ready.into_iter().collect(), message.watches)
    }

    /// The number of a call for ticks that begins.
    pub(crate) fn asks(&self) -> u64 {
        let mut ticks = self.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        ticks.0 = ticks.0.saturating_add(1);
        ticks.0
    }

    /// A call for ticks was answered.
    pub(crate) fn asked(&self, number: u64) {
        let mut ticks = self.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        ticks.1 = ticks.1.max(number);
        drop(ticks);
        self.changed.notify_waiters();
    }

    /// The calls for ticks that have begun, and the newest of them that was answered.
    pub(crate) fn ticks(&self) -> (u64, u64) {
        *self.ticks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
