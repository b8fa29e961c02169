//! Wake-ups inside one process: hints that something is due earlier than a worker thinks (R34).
//!
//! Hints are coalesced per queue to the earliest due time, so a subscriber that is slow owes
//! nobody memory. Losing one only delays: the poll is the safety net.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::{QueueName, Timestamp};

/// A hint: in `queue` (or any, when none) something is due at `due`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wakeup {
    /// The queue; none when the store cannot tell.
    pub queue: Option<QueueName>,
    /// When it is due; [`Timestamp::MIN`] when the store cannot tell.
    pub due: Timestamp,
}

/// A subscriber's stream of hints. It ends when the store is dropped.
pub type Wakeups = Pin<Box<dyn Stream<Item = Wakeup> + Send>>;

/// Hands hints to every subscriber in the process.
#[derive(Debug, Default)]
pub struct WakeHub {
    subscribers: Mutex<Vec<Weak<Mutex<Inbox>>>>,
}

/// What one subscriber has not taken yet.
#[derive(Debug, Default)]
struct Inbox {
    pending: BTreeMap<Option<QueueName>, Timestamp>,
    waker: Option<Waker>,
    closed: bool,
}

impl WakeHub {
    /// A hub without subscribers.
    #[must_use]
    pub fn new() -> Self {
        WakeHub::default()
    }

    /// A stream of the hints from now on.
    #[must_use]
    pub fn subscribe(&self) -> Wakeups {
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        locked(&self.subscribers).push(Arc::downgrade(&inbox));
        Box::pin(Subscription { inbox })
    }

    /// Whether anyone subscribes.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        locked(&self.subscribers).iter().any(|subscriber| subscriber.strong_count() > 0)
    }

    /// Tells every subscriber that something is due at `due`.
    pub fn wake(&self, queue: Option<&QueueName>, due: Timestamp) {
        locked(&self.subscribers).retain(|subscriber| {
            let Some(inbox) = subscriber.upgrade() else { return false };
            let waker = {
                let mut inbox = locked(&inbox);
                let earliest = inbox.pending.entry(queue.cloned()).or_insert(due);
                *earliest = due.min(*earliest);
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
        match inbox.pending.pop_first() {
            Some((queue, due)) => Poll::Ready(Some(Wakeup { queue, due })),
            None if inbox.closed => Poll::Ready(None),
            None => {
                inbox.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The data behind a lock; a panic elsewhere cannot have left a map half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
