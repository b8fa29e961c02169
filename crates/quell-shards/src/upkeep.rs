//! What all shards of a queue, or of the store, are asked for again and again: work, and upkeep. One
//! that is away delays no other (R39).

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use quell_core::alert::{LaneOverview, Overview};
use quell_core::schedule::Ticked;
use quell_core::{
    Claim, Claimed, ExpiredLease, NextDue, Now, Pruned, QueueName, Result, Retention, Steps,
    TaskName, Timestamp,
};

use crate::directory::Directory;
use crate::door::{Sharded, of_those_that_answer, sooner};
use crate::visits::{Visited, address};

/// How often schedules are read while a shard does not answer: what is due there is unknown.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

impl<D: Directory> Sharded<D> {
    /// The shards of a queue, but those whose server is away, unless all are: heartbeats and upkeep
    /// find out when it is back.
    async fn near(&self, queue: &QueueName) -> Result<Vec<Arc<D::Shard>>> {
        let mut shards = self.shards.met_of_queue(queue).await?;
        if shards.iter().any(|shard| self.shards.is_reachable(shard)) {
            shards.retain(|shard| self.shards.is_reachable(shard));
        }
        Ok(shards)
    }

    /// Claims from one shard of the queue after the other; each comes first in turn.
    pub(crate) async fn claim_each(&self, now: Now, claim: &Claim) -> Result<Claimed> {
        let mut shards = self.near(&claim.queue).await?;
        let turn = fastrand::usize(..shards.len().max(1));
        shards.rotate_left(turn);
        let (mut all, mut failed) = (None::<Claimed>, None);
        for shard in shards {
            let taken = all.as_ref().map_or(0, |all| all.jobs.len());
            let claim = Claim { limit: claim.limit.saturating_sub(taken), ..claim.clone() };
            match (all.as_mut(), shard.claim(now, &claim).await) {
                (None, Ok(claimed)) => all = Some(claimed),
                (Some(all), Ok(claimed)) => {
                    all.next = sooner(all.next, claimed.next);
                    all.jobs.extend(claimed.jobs);
                    all.rated |= claimed.rated;
                }
                (_, Err(error)) => failed = Some(error),
            }
        }
        match (all, failed) {
            (Some(all), _) => Ok(all),
            (None, Some(error)) => Err(error),
            (None, None) => {
                let next = self.of_no_shard(now, &claim.queue, &claim.tasks).await?;
                Ok(Claimed { now: next.now, jobs: Vec::new(), next, rated: false })
            }
        }
    }

    /// When the next job of a queue is due on any of its shards.
    pub(crate) async fn next_of_each(
        &self,
        now: Now,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        let shards = self.near(queue).await?;
        let asked = shards.iter().map(|shard| shard.next_due(now, queue, tasks));
        match of_those_that_answer(join_all(asked).await)?.into_iter().reduce(sooner) {
            Some(next) => Ok(next),
            None => self.of_no_shard(now, queue, tasks).await,
        }
    }

    /// Of a queue that nothing was written to. The directory has no jobs, and knows the time.
    async fn of_no_shard(
        &self,
        now: Now,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        self.shards.first().next_due(now, queue, tasks).await
    }

    pub(crate) async fn reap_each(&self, now: Now, limit: usize) -> Result<Vec<ExpiredLease>> {
        let shards = self.shards.within_reach().await?;
        let ask = |shard: Arc<D::Shard>, limit| -> BoxFuture<'static, Result<Vec<ExpiredLease>>> {
            Box::pin(async move { shard.reap(now, limit).await })
        };
        let purpose = ("take back leases", limit);
        let (visited, _) = self.visits.share(purpose, shards, ask, Vec::len).await;
        let nothing = visited.answers.iter().all(|(_, expired)| expired.is_empty());
        match visited.failed {
            Some(error) if nothing => Err(error),
            Some(_) | None => Ok(visited.answers.into_iter().flat_map(|(_, one)| one).collect()),
        }
    }

    pub(crate) async fn prune_each(
        &self,
        now: Now,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        let shards = self.shards.within_reach().await?;
        let ask = |shard: Arc<D::Shard>, limit| -> BoxFuture<'static, Result<Pruned>> {
            let retention = *retention;
            Box::pin(async move { shard.prune(now, &retention, limit).await })
        };
        let count = |pruned: &Pruned| usize::try_from(pruned.jobs).unwrap_or(usize::MAX);
        let purpose = ("remove what is past its retention", limit);
        let (visited, is_all) = self.visits.share(purpose, shards, ask, count).await;
        let answers = visited.or_failure()?.into_iter().map(|(_, pruned)| pruned);
        let rest = Pruned { more: !is_all, ..Pruned::default() };
        Ok(answers.fold(rest, Pruned::and))
    }

    pub(crate) async fn tick_each(&self, now: Now, limit: usize) -> Result<Ticked> {
        let mut shards = self.shards.within_reach().await?;
        if shards.is_empty() {
            // It has no schedules, but knows the time.
            shards.push(Arc::clone(self.shards.first()));
        }
        let ask = |shard: Arc<D::Shard>, limit| -> BoxFuture<'static, Result<Ticked>> {
            Box::pin(async move { shard.tick(now, limit).await })
        };
        let purpose = ("fire ticks of schedules", limit);
        let count = |ticked: &Ticked| ticked.fired.len();
        let (visited, is_all) = self.visits.share(purpose, shards, ask, count).await;
        let is_whole = visited.failed.is_none();
        let mut all = Ticked { now: Timestamp::MIN, fired: Vec::new(), next: None };
        // A shard that was asked again has said so later.
        let mut nexts = BTreeMap::new();
        for (shard, ticked) in visited.or_failure()? {
            all.now = all.now.max(ticked.now);
            all.fired.extend(ticked.fired);
            nexts.insert(address(&shard), ticked.next);
        }
        all.next = nexts.into_values().flatten().min();
        let again = match (is_all, is_whole) {
            (false, _) => Some(all.now),
            (true, false) => Some(all.now + LOOK_AGAIN),
            (true, true) => None,
        };
        all.next = all.next.into_iter().chain(again).min();
        Ok(all)
    }

    /// What alerts look at. A shard that does not answer counts as it was when it last did: its dead
    /// jobs are no fewer because it is away.
    pub(crate) async fn overview_of_each(&self, now: Now) -> Result<Overview> {
        let shards = self.shards.within_reach().await?;
        let mut all = match shards.is_empty() {
            true => self.shards.first().overview(now).await?,
            false => Overview { now: Timestamp::MIN, lanes: Vec::new(), unreadable: 0 },
        };
        let asked = shards.clone();
        let Visited { answers, failed } = self
            .visits
            .each("look for alerts", asked, |shard| {
                Box::pin(async move { shard.overview(now).await })
            })
            .await;
        if let Some(error) = failed.filter(|_| answers.is_empty()) {
            return Err(error);
        }
        let mut last = self.overviews.lock().unwrap_or_else(PoisonError::into_inner);
        for (shard, overview) in answers {
            last.insert(address(&shard), overview);
        }
        for shard in shards {
            if let Some(known) = last.get(&address(&shard)) {
                add(&mut all, known.clone());
            }
        }
        all.lanes.sort_by(|a, b| (&a.queue, &a.task).cmp(&(&b.queue, &b.task)));
        Ok(all)
    }
}

fn add(all: &mut Overview, overview: Overview) {
    all.now = all.now.max(overview.now);
    all.unreadable = all.unreadable.saturating_add(overview.unreadable);
    for lane in overview.lanes {
        let same =
            |other: &&mut LaneOverview| (&other.queue, &other.task) == (&lane.queue, &lane.task);
        match all.lanes.iter_mut().find(same) {
            Some(known) => {
                known.dead = known.dead.saturating_add(lane.dead);
                known.unreadable = known.unreadable.saturating_add(lane.unreadable);
                known.first_due = known.first_due.into_iter().chain(lane.first_due).min();
            }
            None => all.lanes.push(lane),
        }
    }
}
