//! The answer of `replay` as a table and as JSON.

use std::io::{Result, Write};
use std::time::Duration;

use quell_core::window::Thresholds;
use serde_json::{Value, json};

use super::ledger::Counted;
use super::stage::scaled;
use crate::chart::Screen;
use crate::chart::table::Table;
use crate::duration::{exact, rough};
use crate::summary::{Spread, Summary, grouped, percent};

/// What was asked and what came out.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) name: &'a str,
    pub(super) thresholds: Thresholds,
    pub(super) events: usize,
    /// The runs that the rules predict.
    pub(super) predicted: u64,
    pub(super) elapsed: Duration,
    /// Trace seconds in one second of the store's time.
    pub(super) scale: f64,
    pub(super) counted: &'a Counted,
}

impl Report<'_> {
    fn summary(&self) -> Summary {
        let Counted { accepted, runs, covered, delays, .. } = self.counted;
        let spread = Spread::of(delays.clone());
        let stretched = |duration: Duration| {
            if self.scale == 1.0 { duration } else { scaled(duration, self.scale) }
        };
        let delay = Spread {
            p50: stretched(spread.p50),
            p99: stretched(spread.p99),
            max: stretched(spread.max),
        };
        let (thresholds, triggers) = (self.thresholds, *accepted);
        Summary { thresholds, triggers, runs: *runs, covered: *covered, delay }
    }

    fn lateness(&self) -> Spread {
        Spread::of(self.counted.lateness.clone())
    }

    /// One object. Delays are in the trace's seconds, lateness in the machine's.
    pub(super) fn json(&self) -> Value {
        let mut fields = self.summary().fields();
        self.lateness().write("lateness", &mut fields);
        fields.insert("predicted_runs".into(), json!(self.predicted));
        fields.insert("elapsed_s".into(), json!(self.elapsed.as_secs_f64()));
        Value::Object(fields)
    }

    /// The table and what it means.
    pub(super) fn write(&self, screen: &Screen, out: &mut dyn Write) -> Result<()> {
        let summary = self.summary();
        let (min, max) = (exact(self.thresholds.min()), exact(self.thresholds.max()));
        writeln!(
            out,
            "replayed {} of {} triggers through {} in {}, min {min}, max {max}\n",
            grouped(summary.triggers),
            grouped(self.events as u64),
            self.name,
            rough(self.elapsed)
        )?;
        let mut table = Table::new(["triggers", "runs", "saved", "", "p50", "p99", "max"]);
        let spread = |name: &str, spread: Spread| {
            [name.to_owned(), rough(spread.p50), rough(spread.p99), rough(spread.max)]
        };
        let counts = [grouped(summary.triggers), grouped(summary.runs), percent(summary.saved())];
        table.row(counts.into_iter().chain(spread("delay", summary.delay)));
        let none = [String::new(), String::new(), String::new()];
        table.row(none.into_iter().chain(spread("lateness", self.lateness())));
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
