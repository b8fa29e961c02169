//! Wake-ups inside one process: best-effort notifications that something is due earlier than a
//! worker expects (R34).
//!
//! They are coalesced per queue to the earliest due time, so a slow subscriber needs bounded
//! memory. Losing one only delays: the poll is the safety net.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::{JobId, QueueName, Timestamp};

/// A wake-up: in `queue` (or any, when none) something is due at `due`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wakeup {
    /// The queue; none when the store does not know.
    pub queue: Option<QueueName>,
    /// When it is due; [`Timestamp::MIN`] when the store does not know, [`Timestamp::MAX`] when
    /// nothing is.
    pub due: Timestamp,
    /// A running job was cancelled: the worker that runs it has lost its lease (R21).
    pub cancelled: Option<Cancelled>,
}

impl Wakeup {
    /// Something is due in `queue`, or in any.
    #[must_use]
    pub fn due(queue: Option<QueueName>, due: Timestamp) -> Self {
        Wakeup { queue, due, cancelled: None }
    }

    /// A running job was cancelled.
    #[must_use]
    pub fn cancelled(cancelled: Cancelled) -> Self {
        Wakeup { queue: None, due: Timestamp::MAX, cancelled: Some(cancelled) }
    }
}

/// Which running jobs were cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// This one.
    Job(JobId),
    /// Some; the store does not know which, or they are too many to name.
    Any,
}

/// The most cancelled jobs that one subscriber receives by name; more become [`Cancelled::Any`].
const MAX_NAMED: usize = 1_000;

/// A subscriber's stream of wake-ups. It ends when the store is dropped.
pub type Wakeups = Pin<Box<dyn Stream<Item = Wakeup> + Send>>;

/// Publishes wake-ups to every subscriber in the process.
#[derive(Debug, Default)]
pub struct WakeHub {
    subscribers: Mutex<Vec<Weak<Mutex<Inbox>>>>,
}

/// What one subscriber has not taken yet.
#[derive(Debug, Default)]
struct Inbox {
    pending: BTreeMap<Option<QueueName>, Timestamp>,
    /// Running jobs that were cancelled.
    cancelled: BTreeSet<JobId>,
    /// Some that are not named.
    others_cancelled: bool,
    waker: Option<Waker>,
    closed: bool,
}

impl WakeHub {
    /// A hub without subscribers.
    #[must_use]
    pub fn new() -> Self {
        WakeHub::default()
    }

    /// A stream of the wake-ups from now on.
    #[must_use]
    pub fn subscribe(&self) -> Wakeups {
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        locked(&self.subscribers).push(Arc::downgrade(&inbox));
        Box::pin(Subscription { inbox })
    }

    /// Whether there is a subscriber.
    #[must_use]
    pub fn has_subscribers(&self) -> bool {
        locked(&self.subscribers).iter().any(|subscriber| subscriber.strong_count() > 0)
    }

    /// Notifies every subscriber that something is due at `due`.
    pub fn wake(&self, queue: Option<&QueueName>, due: Timestamp) {
        self.publish(|inbox| {
            let earliest = inbox.pending.entry(queue.cloned()).or_insert(due);
            *earliest = due.min(*earliest);
        });
    }

    /// Notifies every subscriber that a running job was cancelled.
    pub fn cancelled(&self, cancelled: Cancelled) {
        self.publish(|inbox| match cancelled {
            Cancelled::Job(job) if inbox.cancelled.len() < MAX_NAMED => {
                inbox.cancelled.insert(job);
            }
            Cancelled::Job(_) | Cancelled::Any => {
                inbox.cancelled.clear();
                inbox.others_cancelled = true;
            }
        });
    }

    fn publish(&self, put: impl Fn(&mut Inbox)) {
        locked(&self.subscribers).retain(|subscriber| {
            let Some(inbox) = subscriber.upgrade() else { return false };
            let waker = {
                let mut inbox = locked(&inbox);
                put(&mut inbox);
                inbox.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            true
        });
    }
}

impl Drop for WakeHub {
    fn drop(&mut self) {
        for inbox in locked(&self.subscribers).iter().filter_map(Weak::upgrade) {
            let waker = {
                let mut inbox = locked(&inbox);
                inbox.closed = true;
                inbox.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

#[derive(Debug)]
struct Subscription {
    inbox: Arc<Mutex<Inbox>>,
}

impl Stream for Subscription {
    type Item = Wakeup;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Wakeup>> {
        let mut inbox = locked(&self.inbox);
        match inbox.next() {
            Some(wakeup) => Poll::Ready(Some(wakeup)),
            None if inbox.closed => Poll::Ready(None),
            None => {
                inbox.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Inbox {
    fn next(&mut self) -> Option<Wakeup> {
        if std::mem::take(&mut self.others_cancelled) {
            return Some(Wakeup::cancelled(Cancelled::Any));
        }
        if let Some(job) = self.cancelled.pop_first() {
            return Some(Wakeup::cancelled(Cancelled::Job(job)));
        }
        let (queue, due) = self.pending.pop_first()?;
        Some(Wakeup::due(queue, due))
    }
}

/// The data behind a lock; a panic elsewhere cannot have left a map half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next wake-up, if there is one; none once the stream has ended.
    fn next(wakeups: &mut Wakeups) -> Poll<Option<Wakeup>> {
        wakeups.as_mut().poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn r34_a_hub_knows_whether_anyone_listens_and_its_end_ends_the_stream() {
        let hub = WakeHub::new();
        assert!(!hub.has_subscribers());
        let mut wakeups = hub.subscribe();
        let other = hub.subscribe();
        assert!(hub.has_subscribers());
        assert_eq!(next(&mut wakeups), Poll::Pending);
        drop(other);
        assert!(hub.has_subscribers());
        hub.wake(None, Timestamp::MIN);
        drop(hub);
        let last = Wakeup::due(None, Timestamp::MIN);
        assert_eq!(next(&mut wakeups), Poll::Ready(Some(last)));
        assert_eq!(next(&mut wakeups), Poll::Ready(None));
        let hub = WakeHub::new();
        drop(hub.subscribe());
        assert!(!hub.has_subscribers());
    }

    #[test]
    fn r34_hints_of_one_queue_become_one_with_the_earliest_time() {
        let hub = WakeHub::new();
        let mut wakeups = hub.subscribe();
        let queue = QueueName::new("q").unwrap();
        for secs in [5, 3, 9] {
            hub.wake(Some(&queue), Timestamp::from_secs(secs));
        }
        let due = Timestamp::from_secs(3);
        assert_eq!(next(&mut wakeups), Poll::Ready(Some(Wakeup::due(Some(queue), due))));
        assert_eq!(next(&mut wakeups), Poll::Pending);
    }

    #[test]
    fn r21_cancelled_jobs_are_named_each_up_to_a_bound() {
        let hub = WakeHub::new();
        let mut wakeups = hub.subscribe();
        hub.wake(None, Timestamp::from_secs(5));
        for id in [7, 5, 7] {
            hub.cancelled(Cancelled::Job(JobId::new(id)));
        }
        let cancelled = |which| Poll::Ready(Some(Wakeup::cancelled(which)));
        assert_eq!(next(&mut wakeups), cancelled(Cancelled::Job(JobId::new(5))));
        assert_eq!(next(&mut wakeups), cancelled(Cancelled::Job(JobId::new(7))));
        let due = Wakeup::due(None, Timestamp::from_secs(5));
        assert_eq!(next(&mut wakeups), Poll::Ready(Some(due)));
        for id in 0..=MAX_NAMED as u64 {
            hub.cancelled(Cancelled::Job(JobId::new(id)));
        }
        assert_eq!(next(&mut wakeups), cancelled(Cancelled::Any));
        assert_eq!(next(&mut wakeups), Poll::Pending);
    }
}
