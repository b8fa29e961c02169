//! The rows that a store keeps, and what names them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use quell_core::alert::AlertState;
use quell_core::dedup::Hold;
use quell_core::edge::KeyMemory;
use quell_core::heartbeat::WorkerRow;
use quell_core::idempotency::Record;
use quell_core::limit::StartLog;
use quell_core::part::TaskKey;
use quell_core::queue::Remarks;
use quell_core::schedule::{ScheduleInfo, Tick};
use quell_core::{
    AlertName, Attempt, Effect, Error, ErrorKind, Job, JobId, Key, Origin, Past, QueueName,
    QueueSettings, Result, ScheduleName, TaskName, TaskSettings, Timestamp, UnreadableJob,
    WorkerId,
};
use serde::{Deserialize, Serialize};

/// A claim changes any one of this number of rows: so few claims meet.
pub const GATES: u8 = 16;

/// What names a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowName {
    /// A job.
    Job(JobId),
    /// The attempts of a job.
    Attempts(JobId),
    /// The effects of a job.
    Effects(JobId),
    /// What a job was before.
    Past(JobId),
    /// What is known of a job that is set aside, because its row cannot be decoded.
    Aside(JobId),
    /// Which jobs of a debounce key wait and run.
    Key(TaskKey),
    /// A dedup key.
    Hold(TaskKey),
    /// An idempotency key.
    Record(TaskKey),
    /// What edges remember of a key.
    Memory(TaskKey),
    /// The settings of a queue.
    Queue(QueueName),
    /// The settings of a task.
    Task(TaskName),
    /// The starts that a rate counts, of a queue or of one of its partitions.
    Starts(QueueName, Option<Key>),
    /// Whose turn it is to start jobs of a queue whose limits count what runs.
    Turn(QueueName),
    /// One of [`GATES`] rows. A claim changes any one, and a change of settings all.
    Gate(u8),
    /// A schedule.
    Schedule(ScheduleName),
    /// A tick that fired.
    Tick(ScheduleName, Timestamp),
    /// The job that an imported dead job became.
    Origin(Origin),
    /// A worker, by name and incarnation.
    Worker(WorkerId, u32),
    /// An alert.
    Alert(AlertName),
    /// What is on record beside the settings of a queue or a task.
    Remarks(SettingsOf),
}

/// What has settings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SettingsOf {
    /// A queue.
    Queue(QueueName),
    /// A task, in each queue.
    Task(TaskName),
    /// A process of a worker, by its name and incarnation: that it is drained.
    Worker(WorkerId, u32),
}

impl fmt::Display for SettingsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsOf::Queue(queue) => write!(f, "queue:{queue}"),
            SettingsOf::Task(task) => write!(f, "task:{task}"),
            SettingsOf::Worker(worker, incarnation) => write!(f, "worker:{incarnation}:{worker}"),
        }
    }
}

/// Reads what [`Display`](fmt::Display) wrote.
impl FromStr for SettingsOf {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("queue", name)) => Ok(SettingsOf::Queue(QueueName::new(name)?)),
            Some(("task", name)) => Ok(SettingsOf::Task(TaskName::new(name)?)),
            Some(("worker", process)) => {
                let process = process.split_once(':');
                let process = process.and_then(|(number, name)| Some((number.parse().ok()?, name)));
                let (incarnation, name) = process.ok_or_else(|| no_such(text))?;
                Ok(SettingsOf::Worker(WorkerId::new(name)?, incarnation))
            }
            _ => Err(no_such(text)),
        }
    }
}

fn no_such(text: &str) -> Error {
    let message = format!("remarks are of {text:?}, which is no queue, no task and no worker");
    Error::new(ErrorKind::Corrupt, message)
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Row {
    /// A job.
    Job(Arc<Job>),
    /// Its attempts on record, oldest first.
    Attempts(Vec<Attempt>),
    /// Its effects, by name.
    Effects(Vec<Effect>),
    /// What it was before.
    Past(Box<Past>),
    /// What is known of a job that is set aside.
    Aside(Box<UnreadableJob>),
    /// The jobs of a key.
    Key(KeyJobs),
    /// A dedup key.
    Hold(Hold),
    /// An idempotency key.
    Record(Box<Record>),
    /// What edges remember of a key.
    Memory(KeyMemory),
    /// The settings of a queue; none where they were deleted.
    Queue(Option<Box<QueueSettings>>),
    /// The settings of a task.
    Task(TaskSettings),
    /// The starts that a rate counts.
    Starts(StartLog),
    /// A number that differs after each claim.
    Turn(u64),
    /// A number that differs after each change.
    Gate(u64),
    /// A schedule.
    Schedule(Box<ScheduleInfo>),
    /// A tick that fired.
    Tick(Tick),
    /// The job that an imported dead job became.
    Origin(JobId),
    /// A worker.
    Worker(Box<WorkerRow>),
    /// An alert, and how often it was written.
    Alert(u64, Box<AlertState>),
    /// What is on record beside settings.
    Remarks(Remarks),
}

/// Which jobs of a debounce key wait and run. Every step that begins or ends one of them changes this
/// row, so that two such steps never pass each other unnoticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyJobs {
    /// The open window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<JobId>,
    /// The closed window with the smallest id; the others are in [`Index::Closed`](crate::Index).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<JobId>,
    /// Jobs that run.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub running: BTreeSet<JobId>,
    /// The newest job of the key, until that is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<JobId>,
    /// The time of the last step that moved a job of the key. The next one is no earlier.
    #[serde(default)]
    pub at: Timestamp,
}

impl Row {
    /// The row as JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] for a row that has no JSON form, which none of ours is.
    pub fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Internal, "a row has no JSON form").with_source(error)
        })
    }

    /// Reads what [`Row::encode`] wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for anything else; of a job, the error names it.
    pub fn decode(name: &RowName, bytes: &[u8]) -> Result<Row> {
        let decoded: Result<Row, String> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string());
        match (name, decoded) {
            (RowName::Job(id), Ok(Row::Job(job))) if job.id == *id => Ok(Row::Job(job)),
            (RowName::Job(id), Ok(_)) => Err(Error::unreadable(*id, "it is another row")),
            (RowName::Job(id), Err(error)) => Err(Error::unreadable(*id, error)),
            (_, Ok(row)) => Ok(row),
            (name, Err(error)) => {
                let message = format!("cannot decode the row {name:?}: {error}");
                Err(Error::new(ErrorKind::Corrupt, message))
            }
        }
    }
}
