//! The tasks: one that does nothing, and one that never runs, because its windows stay open.

use std::time::Duration;

use peer_common::Starts;
use quell::{Ctx, Policy, Task, TaskError};
use serde::{Deserialize, Serialize};

/// A job that does nothing.
#[derive(Debug, Deserialize, Serialize)]
pub struct Noop {
    /// The number of the job.
    pub n: usize,
}

impl Task for Noop {
    const NAME: &'static str = "noop";
    type Output = ();
}

/// A job for each key, debounced by an hour.
#[derive(Debug, Deserialize, Serialize)]
pub struct Meter {
    /// The number of the key.
    pub key: usize,
}

impl Task for Meter {
    const NAME: &'static str = "meter";
    type Output = ();

    fn policy() -> Policy {
        let hour = Duration::from_secs(3_600);
        Policy::default().debounce(hour..=2 * hour)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(format!("customer-{}", self.key))
    }
}

pub(crate) async fn noop(_: Noop, ctx: Ctx<Starts>) -> Result<(), TaskError> {
    ctx.state().report().await;
    Ok(())
}
