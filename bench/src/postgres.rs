//! Quell on PostgreSQL beside its peers and a floor in plain SQL: each is a program of its own, and
//! all are measured by the same code (`bench/peers/pg-common`), in turn, on one private server with
//! its settings as shipped. A program that fails stands in the table with its reason.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use quell_services::Postgres;
use serde::Deserialize;

use crate::program::{self, Told};
use crate::report::{record_section, shown};
use crate::scaling;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How Quell alone scales, in place of how it stands beside its peers.
    #[arg(long)]
    scaling: bool,
    /// Smaller sizes and one round.
    #[arg(long)]
    quick: bool,
    /// Write one JSON object per measurement to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Append the results to bench/RESULTS.md.
    #[arg(long)]
    record: bool,
    /// Only workloads whose name has this in it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Where the programs are.
    #[arg(long, value_name = "FOLDER", default_value = "target/peers/release")]
    programs: PathBuf,
}

/// A program and its set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contender(&'static str, &'static str);

const QUELL: Contender = Contender("quell-postgres-bench", "defaults");
const FLOOR: Contender = Contender("pg-floor", "best");
const GRAPHILE: Contender = Contender("graphile-worker-peer", "best");
const CONTENDERS: [Contender; 9] = [
    QUELL,
    Contender("quell-postgres-bench", "best"),
    FLOOR,
    Contender("graphile-worker-peer", "defaults"),
    GRAPHILE,
    Contender("apalis-postgres-peer", "defaults"),
    Contender("apalis-postgres-peer", "best"),
    Contender("awa-peer", "defaults"),
    Contender("awa-peer", "best"),
];

/// What each contender printed, or why it did not.
type Found = Vec<(Contender, Result<Measurement, String>)>;

/// What a program printed.
#[derive(Clone, Debug, Deserialize)]
struct Measurement {
    median: f64,
    p99: Option<f64>,
    wal_bytes_per_job: Option<f64>,
    transactions_per_job: Option<f64>,
    dead_rows_per_job: Option<f64>,
}

/// What is asked of Quell.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// At least so many times as much as the peer, and such a share of the floor.
    Ratios(f64, f64),
    /// At least so much a second.
    Rate(f64),
    /// At most so much, and such a tail.
    Millis(f64, f64),
    /// At most so much.
    AtMost(f64),
}

/// A workload: its name, what programs are told, and the goal.
struct Workload {
    name: &'static str,
    args: &'static [&'static str],
    quick: &'static [&'static str],
    goal: Goal,
    rounds: u8,
    /// Where defaults take minutes or longer, only the best settings of the peers are measured.
    defaults: bool,
    /// Whether plain SQL can do it at all.
    floor: bool,
}

const WORKLOADS: [Workload; 8] = [
    Workload {
        name: "batch enqueue, per second",
        args: &["batch"],
        quick: &["batch", "--count", "30000"],
        goal: Goal::Ratios(2.5, 0.6),
        rounds: 3,
        defaults: true,
        floor: true,
    },
    Workload {
        name: "drain of 100,000 no-ops, per second",
        args: &["drain"],
        quick: &["drain", "--count", "30000"],
        goal: Goal::Ratios(2.0, 0.0),
        rounds: 3,
        defaults: false,
        floor: true,
    },
    Workload {
        name: "single enqueue, 32 callers, per second",
        args: &["single", "--count", "9600"],
        quick: &["single", "--count", "3200"],
        goal: Goal::Rate(25_000.0),
        rounds: 3,
        defaults: true,
        floor: true,
    },
    Workload {
        name: "debounced, 32 callers, 100 keys, per second",
        args: &["debounced", "--count", "9600"],
        quick: &["debounced", "--count", "3200"],
        goal: Goal::Rate(25_000.0),
        rounds: 3,
        defaults: true,
        floor: true,
    },
    Workload {
        name: "debounced, 512 callers, 100 keys, per second",
        args: &["debounced", "--callers", "512", "--count", "25600"],
        quick: &["debounced", "--callers", "512", "--count", "10240"],
        goal: Goal::Rate(100_000.0),
        rounds: 3,
        defaults: false,
        floor: true,
    },
    Workload {
        name: "enqueue to start, ms (p50, p99)",
        args: &["latency", "--samples", "300", "--budget", "15"],
        quick: &["latency", "--samples", "100", "--budget", "10"],
        goal: Goal::Millis(1.5, 5.0),
        rounds: 3,
        defaults: true,
        floor: true,
    },
    Workload {
        name: "idle for a minute, then one job, ms",
        args: &["idle", "--seconds", "60"],
        quick: &["idle", "--seconds", "5"],
        goal: Goal::AtMost(5.0),
        rounds: 1,
        defaults: false,
        floor: false,
    },
    Workload {
        name: "transactions of an idle worker, per second",
        args: &["statements", "--seconds", "33"],
        quick: &["statements", "--seconds", "13"],
        goal: Goal::AtMost(1.0),
        rounds: 1,
        defaults: true,
        floor: false,
    },
];

/// Measures, shows and records.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let server = Postgres::start(&[]).context("start PostgreSQL")?;
    let (about, (tables, lines)) = if args.scaling {
        ("Quell alone on PostgreSQL, settings as shipped", scaling::measure(args, &server)?)
    } else {
        (
            "PostgreSQL, settings as shipped; medians of three rounds for whom a goal names, else one round",
            measure(args, &server)?,
        )
    };
    if let Some(file) = &args.json {
        std::fs::write(file, lines)?;
    }
    write!(std::io::stdout(), "{tables}")?;
    if args.record {
        record_section(about, &tables)?;
    }
    Ok(())
}

impl Args {
    /// What its own line asks for, smaller where that is wanted.
    pub(crate) fn sized<'a>(&self, full: &'a [&'a str], quick: &'a [&'a str]) -> &'a [&'a str] {
        if self.quick { quick } else { full }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Runs one of the programs on this server.
    pub(crate) fn ask(&self, server: &Postgres, name: &str, args: &[&str], seconds: u32) -> Told {
        let mut command = Command::new(Path::new(&self.programs).join(name));
        command.args(args).args(["--url", &server.url()]);
        program::run(&command, seconds)
    }
}

fn measure(args: &Args, server: &Postgres) -> anyhow::Result<(String, String)> {
    let (mut tables, mut lines) = (String::new(), String::new());
    for workload in WORKLOADS.iter().filter(|workload| args.wants(workload.name)) {
        let mut found = Found::new();
        for contender in CONTENDERS.into_iter().filter(|contender| workload.is_for(*contender)) {
            let Contender(program, settings) = contender;
            writeln!(std::io::stderr(), "{}: {program} {settings}", workload.name)?;
            let rounds = if args.quick { 1 } else { workload.rounds_of(contender) }.to_string();
            let more = ["--settings", settings, "--rounds", &rounds];
            let asked = [args.sized(workload.args, workload.quick), &more].concat();
            let told = args.ask(server, program, &asked, 600);
            let read = match told.failed {
                Some(reason) => Err(reason),
                None => serde_json::from_str(told.text.trim()).map_err(|error| error.to_string()),
            };
            if let Err(reason) = &read {
                writeln!(std::io::stderr(), "  failed: {reason}")?;
            }
            lines.push_str(&told.text);
            found.push((contender, read));
        }
        tables.push_str(&table(workload, &found));
    }
    Ok((tables, lines))
}

impl Workload {
    /// Whoever a goal compares is measured as often as it takes; the others stand beside them.
    fn rounds_of(&self, contender: Contender) -> u8 {
        if [QUELL, FLOOR, GRAPHILE].contains(&contender) { self.rounds } else { 1 }
    }

    fn is_for(&self, contender: Contender) -> bool {
        let is_default_peer = contender.1 == "defaults" && contender != QUELL;
        let fits = contender != FLOOR || self.floor;
        fits && (!is_default_peer || self.defaults)
    }
}

fn table(workload: &Workload, found: &Found) -> String {
    let mut text = format!(
        "\n**{}**: {}\n\n| who | median | p99 | WAL bytes a job | commits a job | dead rows a job |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        workload.name,
        verdict(workload, found),
    );
    for (Contender(program, settings), one) in found {
        let name = program.trim_end_matches("-bench").trim_end_matches("-peer");
        let cells = match one {
            Ok(one) => cells(one),
            Err(reason) => {
                ["failed".to_owned(), reason.clone(), "-".into(), "-".into(), "-".into()]
            }
        };
        text.push_str(&format!("| {name} ({settings}) | {} |\n", cells.join(" | ")));
    }
    text
}

fn cells(one: &Measurement) -> [String; 5] {
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
    [
        shown(one.median),
        cell(one.p99),
        cell(one.wal_bytes_per_job),
        cell(one.transactions_per_job),
        cell(one.dead_rows_per_job),
    ]
}

/// The goal, and whether Quell at its defaults meets it.
fn verdict(workload: &Workload, found: &Found) -> String {
    let of = |asked: Contender| {
        let one = found.iter().find(|(contender, _)| *contender == asked)?;
        one.1.as_ref().ok()
    };
    let median = |contender| of(contender).map_or(f64::NAN, |one| one.median);
    let quell = median(QUELL);
    let tail = of(QUELL).and_then(|one| one.p99).unwrap_or(f64::NAN);
    let said = |met: bool| if met { "met" } else { "not met" };
    match workload.goal {
        Goal::Ratios(peer, floor) => {
            let (by_peer, by_floor) = (quell / median(GRAPHILE), quell / median(FLOOR));
            let met = by_peer >= peer && (floor == 0.0 || by_floor >= floor);
            let share =
                if floor == 0.0 { String::new() } else { format!(", {floor} of the floor") };
            format!(
                "{by_peer:.2} x graphile_worker, {by_floor:.2} of the floor; goal {peer} x{share}: {}",
                said(met)
            )
        }
        Goal::Rate(rate) => format!("goal {}: {}", shown(rate), said(quell >= rate)),
        Goal::Millis(p50, p99) => {
            format!("goal {p50} / {p99}: {}", said(quell <= p50 && tail <= p99))
        }
        Goal::AtMost(most) => format!("goal {most}: {}", said(quell <= most)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::reason;

    #[test]
    fn a_program_that_failed_stands_in_the_table_with_its_reason() {
        let workload = &WORKLOADS[0];
        let why = reason("warn: x\nError: no server there\n\nCaused by:\n    a | b\n");
        let text = table(workload, &vec![(QUELL, Err(why))]);
        let line =
            "| quell-postgres (defaults) | failed | no server there Caused by: a b | - | - | - |";
        assert!(text.contains(line) && text.contains("not met"), "{text}");
        assert_eq!(reason(" \n"), "it said nothing");
    }

    #[test]
    fn where_defaults_take_too_long_only_the_best_settings_of_peers_are_measured() {
        let asked = |place: usize| {
            CONTENDERS.into_iter().filter(|one| WORKLOADS[place].is_for(*one)).count()
        };
        assert_eq!((asked(0), asked(1), asked(6), asked(7)), (9, 6, 5, 8));
    }
}
