//! The exit status of the program: 0 where it did what it was to do, 1 where that failed, and two kinds of
//! errors with a status of their own.

use std::fmt;

/// The status of most errors.
pub const FAILED: u8 = 1;
/// The status of a wrong command line.
pub const MISUSED: u8 = 2;
/// The status where the time of `--wait` was over before the end.
pub const NOT_ENDED: u8 = 3;

/// The exit status of an error.
#[must_use]
pub fn status(error: &anyhow::Error) -> u8 {
    if error.is::<Misuse>() {
        MISUSED
    } else if error.is::<NotEnded>() {
        NOT_ENDED
    } else {
        FAILED
    }
}

/// A command line that the parser could not refuse.
#[derive(Debug)]
pub(crate) struct Misuse(String);

impl Misuse {
    pub(crate) fn error(message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Misuse(message.into()))
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// What a command waited for has not ended.
#[derive(Debug)]
pub(crate) struct NotEnded(String);

impl NotEnded {
    pub(crate) fn error(message: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(NotEnded(message.into()))
    }
}

impl fmt::Display for NotEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotEnded {}
