//! The policy of a task in force, and where each value comes from.

use quell::TaskName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettingOrigin {
    /// What an operator set for the task, in place of its declaration.
    Operator,
    /// The task's declaration.
    Task,
    /// The settings of its queue.
    Queue,
    /// The default: nothing else says it, or the declaration says the same.
    Default,
}

/// A value of a policy.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskSetting {
    /// Its name, as the configuration has it below the task.
    pub name: String,
    /// The value as the configuration would have it; null for none.
    pub value: Option<String>,
    /// Where it comes from.
    pub from: SettingOrigin,
}

/// The policy of a task in force.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskPolicy {
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// What runs it: `exec`, `http`, or `pull` for workers elsewhere.
    pub runs_by: String,
    /// Its settings, in the order of the configuration's reference.
    pub settings: Vec<TaskSetting>,
}
