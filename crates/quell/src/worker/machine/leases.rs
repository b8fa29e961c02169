//! When a worker renews its leases (R21): in time, and at once where a job was cancelled.

use std::time::Duration;

use quell_core::{Cancelled, Lease, LeaseToken, Timestamp};

use super::super::event::Command;
use super::{Held, Machine, RENEWALS};

/// Between two early renewals, at least: cancelling many jobs makes few calls.
pub(super) const CHECK_PAUSE: Duration = Duration::from_millis(20);

impl Machine {
    pub(super) fn plan_renew(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        if self.held.is_empty() {
            self.renew_at = None;
            self.checks.clear();
            return;
        }
        let renews = |held: &Held| !held.lost && !held.doubtful;
        if self.renewing < RENEWALS && self.renew_at.is_some_and(|at| at <= now) {
            self.renewing += 1;
            self.renew_at = Some(now + self.bounds.lease / 3);
            self.checks.clear();
            let renewed = self.held.iter().filter(|(_, held)| renews(held));
            commands.push(Command::Renew(renewed.map(|(lease, _)| *lease).collect()));
        } else if self.renewing < RENEWALS && !self.checks.is_empty() && self.check_at <= now {
            let checks = std::mem::take(&mut self.checks).into_iter();
            let leases: Vec<Lease> =
                checks.filter(|lease| self.held.get(lease).is_some_and(renews)).collect();
            if !leases.is_empty() {
                self.renewing += 1;
                self.check_at = now + CHECK_PAUSE;
                commands.push(Command::Renew(leases));
            }
        }
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
}
