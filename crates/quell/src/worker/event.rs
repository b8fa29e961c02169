//! Events of a worker and its commands: the messages between `machine` and `run`.

use std::time::Duration;

use quell_core::heartbeat::Beaten;
use quell_core::schedule::Ticked;
use quell_core::{
    Claimed, ClaimedJob, ExpiredLease, Lease, NextDue, Pruned, Renewal, Result, Settled,
    Settlement, Timestamp, Wakeup,
};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A wake-up from the store, or from a full look that a wake-up asked for.
    Woken(Wakeup),
    /// The time that `Machine::next_wake` named has come.
    Tick,
    /// A claim was answered.
    Claimed { queue: usize, limit: usize, asked_at: Timestamp, answer: Result<Claimed> },
    /// A look at queues was answered.
    Looked { queues: Vec<usize>, asked_at: Timestamp, answer: Result<Vec<NextDue>> },
    /// Attempts ended.
    Ended(Vec<Settlement>),
    /// Attempts go on elsewhere, each for so long at most.
    HandedOver(Vec<(Lease, Duration)>),
    /// The extension of leases that were handed over was answered.
    Extended { leases: Vec<Lease>, answer: Result<Vec<Renewal>> },
    /// Settlements were answered.
    Settled { sent: Vec<Settlement>, answer: Result<Vec<Settled>> },
    /// Renewals were answered.
    Renewed { leases: Vec<Lease>, asked_at: Timestamp, answer: Result<Vec<Renewal>> },
    /// A heartbeat was answered.
    Beaten(Result<Beaten>),
    /// The removal of the worker's row was answered.
    Left(Result<()>),
    /// Expired leases were taken back.
    Reaped(Result<Vec<ExpiredLease>>),
    /// Schedules were asked for ticks.
    Ticked { asked_at: Timestamp, answer: Result<Ticked> },
    /// Ended jobs were removed.
    Pruned { asked_at: Timestamp, answer: Result<Pruned> },
    /// The worker is asked to stop.
    Shutdown,
    /// The worker claims nothing more, and ends once its attempts have.
    Drain,
}

/// Something to do.
#[derive(Debug)]
pub(crate) enum Command {
    Claim {
        queue: usize,
        limit: usize,
    },
    /// Look at queues in which nothing is known to be due.
    Look(Vec<usize>),
    Start(Box<ClaimedJob>),
    Settle(Vec<Settlement>),
    Renew(Vec<Lease>),
    /// Extend leases whose attempts go on elsewhere.
    Extend {
        leases: Vec<Lease>,
        within: Duration,
    },
    /// Report that the worker is alive, with this number of running attempts, and has been up since
    /// then.
    Heartbeat {
        busy: usize,
        since: Timestamp,
    },
    /// Take the worker's row back: it rests.
    Leave,
    Reap,
    Prune,
    /// Fire the ticks of schedules that are due.
    Tick,
    /// Notify the handler that its attempt no longer counts.
    Cancel(Lease),
    /// Drop the handler.
    Abort(Lease),
}
