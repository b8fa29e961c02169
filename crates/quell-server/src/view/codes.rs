//! Codes of the API as its description has them. The answers have them by the names of `quell`'s own types; tests
//! compare both.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether the store answers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It waits for its time or its turn.
    Scheduled,
    /// A worker runs it.
    Running,
    /// It is done.
    Succeeded,
    /// It failed for good.
    Dead,
    /// It was cancelled.
    Cancelled,
    /// A newer window of its key took it in.
    Absorbed,
    /// Its row cannot be decoded.
    Unreadable,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// Its handler panicked.
    Panicked,
    /// It took longer than its timeout.
    TimedOut,
    /// Its handler asked to run later.
    Snoozed,
    /// Its worker shut down.
    Released,
    /// Its lease expired.
    #[serde(rename = "lapsed")]
    LeaseExpired,
    /// Its job was cancelled.
    Cancelled,
}

/// Why a tick fired.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TickCause {
    /// By plan.
    Plan,
    /// By a backfill.
    Backfill,
}

/// What becomes of missed ticks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedTicks {
    /// None of them fires.
    None,
    /// The latest fires.
    Latest,
    /// All of them fire.
    All,
}

/// A trace context (W3C Trace Context).
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The header `traceparent`.
    pub traceparent: String,
    /// The header `tracestate`.
    pub tracestate: Option<String>,
}

/// What an imported dead job is here.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ImportedJob {
    /// The job.
    pub id: String,
    /// Whether it was here already.
    pub known: bool,
}
