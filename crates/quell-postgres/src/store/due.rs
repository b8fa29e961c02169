//! How a claim goes: in one statement where that does, else with a look before it. What was seen of
//! a queue is kept, so that the next claim knows which way to go.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use quell_core::line::Line;
use quell_core::{Claim, Claimed, QueueName, Result, TaskName, Timestamp, WorkerId};
use tokio::sync::Mutex;

use super::PostgresStore;
use crate::error::wants_retry;
use crate::look::{Look, base_of, look};
use crate::tries::Tries;
use crate::tx::Tx;

/// When to look again at an inbox that another call was folding.
const FOLDED_ELSEWHERE: Duration = Duration::from_millis(250);

impl PostgresStore {
    /// What the claims of a queue with limits pass one by one.
    fn gate(&self, queue: &QueueName) -> Option<Arc<Mutex<()>>> {
        self.limited.read().unwrap_or_else(PoisonError::into_inner).get(queue).cloned()
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

    pub(super) async fn look(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
        worker: Option<&WorkerId>,
    ) -> Result<Look> {
        let asked = self.asked(now);
        let look = look(&self.pool, &self.sql, asked, (queue, tasks, worker)).await?;
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

    /// Starts what is due: in one statement where that does, else in a transaction of several.
    pub(super) async fn claim_due(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let queue = &claim.queue;
        if claim.limit > 0
            && !self.is_winding(queue)
            && let Some(claimed) = self.claim_straight(now, claim).await?
        {
            return Ok(claimed);
        }
        let before = self.look(now, queue, &claim.tasks, Some(&claim.worker)).await?;
        let is_straight = self.learn_shape(queue, &before).await?;
        if !before.is_due() || claim.limit == 0 {
            let Line { now, .. } = before.line;
            let rated = before.line.settings.limits_rate();
            return Ok(Claimed { now, jobs: Vec::new(), next: before.line.next(), rated });
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
        write!(self, now, |tx| {
            let (jobs, mut next, rated) = tx.claim(claim).await?;
            if tx.inbox_waits {
                // Another call folds the inbox. If it dies, no notification comes.
                let soon = next.now + FOLDED_ELSEWHERE;
                next.due = Some(next.due.map_or(soon, |due| due.min(soon)));
            }
            Claimed { now: tx.now, jobs, next, rated }
        })
    }
}
