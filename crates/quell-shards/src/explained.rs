//! Explanations of keys, which are on a shard that their text decides (R15).

use futures_util::future::{join_all, try_join_all};
use quell_core::{ErrorKind, ExplainTarget, Explanation, Now, Result, Steps};

use crate::directory::Directory;
use crate::door::Sharded;

impl<D: Directory> Sharded<D> {
    /// What a key leads to, on whichever shard that is; of several jobs, the newest.
    pub(crate) async fn explain_key(
        &self,
        now: Now,
        target: &ExplainTarget,
    ) -> Result<Option<Explanation>> {
        match target {
            ExplainTarget::IdempotencyKey { task: Some(task), key }
            | ExplainTarget::DedupKey { task: Some(task), key } => {
                match self.shards().of_key(task, key).await? {
                    Some(shard) => shard.explain(now, target).await,
                    None => Ok(None),
                }
            }
            ExplainTarget::IdempotencyKey { task: None, .. }
            | ExplainTarget::DedupKey { task: None, .. } => {
                let shards = self.shards().all().await?;
                let asked = join_all(shards.iter().map(|shard| shard.explain(now, target))).await;
                // A job that is there counts before one that was removed.
                let (mut found, mut removed) = (Vec::new(), None);
                for answer in asked {
                    match answer {
                        Ok(answer) => found.extend(answer),
                        Err(error) if error.kind() == ErrorKind::NotFound => removed = Some(error),
                        Err(error) => return Err(error),
                    }
                }
                match (newest(found), removed) {
                    (None, Some(error)) => Err(error),
                    (newest, _) => Ok(newest),
                }
            }
            ExplainTarget::Job(_) | ExplainTarget::Trigger(_) | ExplainTarget::Key { .. } => {
                let shards = self.shards().all().await?;
                let asked = try_join_all(shards.iter().map(|shard| shard.explain(now, target)));
                Ok(newest(asked.await?.into_iter().flatten()))
            }
        }
    }
}

fn newest(found: impl IntoIterator<Item = Explanation>) -> Option<Explanation> {
    found.into_iter().max_by_key(|one| (one.job.window.first_at, one.job.id))
}
