//! Ticks that no backfill can reach any more (R36), which upkeep forgets span by span.
//!
//! A schedule is looked at where its oldest span may have ended so long ago: about once a year, as
//! long as it fires by plan.

use std::time::Duration;

use quell_core::schedule::{RECORD, UNREADABLE_PAUSE};
use quell_core::{Pruned, Result, Retention, ScheduleName, Timestamp};
use tracing::error;

use crate::backend::RedisBackend;
use crate::fired::{MICROSECOND, Record};
use crate::look::{Read, Score};
use crate::open::{Cell, Open, Tries};
use crate::row::from_json;
use crate::shard::Time;
use crate::ticks::SPANS;
use crate::writes::Writes;

/// Schedules that one step looks at.
const SCHEDULES: usize = 10;

impl RedisBackend {
    /// Looks whether there is anything to remove, and forgets old ticks. None where the engine has to
    /// remove rows.
    pub(crate) async fn prune_ticks(
        &self,
        time: Time,
        retention: &Retention,
        limit: usize,
    ) -> Result<Option<Pruned>> {
        let keys = &self.shard.keys;
        let reads = [keys.ended(), keys.dead(), keys.expiry(), keys.tick_times()];
        let reads = reads.map(|key| Read::lowest(key, 1));
        let mut looked = self.shard.look("look for what has ended", time, &reads).await?;
        let now = looked.now;
        let mut first =
            || -> Result<Option<Timestamp>> { Ok(looked.scored()?.pop().map(|(_, at)| at)) };
        let (ended, dead, expires, tick) = (first()?, first()?, first()?, first()?);
        let is_old = |at: Option<Timestamp>, keep: Option<Duration>| {
            at.zip(keep).is_some_and(|(at, keep)| at <= now.before(keep))
        };
        let rows = is_old(ended, retention.succeeded)
            || is_old(dead, retention.dead)
            || is_old(expires, Some(Duration::ZERO));
        if tick.is_none_or(|at| at >= now.before(RECORD)) {
            return Ok((!rows).then(Pruned::default));
        }
        let pruned = self.forget_old_ticks(time, limit).await?;
        Ok(Some(Pruned { more: pruned.more || rows, ..pruned }))
    }

    /// Forgets spans of ticks, at most `limit`.
    async fn forget_old_ticks(&self, time: Time, limit: usize) -> Result<Pruned> {
        let mut tries = Tries::default();
        loop {
            let (mut open, mut writes) = self.shard.begin(time).await?;
            let pruned = open.forget_old_ticks(&mut writes, limit).await?;
            if open.finish(writes).await? {
                return Ok(pruned);
            }
            tries.again("forget old ticks").await?;
        }
    }
}

impl Open {
    async fn forget_old_ticks(&mut self, writes: &mut Writes, limit: usize) -> Result<Pruned> {
        let (keys, oldest) = (self.keys().clone(), self.now.before(RECORD));
        let schedules = limit.clamp(1, SCHEDULES);
        let to = Score::At(oldest.before(MICROSECOND));
        let due = Read::Lowest { key: keys.tick_times(), from: Score::Min, to, limit: schedules };
        let names = self.look(vec![due]).await?.scored()?;
        let cells = names.iter().map(|(name, _)| Cell::new(keys.ticks(), name.as_str()));
        self.fetch(cells.collect()).await?;
        let mut pruned = Pruned { more: names.len() >= schedules, ..Pruned::default() };
        for (name, _) in names {
            let left = limit.saturating_sub(usize::try_from(pruned.expired).unwrap_or(usize::MAX));
            if left == 0 {
                pruned.more = true;
                break;
            }
            let name = ScheduleName::new(name)?;
            let gone = self.forget_old_spans(writes, (&name, oldest), left.min(SPANS)).await?;
            pruned.expired = pruned.expired.saturating_add(gone.expired);
            pruned.more |= gone.more;
        }
        Ok(pruned)
    }

    /// Forgets spans of one schedule that ended before a time.
    async fn forget_old_spans(
        &mut self,
        writes: &mut Writes,
        (name, oldest): (&ScheduleName, Timestamp),
        limit: usize,
    ) -> Result<Pruned> {
        let keys = self.keys().clone();
        let mut pruned = Pruned::default();
        let Some(record) = self.cell(keys.ticks(), name.as_str()) else {
            writes.forget_ticks(&keys, name);
            return Ok(pruned);
        };
        let mut record: Record = match from_json("a record of ticks", record) {
            Ok(record) => record,
            // R25: it harms itself only.
            Err(error) => {
                error!(%error, schedule = %name, "ticks cannot be decoded, trying again");
                let later = oldest + UNREADABLE_PAUSE;
                writes.place(keys.tick_times(), name.to_string(), later);
                return Ok(pruned);
            }
        };
        let sets = [keys.fired(name), keys.fired_long(name)];
        let old = |key: &String| {
            let to = Score::At(oldest.before(MICROSECOND));
            Read::Lowest { key: key.clone(), from: Score::Min, to, limit }
        };
        let next = |key: &String| {
            let from = Score::At(oldest);
            Read::Lowest { key: key.clone(), from, to: Score::Max, limit: 1 }
        };
        let reads = sets.iter().flat_map(|set| [old(set), next(set)]).collect();
        let mut looked = self.look(reads).await?;
        let mut left = record.newest.as_ref().map(|span| span.last).filter(|last| *last >= oldest);
        let mut budget = limit;
        for set in sets {
            let gone = looked.scored()?;
            pruned.more |= gone.len() >= budget;
            for (member, _) in gone.into_iter().take(budget) {
                writes.unplace(set.clone(), member);
                pruned.expired = pruned.expired.saturating_add(1);
                budget = budget.saturating_sub(1);
            }
            left = left.into_iter().chain(looked.scored()?.first().map(|(_, last)| *last)).min();
        }
        if pruned.more {
            writes.hash_set(keys.ticks(), name, record.changed()?);
            return Ok(pruned);
        }
        match left {
            Some(left) => {
                record.newest = record.newest.filter(|span| span.last >= oldest);
                record.oldest = left;
                writes.hash_set(keys.ticks(), name, record.changed()?);
                writes.place(keys.tick_times(), name.to_string(), left);
            }
            None => {
                writes.forget_ticks(&keys, name);
                pruned.expired = pruned.expired.saturating_add(1);
            }
        }
        Ok(pruned)
    }
}
