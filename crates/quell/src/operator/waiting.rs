//! Why a job has not started yet, and when it will (R15).
//!
//! The store decides when a job starts by its row, by what else runs, and by settings. This reads the
//! same things one after the other, so it may miss a change of that moment.

use std::fmt;
use std::time::Duration;

use quell_core::job::describe_reason;
use quell_core::window::DueReason;
use quell_core::{
    ErrorKind, Job, JobFilter, JobId, JobState, Key, NextDue, QueueName, QueueSettings, Result,
    Timestamp,
};

use crate::Quell;

/// The most jobs of a queue that are looked at for those of one partition.
const MOST_OF_QUEUE: usize = 1_000;
/// A clock that is less far ahead holds nothing up.
const AHEAD: Duration = Duration::from_secs(1);

/// What a job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// It is not due yet.
    NotDue {
        /// When it is.
        until: Timestamp,
        /// Why then: a quiet period, a bound, a delay, a backoff, a throttle.
        because: DueReason,
    },
    /// Another job of its key runs (R11).
    KeyRuns {
        /// That job.
        job: JobId,
        /// When that one started.
        since: Option<Timestamp>,
    },
    /// An older window of its key goes first (R10).
    OlderWindow {
        /// That window.
        job: JobId,
    },
    /// Its queue is paused (R33).
    QueuePaused {
        /// Since when; none where an earlier version paused it.
        since: Option<Timestamp>,
        /// Who paused it, where the caller said so.
        by: Option<String>,
    },
    /// Its queue was deleted, and starts nothing until it is set again (R32).
    QueueDeleted,
    /// Its task is paused (R33).
    TaskPaused {
        /// Since when; none where an earlier version paused it.
        since: Option<Timestamp>,
        /// Who paused it, where the caller said so.
        by: Option<String>,
    },
    /// As many attempts of its queue run as may (R31).
    QueueFull {
        /// How many run.
        running: u64,
        /// How many may.
        limit: u32,
    },
    /// As many attempts of its partition run as may (R31).
    PartitionFull {
        /// How many run.
        running: u64,
        /// How many may.
        limit: u32,
    },
    /// Another job of its partition goes first: the queue has a strict order (R41).
    Turn {
        /// That job.
        job: JobId,
    },
    /// The rate of its queue lets the next one start later (R31).
    Rate {
        /// When.
        until: Timestamp,
    },
    /// The rate of its partition lets the next one of it start later (R31).
    PartitionRate {
        /// When, as far as its newest jobs show.
        until: Timestamp,
    },
    /// No worker that gives signs of life takes jobs from its queue (R34).
    NoWorker,
    /// Workers take jobs from its queue, and none of them knows its task (R28).
    NoWorkerKnowsTask,
    /// Operators drain all workers that would take its task from its queue (R29).
    WorkersDrained {
        /// How many workers.
        workers: u64,
    },
    /// All slots of the workers that take its task from its queue are taken.
    WorkersBusy {
        /// How many attempts they run.
        busy: u64,
        /// How many they run at once at most.
        slots: u64,
    },
    /// The store's clock is ahead of the clock below it, and stands still until that has caught up (R38).
    ClockAhead {
        /// How far.
        by: Duration,
    },
    /// Nothing holds it: the next claim takes it.
    NextClaim,
}

impl WaitReason {
    /// Its name, as programs see it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            WaitReason::NotDue { .. } => "not_due",
            WaitReason::KeyRuns { .. } => "key_runs",
            WaitReason::OlderWindow { .. } => "older_window",
            WaitReason::QueuePaused { .. } => "queue_paused",
            WaitReason::QueueDeleted => "queue_deleted",
            WaitReason::TaskPaused { .. } => "task_paused",
            WaitReason::QueueFull { .. } => "queue_full",
            WaitReason::PartitionFull { .. } => "partition_full",
            WaitReason::Turn { .. } => "turn",
            WaitReason::Rate { .. } => "rate",
            WaitReason::PartitionRate { .. } => "partition_rate",
            WaitReason::NoWorker => "no_worker",
            WaitReason::NoWorkerKnowsTask => "no_worker_knows_task",
            WaitReason::WorkersDrained { .. } => "workers_drained",
            WaitReason::WorkersBusy { .. } => "workers_busy",
            WaitReason::ClockAhead { .. } => "clock_ahead",
            WaitReason::NextClaim => "next_claim",
        }
    }

    /// When it ends, where that is known.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            WaitReason::NotDue { until, .. }
            | WaitReason::Rate { until }
            | WaitReason::PartitionRate { until } => Some(*until),
            _ => None,
        }
    }

    /// Since when it is so, where that is known.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        match self {
            WaitReason::KeyRuns { since, .. }
            | WaitReason::QueuePaused { since, .. }
            | WaitReason::TaskPaused { since, .. } => *since,
            _ => None,
        }
    }

    /// Who made it so, where that is known: the caller of a pause.
    #[must_use]
    pub fn by(&self) -> Option<&str> {
        match self {
            WaitReason::QueuePaused { by, .. } | WaitReason::TaskPaused { by, .. } => by.as_deref(),
            _ => None,
        }
    }

    /// The job that it waits for, where that is another one.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            WaitReason::KeyRuns { job, .. }
            | WaitReason::OlderWindow { job }
            | WaitReason::Turn { job } => Some(*job),
            _ => None,
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitReason::NotDue { until, because } => {
                write!(f, "it is due at {until}: {}", describe_reason(*because))
            }
            WaitReason::KeyRuns { job, since: Some(since) } => {
                write!(f, "job {job} of its key runs since {since}")
            }
            WaitReason::KeyRuns { job, since: None } => write!(f, "job {job} of its key runs"),
            WaitReason::OlderWindow { job } => {
                write!(f, "job {job}, an older window of its key, goes first")
            }
            WaitReason::QueuePaused { since, by } => {
                write_pause(f, "its queue", *since, by.as_deref())
            }
            WaitReason::QueueDeleted => {
                f.write_str("its queue was deleted: set it again to let it start")
            }
            WaitReason::TaskPaused { since, by } => {
                write_pause(f, "its task", *since, by.as_deref())
            }
            WaitReason::QueueFull { running, limit } => {
                write!(f, "its queue runs {}, and {limit} is the limit", attempts(*running))
            }
            WaitReason::PartitionFull { running, limit } => {
                write!(f, "its partition runs {}, and {limit} is the limit", attempts(*running))
            }
            WaitReason::Turn { job } => {
                write!(f, "job {job} of its partition goes first: their order is strict")
            }
            WaitReason::Rate { until } => {
                write!(f, "the rate of its queue lets the next one start at {until}")
            }
            WaitReason::PartitionRate { until } => {
                write!(f, "the rate of its partition lets the next one start at {until}")
            }
            WaitReason::NoWorker => f.write_str("no worker takes jobs from its queue"),
            WaitReason::NoWorkerKnowsTask => f.write_str("no worker of its queue knows its task"),
            WaitReason::WorkersDrained { workers: 1 } => {
                f.write_str("the one worker that takes its task is drained: resume it")
            }
            WaitReason::WorkersDrained { workers } => {
                write!(f, "all {workers} workers that take its task are drained: resume one")
            }
            WaitReason::WorkersBusy { busy, slots } => {
                write!(f, "the workers of its queue run {} in {slots} slots", attempts(*busy))
            }
            WaitReason::ClockAhead { by } => {
                write!(f, "the store's clock stands still: it is {by:?} ahead (`quell doctor`)")
            }
            WaitReason::NextClaim => f.write_str("nothing holds it: the next claim takes it"),
        }
    }
}

fn attempts(count: u64) -> String {
    format!("{count} {}", if count == 1 { "attempt" } else { "attempts" })
}

fn write_pause(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    since: Option<Timestamp>,
    by: Option<&str>,
) -> fmt::Result {
    write!(f, "{what} is paused")?;
    if let Some(since) = since {
        write!(f, " since {since}")?;
    }
    by.map_or(Ok(()), |by| write!(f, " by {by}"))
}

/// Why a job has not started yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The store's time of the answer.
    pub now: Timestamp,
    /// All that it waits for; one at least.
    pub reasons: Vec<WaitReason>,
}

impl Waiting {
    /// When it starts, where all that it waits for ends at a known time. A free worker is taken for
    /// granted.
    #[must_use]
    pub fn starts_at(&self) -> Option<Timestamp> {
        let ends = self.reasons.iter().map(|reason| match reason {
            WaitReason::NextClaim => Some(self.now),
            reason => reason.until(),
        });
        ends.collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

/// How late a job started after it was due.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Late {
    /// How much.
    pub by: Duration,
    /// The job of its key that ran until then, if that is why. Most limits, pauses and busy workers are not
    /// on record.
    pub after: Option<JobId>,
    /// The job of its partition that ran until then, if that is why: the queue limits what runs in one.
    pub after_in_partition: Option<JobId>,
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after it was due", self.by)?;
        match (self.after, self.after_in_partition) {
            (Some(job), _) => write!(f, ": job {job} of its key ran until then"),
            (None, Some(job)) => {
                write!(f, ": its partition was full, and job {job} of it ran until then")
            }
            (None, None) => f.write_str(": no worker was free, or a limit or a pause held it"),
        }
    }
}

impl Quell {
    /// Why a job has not started yet, and when it will (R15); none for one that does not wait.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::job::WaitReason;
    /// use quell::{Batch, Payload, Policy, Quell, TaskName};
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let trigger = Policy::default().trigger(TaskName::new("mail")?, Payload::encode(&1)?, None)?;
    /// let receipts = quell.enqueue(Batch::one(trigger)).await?;
    /// let job = quell.job(receipts[0].job().unwrap()).await?.unwrap();
    /// let waiting = quell.why_waiting(&job).await?.unwrap();
    /// assert_eq!(waiting.reasons, [WaitReason::NoWorker]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the store.
    pub async fn why_waiting(&self, job: &Job) -> Result<Option<Waiting>> {
        if job.state != JobState::Scheduled {
            return Ok(None);
        }
        let tasks = [job.task.clone()];
        let next = self.store().next_due(self.clock().store_time(), &job.queue, &tasks).await?;
        let now = next.now;
        let mut reasons = Vec::new();
        if job.window.due_at > now {
            let (until, because) = (job.window.due_at, job.window.reason);
            reasons.push(WaitReason::NotDue { until, because });
        }
        if job.waits {
            reasons.extend(self.what_its_key_does(job).await?);
        }
        let queues = self.store().queues().await?;
        let known = queues.into_iter().find(|queue| queue.name == job.queue);
        let settings = known.map(|queue| queue.settings);
        match &settings {
            None => reasons.push(WaitReason::QueueDeleted),
            Some(settings) if settings.paused => {
                let (since, by) = (settings.paused_since, settings.paused_by.clone());
                reasons.push(WaitReason::QueuePaused { since, by });
            }
            Some(_) => {}
        }
        let infos = self.store().tasks().await?;
        let of_task = infos.into_iter().find(|info| info.name == job.task);
        if let Some(task) = of_task.map(|info| info.settings).filter(|task| task.paused) {
            let (since, by) = (task.paused_since, task.paused_by);
            reasons.push(WaitReason::TaskPaused { since, by });
        }
        if let Some(by) = self.clock_ahead().await? {
            reasons.push(WaitReason::ClockAhead { by });
        }
        let is_ready = job.window.due_at <= now && !job.waits;
        if let Some(settings) = settings.filter(|settings| is_ready && !settings.paused) {
            reasons.extend(self.limits_of(job, &settings).await?);
            // What is due of its task may start later only by a rate, but for a full partition.
            let is_full = reasons.iter().any(|one| matches!(one, WaitReason::PartitionFull { .. }));
            let next = NextDue { due: next.due.filter(|_| !is_full), ..next };
            reasons.extend(self.rates_of(job, &settings, &next).await?);
        }
        reasons.extend(self.workers_of(job, is_ready && reasons.is_empty()).await?);
        if reasons.is_empty() {
            reasons.push(WaitReason::NextClaim);
        }
        Ok(Some(Waiting { now, reasons }))
    }

    /// How late a job's last attempt started after it was due (R15); none where it has not started
    /// since, or was in time.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn how_late(&self, job: &Job) -> Result<Option<Late>> {
        let due = job.window.due_at;
        let Some(started) = job.started_at.filter(|at| *at > due) else { return Ok(None) };
        // A job that goes back is due again, later.
        if job.state == JobState::Scheduled {
            return Ok(None);
        }
        let by = started.since(due);
        let ran_until = |other: &&Job| {
            other.ended_at.is_some_and(|ended| due < ended && ended <= started)
                && other.started_at.is_some()
        };
        let last_of = |others: &[Job]| {
            let last = others.iter().filter(ran_until).max_by_key(|other| other.ended_at);
            last.map(|other| other.id)
        };
        let after = last_of(&self.of_its_key(job, None).await?);
        let mut late = Late { by, after, after_in_partition: None };
        if after.is_none() && job.partition.is_some() {
            late.after_in_partition = last_of(&self.of_its_partition(job).await?);
        }
        Ok(Some(late))
    }

    /// The other jobs of a job's partition that have ended, among the newest of its queue and those that were
    /// accepted just before it; none where nothing limits what runs in one.
    async fn of_its_partition(&self, job: &Job) -> Result<Vec<Job>> {
        let queues = self.store().queues().await?;
        let known = queues.into_iter().find(|queue| queue.name == job.queue);
        if !known.is_some_and(|queue| queue.settings.limits_partitions()) {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for before in [None, Some(job.id)] {
            let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
            found.extend(self.store().jobs(&filter.queue(job.queue.clone())).await?);
        }
        found.retain(|other| other.partition == job.partition && other.id != job.id);
        Ok(found)
    }

    /// The other jobs of a job's key, the newest ones.
    async fn of_its_key(&self, job: &Job, state: Option<JobState>) -> Result<Vec<Job>> {
        let Some(key) = job.key.clone() else { return Ok(Vec::new()) };
        let limit = JobFilter::MAX_PAGE;
        let task = Some(job.task.clone());
        let filter = JobFilter { task, key: Some(key), state, limit, ..JobFilter::default() };
        let mut jobs = self.store().jobs(&filter).await?;
        jobs.retain(|other| other.id != job.id);
        Ok(jobs)
    }

    async fn what_its_key_does(&self, job: &Job) -> Result<Option<WaitReason>> {
        let running = self.of_its_key(job, Some(JobState::Running)).await?;
        if let Some(running) = running.first() {
            return Ok(Some(WaitReason::KeyRuns { job: running.id, since: running.started_at }));
        }
        let older = self.of_its_key(job, Some(JobState::Scheduled)).await?;
        let first = older.iter().map(|other| other.id).filter(|id| *id < job.id).min();
        Ok(first.map(|job| WaitReason::OlderWindow { job }))
    }

    async fn clock_ahead(&self) -> Result<Option<Duration>> {
        match self.store().checkup().await {
            Ok(checkup) => Ok(Some(checkup.clock.ahead()).filter(|ahead| *ahead > AHEAD)),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Slots of the queue and the partition that are all taken.
    async fn limits_of(&self, job: &Job, settings: &QueueSettings) -> Result<Vec<WaitReason>> {
        let mut reasons = Vec::new();
        if let Some(limit) = settings.concurrency {
            let counts = self.store().counts().await?;
            let runs = counts.iter().filter(|one| one.queue == job.queue);
            let runs = runs.filter(|one| one.state == JobState::Running);
            let running: u64 = runs.map(|one| one.jobs).sum();
            if running >= u64::from(limit) {
                reasons.push(WaitReason::QueueFull { running, limit });
            }
        }
        if let (Some(limit), Some(partition)) = (settings.partition_concurrency, &job.partition) {
            let running = self.running_in(job, partition).await?;
            if running >= u64::from(limit) {
                reasons.push(WaitReason::PartitionFull { running, limit });
            }
        }
        if let (true, Some(partition)) = (settings.is_strict(), &job.partition) {
            reasons.extend(self.before_it(job, partition).await?);
        }
        Ok(reasons)
    }

    /// A job of its partition that goes before it, among the newest of its queue and those that were
    /// accepted just before it.
    async fn before_it(&self, job: &Job, partition: &Key) -> Result<Option<WaitReason>> {
        let Some(mine) = job.turn() else { return Ok(None) };
        let mut waiting = self.some_of(&job.queue, JobState::Scheduled, Some(job.id)).await?;
        waiting.extend(self.some_of(&job.queue, JobState::Scheduled, None).await?);
        let of_partition = waiting.iter().filter(|one| one.partition.as_ref() == Some(partition));
        let first = of_partition.filter_map(Job::turn).min().filter(|first| *first < mine);
        Ok(first.map(|first| WaitReason::Turn { job: first.job() }))
    }

    async fn running_in(&self, job: &Job, partition: &Key) -> Result<u64> {
        let running = self.some_of(&job.queue, JobState::Running, None).await?;
        let of_partition = running.iter().filter(|one| one.partition.as_ref() == Some(partition));
        Ok(u64::try_from(of_partition.count()).unwrap_or(u64::MAX))
    }

    /// Jobs of a queue in a state, the newest [`MOST_OF_QUEUE`] before this one.
    pub(super) async fn some_of(
        &self,
        queue: &QueueName,
        state: JobState,
        before: Option<JobId>,
    ) -> Result<Vec<Job>> {
        let (mut jobs, mut before) = (Vec::new(), before);
        while jobs.len() < MOST_OF_QUEUE {
            let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
            let filter = filter.queue(queue.clone()).state(state);
            let page = self.store().jobs(&filter).await?;
            let is_last = page.len() < JobFilter::MAX_PAGE;
            before = page.last().map(|last| last.id);
            jobs.extend(page);
            if is_last {
                break;
            }
        }
        Ok(jobs)
    }

    /// Whether there are workers for the job's queue and task; and, where nothing else holds the job, whether
    /// one of them has a free slot.
    async fn workers_of(&self, job: &Job, is_ready: bool) -> Result<Option<WaitReason>> {
        let workers = self.store().workers(self.clock().store_time()).await?;
        let seen = workers.rows.iter().filter(|row| !row.is_unseen(workers.now));
        let of_queue: Vec<_> = seen.filter(|row| row.may_take_from(&job.queue)).collect();
        let (mut busy, mut slots, mut drained) = (0_u64, 0_u64, 0_u64);
        for row in of_queue.iter().filter(|row| row.may_know(&job.task)) {
            if row.drained.is_some() {
                drained = drained.saturating_add(1);
                continue;
            }
            busy = busy.saturating_add(u64::from(row.busy));
            slots = slots.saturating_add(u64::from(row.slots));
        }
        // On a store with a timer, workers without work are not listed (R34).
        let may_rest = self.store().capabilities().timed;
        Ok(match slots {
            0 if drained > 0 && !may_rest => Some(WaitReason::WorkersDrained { workers: drained }),
            0 if may_rest => None,
            0 if of_queue.is_empty() => Some(WaitReason::NoWorker),
            0 => Some(WaitReason::NoWorkerKnowsTask),
            slots if is_ready && busy >= slots => Some(WaitReason::WorkersBusy { busy, slots }),
            _ => None,
        })
    }
}
