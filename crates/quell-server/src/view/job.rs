//! Jobs, and what happened to them.

use std::time::Duration;

use quell::effect::Effect as EffectRow;
use quell::job::{
    ExplainTarget, Explanation as Found, JobPage, WaitReason, Waiting, describe_reason,
};
use quell::trigger::{TraceContext, TriggerId};
use quell::{
    Job as JobRow, JobId, JobResult, JobState, Key, Payload, Quell, QueueName, TaskName, Timestamp,
};
use quell_core::attempt::{Attempt as AttemptRow, AttemptOutcome};
use quell_core::schedule::TickedBy;
use quell_core::{EffectName, LeaseToken, ScheduleName, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Document, Outcome, Progress, State, TickCause, Trace, there};
use crate::redact::{Rules, Texts};

/// A start that is less late than this is in time.
const LATE: Duration = Duration::from_secs(1);
/// The most of an error that a row of a list has, in bytes.
const LISTED_ERROR: usize = 1 << 10;

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number.
    #[schema(value_type = String)]
    pub id: JobId,
    /// Its task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// Its queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Its partition of the queue.
    #[schema(value_type = Option<String>)]
    pub partition: Option<Key>,
    /// Its debounce key.
    #[schema(value_type = Option<String>)]
    pub key: Option<Key>,
    /// Its state.
    #[schema(value_type = State)]
    pub state: JobState,
    /// Higher runs first.
    pub priority: i16,
    /// Left out of lists that did not ask for it.
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Document, required = false)]
    pub payload: Option<Document>,
    /// How many triggers it covers.
    pub triggers: u64,
    /// How many triggers it counted that a leading edge did not run (R13).
    pub not_run: u64,
    /// Its first trigger.
    pub first_at: Option<String>,
    /// Its last trigger.
    pub last_at: Option<String>,
    /// When it is, or was, due.
    pub due_at: Option<String>,
    /// Why it is due then.
    pub due_because: String,
    /// It runs no earlier: a delay or a backoff.
    pub not_before: Option<String>,
    /// Whether another job of its key goes first.
    pub waits_for_its_key: bool,
    /// How many attempts it had.
    pub attempt: u32,
    /// How many of them failed in a row.
    pub failures: u32,
    /// How often it started, expired leases included.
    pub starts: u64,
    /// How many of its leases expired in a crash.
    pub lapses: u32,
    /// The worker that runs it, or ran it last.
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerId>,
    /// When its last attempt started.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// The window that took it in.
    #[schema(value_type = Option<String>)]
    pub absorbed_by: Option<JobId>,
    /// What went wrong last; none of a job that succeeded.
    pub error: Option<String>,
    /// Left out of lists that did not ask for it; null where there is none.
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Document, required = false)]
    pub output: Option<Option<Document>>,
    /// The trace contexts of its first triggers (R42).
    #[schema(value_type = Vec<Trace>)]
    pub traces: Vec<TraceContext>,
}

impl Job {
    /// All of a job.
    #[must_use]
    pub fn whole(job: &JobRow) -> Self {
        Job {
            payload: Some(Document::from(&job.payload)),
            output: Some(job.output.as_ref().map(Document::from)),
            error: last_error(job.state, job.error.as_deref()).map(str::to_owned),
            ..Job::row(job)
        }
    }

    /// A row of a list: without payload and output, and with the beginning of a long error. A page of jobs
    /// with large payloads stays small.
    #[must_use]
    pub fn row(job: &JobRow) -> Self {
        let moment = |time: Timestamp| (time != Timestamp::MIN).then(|| time.to_string());
        let window = &job.window;
        Job {
            id: job.id,
            task: job.task.clone(),
            queue: job.queue.clone(),
            partition: job.partition.clone(),
            key: job.key.clone(),
            state: job.state,
            priority: job.priority,
            payload: None,
            triggers: window.triggers,
            not_run: job.suppressed,
            first_at: moment(window.first_at),
            last_at: moment(window.last_at),
            due_at: moment(window.due_at),
            due_because: describe_reason(window.reason).to_owned(),
            not_before: moment(window.not_before),
            waits_for_its_key: job.waits,
            attempt: job.attempt,
            failures: job.failures,
            starts: job.starts(),
            lapses: job.crashes,
            worker: job.worker.clone(),
            started_at: job.started_at.and_then(moment),
            ended_at: job.ended_at.and_then(moment),
            absorbed_by: job.absorbed_by,
            error: last_error(job.state, job.error.as_deref()).map(beginning),
            output: None,
            traces: job.traces.iter().collect(),
        }
    }
}

/// The error that a job shows. One that succeeded after failures shows none; its attempts keep theirs.
fn last_error(state: JobState, error: Option<&str>) -> Option<&str> {
    error.filter(|_| state != JobState::Succeeded)
}

fn beginning(error: &str) -> String {
    let cut = error.get(..error.floor_char_boundary(LISTED_ERROR)).unwrap_or_default();
    if cut.len() == error.len() { error.to_owned() } else { format!("{cut}…") }
}

/// A page of jobs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Jobs {
    /// The newest first.
    pub jobs: Vec<Job>,
    /// Where the next page begins; null on the last.
    #[schema(value_type = Option<String>)]
    pub next_before: Option<JobId>,
}

impl Jobs {
    /// A page; `whole` jobs have their payloads and outputs.
    #[must_use]
    pub fn new(page: &JobPage, whole: bool) -> Self {
        let show = if whole { Job::whole } else { Job::row };
        Jobs { jobs: page.jobs.iter().map(show).collect(), next_before: page.next }
    }
}

/// How many jobs there are of a queue and task in a state.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Count {
    /// The queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// The state.
    #[schema(value_type = State)]
    pub state: JobState,
    /// How many.
    pub jobs: u64,
}

impl From<&quell::job::Counts> for Count {
    fn from(counts: &quell::job::Counts) -> Self {
        let quell::job::Counts { queue, task, state, jobs } = counts.clone();
        Count { queue, task, state, jobs }
    }
}

/// All counts.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// By queue, task and state; none is zero.
    pub counts: Vec<Count>,
}

/// The result of a job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResultOfJob {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Its state.
    #[schema(value_type = State)]
    pub state: JobState,
    /// Whether it has ended.
    pub ended: bool,
    /// What it put out.
    #[schema(value_type = Document, required = false)]
    pub output: Option<Document>,
    /// What went wrong last; none of a job that succeeded.
    pub error: Option<String>,
}

impl From<&JobResult> for ResultOfJob {
    fn from(result: &JobResult) -> Self {
        ResultOfJob {
            job: result.job,
            state: result.state,
            ended: result.is_ended(),
            output: result.output.as_ref().map(Document::from),
            error: last_error(result.state, result.error.as_deref()).map(str::to_owned),
        }
    }
}

/// One attempt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Its fencing token.
    #[schema(value_type = String)]
    pub token: LeaseToken,
    /// The worker that ran it.
    #[schema(value_type = String)]
    pub worker: WorkerId,
    /// When it started.
    pub started_at: String,
    /// When it ended.
    pub ended_at: Option<String>,
    /// How long it took.
    pub seconds: Option<f64>,
    /// How it ended.
    #[schema(value_type = Option<Outcome>)]
    pub outcome: Option<AttemptOutcome>,
    /// What went wrong.
    pub error: Option<String>,
    /// The last log lines of an attempt that did not fail, where its worker sent some to this server of
    /// late.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub log: Vec<String>,
}

impl From<&AttemptRow> for Attempt {
    fn from(attempt: &AttemptRow) -> Self {
        let lasted = |end: Timestamp| end.since(attempt.started_at).as_secs_f64();
        Attempt {
            token: attempt.token,
            worker: attempt.worker.clone(),
            started_at: attempt.started_at.to_string(),
            ended_at: attempt.ended_at.map(|time| time.to_string()),
            seconds: attempt.ended_at.map(lasted),
            outcome: attempt.outcome,
            error: attempt.error.clone(),
            log: Vec::new(),
        }
    }
}

/// A recorded effect; a long result is cut.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Effect {
    /// Its name.
    #[schema(value_type = String)]
    pub name: EffectName,
    /// The idempotency key that it has at the other service.
    #[schema(value_type = String)]
    pub key: Key,
    /// `done` or `intended`.
    pub state: String,
    /// When it was intended.
    pub begun_at: String,
    /// The start of the job that intended it.
    pub begun_by: u64,
    /// When it was done.
    pub done_at: Option<String>,
    /// The start of the job that did it.
    pub done_by: Option<u64>,
    /// The beginning of its result.
    pub result: Option<String>,
}

impl From<&EffectRow> for Effect {
    fn from(effect: &EffectRow) -> Self {
        let done = effect.done.as_ref();
        Effect {
            name: effect.name.clone(),
            key: effect.key.clone(),
            state: if done.is_some() { "done" } else { "intended" }.to_owned(),
            begun_at: effect.begun_at.to_string(),
            begun_by: effect.begun_by.starts(),
            done_at: done.map(|done| done.at.to_string()),
            done_by: done.map(|done| done.by.starts()),
            result: effect.shown_result().map(str::to_owned),
        }
    }
}

/// A tick of a schedule that made or joined a job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Tick {
    /// The schedule.
    #[schema(value_type = String)]
    pub schedule: ScheduleName,
    /// The planned time.
    pub tick: String,
    /// Why it fired.
    #[schema(value_type = TickCause)]
    pub by: TickedBy,
}

/// The job that an imported one was elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Origin {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Its first trigger.
    pub first_at: String,
}

/// Why a job has not started yet.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Waits {
    /// When it starts, where all that it waits for ends at a known time.
    pub starts_at: Option<String>,
    /// All that it waits for.
    pub reasons: Vec<WaitsFor>,
}

/// What a job waits for.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WaitsFor {
    /// `not_due`, `key_runs`, `older_window`, `queue_paused`, `queue_deleted`, `task_paused`,
    /// `queue_full`, `partition_full`, `turn`, `rate`, `partition_rate`, `no_worker`,
    /// `no_worker_knows_task`, `workers_drained`, `workers_busy`, `clock_ahead`, `task_undeclared`, `other_queue` or
    /// `next_claim`.
    pub kind: String,
    /// The same, for people.
    pub text: String,
    /// When it ends, where that is known.
    pub until: Option<String>,
    /// Since when it is so; left out where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub since: Option<String>,
    /// Who paused the queue or the task; left out where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub by: Option<String>,
    /// The job that it waits for.
    #[schema(value_type = Option<String>)]
    pub job: Option<JobId>,
}

impl From<&Waiting> for Waits {
    fn from(waiting: &Waiting) -> Self {
        let reason = |reason: &WaitReason| WaitsFor {
            kind: reason.name().to_owned(),
            text: reason.to_string(),
            until: reason.until().map(|until| until.to_string()),
            since: reason.since().map(|since| since.to_string()),
            by: reason.by().map(str::to_owned),
            job: reason.job(),
        };
        Waits {
            starts_at: waiting.starts_at().map(|at| at.to_string()),
            reasons: waiting.reasons.iter().map(reason).collect(),
        }
    }
}

/// Whether payloads, outputs and the results of effects are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// All of them.
    Shown,
    /// None of them.
    Hidden,
}

/// Puts a word in place of each payload and result, before any text is made of them.
fn hide(found: &mut Found) -> quell::Result<()> {
    let hidden = Payload::encode("hidden")?;
    if let Some(original) = &mut found.past.original {
        *original = hidden.clone();
    }
    let done = found.effects.iter_mut().filter_map(|effect| effect.done.as_mut());
    done.for_each(|done| done.result = hidden.clone());
    Ok(())
}

/// What happened to a job and why; `text` is the same for people.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The trigger that was asked for.
    #[schema(value_type = Option<String>)]
    pub trigger: Option<TriggerId>,
    /// The job.
    pub job: Job,
    /// Its attempts on record, the oldest first.
    pub attempts: Vec<Attempt>,
    /// How many more it had.
    pub attempts_dropped: u64,
    /// The jobs that it took in.
    #[schema(value_type = Vec<String>)]
    pub absorbed: Vec<JobId>,
    /// The open window of its key.
    #[schema(value_type = Option<String>)]
    pub open_window: Option<JobId>,
    /// The ticks of schedules that it covers.
    pub ticks: Vec<Tick>,
    /// Its payload before an edit (R26).
    #[schema(value_type = Document, required = false)]
    pub original_payload: Option<Document>,
    /// The job that it was elsewhere.
    pub imported_from: Option<Origin>,
    /// Its recorded effects.
    pub effects: Vec<Effect>,
    /// Why it has not started yet; left out where it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub waiting: Option<Waits>,
    /// How late its last attempt started, and why; left out where that was less than a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub late: Option<String>,
    /// What the worker that runs it has reported to this server, where workers pull its task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub running: Option<Progress>,
    /// The same, for people.
    pub text: String,
}

impl Explanation {
    /// What a store knows of a job, with what it waits for, or how late it was; none where nothing is
    /// known of it. What the rules hide is hidden; what comes with it hides it in other texts.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn of(
        quell: &Quell,
        target: &ExplainTarget,
        contents: Contents,
        rules: &Rules,
    ) -> quell::Result<Option<(Self, Texts)>> {
        let Some(mut found) = quell.explain(target).await? else { return Ok(None) };
        let texts = rules.explanation(&mut found);
        if contents == Contents::Hidden {
            hide(&mut found)?;
        }
        let mut shown = Explanation::from(&found);
        if contents == Contents::Hidden {
            (shown.job.payload, shown.job.output) = (None, None);
        }
        if let Some(waiting) = quell.why_waiting(&found.job).await? {
            shown.wait(Waits::from(&waiting));
        }
        let late = quell.how_late(&found.job).await?;
        if let Some(late) = late.filter(|late| late.by >= LATE) {
            shown.text.push_str(&format!("  late       it started {late}\n"));
            shown.late = Some(late.to_string());
        }
        Ok(Some((shown, texts)))
    }

    fn wait(&mut self, waits: Waits) {
        const WAITING: &str = "  waiting    ";
        let others = self.text.lines().filter(|line| !line.starts_with(WAITING));
        let reasons = waits.reasons.iter().map(|reason| format!("{WAITING}{}\n", reason.text));
        self.text = others.map(|line| format!("{line}\n")).chain(reasons).collect();
        self.waiting = Some(waits);
    }

    /// Adds the log of an attempt that has ended.
    pub fn log_of_attempt(&mut self, token: LeaseToken, log: Vec<String>) {
        let Some(attempt) = self.attempts.iter_mut().find(|one| one.token == token) else { return };
        let mut names = std::iter::once("log").chain(std::iter::repeat(""));
        for line in &log {
            self.text.push_str(&format!("  {:<10} {line}\n", names.next().unwrap_or_default()));
        }
        attempt.log = log;
    }

    /// Whether it names a lack of workers.
    #[must_use]
    pub fn lacks_workers(&self) -> bool {
        let names = [WaitReason::NoWorker.name(), WaitReason::NoWorkerKnowsTask.name()];
        let mut reasons = self.waiting.iter().flat_map(|waits| &waits.reasons);
        reasons.any(|reason| names.contains(&reason.kind.as_str()))
    }

    /// Adds what only this server knows that the job waits for.
    pub fn wait_for(&mut self, kind: &str, text: String) {
        let Some(mut waits) = self.waiting.take() else { return };
        waits.starts_at = None;
        waits.reasons.retain(|reason| reason.kind != WaitReason::NextClaim.name());
        let kind = kind.to_owned();
        waits.reasons.push(WaitsFor { kind, text, until: None, since: None, by: None, job: None });
        self.wait(waits);
    }
}

impl From<&Found> for Explanation {
    fn from(found: &Found) -> Self {
        let tick = |tick: &quell_core::schedule::Tick| Tick {
            schedule: tick.schedule.clone(),
            tick: tick.tick.to_string(),
            by: tick.by,
        };
        Explanation {
            trigger: found.trigger,
            job: Job::whole(&found.job),
            attempts: found.attempts.iter().map(Attempt::from).collect(),
            attempts_dropped: found.dropped_attempts(),
            absorbed: found.absorbed.clone(),
            open_window: found.open_window,
            ticks: found.ticks.iter().map(tick).collect(),
            original_payload: found.past.original.as_ref().map(Document::from),
            imported_from: found
                .past
                .origin
                .map(|origin| Origin { job: origin.job, first_at: origin.first_at.to_string() }),
            effects: found.effects.iter().map(Effect::from).collect(),
            waiting: None,
            late: None,
            running: None,
            text: found.to_string(),
        }
    }
}
