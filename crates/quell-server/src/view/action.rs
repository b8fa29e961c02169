//! Bulk actions: what was asked for, by which caller, and how far each has come.

use quell::{JobId, JobState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::filter::FilterText;

/// What an action does to each job that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionKind {
    /// Cancels jobs that wait or run.
    Cancel,
    /// Makes jobs that wait due now.
    Run,
    /// Changes the priority of jobs that wait.
    Reprioritise,
    /// Runs dead jobs again.
    Redrive,
    /// Removes dead jobs.
    Discard,
}

impl ActionKind {
    /// The states of the jobs that it applies to.
    #[must_use]
    pub fn states(self) -> &'static [JobState] {
        match self {
            ActionKind::Cancel => &[JobState::Scheduled, JobState::Running],
            ActionKind::Run | ActionKind::Reprioritise => &[JobState::Scheduled],
            ActionKind::Redrive | ActionKind::Discard => &[JobState::Dead],
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ActionKind::Cancel => "cancel",
            ActionKind::Run => "run",
            ActionKind::Reprioritise => "reprioritise",
            ActionKind::Redrive => "redrive",
            ActionKind::Discard => "discard",
        }
    }
}

/// Where an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActionState {
    /// It goes on.
    Running,
    /// All jobs that matched had their turn.
    Done,
    /// A caller or the end of the server stopped it.
    Stopped,
    /// It gave up, because the store failed again and again.
    Failed,
}

impl ActionState {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ActionState::Running => "running",
            ActionState::Done => "done",
            ActionState::Stopped => "stopped",
            ActionState::Failed => "failed",
        }
    }
}

/// The caller of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Caller {
    /// Its address, or that of the proxy before it.
    pub peer: Option<String>,
    /// Whether it showed a token; false where the server has none.
    pub token: bool,
    /// The name of its token.
    pub name: Option<String>,
}

/// A job that could not be changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ActionError {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// What went wrong.
    pub message: String,
}

/// An action on all jobs that match a filter.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Action {
    /// Its name.
    pub name: String,
    /// Where it is shown.
    pub url: String,
    /// What it does.
    pub action: ActionKind,
    /// To which jobs.
    pub filter: FilterText,
    /// At most this many jobs a second.
    pub rate: Option<u32>,
    /// The priority that it sets.
    pub priority: Option<i16>,
    /// Why, for the log and the history.
    pub reason: Option<String>,
    /// Whether it only counts the jobs that match.
    pub dry_run: bool,
    /// Where it is.
    pub state: ActionState,
    /// How many jobs matched when it began; none where there are too many to count, or it has just begun.
    pub total: Option<u64>,
    /// How many jobs matched so far.
    pub matched: u64,
    /// How many were changed.
    pub done: u64,
    /// How many had moved on when their turn came.
    pub skipped: u64,
    /// How many could not be changed.
    pub failed: u64,
    /// The first of these failures, at most 10.
    pub errors: Vec<ActionError>,
    /// Why it gave up.
    pub error: Option<String>,
    /// When it began, on the server's clock.
    pub started_at: String,
    /// When it ended.
    pub ended_at: Option<String>,
    /// Who asked for it.
    pub by: Caller,
    /// Of a redrive that is shown alone: where the jobs are that it redrove last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<AfterRedrive>,
}

/// Where jobs are that were redriven. One that joined a window counts as that window's job does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AfterRedrive {
    /// How many were looked at: those that were redriven last, at most 100.
    pub jobs: u64,
    /// How many wait.
    pub waiting: u64,
    /// How many run.
    pub running: u64,
    /// How many succeeded.
    pub succeeded: u64,
    /// How many died again.
    pub dead: u64,
    /// How many were cancelled, removed or set aside.
    pub gone: u64,
}

impl AfterRedrive {
    /// Counts a job by its state; none where nothing is known of it any more.
    pub fn count(&mut self, state: Option<JobState>) {
        let of_state = match state {
            Some(JobState::Scheduled) => &mut self.waiting,
            Some(JobState::Running) => &mut self.running,
            Some(JobState::Succeeded) => &mut self.succeeded,
            Some(JobState::Dead) => &mut self.dead,
            _ => &mut self.gone,
        };
        *of_state = of_state.saturating_add(1);
        self.jobs = self.jobs.saturating_add(1);
    }
}

/// The actions that this server keeps.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Actions {
    /// The newest first.
    pub actions: Vec<Action>,
}
