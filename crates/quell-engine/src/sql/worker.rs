//! Columns of a worker's row.

use quell_core::{QueueName, Result, TaskName};
use serde::de::DeserializeOwned;

use super::corrupt;

/// The names of a worker's queues, and of its tasks where they are known, as JSON.
///
/// # Errors
/// [`ErrorKind::Corrupt`](quell_core::ErrorKind::Corrupt) for a text that holds something else.
pub fn decode_names(
    worker: &str,
    queues: &str,
    tasks: Option<&str>,
) -> Result<(Vec<QueueName>, Option<Vec<TaskName>>)> {
    let tasks = tasks.map(|tasks| decode(worker, "tasks", tasks)).transpose()?;
    Ok((decode(worker, "queues", queues)?, tasks))
}

fn decode<T: DeserializeOwned>(worker: &str, what: &str, text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| corrupt(format_args!("the {what} of worker {worker}: {error}")))
}
