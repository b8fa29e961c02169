//! Jobs that a worker holds ahead of its slots: how many, in which order they start, and when they
//! are released (R8, R31).

use std::time::Duration;

use quell_core::{ClaimedJob, Lease, Outcome, Settlement, Timestamp};
use tracing::debug;

use super::super::event::Command;
use super::{Machine, Stage};

/// How many times as long as a claim the jobs taken ahead last, so that claims take a small part of
/// the time, and handlers wait for none.
const CLAIMS: u32 = 50;
/// They last no shorter, or a handler that takes a little longer would empty them,
const SHORTEST: Duration = Duration::from_millis(10);
/// and no longer, or jobs would have to be released.
const LONGEST: Duration = Duration::from_millis(75);
/// What a claim takes where none is known.
const CLAIM: Duration = Duration::from_millis(1);

/// Without a start or an end of an attempt for this long, or for as long as what is taken ahead is
/// to last, it is released.
pub(super) const STALL: Duration = Duration::from_millis(50);
/// The longest that a job waits in a worker's hands (R8).
pub(super) const HOLD: Duration = Duration::from_millis(100);
/// How long nothing is taken ahead after a release; twice as long after each further one.
pub(super) const PENALTY: Duration = Duration::from_millis(100);
pub(super) const MAX_PENALTY: Duration = Duration::from_secs(10);

/// What the claims of late took that brought jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimCost(Duration);

impl ClaimCost {
    pub(super) const UNKNOWN: ClaimCost = ClaimCost(CLAIM);

    /// Adds a claim to the moving average. One that took no time ran in virtual time, and does not
    /// count.
    pub(super) fn learn(&mut self, took: Duration) {
        if !took.is_zero() {
            // A claim that hung says little about the next.
            self.0 = (self.0.saturating_mul(7).saturating_add(took.min(LONGEST))) / 8;
        }
    }

    /// How long what is taken ahead is to last.
    pub(super) fn ahead(self) -> Duration {
        self.0.saturating_mul(CLAIMS).clamp(SHORTEST, LONGEST)
    }
}

/// A claimed job that waits for a slot.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) job: ClaimedJob,
    pub(super) since: Timestamp,
}

impl Machine {
    /// How many slots neither run a job, nor wait for one, nor are kept for a claim.
    pub(super) fn slots(&self) -> usize {
        let reserved: usize = self.pollers.iter().filter_map(|poller| poller.claiming).sum();
        self.bounds.concurrency.saturating_sub(self.running + self.waiting.len() + reserved)
    }

    /// Slots that are kept for claims of queues with a rate: what such a claim brings has started,
    /// as far as the rate is concerned (R31).
    pub(super) fn kept_slots(&self) -> usize {
        let rated = self.pollers.iter().filter(|poller| poller.rated);
        rated.filter_map(|poller| poller.claiming).sum()
    }

    /// As many jobs ahead as the worker finishes at its present rate in the time that
    /// [`ClaimCost::ahead`] says: slow handlers prefetch nothing, and fast ones never wait for a
    /// claim.
    pub(super) fn set_ahead(&mut self, now: Timestamp) {
        if now < self.hold_off {
            self.ahead = 0;
            return;
        }
        if now >= self.hold_off + MAX_PENALTY {
            // What was taken ahead since then was started in time.
            self.penalty = PENALTY;
        }
        let elapsed = now.since(self.claimed_at).as_micros().max(1);
        let ended = self.ended_since_claim as u128;
        let lead = ended.saturating_mul(self.claim_cost.ahead().as_micros()) / elapsed;
        self.ahead = usize::try_from(lead).unwrap_or(usize::MAX).min(self.bounds.prefetch);
    }

    /// Releases the first `count` of the jobs that wait; no attempt is spent (R29).
    pub(super) fn release(&mut self, count: usize) {
        for Waiting { job, .. } in self.waiting.drain(..count) {
            let lease = Lease { job: job.id, token: job.token };
            let Some(held) = self.held.get_mut(&lease) else { continue };
            if held.lost {
                self.held.remove(&lease);
                continue;
            }
            held.stage = Stage::Ended;
            self.unsettled.push(Settlement { lease, outcome: Outcome::Released });
        }
    }

    /// A queue with a rate is claimed from for free slots alone (R31), so it has its turn before
    /// jobs that were taken ahead; between two turns as many of those start.
    pub(super) fn plan_turn(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        let taken = self.running + self.kept_slots() + self.first;
        let free = self.bounds.concurrency.saturating_sub(taken);
        let is_early = self.starts_since_turn < self.turn.saturating_mul(2);
        if self.waiting.is_empty() || free == 0 || is_early {
            return;
        }
        let queues = self.pollers.len();
        for step in 0..queues {
            let index = (self.next_turn + step) % queues;
            let Some(poller) = self.pollers.get_mut(index) else { return };
            if poller.claims && poller.rated && poller.is_free() && poller.look_at <= now {
                poller.claim(free);
                commands.push(Command::Claim { queue: index, limit: free });
                (self.turn, self.starts_since_turn, self.next_turn) = (free, 0, index + 1);
                return;
            }
        }
    }

    pub(super) fn plan_starts(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        self.first = 0;
        let slots = self.bounds.concurrency.saturating_sub(self.kept_slots());
        while self.running < slots {
            let Some(Waiting { job, .. }) = self.waiting.pop_front() else { return };
            let lease = Lease { job: job.id, token: job.token };
            let Some(held) = self.held.get_mut(&lease) else { continue };
            if held.lost {
                // Another attempt may run by now (R11, R21).
                self.held.remove(&lease);
                continue;
            }
            held.stage = Stage::Running;
            self.running += 1;
            self.starts_since_turn = self.starts_since_turn.saturating_add(1);
            self.moved_at = now;
            commands.push(Command::Start(Box::new(job)));
        }
    }

    /// When a job that waits is to be released.
    pub(super) fn release_at(&self, one: &Waiting) -> Timestamp {
        let stall = STALL.max(self.claim_cost.ahead());
        (one.since + HOLD).min(self.moved_at.max(one.since) + stall)
    }

    /// R8: a job that no slot will take soon is left to other workers. This one takes nothing ahead
    /// for a while, or the two would go on so.
    pub(super) fn plan_releases(&mut self, now: Timestamp) {
        let late = self.waiting.iter().take_while(|one| self.release_at(one) <= now);
        let count = late.count();
        if count == 0 {
            return;
        }
        debug!(jobs = count, running = self.running, "slots are busy, releasing prefetched jobs");
        self.release(count);
        self.hold_off = now + self.penalty;
        self.penalty = self.penalty.saturating_mul(2).min(MAX_PENALTY);
        self.ahead = 0;
        (self.ended_since_claim, self.claimed_at) = (0, now);
    }
}
