//! Renewing leases by one script (R21).

use std::time::Duration;

use quell_core::{Lease, Now, Renewal, Result, Timestamp};

use super::{Request, exact};
use crate::backend::RedisBackend;
use crate::known::Known;
use crate::pack::{Item, list};

impl RedisBackend {
    /// When, and what became of each lease; none where the step must be taken that knows all cases.
    pub(crate) async fn renew_all(
        &self,
        now: Now,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Option<(Timestamp, Vec<Renewal>)>> {
        let shard = &self.shard;
        let request = |_: &Known| {
            let Some(length) = exact(length) else { return Ok(None) };
            let held = leases.iter().map(|Lease { job, token }| {
                let (starts, draw) = (token.starts(), token.draw().get());
                list![job.to_string(), Item::from_count(starts), Item::from_count(draw)]
            });
            let asked = vec![Item::from(length), Item::List(held.collect())];
            Ok(Some(Request { keys: shard.first_keys([shard.keys.leases()]), asked }))
        };
        let script = &shard.scripts.hot.renew;
        let answer = shard.run("renew leases", script, now.into(), request).await?;
        let Some(mut answer) = answer else { return Ok(None) };
        let renewed = leases.iter().map(|_| answer.moment().map(Renewal::from));
        let renewed = renewed.collect::<Result<_>>()?;
        Ok(Some((answer.at, renewed)))
    }
}
