//! One look at the jobs of a filter, with a bounded number of requests.
//!
//! A look reads the newest jobs until a page has no new one, then those that run, and then the pages of known
//! jobs that have not ended. What does not fit into one look has its turn in the next. A job that came and
//! ended between two looks is among the newest; a store of several shards, whose ids do not follow time, may
//! have it on a later page.

use std::time::Duration;

use jiff::Timestamp;
use quell::job::{JobFilter, JobSearch};
use quell::{JobId, JobState};

use super::follow::{Event, Known};
use super::longer_ago;
use crate::cli::live::Live;
use crate::view::Jobs;

/// The most pages of new jobs in a look.
const NEW_PAGES: usize = 10;
/// The most pages of jobs that run, and of known jobs.
const OTHER_PAGES: usize = 5;
/// The most pages of each kind in the first look.
const FIRST_PAGES: usize = 10;

/// What a look left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// More jobs came than this.
    New(usize),
    /// This number of jobs that wait was forgotten.
    Known(u64),
}

/// Looks at the jobs of a filter.
#[derive(Debug)]
pub(super) struct Rounds {
    filter: JobFilter,
    known: Known,
    /// Where the next look at known jobs goes on.
    cursor: Option<JobId>,
    reported: u64,
}

impl Rounds {
    /// Of the members that never change for a job.
    pub(super) fn new(search: &JobSearch) -> Self {
        let filter = JobFilter { limit: JobFilter::MAX_PAGE, ..search.filter.clone() };
        let filter = JobFilter { state: None, before: None, ..filter };
        Rounds { filter, known: Known::default(), cursor: None, reported: 0 }
    }

    /// Reads what is there already: none of it is news.
    pub(super) async fn begin(&mut self, live: &Live) -> anyhow::Result<()> {
        for state in [None, Some(JobState::Running), Some(JobState::Scheduled)] {
            let pages = if state.is_none() { 1 } else { FIRST_PAGES };
            let mut filter = JobFilter { state, ..self.filter.clone() };
            for _ in 0..pages {
                let page = live.jobs(&filter).await?;
                page.jobs.into_iter().for_each(|job| self.known.learn(job));
                filter.before = page.next_before;
                if page.next_before.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What happened since the look before, and what was left out.
    pub(super) async fn look(
        &mut self,
        live: &Live,
        late: Option<Duration>,
    ) -> anyhow::Result<(Vec<Event>, Option<Gap>)> {
        self.known.begin_round();
        let mut events = Vec::new();
        let gap = self.newest(live, &mut events).await?;
        self.running(live, &mut events).await?;
        self.others(live, &mut events).await?;
        if let Some(late) = late {
            let now = Timestamp::now();
            events.extend(self.known.late(|job| {
                let due_at = job.due_at.as_ref().and_then(|at| at.parse::<Timestamp>().ok());
                due_at.is_some_and(|at| longer_ago(at, now, late))
            }));
        }
        let lost = self.known.lost;
        let forgotten = (lost > self.reported).then_some(Gap::Known(lost));
        self.reported = lost;
        Ok((events, gap.or(forgotten)))
    }

    /// The newest jobs, page by page until one has no new job.
    async fn newest(
        &mut self,
        live: &Live,
        events: &mut Vec<Event>,
    ) -> anyhow::Result<Option<Gap>> {
        let mut filter = self.filter.clone();
        for _ in 0..NEW_PAGES {
            let page = live.jobs(&filter).await?;
            let has_new = page.jobs.iter().any(|job| !self.known.has(job.id));
            filter.before = page.next_before;
            self.take(page, events);
            if !has_new || filter.before.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(Gap::New(NEW_PAGES * JobFilter::MAX_PAGE)))
    }

    async fn running(&mut self, live: &Live, events: &mut Vec<Event>) -> anyhow::Result<()> {
        let mut filter = self.filter.clone().state(JobState::Running);
        for _ in 0..OTHER_PAGES {
            let page = live.jobs(&filter).await?;
            filter.before = page.next_before;
            self.take(page, events);
            if filter.before.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Known jobs that have not ended and were on no page yet: by pages that begin at the newest of them.
    async fn others(&mut self, live: &Live, events: &mut Vec<Event>) -> anyhow::Result<()> {
        for _ in 0..OTHER_PAGES {
            let wanted = self.known.unseen(self.cursor, JobFilter::MAX_PAGE);
            let Some(first) = wanted.first() else {
                // The next look begins with the newest again.
                self.cursor = None;
                break;
            };
            let below = JobId::new(first.get().saturating_add(1));
            let page = live.jobs(&self.filter.clone().before(below)).await?;
            let last = page.next_before.filter(|_| !page.jobs.is_empty());
            let there: Vec<JobId> = page.jobs.iter().map(|job| job.id).collect();
            self.cursor = page.next_before;
            self.take(page, events);
            let was_read = |id: &JobId| last.is_none_or(|last| *id >= last) && !there.contains(id);
            for id in wanted.into_iter().filter(was_read) {
                events.extend(self.known.remove(id));
            }
            if self.cursor.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, page: Jobs, events: &mut Vec<Event>) {
        // The oldest first, as they came.
        for job in page.jobs.into_iter().rev() {
            events.extend(self.known.observe(job));
        }
    }
}
