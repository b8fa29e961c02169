//! The arguments that `simulate` and `replay` share: which events to read, and the rule to apply.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use quell::trigger::Thresholds;
use quell_core::Fold;
use quell_lab::trace::Source;
use quell_lab::{Error, Rule};

use crate::config::fold::parse_fold;
use crate::config::key_template::KeyTemplate;

/// Which events to read, and what their time and key are.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TraceArgs {
    /// A CSV file with a header row, or JSON lines, either gzipped or not; or a directory with a
    /// git repository, whose history has the columns timestamp, author, path, commit and subject.
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// The debounce key, as a template over the columns: "{{ repo }}/{{ path | split('/') | first }}".
    /// Events with an empty key are not debounced.
    #[arg(long, value_name = "TEMPLATE")]
    key: String,
    /// The column with the time: unix seconds, milliseconds or microseconds, or RFC 3339.
    #[arg(long, value_name = "COLUMN", default_value = "timestamp")]
    time: String,
}

impl TraceArgs {
    /// The source that they name; a wrong template is an error.
    pub(super) fn source(&self) -> Result<Source> {
        let key = KeyTemplate::new(&self.key).context("--key")?;
        Ok(Source::new(&self.file).time(&self.time).key(move |row| key.key(row)))
    }
}

/// The parts of the rule that all pairs of thresholds share.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RuleArgs {
    /// Run a window at once when it has gathered this many triggers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_triggers: Option<u32>,
    /// How the payloads of a window become one: last, first, merge, collect, collect:CAP or
    /// accumulate:FIELD,... (a full collect runs at once).
    #[arg(long, value_name = "FOLD", default_value = "last", value_parser = parse_fold)]
    payload: Fold,
}

impl RuleArgs {
    /// The rule with these thresholds.
    pub(super) fn rule(&self, thresholds: Thresholds) -> Rule {
        Rule { thresholds, max_triggers: self.max_triggers, fold: self.payload.clone() }
    }
}

/// An error with the argument at fault in front, where it is one.
pub(super) fn with_argument(error: Error) -> anyhow::Error {
    let argument = error.field().map(|field| format!("--{field}"));
    match argument {
        Some(argument) => anyhow::Error::new(error).context(argument),
        None => error.into(),
    }
}
