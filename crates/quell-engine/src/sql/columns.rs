//! Rows of a SQL database, read by the places of their columns.

use std::fmt;

use quell_core::trace::Traces;
use quell_core::{Error, ErrorKind, JobId, Result, Timestamp};

/// A row with columns of the type `T`, which are read by their places, from 0.
pub trait Get<T> {
    /// The value of a column.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where the column holds another type of value.
    fn get(&self, place: usize) -> Result<T>;
}

/// A row with columns of all types that a job and what hangs on it have.
///
/// Methods fail as [`Get::get`].
#[expect(clippy::missing_errors_doc, reason = "the trait says it once for all methods")]
pub trait Columns<'r>:
    Get<i64> + Get<Option<i64>> + Get<bool> + Get<&'r str> + Get<Option<&'r str>>
{
    /// A count.
    fn count(&self, place: usize) -> Result<u32>;

    /// The number of an enum's value; none where it is out of range.
    fn code(&self, place: usize) -> Result<Option<u8>>;

    /// A number of 64 bits.
    fn number(&self, place: usize) -> Result<i64> {
        self.get(place)
    }

    /// A number of 64 bits, or null.
    fn optional_number(&self, place: usize) -> Result<Option<i64>> {
        self.get(place)
    }

    /// A truth value.
    fn flag(&self, place: usize) -> Result<bool> {
        self.get(place)
    }

    /// A text.
    fn text(&self, place: usize) -> Result<&'r str> {
        self.get(place)
    }

    /// A text, or null.
    fn optional_text(&self, place: usize) -> Result<Option<&'r str>> {
        self.get(place)
    }

    /// A time.
    fn time(&self, place: usize) -> Result<Timestamp> {
        self.number(place).map(Timestamp::from_micros)
    }

    /// A time, or null.
    fn optional_time(&self, place: usize) -> Result<Option<Timestamp>> {
        Ok(self.optional_number(place)?.map(Timestamp::from_micros))
    }

    /// The trace contexts of a job (R42).
    fn traces(&self, place: usize) -> Result<Traces> {
        Ok(self.optional_text(place)?.map(Traces::from_stored).unwrap_or_default())
    }
}

/// A number as SQL databases store it, with a sign; ids and counts of Quell never reach the sign.
#[must_use]
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What [`signed`] was given.
#[must_use]
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The error of a row that breaks an invariant.
pub fn corrupt(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}: a row holds what Quell never wrote"))
}

/// The error of a job's row that cannot be decoded, which names the job.
#[must_use]
pub fn unreadable_row(id: JobId, error: &Error) -> Error {
    let why = std::error::Error::source(error).map_or_else(String::new, |e| format!(" ({e})"));
    Error::unreadable(id, format_args!("{error}{why}"))
}
