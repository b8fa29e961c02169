//! Quell on PostgreSQL beside its peers and a floor in plain SQL: each is a program of its own, and
//! all are measured by the same code (`bench/peers/pg-common`), in turn, on one private server with
//! its settings as shipped.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use quell_services::Postgres;
use serde::Deserialize;

use crate::report::{record_section, shown};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Where defaults take minutes or longer, only the best settings of the peers are measured.
    defaults: bool,
}

const WORKLOADS: [Workload; 8] = [
    Workload {
        name: "batch enqueue, per second",
        args: &["batch"],
        quick: &["batch", "--count", "30000"],
        goal: Goal::Ratios(2.5, 0.6),
        defaults: true,
    },
    Workload {
        name: "drain of 100,000 no-ops, per second",
        args: &["drain"],
        quick: &["drain", "--count", "30000"],
        goal: Goal::Ratios(2.0, 0.0),
        defaults: false,
    },
    Workload {
        name: "single enqueue, 32 callers, per second",
        args: &["single", "--count", "9600"],
        quick: &["single", "--count", "3200"],
        goal: Goal::Rate(25_000.0),
        defaults: true,
    },
    Workload {
        name: "debounced, 32 callers, 100 keys, per second",
        args: &["debounced", "--count", "9600"],
        quick: &["debounced", "--count", "3200"],
        goal: Goal::Rate(25_000.0),
        defaults: true,
    },
    Workload {
        name: "debounced, 512 callers, 100 keys, per second",
        args: &["debounced", "--callers", "512", "--count", "51200"],
        quick: &["debounced", "--callers", "512", "--count", "10240"],
        goal: Goal::Rate(100_000.0),
        defaults: false,
    },
    Workload {
        name: "enqueue to start, ms (p50, p99)",
        args: &["latency"],
        quick: &["latency", "--samples", "100"],
        goal: Goal::Millis(1.5, 5.0),
        defaults: true,
    },
    Workload {
        name: "idle for a minute, then one job, ms",
        args: &["idle", "--seconds", "60"],
        quick: &["idle", "--seconds", "5"],
        goal: Goal::AtMost(5.0),
        defaults: true,
    },
    Workload {
        name: "transactions of an idle worker, per second",
        args: &["statements", "--seconds", "30"],
        quick: &["statements", "--seconds", "5"],
        goal: Goal::AtMost(1.0),
        defaults: true,
    },
];

/// Measures, shows and records.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let server = Postgres::start(&[]).context("start PostgreSQL")?;
    let (mut lines, mut tables) = (Vec::new(), String::new());
    for workload in WORKLOADS.iter().filter(|workload| workload.name.contains(&args.only)) {
        let mut found = BTreeMap::new();
        for contender in CONTENDERS {
            let is_default_peer = contender.1 == "defaults" && contender != QUELL;
            if is_default_peer && !workload.defaults {
                continue;
            }
            writeln!(std::io::stderr(), "{}: {} {}", workload.name, contender.0, contender.1)?;
            match measure(args, &server, workload, contender) {
                Ok((line, measurement)) => {
                    lines.push(line);
                    found.insert(contender, measurement);
                }
                // A floor has no workers, and a peer may have no such thing.
                Err(error) => writeln!(std::io::stderr(), "  {error:#}")?,
            }
        }
        tables.push_str(&table(workload, &found));
    }
    if let Some(file) = &args.json {
        std::fs::write(file, lines.concat())?;
    }
    write!(std::io::stdout(), "{tables}")?;
    if args.record {
        record_section("PostgreSQL, settings as shipped; medians", &tables)?;
    }
    Ok(())
}

fn measure(
    args: &Args,
    server: &Postgres,
    workload: &Workload,
    Contender(program, settings): Contender,
) -> anyhow::Result<(String, Measurement)> {
    let program = Path::new(&args.programs).join(program);
    let output = Command::new("timeout")
        .args(["--kill-after=5", "600"])
        .arg(&program)
        .args(if args.quick { workload.quick } else { workload.args })
        .args(["--url", &server.url(), "--settings", settings])
        .args(["--rounds", if args.quick { "1" } else { "3" }])
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8(output.stdout)?;
    let told = || String::from_utf8_lossy(&output.stderr).into_owned();
    let measurement = serde_json::from_str(text.trim()).with_context(told)?;
    Ok((text, measurement))
}

fn table(workload: &Workload, found: &BTreeMap<Contender, Measurement>) -> String {
    let mut text = format!(
        "\n**{}**: {}\n\n| who | median | p99 | WAL bytes a job | commits a job | dead rows a job |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        workload.name,
        verdict(workload, found),
    );
    for (Contender(program, settings), one) in found {
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
        let cells = [
            format!(
                "{} ({settings})",
                program.trim_end_matches("-bench").trim_end_matches("-peer")
            ),
            shown(one.median),
            cell(one.p99),
            cell(one.wal_bytes_per_job),
            cell(one.transactions_per_job),
            cell(one.dead_rows_per_job),
        ];
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

/// The goal, and whether Quell at its defaults meets it.
fn verdict(workload: &Workload, found: &BTreeMap<Contender, Measurement>) -> String {
    let of = |contender| found.get(&contender).map_or(f64::NAN, |one: &Measurement| one.median);
    let quell = of(QUELL);
    let tail = found.get(&QUELL).and_then(|one| one.p99).unwrap_or(f64::NAN);
    let said = |met: bool| if met { "met" } else { "not met" };
    match workload.goal {
        Goal::Ratios(peer, floor) => {
            let (by_peer, by_floor) = (quell / of(GRAPHILE), quell / of(FLOOR));
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
