//! Who is measured on PostgreSQL, and at what.

/// A program and its set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contender(pub(crate) &'static str, pub(crate) &'static str);

pub(crate) const QUELL: Contender = Contender("quell-postgres-bench", "defaults");
pub(crate) const QUELL_BEST: Contender = Contender("quell-postgres-bench", "best");
pub(crate) const FLOOR: Contender = Contender("pg-floor", "best");
pub(crate) const GRAPHILE: Contender = Contender("graphile-worker-peer", "best");
pub(crate) const CONTENDERS: [Contender; 13] = [
    QUELL,
    QUELL_BEST,
    FLOOR,
    Contender("graphile-worker-peer", "defaults"),
    GRAPHILE,
    Contender("riverqueue-peer", "defaults"),
    Contender("riverqueue-peer", "best"),
    Contender("bullmq-postgres-peer", "defaults"),
    Contender("bullmq-postgres-peer", "best"),
    Contender("apalis-postgres-peer", "defaults"),
    Contender("apalis-postgres-peer", "best"),
    Contender("awa-peer", "defaults"),
    Contender("awa-peer", "best"),
];

impl Contender {
    /// How it stands in tables.
    pub(crate) fn name(self) -> String {
        let name = self.0.trim_end_matches("-bench").trim_end_matches("-peer");
        format!("{name} ({})", self.1)
    }
}

/// The goal for Quell in a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// At least this multiple of the peer, and this share of the floor.
    Ratios(f64, f64),
    /// At least this much a second.
    Rate(f64),
    /// At most so much, and such a tail.
    Millis(f64, f64),
    /// At most so much.
    AtMost(f64),
    /// No more than each of the peers takes, all at their best.
    Quickest,
}

/// A workload: its name, the arguments of programs, and the goal.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) args: &'static [&'static str],
    pub(crate) quick: &'static [&'static str],
    pub(crate) goal: Goal,
    pub(crate) rounds: u8,
    /// Where defaults take minutes or longer, only the best settings of the peers are measured.
    pub(crate) defaults: bool,
    /// Whether plain SQL can do it at all.
    pub(crate) floor: bool,
}

pub(crate) const WORKLOADS: [Workload; 11] = [
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
        name: "pick-up in another process, idle for five seconds, ms (p50, worst)",
        args: &["pickup", "--seconds", "5", "--samples", "3"],
        quick: &["pickup", "--seconds", "2", "--samples", "3"],
        goal: Goal::Quickest,
        rounds: 3,
        defaults: true,
        floor: false,
    },
    Workload {
        name: "kill with jobs in hand, until they start again, ms (p50, last)",
        args: &["kill", "--budget", "120"],
        quick: &["kill", "--budget", "40"],
        goal: Goal::Quickest,
        rounds: 3,
        defaults: true,
        floor: false,
    },
    Workload {
        name: "restart, until the new process starts a job, ms",
        args: &["restart"],
        quick: &["restart"],
        goal: Goal::Quickest,
        rounds: 3,
        defaults: true,
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

impl Workload {
    /// The number of rounds of a contender: more for those that a goal compares than for the others.
    pub(crate) fn rounds_of(&self, contender: Contender) -> u8 {
        let compared = match self.goal {
            Goal::Quickest => contender.1 == QUELL_BEST.1,
            Goal::Ratios(..) | Goal::Rate(_) | Goal::Millis(..) | Goal::AtMost(_) => {
                [QUELL, FLOOR, GRAPHILE].contains(&contender)
            }
        };
        if compared { self.rounds } else { 1 }
    }

    pub(crate) fn is_for(&self, contender: Contender) -> bool {
        let is_default_peer = contender.1 == "defaults" && contender != QUELL;
        let fits = contender != FLOOR || self.floor;
        fits && (!is_default_peer || self.defaults)
    }
}
