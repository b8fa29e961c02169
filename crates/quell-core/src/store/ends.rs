//! Ends inside one process: who waits for the end of a job is told of it (R19).
//!
//! It is a hint as a wake-up is: who waits asks the store after it, and now and then without it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::JobId;

/// Is ready once a store has heard that a job ended. Dropping it is to wait no more.
pub type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tells everyone in the process who waits for the end of a job.
///
/// ```
/// use std::sync::Arc;
/// use quell_core::{EndHub, JobId};
///
/// let hub = Arc::new(EndHub::new());
/// let ended = hub.wait_for(JobId::new(7));
/// hub.tell([JobId::new(8)]);
/// assert_eq!(hub.awaited(), [JobId::new(7)]);
/// hub.tell([JobId::new(7)]);
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
    /// A hub for which nobody waits.
    #[must_use]
    pub fn new() -> Self {
        EndHub::default()
    }

    /// Waits for the end of a job, from this call on.
    #[must_use]
    pub fn wait_for(self: &Arc<Self>, job: JobId) -> Ended {
        let mut waiting = self.locked();
        let number = waiting.next;
        waiting.next = waiting.next.wrapping_add(1);
        waiting.jobs.entry(job).or_default().insert(number, None);
        drop(waiting);
        Box::pin(Waiter { hub: Arc::clone(self), job, number })
    }

    /// Whether anyone waits.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        !self.locked().jobs.is_empty()
    }

    /// The jobs whose end someone waits for.
    #[must_use]
    pub fn awaited(&self) -> Vec<JobId> {
        self.locked().jobs.keys().copied().collect()
    }

    /// Tells those who wait for these jobs.
    pub fn tell(&self, ended: impl IntoIterator<Item = JobId>) {
        let mut waiting = self.locked();
        if waiting.jobs.is_empty() {
            return;
        }
        let told = ended.into_iter().filter_map(|job| waiting.jobs.remove(&job));
        let wakers: Vec<Waker> = told.flat_map(BTreeMap::into_values).flatten().collect();
        drop(waiting);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells everyone who waits: nobody knows which jobs ended.
    pub fn tell_all(&self) {
        let jobs = std::mem::take(&mut self.locked().jobs);
        jobs.into_values().flat_map(BTreeMap::into_values).flatten().for_each(Waker::wake);
    }

    fn locked(&self) -> MutexGuard<'_, Waiting> {
        // A panic elsewhere cannot have left a map half-changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits; who is not in the hub any more was told.
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

    fn is_told(ended: &mut Ended) -> bool {
        ended.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn r19_everyone_who_waits_for_a_job_is_told_once_and_nobody_else() {
        let hub = Arc::new(EndHub::new());
        let (mut first, mut second) = (hub.wait_for(JOB), hub.wait_for(JOB));
        let mut other = hub.wait_for(JobId::new(8));
        assert!(!is_told(&mut first));
        hub.tell([JobId::new(9), JOB]);
        assert!(is_told(&mut first) && is_told(&mut second) && !is_told(&mut other));
        let mut again = hub.wait_for(JOB);
        assert!(!is_told(&mut again), "the end before it is not its own");
        drop(first);
        assert!(!is_told(&mut again), "who was told before has left nothing behind");
        hub.tell_all();
        assert!(is_told(&mut again) && is_told(&mut other));
        assert!(!hub.is_awaited());
    }

    #[test]
    fn r19_a_job_is_awaited_until_the_last_one_leaves() {
        let hub = Arc::new(EndHub::new());
        let (first, second) = (hub.wait_for(JOB), hub.wait_for(JOB));
        drop(first);
        assert_eq!(hub.awaited(), [JOB]);
        drop(second);
        assert!(!hub.is_awaited());
    }
}
