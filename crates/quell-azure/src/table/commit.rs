//! One batch of changes, and whether it was made.
//!
//! Each row carries the id of the batch that wrote it. Where an answer is lost, the rows are read: a
//! row with the id proves that the batch was made, and a row that still has the version which the
//! batch replaces proves that it was not. Only in the second case is the batch sent again: the
//! version is in its condition, so at most one of the two is made. What neither proves, such as rows
//! that are absent (never inserted, or inserted and deleted since), is an unknown outcome.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use quell_core::{Error, ErrorKind, Result};
use quell_portable::{Change, Committed, Condition, Version};

use super::TableStorage;
use super::entity::Entity;
use super::request::{answers, change, transaction};
use crate::clock::time_of;
use crate::error::error_code;
use crate::transport::{Answer, Deadline, Failure, Request, Sent};

/// The version of a row that another batch replaced before it was read: no row has it, and a
/// condition with it never holds.
const REPLACED: &str = "W/\"datetime'1601-01-01T00%3A00%3A00.0000000Z'\"";

/// A batch of changes to one partition.
pub(crate) struct Batch<'t> {
    table: &'t TableStorage,
    partition: &'t str,
    changes: &'t [Change],
    id: String,
    request: Request,
}

enum Outcome {
    Answered(Committed),
    /// The service rejects the batch, and will do so again.
    Rejected(Error),
    Failed(Failure),
}

impl<'t> Batch<'t> {
    pub(crate) fn new(
        table: &'t TableStorage,
        partition: &'t str,
        changes: &'t [Change],
    ) -> Result<Self> {
        let mut bytes = [0; 16];
        let failed = |error| {
            let message = "the system returned no random bytes for a batch";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        getrandom::fill(&mut bytes).map_err(failed)?;
        let id = URL_SAFE_NO_PAD.encode(bytes);
        let parts = changes.iter().map(|one| change(&table.name, partition, one, &id));
        let mut parts: Vec<Request> = parts.collect();
        let request = match parts.pop() {
            Some(only) if parts.is_empty() => only,
            last => {
                parts.extend(last);
                // The id has characters that a boundary must not have.
                let boundary = id.replace(['-', '_'], "0");
                transaction(&parts, |path| table.transport.url(path), &boundary)
            }
        };
        Ok(Batch { table, partition, changes, id, request })
    }

    pub(crate) async fn commit(&self) -> Result<Committed> {
        let mut deadline = Deadline::after(self.table.timeout);
        // The error to return where it stays unknown whether an earlier attempt was executed.
        let mut lost: Option<Error> = None;
        loop {
            let failure = match self.attempt(&deadline).await {
                Outcome::Answered(Committed::Conflict) => {
                    let Some(lost) = lost else { return Ok(Committed::Conflict) };
                    return self.evidence(deadline).await.ok_or(lost);
                }
                Outcome::Answered(committed) => return Ok(committed),
                Outcome::Rejected(error) => return Err(lost.unwrap_or(error)),
                Outcome::Failed(failure) => failure,
            };
            if failure.is_lost {
                let unknown = unknown(failure.error.share());
                match self.evidence(deadline).await {
                    Some(Committed::Conflict) => lost = Some(unknown),
                    Some(done) => return Ok(done),
                    None => return Err(unknown),
                }
            }
            if !deadline.back_off(failure.retry_after).await {
                return Err(lost.unwrap_or(failure.error));
            }
        }
    }

    async fn attempt(&self, deadline: &Deadline) -> Outcome {
        let answer = match self.table.transport.attempt(&self.request, deadline).await {
            Sent::Answered(answer) => answer,
            Sent::Failed(failure) => return Outcome::Failed(failure),
        };
        let mut answers = match answer.status {
            202 => answers(&answer.body),
            _ => vec![answer],
        };
        if let Some(at) = answers.iter().position(|answer| !answer.is_success()) {
            return match answers.swap_remove(at).sorted(self.request.what) {
                Sent::Failed(failure) => Outcome::Failed(failure),
                Sent::Answered(answer) if is_conflict(&answer) => {
                    Outcome::Answered(Committed::Conflict)
                }
                Sent::Answered(answer) => {
                    Outcome::Rejected(self.table.rejected(self.request.what, &answer))
                }
            };
        }
        let versions = self.versions(&answers).map(Committed::Done);
        versions.map_or_else(unreadable, Outcome::Answered)
    }

    /// The versions in the answers, where there is one for each row that was written.
    fn versions(&self, answers: &[Answer]) -> Option<Vec<Option<Version>>> {
        if answers.len() != self.changes.len() {
            return None;
        }
        let version = |(change, answer): (&Change, &Answer)| {
            if change.value.is_none() {
                return Some(None);
            }
            let etag = answer.etag()?;
            if let Some(time) = time_of(etag) {
                self.table.clock.raise(time);
            }
            Some(Some(Version::new(etag)))
        };
        self.changes.iter().zip(answers).map(version).collect()
    }

    /// The outcome of a batch whose answer was lost, read from its rows: that it was made, or that it was
    /// not; none where the rows do not show it.
    async fn evidence(&self, deadline: Deadline) -> Option<Committed> {
        let names: Vec<&str> = self.changes.iter().map(|change| change.row.as_str()).collect();
        let rows = self.table.entities(self.partition, &names, deadline).await.ok()?;
        let is_ours = |entity: &Entity| entity.batch == self.id;
        if rows.iter().flatten().any(is_ours) {
            let version = |(change, row): (&Change, &Option<Entity>)| {
                let ours =
                    row.as_ref().filter(|row| is_ours(row)).map(|row| row.row.version.clone());
                change.value.as_ref().map(|_| ours.unwrap_or_else(|| Version::new(REPLACED)))
            };
            return Some(Committed::Done(self.changes.iter().zip(&rows).map(version).collect()));
        }
        let is_as_before = |(change, row): (&Change, &Option<Entity>)| {
            let row = row.as_ref().map(|row| &row.row.version);
            matches!(&change.condition, Condition::Version(version) if Some(version) == row)
        };
        let is_unmade = self.changes.iter().zip(&rows).any(is_as_before);
        is_unmade.then_some(Committed::Conflict)
    }
}

/// The outcome for an answer that is not what the service sends. Reading the rows shows more.
fn unreadable() -> Outcome {
    let message = "the answer to a batch has no status and ETag for each row";
    let error = Error::new(ErrorKind::Unavailable, message);
    Outcome::Failed(Failure { error, retry_after: None, is_lost: true })
}

fn unknown(source: Error) -> Error {
    let message = "a write got no answer, and the rows do not show whether it was made: read them \
                   before trying again";
    Error::new(ErrorKind::UnknownOutcome, message).with_source(source)
}

/// Whether a condition of a change does not hold.
fn is_conflict(answer: &Answer) -> bool {
    match answer.status {
        404 => error_code(answer) != "TableNotFound",
        409 => error_code(answer) == "EntityAlreadyExists",
        status => status == 412,
    }
}
