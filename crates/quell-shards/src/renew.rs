//! Renewals on several shards: each answers for its own leases, and one that is away costs only
//! those.

use std::time::Duration;

use futures_util::future::join_all;
use quell_core::{Error, ErrorKind, Lease, Now, Renewal, Result, Steps};
use tokio::time::timeout;
use tracing::warn;

use crate::directory::Directory;
use crate::door::Sharded;

/// A renewal waits for a shard for this part of a lease at most. Workers renew when a third of the
/// lease is gone, so the answers of the other shards come in time for their leases.
const PART_OF_LEASE: u32 = 4;

impl<D: Directory> Sharded<D> {
    /// Asks the shards side by side, and answers for the leases of each one that answers in time.
    pub(crate) async fn renew_each(
        &self,
        now: Now,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        let mut answers = vec![Renewal::Lost; leases.len()];
        let parts = self.by_shard(leases, |lease| lease.job).await?;
        let asked = parts.into_iter().map(async |(shard, places, part)| {
            let answer = timeout(lease / PART_OF_LEASE, shard.renew(now, &part, lease)).await;
            (places, answer.unwrap_or_else(|_| Err(silent())))
        });
        let (mut failed, mut has_answer) = (None, leases.is_empty());
        for (places, answer) in join_all(asked).await {
            let part = answer.unwrap_or_else(|error| {
                warn!(%error, leases = places.len(), "shard did not renew leases");
                failed = Some(error);
                Vec::new()
            });
            has_answer |= !part.is_empty();
            let part = part.into_iter().chain(std::iter::repeat(Renewal::Unknown));
            for (place, renewal) in places.into_iter().zip(part) {
                if let Some(answer) = answers.get_mut(place) {
                    *answer = renewal;
                }
            }
        }
        match failed {
            Some(error) if !has_answer => Err(error),
            Some(_) | None => Ok(answers),
        }
    }
}

fn silent() -> Error {
    let message = "cannot renew leases: the shard does not answer in time for its leases";
    Error::new(ErrorKind::UnknownOutcome, message)
}
