//! Queues and tasks as they are set (R14, R31–R33).

use quell::queue::{QueueInfo, Rate as RateOf, TaskInfo};
use quell::trigger::Thresholds as ThresholdsOf;
use quell::{QueueName, TaskName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::config::duration::exact;

/// A queue with its settings.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// Its name.
    #[schema(value_type = String)]
    pub name: QueueName,
    /// Attempts at once.
    pub concurrency: Option<u32>,
    /// Attempts at once by one worker.
    pub worker_concurrency: Option<u32>,
    /// Attempts at once of one partition.
    pub partition_concurrency: Option<u32>,
    /// In which order the jobs of one partition start, where that is not by priority: `strict`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_order: Option<String>,
    /// Starts in a time.
    pub rate: Option<Rate>,
    /// Starts in a time of one partition.
    pub partition_rate: Option<Rate>,
    /// Whether it is paused.
    #[serde(flatten)]
    pub pause: Paused,
    /// The thresholds of tasks that name none.
    pub debounce: Option<Thresholds>,
}

/// Starts in a time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// How many.
    pub limit: u32,
    /// In which time, such as `1m`.
    pub period: String,
}

/// A quiet period and a longest delay.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Thresholds {
    /// The quiet period, such as `10s`.
    pub min: String,
    /// The longest delay.
    pub max: String,
}

/// Whether a queue or a task is paused.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Paused {
    /// Whether nothing of it starts.
    pub paused: bool,
    /// Since when it is paused; left out where it is not, or an earlier version paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub paused_since: Option<String>,
    /// Who paused it, where the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub paused_by: Option<String>,
}

/// All queues.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Queues {
    /// By name.
    pub queues: Vec<Queue>,
    /// Where the next page begins: its parameter `after`. Left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub next_after: Option<String>,
}

impl From<ThresholdsOf> for Thresholds {
    fn from(set: ThresholdsOf) -> Self {
        Thresholds { min: exact(set.min()), max: exact(set.max()) }
    }
}

impl Paused {
    fn new(paused: bool, since: Option<Timestamp>, by: Option<&String>) -> Self {
        let paused_since = since.map(|since| since.to_string());
        Paused { paused, paused_since, paused_by: by.cloned() }
    }
}

impl From<&QueueInfo> for Queue {
    fn from(queue: &QueueInfo) -> Self {
        let rate = |rate: RateOf| Rate { limit: rate.limit, period: exact(rate.period) };
        let set = &queue.settings;
        Queue {
            name: queue.name.clone(),
            concurrency: set.concurrency,
            worker_concurrency: set.worker_concurrency,
            partition_concurrency: set.partition_concurrency,
            partition_order: set.is_strict().then(|| "strict".to_owned()),
            rate: set.rate.map(rate),
            partition_rate: set.partition_rate.map(rate),
            pause: Paused::new(set.paused, set.paused_since, set.paused_by.as_ref()),
            debounce: set.debounce.map(Thresholds::from),
        }
    }
}

/// A task with its settings.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Its name.
    #[schema(value_type = String)]
    pub name: TaskName,
    /// Whether it is paused.
    #[serde(flatten)]
    pub pause: Paused,
    /// The thresholds that an operator set for it, in place of those that it declares; left out where
    /// none are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub debounce: Option<Thresholds>,
}

impl From<&TaskInfo> for Task {
    fn from(task: &TaskInfo) -> Self {
        let set = &task.settings;
        Task {
            name: task.name.clone(),
            pause: Paused::new(set.paused, set.paused_since, set.paused_by.as_ref()),
            debounce: set.debounce.map(Thresholds::from),
        }
    }
}

/// All tasks.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Tasks {
    /// By name.
    pub tasks: Vec<Task>,
    /// Where the next page begins: its parameter `after`. Left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub next_after: Option<String>,
}
