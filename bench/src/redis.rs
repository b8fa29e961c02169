//! Quell on Redis beside its peers and a floor of plain scripts: each is a program of its own, in
//! its own language, and takes the arguments of `bench/peers/redis-common`. Every round has a fresh
//! server, the programs take turns, and the server's counters are read around each. A program that
//! fails stands in the table with its reason.

pub(crate) mod counters;
mod goals;
mod plain;
mod scaling;
mod workloads;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use quell_services::Redis;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::comparison::Comparison;
use crate::program::{self, Reported};
use crate::report::shown;
use crate::{median, median_of};
use counters::Counters;
use goals::Goals;
use workloads::{
    Before, CONTENDERS, Contender, FLOOR, Figure, PLAIN_CALLS, QUELL, WORKLOADS, Workload,
};

/// The same for all. A rewrite of the file would fall into one round and not into another.
pub(crate) const SETTINGS: [&str; 3] =
    ["appendonly yes", "appendfsync everysec", "auto-aof-rewrite-percentage 0"];
/// How long a program may take.
const SECONDS: u32 = 900;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    comparison: Comparison,
    /// Only programs whose name has this in it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    who: String,
    /// How many jobs stand in the backlog, and how many windows are open: 1,000,000, or 20,000 where
    /// it is to be quick. With `--scaling`, the jobs of each step: 64,000, or 6,400.
    #[arg(long, value_name = "NUMBER")]
    many: Option<usize>,
    /// Where the programs are.
    #[arg(long, value_name = "FOLDER", default_value = "target/peers")]
    programs: PathBuf,
}

/// What a program printed.
#[derive(Clone, Debug, Deserialize)]
struct Printed {
    peer: String,
    tuned: String,
    note: Option<String>,
    jobs: usize,
    value: f64,
    p99: Option<f64>,
}

/// One round, and what it cost for each job.
#[derive(Clone, Debug)]
struct Round {
    printed: Printed,
    value: f64,
    cost: Counters,
}

/// The rounds of each contender, or why they ended.
type Found = Vec<(Contender, Result<Vec<Round>, String>)>;

/// Measures, shows and records.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (about, (tables, lines)) = if args.comparison.scaling {
        (
            "each case on Clusters of its own, one round; all masters share this machine",
            scaling::measure(args)?,
        )
    } else {
        (
            "a fresh server for each round, medians; Quell is durable as `appendfsync` says, and so \
             are all others",
            measure(args)?,
        )
    };
    let output = &args.comparison.output;
    output.write_json(&lines)?;
    let server = || Ok(format!("{}, for all alike: {}; {about}", version()?, SETTINGS.join(", ")));
    output.recording.finish_with(server, &tables)
}

/// The tables, and a line of JSON for each round.
fn measure(args: &Args) -> anyhow::Result<(String, String)> {
    let (mut tables, mut lines, mut who) = (String::new(), String::new(), Vec::new());
    let mut goals = Goals::default();
    for workload in WORKLOADS.iter().filter(|workload| args.comparison.wants(workload.name)) {
        let found = args.measure(workload, &mut lines)?;
        tables.push_str(&table(workload, args, &found));
        goals.add(workload, &args.amount(workload), &found);
        for (contender, rounds) in &found {
            let Some(Round { printed, .. }) = rounds.iter().flatten().next() else { continue };
            let line = format!("- {}: {}; {}", contender.name(), printed.peer, printed.tuned);
            if !who.contains(&line) {
                who.push(line);
            }
        }
    }
    tables.push_str(&goals.table());
    tables.push_str(&format!("\n{}\n", who.join("\n")));
    Ok((tables, lines))
}

fn version() -> anyhow::Result<String> {
    version_of(&Redis::start(&[])?)
}

/// The version of a server, with the program's name.
pub(crate) fn version_of(server: &Redis) -> anyhow::Result<String> {
    let info = server.command(&["INFO", "server"])?;
    let number = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    Ok(format!("Redis {}", number.unwrap_or("of unknown version").trim_end()))
}

impl Args {
    fn many(&self) -> usize {
        self.many.unwrap_or(if self.comparison.quick { 20_000 } else { 1_000_000 })
    }

    fn count(&self, workload: &Workload) -> usize {
        let sized = |(full, quick)| if self.comparison.quick { quick } else { full };
        workload.count.map_or_else(|| self.many(), sized)
    }

    /// How many jobs there are, in words.
    fn amount(&self, workload: &Workload) -> String {
        match workload.before {
            Before::Many => format!("{} of {}", self.count(workload), self.many()),
            Before::Nothing | Before::Count => self.count(workload).to_string(),
        }
    }

    /// All rounds of a workload, the contenders in turn.
    fn measure(&self, workload: &Workload, lines: &mut String) -> anyhow::Result<Found> {
        let asked = CONTENDERS.iter().filter(|one| one.name().contains(&self.who));
        let asked = asked.filter(|one| workload.is_for(**one));
        let mut found: Found = asked.map(|one| (*one, Ok(Vec::new()))).collect();
        let rounds = if self.comparison.quick { 1 } else { workload.rounds };
        for round in 1..=rounds {
            for (contender, rounds) in &mut found {
                let Ok(so_far) = rounds else { continue };
                let name = contender.name();
                writeln!(std::io::stderr(), "{}: {name}, round {round}", workload.name)?;
                match self.round(workload, *contender, lines)? {
                    Ok(round) => so_far.push(round),
                    Err(reason) => {
                        writeln!(std::io::stderr(), "  failed: {reason}")?;
                        *rounds = Err(reason);
                    }
                }
            }
        }
        Ok(found)
    }

    /// One round on a server of its own; the inner error is the program's.
    fn round(
        &self,
        workload: &Workload,
        contender: Contender,
        lines: &mut String,
    ) -> anyhow::Result<Result<Round, String>> {
        let server = Redis::start(&SETTINGS).context("start Redis")?;
        let count = workload.share_of(contender, self.count(workload));
        let queued = match workload.before {
            Before::Nothing => 0,
            Before::Count => count,
            Before::Many => self.many(),
        };
        if queued > 0 {
            let reported = self.ask(&server, contender, &["batch"], queued);
            if let Some(reason) = reported.failed {
                return Ok(Err(reason));
            }
        }
        server.command(&["CONFIG", "RESETSTAT"])?;
        let before = Counters::read(&server)?;
        let reported = self.ask(&server, contender, workload.args, count);
        let after = Counters::read(&server)?;
        if let Some(reason) = reported.failed {
            return Ok(Err(reason));
        }
        let printed: Printed = match serde_json::from_str(reported.text.trim()) {
            Ok(printed) => printed,
            Err(error) => return Ok(Err(format!("it printed no measurement: {error}"))),
        };
        let cost = after.since(before, printed.jobs);
        let value = match workload.figure {
            Figure::Reported => printed.value,
            Figure::Memory => cost.memory_bytes,
        };
        let line = json!({
            "workload": workload.name,
            "who": contender.name(),
            "printed": serde_json::from_str::<Value>(reported.text.trim())?,
            "value": value,
            "memory_bytes_per_job": cost.memory_bytes,
            "commands": counters::commands(&server)?,
        });
        lines.push_str(&format!("{line}\n"));
        Ok(Ok(Round { printed, value, cost }))
    }

    fn ask(&self, server: &Redis, contender: Contender, args: &[&str], count: usize) -> Reported {
        if contender == PLAIN_CALLS {
            return plain::ask(server, args, count, SECONDS);
        }
        let mut command = contender.command(&self.programs);
        command.args(args);
        // Of a workload that says how many itself, the number comes last.
        if args.last() != Some(&"--samples") {
            command.arg("--count");
        }
        command.arg(count.to_string());
        command.args(["--settings", contender.1, "--url", &server.url()]);
        program::run(&command, SECONDS)
    }
}

fn median_by(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(of).collect())
}

fn table(workload: &Workload, args: &Args, found: &Found) -> String {
    let amount = args.amount(workload);
    let mut text = format!(
        "\n**{}** ({amount}){}\n\n| who | median | p99 | of the floor | commands a job | server CPU µs \
         a job | network bytes a job | file bytes a job |\n| --- | --- | --- | --- | --- | --- | --- | \
         --- |\n",
        workload.name,
        verdict(found),
    );
    let floor = value_of(found, FLOOR);
    let mut notes = Vec::new();
    for (contender, rounds) in found {
        let cells = match rounds {
            Ok(rounds) => cells(rounds, floor),
            Err(reason) => format!("failed: {reason} | - | - | - | - | - | -"),
        };
        text.push_str(&format!("| {} | {cells} |\n", contender.name()));
        let note = rounds.iter().flatten().find_map(|round| round.printed.note.clone());
        let name = contender.name();
        let name = name.split_once(" (").map_or(name.as_str(), |(name, _)| name);
        let jobs = workload.share_of(*contender, args.count(workload));
        let fewer =
            if jobs < args.count(workload) { format!("; {jobs} only") } else { String::new() };
        let line = note.map(|note| format!("{name}: {note}{fewer}."));
        notes.extend(line.filter(|line| !notes.contains(line)));
    }
    if !notes.is_empty() {
        text.push_str(&format!("\n{}\n", notes.join(" ")));
    }
    text
}

fn cells(rounds: &[Round], floor: Option<f64>) -> String {
    let value = median_by(rounds, |round| round.value);
    let tail = median_of(rounds.iter().filter_map(|round| round.printed.p99).collect());
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
    [
        shown(value),
        cell(tail),
        cell(floor.map(|floor| value / floor)),
        shown(median_by(rounds, |round| round.cost.commands)),
        shown(median_by(rounds, |round| round.cost.cpu)),
        shown(median_by(rounds, |round| round.cost.network_bytes)),
        shown(median_by(rounds, |round| round.cost.file_bytes)),
    ]
    .join(" | ")
}

fn value_of(found: &Found, asked: Contender) -> Option<f64> {
    let rounds = &found.iter().find(|(contender, _)| *contender == asked)?.1;
    let rounds = rounds.as_ref().ok().filter(|rounds| !rounds.is_empty())?;
    Some(median_by(rounds, |round| round.value))
}

/// Quell at its defaults, as a multiple of each peer at its best; nothing where it was not measured.
fn verdict(found: &Found) -> String {
    let Some(quell) = value_of(found, QUELL) else { return String::new() };
    let others = found.iter().filter(|(one, _)| one.0 != QUELL.0 && one.1 == "best");
    let ratios: Vec<String> = others
        .filter_map(|(one, _)| Some((one, value_of(found, *one)?)))
        .map(|(one, value)| format!("{:.2} x {}", quell / value, one.name()))
        .collect();
    format!(": Quell at its defaults is {}", ratios.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn found(values: &[(Contender, f64)]) -> Found {
        let round = |value| Round {
            printed: Printed {
                peer: "p 1".to_owned(),
                tuned: "t".to_owned(),
                note: Some("n".to_owned()),
                jobs: 1,
                value,
                p99: None,
            },
            value,
            cost: Counters::default(),
        };
        values.iter().map(|(one, value)| (*one, Ok(vec![round(*value)]))).collect()
    }

    fn args(quick: bool) -> Args {
        Args {
            comparison: Comparison::of_all(quick),
            who: String::new(),
            many: None,
            programs: PathBuf::new(),
        }
    }

    #[test]
    fn who_failed_stands_in_the_table_with_the_reason_and_the_others_beside_the_floor() {
        let bull = Contender("bullmq", "best");
        let mut all = found(&[(FLOOR, 10.0), (bull, 5.0)]);
        all.push((Contender("apalis-redis-peer", "best"), Err("too many results".to_owned())));
        let text = table(&WORKLOADS[0], &args(true), &all);
        let cells = "| bullmq (best) | 5.00 | - | 0.50 | 0.00 | 0.00 | 0.00 | 0.00 |\n";
        let failed = "| apalis-redis (best) | failed: too many results | - | - | - | - | - | - |\n";
        assert!(text.contains(cells) && text.contains(failed), "{text}");
        assert!(text.ends_with("\nredis-floor: n. bullmq: n.\n"), "{text}");
    }

    #[test]
    fn who_gets_fewer_jobs_says_so() {
        let windows = WORKLOADS.iter().find(|one| one.figure == Figure::Memory).unwrap();
        let all = found(&[(Contender("dramatiq", "best"), 387.0), (FLOOR, 283.0)]);
        let text = table(windows, &args(false), &all);
        assert!(text.ends_with("\ndramatiq: n; 100000 only. redis-floor: n.\n"), "{text}");
        assert!(!table(windows, &args(true), &all).contains("only"));
    }

    #[test]
    fn quell_is_told_as_a_multiple_of_each_peer_at_its_best_once_it_is_measured() {
        let bull = [Contender("bullmq", "defaults"), Contender("bullmq", "best")];
        assert_eq!(verdict(&found(&[(FLOOR, 10.0), (bull[1], 5.0)])), "");
        let all = found(&[(QUELL, 20.0), (FLOOR, 10.0), (bull[0], 2.0), (bull[1], 5.0)]);
        let expected = ": Quell at its defaults is 2.00 x redis-floor (best), 4.00 x bullmq (best)";
        assert_eq!(verdict(&all), expected);
    }
}
