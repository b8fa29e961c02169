//! What is typical of a task, as a server saw it.

use std::time::Duration;

use quell::{Key, TaskName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::overview::{Numbers, millis};
use crate::recent::{Habits, KeyHabit, Took};

/// What is typical of a task: how long its attempts take, and which keys are triggered most.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TaskHabits {
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// From when on this server has all triggers that it accepted, and all attempts that it started.
    pub complete_from: String,
    /// The last 60 minutes.
    pub hour: Numbers,
    /// The last 168 hours.
    pub week: Numbers,
    /// Attempts that ended, by how long they took, the shortest first.
    pub took: Vec<TookGroup>,
    /// Half of them took at most this long, in milliseconds.
    pub took_p50_ms: Option<f64>,
    /// The same of 99 in 100.
    pub took_p99_ms: Option<f64>,
    /// The longest.
    pub took_max_ms: Option<f64>,
    /// How many triggers the keys are counted from.
    pub triggers: u64,
    /// How many different keys they have.
    pub keys: u64,
    /// How many of those keys came once.
    pub single_keys: u64,
    /// The keys with the most triggers, at most 10.
    pub most: Vec<KeyActivity>,
    /// What to do about keys that gather nothing, in words.
    pub remedies: Vec<String>,
}

/// Attempts that took at least half of `below_ms`, and less than that.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TookGroup {
    /// A power of two.
    pub below_ms: u64,
    /// How many attempts ended.
    pub attempts: u64,
    /// How many of them failed.
    pub failed: u64,
}

/// A key and its numbers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyActivity {
    /// The key.
    #[schema(value_type = String)]
    pub key: Key,
    /// Its triggers.
    pub triggers: u64,
    /// Its attempts.
    pub attempts: u64,
}

impl TaskHabits {
    pub(crate) fn new(task: TaskName, habits: Habits, remedies: Vec<String>) -> Self {
        let (triggers, runs) = habits.complete;
        let took = |at: usize| habits.longest.and_then(|all| all.get(at).copied()).map(millis);
        TaskHabits {
            task,
            complete_from: triggers.max(runs).to_string(),
            hour: Numbers::from(&habits.hour),
            week: Numbers::from(&habits.week),
            took_p50_ms: took(0),
            took_p99_ms: took(1),
            took_max_ms: took(2),
            took: habits.took.into_iter().map(TookGroup::from).collect(),
            triggers: habits.triggers,
            keys: habits.keys.0 as u64,
            single_keys: habits.keys.1 as u64,
            most: habits.most.into_iter().map(KeyActivity::from).collect(),
            remedies,
        }
    }
}

impl From<Took> for TookGroup {
    fn from(took: Took) -> Self {
        let whole = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        TookGroup { below_ms: whole(took.below), attempts: took.attempts, failed: took.failed }
    }
}

impl From<KeyHabit> for KeyActivity {
    fn from(KeyHabit { key, triggers, attempts }: KeyHabit) -> Self {
        KeyActivity { key, triggers, attempts }
    }
}
