//! A store whose workers sleep until a timer wakes them.
//!
//! A wake-up is a hint, the row is the truth. A message that comes is looked up: where its job has ended
//! or waits for another, it is ignored; where the job was put off, it is sent on; where the job may start,
//! workers of this process are woken, and the process holds the message under its lock until what it
//! covers has ended. So the lock stands for the process: where it dies, the message comes to another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::select;
use quell_core::{
    Answer, Capabilities, Claim, Claimed, EndNotification, Error, JobId, NextDue, Now, Operation,
    QueueName, Renewal, Result, Store, WakeHub, Wakeup, Wakeups,
};
use quell_engine::Engine;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::below::Below;
use crate::messages::{Inner, receive};
use crate::native::Native;
use crate::notice::Notices;
use crate::partition::Partition;
use crate::partitions::Partitions;
use crate::table::Table;

/// How much later than something is due a worker looks by itself.
const GRACE: Duration = Duration::from_secs(2);

/// A store on partitions of a table, with a timer.
#[derive(Debug)]
pub struct Timed<T: Table> {
    inner: Arc<Inner<T>>,
    /// Takes messages from the first subscription on, while a worker listens.
    receiver: Mutex<JoinSet<()>>,
    /// Whether the timer keeps dedup keys, and how.
    native: Option<Native>,
}

impl<T: Table> Timed<T> {
    /// A store whose workers the partition's timer wakes.
    ///
    /// # Errors
    /// Of kind [`Invalid`](quell_core::ErrorKind::Invalid) where the partition has no timer.
    pub fn new(engine: Engine<Partition<T>>) -> Result<Self> {
        Self::over(Box::new(engine))
    }

    /// A store of several partitions, whose workers their timer wakes: one timer for all of them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// use quell_core::{Store, Timestamp};
    /// use quell_portable::{MemoryTable, MemoryTimer, Partitions, Spread, Timed};
    ///
    /// # async fn open() -> quell_core::Result<()> {
    /// let began = Timestamp::from_secs(0);
    /// let timer = Arc::new(MemoryTimer::new(began, Duration::from_secs(30)));
    /// let table = MemoryTable::new(began);
    /// let store = Partitions::open_with(table, "store", Spread::new(), None, Some(timer)).await?;
    /// assert!(Timed::several(store)?.capabilities().timed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Of kind [`Invalid`](quell_core::ErrorKind::Invalid) where the partitions have no timer.
    pub fn several(partitions: Partitions<T>) -> Result<Self>
    where
        T: Clone,
    {
        Self::over(Box::new(partitions))
    }

    fn over(below: Box<dyn Below<T>>) -> Result<Self> {
        let Some(notices) = below.first().notices().cloned() else {
            let message = "the store has no timer: give it one when you open its partitions";
            return Err(Error::invalid("timer", message));
        };
        let (hub, listened) = (WakeHub::new(), Notify::new());
        let inner = Arc::new(Inner { below, hub, listened, notices });
        Ok(Timed { inner, receiver: Mutex::default(), native: None })
    }

    /// The same store, whose timer keeps dedup keys in place of the table. A trigger with a dedup key
    /// travels in a message that is named after the key, and reaches the table when a worker receives it;
    /// its receipt is [`Receipt::Pending`](quell_core::Receipt::Pending), as the timer does not report
    /// whether it knew the name. All processes of a store must do the same, and schedules have no dedup
    /// keys there. Keys that the table holds from before do not count.
    ///
    /// A dedup key is refused, before anything is sent, where its hold is not the timer's
    /// [window](crate::Timer::duplicate_window), where its trigger has a debounce or idempotency key too,
    /// where triggers of one batch have keys of their own, and where one message does not carry the batch.
    ///
    /// A process acts on such messages whether it has this option or not. One that is older than 14 days
    /// is put aside.
    ///
    /// # Errors
    /// Of kind [`Unsupported`](quell_core::ErrorKind::Unsupported) where the timer does not deduplicate,
    /// a schedule has a dedup key, or the store has several partitions; else as those of the table.
    pub async fn native_dedup(mut self) -> Result<Self> {
        self.native = Some(Native::new(&self.inner).await?);
        Ok(self)
    }

    /// The table.
    pub fn table(&self) -> &T {
        self.inner.below.first().table()
    }

    pub(crate) fn inner(&self) -> &Inner<T> {
        &self.inner
    }

    async fn claim(&self, now: Now, claim: Claim) -> Result<Answer> {
        let Inner { below, notices, .. } = &*self.inner;
        let queue = claim.queue.clone();
        notices.held.serve(std::iter::once(&queue));
        let claiming = Claiming::begin(notices, &queue);
        let mut claimed = match below.call(now, Operation::Claim { claim }).await? {
            Answer::Claim(claimed) => claimed,
            other => return Ok(other),
        };
        let is_held_back =
            claimed.jobs.is_empty() && claimed.next.due.is_some_and(|due| due <= claimed.next.now);
        // Nothing starts before the settings change, which a message announces.
        if is_held_back && below.is_paused(&queue).await.unwrap_or(false) {
            claimed.next.due = None;
            notices.held.paused(&queue);
        }
        claiming.end(&claimed);
        let next = after_message(claimed.next);
        Ok(Answer::Claim(Claimed { next, ..claimed }))
    }
}

#[async_trait]
impl<T: Table> Store for Timed<T> {
    fn capabilities(&self) -> Capabilities {
        // Messages wake workers when something is due. They announce nothing earlier, and no ends and
        // cancellations to other processes, as `push` would mean.
        Capabilities { push: false, timed: true, ..self.inner.below.capabilities() }
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        let Inner { below, notices, .. } = &*self.inner;
        let held = &notices.held;
        if let Some(native) = &self.native {
            native.check(&operation)?;
        }
        match (operation, &self.native) {
            (Operation::Claim { claim }, _) => self.claim(now, claim).await,
            (Operation::Settle { settlements }, _) => {
                let jobs: Vec<JobId> = settlements.iter().map(|one| one.lease.job).collect();
                let answer = below.call(now, Operation::Settle { settlements }).await;
                if answer.is_ok() {
                    held.renewed(jobs.into_iter().map(|job| (job, None)));
                }
                answer
            }
            (Operation::Renew { leases, lease }, _) => {
                let jobs: Vec<JobId> = leases.iter().map(|lease| lease.job).collect();
                let answer = below.call(now, Operation::Renew { leases, lease }).await;
                if let Ok(Answer::Renew(renewals)) = &answer {
                    let known = jobs.into_iter().zip(renewals);
                    let reported = known.filter(|(_, one)| **one != Renewal::Unknown);
                    held.renewed(reported.map(|(job, one)| (job, one.until())));
                }
                answer
            }
            (Operation::Peek { queues }, _) => {
                held.serve(queues.iter().map(|(queue, _)| queue));
                match below.call(now, Operation::Peek { queues }).await? {
                    Answer::Peek(next) => {
                        Ok(Answer::Peek(next.into_iter().map(after_message).collect()))
                    }
                    other => Ok(other),
                }
            }
            (Operation::Tick { limit }, _) => {
                let number = held.asks();
                let answer = below.call(now, Operation::Tick { limit }).await;
                if answer.is_ok() {
                    held.asked(number);
                }
                answer
            }
            (Operation::Enqueue { batches }, Some(native)) => {
                native.enqueue(&self.inner, now, batches).await
            }
            (other, native) => match below.call(now, other).await? {
                Answer::NextDue(next) => Ok(Answer::NextDue(after_message(next))),
                Answer::Checkup(mut checkup) => {
                    checkup.facts.extend(native.as_ref().map(Native::fact));
                    Ok(Answer::Checkup(checkup))
                }
                answer => Ok(answer),
            },
        }
    }

    fn wakeups(&self) -> Wakeups {
        let cancelled = self.inner.below.wakeups().filter_map(|wakeup| {
            let cancelled = wakeup.cancelled.map(Wakeup::cancelled);
            async move { cancelled }
        });
        let wakeups = Box::pin(select(self.inner.hub.subscribe(), cancelled));
        // Only a process with workers listens: one without takes no message from those that have some.
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        if receiver.is_empty() {
            receiver.spawn(receive(Arc::clone(&self.inner)));
        }
        self.inner.listened.notify_one();
        wakeups
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.inner.below.ended(job)
    }
}

/// A worker looks by itself only where the message of a job has not come.
fn after_message(next: NextDue) -> NextDue {
    let due = next.due.map(|due| if due > next.now { due + GRACE } else { due });
    NextDue { due, ..next }
}

/// A claim in flight. One that is dropped has failed, and may have started jobs that no worker runs.
struct Claiming<'c> {
    notices: &'c Notices,
    queue: &'c QueueName,
    is_over: bool,
}

impl<'c> Claiming<'c> {
    fn begin(notices: &'c Notices, queue: &'c QueueName) -> Self {
        notices.held.claims(queue);
        Claiming { notices, queue, is_over: false }
    }

    fn end(mut self, claimed: &Claimed) {
        self.is_over = true;
        self.notices.held.claimed(self.queue, Some(claimed));
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.notices.held.claimed(self.queue, None);
        }
    }
}
