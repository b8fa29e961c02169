//! What the HTTP API answers with and the command line reads, as types: times as text, states by name.
//!
//! Payloads and outputs are kept byte for byte on the way, whatever numbers and texts they have.

mod action;
mod activity;
mod alert;
mod audit;
mod backlog;
mod codes;
mod dead;
mod done;
mod job;
mod overview;
mod policy;
mod proof;
mod pull;
mod queue;
mod receipt;
mod schedule;
mod session;
mod source;
mod token;
mod what_if;
mod worker;

pub use action::{Action, ActionError, ActionKind, ActionState, Actions, AfterRedrive, Caller};
pub use activity::{KeyActivity, TaskHabits, TookGroup};
pub use alert::{Alert, Alerts};
pub use audit::{AuditEntries, AuditEntry};
pub use backlog::{Partition, Partitions};
pub use codes::{Health, ImportedJob, MissedTicks, Outcome, State, TickCause, Trace};
pub use dead::{
    Cause, Causes, DeadJobs, Exports, Imported, Redriven, Swept, Unreadable, UnreadableJob,
};
pub use done::{
    AdjustedJob, Backfilled, CancelledJob, CancelledWindow, DeletedQueue, DeletedSchedule,
    DiscardedJob, FlushedWindow, ForgottenAlert, RestoredJob,
};
pub use job::{
    Attempt, Contents, Count, Counts, Effect, Explanation, Job, Jobs, Origin, ResultOfJob, Tick,
    Waits, WaitsFor,
};
pub use overview::{
    Issue, KeyTicksOf, Mark, Marks, Numbers, OpenWindow, Overview, Present, Run, TaskActivity,
    Timeline, TimelineMark,
};
pub use policy::{SettingOrigin, TaskPolicy, TaskSetting};
pub use proof::{BrokenPromise, Proof, ProvenProperty};
pub use pull::{
    LeftWorker, Progress, PulledJob, PulledJobs, RenewedLease, RenewedLeases, SettledJob,
    SettledJobs, SettlementError,
};
pub use queue::{Queue, Queues, Rate, Task, Tasks, Thresholds};
pub use receipt::Receipt;
pub use schedule::{FiredTick, FiredTicks, Schedule, Schedules};
pub use session::{EndedSession, Session};
pub use source::{WebhookSource, WebhookSources};
pub use token::{MadeToken, RevokedToken, Token, Tokens};
pub use what_if::{WhatIf, WhatIfPair};
pub use worker::{Worker, Workers};

use quell::Payload;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType};
use utoipa::{PartialSchema, ToSchema};

use crate::http::{MAX_DEPTH, depth};

/// A payload or an output, byte for byte. One that nests deeper than 64 levels is the text of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Document(Payload);

impl Document {
    /// Its JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl From<&Payload> for Document {
    fn from(payload: &Payload) -> Self {
        Document(payload.clone())
    }
}

impl PartialSchema for Document {
    /// Any JSON.
    fn schema() -> RefOr<Schema> {
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        RefOr::T(any.description(Some("Any JSON, byte for byte.")).build().into())
    }
}

impl ToSchema for Document {}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if depth(self.as_str().as_bytes()) > MAX_DEPTH {
            return to.serialize_str(self.as_str());
        }
        self.0.serialize(to)
    }
}

/// Reads a member that is there: `null` is a value of it, and no member at all is none.
fn there<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}
