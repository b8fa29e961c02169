//! What has to be done now and then: taking back leases, and removing what has ended (R21, R37).

use std::collections::BTreeSet;
use std::time::Duration;

use quell_core::idempotency::Record;
use quell_core::schedule::RECORD;
use quell_core::{JobId, JobState, Key, QueueName, Result, Retention, TaskName, Timestamp};

use crate::keys::task_key;
use crate::look::{Read, Score, job_of};
use crate::shard::Time;
use crate::store::ShardStore;
use crate::tx::Tx;

/// When a key is looked at again that has expired and whose job has not ended.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

impl ShardStore {
    /// Looks whether a lease has lapsed.
    pub(crate) async fn has_lapsed(&self, time: Time) -> Result<bool> {
        let reads = [Read::lowest(self.shard.keys.leases(), 1)];
        let mut looked = self.shard.look("look for lapsed leases", time, &reads).await?;
        let first = looked.scored()?.pop();
        Ok(first.is_some_and(|(_, until)| until <= looked.now))
    }

    /// Looks whether there may be anything to remove.
    pub(crate) async fn may_prune(&self, time: Time, retention: &Retention) -> Result<bool> {
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
        Ok(is_old(ended, retention.succeeded)
            || is_old(dead, retention.dead)
            || is_old(expires, Some(Duration::ZERO))
            || is_old(tick, Some(RECORD)))
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
        self.load_keys(&[(task.clone(), key.clone())].into()).await?;
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

    /// Loads what is past its retention, and keys and ticks without effect, at most so many of
    /// each; returns whether there may be more of one.
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
                until(keys.tick_times(), Some(RECORD), limit),
            ])
            .await?;
        let members =
            |scored: Vec<(String, Timestamp)>| scored.into_iter().map(|(member, _)| member);
        let mut old: Vec<String> = members(looked.scored()?).collect();
        old.extend(members(looked.scored()?));
        old.truncate(limit);
        let names: BTreeSet<String> = members(looked.scored()?).collect();
        let ticks: BTreeSet<String> = members(looked.scored()?).collect();
        let more = [old.len(), names.len(), ticks.len()].into_iter().any(|found| found >= limit);
        let ids: Result<Vec<JobId>> = old.iter().map(|member| job_of(member)).collect();
        self.load_whole(&ids?).await?;
        self.load_named(&names).await?;
        self.load_tick_rows(&ticks).await?;
        self.look_again_later().await?;
        Ok(more)
    }

    /// The records that have expired and hold on, because their jobs have not ended, must not keep
    /// others from being looked at.
    async fn look_again_later(&mut self) -> Result<()> {
        let jobs: Vec<JobId> = self.rows.records.values().map(|record| record.job).collect();
        let missing: Vec<JobId> =
            jobs.into_iter().filter(|id| !self.rows.jobs.contains_key(id)).collect();
        self.load_jobs(missing).await?;
        let state = |record: &Record| self.rows.jobs.get(&record.job).map(|job| job.state);
        let holds = |record: &&Record| {
            record.expires_at <= self.now
                && state(record).is_some_and(|at: JobState| !at.is_ended())
        };
        let held = self.rows.records.iter().filter(|(_, record)| holds(record));
        let names: Vec<String> =
            held.map(|((task, key), _)| format!("r {}", task_key(task, key))).collect();
        // Rows that are only asked for their state are not to be removed.
        for name in names {
            self.beside.place(self.shard.keys.expiry(), name, self.now + LOOK_AGAIN);
        }
        Ok(())
    }
}
