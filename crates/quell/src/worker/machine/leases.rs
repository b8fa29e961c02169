//! When a worker renews its leases (R21): in time, and early where a job was cancelled or a renewal
//! returned no answer.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_core::{Cancelled, Lease, LeaseToken, Renewal, Result, Timestamp};
use tracing::warn;

use super::super::event::Command;
use super::{Held, Machine, RENEWALS, RETRY_PAUSE};

/// Between two early renewals, at least: cancelling many jobs makes few calls.
pub(super) const CHECK_PAUSE: Duration = Duration::from_millis(20);

impl Machine {
    /// When the next renewal is to be sent.
    pub(super) fn next_renewal(&self) -> Option<Timestamp> {
        if self.renewing >= RENEWALS {
            return None;
        }
        let check = (!self.checks.is_empty()).then_some(self.check_at);
        let again = (!self.unsure.is_empty()).then_some(self.ask_again_at);
        self.renew_at.into_iter().chain(check).chain(again).min()
    }

    pub(super) fn plan_renew(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        if self.held.is_empty() {
            self.renew_at = None;
            self.checks.clear();
            self.unsure.clear();
            return;
        }
        if self.renewing >= RENEWALS {
            return;
        }
        let leases: Vec<Lease> = if self.renew_at.is_some_and(|at| at <= now) {
            self.renew_at = Some(now + self.bounds.lease / 3);
            self.checks.clear();
            self.unsure.clear();
            self.held.iter().filter(|(_, held)| renews(held)).map(|(lease, _)| *lease).collect()
        } else if !self.checks.is_empty() && self.check_at <= now {
            self.check_at = now + CHECK_PAUSE;
            let checks = std::mem::take(&mut self.checks);
            self.unsure.retain(|lease| !checks.contains(lease));
            self.renewable(checks)
        } else if !self.unsure.is_empty() && self.ask_again_at <= now {
            let unsure = std::mem::take(&mut self.unsure);
            self.renewable(unsure)
        } else {
            return;
        };
        if !leases.is_empty() {
            for lease in &leases {
                self.held.entry(*lease).and_modify(|held| held.renewals += 1);
            }
            self.renewing += 1;
            commands.push(Command::Renew(leases));
        }
    }

    fn renewable(&self, leases: BTreeSet<Lease>) -> Vec<Lease> {
        leases.into_iter().filter(|lease| self.held.get(lease).is_some_and(renews)).collect()
    }

    /// Takes the answer for each lease. A lease without an answer is kept, and lost only at its own
    /// end: the worker renews it again soon.
    pub(super) fn on_renewed(
        &mut self,
        leases: &[Lease],
        asked_at: Timestamp,
        answer: Result<Vec<Renewal>>,
        now: Timestamp,
        commands: &mut Vec<Command>,
    ) {
        self.renewing = self.renewing.saturating_sub(1);
        let renewals = answer.unwrap_or_else(|error| {
            warn!(%error, leases = leases.len(), "leases could not be renewed, trying again");
            Vec::new()
        });
        let renewals = renewals.into_iter().chain(std::iter::repeat(Renewal::Unknown));
        let mut is_unsure = false;
        for (lease, renewal) in leases.iter().zip(renewals) {
            let Some(held) = self.held.get_mut(lease) else { continue };
            held.renewals = held.renewals.saturating_sub(1);
            match renewal {
                Renewal::Held(_) => held.until = held.until.max(asked_at + self.bounds.lease),
                Renewal::Lost => lose(*lease, held, commands),
                Renewal::Unknown => is_unsure |= self.unsure.insert(*lease),
            }
        }
        if is_unsure {
            self.ask_again_at = now + RETRY_PAUSE.min(self.bounds.lease / 3);
        }
        self.foresee_losses();
    }

    /// R21: a running job was cancelled, so that its lease is lost. The next renewal would find out
    /// as well, a third of a lease later.
    pub(super) fn check(&mut self, cancelled: Cancelled) {
        match cancelled {
            Cancelled::Job(id) => {
                let (first, last) = (LeaseToken::new(0), LeaseToken::new(u64::MAX));
                let of_job = Lease { job: id, token: first }..=Lease { job: id, token: last };
                self.checks.extend(self.held.range(of_job).map(|(lease, _)| *lease));
            }
            Cancelled::Any => self.checks.extend(self.held.keys()),
        }
    }

    /// R21: notifies a handler whose lease may have expired, even when the store is unreachable.
    pub(super) fn plan_losses(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        if self.lose_at.is_none_or(|at| now < at) {
            return;
        }
        for (lease, held) in &mut self.held {
            if held.until <= now {
                lose(*lease, held, commands);
            }
        }
        self.foresee_losses();
    }

    /// Kept rather than found each time: a worker may hold thousands of leases.
    pub(super) fn foresee_losses(&mut self) {
        let held = self.held.values().filter(|held| !held.lost);
        self.lose_at = held.map(|held| held.until).min();
    }
}

/// Notifies a handler, once, that its lease is lost.
fn lose(lease: Lease, held: &mut Held, commands: &mut Vec<Command>) {
    if !held.lost {
        held.lost = true;
        commands.push(Command::Cancel(lease));
    }
}

fn renews(held: &Held) -> bool {
    !held.lost && !held.doubtful
}
