//! The handlers of declared tasks and the sinks of alerts: a command or an HTTP call.
//!
//! The worker calls [`Handler::run`] for each attempt, and settles the job by its result.

mod away;
pub(crate) mod completion;
mod egress;
mod exec;
pub mod guard;
mod http;
mod notice;
mod output;
mod program;
pub(crate) mod signature;

use std::sync::Arc;
use std::time::Duration;

use quell::store::LeaseToken;
use quell::trigger::{TraceContext, Traces};
use quell::{Ctx, JobId, Key, Payload, QueueName, TaskError, TaskName, Timestamp};
use tokio_util::sync::CancellationToken;

pub use egress::Allowed;
pub use exec::Exec;
pub(crate) use exec::GRACE;
pub use http::{Http, HttpSettings};
pub use notice::Message;

/// The most of an output that is kept with a failed attempt, in bytes.
pub(crate) const MAX_OUTPUT: usize = 8 << 10;

/// A task's handler.
#[derive(Debug)]
pub enum Handler {
    /// Runs a command.
    Exec(Exec),
    /// Calls a URL.
    Http(Http),
}

/// One attempt, as a handler needs it.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The task.
    pub task: TaskName,
    /// Its queue.
    pub queue: QueueName,
    /// The job.
    pub job: JobId,
    /// Its debounce key.
    pub key: Option<Key>,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// How often the job has started, this attempt included.
    pub starts: u64,
    /// What no other attempt of the job has (R21).
    pub fencing_token: LeaseToken,
    /// How many triggers it covers.
    pub triggers: u64,
    /// The first of them.
    pub first_at: Timestamp,
    /// When it was due.
    pub due_at: Timestamp,
    /// The folded payload.
    pub payload: Payload,
    /// The trace contexts of its first triggers (R42).
    pub traces: Traces,
    /// The trace context of the attempt's own span, where that is exported.
    pub own_trace: Option<TraceContext>,
    /// The lease, as a worker elsewhere would name it.
    pub lease: String,
    /// Where others reach this server.
    pub base_url: Arc<str>,
    /// Fires when the lease is lost: the attempt must stop, and nothing it says counts (R21).
    pub cancelled: CancellationToken,
    /// Fires when the shutdown's grace time is over: a command should end now (R29).
    pub stopping: CancellationToken,
}

impl Invocation {
    /// The attempt that a context speaks of.
    #[must_use]
    pub fn new<S>(
        ctx: &Ctx<S>,
        queue: QueueName,
        payload: Payload,
        base_url: Arc<str>,
        stopping: CancellationToken,
    ) -> Self {
        Invocation {
            task: ctx.task().clone(),
            queue,
            job: ctx.job(),
            key: ctx.key().cloned(),
            attempt: ctx.attempt(),
            starts: ctx.starts(),
            fencing_token: ctx.fencing_token(),
            triggers: ctx.triggers(),
            first_at: ctx.first_at(),
            due_at: ctx.due_at(),
            payload,
            traces: ctx.traces().clone(),
            own_trace: crate::otel::context_of_attempt(),
            lease: ctx.lease().to_string(),
            base_url,
            cancelled: ctx.cancelled().clone(),
            stopping,
        }
    }
}

impl Invocation {
    /// The trace context that the attempt goes on with: its own, or the only one of its job. Several have no single
    /// one to go on with.
    fn trace(&self) -> Option<TraceContext> {
        if let Some(own) = &self.own_trace {
            return Some(own.clone());
        }
        let mut traces = self.traces.iter();
        traces.next().filter(|_| traces.next().is_none())
    }

    /// The `traceparent` of each trace context.
    fn trace_parents(&self) -> Vec<String> {
        self.traces.iter().map(|context| context.traceparent().to_owned()).collect()
    }
}

impl Handler {
    /// Runs one attempt and returns its output, if it has one (R19). Dropping the future stops it: a
    /// command is killed, a call is closed.
    ///
    /// # Errors
    /// What follows the failure, with the output that explains it.
    pub async fn run(&self, call: &Invocation) -> Result<Option<Payload>, TaskError> {
        match self {
            Handler::Exec(exec) => exec.run(call).await,
            Handler::Http(http) => http.run(call).await,
        }
    }

    /// How long no job of its task is to be claimed: its target is away.
    #[must_use]
    pub fn away_for(&self) -> Option<Duration> {
        match self {
            Handler::Exec(_) => None,
            Handler::Http(http) => http.away_for(),
        }
    }

    /// How long work may take that its target reports later; none where it does not.
    #[must_use]
    pub fn completion(&self) -> Option<Duration> {
        match self {
            Handler::Exec(_) => None,
            Handler::Http(http) => http.completion(),
        }
    }

    /// Whether a code proves that a report of this lease comes from its target.
    #[must_use]
    pub fn proves(&self, lease: &str, code: &str) -> bool {
        match self {
            Handler::Exec(_) => false,
            Handler::Http(http) => http.proves(lease, code),
        }
    }

    /// How long an attempt may take before the handler itself ends it.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        match self {
            Handler::Exec(exec) => exec.timeout,
            Handler::Http(http) => http.timeout(),
        }
    }
}

/// The end of an output, as text, cut at the bound.
pub(crate) fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(MAX_OUTPUT);
    let text = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default());
    let cut = if start > 0 { "…" } else { "" };
    format!("{cut}{}", text.trim_end())
}
