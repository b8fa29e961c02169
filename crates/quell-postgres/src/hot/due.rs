//! How a claim goes: in one statement where that does, else with a look before it. What was seen of
//! a queue is kept, so that the next claim knows which way to go.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use quell_core::{Claim, Claimed, Now, QueueName, Result, TaskName, WorkerId};
use tokio::sync::Mutex;

use crate::backend::PostgresBackend;
use crate::hot::claim::Winding;
use crate::hot::heads::{RAISED, Stale};
use crate::hot::look::{Alone, Look, Looking, base_of};
use crate::hot::trail::{Places, Reached, Read};
use crate::tx::Outgoing;

/// When to look again at an inbox that another call was folding.
const FOLDED_ELSEWHERE: Duration = Duration::from_millis(250);

impl PostgresBackend {
    /// What the claims of a queue with limits pass one by one.
    fn gate(&self, queue: &QueueName) -> Option<Arc<Mutex<()>>> {
        self.limited.read().unwrap_or_else(PoisonError::into_inner).get(queue).cloned()
    }

    /// R31: what queues' limits held back may start, at any worker.
    pub(crate) fn free_slots(&self, news: &mut Outgoing) {
        let limited = self.limited.read().unwrap_or_else(PoisonError::into_inner);
        news.frees.extend(limited.keys().cloned());
    }

    fn is_winding(&self, queue: &QueueName) -> bool {
        self.winding.read().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    /// Takes note of whether claims of a queue may be one statement, which makes its lanes known.
    async fn learn_shape(&self, queue: &QueueName, look: &Look) -> Result<bool> {
        let is_straight = look.is_straight();
        if is_straight == self.is_winding(queue) {
            let mut winding = self.winding.write().unwrap_or_else(PoisonError::into_inner);
            if is_straight {
                winding.remove(queue);
            } else {
                winding.insert(queue.clone());
            }
        }
        if is_straight {
            let lanes = look.line.lanes.iter().map(|lane| base_of(lane.id));
            self.know_lanes(&lanes.collect::<Vec<i32>>()).await?;
        }
        Ok(is_straight)
    }

    pub(crate) async fn look(
        &self,
        now: Now,
        (queue, tasks, worker): (&QueueName, &[TaskName], Option<&WorkerId>),
        from: &Places,
    ) -> Result<Look> {
        let (sql, asked) = (&self.sql, self.asked(now));
        let looking = Looking { sql, asked, queue, tasks, worker, most: 1, from };
        let look = looking.look(&mut Alone(&self.pool, sql)).await?;
        self.saw(look.line.now);
        let settings = &look.line.settings;
        let is_limited = settings.limits_concurrency() || settings.limits_rate();
        if is_limited != self.gate(queue).is_some() {
            let mut limited = self.limited.write().unwrap_or_else(PoisonError::into_inner);
            if is_limited {
                limited.entry(queue.clone()).or_default();
            } else {
                limited.remove(queue);
            }
        }
        Ok(look)
    }

    /// From where a claim reads.
    pub(crate) fn places(&self, now: Now, claim: &Claim) -> Places {
        if now.is_none() { self.trails.next(claim) } else { Places::HEAD }
    }

    /// Records how far a claim came that began to read then. Where it may have passed over a job, the
    /// worker is to claim again.
    pub(crate) fn note_reached(
        &self,
        now: Now,
        claim: &Claim,
        (read, began): (Read, Instant),
        claimed: &mut Claimed,
        reached: &[Reached],
    ) {
        if now.is_some() {
            return;
        }
        let at = (claimed.now, claimed.next.expiry);
        self.trails.note(claim, (read, began.elapsed()), at, reached);
        if claimed.jobs.is_empty() || claimed.jobs.len() < claim.limit {
            read.look_from_the_head(began, &mut claimed.next);
        }
    }

    /// Starts what is due: in one statement where that does, else in a transaction of several.
    pub(crate) async fn claim_due(&self, now: Now, claim: &Claim) -> Result<Claimed> {
        let queue = &claim.queue;
        if claim.limit > 0
            && !self.is_winding(queue)
            && let Some(claimed) = self.claim_straight(now, claim).await?
        {
            return Ok(claimed);
        }
        let (from, began) = (self.places(now, claim), Instant::now());
        let who = (queue, &*claim.tasks, Some(&claim.worker));
        let before = self.look(now, who, &from).await?;
        let is_straight = self.learn_shape(queue, &before).await?;
        let is_due = before.is_due() && claim.limit > 0;
        if !is_due || before.stale.len() > RAISED {
            // Each for itself: where there are very many, what is done stays done.
            let stale: Vec<Stale> = before.stale.iter().copied().collect();
            for stale in stale.chunks(RAISED) {
                writing!(self, now, |tx| tx.raise_heads(stale).await?)?;
            }
        }
        if !is_due {
            let (next, rated) = (before.line.next(), before.line.settings.limits_rate());
            let mut claimed = Claimed { now: next.now, jobs: Vec::new(), next, rated };
            let reached = before.reached(&[]);
            self.note_reached(now, claim, (from.read, began), &mut claimed, &reached);
            return Ok(claimed);
        }
        if is_straight
            && !before.inbox_waits
            && let Some(claimed) = self.claim_straight(now, claim).await?
        {
            return Ok(claimed);
        }
        let gate = self.gate(queue);
        let _alone = match &gate {
            Some(gate) => Some(gate.lock().await),
            None => None,
        };
        // What waited for its turn meanwhile is no cost of the claim.
        let began = Instant::now();
        let (mut claimed, reached) = writing!(self, now, |tx| {
            let Winding { jobs, mut next, rated, reached } = tx.claim(claim, &from).await?;
            if tx.inbox_waits {
                // Another call folds the inbox. If it dies, no notification comes.
                let soon = next.now + FOLDED_ELSEWHERE;
                next.due = Some(next.due.map_or(soon, |due| due.min(soon)));
            }
            (Claimed { now: tx.now, jobs, next, rated }, reached)
        })?;
        self.note_reached(now, claim, (from.read, began), &mut claimed, &reached);
        Ok(claimed)
    }
}
