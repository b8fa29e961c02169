//! Dead jobs: finding them, what is kept of them, and how they leave (R25, R26).
//!
//! What may be searched for, edited and imported is decided here; stores load rows and write them,
//! by the methods of [`DeadJobs`](crate::DeadJobs).

pub mod cause;
pub mod exports;
#[cfg(test)]
mod tests;
pub mod unreadable;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::envelope::Envelope;
use crate::payload::{MAX_FOLDED_BYTES, MAX_PAYLOAD_BYTES, present};
use crate::setters::setters;
use crate::{
    Attempt, Effect, Error, Fold, Job, JobId, JobState, Limits, Payload, QueueName, Result,
    TaskName, Timestamp, effect,
};

/// The largest reason of a discard, in bytes.
pub const MAX_REASON_BYTES: usize = 1_024;
/// The largest text that errors are searched for, in bytes.
pub const MAX_SEARCH_BYTES: usize = 512;

/// Which dead jobs are meant.
///
/// ```
/// use quell_core::DeadFilter;
///
/// let filter = DeadFilter::default().error("timed out");
/// assert!(filter.validate().is_ok());
/// let filter = DeadFilter::default().error("");
/// assert_eq!(filter.validate().unwrap_err().field(), Some("error"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadFilter {
    /// Only of this task.
    pub task: Option<TaskName>,
    /// Only of this queue.
    pub queue: Option<QueueName>,
    /// Only with this text in their last error; without regard to ASCII case.
    pub error: Option<String>,
    /// Only those that died at this time or later.
    pub died_after: Option<Timestamp>,
    /// Only those that died before this time.
    pub died_before: Option<Timestamp>,
    /// Only those after this one in the list: the last of the page before.
    pub before: Option<DeadPlace>,
    /// At most this many; 0 means [`DeadFilter::DEFAULT_PAGE`], and no page is larger than
    /// [`DeadFilter::MAX_PAGE`].
    pub limit: usize,
}

impl DeadFilter {
    /// The size of a page where none is asked for.
    pub const DEFAULT_PAGE: usize = 50;
    /// The size of the largest page.
    pub const MAX_PAGE: usize = 200;

    /// The size of the page that is meant.
    #[must_use]
    pub fn page(&self) -> usize {
        if self.limit == 0 { Self::DEFAULT_PAGE } else { self.limit.min(Self::MAX_PAGE) }
    }

    /// Whether this job is meant.
    #[must_use]
    pub fn matches(&self, job: &Job) -> bool {
        let Some(place) = DeadPlace::of(job) else { return false };
        self.task.as_ref().is_none_or(|task| *task == job.task)
            && self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
            && self.error.as_ref().is_none_or(|text| job.error_contains(text))
            && self.died_after.is_none_or(|after| place.died_at >= after)
            && self.died_before.is_none_or(|before| place.died_at < before)
            && self.before.is_none_or(|before| place < before)
    }

    /// Checks the filter (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        if let Some(error) = &self.error {
            check_text("error", error, MAX_SEARCH_BYTES)?;
        }
        if let (Some(after), Some(before)) = (self.died_after, self.died_before)
            && after >= before
        {
            let message = format!("nothing died from {after} until before {before}: swap the two");
            return Err(Error::invalid("died_before", message));
        }
        Ok(())
    }
}

setters!(DeadFilter {
    task? TaskName,
    queue? QueueName,
    died_after? Timestamp,
    died_before? Timestamp,
    before? DeadPlace,
    limit: usize,
});

impl DeadFilter {
    /// Sets [`error`](field@Self::error).
    #[must_use]
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }
}

/// Checks the reason of a discard (R40).
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is empty, too long or has a NUL.
pub fn validate_reason(reason: &str) -> Result<()> {
    check_text("reason", reason, MAX_REASON_BYTES)
}

fn check_text(field: &'static str, text: &str, most: usize) -> Result<()> {
    if text.trim().is_empty() {
        return Err(Error::invalid(field, format!("{field} is empty: say something")));
    }
    if text.len() > most {
        let bytes = text.len();
        let message = format!("{field} has {bytes} bytes, the limit is {most}: shorten it");
        return Err(Error::invalid(field, message));
    }
    if text.contains('\0') {
        let message = format!("{field} has a NUL character: leave it out");
        return Err(Error::invalid(field, message));
    }
    Ok(())
}

/// A place in the list of the dead, which is by time of death: written `MICROSECONDS.JOB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeadPlace {
    /// When the job died.
    pub died_at: Timestamp,
    /// The job, for those that died at one moment.
    pub id: JobId,
}

impl DeadPlace {
    /// A dead job's place; none for a job that is not dead.
    #[must_use]
    pub fn of(job: &Job) -> Option<Self> {
        let died_at = job.ended_at.filter(|_| job.state == JobState::Dead)?;
        Some(DeadPlace { died_at, id: job.id })
    }
}

impl fmt::Display for DeadPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.died_at.as_micros(), self.id)
    }
}

impl FromStr for DeadPlace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('.').and_then(|(micros, id)| {
            let died_at = Timestamp::from_micros(micros.parse().ok()?);
            Some(DeadPlace { died_at, id: id.parse().ok()? })
        });
        parsed.ok_or_else(|| {
            let message =
                format!("`{text}` is not a page position: give the one at the end of a page");
            Error::invalid("before", message)
        })
    }
}

/// Puts a dead job back, with its payload or with another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redrive {
    /// The job.
    pub id: JobId,
    /// The payload that it runs with from now on; its own where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub payload: Option<Payload>,
}

setters!(Redrive {
    payload? Payload,
});

impl From<JobId> for Redrive {
    fn from(id: JobId) -> Self {
        Redrive { id, payload: None }
    }
}

impl Redrive {
    /// Checks an edited payload (R40), as far as that goes without the job: where that gathers
    /// payloads, it may be larger than those of triggers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a payload over the limit.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        let most = MAX_FOLDED_BYTES.max(limits.payload_bytes);
        self.payload.as_ref().map_or(Ok(()), |payload| check_size(payload, most))
    }
}

fn check_size(payload: &Payload, most: usize) -> Result<()> {
    let bytes = Envelope::counted(payload.as_str());
    if bytes > most {
        let message = format!(
            "payload has {bytes} bytes, the limit is {most}: store the large part elsewhere"
        );
        return Err(Error::invalid("payload", message));
    }
    Ok(())
}

impl Job {
    /// Gives a dead job another payload; returns the one before, where it differs.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is too large, or later triggers
    /// could not be gathered into it.
    pub(crate) fn edit(&mut self, payload: &Payload) -> Result<Option<Payload>> {
        let collects = matches!(self.shape.fold, Fold::Collect { .. });
        if collects && !payload.as_str().trim_start().starts_with('[') {
            let id = self.id;
            let message = format!("job {id} collects payloads: give an array of them");
            return Err(Error::invalid("payload", message));
        }
        if !self.shape.fold.reads_payload() {
            check_size(payload, MAX_PAYLOAD_BYTES.max(Envelope::counted(self.payload.as_str())))?;
        }
        if *payload == self.payload {
            return Ok(None);
        }
        Ok(Some(std::mem::replace(&mut self.payload, payload.clone())))
    }
}

/// What a job was before: kept beside its row, and for as long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Past {
    /// The payload that its triggers gave it, where an operator edited it since.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub original: Option<Payload>,
    /// The job that it was where it came from, if it was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

setters!(Past {
    original? Payload,
    origin? Origin,
});

impl Past {
    /// Whether the job was never anything else.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.original.is_none() && self.origin.is_none()
    }

    /// Takes note of an edit. The first payload stays on record, however many edits follow.
    #[must_use]
    pub fn edited(self, before: Payload) -> Self {
        Past { original: self.original.or(Some(before)), ..self }
    }
}

/// A job in the store that accepted it: no two stores accept jobs of one number at one microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Its number there.
    pub job: JobId,
    /// When its first trigger was accepted there.
    pub first_at: Timestamp,
}

/// A dead job with everything that is known of it: what an export writes and an import reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadExport {
    /// Its row.
    pub job: Job,
    /// Its attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// The effects that they recorded, by name: redriven in another store, the job repeats none of
    /// them (R23).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<Effect>,
    /// What it was before.
    #[serde(default, skip_serializing_if = "Past::is_empty")]
    pub past: Past,
}

impl DeadExport {
    /// A dead job with its attempts; set what it recorded and was before, if anything.
    #[must_use]
    pub fn new(job: Job, attempts: Vec<Attempt>) -> Self {
        DeadExport { job, attempts, effects: Vec::new(), past: Past::default() }
    }
}

setters!(DeadExport {
    effects: Vec<Effect>,
    past: Past,
});

/// The result of importing a dead job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// The job that it is here.
    pub id: JobId,
    /// Whether it was here already, so that nothing was written.
    pub known: bool,
}

impl Imported {
    /// The job that an imported dead job became; `known` where it was here before.
    #[must_use]
    pub fn new(id: JobId, known: bool) -> Self {
        Imported { id, known }
    }
}

impl DeadExport {
    /// Its identity in every store: the job that it was in the store that accepted it.
    /// Importing one twice makes one job.
    #[must_use]
    pub fn origin(&self) -> Origin {
        let Job { id, window, .. } = &self.job;
        self.past.origin.unwrap_or(Origin { job: *id, first_at: window.first_at })
    }

    /// Whether this row is the one that it was exported from, whatever became of it since.
    #[must_use]
    pub fn is_of(&self, row: &Job) -> bool {
        let own = Origin { job: row.id, first_at: row.window.first_at };
        own == self.origin() && row.task == self.job.task
    }

    /// The job that it becomes under an id of the store that takes it in, and what is kept beside.
    #[must_use]
    pub fn arrive(&self, id: JobId) -> (Job, Past) {
        let past = Past { origin: Some(self.origin()), ..self.past.clone() };
        (Job { id, ..self.job.clone() }, past)
    }

    /// Checks a dead job that comes from outside (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        let job = &self.job;
        let wrong = |field, message: &str| Err(Error::invalid(field, message));
        if DeadPlace::of(job).is_none() {
            return wrong("state", "state is not that of a dead job with a time of death");
        }
        if job.waits || job.lease_until.is_some() || job.absorbed_by.is_some() {
            return wrong("state", "the job runs, waits or was absorbed, and is dead: not both");
        }
        let numbers = [job.id.get(), job.token.get(), job.window.triggers, job.suppressed];
        let narrow = [job.attempt, job.failures, job.crashes];
        let fits = numbers.iter().all(|number| i64::try_from(*number).is_ok())
            && narrow.iter().all(|number| i32::try_from(*number).is_ok());
        if !fits || job.window.triggers == 0 || job.window.last_at < job.window.first_at {
            return wrong("job", "a count or a time of the job is out of its range");
        }
        // A job that gathers payloads has more than one trigger may bring.
        let gathers = job.shape.fold.reads_payload();
        let most = limits.payload_bytes.max(if gathers { MAX_FOLDED_BYTES } else { 0 });
        for payload in [Some(&job.payload), self.past.original.as_ref()].into_iter().flatten() {
            check_size(payload, most)?;
        }
        for error in self.attempts.iter().map(|attempt| &attempt.error).chain([&job.error]) {
            if error.as_ref().is_some_and(|error| error.len() > crate::Failure::MAX_ERROR_BYTES) {
                return wrong("error", "an error is longer than any that is kept");
            }
        }
        self.validate_attempts()?;
        effect::check_all(&self.effects, job.starts())
    }

    fn validate_attempts(&self) -> Result<()> {
        let mut tokens = BTreeSet::new();
        for attempt in &self.attempts {
            let fits = attempt.token <= self.job.token
                && attempt.token.starts() > 0
                && attempt.outcome.is_some()
                && attempt.ended_at.is_some();
            if !fits || !tokens.insert(attempt.token) {
                let number = attempt.token.starts();
                let message =
                    format!("attempt {number} has not ended, or the job never started it");
                return Err(Error::invalid("attempts", message));
            }
        }
        Ok(())
    }
}
