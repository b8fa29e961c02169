//! What may happen to a run: faults, and what operators and deploys do.

use std::time::Duration;

use fastrand::Rng;

use super::processes::{CALLERS, WORKERS};

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A worker is killed with SIGKILL and started again.
    KillWorker,
    /// A caller is killed with SIGKILL and started again.
    KillCaller,
    /// A worker stands still for longer than its leases, and then goes on as if it held them.
    Stop,
    /// A worker is asked to end in the middle of its work, and started again (R29).
    Term,
    /// Another program holds the write lock.
    Lock,
    /// The log is moved into the database by another program.
    Checkpoint,
    /// A worker is killed while the log is moved into the database.
    KillInCheckpoint,
    /// A caller cannot write files for a while: its disk is full.
    FullForCaller,
    /// The same for a worker.
    FullForWorker,
    /// Every connection to the server is cut.
    Cut,
    /// The process that serves one connection is killed: the server restarts.
    KillSession,
    /// The server is killed, and started again.
    KillServer,
    /// The server is away for a while, as in a failover.
    Outage,
    /// Statements are cancelled that take longer than a moment.
    Impatient,
    /// The server has no connection left.
    NoConnections,
    /// The server's process stands still, with its connections open.
    Freeze,
    /// The server forgets every script.
    Forget,
    /// Nothing passes that way on the connections that are open, and after a while it does.
    Silent(Side),
    /// The same for good: the server gives them up, and the clients receive nothing.
    Lost(Side),
    /// Nothing passes at all for a while, and new connections are not made either.
    Hole,
    /// A worker and a caller stand still in the middle of their calls, for longer than leases last.
    StopInCalls,
    /// The server ends connections that idle.
    EndIdle,
    /// Another server takes over; the old one lives on as its replica, and the address leads to it for
    /// a while.
    HandOver,
    /// An operator pauses a queue and resumes it (R33).
    PauseQueue,
    /// An operator pauses a task and resumes it (R33).
    PauseTask,
    /// Every process ends in order and starts again, one after the other, with other policies.
    Deploy,
}

/// Whose words do not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// Those of the clients.
    Clients,
    /// Those of the server.
    Server,
    /// Those of both.
    Both,
}

/// One fault, whom it meets and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) member: usize,
    pub(super) length: Duration,
}

impl Kind {
    /// The words for the summary.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::KillWorker => "worker killed",
            Kind::KillCaller => "caller killed",
            Kind::Stop => "worker stopped past its leases",
            Kind::Term => "worker asked to end",
            Kind::Lock => "locked by another program",
            Kind::Checkpoint => "checkpoint by another program",
            Kind::KillInCheckpoint => "worker killed during a checkpoint",
            Kind::FullForCaller => "caller's disk full",
            Kind::FullForWorker => "worker's disk full",
            Kind::Cut => "connections cut",
            Kind::KillSession => "server's session killed",
            Kind::KillServer => "server killed",
            Kind::Outage => "server away",
            Kind::Impatient => "statements cancelled",
            Kind::NoConnections => "no connection left",
            Kind::Freeze => "server stopped",
            Kind::Forget => "scripts forgotten",
            Kind::Silent(Side::Clients) => "requests held up",
            Kind::Silent(Side::Server) => "replies held up",
            Kind::Silent(Side::Both) => "connections silent for a while",
            Kind::Lost(Side::Clients) => "requests lost for good",
            Kind::Lost(Side::Server) => "replies lost for good",
            Kind::Lost(Side::Both) => "connections silent for good",
            Kind::Hole => "address silent",
            Kind::StopInCalls => "worker and caller stopped inside calls",
            Kind::EndIdle => "idle connections ended",
            Kind::HandOver => "address led to a replica",
            Kind::PauseQueue => "queue paused",
            Kind::PauseTask => "task paused",
            Kind::Deploy => "deploy",
        }
    }

    /// Whether it leaves records of processes without an end.
    pub(super) fn kills_a_process(self) -> bool {
        matches!(
            self,
            Kind::KillWorker
                | Kind::KillCaller
                | Kind::KillInCheckpoint
                | Kind::FullForCaller
                | Kind::FullForWorker
        )
    }

    pub(super) fn draw(self, random: &mut Rng) -> Fault {
        let (member, millis) = match self {
            Kind::KillCaller | Kind::FullForCaller => (random.usize(..CALLERS), 50..150),
            Kind::FullForWorker => (random.usize(..WORKERS), 50..150),
            Kind::Stop | Kind::StopInCalls => (random.usize(..WORKERS), 1_100..1_500),
            // Some end before the deadlines of calls, and some after.
            Kind::Silent(_) | Kind::Hole => (0, 100..2_000),
            Kind::Outage | Kind::Freeze => (0, 100..1_500),
            // Long enough for starts that come too late to show.
            Kind::PauseQueue | Kind::PauseTask => (random.usize(..WORKERS), 1_600..2_400),
            _ => (random.usize(..WORKERS), 20..700),
        };
        Fault { kind: self, member, length: Duration::from_millis(random.u64(millis)) }
    }
}
