//! What went wrong on a connection, and what that means to a caller.

use fe2o3_amqp::link::{LinkStateError, SendError};
use fe2o3_amqp::types::definitions::{self, ErrorCondition};
use fe2o3_amqp::types::primitives::Symbol;
use quell_core::{Error, ErrorKind};

use crate::error::Source;

/// Why an operation was not done for certain.
#[derive(Debug)]
pub(super) enum Failure {
    /// The service answers with an error; the connection is well.
    Rejected(Rejection),
    /// There is no token to present.
    NoToken(Error),
    /// The connection failed before the operation was sent.
    NotSent(Source),
    /// The connection failed after that: it was done, or it was not.
    InDoubt(Source),
}

/// An error of the service: its condition, and its text.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) status: i32,
    pub(super) condition: String,
    pub(super) text: String,
}

impl Failure {
    pub(super) fn not_sent(source: impl Into<Source>) -> Self {
        Failure::NotSent(source.into())
    }

    pub(super) fn in_doubt(source: impl Into<Source>) -> Self {
        Failure::InDoubt(source.into())
    }

    /// The failure of a send before its transfer has left.
    pub(super) fn of_transfer(error: SendError) -> Self {
        match error {
            SendError::MessageSizeExceeded(_) => Failure::Rejected(Rejection {
                status: 413,
                condition: "amqp:link:message-size-exceeded".to_owned(),
                text: "the message is too long".to_owned(),
            }),
            error => Failure::not_sent(error),
        }
    }

    /// The failure of a send after its transfer has left.
    pub(super) fn of_settlement(error: SendError) -> Self {
        match error {
            // The service closes the link in place of an answer.
            SendError::LinkStateError(
                LinkStateError::RemoteClosedWithError(error)
                | LinkStateError::RemoteDetachedWithError(error),
            ) => Failure::in_doubt(Rejection::from(&error).to_string()),
            error => Failure::in_doubt(error),
        }
    }
}

impl From<&definitions::Error> for Rejection {
    fn from(error: &definitions::Error) -> Self {
        let condition = match &error.condition {
            ErrorCondition::AmqpError(error) => Symbol::from(error).to_string(),
            ErrorCondition::LinkError(error) => Symbol::from(error).to_string(),
            ErrorCondition::Custom(symbol) => symbol.to_string(),
            other => format!("{other:?}"),
        };
        Rejection { status: 0, condition, text: error.description.clone().unwrap_or_default() }
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.text.trim_end_matches('.'), self.condition)
    }
}

const UNAUTHORIZED: &str = "amqp:unauthorized-access";
const NO_QUEUE: &str = "amqp:not-found";
const FULL: &str = "amqp:resource-limit-exceeded";
const TOO_LONG: &str = "amqp:link:message-size-exceeded";

impl Rejection {
    /// Whether the receiver no longer holds the message, or a scheduled one is not there to cancel.
    pub(super) fn is_gone(&self) -> bool {
        let lost = ["com.microsoft:message-lock-lost", "com.microsoft:message-not-found"];
        self.status == 410 || lost.contains(&self.condition.as_str())
    }

    /// Whether a token had expired when it arrived.
    pub(super) fn is_expired(&self) -> bool {
        self.status == 401 && self.text.contains("ExpiredToken")
    }

    /// Whether the service is throttling, and has done nothing.
    pub(super) fn is_busy(&self) -> bool {
        self.status == 503 || self.condition == "com.microsoft:server-busy"
    }

    /// Whether the service itself does not know if it did what was asked.
    pub(super) fn is_in_doubt(&self) -> bool {
        let doubts = ["com.microsoft:timeout", "amqp:internal-error"];
        matches!(self.status, 408 | 500 | 504) || doubts.contains(&self.condition.as_str())
    }

    /// The error of a call; `what` completes "cannot …", and `remedy` says how to fix credentials.
    pub(super) fn error(&self, what: &str, queue: &str, remedy: &str) -> Error {
        let (kind, reason) = match (self.status, self.condition.as_str()) {
            (..) if self.is_gone() => {
                (ErrorKind::NotFound, format!("its lock was lost, or it is gone: {self}"))
            }
            (401 | 403, _) | (_, UNAUTHORIZED) => {
                let reason = format!("Service Bus rejects the credentials: {self}: {remedy}");
                (ErrorKind::Unavailable, reason)
            }
            (404, _) | (_, NO_QUEUE) => {
                let reason = format!("queue {queue:?} does not exist: create it: {self}");
                (ErrorKind::Unavailable, reason)
            }
            (_, FULL) => (ErrorKind::Full, format!("queue {queue:?} is full: {self}")),
            (413, _) | (_, TOO_LONG) => (ErrorKind::Invalid, self.to_string()),
            (400, _) => (ErrorKind::Internal, self.to_string()),
            (..) => (ErrorKind::Unavailable, self.to_string()),
        };
        Error::new(kind, format!("cannot {what}: {reason}"))
    }
}
