//! The identity of a worker: its report in heartbeats (R25), and the random number that
//! distinguishes its leases from those of others (R21).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell_core::heartbeat::{Heartbeat, listed};
use quell_core::{Draw, QueueName, TaskName, Timestamp, WorkerId};

use crate::random::drawn;

/// A worker's heartbeats but for what changes from one to the next.
#[derive(Debug)]
pub(super) struct Identity {
    beat: Heartbeat,
    /// How many it has made.
    claims: AtomicU64,
}

impl Identity {
    /// Of a worker of these queues and tasks.
    pub(super) fn new(
        worker: WorkerId,
        queues: Vec<QueueName>,
        tasks: Vec<TaskName>,
        slots: usize,
        lease: Duration,
    ) -> Self {
        let beat = Heartbeat {
            worker,
            incarnation: fastrand::u32(..),
            host: host(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            queues,
            tasks: listed(tasks),
            slots: narrow(slots),
            busy: 0,
            lease,
            age: Duration::ZERO,
        };
        Identity { beat, claims: AtomicU64::new(0) }
    }

    /// What the tokens of the next claim are made of (R21). In virtual time a run with one seed is
    /// the same each time.
    pub(super) fn draw(&self, is_virtual: bool) -> Draw {
        if !is_virtual {
            return Draw::new(drawn());
        }
        let mut hasher = DefaultHasher::new();
        (self.beat.worker.as_str(), self.claims.fetch_add(1, Ordering::Relaxed)).hash(&mut hasher);
        Draw::new(hasher.finish())
    }

    pub(super) fn worker(&self) -> &WorkerId {
        &self.beat.worker
    }

    pub(super) fn incarnation(&self) -> u32 {
        self.beat.incarnation
    }

    /// The heartbeat of this moment, of a worker that has been up since then.
    pub(super) fn beat(&self, busy: usize, since: Timestamp, now: Timestamp) -> Heartbeat {
        Heartbeat { busy: narrow(busy), age: now.since(since), ..self.beat.clone() }
    }
}

/// The host's name as the system gives it; containers have the container's.
fn host() -> String {
    let from_file = ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let from_environment =
        || ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok());
    let name = from_file.or_else(from_environment).unwrap_or_default();
    match name.trim() {
        "" => "unknown".to_owned(),
        name => name.to_owned(),
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
