//! What has to be done now and then: taking back leases, and removing what has ended (R21, R37).

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::idempotency::look_again;
use quell_core::schedule::RECORD;
use quell_core::{JobId, Key, QueueName, Result, Retention, TaskName, Timestamp};

use crate::keys::{Keys, member, task_key};
use crate::load::{cell_of_name, cells_beside};
use crate::look::{MOST_BYTES, Read, Score, job_of};
use crate::shard::Time;
use crate::store::ShardStore;
use crate::tx::{Cell, Tx};

/// What upkeep may find to remove.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Old {
    /// Rows past their retention.
    pub(crate) rows: bool,
    /// Ticks that no backfill can reach any more.
    pub(crate) ticks: bool,
}

impl ShardStore {
    /// Looks whether a lease has lapsed.
    pub(crate) async fn has_lapsed(&self, time: Time) -> Result<bool> {
        let reads = [Read::lowest(self.shard.keys.leases(), 1)];
        let mut looked = self.shard.look("look for lapsed leases", time, &reads).await?;
        let first = looked.scored()?.pop();
        Ok(first.is_some_and(|(_, until)| until <= looked.now))
    }

    /// Looks whether there may be anything to remove.
    pub(crate) async fn look_for_old(&self, time: Time, retention: &Retention) -> Result<Old> {
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
        Ok(Old { rows, ticks: tick.is_some_and(|at| at < now.before(RECORD)) })
    }
}

impl Tx<'_> {
    /// The jobs whose leases lapsed, those first that lapsed first.
    pub(crate) async fn lapsed(&mut self, limit: usize) -> Result<Vec<JobId>> {
        let (key, to) = (self.shard.keys.leases(), Score::At(self.now));
        let reads = vec![Read::Lowest { key, from: Score::Min, to, limit }];
        let members = self.look(reads).await?.scored()?;
        members.iter().map(|(member, _)| job_of(member)).collect()
    }

    /// Loads the open window of a key with all that its end may touch.
    pub(crate) async fn load_window(&mut self, task: &TaskName, key: &Key) -> Result<()> {
        let task_keys = [(task.clone(), key.clone())].into();
        self.fetch_keys(&task_keys).await?;
        self.load_open_windows(&task_keys).await?;
        let window = self.rows.jobs.values().find(|job| job.is_open_window()).map(|job| job.id);
        match window {
            Some(id) => self.load_around(&[id]).await,
            None => Ok(()),
        }
    }

    /// Loads a queue with all its logs of starts.
    pub(crate) async fn load_queue(&mut self, queue: &QueueName) -> Result<()> {
        if let Some(settings) = self.known.queues.get(queue) {
            self.rows.queues.insert(queue.clone(), settings.clone());
        }
        self.load_all_starts(queue).await
    }

    /// Shows the step all settings.
    pub(crate) fn take_all_settings(&mut self) {
        self.rows.queues = self.known.queues.clone();
        self.rows.tasks = self.known.tasks.clone();
    }

    /// Loads what is past its retention, and keys without effect, at most so many of each, and no more
    /// than [`MOST_BYTES`]; returns whether there may be more of one.
    pub(crate) async fn load_old(&mut self, retention: &Retention, limit: usize) -> Result<bool> {
        let (keys, now) = (self.shard.keys.clone(), self.now);
        let until = |key, keep: Option<Duration>, limit| {
            let to = keep.map(|keep| Score::At(now.before(keep)));
            let limit = if to.is_some() { limit } else { 0 };
            Read::Lowest { key, from: Score::Min, to: to.unwrap_or(Score::Min), limit }
        };
        let mut looked = self
            .look(vec![
                until(keys.ended(), retention.succeeded, limit),
                until(keys.dead(), retention.dead, limit),
                until(keys.expiry(), Some(Duration::ZERO), limit),
            ])
            .await?;
        let members =
            |scored: Vec<(String, Timestamp)>| scored.into_iter().map(|(member, _)| member);
        let mut old: Vec<String> = members(looked.scored()?).collect();
        old.extend(members(looked.scored()?));
        old.truncate(limit);
        let names: Vec<String> = members(looked.scored()?).collect();
        let more = [old.len(), names.len()].into_iter().any(|found| found >= limit);
        let ids: Result<Vec<JobId>> = old.iter().map(|member| job_of(member)).collect();
        let (ids, more_jobs) = self.within_bytes(ids?, cells_of_job).await?;
        let of_name = |keys: &Keys, name: &String| cell_of_name(keys, name).into_iter().collect();
        let (names, more_names) = self.within_bytes(names, of_name).await?;
        self.load_whole(&ids).await?;
        self.load_named(&names.into_iter().collect()).await?;
        self.look_again_later().await?;
        Ok(more || more_jobs || more_names)
    }

    /// As many of these as hold no more than [`MOST_BYTES`], and one at least; says whether others
    /// are left.
    async fn within_bytes<T>(
        &mut self,
        mut all: Vec<T>,
        cells: impl Fn(&Keys, &T) -> Vec<Cell>,
    ) -> Result<(Vec<T>, bool)> {
        let mut by_key: BTreeMap<String, (Vec<String>, Vec<usize>)> = BTreeMap::new();
        for (place, one) in all.iter().enumerate() {
            for cell in cells(&self.shard.keys, one) {
                let (fields, places) = by_key.entry(cell.key).or_default();
                fields.extend(cell.field);
                places.push(place);
            }
        }
        if by_key.is_empty() {
            return Ok((all, false));
        }
        let of = |(key, (fields, _)): (&String, &(Vec<String>, Vec<usize>))| {
            Read::Lengths(key.clone(), fields.clone())
        };
        let mut looked = self.look(by_key.iter().map(of).collect()).await?;
        let mut bytes = vec![0_u64; all.len()];
        for (_, places) in by_key.values() {
            for (place, length) in places.iter().zip(looked.numbers()?) {
                if let Some(sum) = bytes.get_mut(*place) {
                    *sum = sum.saturating_add(length);
                }
            }
        }
        let fits = fitting(bytes);
        let left = fits < all.len();
        all.truncate(fits);
        Ok((all, left))
    }

    /// Idempotency keys that have expired while their jobs have not ended are looked at again later,
    /// so that the keys of a long backlog are not read each time. The jobs' rows are not read: what
    /// has ended, or is set aside, is not in the table of jobs, or in an index of ended ones.
    async fn look_again_later(&mut self) -> Result<()> {
        let now = self.now;
        let expired = self.rows.records.iter().filter(|(_, record)| record.expires_at <= now);
        let expired: Vec<_> = expired
            .filter(|(_, record)| !self.rows.jobs.contains_key(&record.job))
            .map(|(name, record)| (name.clone(), record.job, record.expires_at))
            .collect();
        if expired.is_empty() {
            return Ok(());
        }
        let keys = self.shard.keys.clone();
        let members: Vec<String> = expired.iter().map(|(_, job, _)| member(*job)).collect();
        let ids = expired.iter().map(|(_, job, _)| job.to_string()).collect();
        let reads = vec![
            Read::Lengths(keys.jobs(), ids),
            Read::Scores(keys.ended(), members.clone()),
            Read::Scores(keys.dead(), members),
        ];
        let mut looked = self.look(reads).await?;
        let (rows, ended, dead) = (looked.numbers()?, looked.present()?, looked.present()?);
        let states = rows.into_iter().zip(ended.into_iter().zip(dead));
        for (((task, key), _, expires_at), (bytes, (ended, dead))) in
            expired.into_iter().zip(states)
        {
            if bytes == 0 || ended || dead {
                continue;
            }
            let name = format!("r {}", task_key(&task, &key));
            self.beside.place(keys.expiry(), name, look_again(now, expires_at));
            self.rows.records.remove(&(task, key));
        }
        Ok(())
    }
}

/// How many of these rows a call reads: as many as its bound of bytes allows, and one at least.
pub(crate) fn fitting(lengths: impl IntoIterator<Item = u64>) -> usize {
    let mut sum = 0_u64;
    let fits = lengths.into_iter().take_while(|length| {
        sum = sum.saturating_add(*length);
        sum <= MOST_BYTES
    });
    fits.count().max(1)
}

/// The cells that removing a job reads.
fn cells_of_job(keys: &Keys, id: &JobId) -> Vec<Cell> {
    let row = Cell::new(keys.jobs(), id.to_string());
    std::iter::once(row).chain(cells_beside(keys, *id)).collect()
}
