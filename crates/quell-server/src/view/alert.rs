//! Alerts (R27).

use quell::alert::{Alert as Declared, AlertName, AlertRow};
use quell::{QueueName, TaskName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An alert: what is declared of it, where it is, and what is kept of it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Alert {
    /// Its name.
    #[schema(value_type = Option<String>)]
    pub name: Option<AlertName>,
    /// Whether the server's configuration has it.
    pub declared: bool,
    /// What it measures.
    pub on: Option<String>,
    /// The queue that it is about.
    #[schema(value_type = Option<String>)]
    pub queue: Option<QueueName>,
    /// The task that it is about.
    #[schema(value_type = Option<String>)]
    pub task: Option<TaskName>,
    /// It is raised above this.
    pub threshold: Option<String>,
    /// It is over at this.
    pub clear: Option<String>,
    /// `raised` or `clear`.
    pub state: String,
    /// When it was raised or cleared last.
    pub since: Option<String>,
    /// The measure at its last change: jobs, microseconds, or millionths.
    pub value: u64,
    /// The same, for people.
    pub measured: Option<String>,
    /// How often it was raised or cleared.
    pub changes: u64,
    /// The notices that wait for their sinks.
    pub notices_waiting: usize,
}

/// All alerts.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Alerts {
    /// In the order of the configuration, then those that only the store has.
    pub alerts: Vec<Alert>,
}

impl Alert {
    /// An alert that is declared, has a record in the store, or both.
    #[must_use]
    pub fn new(declared: Option<&Declared>, row: Option<&AlertRow>) -> Self {
        let state = row.map(|row| row.state.clone()).unwrap_or_default();
        let words = |value| declared.map(|alert| alert.on.describe(value));
        Alert {
            name: declared.map(|alert| &alert.name).or(row.map(|row| &row.name)).cloned(),
            declared: declared.is_some(),
            on: declared.map(|alert| alert.on.name().to_owned()),
            queue: declared.and_then(|alert| alert.queue.clone()),
            task: declared.and_then(|alert| alert.task.clone()),
            threshold: declared.and_then(|alert| words(alert.above)),
            clear: declared.and_then(|alert| words(alert.clear)),
            state: if state.raised { "raised" } else { "clear" }.to_owned(),
            since: state.since.map(|time| time.to_string()),
            value: state.value,
            measured: state.since.and_then(|_| words(state.value)),
            changes: state.changes,
            notices_waiting: state.notices.len(),
        }
    }
}
