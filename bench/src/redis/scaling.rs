//! How evenly Quell's work spreads over the masters of a Cluster. Masters share this machine's
//! processors, so seconds show nothing. What counts is the work of each of them for a job: its commands,
//! its processor time, its bytes. The busiest one is the bound; ideally all of them do the same.

use std::io::Write;
use std::process::Command;

use anyhow::Context;
use quell_services::RedisCluster;
use serde::Deserialize;
use serde_json::json;

use super::counters::Counters;
use super::{Args, SETTINGS};
use crate::program;
use crate::report::shown;

const PROGRAM: &str = "quell-redis-scaling";
/// How long a step may take.
const SECONDS: u32 = 300;
/// More shards than masters, as who means to add some would choose.
const MANY: usize = 12;

/// What shards are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One queue, spread by `shards.QUEUE`.
    OneQueue,
    /// A queue each.
    Queues,
}

/// A Cluster, and how many shards are on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    masters: usize,
    shards: usize,
    /// Whether slots are moved so that each master has as many shards, as an operator may do.
    is_placed: bool,
}

/// A step of a round, and the arguments of its program.
struct Step {
    name: &'static str,
    args: &'static [&'static str],
}

const STEPS: [Step; 3] = [
    Step { name: "single enqueue, 32 callers", args: &["enqueue"] },
    Step { name: "drain of no-ops", args: &["drain"] },
    Step { name: "debounced, 32 callers, 1,000 keys", args: &["debounced", "--keys", "1000"] },
];

/// What the program printed.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Printed {
    jobs: usize,
    value: f64,
}

/// One step: its rate, and what each master did for a job.
#[derive(Clone, Debug)]
struct Load {
    rate: f64,
    masters: Vec<Counters>,
}

/// What each case came to, or why it ended.
type Found = Vec<(Case, Result<Load, String>)>;

/// What is counted of a master.
type Of = fn(&Counters) -> f64;
const COMMANDS: Of = |counters| counters.commands;
const CPU: Of = |counters| counters.cpu;
const NETWORK: Of = |counters| counters.network_bytes;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::OneQueue => "one queue over shards",
            Kind::Queues => "queues, a shard each",
        }
    }

    /// Where a queue is a shard, its name is the hash tag, and an operator can place it.
    fn cases(self) -> Vec<Case> {
        let mut cases = Vec::new();
        for masters in 1..=3 {
            let case = |shards| Case { masters, shards, is_placed: false };
            cases.push(case(masters));
            if self == Kind::Queues && masters > 1 {
                cases.push(Case { is_placed: true, ..case(masters) });
            }
            cases.push(case(MANY));
        }
        cases
    }
}

/// The tables, and a line of JSON for each step.
pub(super) fn measure(args: &Args) -> anyhow::Result<(String, String)> {
    let (mut tables, mut lines) = (String::new(), String::new());
    for kind in [Kind::OneQueue, Kind::Queues] {
        if !args.comparison.wants(kind.name()) {
            continue;
        }
        let mut found: Vec<Found> = STEPS.iter().map(|_| Found::new()).collect();
        for case in kind.cases() {
            writeln!(std::io::stderr(), "{}: {case:?}", kind.name())?;
            for ((step, load), found) in
                STEPS.iter().zip(args.on_cluster(kind, case)?).zip(&mut found)
            {
                lines.push_str(&line(kind, step, case, &load));
                found.push((case, load));
            }
        }
        for (step, found) in STEPS.iter().zip(&found) {
            tables.push_str(&table(kind, step, args.jobs(), found));
        }
    }
    Ok((tables, lines))
}

impl Args {
    fn jobs(&self) -> usize {
        self.many.unwrap_or(if self.comparison.quick { 6_400 } else { 64_000 })
    }

    /// All steps, one after the other on a Cluster of their own.
    fn on_cluster(&self, kind: Kind, case: Case) -> anyhow::Result<Vec<Result<Load, String>>> {
        let cluster = RedisCluster::start(case.masters, 0, &SETTINGS).context("start a Cluster")?;
        if case.is_placed {
            for shard in 0..case.shards {
                let (slot, to) = (cluster.slot_of(&queue(shard))?, shard % case.masters);
                if cluster.master_of_slot(slot)? != to {
                    cluster.move_slot(slot, to)?;
                }
            }
        }
        let mut loads = Vec::new();
        for step in &STEPS {
            let before = read(&cluster, case)?;
            let reported = program::run(&self.command(kind, case, step, &cluster.nodes()), SECONDS);
            let after = read(&cluster, case)?;
            let load = match reported.failed {
                Some(reason) => Err(reason),
                None => {
                    let Printed { jobs, value } = serde_json::from_str(reported.text.trim())?;
                    let each = after.iter().zip(before).map(|(now, then)| now.since(then, jobs));
                    Ok(Load { rate: value, masters: each.collect() })
                }
            };
            if let Err(reason) = &load {
                writeln!(std::io::stderr(), "  failed: {reason}")?;
            }
            loads.push(load);
        }
        Ok(loads)
    }

    fn command(&self, kind: Kind, case: Case, step: &Step, nodes: &str) -> Command {
        let (queues, spread) = match kind {
            Kind::OneQueue => (1, format!("?shards.{}={}", queue(0), case.shards)),
            Kind::Queues => (case.shards, String::new()),
        };
        let mut command = Command::new(self.programs.join("release").join(PROGRAM));
        command.args(step.args).args(["--count", &self.jobs().to_string()]);
        command.args(["--queues", &queues.to_string()]);
        command.args(["--url", &format!("redis-cluster://{nodes}/{spread}")]);
        command
    }
}

/// As the program calls it.
fn queue(number: usize) -> String {
    format!("queue-{number}")
}

fn read(cluster: &RedisCluster, case: Case) -> anyhow::Result<Vec<Counters>> {
    (0..case.masters).map(|node| Counters::read(cluster.node(node)?)).collect()
}

impl Load {
    fn most(&self, of: Of) -> f64 {
        self.masters.iter().map(of).fold(0.0, f64::max)
    }

    /// What part of the whole the busiest master does.
    fn share(&self, of: Of) -> f64 {
        self.most(of) / self.masters.iter().map(of).sum::<f64>()
    }

    fn by_master(&self, of: Of) -> String {
        let each: Vec<String> = self.masters.iter().map(|one| shown(of(one))).collect();
        each.join(" / ")
    }
}

fn line(kind: Kind, step: &Step, case: Case, load: &Result<Load, String>) -> String {
    let each =
        |of: Of| load.as_ref().ok().map(|load| load.masters.iter().map(of).collect::<Vec<_>>());
    let line = json!({
        "kind": kind.name(),
        "step": step.name,
        "masters": case.masters,
        "shards": case.shards,
        "placed": case.is_placed,
        "per_second": load.as_ref().ok().map(|load| load.rate),
        "commands_per_job": each(COMMANDS),
        "cpu_micros_per_job": each(CPU),
        "network_bytes_per_job": each(NETWORK),
        "failed": load.as_ref().err(),
    });
    format!("{line}\n")
}

/// A row for each case: what masters did for a job, the busiest one's share of it, and the same
/// beside one master that has one shard and does it all.
fn table(kind: Kind, step: &Step, jobs: usize, found: &Found) -> String {
    let mut text = format!(
        "\n**{}: {}** ({jobs})\n\n| masters, shards | per second | commands a job, by master | server \
         CPU µs a job, by master | network bytes a job, by master | the busiest one's share: \
         commands, CPU, network | ideal | of one master alone: commands, CPU |\n|{}\n",
        kind.name(),
        step.name,
        " --- |".repeat(8),
    );
    let alone = found.iter().find_map(|(case, load)| {
        (case.masters == 1 && case.shards == 1).then_some(load.as_ref().ok()).flatten()
    });
    for (case, load) in found {
        let placed = if case.is_placed { ", placed" } else { "" };
        let cells = match load {
            Ok(load) => cells(load, alone, 1.0 / case.masters as f64),
            Err(reason) => format!("failed: {reason} |{}", " - |".repeat(6)),
        };
        text.push_str(&format!("| {}, {}{placed} | {cells}\n", case.masters, case.shards));
    }
    text
}

fn cells(load: &Load, alone: Option<&Load>, ideal: f64) -> String {
    let beside = |of: Of| match alone {
        Some(alone) => format!("{:.2}", load.most(of) / alone.most(of)),
        None => "-".to_owned(),
    };
    format!(
        "{} | {} | {} | {} | {:.2}, {:.2}, {:.2} | {ideal:.2} | {}, {} |",
        shown(load.rate),
        load.by_master(COMMANDS),
        load.by_master(CPU),
        load.by_master(NETWORK),
        load.share(COMMANDS),
        load.share(CPU),
        load.share(NETWORK),
        beside(COMMANDS),
        beside(CPU),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(commands: &[f64]) -> Load {
        let one = |commands: &f64| Counters {
            commands: *commands,
            cpu: 10.0 * commands,
            network_bytes: 100.0,
            ..Counters::default()
        };
        Load { rate: 5_000.0, masters: commands.iter().map(one).collect() }
    }

    #[test]
    fn a_row_says_what_the_busiest_master_does_beside_the_ideal_and_one_master_alone() {
        let case = |masters| Case { masters, shards: masters, is_placed: masters == 2 };
        let found = vec![
            (case(1), Ok(load(&[4.0]))),
            (case(2), Ok(load(&[3.0, 1.0]))),
            (case(3), Err("no server".to_owned())),
        ];
        let text = table(Kind::Queues, &STEPS[1], 10, &found);
        for row in [
            "\n| 1, 1 | 5.0 k | 4.00 | 40.00 | 100.00 | 1.00, 1.00, 1.00 | 1.00 | 1.00, 1.00 |\n",
            "\n| 2, 2, placed | 5.0 k | 3.00 / 1.00 | 30.00 / 10.00 | 100.00 / 100.00 | \
             0.75, 0.75, 0.50 | 0.50 | 0.75, 0.75 |\n",
            "\n| 3, 3 | failed: no server | - | - | - | - | - | - |\n",
        ] {
            assert!(text.contains(row), "{text}");
        }
    }

    #[test]
    fn shards_are_placed_only_where_a_queue_is_one() {
        let placed = |kind: Kind| kind.cases().iter().filter(|case| case.is_placed).count();
        assert_eq!((placed(Kind::OneQueue), placed(Kind::Queues)), (0, 2));
        assert_eq!((Kind::OneQueue.cases().len(), Kind::Queues.cases().len()), (6, 8));
    }
}
