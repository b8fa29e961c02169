//! Announcing what is there already to a timer that is new to a store.

use std::collections::BTreeMap;

use quell_core::{Job, JobFilter, JobId, JobState, QueueName, Result, Timestamp};

use crate::messages::Inner;
use crate::notice::{JOBS, Notice};
use crate::table::Table;
use crate::timed::Timed;

impl<T: Table> Timed<T> {
    /// Sends a message for all that is or will be due, lapses or ticks: for a store that had no timer, or
    /// another one. Its other processes must have stopped. What is announced twice is ignored once.
    ///
    /// It reads every job that has not ended, and sends at least one message for each 200 of them.
    ///
    /// # Errors
    /// As those of the table and of the timer; then announce again.
    pub async fn announce(&self) -> Result<()> {
        let inner = self.inner();
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
                if let Some(at) = starts_or_lapses(job) {
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

/// When somebody must look at a job. One that waits for its key has a message when it may start.
fn starts_or_lapses(job: &Job) -> Option<Timestamp> {
    match job.state {
        JobState::Scheduled => (!job.waits).then_some(job.window.due_at),
        JobState::Running => job.lease_until,
        _ => None,
    }
}
