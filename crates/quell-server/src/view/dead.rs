//! Dead jobs, and jobs that were set aside (R25, R26).

use quell::dead::{
    BulkResult, DeadCause, DeadCauses, DeadExport, DeadFilter, DeadPlace, Imported as ImportedAs,
    UnreadableJob as Row, UnreadablePage,
};
use quell::{Job as JobRow, JobId, JobState, QueueName, TaskName};
use quell_core::SettledAs;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ImportedJob, Job, State};

/// A page of dead jobs, and how many match over all pages.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadJobs {
    /// The latest death first.
    pub jobs: Vec<Job>,
    /// How many match over all pages.
    pub matching: u64,
    /// Where the next page begins.
    pub next_before: Option<String>,
}

impl DeadJobs {
    /// The page of a filter; `whole` jobs have their payloads.
    #[must_use]
    pub fn new(jobs: &[JobRow], filter: &DeadFilter, matching: u64, whole: bool) -> Self {
        let show = if whole { Job::whole } else { Job::row };
        let is_full = jobs.len() == filter.page();
        let next = jobs.last().filter(|_| is_full).and_then(DeadPlace::of);
        DeadJobs {
            jobs: jobs.iter().map(show).collect(),
            matching,
            next_before: next.map(|place| place.to_string()),
        }
    }
}

/// A cause of death.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Cause {
    /// What errors of these jobs have in common.
    pub cause: String,
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// The queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// How many jobs.
    pub jobs: u64,
    /// The one that died last.
    #[schema(value_type = String)]
    pub example: JobId,
    /// When the first of them died.
    pub first_died_at: String,
    /// When the last of them died.
    pub last_died_at: String,
}

/// What the dead died of: the most frequent causes, and of how many.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Causes {
    /// The most frequent first.
    pub causes: Vec<Cause>,
    /// How many causes there are.
    pub distinct: usize,
    /// How many jobs.
    pub jobs: u64,
    /// Where the next page begins; null on the last.
    pub next_before: Option<String>,
}

impl Causes {
    /// The `limit` most frequent causes.
    #[must_use]
    pub fn new(found: &DeadCauses, limit: usize) -> Self {
        let cause = |one: &DeadCause| Cause {
            cause: one.cause.clone(),
            task: one.task.clone(),
            queue: one.queue.clone(),
            jobs: one.jobs,
            example: one.example,
            first_died_at: one.first_died_at.to_string(),
            last_died_at: one.last_died_at.to_string(),
        };
        Causes {
            causes: found.causes.iter().take(limit).map(cause).collect(),
            distinct: found.causes.len(),
            jobs: found.jobs,
            next_before: found.next.map(|place| place.to_string()),
        }
    }
}

/// A page of an export.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Exports {
    /// The jobs, each with its whole record.
    #[schema(value_type = Vec<Object>)]
    pub exports: Vec<DeadExport>,
    /// Where the next page begins; null on the last.
    pub next_before: Option<String>,
}

/// The result of an import.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// Those that came in.
    pub imported: u64,
    /// Those that were here before.
    pub known: u64,
    /// What each became, in the order of the request.
    #[schema(value_type = Vec<ImportedJob>)]
    pub jobs: Vec<ImportedAs>,
}

impl Imported {
    /// Counts what was imported.
    #[must_use]
    pub fn new(jobs: Vec<ImportedAs>) -> Self {
        let known = jobs.iter().filter(|one| one.known).count() as u64;
        Imported { imported: jobs.len() as u64 - known, known, jobs }
    }
}

/// The result of one page of a redrive or a discard.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Swept {
    /// How many run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redriven: Option<u64>,
    /// How many are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded: Option<u64>,
    /// How many were not dead any more.
    pub skipped: u64,
    /// How many could not be changed; they are still dead.
    pub failed: u64,
    /// Where the next page begins; null on the last.
    pub next_before: Option<String>,
}

impl Swept {
    /// How many were changed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.redriven.or(self.discarded).unwrap_or_default()
    }

    /// That of a redrive.
    #[must_use]
    pub fn redriven(page: &BulkResult) -> Self {
        Swept { redriven: Some(page.done), ..Swept::of(page) }
    }

    /// That of a discard.
    #[must_use]
    pub fn discarded(page: &BulkResult) -> Self {
        Swept { discarded: Some(page.done), ..Swept::of(page) }
    }

    fn of(page: &BulkResult) -> Self {
        Swept {
            redriven: None,
            discarded: None,
            skipped: page.skipped,
            failed: page.failed,
            next_before: page.next.map(|place| place.to_string()),
        }
    }
}

/// What a redriven job became.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Redriven {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// What it became.
    #[schema(value_type = Object)]
    pub became: SettledAs,
}

/// A job whose row cannot be decoded.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UnreadableJob {
    /// Its number.
    #[schema(value_type = String)]
    pub id: JobId,
    /// The task.
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskName>,
    /// The queue.
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// Its state before.
    #[schema(value_type = Option<State>)]
    pub was: Option<JobState>,
    /// When it was set aside.
    pub set_aside_at: String,
    /// Why its row cannot be decoded.
    pub reason: String,
}

/// A page of them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Unreadable {
    /// The newest first.
    pub jobs: Vec<UnreadableJob>,
    /// Where the next page begins; null on the last.
    #[schema(value_type = Option<String>)]
    pub next_before: Option<JobId>,
}

impl Unreadable {
    /// The page of a request.
    #[must_use]
    pub fn new(jobs: &[Row], page: &UnreadablePage) -> Self {
        let next = jobs.last().filter(|_| jobs.len() == page.size()).map(|job| job.id);
        let job = |job: &Row| UnreadableJob {
            id: job.id,
            task: job.task.clone(),
            queue: job.queue.clone(),
            was: job.was,
            set_aside_at: job.set_aside_at.to_string(),
            reason: job.reason.clone(),
        };
        Unreadable { jobs: jobs.iter().map(job).collect(), next_before: next }
    }
}
