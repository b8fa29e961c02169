//! Renewing leases by one script (R21).

use std::time::Duration;

use quell_core::{Lease, Result, Timestamp};

use super::{Request, exact};
use crate::known::Known;
use crate::pack::{Item, list};
use crate::store::ShardStore;

impl ShardStore {
    /// None where the step must be taken that knows all cases.
    pub(crate) async fn renew_fast(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Option<Vec<Option<Timestamp>>>> {
        // Renewals are events, which the other step tells.
        if self.history.is_some() {
            return Ok(None);
        }
        let shard = &self.shard;
        let request = |_: &Known| {
            let Some(length) = exact(length) else { return Ok(None) };
            let held = leases
                .iter()
                .map(|lease| list![lease.job.to_string(), Item::from_count(lease.token.get())]);
            let asked = vec![Item::from(length), Item::List(held.collect())];
            Ok(Some(Request { keys: shard.first_keys([shard.keys.leases()]), asked }))
        };
        let script = &shard.scripts.fast.renew;
        let answer = shard.run("renew leases", script, now.into(), request).await?;
        let Some(mut answer) = answer else { return Ok(None) };
        leases.iter().map(|_| answer.moment()).collect::<Result<_>>().map(Some)
    }
}
