//! Renewing leases (R21): one statement for all leases of a worker.
//!
//! Invariant: a lease that has expired is never extended.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::{Lease, Renewal, Result};

use super::settle::{decode_leases, json_leases};
use crate::error::explain;
use crate::tx::Tx;

impl Tx {
    /// Extends leases that still hold (R21).
    pub(crate) async fn renew(
        &mut self,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Renewal>> {
        const RENEW: &str = "update quell_job
                set lease_until = ?3
               from json_each(?1) l
              where quell_job.id = cast(l.key as integer) and token = l.value
                and state = 1 and lease_until > ?2
          returning quell_job.id, token";
        let until = self.now + length;
        let rows = sqlx::query(RENEW)
            .bind(json_leases(leases.iter()))
            .bind(self.now.as_micros())
            .bind(until.as_micros())
            .fetch_all(&mut self.writer.db)
            .await
            .map_err(|e| explain("renew leases", e))?;
        let renewed = decode_leases(&rows)?;
        let t = self.now;
        for Lease { job, token } in leases.iter().filter(|lease| renewed.contains(lease)).copied() {
            self.record_event(|| Event::Renew { t, job, token, until });
        }
        Ok(leases.iter().map(|lease| renewed.contains(lease).then_some(until).into()).collect())
    }
}
