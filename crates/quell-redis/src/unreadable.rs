//! Jobs whose rows cannot be decoded (R25): set aside, listed and restored.
//!
//! A step that meets such a row is given up, the row is set aside by a step of its own, and the first
//! one starts again without it: the loop is in `store`. The row moves, byte by byte, from the jobs to
//! a hash that no script knows, and what is known of it takes the job out of the indexes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use quell_core::part::TaskKey;
use quell_core::{
    Error, Job, JobId, JobState, QueueName, Result, TaskName, Timestamp, UnreadableJob,
    UnreadableJobs, UnreadablePage, unreadable,
};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::busy::Busy;
use crate::keys::{member, split_task_key};
use crate::look::{Read, Score, job_of, read_fields};
use crate::pace::TRIES;
use crate::portions::{Order, Walk};
use crate::row::{decode_in_part, decode_job, from_json, to_json};
use crate::shard::Time;
use crate::store::{ShardStore, step, step_once};
use crate::tx::{Cell, Committed, Tx, contended};
use crate::write::{MESSAGE_ID, number};

/// Keys whose windows are read in one trip.
const MOST_KEYS: usize = 200;

/// What is kept of a job that is set aside, beside its row.
#[derive(Serialize, Deserialize)]
struct Aside {
    queue: Option<QueueName>,
    task: Option<TaskName>,
    was: Option<JobState>,
    set_aside_at: Timestamp,
    reason: String,
}

/// What became of a job whose row could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    /// It was set aside.
    Aside,
    /// It can be decoded: names were made after the failed call had read them.
    Readable,
    /// It has gone.
    Gone,
}

/// What becomes of the other jobs of a key when one is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frees {
    /// The next window may start where no attempt runs (R11).
    NextWindow,
    /// They stay as they are, because another job of the key is about to be set aside.
    Nothing,
}

impl ShardStore {
    /// Sets the job aside whose row cannot be decoded, if that is what `error` says; `false` where
    /// that is no reason to take the failed step again.
    pub(crate) async fn set_aside(&self, error: &Error) -> Result<bool> {
        let Some(id) = error.unreadable_job() else { return Ok(false) };
        let reason = unreadable::reason(error);
        let mut others = 0;
        loop {
            let error = match self.set_one_aside(id, &reason, Frees::NextWindow).await {
                Ok(met) => return Ok(met != Met::Gone || others > 0),
                Err(error) => error,
            };
            // Its key's next window cannot be decoded either. That one goes first: a process that
            // dies between the two must not leave the key to a window that nothing frees.
            let next = error.unreadable_job().filter(|next| *next != id);
            let Some(next) = next.filter(|_| others < unreadable::MAX_PER_CALL) else {
                return Err(error);
            };
            self.set_one_aside(next, &unreadable::reason(&error), Frees::Nothing).await?;
            others += 1;
        }
    }

    async fn set_one_aside(&self, id: JobId, reason: &str, frees: Frees) -> Result<Met> {
        let met = step_once!(
            self,
            "set an unreadable job aside",
            (Time::Last, 0, self.history.is_some()),
            TRIES,
            |tx| tx.set_aside(id, reason, frees).await?
        );
        if met == Met::Aside {
            warn!(job = %id, reason, "job set aside: its row cannot be decoded");
        }
        Ok(met)
    }

    /// The error of a job that is set aside; none for any other.
    pub(crate) async fn error_of(&self, id: JobId) -> Result<Option<Error>> {
        let reads = read_fields(&self.shard.keys.unreadable_jobs(), &[id.to_string()]);
        let mut looked = self.shard.look("read a job", Time::Last, &reads).await?;
        let aside = looked.fields()?.into_iter().next().flatten();
        let aside =
            aside.map(|bytes| from_json::<Aside>("an unreadable job", &bytes)).transpose()?;
        Ok(aside.map(|aside| Error::unreadable(id, aside.reason)))
    }
}

#[async_trait]
impl UnreadableJobs for ShardStore {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        let keys = &self.shard.keys;
        let below =
            page.before.map_or(Score::Max, |id| Score::At(place(id.get().saturating_sub(1))));
        let what = "list unreadable jobs";
        let mut walk = Walk::new(keys.unreadable(), Order::Highest, below);
        let members = walk.next(&self.shard, what, page.size()).await?.unwrap_or_default();
        let ids = members.iter().map(|(member, _)| job_of(member)).collect::<Result<Vec<_>>>()?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let fields: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let reads = read_fields(&keys.unreadable_jobs(), &fields);
        let asides = self.shard.look(what, Time::Last, &reads).await?.fields()?;
        let of = |(id, bytes): (JobId, Option<Vec<u8>>)| {
            let aside: Aside = from_json("an unreadable job", &bytes?).ok()?;
            let Aside { queue, task, was, set_aside_at, reason } = aside;
            Some(UnreadableJob { id, queue, task, was, set_aside_at, reason })
        };
        Ok(ids.into_iter().zip(asides).filter_map(of).collect())
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        let mut restored = Vec::new();
        for id in ids.iter().copied() {
            if step!(self, "restore a job", (now.into(), 0), |tx| tx.restore(id).await?) {
                restored.push(id);
            }
        }
        Ok(restored)
    }
}

impl Tx<'_> {
    /// Takes the step that sets a job aside, if its row cannot be decoded with all names that there
    /// are: where more are made meanwhile, the commit fails.
    async fn set_aside(&mut self, id: JobId, reason: &str, frees: Frees) -> Result<Option<Met>> {
        let (keys, field) = (self.shard.keys.clone(), id.to_string());
        self.fetch(vec![Cell::new(keys.jobs(), field.clone())], Vec::new()).await?;
        let Some(row) = self.cell(keys.jobs(), &field).map(<[u8]>::to_vec) else {
            return Ok(self.step(|_| Met::Gone));
        };
        if decode_job(id, &row, &self.known).is_ok() {
            return Ok(self.step(|_| Met::Readable));
        }
        let job = decode_in_part(id, &row, &self.known);
        let aside = Aside {
            queue: job.as_ref().map(|job| job.queue.clone()),
            task: job.as_ref().map(|job| job.task.clone()),
            was: job.as_ref().map(|job| job.state),
            set_aside_at: self.now,
            reason: reason.to_owned(),
        };
        self.beside.place(keys.unreadable(), member(id), place(id.get()));
        self.beside.hash_set(keys.unreadable_jobs(), id, to_json(&aside)?);
        self.beside.hash_set(keys.unreadable_rows(), id, row);
        let busy_key = match job {
            Some(job) => {
                self.load_beside(job, frees).await?;
                None
            }
            None => self.leave_every_index(id).await?.filter(|_| frees == Frees::NextWindow),
        };
        if let Some(task_key) = &busy_key {
            self.load_next_windows(&BTreeSet::from([task_key.clone()]), &[id]).await?;
            self.take_settings_of_jobs();
        }
        let reason = reason.to_owned();
        Ok(self.step(|part| {
            part.set_aside(id, &reason);
            busy_key.iter().for_each(|task_key| part.free_key(task_key));
            Met::Aside
        }))
    }

    /// Takes the step that puts a job back, if its row can be decoded; says whether it did.
    async fn restore(&mut self, id: JobId) -> Result<Option<bool>> {
        let (keys, field) = (self.shard.keys.clone(), id.to_string());
        let cells = [keys.unreadable_jobs(), keys.unreadable_rows()];
        let cells = cells.into_iter().map(|key| Cell::new(key, field.clone())).collect();
        self.fetch(cells, Vec::new()).await?;
        let aside = self.cell(keys.unreadable_jobs(), &field);
        let was = aside.and_then(|bytes| from_json::<Aside>("an unreadable job", bytes).ok()?.was);
        let row = self.cell(keys.unreadable_rows(), &field);
        let job = row.and_then(|row| decode_job(id, row, &self.known).ok());
        let (Some(was), Some(job)) = (was, job) else { return Ok(self.step(|_| false)) };
        self.forget_aside(id);
        self.load_beside(Job { state: JobState::Unreadable, ..job }, Frees::NextWindow).await?;
        Ok(self.step(|part| {
            part.restore(id, was);
            true
        }))
    }

    /// Loads what hangs on a job that is set aside or about to be, and what its key is about.
    async fn load_beside(&mut self, job: Job, frees: Frees) -> Result<()> {
        let (keys, id) = (self.shard.keys.clone(), job.id);
        let task_key = job.key.clone().map(|key| (job.task.clone(), key));
        self.rows.jobs.insert(id, Arc::new(job));
        self.fetch(Vec::new(), vec![keys.names(id)]).await?;
        if let Some((task, key)) = &task_key {
            let task_keys = BTreeSet::from([(task.clone(), key.clone())]);
            match frees {
                Frees::NextWindow => self.load_keys(&task_keys, &[id]).await?,
                Frees::Nothing => self.fetch_keys(&task_keys).await?,
            }
            let cell = Cell::new(keys.memories(), crate::keys::task_key(task, key));
            self.fetch(vec![cell], Vec::new()).await?;
            self.take_memory(task, key)?;
        }
        self.load_names(&[id]).await?;
        self.take_settings_of_jobs();
        Ok(())
    }

    /// Loads jobs that are set aside, so that they can be discarded.
    pub(crate) async fn load_aside(&mut self, ids: &[JobId]) -> Result<Vec<JobId>> {
        let keys = self.shard.keys.clone();
        let key = keys.unreadable_rows();
        let cells = ids.iter().map(|id| Cell::new(key.clone(), id.to_string())).collect();
        self.fetch(cells, ids.iter().map(|id| keys.names(*id)).collect()).await?;
        let mut aside = Vec::new();
        for id in ids {
            let Some(row) = self.cell(key.clone(), &id.to_string()) else { continue };
            let job = decode_in_part(*id, row, &self.known);
            aside.push(*id);
            self.forget_aside(*id);
            match job {
                Some(job) => {
                    let aside = Job { state: JobState::Unreadable, ..job };
                    self.rows.jobs.insert(*id, Arc::new(aside));
                }
                None => self.beside.delete(keys.ticks_of(*id)),
            }
        }
        self.load_names(&aside).await?;
        Ok(aside)
    }

    fn forget_aside(&mut self, id: JobId) {
        let keys = &self.shard.keys;
        self.beside.unplace(keys.unreadable(), member(id));
        self.beside.hash_delete(keys.unreadable_jobs(), id);
        self.beside.hash_delete(keys.unreadable_rows(), id);
    }

    /// Takes a job of which nothing can be decoded out of every index that may name it. Returns its
    /// key where other jobs of the key may wait for it.
    async fn leave_every_index(&mut self, id: JobId) -> Result<Option<TaskKey>> {
        let keys = self.shard.keys.clone();
        self.beside.hash_delete(keys.jobs(), id);
        for key in [keys.leases(), keys.waiting(), keys.ended(), keys.dead()] {
            self.beside.unplace(key, member(id));
        }
        let queues: BTreeSet<QueueName> =
            self.known.lanes().map(|(_, lane)| lane.queue.clone()).collect();
        let mut reads: Vec<Read> =
            queues.iter().map(|queue| Read::lowest(keys.heads(queue), usize::MAX)).collect();
        reads.push(Read::All(keys.runs()));
        let mut looked = self.look(reads).await?;
        for queue in &queues {
            for (line, _) in looked.scored()? {
                self.beside.unplace(keys.line(&line), member(id));
                self.beside.head(keys.heads(queue), keys.line(&line), line);
            }
        }
        let mut busy_keys = BTreeMap::new();
        for (field, value) in looked.pairs()? {
            if let Some(task_key) = split_task_key(&field) {
                busy_keys.insert(task_key, Busy::parse(&value));
            }
        }
        self.leave_key(id, busy_keys).await
    }

    /// Takes the job out of what is busy of its key, and returns the key. A job that neither runs nor
    /// has closed windows beside it keeps nothing back.
    async fn leave_key(
        &mut self,
        id: JobId,
        busy_keys: BTreeMap<TaskKey, Busy>,
    ) -> Result<Option<TaskKey>> {
        let keys = self.shard.keys.clone();
        let runs = busy_keys.iter().find(|(_, busy)| busy.running.contains(&id));
        let found = match runs {
            Some((task_key, _)) => Some((task_key.clone(), false)),
            None => self.key_of_window(id, &busy_keys).await?,
        };
        let Some((task_key, is_closed)) = found else { return Ok(None) };
        self.fetch_keys(&BTreeSet::from([task_key.clone()])).await?;
        let mut busy = self.busy(&task_key);
        busy.running.remove(&id);
        if is_closed {
            self.beside.note_closed(keys.closed(&task_key.0, &task_key.1), id, false);
        }
        self.beside.set_busy(&keys, &task_key, &busy, is_closed);
        Ok(Some(task_key))
    }

    /// The key with closed windows of which a job is a window, and whether it is one of those.
    async fn key_of_window(
        &mut self,
        id: JobId,
        busy_keys: &BTreeMap<TaskKey, Busy>,
    ) -> Result<Option<(TaskKey, bool)>> {
        let keys = self.shard.keys.clone();
        let closed: Vec<&TaskKey> = busy_keys
            .iter()
            .filter(|(_, busy)| busy.closed.is_some())
            .map(|(task_key, _)| task_key)
            .collect();
        for closed in closed.chunks(MOST_KEYS) {
            let reads = closed.iter().flat_map(|(task, key)| {
                let hash = keys.debounce(task, key);
                [
                    Read::Scores(keys.closed(task, key), vec![member(id)]),
                    Read::Fields(hash, vec![MESSAGE_ID.to_owned()]),
                ]
            });
            let mut looked = self.look(reads.collect()).await?;
            for task_key in closed {
                let is_closed = looked.present()?.contains(&true);
                let shown = looked.text()?.as_deref().and_then(number);
                if is_closed || shown == Some(id.get()) {
                    return Ok(Some(((*task_key).clone(), is_closed)));
                }
            }
        }
        Ok(None)
    }
}

/// Where a job stands among those that are set aside.
fn place(id: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(id).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use quell_conformance::rig::{keyed, task};
    use quell_core::{Batch, Key, Steps};

    use crate::RedisOptions;

    use super::*;

    /// As when another process makes a name between two reads of one call.
    #[tokio::test]
    async fn r25_a_row_that_can_be_decoded_after_all_is_not_set_aside() {
        let (url, prefix) = quell_services::redis_url_for_tests();
        let options = RedisOptions::from_url(&url).unwrap().prefix(&prefix).unwrap();
        let door = options.open().await.unwrap();
        let store = door.shards().only().unwrap();
        let batches = vec![Batch::one(keyed("k"))];
        let receipt = store.enqueue(None, batches).await.unwrap().remove(0).unwrap().remove(0);
        let job = receipt.job().unwrap();
        let error = Error::unreadable(job, "its shape is unknown");
        assert!(store.set_aside(&error).await.unwrap(), "the call is to be made again");
        assert_eq!(store.unreadable(&UnreadablePage::default()).await.unwrap(), []);
        let flushed = store.flush(None, &task("t"), &Key::new("k").unwrap()).await.unwrap();
        assert_eq!(flushed, Some(job));
        let gone = Error::unreadable(JobId::new(999), "it is not there");
        assert!(!store.set_aside(&gone).await.unwrap());
    }
}
