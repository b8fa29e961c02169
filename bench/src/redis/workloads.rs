//! Who is measured on Redis, and at what.

use std::path::Path;
use std::process::Command;

use super::goals::Goal;
use super::plain;

/// A program and its set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contender(pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const QUELL: Contender = Contender("quell-redis-bench", "defaults");
pub(crate) const FLOOR: Contender = Contender("redis-floor", "best");
/// No program of this repository: the other floor.
pub(crate) const PLAIN_CALLS: Contender = Contender(plain::PROGRAM, "best");
pub(crate) const CONTENDERS: &[Contender] = &[
    QUELL,
    Contender("quell-redis-bench", "best"),
    FLOOR,
    PLAIN_CALLS,
    Contender("bullmq", "defaults"),
    Contender("bullmq", "best"),
    Contender("dramatiq", "defaults"),
    Contender("dramatiq", "best"),
    Contender("apalis-redis-peer", "defaults"),
    Contender("apalis-redis-peer", "best"),
];

impl Contender {
    /// How it stands in tables.
    pub(crate) fn name(self) -> String {
        let name = self.0.trim_end_matches("-bench").trim_end_matches("-peer");
        format!("{name} ({})", self.1)
    }

    /// Its program, without what it is asked.
    pub(crate) fn command(self, programs: &Path) -> Command {
        let folder = programs.join(self.0);
        let mut command = match self.0 {
            "bullmq" => Command::new("node"),
            "dramatiq" => Command::new(folder.join("venv/bin/python")),
            name => Command::new(programs.join("release").join(name)),
        };
        match self.0 {
            "bullmq" => command.arg(folder.join("main.mjs")),
            "dramatiq" => command.arg(folder.join("main.py")),
            _ => &mut command,
        };
        command
    }
}

/// What is queued before a round begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before {
    Nothing,
    /// As much as the round works off.
    Count,
    /// As much as `--many` says.
    Many,
}

/// What the figure of a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// What the program found.
    Reported,
    /// What is in the server's memory since, for one job.
    Memory,
}

/// A workload: its name, the arguments of programs, and the amount.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) args: &'static [&'static str],
    /// How many jobs, and how many where `--quick` asks for less; none is `--many`.
    pub(crate) count: Option<(usize, usize)>,
    pub(crate) before: Before,
    pub(crate) figure: Figure,
    pub(crate) rounds: usize,
    /// Whether defaults of peers are measured, too: a million jobs take them minutes, and say nothing
    /// that their best set-up does not.
    pub(crate) defaults: bool,
    pub(crate) goal: Option<Goal>,
}

const PLAIN: Workload = Workload {
    name: "",
    args: &[],
    count: None,
    before: Before::Nothing,
    figure: Figure::Reported,
    rounds: 3,
    defaults: true,
    goal: None,
};

/// Windows of whom has none, each a message of its own: a million take it many minutes, and each takes
/// as much room as the others.
const FEWER: (&str, usize) = ("dramatiq", 100_000);

impl Workload {
    /// How many of `count` jobs a contender gets.
    pub(crate) fn share_of(&self, contender: Contender, count: usize) -> usize {
        let is_slow = contender.0 == FEWER.0 && self.figure == Figure::Memory;
        if is_slow { count.min(FEWER.1) } else { count }
    }

    pub(crate) fn is_for(&self, contender: Contender) -> bool {
        if contender == PLAIN_CALLS {
            return plain::takes_part(self.args);
        }
        self.defaults || contender.1 != "defaults" || contender == QUELL
    }
}

pub(crate) const WORKLOADS: [Workload; 9] = [
    Workload {
        name: "batch enqueue, per second",
        args: &["batch"],
        count: Some((100_000, 10_000)),
        goal: Some(Goal::Times(4.0)),
        ..PLAIN
    },
    Workload {
        name: "drain of no-ops, per second",
        args: &["drain"],
        count: Some((100_000, 10_000)),
        before: Before::Count,
        goal: Some(Goal::Times(4.0)),
        ..PLAIN
    },
    // One script of apalis-redis takes all that is due, and so no more than some thousands.
    Workload {
        name: "drain of a short queue, per second",
        args: &["drain"],
        count: Some((5_000, 5_000)),
        before: Before::Count,
        ..PLAIN
    },
    Workload {
        name: "single enqueue, 32 callers, per second",
        args: &["single", "--callers", "32"],
        count: Some((32_000, 3_200)),
        goal: Some(Goal::Times(2.0)),
        ..PLAIN
    },
    Workload {
        name: "debounced, 32 callers, 100 keys, per second",
        args: &["debounced", "--callers", "32", "--keys", "100"],
        count: Some((32_000, 3_200)),
        goal: Some(Goal::Times(4.0)),
        ..PLAIN
    },
    Workload {
        name: "debounced, 512 callers, 100 keys, per second",
        args: &["debounced", "--callers", "512", "--keys", "100"],
        count: Some((51_200, 5_120)),
        ..PLAIN
    },
    Workload {
        name: "enqueue to start, ms (p50, p99)",
        args: &["latency", "--budget", "15", "--samples"],
        count: Some((300, 50)),
        goal: Some(Goal::Within(0.5, 2.0)),
        ..PLAIN
    },
    Workload {
        name: "the first of a backlog that is due, per second",
        args: &["head"],
        count: Some((20_000, 2_000)),
        before: Before::Many,
        rounds: 1,
        defaults: false,
        ..PLAIN
    },
    Workload {
        name: "memory of an open window, bytes",
        args: &["windows"],
        figure: Figure::Memory,
        rounds: 1,
        defaults: false,
        goal: Some(Goal::Less(400.0)),
        ..PLAIN
    },
];
