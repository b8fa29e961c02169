//! Attempts that go on elsewhere: their leases are extended once, and forgotten (R21).

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::{Lease, Renewal, Result, Timestamp};
use tracing::warn;

use super::super::event::Command;
use super::{Machine, RETRY_PAUSE, Stage};

/// The leases that are to be extended.
#[derive(Debug)]
pub(super) struct Handover {
    leases: BTreeMap<Lease, Duration>,
    /// Whether a call is in flight.
    extending: bool,
    try_at: Timestamp,
}

impl Handover {
    pub(super) fn new(now: Timestamp) -> Self {
        Handover { leases: BTreeMap::new(), extending: false, try_at: now }
    }

    /// Whether all leases were handed over.
    pub(super) fn is_done(&self) -> bool {
        self.leases.is_empty() && !self.extending
    }

    /// When to send the next call.
    fn next_wake(&self) -> Option<Timestamp> {
        (!self.extending && !self.leases.is_empty()).then_some(self.try_at)
    }
}

impl Machine {
    /// When to hand leases over; none where renewals in flight are waited for.
    pub(super) fn next_handover(&self) -> Option<Timestamp> {
        let is_free = |lease: &Lease| self.held.get(lease).is_none_or(|held| held.renewals == 0);
        self.handover.next_wake().filter(|_| self.handover.leases.keys().any(is_free))
    }

    /// Takes leases whose attempts go on elsewhere for so long.
    pub(super) fn on_handed_over(&mut self, leases: Vec<(Lease, Duration)>, now: Timestamp) {
        self.moved_at = now;
        for (lease, within) in leases {
            let Some(held) = self.held.get_mut(&lease) else { continue };
            if held.stage == Stage::Running {
                held.stage = Stage::Ended;
                // A renewal of this worker would shorten it again.
                held.doubtful = true;
                self.running = self.running.saturating_sub(1);
                self.ended_since_claim = self.ended_since_claim.saturating_add(1);
                self.handover.leases.insert(lease, within);
            }
        }
    }

    pub(super) fn plan_handover(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        let is_time = self.handover.next_wake().is_some_and(|at| at <= now);
        if !is_time {
            return;
        }
        // A renewal in flight may come to the store later than the extension, and shorten it.
        let is_free = |lease: &Lease| self.held.get(lease).is_none_or(|held| held.renewals == 0);
        let mut free = self.handover.leases.iter().filter(|(lease, _)| is_free(lease)).peekable();
        let Some(within) = free.peek().map(|(_, within)| **within) else { return };
        let leases = free.filter(|(_, one)| **one == within).map(|(lease, _)| *lease).collect();
        self.handover.extending = true;
        commands.push(Command::Extend { leases, within });
    }

    pub(super) fn on_extended(
        &mut self,
        leases: &[Lease],
        answer: Result<Vec<Renewal>>,
        now: Timestamp,
    ) {
        self.handover.extending = false;
        self.handover.try_at = now;
        let answers = answer.unwrap_or_else(|error| {
            warn!(%error, leases = leases.len(), "leases could not be handed over, trying again");
            Vec::new()
        });
        let answers = answers.into_iter().chain(std::iter::repeat(Renewal::Unknown));
        for (lease, answer) in leases.iter().zip(answers) {
            let is_over = self.held.get(lease).is_none_or(|held| held.until <= now);
            if answer == Renewal::Unknown && !is_over {
                self.handover.try_at = now + RETRY_PAUSE;
                continue;
            }
            self.handover.leases.remove(lease);
            self.held.remove(lease);
        }
        self.foresee_losses();
    }
}
