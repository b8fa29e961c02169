//! Recorded events, for `simulate`, `replay` and `demo`: what happened when, under which key.
//!
//! `rows` and `git` read a file or a repository into rows, `moment` reads a row's time, the key
//! template makes its key; [`Trace`] gathers the events in the order of time. Invariant: a row that
//! cannot be read stops the reading with an error that names file and line; none is skipped.

mod gather;
mod git;
mod moment;
mod rows;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use quell_core::{Key, Payload, Timestamp};

use crate::key_template::KeyTemplate;
pub use gather::{Event, Keep, KeyIndex, Trace};
pub(crate) use rows::Row;
use rows::Rows;

/// Which events to read, and what their time and key are.
#[derive(Clone, Debug, clap::Args)]
pub struct TraceArgs {
    /// A CSV file with a header row, or JSON lines, either gzipped or not; or a directory with a
    /// git repository, whose history has the columns timestamp, author, path, commit and subject.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The debounce key, as a template over the columns: "{{ repo }}/{{ path | split('/') | first }}".
    /// Events with an empty key are not debounced.
    #[arg(long, value_name = "TEMPLATE")]
    pub key: String,
    /// The column with the time: unix seconds, milliseconds or microseconds, or RFC 3339.
    #[arg(long, value_name = "COLUMN", default_value = "timestamp")]
    pub time: String,
}

/// One event as it is read.
#[derive(Debug)]
pub struct Recorded {
    /// When it happened.
    pub at: Timestamp,
    /// Its debounce key, if any.
    pub key: Option<Key>,
    row: Row,
}

impl Recorded {
    /// The row as the trigger's payload: its columns as a JSON object.
    #[must_use]
    pub fn payload(&self) -> Payload {
        self.row.payload()
    }
}

/// Reads events one by one, in the order of the file.
#[derive(Debug)]
pub struct Events {
    rows: Rows,
    key: KeyTemplate,
    time: String,
}

impl Events {
    /// Opens the file or repository; the events come from the iterator.
    ///
    /// # Errors
    /// A template that is wrong, a file that cannot be read or that lacks the time's column.
    pub fn open(args: &TraceArgs) -> Result<Self> {
        let key = KeyTemplate::new(&args.key).context("--key")?;
        let rows = Rows::open(&args.file)?;
        if let Some(columns) = rows.columns()
            && !columns.contains(&args.time)
        {
            bail!(
                "--time: {} has no column {:?}: it has {}",
                args.file.display(),
                args.time,
                columns.join(", ")
            );
        }
        Ok(Events { rows, key, time: args.time.clone() })
    }

    fn event(&self, row: Row) -> Result<Recorded> {
        let value = row.columns().get(&self.time).with_context(|| {
            let columns: Vec<&str> = row.columns().keys().map(String::as_str).collect();
            format!("there is no column {:?} for --time, only {}", self.time, columns.join(", "))
        })?;
        let at = moment::parse(value).with_context(|| format!("column {:?}", self.time))?;
        let key = self.key.key(row.value()).context("--key")?;
        Ok(Recorded { at, key, row })
    }
}

impl Iterator for Events {
    type Item = Result<Recorded>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.rows.next()?;
        Some(row.and_then(|row| {
            let line = row.line();
            self.event(row).with_context(|| self.rows.place(line))
        }))
    }
}
