//! The one error of the public surface: opaque, with a kind, the field at fault, and its sources.
//!
//! # Design
//! Callers decide on the *kind* (retry? give up? unknown?), people read the message. A tree of
//! public variants per store would freeze internals into the API, so stores keep private enums and
//! hand them over as the source.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::JobId;

/// The result of Quell's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, which decides what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input breaks a rule; nothing was written. [`Error::field`] names it (R40).
    Invalid,
    /// What was asked for does not exist.
    NotFound,
    /// The idempotency key was used for another payload; nothing was written (R19).
    IdempotencyConflict,
    /// The job is in a state from which this move does not exist.
    IllegalMove,
    /// Another process holds a row or lock that is needed; a retry later helps (R35).
    Contention,
    /// The store cannot be reached, or failed before it did anything.
    Unavailable,
    /// The connection broke after the commit was sent: it happened, or it did not (R1).
    UnknownOutcome,
    /// The store lacks a capability that the call needs; nothing was written (R18).
    Unsupported,
    /// The store is full: nothing was written.
    Full,
    /// The store may not be written by this process.
    ReadOnly,
    /// The store was written by a newer Quell than this one.
    Newer,
    /// The file or schema is not Quell's.
    Foreign,
    /// What the store holds breaks an invariant.
    Corrupt,
    /// The client or worker was shut down.
    Closed,
    /// A defect in Quell itself.
    Internal,
}

/// What caused an error.
type Source = Box<dyn StdError + Send + Sync>;

/// What went wrong, where, and what to do about it.
///
/// ```
/// use quell_core::{ErrorKind, Key};
///
/// let error = Key::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert_eq!(error.field(), Some("key"));
/// assert!(!error.is_retryable());
/// ```
#[derive(Debug, Serialize, Deserialize)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    field: Option<Cow<'static, str>>,
    unreadable: Option<JobId>,
    /// As text where the error has crossed a wire.
    #[serde(serialize_with = "write_source", deserialize_with = "read_source")]
    source: Option<Source>,
}

impl Error {
    /// An error of `kind`; `message` says what, where and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), field: None, unreadable: None, source: None }
    }

    /// Bad input in `field` (R40).
    pub fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Error { field: Some(Cow::Borrowed(field)), ..Error::new(ErrorKind::Invalid, message) }
    }

    /// The row of `job` cannot be decoded; `message` says what of it.
    pub fn unreadable(job: JobId, message: impl fmt::Display) -> Self {
        let message = format!("cannot decode the row of job {job}: {message}");
        Error { unreadable: Some(job), ..Error::new(ErrorKind::Corrupt, message) }
    }

    /// The job whose row cannot be decoded, where that is why the call failed. A store sets such a
    /// row aside and makes the call again, so that it harms no other job (R25).
    #[must_use]
    pub fn unreadable_job(&self) -> Option<JobId> {
        self.unreadable
    }

    /// The same error with the one that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error, said to be about `place`, for example `triggers[3]`.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// What sort of thing went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The input field at fault, for [`ErrorKind::Invalid`].
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// Whether the same call may succeed later, with nothing written by this one.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Contention | ErrorKind::Unavailable | ErrorKind::Full)
    }

    /// Whether it is unknown if the call took effect (R1): retry only with an idempotency or
    /// dedup key.
    #[must_use]
    pub fn is_unknown_outcome(&self) -> bool {
        self.kind == ErrorKind::UnknownOutcome
    }

    /// The same error for another of the callers that shared one call; sources become text.
    #[must_use]
    pub fn share(&self) -> Error {
        Error {
            kind: self.kind,
            message: self.message.clone(),
            field: self.field.clone(),
            unreadable: self.unreadable,
            source: self.source.as_ref().map(|source| chain(source.as_ref()).into()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

fn write_source<S: Serializer>(source: &Option<Source>, to: S) -> Result<S::Ok, S::Error> {
    source.as_ref().map(|source| chain(source.as_ref())).serialize(to)
}

fn read_source<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Source>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(Source::from))
}

/// An error and all its sources on one line.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_done_may_be_tried_again() {
        let retryable = [ErrorKind::Contention, ErrorKind::Unavailable, ErrorKind::Full];
        for kind in retryable {
            let error = Error::new(kind, "m");
            assert!(error.is_retryable() && !error.is_unknown_outcome(), "{kind:?}");
        }
        for kind in [ErrorKind::Invalid, ErrorKind::UnknownOutcome, ErrorKind::Corrupt] {
            assert!(!Error::new(kind, "m").is_retryable(), "{kind:?}");
        }
        assert!(Error::new(ErrorKind::UnknownOutcome, "m").is_unknown_outcome());
        assert!(!Error::new(ErrorKind::Invalid, "m").is_unknown_outcome());
    }

    #[test]
    fn a_shared_error_keeps_all_its_sources_as_text() {
        let inner = Error::new(ErrorKind::Internal, "inner");
        let middle = Error::new(ErrorKind::Internal, "middle").with_source(inner);
        let error = Error::new(ErrorKind::Unavailable, "outer").with_source(middle);
        assert_eq!(error.source().unwrap().to_string(), "middle");
        let shared = error.share();
        assert_eq!((shared.kind(), shared.to_string().as_str()), (error.kind(), "outer"));
        assert_eq!(shared.source().unwrap().to_string(), "middle: inner");
    }

    #[test]
    fn an_error_crosses_a_wire_with_all_that_callers_decide_by() {
        let source = Error::new(ErrorKind::Internal, "inner");
        let errors = [
            Error::invalid("key", "a key is empty: give one"),
            Error::unreadable(JobId::new(7), "state 77 is unknown"),
            Error::new(ErrorKind::UnknownOutcome, "outer").with_source(source),
        ];
        for error in errors {
            let sent = serde_json::to_string(&error).unwrap();
            let received: Error = serde_json::from_str(&sent).unwrap();
            assert_eq!(received.kind(), error.kind());
            assert_eq!(received.field(), error.field());
            assert_eq!(received.unreadable_job(), error.unreadable_job());
            assert_eq!(chain(&received), chain(&error));
        }
    }
}
