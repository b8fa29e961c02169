//! The calls that are one statement, which is its own transaction: what most of the work is made of.
//!
//! Each has a longer way in `store`, for what it does not cover.

use std::time::Instant;

use quell_core::history::Event;
use quell_core::window::Window;
use quell_core::{
    Batch, Claim, Claimed, Job, JobId, NewTrigger, Now, Receipt, Result, Settled, SettledAs,
    Settlement, TriggerId,
};
use sqlx::postgres::PgRow;
use tokio::sync::MutexGuard;
use tracing::debug;

use crate::backend::PostgresBackend;
use crate::hot::claim::{Straight, decode_straight, straight_query};
use crate::hot::settle::{Succeeded, decode_succeeded, succeed_query};
use crate::row::{get, time, unsigned};
use crate::sql::PgQuery;
use crate::tx::{Outgoing, first, one_shot_in_order};
use crate::write::insert_plain;

impl PostgresBackend {
    /// Runs a statement that is its own transaction; its commit is in order until the guard goes.
    pub(crate) async fn one_shot(
        &self,
        query: PgQuery,
    ) -> Result<(Vec<PgRow>, Option<MutexGuard<'_, ()>>)> {
        one_shot_in_order(&self.pool, &self.sql, query, self.order.as_ref()).await
    }

    /// Accepts triggers that have no key of any kind: one statement.
    pub(crate) async fn enqueue_plain(
        &self,
        now: Now,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let triggers: Vec<&NewTrigger> = batches.iter().flat_map(|batch| &batch.triggers).collect();
        if triggers.is_empty() {
            return Ok(batches.iter().map(|_| Ok(Vec::new())).collect());
        }
        let query = insert_plain(&self.sql, &self.names, self.asked(now), &triggers)?;
        let (rows, _ordered) = self.one_shot(query).await?;
        let (now, mut ids) = (time(first(&rows)?, 0)?, get::<Vec<i64>, _>(first(&rows)?, 1)?);
        // Numbers were given in the order of the triggers.
        ids.sort_unstable();
        let mut news = Outgoing::default();
        let mut receipts = Vec::with_capacity(ids.len());
        for (trigger, id) in triggers.iter().zip(ids) {
            let id = JobId::new(unsigned(id));
            let due = Window::unkeyed(now, trigger.when.earliest(now)).due_at;
            if self.history.is_some() {
                news.events.push(Event::window(now, &Job::unkeyed(id, trigger, now)));
            }
            news.wake(&trigger.queue, due);
            let trigger = TriggerId { job: id, seq: 1 };
            receipts.push(Receipt::Accepted { job: id, trigger, due });
        }
        self.publish(now, news);
        let mut receipts = receipts.into_iter();
        let of_batch = |b: &Batch| Ok(receipts.by_ref().take(b.triggers.len()).collect());
        Ok(batches.iter().map(of_batch).collect())
    }

    /// Starts what is due in one statement; none where the queue does not allow it.
    pub(crate) async fn claim_straight(&self, now: Now, claim: &Claim) -> Result<Option<Claimed>> {
        let lanes = self.names.lanes_of(&claim.queue);
        let (from, began) = (self.places(now, claim), Instant::now());
        let query = straight_query(&self.sql, self.asked(now), claim, lanes, &from);
        let (rows, ordered) = self.one_shot(query).await?;
        let straight = decode_straight(&rows, &self.names, claim.limit)?;
        let Some(straight) = straight else { return Ok(None) };
        let Straight { mut claimed, unreadable, reached } = straight;
        self.note_reached(now, claim, (from.read, began), &mut claimed, reached.as_slice());
        let mut news = Outgoing::default();
        if self.history.is_some() {
            let event = |job| Event::claimed(claimed.now, claim, job);
            news.events.extend(claimed.jobs.iter().map(event));
        }
        self.publish(claimed.now, news);
        drop(ordered);
        // What started must be handed out.
        if !unreadable.is_empty() {
            self.unreadable.lock().await.extend(unreadable);
        }
        Ok(Some(claimed))
    }

    /// Ends attempts that all succeeded: one statement. Those whose leases seem to have expired have no
    /// answer: a renewal of theirs may be in flight, and a step waits for it (R21).
    pub(crate) async fn settle_well(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Result<Vec<Option<Settled>>> {
        let query = succeed_query(&self.sql, self.asked(now), settlements);
        let (rows, _ordered) = self.one_shot(query).await?;
        let Succeeded { now, mut leases, freed } = decode_succeeded(&rows)?;
        let mut news = Outgoing::default();
        let lanes: Vec<i32> = freed.iter().map(|(lane, _)| *lane).collect();
        if let Err(error) = self.know_lanes(&lanes).await {
            // They have ended, and that is the answer.
            debug!(%error, "a hint was lost, polling finds the work");
        }
        for (lane, due) in &freed {
            if let Some(lane) = self.names.lane(*lane) {
                news.wake(&lane.queue, *due);
            }
        }
        if !leases.is_empty() {
            self.free_slots(&mut news);
        }
        if self.ends.are_awaited() {
            news.ended.extend(leases.iter().map(|lease| lease.job));
        }
        let mut settled = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let lease = settlement.lease;
            // A lease that is settled twice in one call counts once.
            let became = leases.remove(&lease).then_some(SettledAs::Succeeded);
            if let Some(became) = became.filter(|_| self.history.is_some()) {
                news.events.push(Event::settled(now, settlement, became));
            }
            settled.push(became.map(|became| Settled { lease, became }));
        }
        self.publish(now, news);
        Ok(settled)
    }
}
