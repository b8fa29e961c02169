//! Receipts of triggers (R3).

use quell::trigger::TriggerId;
use quell::{JobId, JobState, TaskName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Document, State, there};

/// What became of a trigger.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    /// `accepted`, `debounced`, `duplicate`, `existing` or `pending`.
    pub receipt: String,
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// The job that has the trigger.
    #[schema(value_type = Option<String>)]
    pub job: Option<JobId>,
    /// Its id.
    #[schema(value_type = Option<String>)]
    pub trigger: Option<TriggerId>,
    /// When the job is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// How many triggers the window has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggers: Option<u64>,
    /// Where an existing job is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<State>)]
    pub state: Option<JobState>,
    /// What an existing job put out.
    #[serde(default, deserialize_with = "there", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Document, required = false)]
    pub output: Option<Option<Document>>,
}

impl Receipt {
    /// The same for one who may not see results.
    #[must_use]
    pub fn without_output(self) -> Self {
        Receipt { state: None, output: None, ..self }
    }

    /// The receipt of a trigger of this task.
    #[must_use]
    pub fn new(task: &TaskName, receipt: &quell::Receipt) -> Self {
        let mut shown = Receipt {
            receipt: receipt.outcome().to_owned(),
            task: task.clone(),
            job: receipt.job(),
            trigger: receipt.trigger(),
            due: None,
            triggers: None,
            state: None,
            output: None,
        };
        match receipt {
            quell::Receipt::Accepted { due, .. } => shown.due = Some(due.to_string()),
            quell::Receipt::Debounced { due, triggers, .. } => {
                shown.due = Some(due.to_string());
                shown.triggers = Some(*triggers);
            }
            quell::Receipt::Existing { state, output, .. } => {
                shown.state = Some(*state);
                shown.output = Some(output.as_ref().map(Document::from));
            }
            _ => {}
        }
        shown
    }
}
