//! What was measured, as a table, a chart, JSON, and a section of the month's file in
//! bench/archive.

use std::io::Write;
use std::process::Command;

use anyhow::Context;
use quell::sqlite::Synchronous;
use serde_json::{Value, json};

const PEER: &str = "effectum 0.7";

/// One workload in one mode.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    workload: String,
    mode: Synchronous,
    unit: &'static str,
    quell: f64,
    peer: Option<f64>,
    floor: Option<f64>,
    goal: Option<String>,
    met: Option<bool>,
    note: String,
}

impl Row {
    pub(crate) fn new(workload: &str, mode: Synchronous, unit: &'static str, quell: f64) -> Self {
        let (workload, note) = (workload.to_owned(), String::new());
        let (peer, floor, goal, met) = (None, None, None, None);
        Row { workload, mode, unit, quell, peer, floor, goal, met, note }
    }

    /// Beside the peer; a goal of 0 asks for nothing.
    pub(crate) fn beside(mut self, peer: Option<f64>, goal: f64) -> Self {
        self.peer = peer;
        if let (Some(peer), true) = (peer, goal > 0.0) {
            self.judge(format!("{goal}x peer"), self.quell >= goal * peer);
        }
        self
    }

    /// Over the floor, likewise.
    pub(crate) fn above(mut self, floor: Option<f64>, goal: f64) -> Self {
        self.floor = floor;
        if let (Some(floor), true) = (floor, goal > 0.0) {
            self.judge(format!("{:.0} % of floor", goal * 100.0), self.quell >= goal * floor);
        }
        self
    }

    pub(crate) fn at_least(mut self, goal: f64) -> Self {
        if goal > 0.0 {
            self.judge(format!("at least {goal:.0}"), self.quell >= goal);
        }
        self
    }

    pub(crate) fn at_most(mut self, goal: f64) -> Self {
        self.judge(format!("at most {goal}"), self.quell <= goal);
        self
    }

    pub(crate) fn noted(mut self, note: &str) -> Self {
        note.clone_into(&mut self.note);
        self
    }

    pub(crate) fn failed(mut self, why: &str) -> Self {
        self.met = Some(false);
        self.noted(why)
    }

    fn judge(&mut self, goal: String, met: bool) {
        self.goal = Some(match self.goal.take() {
            Some(other) => format!("{other}, {goal}"),
            None => goal,
        });
        self.met = Some(self.met.unwrap_or(true) && met);
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "workload": self.workload,
            "mode": format!("{:?}", self.mode).to_lowercase(),
            "quell": self.quell,
            "peer": self.peer,
            "peer_name": self.peer.map(|_| PEER),
            "floor": self.floor,
            "ratio": self.peer.map(|peer| self.quell / peer),
            "floor_ratio": self.floor.map(|floor| self.quell / floor),
            "unit": self.unit,
            "goal": self.goal,
            "met": self.met,
            "note": self.note,
        })
    }

    fn markdown(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
        let ratio = |other: Option<f64>| {
            other.map_or_else(|| "-".to_owned(), |other| format!("{:.2}", self.quell / other))
        };
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let cells = [
            self.workload.clone(),
            format!("{:?}", self.mode).to_lowercase(),
            format!("{} {}", shown(self.quell), self.unit),
            number(self.peer),
            ratio(self.peer),
            number(self.floor),
            ratio(self.floor),
            self.goal.clone().unwrap_or_else(|| "-".to_owned()),
            met.to_owned(),
            self.note.clone(),
        ];
        format!("| {} |", cells.join(" | "))
    }
}

/// A number with as many digits as it is worth.
pub(crate) fn shown(value: f64) -> String {
    if value >= 1_000.0 { format!("{:.1} k", value / 1e3) } else { format!("{value:.2}") }
}

fn table(rows: &[Row]) -> String {
    let head = "| workload | mode | Quell | peer | ratio | floor | ratio | goal | met | note |\n\
                | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let lines: Vec<String> = rows.iter().map(Row::markdown).collect();
    format!("{head}{}\n", lines.join("\n"))
}

/// Bars for what is counted per second, longest first line full.
fn chart(rows: &[Row]) -> String {
    let rates = rows.iter().filter(|row| row.unit == "per second");
    let most = rates.clone().map(|row| row.quell).fold(1.0, f64::max);
    let bar = |row: &Row| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most forty cells"
        )]
        let cells = (40.0 * row.quell / most).ceil() as usize;
        let mode = format!("{:?}", row.mode).to_lowercase();
        format!("{:<38} {mode:<6} {} {}\n", row.workload, "█".repeat(cells), shown(row.quell))
    };
    rates.map(bar).collect()
}

/// Prints the table and the chart.
pub(crate) fn show(rows: &[Row]) -> anyhow::Result<()> {
    Ok(write!(std::io::stdout(), "{}\n{}", table(rows), chart(rows))?)
}

/// Appends a section to the month's file in bench/archive.
pub(crate) fn record(rows: &[Row]) -> anyhow::Result<()> {
    record_section(&format!("Medians; the peer is {PEER}"), &format!("\n{}", table(rows)))
}

/// Appends a section of these tables to the month's file in bench/archive, with the command and
/// the machine. bench/RESULTS.md quotes these files and is written by hand.
pub(crate) fn record_section(about: &str, tables: &str) -> anyhow::Result<()> {
    let reported = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        output.map_or_else(
            |_| String::new(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_start();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let date = reported("date", &["--utc", "+%Y-%m-%d %H:%M UTC"]);
    let month = date.get(..7).context("`date` gave no date to name the month's file by")?;
    let file = format!("bench/archive/{month}.md");
    let section = format!(
        "\n## {date}\n\n`cargo xtask bench {command}` on {cores} cores{model}, {kernel}. {about}.\n{tables}",
        command = words.join(" "),
        cores = std::thread::available_parallelism().map_or(0, usize::from),
        kernel = reported("uname", &["-sr"]),
    );
    let mut file = std::fs::File::options().create(true).append(true).open(&file).context(file)?;
    if file.metadata()?.len() == 0 {
        writeln!(file, "# Results of {month}")?;
    }
    Ok(file.write_all(section.as_bytes())?)
}
