//! Renewing leases (R21), and ending attempts that succeeded.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::{Lease, Now, Outcome, Renewal, Result, Settled, Settlement, Timestamp};

use crate::backend::PostgresBackend;
use crate::leases::{decode_renewed, forget_query, renew_query};
use crate::tx::{Outgoing, one_shot};

impl PostgresBackend {
    /// Extends leases: one statement.
    pub(crate) async fn renew(
        &self,
        now: Now,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let query = renew_query(&self.sql, self.asked(now), leases, lease);
        let (rows, _ordered) = self.one_shot(query).await?;
        let (now, renewed) = decode_renewed(&rows)?;
        let mut news = Outgoing::default();
        if self.history.is_some() {
            let event = |(Lease { job, token }, until): (&Lease, &Timestamp)| Event::Renew {
                t: now,
                job: *job,
                token: *token,
                until: *until,
            };
            news.events.extend(renewed.iter().map(event));
        }
        self.publish(now, news);
        Ok(leases.iter().map(|lease| renewed.get(lease).copied().into()).collect())
    }

    /// Ends attempts where all of the call succeeded; none where there is another outcome among them.
    pub(crate) async fn settle_some(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Result<Option<Vec<Option<Settled>>>> {
        // That of the claim is among them.
        self.expect_deltas(2).await;
        if settlements.iter().all(|one| one.outcome.is_success()) {
            return self.settle_well(now, settlements).await.map(Some);
        }
        // A caller's transaction that ends a job leaves its lease alone.
        let ended =
            settlements.iter().filter(|one| matches!(one.outcome, Outcome::InTransaction(_)));
        let leases: Vec<Lease> = ended.map(|one| one.lease).collect();
        if !leases.is_empty() {
            one_shot(&self.pool, &self.sql, forget_query(&self.sql, &leases)).await?;
        }
        Ok(None)
    }
}
