//! What a server has seen lately, for pages.

use std::time::Duration;

use quell::alert::AlertName;
use quell::{JobId, Key, QueueName, TaskName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Caller;
use crate::recent::{Bar, KeyTicks, Tally};

/// A server at one moment, and its last hour and week.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// The store's time.
    pub at: String,
    /// When this server began to count: triggers and runs are those that it saw since then.
    pub since: String,
    /// When something was last left out of those numbers, as this server counts 1,000 tasks and queues at most, and
    /// 64 queues of one task; null where all is counted.
    pub left_out: Option<String>,
    /// What needs a look, the gravest first; empty where all is well.
    pub troubles: Vec<Issue>,
    /// The last 60 minutes.
    pub hour: Numbers,
    /// The last 168 hours.
    pub week: Numbers,
    /// What the store has now.
    pub now: Present,
    /// Tasks by what they did in the last hour, those that ran most first, at most 50.
    pub tasks: Vec<TaskActivity>,
    /// How many tasks are left out.
    pub more_tasks: usize,
    /// Moments that someone marked, such as deploys, the newest first.
    pub marks: Vec<Mark>,
}

/// Something that needs a look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Issue {
    /// `alert`, `store`, `workers`, `late`, `dead`, `failing`, `unreadable` or `paused`.
    pub kind: String,
    /// What is wrong, in words.
    pub text: String,
    /// The task that it is about, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskName>,
    /// The queue that it is about, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
}

impl Issue {
    pub(crate) fn new(kind: &str, text: String) -> Self {
        Issue { kind: kind.to_owned(), text, task: None, queue: None }
    }
}

/// Counts of a span of time.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Numbers {
    /// Triggers that were accepted.
    pub triggers: u64,
    /// How many of them joined a window.
    pub joined: u64,
    /// Triggers whose dedup or idempotency key was taken.
    pub duplicates: u64,
    /// Attempts that started.
    pub starts: u64,
    /// Jobs that started for the first time.
    pub runs: u64,
    /// Runs that were saved: a job that covers 5 triggers saves 4.
    pub saved: u64,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Jobs that died.
    pub dead: u64,
    /// From due to start: half of the starts were less late, in milliseconds.
    pub late_p50_ms: Option<f64>,
    /// The same of 99 in 100.
    pub late_p99_ms: Option<f64>,
}

impl From<&Tally> for Numbers {
    fn from(tally: &Tally) -> Self {
        Numbers {
            triggers: tally.triggers,
            joined: tally.joined,
            duplicates: tally.duplicates,
            starts: tally.starts,
            runs: tally.runs,
            saved: tally.saved(),
            succeeded: tally.succeeded,
            failed: tally.failed,
            dead: tally.dead,
            late_p50_ms: tally.late(0.5).map(millis),
            late_p99_ms: tally.late(0.99).map(millis),
        }
    }
}

/// A length in milliseconds, with one digit after the point.
pub(super) fn millis(length: Duration) -> f64 {
    (length.as_secs_f64() * 10_000.0).round() / 10.0
}

/// What the store has now.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Present {
    /// Jobs that wait.
    pub waiting: u64,
    /// Jobs that run.
    pub running: u64,
    /// Dead jobs.
    pub dead: u64,
    /// Windows that are open, among the 200 newest jobs that wait.
    pub windows: u64,
    /// Whether those are all jobs that wait.
    pub windows_complete: bool,
    /// When the first job that waits is, or was, due.
    pub first_due: Option<String>,
    /// Jobs that were set aside as unreadable; left out for a token that is limited to tasks or queues, as are the
    /// members below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<u64>,
    /// Workers that were seen within three heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u64>,
    /// How many of them operators drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<u64>,
    /// Their slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// The alerts that are raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub alerts: Option<Vec<AlertName>>,
}

/// What one task does in one queue.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskActivity {
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// Its queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Its jobs that wait.
    pub waiting: u64,
    /// Those that run.
    pub running: u64,
    /// Those that are dead.
    pub dead: u64,
    /// When the first of those that wait is, or was, due.
    pub first_due: Option<String>,
    /// The last 60 minutes.
    pub hour: Numbers,
    /// The last 168 hours.
    pub week: Numbers,
    /// Triggers, runs and failures of each of the last 60 minutes, the oldest first. In events but the first, of
    /// the last two minutes only.
    pub minutes: Vec<[u64; 3]>,
}

/// A moment that someone marked.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Mark {
    /// Such as `deploy 1.4.2`.
    pub name: String,
    /// When.
    pub at: String,
    /// Who marked it.
    pub by: Caller,
}

/// The marks of a server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Marks {
    /// The newest first, at most 100.
    pub marks: Vec<Mark>,
}

/// A span of one task, small enough to draw. Times of triggers, windows and runs are milliseconds from `from`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Timeline {
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// The debounce key, if one was asked for.
    #[schema(value_type = Option<String>)]
    pub key: Option<Key>,
    /// Where the span begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// The store's time.
    pub now: String,
    /// The length of a step, in milliseconds.
    pub step_ms: f64,
    /// From when on this server has all triggers that it accepted, and all attempts that it started.
    pub complete_from: String,
    /// How many triggers were accepted.
    pub triggers: u64,
    /// Pairs of a step and how many triggers it has.
    pub ticks: Vec<(usize, u64)>,
    /// The keys with the most triggers, at most 12; none where one was asked for.
    pub keys: Vec<KeyTicksOf>,
    /// How many keys had triggers.
    pub distinct_keys: usize,
    /// Moments of the span that someone marked, the newest first.
    pub marks: Vec<TimelineMark>,
    /// Windows that wait now: the newest 100 that the caller sees.
    pub windows: Vec<OpenWindow>,
    /// How many attempts overlap the span.
    pub runs: u64,
    /// The attempts, where they are at most 400.
    pub bars: Vec<Run>,
    /// Where there are more: pairs of a step and how many attempts started in it.
    pub starts: Vec<(usize, u64)>,
    /// The same of those that failed.
    pub failures: Vec<(usize, u64)>,
}

/// A mark as it is drawn.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TimelineMark {
    /// When.
    pub at: f64,
    /// Such as `deploy 1.4.2`.
    pub name: String,
}

/// The triggers of one key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyTicksOf {
    /// The key.
    #[schema(value_type = String)]
    pub key: Key,
    /// How many triggers it had.
    pub triggers: u64,
    /// Pairs of a step and how many triggers it has.
    pub ticks: Vec<(usize, u64)>,
    /// Where `bars` has no attempts, as there are too many: pairs of a step and how many started in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<(usize, u64)>,
    /// The same of those that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<(usize, u64)>,
}

impl From<KeyTicks> for KeyTicksOf {
    fn from(ticks: KeyTicks) -> Self {
        let KeyTicks { key, triggers, ticks, starts: (starts, failures) } = ticks;
        KeyTicksOf { key, triggers, ticks, starts, failures }
    }
}

/// A window that waits.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OpenWindow {
    /// Its job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Its key.
    #[schema(value_type = Option<String>)]
    pub key: Option<Key>,
    /// How many triggers it has.
    pub triggers: u64,
    /// Its first trigger.
    pub opened: f64,
    /// When it is due.
    pub due: f64,
    /// No trigger moves it past this.
    pub bound: Option<f64>,
}

/// An attempt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Its job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Its key.
    #[schema(value_type = Option<String>)]
    pub key: Option<Key>,
    /// The job's first trigger.
    pub opened: f64,
    /// When it was due.
    pub due: f64,
    /// When it started.
    pub started: f64,
    /// When it ended; null while it runs.
    pub ended: Option<f64>,
    /// How it ended, such as `succeeded` or `failed`; `dead` where its job died by it, `absorbed` where a newer
    /// window took it in, `lost` where another process knows.
    pub outcome: Option<String>,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// How many triggers it covers.
    pub triggers: u64,
}

impl Run {
    /// As it is drawn; `at` makes milliseconds of a time.
    pub(crate) fn new(bar: Bar, at: impl Fn(quell::Timestamp) -> f64) -> Self {
        let run = bar.run;
        let outcome = match run.outcome {
            _ if run.died => Some("dead"),
            _ if run.absorbed_by.is_some() => Some("absorbed"),
            _ if run.lost => Some("lost"),
            outcome => outcome.map(quell::job::AttemptOutcome::name),
        };
        Run {
            job: run.job,
            key: bar.key,
            opened: at(run.opened),
            due: at(run.due),
            started: at(run.started),
            ended: run.ended.map(at),
            outcome: outcome.map(str::to_owned),
            attempt: run.attempt,
            triggers: run.triggers,
        }
    }
}
