//! Recorded events: the time of each, its key and its payload.
//!
//! `rows` and `git` read a file or a repository into rows, `moment` parses a row's time, and the
//! source's function makes its key; [`Trace`] has the events in the order of time. Invariant: a row
//! that cannot be read ends the reading with an error that names file and line; none is skipped.

mod events;
mod git;
mod moment;
mod rows;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use quell_core::{Key, Payload, Timestamp};
use serde_json::Value;

use crate::error::{Error, Result, without_field};
pub use events::{Event, KeyIndex, Trace};
use rows::{Row, Rows};

/// The column of the time, where none is named.
const TIME: &str = "timestamp";

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type KeyOf = Box<dyn Fn(&Value) -> std::result::Result<Option<Key>, BoxError> + Send + Sync>;

/// Where recorded events are, and which column and key they have.
///
/// A file is CSV with a header row or JSON lines, gzipped or not: its first bytes decide. A
/// directory is the top of a git repository: each changed file of a commit is an event, with the
/// columns `timestamp`, `author`, `path`, `commit` and `subject`.
///
/// ```
/// use quell_core::Key;
/// use quell_lab::trace::{Source, Trace};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("events.jsonl");
/// # std::fs::write(&file, "{\"at\":\"2026-01-02T03:04:05Z\",\"repo\":\"shop\"}\n{\"at\":1}\n")?;
/// let source = Source::new(&file)
///     .time("at")
///     .key(|row| row["repo"].as_str().map(Key::new).transpose());
/// let trace = Trace::read(&source)?;
/// assert_eq!((trace.events().len(), trace.keys().len()), (2, 1));
/// # Ok(())
/// # }
/// ```
pub struct Source {
    file: PathBuf,
    time: String,
    key: KeyOf,
    payloads: bool,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Source { file, time, payloads, .. } = self;
        let mut shown = f.debug_struct("Source");
        shown.field("file", file).field("time", time).field("payloads", payloads);
        shown.finish_non_exhaustive()
    }
}

impl Source {
    /// The events of a file or a repository, with the time in the column `timestamp` and no keys.
    pub fn new(file: impl Into<PathBuf>) -> Source {
        let (file, time) = (file.into(), TIME.to_owned());
        Source { file, time, key: Box::new(|_| Ok(None)), payloads: false }
    }

    /// The column with the time: unix seconds, milliseconds or microseconds, or RFC 3339.
    #[must_use]
    pub fn time(self, column: impl Into<String>) -> Source {
        Source { time: column.into(), ..self }
    }

    /// The debounce key of an event, from its columns as a JSON object; `None` for an event that is
    /// not debounced (R9). The columns of CSV and git are texts.
    #[must_use]
    pub fn key<E: Into<BoxError>>(
        self,
        key: impl Fn(&Value) -> std::result::Result<Option<Key>, E> + Send + Sync + 'static,
    ) -> Source {
        Source { key: Box::new(move |row| key(row).map_err(Into::into)), ..self }
    }

    /// Also keep each event's columns, as the payload of its trigger: a replay sends it.
    #[must_use]
    pub fn payloads(self) -> Source {
        Source { payloads: true, ..self }
    }

    /// The file or the repository.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    fn event(&self, row: &Row) -> Result<Recorded> {
        let columns = row.columns();
        let value = columns.get(&self.time).ok_or_else(|| {
            let names: Vec<&str> = columns.keys().map(String::as_str).collect();
            self.no_such_column(&names)
        })?;
        let at = moment::parse(value)
            .map_err(|error| Error::of("time", error.context(format!("column {:?}", self.time))))?;
        let key = (self.key)(row.value());
        let key = key.map_err(|error| Error::of("key", anyhow::Error::from_boxed(error)))?;
        Ok(Recorded { at, key, payload: self.payloads.then(|| row.payload()) })
    }

    fn no_such_column(&self, names: &[impl AsRef<str>]) -> Error {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let names = names.join(", ");
        Error::of("time", anyhow!("no column {:?} for the time: give one of {names}", self.time))
    }
}

/// One event as it is read.
struct Recorded {
    at: Timestamp,
    key: Option<Key>,
    payload: Option<Payload>,
}

/// Reads events one by one, in the order of the file.
struct Events<'s> {
    source: &'s Source,
    rows: Rows,
}

impl Events<'_> {
    /// A file that cannot be read, or lacks the time's column, is an error.
    fn open(source: &Source) -> Result<Events<'_>> {
        let rows = Rows::open(&source.file).map_err(without_field)?;
        match rows.columns() {
            Some(columns) if !columns.contains(&source.time) => {
                let error = source.no_such_column(&columns);
                Err(error.context(source.file.display().to_string()))
            }
            _ => Ok(Events { source, rows }),
        }
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Recorded>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next()?.map_err(without_field);
        Some(row.and_then(|row| {
            let place = || self.rows.place(row.line());
            self.source.event(&row).map_err(|error| error.context(place()))
        }))
    }
}
