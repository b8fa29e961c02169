//! The result of `replay` as a table and as JSON.

use std::io::{Result, Write};
use std::time::Duration;

use quell_lab::Spread;
use quell_lab::chart::Screen;
use quell_lab::replay::Replayed;
use serde_json::{Value, json};

use crate::cli::numbers::{add_spread, grouped, percent, summary_fields};
use crate::cli::screen::Table;
use crate::config::duration::{exact, rough};

/// A replay and its result.
#[derive(Debug)]
pub(super) struct Report<'a> {
    /// The name of the store.
    pub(super) store: &'a str,
    pub(super) events: usize,
    /// The runs that the rules predict.
    pub(super) predicted: u64,
    pub(super) elapsed: Duration,
    pub(super) replayed: &'a Replayed,
}

impl Report<'_> {
    /// One object. Delays are in the trace's seconds, lateness in the machine's.
    pub(super) fn json(&self) -> Value {
        let mut fields = summary_fields(&self.replayed.summary);
        add_spread("lateness", &self.replayed.lateness, &mut fields);
        fields.insert("predicted_runs".into(), json!(self.predicted));
        fields.insert("elapsed_s".into(), json!(self.elapsed.as_secs_f64()));
        Value::Object(fields)
    }

    /// The table and its legend.
    pub(super) fn write(&self, screen: &Screen, out: &mut dyn Write) -> Result<()> {
        let summary = &self.replayed.summary;
        let (min, max) = (exact(summary.thresholds.min()), exact(summary.thresholds.max()));
        writeln!(
            out,
            "replayed {} of {} triggers through {} in {}, min {min}, max {max}\n",
            grouped(summary.triggers),
            grouped(self.events as u64),
            self.store,
            rough(self.elapsed)
        )?;
        let mut table = Table::new(["triggers", "runs", "saved", "", "p50", "p99", "max"]);
        let spread = |name: &str, spread: Spread| {
            [name.to_owned(), rough(spread.p50), rough(spread.p99), rough(spread.max)]
        };
        let counts = [grouped(summary.triggers), grouped(summary.runs), percent(summary.saved())];
        table.row(counts.into_iter().chain(spread("delay", summary.delay)));
        let none = [String::new(), String::new(), String::new()];
        table.row(none.into_iter().chain(spread("lateness", self.replayed.lateness)));
        table.write(screen, out)?;
        writeln!(out)?;
        writeln!(out, "delay: from a window's first trigger to its run, in the trace's time")?;
        writeln!(out, "lateness: from a window's due time to its run, in the machine's time")?;
        let agrees = if self.predicted == summary.runs { "the same" } else { "other" };
        writeln!(
            out,
            "runs covered {} triggers; the rules alone predict {agrees}: {} runs",
            grouped(summary.covered),
            grouped(self.predicted)
        )
    }
}
