//! The result of `simulate` as a table with a chart, and as JSON.

use std::io::{Result, Write};
use std::path::Path;

use quell::Timestamp;
use quell_lab::chart::{Picture, Point, Screen};
use quell_lab::simulate::Simulated;
use quell_lab::trace::{Event, Trace};
use serde_json::{Map, Value, json};

use crate::cli::numbers::{add_spread, grouped, percent, summary_fields};
use crate::cli::screen::Table;
use crate::config::duration::{exact, rough};

/// A trace and its results.
#[derive(Debug)]
pub(super) struct Report<'a> {
    name: String,
    events: u64,
    keys: u64,
    first: Timestamp,
    last: Timestamp,
    results: &'a [Simulated],
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &Path, trace: &Trace, results: &'a [Simulated]) -> Report<'a> {
        let name = file
            .canonicalize()
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
        let at = |event: Option<&Event>| event.map_or(Timestamp::MIN, |e| e.at);
        Report {
            name: name.unwrap_or_else(|| file.display().to_string()),
            events: trace.events().len() as u64,
            keys: trace.keys().len() as u64,
            first: at(trace.events().first()),
            last: at(trace.events().last()),
            results,
        }
    }

    /// One object; with a single pair its fields are at the top too, as `replay` prints them.
    pub(super) fn json(&self) -> Value {
        let pairs: Vec<Map<String, Value>> = self.results.iter().map(fields).collect();
        let mut object = match pairs.as_slice() {
            [single] => single.clone(),
            _ => Map::new(),
        };
        object.insert("source".into(), json!(self.name));
        object.insert("triggers".into(), json!(self.events));
        object.insert("keys".into(), json!(self.keys));
        object.insert("first".into(), json!(self.first.to_string()));
        object.insert("last".into(), json!(self.last.to_string()));
        object.insert("pairs".into(), json!(pairs));
        Value::Object(object)
    }

    /// The table, the chart, and how to read them.
    pub(super) fn write(&self, screen: &Screen, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "{}\n", self.headline())?;
        let picture = self.picture();
        self.table(&picture).write(screen, out)?;
        writeln!(out)?;
        picture.write(screen, out)?;
        writeln!(out)?;
        writeln!(out, "delay: from a window's first trigger to its run")?;
        writeln!(out, "each trigger: from any trigger to the run that covers it")
    }

    fn headline(&self) -> String {
        let day = |at: Timestamp| at.to_string().chars().take(10).collect::<String>();
        format!(
            "{}: {} triggers of {} keys, {} to {}",
            self.name,
            grouped(self.events),
            grouped(self.keys),
            day(self.first),
            day(self.last)
        )
    }

    fn table(&self, picture: &Picture) -> Table {
        let mut table = Table::new([
            "",
            "min",
            "max",
            "runs",
            "saved",
            "delay p50",
            "p99",
            "max",
            "each trigger p50",
            "p99",
        ]);
        for (point, one) in picture.points.iter().zip(self.results) {
            let Simulated { summary, trigger_delay } = one;
            table.row([
                point.mark.to_string(),
                exact(summary.thresholds.min()),
                exact(summary.thresholds.max()),
                grouped(summary.runs),
                percent(summary.saved()),
                rough(summary.delay.p50),
                rough(summary.delay.p99),
                rough(summary.delay.max),
                rough(trigger_delay.p50),
                rough(trigger_delay.p99),
            ]);
        }
        table
    }

    /// The results as points of a chart.
    pub(super) fn picture(&self) -> Picture {
        let marks = ('a'..='z').chain('A'..='Z').chain(std::iter::repeat('•'));
        let points = self.results.iter().zip(marks).map(|(one, mark)| {
            let summary = &one.summary;
            let (min, max) = (summary.thresholds.min(), summary.thresholds.max());
            Point::of(summary, mark, format!("{}–{}", exact(min), exact(max)))
        });
        Picture {
            title: "Runs saved against delay added".to_owned(),
            subtitle: self.headline(),
            points: points.collect(),
        }
    }
}

fn fields(one: &Simulated) -> Map<String, Value> {
    let mut fields = summary_fields(&one.summary);
    add_spread("trigger_delay", &one.trigger_delay, &mut fields);
    fields
}
