//! Ticks of deleted schedules (R36), which are removed in batches: a year of a schedule may be
//! millions.
//!
//! The step that deletes a schedule renames the set of its ticks, which takes the same time whatever
//! its size, and lists the new name in `forgotten`. From then on nothing counts as fired: a schedule
//! that is made again under the same name begins with an empty set. What is left is garbage, of which
//! the call removes the first batches and upkeep the rest, also where the process ended in between.

use quell_core::schedule::Tick;
use quell_core::{Result, ScheduleName};
use tracing::warn;

use crate::look::Read;
use crate::pace::TRIES;
use crate::row::{corrupt, from_json};
use crate::shard::Time;
use crate::store::{ShardStore, step};
use crate::tx::{Cell, Committed, Tx, contended};
use crate::writes::Write;

/// Ticks that one step removes at most.
const BATCH: usize = 500;
/// Batches that the call that deletes a schedule removes itself at most.
const BATCHES: usize = 10;
/// Entries of `forgotten` that are looked at at a time.
const SCANNED: usize = 10;

impl ShardStore {
    /// Removes the first ticks of deleted schedules. The schedule has been deleted, so a failure is
    /// none of that call, and upkeep goes on.
    pub(crate) async fn forget_first_ticks(&self, time: Time) {
        for _ in 0..BATCHES {
            match self.forget_ticks(time, BATCH).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    warn!(%error, "ticks of a deleted schedule are left to upkeep");
                    return;
                }
            }
        }
    }

    /// Removes ticks of deleted schedules, at most `limit` and at most a batch; says whether there
    /// may be more.
    pub(crate) async fn forget_ticks(&self, time: Time, limit: usize) -> Result<bool> {
        let limit = limit.clamp(1, BATCH);
        Ok(step!(self, "remove ticks", (time, 0, false), |tx| {
            Some(tx.forget_ticks(limit).await?)
        }))
    }
}

impl Tx<'_> {
    /// Makes the ticks of a schedule those of none.
    pub(crate) fn retire_ticks(&mut self, name: &ScheduleName) {
        let keys = &self.shard.keys;
        let id = format!("{:016x}", fastrand::u64(..));
        self.beside.push(Write::Retire {
            key: keys.fired(name),
            to: keys.forgotten_ticks(&id),
            list: keys.forgotten(),
            id,
            name: name.to_string(),
        });
    }

    async fn forget_ticks(&mut self, limit: usize) -> Result<bool> {
        let keys = self.shard.keys.clone();
        let (id, others) = self.first_forgotten().await?;
        let Some(id) = id else { return Ok(false) };
        self.fetch(vec![Cell::new(keys.forgotten(), id.clone())], Vec::new()).await?;
        // Another process may have removed the last ones.
        let Some(name) = self.cell(keys.forgotten(), &id) else { return Ok(true) };
        let name = std::str::from_utf8(name).map_err(|error| corrupt(format_args!("{error}")))?;
        let name = ScheduleName::new(name)?;
        let set = keys.forgotten_ticks(&id);
        let ticks = self.look(vec![Read::lowest(set.clone(), limit)]).await?.scored()?;
        let field = |at: &str| format!("{name} {at}");
        let cells = ticks.iter().map(|(at, _)| Cell::new(keys.ticks(), field(at)));
        self.fetch(cells.collect(), Vec::new()).await?;
        let is_last = ticks.len() < limit;
        for (at, _) in ticks {
            let field = field(&at);
            let row = self.cell(keys.ticks(), &field);
            let tick = row.and_then(|row| from_json::<Tick>("a tick", row).ok());
            let of_job = tick.and_then(|tick| tick.job).map(|job| keys.ticks_of(job));
            let (ticks, times, fired) = (keys.ticks(), keys.tick_times(), keys.fired(&name));
            let set = set.clone();
            self.beside.push(Write::Forget { set, at, field, fired, ticks, times, of_job });
        }
        if is_last {
            self.beside.hash_delete(keys.forgotten(), id);
        }
        Ok(others || !is_last)
    }

    /// The first entry of `forgotten`, and whether there are others.
    async fn first_forgotten(&mut self) -> Result<(Option<String>, bool)> {
        let mut cursor = "0".to_owned();
        loop {
            let reads = vec![Read::Scan(self.shard.keys.forgotten(), cursor, SCANNED)];
            let (next, mut ids) = self.look(reads).await?.scanned()?;
            let id = ids.pop();
            if id.is_some() || next == "0" {
                return Ok((id, !ids.is_empty() || next != "0"));
            }
            cursor = next;
        }
    }
}
