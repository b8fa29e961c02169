//! What can be read of a job's row that cannot be decoded whole.

use quell_core::{Job, JobId, JobState, NewTrigger, Payload, QueueName, TaskName, Timestamp};
use serde_json::{Map, Value};

/// The job as far as it can be decoded, with what is usual in place of the rest; none where not even
/// its queue, task and state can be.
pub(crate) fn decode_in_part(id: JobId, row: &[u8]) -> Option<Job> {
    let value: Value = serde_json::from_slice(row).ok()?;
    let job = value.get(1)?.get("job")?.as_object()?;
    let queue: QueueName = field(job, "queue")?;
    let task: TaskName = field(job, "task")?;
    let state: JobState = field(job, "state")?;
    let trigger = NewTrigger::new(task, queue, Payload::from_stored("null"));
    let usual = Job { state, ..Job::unkeyed(id, &trigger, Timestamp::MIN) };
    let Ok(Value::Object(mut whole)) = serde_json::to_value(&usual) else { return None };
    // Each field that can be decoded beside what is usual takes its place.
    for (name, value) in job {
        let was = whole.insert(name.clone(), value.clone());
        if decoded(&whole).is_none() {
            match was {
                Some(was) => whole.insert(name.clone(), was),
                None => whole.remove(name),
            };
        }
    }
    decoded(&whole).filter(|job| job.id == id)
}

fn decoded(job: &Map<String, Value>) -> Option<Job> {
    serde_json::from_str(&serde_json::to_string(job).ok()?).ok()
}

fn field<T: serde::de::DeserializeOwned>(job: &Map<String, Value>, name: &str) -> Option<T> {
    T::deserialize(job.get(name)?).ok()
}
