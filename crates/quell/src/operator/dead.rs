//! What operators do with dead jobs (R25, R26): find, show, redrive, discard, export, import.
//!
//! Bulk commands work in steps, the latest death first: a job that dies again meanwhile is not
//! visited again, and a command that stops early leaves only the rest undone.

use std::time::Duration;

use quell_core::{
    DeadExport, DeadFilter, DeadPlace, Error, ErrorKind, Imported, Job, JobId, Limits, Redrive,
    Result, SettledAs, Timestamp, dead, exports, no_such_job,
};

use crate::Quell;

/// How many dead jobs one write imports.
const IMPORT_BATCH: usize = 100;
/// How many calls in a row may fail before a redrive of many gives up.
const PATIENCE: u32 = 5;
/// How often a second a redrive of many takes a step, unless it is slower than that.
const STEPS_PER_SECOND: u32 = 10;

/// The dead: what [`Quell::dead`] returns.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// use quell::Quell;
/// use quell::dead::DeadFilter;
///
/// let quell = Quell::open("memory:").await?;
/// let timeouts = DeadFilter { error: Some("timed out".into()), ..DeadFilter::default() };
/// assert_eq!(quell.dead().count(&timeouts).await?, 0);
///
/// let mut sweep = quell.dead().redrive_all(timeouts, 50)?;
/// while let Some(progress) = sweep.step().await? {
///     println!("{} of {}", progress.done, progress.matched);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Dead<'a> {
    quell: &'a Quell,
}

/// What one step did to some of the dead that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkResult {
    /// How many were redriven or discarded.
    pub done: u64,
    /// How many were not dead any more when their turn came.
    pub skipped: u64,
    /// How many could not be redriven; they are still dead.
    pub failed: u64,
    /// Where the next step begins; none after the last.
    pub next: Option<DeadPlace>,
}

/// How far a redrive of many has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How many matched when it began.
    pub matched: u64,
    /// How many were redriven.
    pub done: u64,
    /// How many were not dead any more when their turn came.
    pub skipped: u64,
    /// How many could not be redriven; they are still dead.
    pub failed: u64,
}

impl Progress {
    /// Adds what a step did.
    pub fn add(&mut self, step: &BulkResult) {
        self.done = self.done.saturating_add(step.done);
        self.skipped = self.skipped.saturating_add(step.skipped);
        self.failed = self.failed.saturating_add(step.failed);
    }

    /// How many had their turn.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.done.saturating_add(self.skipped).saturating_add(self.failed)
    }
}

/// How many jobs a step takes at a rate, and how long it may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedriveRate {
    per_second: u32,
}

impl RedriveRate {
    /// This number of jobs a second.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for none at all.
    pub fn new(per_second: u32) -> Result<Self> {
        if per_second == 0 {
            return Err(Error::invalid("rate", "rate is zero: give a number of jobs a second"));
        }
        Ok(RedriveRate { per_second })
    }

    /// How many jobs a step takes, so that there are about ten steps a second.
    #[must_use]
    pub fn batch(self) -> usize {
        let jobs = self.per_second.div_ceil(STEPS_PER_SECOND);
        usize::try_from(jobs).unwrap_or(usize::MAX).min(DeadFilter::MAX_PAGE)
    }

    /// How long after the start the job after the first `jobs` has its turn.
    #[must_use]
    pub fn after(self, jobs: u64) -> Duration {
        let micros = u128::from(jobs).saturating_mul(1_000_000) / u128::from(self.per_second);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl Quell {
    /// The dead, for an operator.
    #[must_use]
    pub fn dead(&self) -> Dead<'_> {
        Dead { quell: self }
    }
}

impl<'a> Dead<'a> {
    /// Dead jobs that match, the latest death first, one page.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] as for [`DeadFilter::validate`]; else the error of the store.
    pub async fn list(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        filter.validate()?;
        self.quell.store().dead(filter).await
    }

    /// How many dead jobs match.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub async fn count(&self, filter: &DeadFilter) -> Result<u64> {
        filter.validate()?;
        self.quell.store().count_dead(filter).await
    }

    /// Everything that is known of a dead job.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for an unknown job, [`ErrorKind::IllegalMove`] for one that is not
    /// dead; else the error of the store.
    pub async fn export(&self, id: JobId) -> Result<DeadExport> {
        match self.quell.store().exports(&[id]).await?.pop() {
            Some(export) => Ok(export),
            None => Err(self.why_not(id, "it cannot be exported").await),
        }
    }

    /// A page of exported dead jobs, as [`list`](Self::list) lists jobs, and where the next one
    /// begins.
    ///
    /// # Errors
    /// As for [`list`](Self::list).
    pub async fn exports(
        &self,
        filter: &DeadFilter,
    ) -> Result<(Vec<DeadExport>, Option<DeadPlace>)> {
        let (ids, next) = self.page(filter).await?;
        Ok((self.quell.store().exports(&ids).await?, next))
    }

    /// Puts a dead job back, with its payload or with another, which replaces it (R26).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a payload that is too large, or that later ones could not be
    /// gathered into; [`ErrorKind::NotFound`] and [`ErrorKind::IllegalMove`] as the store says.
    pub async fn redrive(&self, redrive: impl Into<Redrive>) -> Result<SettledAs> {
        let redrive = redrive.into();
        redrive.validate(self.limits())?;
        self.quell.store().redrive(self.now(), &redrive).await
    }

    /// Redrives all that match, at most `per_second` of them a second: see [`RedriveAll::step`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a rate of zero, or as for [`DeadFilter::validate`].
    pub fn redrive_all(&self, filter: DeadFilter, per_second: u32) -> Result<RedriveAll<'a>> {
        filter.validate()?;
        let rate = RedriveRate::new(per_second)?;
        Ok(RedriveAll {
            dead: *self,
            filter,
            rate,
            began: None,
            ended: false,
            progress: Progress::default(),
        })
    }

    /// Redrives one page of those that match, at once.
    ///
    /// # Errors
    /// As for [`list`](Self::list); or the store's error, after five in a row.
    pub async fn redrive_page(&self, filter: &DeadFilter) -> Result<BulkResult> {
        let (ids, next) = self.page(filter).await?;
        let mut swept = BulkResult { next, ..BulkResult::default() };
        let mut in_a_row = 0;
        for id in ids {
            match self.redrive(id).await {
                Ok(_) => swept.done = swept.done.saturating_add(1),
                Err(error) if is_gone(&error) => swept.skipped = swept.skipped.saturating_add(1),
                Err(error) => {
                    in_a_row += 1;
                    if in_a_row >= PATIENCE {
                        return Err(error);
                    }
                    tracing::warn!(job = %id, %error, "a dead job could not be redriven");
                    swept.failed = swept.failed.saturating_add(1);
                    continue;
                }
            }
            in_a_row = 0;
        }
        Ok(swept)
    }

    /// Removes a dead job for good. The reason goes to the log and the history (R25).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a reason that says nothing; [`ErrorKind::NotFound`] for an
    /// unknown job, [`ErrorKind::IllegalMove`] for one that is not dead; else the error of the
    /// store.
    pub async fn discard(&self, id: JobId, reason: &str) -> Result<()> {
        if self.remove(&[id], reason).await? == 1 {
            return Ok(());
        }
        Err(self.why_not(id, "it cannot be discarded").await)
    }

    /// Removes one page of those that match, for good.
    ///
    /// # Errors
    /// As for [`list`](Self::list), and [`ErrorKind::Invalid`] for a reason that says nothing.
    pub async fn discard_page(&self, filter: &DeadFilter, reason: &str) -> Result<BulkResult> {
        dead::validate_reason(reason)?;
        let (ids, next) = self.page(filter).await?;
        let done = self.remove(&ids, reason).await?;
        let asked = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        Ok(BulkResult { done, skipped: asked.saturating_sub(done), failed: 0, next })
    }

    /// Hands each line of an export of all that match to `each`, without its end; returns how many
    /// there were. See [`exports`] for the format.
    ///
    /// # Errors
    /// As for [`list`](Self::list); or what `each` says.
    pub async fn export_lines(
        &self,
        filter: &DeadFilter,
        mut each: impl FnMut(&str) -> Result<()>,
    ) -> Result<u64> {
        each(&exports::head())?;
        let (mut filter, mut count) = (filter.clone(), 0_u64);
        loop {
            let (page, next) = self.exports(&filter).await?;
            for export in &page {
                each(&exports::line(export)?)?;
                count = count.saturating_add(1);
            }
            if next.is_none() {
                return Ok(count);
            }
            filter.before = next;
        }
    }

    /// Imports exported dead jobs, with ids of this store. All are checked before any is
    /// written; one that is here already, or came in before, is left as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] as for [`DeadExport::validate`], naming the job; else the error of
    /// the store. Where that happens half way, importing the same again does the rest.
    pub async fn import(&self, exports: &[DeadExport]) -> Result<Vec<Imported>> {
        for (index, export) in exports.iter().enumerate() {
            export
                .validate(self.limits())
                .map_err(|error| error.at(format!("exports[{index}]")))?;
        }
        let mut imported = Vec::with_capacity(exports.len());
        for batch in exports.chunks(IMPORT_BATCH) {
            imported.extend(self.quell.store().import_dead(self.now(), batch).await?);
        }
        Ok(imported)
    }

    /// The ids of a page, and where the next one begins.
    async fn page(&self, filter: &DeadFilter) -> Result<(Vec<JobId>, Option<DeadPlace>)> {
        let jobs = self.list(filter).await?;
        let is_full = jobs.len() == filter.page();
        let next = jobs.last().filter(|_| is_full).and_then(DeadPlace::of);
        Ok((jobs.into_iter().map(|job| job.id).collect(), next))
    }

    async fn remove(&self, ids: &[JobId], reason: &str) -> Result<u64> {
        dead::validate_reason(reason)?;
        let gone = self.quell.store().discard(self.now(), ids, reason).await?;
        for job in &gone {
            tracing::info!(%job, reason, "dead job discarded");
        }
        Ok(u64::try_from(gone.len()).unwrap_or(u64::MAX))
    }

    /// Why a job is not among the dead.
    async fn why_not(&self, id: JobId, what: &str) -> Error {
        match self.quell.store().job(id).await {
            Err(error) => error,
            Ok(None) => no_such_job(id),
            Ok(Some(job)) => {
                let message = format!("job {id} is {}, not dead: {what}", job.state);
                Error::new(ErrorKind::IllegalMove, message)
            }
        }
    }

    pub(crate) fn quell(&self) -> &'a Quell {
        self.quell
    }

    pub(crate) fn now(&self) -> Option<Timestamp> {
        self.quell.clock().store_time()
    }

    fn limits(&self) -> &'a Limits {
        self.quell.limits()
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IllegalMove)
}

/// A redrive of many that is in progress: see [`Dead::redrive_all`].
#[derive(Debug)]
#[must_use = "nothing is redriven until steps are taken"]
pub struct RedriveAll<'a> {
    dead: Dead<'a>,
    filter: DeadFilter,
    rate: RedriveRate,
    began: Option<Timestamp>,
    ended: bool,
    progress: Progress,
}

impl RedriveAll<'_> {
    /// Waits until the rate allows it, redrives the next jobs and returns its progress; none once
    /// all had their turn. Dropping the future between two jobs is safe: redriven jobs stay
    /// so, and a new redrive does the rest.
    ///
    /// # Errors
    /// What the store says, when it does so again and again.
    pub async fn step(&mut self) -> Result<Option<Progress>> {
        if self.ended {
            return Ok(None);
        }
        let clock = self.dead.quell.clock();
        let began = match self.began {
            Some(began) => began,
            None => {
                self.progress.matched = self.dead.count(&self.filter).await?;
                *self.began.insert(clock.now())
            }
        };
        clock.sleep_until(began + self.rate.after(self.progress.seen())).await;
        self.filter.limit = self.rate.batch();
        let swept = self.dead.redrive_page(&self.filter).await?;
        self.progress.add(&swept);
        self.filter.before = swept.next;
        self.ended = swept.next.is_none();
        Ok(Some(self.progress))
    }

    /// Takes all steps.
    ///
    /// # Errors
    /// As for [`step`](Self::step).
    pub async fn run(mut self) -> Result<Progress> {
        while self.step().await?.is_some() {}
        Ok(self.progress)
    }
}
