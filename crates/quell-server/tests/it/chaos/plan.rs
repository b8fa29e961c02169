//! What is done to whom and when, from a seed alone.

use std::time::Duration;

use super::crew::{CALLERS, WORKERS};

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A worker is killed with SIGKILL and started again.
    KillWorker(usize),
    /// A caller is killed with SIGKILL and started again.
    KillCaller(usize),
    /// A worker stands still for longer than its leases, and goes on in the belief that it holds
    /// them.
    Stop(usize, Duration),
    /// A worker is asked to end in the middle of its work, and started again (R29).
    Term(usize),
    /// Another program holds the write lock.
    Lock(Duration),
    /// A worker is killed while the log is moved into the database.
    KillInCheckpoint(usize),
    /// A caller cannot make files any longer: its disk is full, and then it is not.
    FullForCaller(usize, Duration),
    /// The same for a worker.
    FullForWorker(usize, Duration),
    /// Every connection to the server is cut, in the middle of whatever it does.
    Cut,
    /// The process that serves one connection is killed: the server restarts.
    KillSession,
    /// The server is killed, and started again.
    KillServer,
    /// The server stands still for a while, as in a failover.
    Outage(Duration),
    /// Statements are cancelled that take longer than a moment.
    Impatient(Duration),
    /// The server has no connection left.
    NoConnections(Duration),
    /// The server's process stands still, with its connections open.
    Freeze(Duration),
    /// The server forgets every script.
    Forget,
}

impl Fault {
    /// The word for the summary.
    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::KillWorker(_) => "worker killed",
            Fault::KillCaller(_) => "caller killed",
            Fault::Stop(..) => "worker stopped past its leases",
            Fault::Term(_) => "worker asked to end",
            Fault::Lock(_) => "file locked by another program",
            Fault::KillInCheckpoint(_) => "worker killed during a checkpoint",
            Fault::FullForCaller(..) => "caller's disk full",
            Fault::FullForWorker(..) => "worker's disk full",
            Fault::Cut => "connections cut",
            Fault::KillSession => "server's session killed",
            Fault::KillServer => "server killed",
            Fault::Outage(_) => "server away",
            Fault::Impatient(_) => "statements cancelled",
            Fault::NoConnections(_) => "no connection left",
            Fault::Freeze(_) => "server stopped",
            Fault::Forget => "scripts forgotten",
        }
    }
}

/// The faults of a run on a server, each with the time to wait before it.
pub(super) fn plan_on_server(seed: u64, rounds: usize) -> Vec<(Duration, Fault)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draw = || {
        let wait = Duration::from_micros(random.u64(2_000..120_000));
        let (worker, caller) = (random.usize(..WORKERS), random.usize(..CALLERS));
        let mut millis = |from, to| Duration::from_millis(random.u64(from..to));
        let length = [millis(330, 600), millis(20, 700), millis(100, 1_500)];
        let fault = match random.u8(..24) {
            0..=5 => Fault::KillWorker(worker),
            6..=9 => Fault::KillCaller(caller),
            10..=11 => Fault::Stop(worker, length[0]),
            12..=13 => Fault::Term(worker),
            14..=17 => Fault::Cut,
            18 => Fault::Lock(length[1]),
            19 => Fault::KillSession,
            20 => Fault::KillServer,
            21 => Fault::Outage(length[2]),
            22 => Fault::Impatient(length[1]),
            _ => Fault::NoConnections(length[1]),
        };
        (wait, fault)
    };
    (0..rounds).map(|_| draw()).collect()
}

/// The faults of a run on Redis, each with the time to wait before it.
pub(super) fn plan_on_redis(seed: u64, rounds: usize) -> Vec<(Duration, Fault)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draw = || {
        let wait = Duration::from_micros(random.u64(2_000..120_000));
        let (worker, caller) = (random.usize(..WORKERS), random.usize(..CALLERS));
        let mut millis = |from, to| Duration::from_millis(random.u64(from..to));
        let length = [millis(330, 600), millis(20, 700), millis(100, 1_500)];
        let fault = match random.u8(..24) {
            0..=5 => Fault::KillWorker(worker),
            6..=9 => Fault::KillCaller(caller),
            10..=11 => Fault::Stop(worker, length[0]),
            12..=13 => Fault::Term(worker),
            14..=16 => Fault::Cut,
            17 => Fault::Lock(length[1]),
            18 => Fault::Forget,
            19..=20 => Fault::KillServer,
            21 => Fault::Outage(length[2]),
            _ => Fault::Freeze(length[2]),
        };
        (wait, fault)
    };
    (0..rounds).map(|_| draw()).collect()
}

/// The faults of a run on a file, each with the time to wait before it.
pub(super) fn plan(seed: u64, rounds: usize) -> Vec<(Duration, Fault)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draw = || {
        let wait = Duration::from_micros(random.u64(2_000..60_000));
        let (worker, caller) = (random.usize(..WORKERS), random.usize(..CALLERS));
        let mut millis = |from, to| Duration::from_millis(random.u64(from..to));
        let length = [millis(330, 600), millis(20, 700), millis(50, 150)];
        let fault = match random.u8(..20) {
            0..=6 => Fault::KillWorker(worker),
            7..=11 => Fault::KillCaller(caller),
            12..=13 => Fault::Stop(worker, length[0]),
            14..=15 => Fault::Term(worker),
            16 => Fault::Lock(length[1]),
            17 => Fault::KillInCheckpoint(worker),
            18 => Fault::FullForCaller(caller, length[2]),
            _ => Fault::FullForWorker(worker, length[2]),
        };
        (wait, fault)
    };
    (0..rounds).map(|_| draw()).collect()
}

#[test]
fn the_same_seed_plans_the_same_and_every_fault_is_drawn() {
    assert_eq!(plan(7, 200), plan(7, 200));
    assert_ne!(plan(7, 200), plan(8, 200));
    let names: std::collections::BTreeSet<_> =
        plan(7, 200).iter().map(|(_, fault)| fault.name()).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    let names: std::collections::BTreeSet<_> =
        plan_on_server(7, 300).iter().map(|(_, fault)| fault.name()).collect();
    assert_eq!(names.len(), 11, "{names:?}");
    let names: std::collections::BTreeSet<_> =
        plan_on_redis(7, 300).iter().map(|(_, fault)| fault.name()).collect();
    assert_eq!(names.len(), 10, "{names:?}");
}
