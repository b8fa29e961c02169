//! What the checker says of a recorded history.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The checker's judgement of the history that a server records.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Proof {
    /// When it was judged.
    pub at: String,
    /// When the first of the events was written; null where there is none.
    pub from: Option<String>,
    /// When the last one was.
    pub to: Option<String>,
    /// Whether older events of the day were left out, as the file has more than 32 MiB of them.
    pub cut: bool,
    /// How many events were judged.
    pub events: usize,
    /// How many triggers they accepted.
    pub accepted: usize,
    /// How many attempts they started.
    pub attempts: usize,
    /// How many triggers had not run by then.
    pub pending: usize,
    /// How many cases kept a promise.
    pub judged: u64,
    /// The properties, in their order.
    pub properties: Vec<ProvenProperty>,
    /// What broke a promise.
    pub violations: Vec<BrokenPromise>,
}

/// What was judged of one property.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProvenProperty {
    /// Its name, such as `P2`.
    pub property: String,
    /// What it promises.
    pub promise: String,
    /// How many cases were judged.
    pub judged: u64,
    /// How many could not be judged, by the reason.
    pub unjudged: BTreeMap<String, u64>,
    /// How many broke it.
    pub broken: usize,
}

/// A promise that was broken.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BrokenPromise {
    /// The property.
    pub property: String,
    /// What is wrong.
    pub message: String,
    /// The events that show it, as the history has them.
    pub events: Vec<String>,
}
