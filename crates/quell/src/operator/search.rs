//! Jobs found by more than stores filter by: partition, error, cause, age and lateness.
//!
//! A store lists by its own filter, and the rest is compared here, page by page. Invariant: a call
//! reads at most [`JobPage::MAX_JOBS`] jobs, and its cursor leads to the others.

use std::time::Duration;

use quell_core::window::Window;
use quell_core::{
    DeadFilter, Error, Job, JobFilter, JobId, JobState, Key, Result, Timestamp, cause,
};

use crate::Quell;

/// Which jobs to find, newest first: a [`JobFilter`], and what stores do not filter by.
///
/// ```
/// use std::time::Duration;
/// use quell::job::JobSearch;
///
/// let mut search = JobSearch::default();
/// search.late = Some(Duration::from_secs(60));
/// search.validate()?;
/// # Ok::<(), quell::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSearch {
    /// By task, queue, state and key; and the page.
    pub filter: JobFilter,
    /// Only of this partition.
    pub partition: Option<Key>,
    /// Only with this text in their last error; without regard to ASCII case.
    pub error: Option<String>,
    /// Only with this [cause](quell_core::cause::of) of their last error, as
    /// [causes of death](crate::dead::DeadCause) are named.
    pub cause: Option<String>,
    /// Only those whose first trigger was accepted longer ago than this.
    pub age: Option<Duration>,
    /// Only those that wait and have been due for longer than this.
    pub late: Option<Duration>,
}

/// What [`Quell::search`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPage {
    /// Those that match, newest first.
    pub jobs: Vec<Job>,
    /// Where to go on, in [`JobFilter::before`]; none where no more jobs are there. A page with few
    /// jobs, or none, may have one.
    pub next: Option<JobId>,
}

impl JobPage {
    /// The most jobs that one call reads.
    pub const MAX_JOBS: usize = 10_000;
}

impl JobSearch {
    /// Checks the search (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        DeadFilter { error: self.error.clone(), ..DeadFilter::default() }.validate()?;
        if self.cause.as_ref().is_some_and(|cause| cause.trim().is_empty()) {
            let message = "cause is empty: give one that the list of causes shows";
            return Err(Error::invalid("cause", message));
        }
        let waits = |state: JobState| state == JobState::Scheduled;
        if self.late.is_some() && !self.filter.state.is_none_or(waits) {
            let message = "late applies to jobs that wait: leave state out, or give scheduled";
            return Err(Error::invalid("late", message));
        }
        Ok(())
    }

    /// Whether a job matches at `now`, the store's time.
    #[must_use]
    pub fn matches(&self, job: &Job, now: Timestamp) -> bool {
        let Window { first_at, due_at, .. } = job.window;
        self.filter.matches(job)
            && self.partition.as_ref().is_none_or(|one| Some(one) == job.partition.as_ref())
            && self.error.as_ref().is_none_or(|text| job.error_contains(text))
            && self.cause.as_ref().is_none_or(|cause| {
                job.error.as_ref().is_some_and(|error| cause::of(error) == *cause)
            })
            && self.age.is_none_or(|age| now.since(first_at) > age)
            && self
                .late
                .is_none_or(|late| job.state == JobState::Scheduled && now.since(due_at) > late)
    }

    /// Whether stores filter by all of it.
    fn is_native(&self) -> bool {
        let is_compared = self.partition.is_some() || self.error.is_some() || self.cause.is_some();
        !is_compared && !self.needs_time()
    }

    fn needs_time(&self) -> bool {
        self.age.is_some() || self.late.is_some()
    }

    /// What a store is asked for first.
    fn first_page(&self) -> JobFilter {
        let late = self.late.map(|_| JobState::Scheduled);
        let filter = JobFilter { state: self.filter.state.or(late), ..self.filter.clone() };
        let limit = filter.page();
        JobFilter { limit, ..filter }
    }
}

impl Quell {
    /// Finds jobs, newest first, one page. It reads at most [`JobPage::MAX_JOBS`] jobs; where more
    /// are there, the page has those found so far and a cursor.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use std::time::Duration;
    /// use quell::Quell;
    /// use quell::job::JobSearch;
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let old = JobSearch { age: Some(Duration::from_secs(3_600)), ..JobSearch::default() };
    /// let page = quell.search(&old).await?;
    /// assert_eq!((page.jobs.len(), page.next), (0, None));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`JobSearch::validate`]; else the error of the store.
    pub async fn search(&self, search: &JobSearch) -> Result<JobPage> {
        search.validate()?;
        let now = if search.needs_time() { self.workers().await?.now } else { Timestamp::MIN };
        let mut filter = search.first_page();
        let wanted = filter.limit;
        let (mut page, mut seen) = (JobPage::default(), 0_usize);
        loop {
            let jobs = self.jobs(&filter).await?;
            seen = seen.saturating_add(jobs.len());
            let is_last = jobs.len() < filter.page();
            let mut jobs = jobs.into_iter();
            for job in jobs.by_ref() {
                filter.before = Some(job.id);
                if search.matches(&job, now) {
                    page.jobs.push(job);
                    if page.jobs.len() == wanted {
                        break;
                    }
                }
            }
            let is_whole = is_last && jobs.len() == 0;
            let is_full = page.jobs.len() == wanted || seen >= JobPage::MAX_JOBS;
            if is_whole || is_full || search.is_native() {
                page.next = filter.before.filter(|_| !is_whole);
                return Ok(page);
            }
            filter.limit = filter.limit.saturating_mul(2).min(JobFilter::MAX_PAGE);
        }
    }
}
