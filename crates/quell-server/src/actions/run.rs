//! One action from its beginning to its end: page by page, job by job, at its rate.
//!
//! A job is matched when its page is read. Where it has moved on when its turn comes, the store
//! refuses the change, and the job counts as skipped.

use std::sync::Arc;
use std::time::Duration;

use quell::dead::RedriveRate;
use quell::job::{Adjustment, Counts, JobFilter, JobPage, JobSearch};
use quell::{Error, ErrorKind, Job, JobId, JobState, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Order, Shared, reason_of};
use crate::view::{Action, ActionError, ActionKind, ActionState};

/// How many calls in a row may fail before an action gives up.
const PATIENCE: u32 = 5;
/// The pause after a page that could not be read.
const PAUSE: Duration = Duration::from_secs(1);
/// How many pages are read at most to count the jobs that match, and how long that may take.
const COUNTED_PAGES: u32 = 20;
const COUNTING: Duration = Duration::from_secs(2);
/// The most failures that are shown.
const MAX_ERRORS: usize = 10;

/// Why an action ends before all jobs had their turn.
enum Broken {
    Stopped,
    Failed,
}

/// An action in progress.
struct Run {
    shared: Arc<Shared>,
    shown: Action,
    rate: Option<RedriveRate>,
    stop: CancellationToken,
    began: Instant,
    /// How many jobs had their turn.
    turns: u64,
    /// How many calls failed, one after the other.
    failures: u32,
}

/// Runs an action to its end.
pub(super) async fn run(shared: Arc<Shared>, order: Order, stop: CancellationToken) {
    let Order { search, states, rate, shown } = order;
    let name = shown.name.clone();
    let began = Instant::now();
    let mut run =
        Run { shared: Arc::clone(&shared), shown, rate, stop, began, turns: 0, failures: 0 };
    run.count(&search, &states).await;
    run.began = Instant::now();
    let mut state = ActionState::Done;
    for of_state in states {
        let mut search = search.clone();
        search.filter = search.filter.state(of_state).before(None);
        match run.pass(search).await {
            Ok(()) => {}
            Err(Broken::Stopped) => state = ActionState::Stopped,
            Err(Broken::Failed) => state = ActionState::Failed,
        }
        if state != ActionState::Done {
            break;
        }
    }
    shared.end(&name, state);
}

impl Run {
    /// Counts the jobs that match, so that one sees how far it is: where the store's own counts say it, or a
    /// few pages hold them all. An action without a rate does not wait for pages.
    async fn count(&self, search: &JobSearch, states: &[JobState]) {
        match tokio::time::timeout(COUNTING, self.total(search, states)).await {
            Ok(Ok(total)) => self.update(|shown| shown.total = total),
            // The action itself meets the same failure, and shows it.
            Ok(Err(error)) => {
                warn!(action = self.shown.name, %error, "its jobs could not be counted");
            }
            Err(_too_long) => {}
        }
    }

    async fn total(&self, search: &JobSearch, states: &[JobState]) -> Result<Option<u64>> {
        let quell = &self.shared.quell;
        let JobFilter { task, queue, .. } = &search.filter;
        let of_lane =
            JobFilter { task: task.clone(), queue: queue.clone(), ..JobFilter::default() };
        if *search == (JobSearch { filter: of_lane, ..JobSearch::default() }) {
            let is_of = |counts: &Counts| {
                states.contains(&counts.state)
                    && task.as_ref().is_none_or(|task| *task == counts.task)
                    && queue.as_ref().is_none_or(|queue| *queue == counts.queue)
            };
            let counts = quell.counts().await?.into_iter();
            return Ok(Some(counts.filter(is_of).map(|counts| counts.jobs).sum()));
        }
        let is_slow = self.rate.is_some() && !self.shown.dry_run;
        let (mut total, mut pages) = (0_usize, 0);
        for state in states {
            let mut search = search.clone();
            search.filter = search.filter.state(*state).before(None);
            search.filter.limit = JobFilter::MAX_PAGE;
            loop {
                if !is_slow || pages >= COUNTED_PAGES || self.stop.is_cancelled() {
                    return Ok(None);
                }
                let page = quell.search(&search).await?;
                (total, pages) = (total.saturating_add(page.jobs.len()), pages + 1);
                if page.next.is_none() {
                    break;
                }
                search.filter.before = page.next;
            }
        }
        Ok(u64::try_from(total).ok())
    }

    /// Goes over all jobs of a search, newest first: no job is met twice.
    async fn pass(&mut self, mut search: JobSearch) -> std::result::Result<(), Broken> {
        let rate = self.rate.filter(|_| !self.shown.dry_run);
        search.filter.limit = rate.map_or(JobFilter::MAX_PAGE, RedriveRate::batch);
        loop {
            let page = self.page(&search).await?;
            let matched = u64::try_from(page.jobs.len()).unwrap_or(u64::MAX);
            self.update(|shown| shown.matched = shown.matched.saturating_add(matched));
            if !self.shown.dry_run {
                for job in &page.jobs {
                    self.turn(job).await?;
                }
            }
            if page.next.is_none() {
                return Ok(());
            }
            search.filter.before = page.next;
        }
    }

    async fn page(&mut self, search: &JobSearch) -> std::result::Result<JobPage, Broken> {
        loop {
            if self.stop.is_cancelled() {
                return Err(Broken::Stopped);
            }
            match self.shared.quell.search(search).await {
                Ok(page) => {
                    self.failures = 0;
                    return Ok(page);
                }
                Err(error) => self.failed(&error)?,
            }
            self.wait_until(Instant::now() + PAUSE).await?;
        }
    }

    /// Changes a job, once the rate allows it.
    async fn turn(&mut self, job: &Job) -> std::result::Result<(), Broken> {
        if let Some(rate) = self.rate {
            self.wait_until(self.began + rate.after(self.turns)).await?;
        }
        if self.stop.is_cancelled() {
            return Err(Broken::Stopped);
        }
        self.turns = self.turns.saturating_add(1);
        match self.change(job.id).await {
            Ok(()) => self.update(|shown| shown.done = shown.done.saturating_add(1)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IllegalMove) => {
                self.update(|shown| shown.skipped = shown.skipped.saturating_add(1));
            }
            Err(error) => {
                let message = shown_to_callers(&error);
                self.update(|shown| {
                    shown.failed = shown.failed.saturating_add(1);
                    if shown.errors.len() < MAX_ERRORS {
                        shown.errors.push(ActionError { job: job.id, message });
                    }
                });
                warn!(job = %job.id, action = self.shown.name, %error, "a job could not be changed");
                return self.failed(&error);
            }
        }
        self.failures = 0;
        Ok(())
    }

    async fn change(&self, id: JobId) -> Result<()> {
        let quell = &self.shared.quell;
        match self.shown.action {
            ActionKind::Cancel => quell.cancel(id, &reason_of(&self.shown)).await,
            ActionKind::Run => {
                quell.adjust(id, Adjustment::default().run_now(true)).await.map(drop)
            }
            ActionKind::Reprioritise => {
                let adjustment = Adjustment::default().priority(self.shown.priority);
                quell.adjust(id, adjustment).await.map(drop)
            }
            ActionKind::Redrive => {
                quell.dead().redrive(id).await?;
                self.shared.note_redriven(&self.shown.name, id);
                Ok(())
            }
            ActionKind::Discard => quell.dead().discard(id, &reason_of(&self.shown)).await,
        }
    }

    /// Counts a call that failed; enough of them in a row end the action.
    fn failed(&mut self, error: &Error) -> std::result::Result<(), Broken> {
        self.failures += 1;
        if self.failures < PATIENCE {
            return Ok(());
        }
        warn!(action = self.shown.name, %error, "action gave up");
        let message = shown_to_callers(error);
        self.update(|shown| shown.error = Some(message));
        Err(Broken::Failed)
    }

    async fn wait_until(&self, then: Instant) -> std::result::Result<(), Broken> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Broken::Stopped),
            () = tokio::time::sleep_until(then) => Ok(()),
        }
    }

    fn update(&self, change: impl FnOnce(&mut Action)) {
        self.shared.update(&self.shown.name, change);
    }
}

/// What a caller learns of an error: the log has the rest, as for every request.
fn shown_to_callers(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Invalid | ErrorKind::Unsupported => error.to_string(),
        _ => "the store failed: the server's log has the error".to_owned(),
    }
}
