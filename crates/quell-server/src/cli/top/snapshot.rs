//! What `quell top` shows of one moment, and the requests that read it.
//!
//! Invariant: a reading is at most seven requests, however many jobs there are. Causes of death are read again
//! only where the number of dead jobs has changed, as their store reads up to 10,000 jobs for them.

use std::time::{Duration, Instant};

use quell::JobState;
use quell::job::JobFilter;
use serde::Serialize;

use crate::cli::live::Live;
use crate::view::{Alert, Causes, Counts, Job, Jobs, Queue, Worker};

/// The most rows of each list of jobs, and of causes.
const ROWS: usize = 50;
/// How long causes are shown at least before they are read again.
const CAUSES_FOR: Duration = Duration::from_secs(5);

/// One moment of a server or a store.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Snapshot {
    /// When it was read, on this host's clock.
    pub(super) at: String,
    /// Where.
    pub(super) source: String,
    pub(super) queues: Vec<QueueNow>,
    /// None where the token does not permit them.
    pub(super) windows: Option<Windows>,
    pub(super) running: Running,
    pub(super) dead: Dead,
    /// None where the token does not permit them.
    pub(super) workers: Option<Vec<Worker>>,
    /// None where the token does not permit them.
    pub(super) alerts: Option<Vec<Alert>>,
}

/// A queue with its jobs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct QueueNow {
    #[serde(flatten)]
    pub(super) queue: Queue,
    pub(super) waiting: u64,
    pub(super) running: u64,
    pub(super) dead: u64,
}

/// Windows that wait: jobs with a debounce key.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Windows {
    /// How many of the jobs that were read are windows.
    pub(super) open: usize,
    /// Whether those are all that wait. Otherwise they are the newest.
    pub(super) complete: bool,
    /// Those that are due next.
    pub(super) next_due: Vec<Job>,
}

/// Jobs that run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Running {
    pub(super) total: u64,
    /// The newest; none where the token does not permit them.
    pub(super) jobs: Option<Vec<Job>>,
}

/// Dead jobs by cause.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Dead {
    pub(super) total: u64,
    /// None where the token does not permit them.
    pub(super) causes: Option<Causes>,
}

/// Reads snapshots, one after the other.
#[derive(Debug)]
pub(super) struct Reader {
    live: Live,
    source: String,
    causes: Option<(Instant, u64, Option<Causes>)>,
}

impl Reader {
    pub(super) fn new(live: Live, source: String) -> Self {
        Reader { live, source, causes: None }
    }

    pub(super) async fn close(self) -> anyhow::Result<()> {
        self.live.close().await
    }

    /// Reads what there is now.
    pub(super) async fn read(&mut self) -> anyhow::Result<Snapshot> {
        let at = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let counts = self.live.counts().await?;
        let queues = self.live.queues().await?;
        let newest = JobFilter::default().limit(JobFilter::MAX_PAGE);
        let running = self.live.permitted_jobs(&newest.clone().state(JobState::Running)).await?;
        let waiting = self.live.permitted_jobs(&newest.state(JobState::Scheduled)).await?;
        let workers = self.live.workers().await?.map(|answer| answer.workers);
        let alerts = self.live.alerts().await?.map(|answer| answer.alerts);
        let dead = total(&counts, JobState::Dead);
        let causes = self.causes(dead).await?;
        let jobs = running.map(|page| page.jobs.into_iter().take(ROWS).collect());
        Ok(Snapshot {
            at,
            source: self.source.clone(),
            queues: queues.queues.into_iter().map(|queue| with_counts(queue, &counts)).collect(),
            windows: waiting.map(windows),
            running: Running { total: total(&counts, JobState::Running), jobs },
            dead: Dead { total: dead, causes },
            workers,
            alerts,
        })
    }

    async fn causes(&mut self, dead: u64) -> anyhow::Result<Option<Causes>> {
        if let Some((read, of, causes)) = &self.causes
            && (*of == dead || read.elapsed() < CAUSES_FOR)
        {
            return Ok(causes.clone());
        }
        let causes = self.live.causes(ROWS).await?;
        self.causes = Some((Instant::now(), dead, causes.clone()));
        Ok(causes)
    }
}

fn total(counts: &Counts, state: JobState) -> u64 {
    counts.counts.iter().filter(|count| count.state == state).map(|count| count.jobs).sum()
}

fn with_counts(queue: Queue, counts: &Counts) -> QueueNow {
    let of = |state: JobState| {
        let own = counts.counts.iter().filter(|count| count.queue == queue.name);
        own.filter(|count| count.state == state).map(|count| count.jobs).sum()
    };
    let [waiting, running, dead] = [JobState::Scheduled, JobState::Running, JobState::Dead].map(of);
    QueueNow { queue, waiting, running, dead }
}

fn windows(waiting: Jobs) -> Windows {
    let complete = waiting.next_before.is_none();
    let mut next_due: Vec<Job> = waiting.jobs.into_iter().filter(|job| job.key.is_some()).collect();
    let open = next_due.len();
    let due = |job: &Job| job.due_at.as_ref().and_then(|at| at.parse::<jiff::Timestamp>().ok());
    next_due.sort_by_key(due);
    next_due.truncate(ROWS);
    Windows { open, complete, next_due }
}
