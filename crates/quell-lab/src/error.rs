//! The error of this crate: opaque, with the input at fault and the chain of its sources.

use std::fmt;

/// Why a trace cannot be read or a replay cannot go on.
///
/// The message names the file and line, or the value, and the remedy. [`std::error::Error::source`]
/// leads to the cause.
pub struct Error {
    field: Option<&'static str>,
    cause: anyhow::Error,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The input at fault, where one is: `time` or `key` of a [`Source`](crate::trace::Source),
    /// `speed` or `store` of a [`Replay`](crate::replay::Replay).
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        self.field
    }

    pub(crate) fn of(field: &'static str, cause: anyhow::Error) -> Error {
        Error { field: Some(field), cause }
    }

    /// The same error with a line in front of its chain.
    pub(crate) fn context(self, text: impl fmt::Display + Send + Sync + 'static) -> Error {
        Error { cause: self.cause.context(text), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.cause, f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("field", &self.field).field("cause", &self.cause).finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

/// What this crate's own modules fail with.
pub(crate) fn without_field(cause: anyhow::Error) -> Error {
    Error { field: None, cause }
}
