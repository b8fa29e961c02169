//! Announcing what is there already to a timer that is new to a store.

use std::collections::BTreeMap;

use quell_core::{Error, ErrorKind, Job, JobFilter, JobId, JobState, QueueName, Result, Timestamp};
use serde::de::DeserializeOwned;

use crate::carried::Carried;
use crate::messages::Inner;
use crate::notice::{JOBS, Notice};
use crate::table::Table;
use crate::timed::Timed;

/// Messages that are looked at before a store takes a timer.
const LOOKED_AT: usize = 32;
/// Places in a message at which one of Quell's may begin.
const BEGINNINGS: usize = 64;

/// Whether a message is one of Quell's, perhaps within what a service wraps around it.
fn is_ours(bytes: &[u8]) -> bool {
    let begins = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'{').take(BEGINNINGS);
    let mut rests = begins.filter_map(|(at, _)| bytes.get(at..));
    rests.any(|rest| begins_with::<Notice>(rest) || begins_with::<Carried>(rest))
}

fn begins_with<D: DeserializeOwned>(bytes: &[u8]) -> bool {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<D>();
    matches!(values.next(), Some(Ok(_)))
}

impl<T: Table> Timed<T> {
    /// Sends a message for all that is or will be due, expires or ticks: for a store that had no timer, or
    /// another one. Its other processes must have stopped. What is announced twice is ignored once.
    ///
    /// It reads every job that has not ended, and sends at least one message for each 200 of them.
    ///
    /// # Errors
    /// Of kind [`Foreign`](ErrorKind::Foreign), with nothing sent and nothing written, where the timer has
    /// messages and none is Quell's: its workers would put another application's aside. Else as those of
    /// the table and of the timer; then announce again.
    pub async fn announce(&self) -> Result<()> {
        let inner = self.inner();
        let waiting = inner.notices.timer.peek(LOOKED_AT).await?;
        if !waiting.is_empty() && !waiting.iter().any(|body| is_ours(body)) {
            let message = format!(
                "none of the {} messages that wait there first is Quell's: give the store a queue of its \
                 own",
                waiting.len()
            );
            return Err(Error::new(ErrorKind::Foreign, message));
        }
        inner.store_name().await?;
        inner.announce_jobs(JobState::Scheduled).await?;
        inner.announce_jobs(JobState::Running).await?;
        let now = inner.below.first().now().await?;
        for schedule in inner.below.schedules().await? {
            if let Some(next) = schedule.next {
                inner.notices.send(Notice::new(None, now, next.max(now)), now).await?;
            }
        }
        Ok(())
    }
}

impl<T: Table> Inner<T> {
    async fn announce_jobs(&self, state: JobState) -> Result<()> {
        let limit = JobFilter::MAX_PAGE;
        let mut filter = JobFilter { state: Some(state), limit, ..JobFilter::default() };
        loop {
            let page = self.below.jobs(&filter).await?;
            let now = self.below.first().now().await?;
            let mut due: BTreeMap<(QueueName, Timestamp), Vec<JobId>> = BTreeMap::new();
            for job in &page {
                if let Some(at) = starts_or_expires(job) {
                    due.entry((job.queue.clone(), at.max(now))).or_default().push(job.id);
                }
            }
            for ((queue, at), jobs) in due {
                for jobs in jobs.chunks(JOBS) {
                    let notice = Notice::new(Some(queue.clone()), now, at);
                    self.notices.send(Notice { jobs: jobs.to_vec(), ..notice }, now).await?;
                }
            }
            match page.last() {
                Some(last) if page.len() == limit => filter.before = Some(last.id),
                _ => return Ok(()),
            }
        }
    }
}

/// When a worker must look at a job. One that waits for its key has a message when it may start.
fn starts_or_expires(job: &Job) -> Option<Timestamp> {
    match job.state {
        JobState::Scheduled => (!job.waits).then_some(job.window.due_at),
        JobState::Running => job.lease_until,
        _ => None,
    }
}
