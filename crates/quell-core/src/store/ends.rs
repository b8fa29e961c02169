//! Notifications of the ends of jobs inside one process (R19).
//!
//! They are best effort: waiters read the store when notified, and also poll it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::JobId;

/// Resolves once the store publishes the end of a job. Dropping it ends the wait.
pub type EndNotification = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Notifies the waiters of this process of the ends of jobs.
///
/// ```
/// use std::sync::Arc;
/// use quell_core::{EndHub, JobId};
///
/// let hub = Arc::new(EndHub::new());
/// let ended = hub.wait_for(JobId::new(7));
/// hub.notify([JobId::new(8)]);
/// assert_eq!(hub.awaited(), [JobId::new(7)]);
/// hub.notify([JobId::new(7)]);
/// assert!(!hub.is_awaited());
/// # drop(ended);
/// ```
#[derive(Debug, Default)]
pub struct EndHub {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: BTreeMap<JobId, BTreeMap<u64, Option<Waker>>>,
    next: u64,
}

impl EndHub {
    /// A hub without waiters.
    #[must_use]
    pub fn new() -> Self {
        EndHub::default()
    }

    /// Waits for the end of a job, from this call on.
    #[must_use]
    pub fn wait_for(self: &Arc<Self>, job: JobId) -> EndNotification {
        let mut waiting = self.locked();
        let number = waiting.next;
        waiting.next = waiting.next.wrapping_add(1);
        waiting.jobs.entry(job).or_default().insert(number, None);
        drop(waiting);
        Box::pin(Waiter { hub: Arc::clone(self), job, number })
    }

    /// Whether there are waiters.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        !self.locked().jobs.is_empty()
    }

    /// The jobs that have waiters.
    #[must_use]
    pub fn awaited(&self) -> Vec<JobId> {
        self.locked().jobs.keys().copied().collect()
    }

    /// Notifies the waiters of these jobs.
    pub fn notify(&self, ended: impl IntoIterator<Item = JobId>) {
        let mut waiting = self.locked();
        if waiting.jobs.is_empty() {
            return;
        }
        let notified = ended.into_iter().filter_map(|job| waiting.jobs.remove(&job));
        let wakers: Vec<Waker> = notified.flat_map(BTreeMap::into_values).flatten().collect();
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Notifies all waiters, where it is unknown which jobs ended.
    pub fn tell_all(&self) {
        let jobs = std::mem::take(&mut self.locked().jobs);
        jobs.into_values().flat_map(BTreeMap::into_values).flatten().for_each(Waker::wake);
    }

    fn locked(&self) -> MutexGuard<'_, Waiting> {
        // A panic elsewhere cannot have left a map half-changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter; one that is not in the hub any more was notified.
#[derive(Debug)]
struct Waiter {
    hub: Arc<EndHub>,
    job: JobId,
    number: u64,
}

impl Future for Waiter {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waiting = self.hub.locked();
        let of_job = waiting.jobs.get_mut(&self.job);
        match of_job.and_then(|waiters| waiters.get_mut(&self.number)) {
            Some(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.hub.locked();
        let Some(waiters) = waiting.jobs.get_mut(&self.job) else { return };
        waiters.remove(&self.number);
        if waiters.is_empty() {
            waiting.jobs.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId::new(7);

    fn is_notified(ended: &mut EndNotification) -> bool {
        ended.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn r19_each_waiter_for_a_job_is_notified_once_and_no_other() {
        let hub = Arc::new(EndHub::new());
        let (mut first, mut second) = (hub.wait_for(JOB), hub.wait_for(JOB));
        let mut other = hub.wait_for(JobId::new(8));
        assert!(!is_notified(&mut first));
        hub.notify([JobId::new(9), JOB]);
        assert!(is_notified(&mut first) && is_notified(&mut second) && !is_notified(&mut other));
        let mut again = hub.wait_for(JOB);
        assert!(!is_notified(&mut again), "the end before it is not its own");
        drop(first);
        assert!(
            !is_notified(&mut again),
            "a waiter that was notified before leaves nothing behind"
        );
        hub.tell_all();
        assert!(is_notified(&mut again) && is_notified(&mut other));
        assert!(!hub.is_awaited());
    }

    #[test]
    fn r19_a_job_is_awaited_until_its_last_waiter_leaves() {
        let hub = Arc::new(EndHub::new());
        let (first, second) = (hub.wait_for(JOB), hub.wait_for(JOB));
        drop(first);
        assert_eq!(hub.awaited(), [JOB]);
        drop(second);
        assert!(!hub.is_awaited());
    }
}
