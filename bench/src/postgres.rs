//! Quell on PostgreSQL beside its peers and a floor in plain SQL: each is a program of its own, and
//! all are measured by the same code (`bench/peers/pg-common`), in turn, on one private server with
//! its settings as shipped. A program that fails stands in the table with its reason.

mod workloads;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use quell_services::Postgres;
use serde::Deserialize;

use crate::comparison::Comparison;
use crate::program::{self, Reported};
use crate::report::shown;
use crate::{median_of, scaling};
use workloads::{
    CONTENDERS, Contender, FLOOR, GRAPHILE, Goal, QUELL, QUELL_BEST, WORKLOADS, Workload,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    comparison: Comparison,
    /// Only programs whose names have one of these in them, such as `quell,riverqueue`.
    #[arg(long, value_name = "TEXTS", value_delimiter = ',')]
    who: Vec<String>,
    /// Where the programs are.
    #[arg(long, value_name = "FOLDER", default_value = "target/peers/release")]
    programs: PathBuf,
}

/// What each contender printed in each round, or why it did not.
type Found = Vec<(Contender, Result<Vec<Measurement>, String>)>;

/// What a program printed.
#[derive(Clone, Debug, Deserialize)]
struct Measurement {
    peer: String,
    tuned: String,
    median: f64,
    p99: Option<f64>,
    stopping_ms: Option<f64>,
    wal_bytes_per_job: Option<f64>,
    transactions_per_job: Option<f64>,
    dead_rows_per_job: Option<f64>,
}

/// Measures, shows and records.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let server = Postgres::start(&[]).context("start PostgreSQL")?;
    let (about, (tables, lines)) = if args.comparison.scaling {
        ("Quell alone on PostgreSQL, settings as shipped", scaling::measure(args, &server)?)
    } else {
        (
            "PostgreSQL, settings as shipped; medians of three rounds for whom a goal names, else one round",
            measure(args, &server)?,
        )
    };
    let output = &args.comparison.output;
    output.write_json(&lines)?;
    output.recording.finish(about, &tables)
}

impl Args {
    /// What its own line asks for, smaller where that is wanted.
    pub(crate) fn sized<'a>(&self, full: &'a [&'a str], quick: &'a [&'a str]) -> &'a [&'a str] {
        if self.comparison.quick { quick } else { full }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.comparison.wants(name)
    }

    fn wants_of(&self, contender: Contender) -> bool {
        self.who.is_empty() || self.who.iter().any(|text| contender.name().contains(text))
    }

    /// Runs one of the programs on this server.
    pub(crate) fn ask(
        &self,
        server: &Postgres,
        name: &str,
        args: &[&str],
        seconds: u32,
    ) -> Reported {
        let mut command = Command::new(Path::new(&self.programs).join(name));
        command.args(args).args(["--url", &server.url()]);
        program::run(&command, seconds)
    }
}

/// The tables, and a line of JSON for each measurement.
fn measure(args: &Args, server: &Postgres) -> anyhow::Result<(String, String)> {
    let (mut tables, mut lines, mut who) = (String::new(), String::new(), Vec::new());
    for workload in WORKLOADS.iter().filter(|workload| args.wants(workload.name)) {
        let found = rounds(args, server, workload, &mut lines)?;
        tables.push_str(&table(workload, &found));
        for (contender, measured) in &found {
            let Some(Measurement { peer, tuned, .. }) = measured.iter().flatten().next() else {
                continue;
            };
            let line = format!("- {}: {peer}; {tuned}", contender.name());
            if !who.contains(&line) {
                who.push(line);
            }
        }
    }
    tables.push_str(&format!("\n{}\n", who.join("\n")));
    Ok((tables, lines))
}

/// All rounds of a workload, the contenders in turn.
fn rounds(
    args: &Args,
    server: &Postgres,
    workload: &Workload,
    lines: &mut String,
) -> anyhow::Result<Found> {
    let asked = CONTENDERS.into_iter().filter(|one| workload.is_for(*one) && args.wants_of(*one));
    let mut found: Found = asked.map(|one| (one, Ok(Vec::new()))).collect();
    let most = if args.comparison.quick { 1 } else { workload.rounds };
    for round in 1..=most {
        for (contender, measured) in &mut found {
            let Ok(so_far) = measured else { continue };
            if round > workload.rounds_of(*contender) {
                continue;
            }
            let Contender(program, settings) = *contender;
            writeln!(std::io::stderr(), "{}: {}, {round}", workload.name, contender.name())?;
            let more = ["--settings", settings, "--rounds", "1"];
            let words = [args.sized(workload.args, workload.quick), &more].concat();
            let reported = args.ask(server, program, &words, 600);
            let read = match reported.failed {
                Some(reason) => Err(reason),
                None => {
                    serde_json::from_str(reported.text.trim()).map_err(|error| error.to_string())
                }
            };
            lines.push_str(&reported.text);
            match read {
                Ok(one) => so_far.push(one),
                Err(reason) => {
                    writeln!(std::io::stderr(), "  failed: {reason}")?;
                    *measured = Err(reason);
                }
            }
        }
    }
    Ok(found)
}

fn table(workload: &Workload, found: &Found) -> String {
    let mut text = format!(
        "\n**{}**: {}\n\n| who | median | p99 | WAL bytes a job | commits a job | dead rows a job |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        workload.name,
        verdict(workload, found),
    );
    for (contender, measured) in found {
        let cells = match measured {
            Ok(rounds) => cells(rounds),
            Err(reason) => {
                ["failed".to_owned(), reason.clone(), "-".into(), "-".into(), "-".into()]
            }
        };
        text.push_str(&format!("| {} | {} |\n", contender.name(), cells.join(" | ")));
    }
    let stopping = found.iter().filter_map(|(contender, measured)| {
        let took = over(measured.as_ref().ok()?, |one| one.stopping_ms)?;
        Some(format!("{} {}", contender.name(), shown(took)))
    });
    let stopping: Vec<String> = stopping.collect();
    if !stopping.is_empty() {
        text.push_str(&format!("\nOf it, stopping: {}.\n", stopping.join(", ")));
    }
    text
}

/// The median over the rounds, where all of them counted it.
fn over(rounds: &[Measurement], of: fn(&Measurement) -> Option<f64>) -> Option<f64> {
    median_of(rounds.iter().map(of).collect::<Option<Vec<f64>>>()?)
}

fn cells(rounds: &[Measurement]) -> [String; 5] {
    let cell = |of| over(rounds, of).map_or_else(|| "-".to_owned(), shown);
    [
        cell(|one| Some(one.median)),
        cell(|one| one.p99),
        cell(|one| one.wal_bytes_per_job),
        cell(|one| one.transactions_per_job),
        cell(|one| one.dead_rows_per_job),
    ]
}

/// The goal, and whether Quell at its defaults meets it.
fn verdict(workload: &Workload, found: &Found) -> String {
    let of = |asked: Contender, field: fn(&Measurement) -> Option<f64>| {
        let one = found.iter().find(|(contender, _)| *contender == asked);
        let rounds = one.and_then(|(_, measured)| measured.as_ref().ok());
        rounds.and_then(|rounds| over(rounds, field)).unwrap_or(f64::NAN)
    };
    let median = |contender| of(contender, |one| Some(one.median));
    let quell = median(QUELL);
    let tail = of(QUELL, |one| one.p99);
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
        Goal::Quickest => {
            let best = median(QUELL_BEST);
            let others = found.iter().map(|(contender, _)| *contender);
            let others = others.filter(|one| one.1 == QUELL_BEST.1 && *one != QUELL_BEST);
            let ratios: Vec<(String, f64)> =
                others.map(|one| (one.name(), best / median(one))).collect();
            // A peer that failed took longer than whatever it was given.
            let met =
                best.is_finite() && ratios.iter().all(|(_, ratio)| ratio.is_nan() || *ratio <= 1.0);
            let ratios = ratios.iter().filter(|(_, ratio)| ratio.is_finite());
            let words: Vec<String> =
                ratios.map(|(name, ratio)| format!("{ratio:.2} x {name}")).collect();
            let words = words.join(", ");
            format!("Quell at its best takes {words}; goal 1 x each: {}", said(met))
        }
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
        assert_eq!((asked(0), asked(1), asked(6), asked(7)), (13, 8, 7, 12));
    }

    fn rounds(medians: &[f64]) -> Result<Vec<Measurement>, String> {
        let one = |median: &f64| Measurement {
            peer: "p 1".to_owned(),
            tuned: "t".to_owned(),
            median: *median,
            p99: None,
            stopping_ms: Some(median / 2.0),
            wal_bytes_per_job: None,
            transactions_per_job: None,
            dead_rows_per_job: None,
        };
        Ok(medians.iter().map(one).collect())
    }

    #[test]
    fn a_goal_beside_all_peers_compares_the_medians_of_their_best_settings() {
        let workload = WORKLOADS.iter().find(|one| matches!(one.goal, Goal::Quickest)).unwrap();
        let slow = Contender("awa-peer", "best");
        let dead = (Contender("riverqueue-peer", "best"), Err("not within 120 s".to_owned()));
        let defaults = (Contender("awa-peer", "defaults"), rounds(&[1.0]));
        let mut found =
            vec![(QUELL_BEST, rounds(&[9.0, 2.0, 4.0])), (slow, rounds(&[8.0])), dead, defaults];
        let text = table(workload, &found);
        assert!(text.contains("takes 0.50 x awa (best); goal 1 x each: met"), "{text}");
        assert!(text.contains("| quell-postgres (best) | 4.00 | - |"), "{text}");
        assert!(text.contains("stopping: quell-postgres (best) 2.00, awa (best) 4.00,"), "{text}");
        found.push((GRAPHILE, rounds(&[3.0])));
        let text = table(workload, &found);
        assert!(text.contains("1.33 x graphile-worker (best); goal 1 x each: not met"), "{text}");
    }
}
