//! Dead jobs counted by cause (R25): the first thing that an operator looks at.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use quell_core::{
    DeadFilter, DeadPlace, Job, JobId, QueueName, Result, TaskName, Timestamp, cause,
};

use crate::dead::Dead;

/// Dead jobs of one queue and task that died of the same cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadCause {
    /// Their queue.
    pub queue: QueueName,
    /// Their task.
    pub task: TaskName,
    /// What their last errors have in common: see [`cause::of`].
    pub cause: String,
    /// How many they are.
    pub jobs: u64,
    /// The one that died last.
    pub example: JobId,
    /// When the first of them died.
    pub first_died_at: Timestamp,
    /// When the last of them died.
    pub last_died_at: Timestamp,
}

/// What [`Dead::causes`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadCauses {
    /// The most frequent first; of equal ones that which killed last.
    pub causes: Vec<DeadCause>,
    /// How many dead jobs were looked at.
    pub jobs: u64,
    /// Where to go on, in [`DeadFilter::before`], where there may be more than were looked at.
    pub next: Option<DeadPlace>,
}

impl DeadCauses {
    /// The most dead jobs that one call looks at, the latest death first.
    pub const MAX_JOBS: usize = 10_000;
}

impl Dead<'_> {
    /// Counts the dead that match by queue, task and cause. At most
    /// [`MAX_JOBS`](DeadCauses::MAX_JOBS) are looked at, and it says so where there are more. The
    /// filter's limit does not matter.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::Quell;
    /// use quell::dead::DeadFilter;
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let found = quell.dead().causes(&DeadFilter::default()).await?;
    /// for cause in &found.causes {
    ///     println!("{} of {}: {}, as {}", cause.jobs, cause.task, cause.cause, cause.example);
    /// }
    /// assert_eq!((found.jobs, found.next), (0, None));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub async fn causes(&self, filter: &DeadFilter) -> Result<DeadCauses> {
        self.causes_among(filter, DeadCauses::MAX_JOBS).await
    }

    /// The same of those that died last, so that an answer comes sooner: it looks at `most` or a page more of them,
    /// and never at more than [`MAX_JOBS`](DeadCauses::MAX_JOBS).
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub async fn causes_among(&self, filter: &DeadFilter, most: usize) -> Result<DeadCauses> {
        let mut filter = DeadFilter { limit: DeadFilter::MAX_PAGE, ..filter.clone() };
        let (mut groups, mut seen) = (Groups::default(), 0_usize);
        loop {
            let page = self.list(&filter).await?;
            page.iter().for_each(|job| groups.add(job));
            seen = seen.saturating_add(page.len());
            let is_full = page.len() == filter.page();
            filter.before = page.last().filter(|_| is_full).and_then(DeadPlace::of);
            if filter.before.is_none() || seen >= most.min(DeadCauses::MAX_JOBS) {
                let jobs = u64::try_from(seen).unwrap_or(u64::MAX);
                return Ok(DeadCauses { causes: groups.sorted(), jobs, next: filter.before });
            }
        }
    }
}

#[derive(Debug, Default)]
struct Groups(BTreeMap<(QueueName, TaskName, String), DeadCause>);

impl Groups {
    /// Counts a job; those that died later were counted before.
    fn add(&mut self, job: &Job) {
        let Some(DeadPlace { died_at, .. }) = DeadPlace::of(job) else { return };
        let cause = cause::of(job.error.as_deref().unwrap_or_default());
        let name = (job.queue.clone(), job.task.clone(), cause);
        let group = self.0.entry(name).or_insert_with_key(|(queue, task, cause)| DeadCause {
            queue: queue.clone(),
            task: task.clone(),
            cause: cause.clone(),
            jobs: 0,
            example: job.id,
            first_died_at: died_at,
            last_died_at: died_at,
        });
        group.jobs = group.jobs.saturating_add(1);
        group.first_died_at = died_at;
    }

    fn sorted(self) -> Vec<DeadCause> {
        let mut causes: Vec<DeadCause> = self.0.into_values().collect();
        causes.sort_by_key(|cause| Reverse((cause.jobs, cause.last_died_at)));
        causes
    }
}
