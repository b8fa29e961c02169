//! Upkeep that a worker does for all: takes back expired leases, removes ended jobs, fires ticks.

use std::time::Duration;

use quell_core::schedule::Ticked;
use quell_core::{ExpiredLease, NextDue, Pruned, Result, Timestamp};
use tracing::{debug, warn};

use super::super::event::Command;
use super::Machine;

/// The most leases that one call takes back.
pub(crate) const REAP_BATCH: usize = 1_000;
/// Rows of each kind that one call removes at most.
pub(crate) const PRUNE_BATCH: usize = 1_000;
/// The least time between two looks for expired leases.
pub(super) const REAP_PAUSE: Duration = Duration::from_millis(100);
/// Between two removals where no more is left.
pub(super) const PRUNE_PAUSE: Duration = Duration::from_secs(60);
/// Between two removals where more is left, at least.
pub(super) const PRUNE_REST: Duration = Duration::from_millis(1);

/// From a worker's start to its first removal: between half a pause and a whole one. Workers that a
/// deployment starts together would else remove at the same moment, and again each minute.
pub(super) fn first_pause(seed: u64) -> Duration {
    // Not the worker's own sequence: that of its polls.
    PRUNE_PAUSE.mul_f64(0.5 + fastrand::Rng::with_seed(!seed).f64() / 2.0)
}

impl Machine {
    pub(super) fn look_for_expired(&mut self, next: &NextDue) {
        if let Some(expiry) = next.expiry {
            let at = self.local_time(expiry).max(self.reaped_at + REAP_PAUSE);
            self.reap_at = Some(self.reap_at.map_or(at, |known| known.min(at)));
        }
    }

    pub(super) fn on_reaped(&mut self, answer: Result<Vec<ExpiredLease>>, now: Timestamp) {
        self.reaping = false;
        self.reaped_at = now;
        match answer {
            Ok(expired) => {
                for one in &expired {
                    let (job, token, crash) = (one.lease.job, one.lease.token, one.crash);
                    warn!(%job, %token, crash, "lease expired, job taken back");
                }
                if !expired.is_empty() {
                    self.pollers.iter_mut().for_each(|poller| poller.look_by(now));
                    self.look_at_limited(now);
                }
                self.reap_at = (expired.len() >= REAP_BATCH).then_some(now);
            }
            Err(error) => {
                debug!(%error, "expired leases could not be taken back, trying again");
                self.reap_at = Some(now + self.bounds.poll.base);
            }
        }
    }

    pub(super) fn on_pruned(
        &mut self,
        answer: Result<Pruned>,
        asked_at: Timestamp,
        now: Timestamp,
    ) {
        self.pruning = false;
        self.prune_at = now + PRUNE_PAUSE;
        match answer {
            // Half of the time stays for claims and triggers.
            Ok(pruned) if pruned.more => self.prune_at = now + now.since(asked_at).max(PRUNE_REST),
            Ok(_) => {}
            Err(error) => debug!(%error, "ended jobs could not be removed, trying again"),
        }
    }

    pub(super) fn on_ticked(
        &mut self,
        answer: &Result<Ticked>,
        asked_at: Timestamp,
        now: Timestamp,
    ) {
        if let Ok(ticked) = answer {
            self.learn_store_time(ticked.now, asked_at);
        }
        let next = answer.as_ref().ok().and_then(|ticked| ticked.next);
        let next = next.map(|next| self.local_time(next));
        self.ticker.answered(answer, next, now);
    }

    pub(super) fn plan_upkeep(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        // R25: a worker that comes back after a pause reports itself before it takes its own leases
        // back, or it would count as gone.
        if self.is_seen() && !self.reaping && self.reap_at.is_some_and(|at| at <= now) {
            self.reaping = true;
            self.reap_at = None;
            commands.push(Command::Reap);
        }
        if self.rest.is_up() && !self.pruning && self.prune_at <= now {
            self.pruning = true;
            commands.push(Command::Prune);
        }
        if self.ticker.asks(now) {
            commands.push(Command::Tick);
        }
    }
}
