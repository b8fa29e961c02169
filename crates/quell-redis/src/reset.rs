//! How a store's clock is set back (R38).
//!
//! Each shard is one step, which reads all rows of the shard, moves the times that its clock made
//! while it was ahead, and writes them with the clock: whatever happens meanwhile, a shard is as it
//! was or set back. Where a reset ends between two shards, the next one goes on with the others. No
//! other process of the store may run, so it delays no one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use quell_core::checkup::{ClockReset, in_use};
use quell_core::edge::KeyMemory;
use quell_core::heartbeat::WorkerRow;
use quell_core::schedule::ScheduleInfo;
use quell_core::{
    Attempt, Effect, ErrorKind, Job, JobId, JobState, QueueName, Result, ScheduleName, Steps,
    Timestamp, WakeHub,
};
use quell_engine::EndWaiters;
use redis::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::error;

use crate::RedisOptions;
use crate::commit::ENQUEUE_TIMESTAMP;
use crate::commit::seconds;
use crate::directory::Prefix;
use crate::fired::{MICROSECOND, Record, Shown};
use crate::known::Lane;
use crate::link::{Link, Scripts};
use crate::listing::CHUNK;
use crate::look::{Read, job_of};
use crate::open::{Cell, Open, Tries, VERSION};
use crate::row::{
    StoredHold, StoredRecord, corrupt, decode_job, decode_starts, encode_job, from_json, to_json,
};
use crate::shard::{Shard, Time, Way};
use crate::trust::authorities;
use crate::writes::Writes;

impl RedisOptions {
    /// Sets the store's clock back to the server's, with all times that the clock made while it was
    /// ahead: a lease that has 20 s left has 20 s left afterwards, and a job that is due is due.
    /// The schedules go on from now. Each shard is set back as a whole; one call reads all rows of
    /// it.
    ///
    /// # Errors
    /// [`ErrorKind::Contention`](quell_core::ErrorKind::Contention) while a process of the store
    /// listens for wake-ups, [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) where the clock
    /// is not an hour ahead ([`LEAST_RESET`](quell_core::checkup::ClockReading::LEAST_RESET)), and
    /// as for [`RedisOptions::open`].
    pub async fn reset_clock(self) -> Result<ClockReset> {
        // Boxed, as in `open`.
        Box::pin(self.reset()).await
    }

    async fn reset(mut self) -> Result<ClockReset> {
        let authorities = authorities(self.ca_file.as_deref())?;
        self.trust(authorities.as_ref())?;
        let (link, _) = self.link(authorities).await?;
        let channel = self.channel();
        let processes = listeners(&link, &channel).await?;
        if processes > 0 {
            return Err(in_use(&format!("{processes} processes of the store are connected")));
        }
        let way = Way {
            link,
            scripts: Scripts::new(),
            channel,
            origin: String::new(),
            seen: Arc::new(AtomicI64::new(i64::MIN)),
            steps: Arc::default(),
            syncs: true,
            steps_only: false,
        };
        let reported = (None, Arc::new(WakeHub::new()), Arc::new(EndWaiters::default()));
        let shards = Prefix::open((self.prefix, self.layout, self.spread), way, reported).await?;
        let mut all = shards.all().await?;
        if shards.only().is_none() {
            all.push(Arc::clone(shards.first()));
        }
        let mut clock = shards.first().checkup().await?.clock;
        for shard in &all {
            clock.mark = clock.mark.max(shard.checkup().await?.clock.mark);
        }
        let reset = clock.reset()?;
        for shard in &all {
            shard.backend().shard.set_clock_back(&reset).await?;
        }
        Ok(reset)
    }
}

/// How many processes listen for the wake-ups of the store, on any node.
async fn listeners(link: &Link, channel: &str) -> Result<i64> {
    let mut command = redis::cmd("PUBSUB");
    command.arg("NUMSUB").arg(channel);
    let answer = link.ask_servers("look for other processes", &command).await?;
    Ok(sum(&answer))
}

/// The sum of all numbers in an answer of one node, or in those of several.
fn sum(answer: &Value) -> i64 {
    match answer {
        Value::Int(number) => *number,
        Value::Array(values) => values.iter().map(sum).fold(0, i64::saturating_add),
        Value::Map(pairs) => pairs.iter().map(|(_, value)| sum(value)).fold(0, i64::saturating_add),
        _ => 0,
    }
}

impl Shard {
    /// Sets the clock of the shard back, unless it is not ahead: an earlier reset may have done so.
    async fn set_clock_back(self: &Arc<Self>, reset: &ClockReset) -> Result<()> {
        let mut tries = Tries::default();
        loop {
            let (mut open, mut writes) = self.begin(Time::Last).await?;
            if open.now > reset.after {
                open.set_back(&mut writes, reset).await?;
            }
            if open.finish(writes).await? {
                return Ok(());
            }
            tries.again("set the clock back").await?;
        }
    }
}

impl Open {
    /// Sets all rows of the shard back.
    async fn set_back(&mut self, writes: &mut Writes, reset: &ClockReset) -> Result<()> {
        let jobs = self.set_jobs_back(writes, reset).await?;
        self.set_hashes_back(writes, reset).await?;
        self.set_starts_back(writes, reset).await?;
        self.set_schedules_back(writes, reset).await?;
        self.set_scores_back(writes, reset).await?;
        self.set_ticks_back(writes, &jobs, reset.to).await?;
        let version = format!("{:016x}", fastrand::u64(..));
        writes.hash_set(self.keys().meta(), VERSION, version.into_bytes());
        writes.set(self.keys().clock(), reset.to.as_micros().to_string());
        // The commit raises the clock to this.
        self.now = reset.to;
        Ok(())
    }

    /// Reads a whole hash, which must be so when the step commits.
    async fn read_all(&mut self, key: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let pairs = self.look(vec![Read::All(key.to_owned())]).await?.pairs()?;
        for (field, value) in &pairs {
            self.note(Cell::new(key.to_owned(), field.as_str()), Some(value.clone()));
        }
        Ok(pairs)
    }

    /// Moves the times of jobs; returns all jobs.
    async fn set_jobs_back(
        &mut self,
        writes: &mut Writes,
        reset: &ClockReset,
    ) -> Result<Vec<JobId>> {
        let key = self.keys().jobs();
        let mut ids = Vec::new();
        for (field, row) in self.read_all(&key).await? {
            let id = job_of(&field)?;
            ids.push(id);
            let was = match decode_job(id, &row, &self.known) {
                Ok(job) => job,
                // R25: it harms itself only, and is set aside when a step meets it.
                Err(error) => {
                    error!(%error, "row left as it is");
                    continue;
                }
            };
            let mut job = was.clone();
            move_job(&mut job, reset);
            if job == was {
                continue;
            }
            let lane = self.known.lane_number(&Lane::of(&job));
            let shape = self.known.shape_number(&job.shape)?;
            let numbers = lane.zip(shape).ok_or_else(|| corrupt(format_args!("the job {id}")))?;
            writes.hash_set(key.clone(), id, encode_job(&job, numbers.0, numbers.1));
            let moves =
                job.window.last_at != was.window.last_at && job.state == JobState::Scheduled;
            if let Some(name) = job.key.as_ref().filter(|_| moves) {
                let hash = self.keys().debounce(&job.task, name);
                let at = seconds(job.window.last_at);
                writes.hash_set(hash, ENQUEUE_TIMESTAMP, at.into_bytes());
            }
        }
        Ok(ids)
    }

    /// Moves the times of what hangs on jobs, and of keys.
    async fn set_hashes_back(&mut self, writes: &mut Writes, reset: &ClockReset) -> Result<()> {
        let keys = self.keys().clone();
        let set_back = |at: &mut Timestamp| *at = moved(reset, *at);
        self.rewrite(writes, &keys.attempts(), |attempts: &mut Vec<Attempt>| {
            for attempt in attempts {
                set_back(&mut attempt.started_at);
                attempt.ended_at.iter_mut().for_each(set_back);
            }
        })
        .await?;
        self.rewrite(writes, &keys.effects(), |effects: &mut Vec<Effect>| {
            for effect in effects {
                set_back(&mut effect.begun_at);
                effect.done.iter_mut().for_each(|done| set_back(&mut done.at));
            }
        })
        .await?;
        self.rewrite(writes, &keys.holds(), |hold: &mut StoredHold| set_back(&mut hold.expires_at))
            .await?;
        self.rewrite(writes, &keys.records(), |record: &mut StoredRecord| {
            set_back(&mut record.expires_at);
        })
        .await?;
        self.rewrite(writes, &keys.memories(), |memory: &mut KeyMemory| {
            let KeyMemory { burst_at, last_at, started_at, expires_at, .. } = memory;
            [burst_at, last_at, started_at, expires_at].into_iter().for_each(set_back);
        })
        .await?;
        self.rewrite(writes, &keys.unreadable_jobs(), |job: &mut serde_json::Value| {
            if let Some(at) = job.get_mut("set_aside_at").and_then(|at| Some((at.as_i64()?, at))) {
                *at.1 = moved(reset, Timestamp::from_micros(at.0)).as_micros().into();
            }
        })
        .await
    }

    /// Changes the rows of a hash. One that cannot be decoded stays as it is.
    async fn rewrite<T: DeserializeOwned + Serialize>(
        &mut self,
        writes: &mut Writes,
        key: &str,
        change: impl Fn(&mut T),
    ) -> Result<()> {
        for (field, row) in self.read_all(key).await? {
            match from_json::<T>("a row", &row) {
                Ok(mut changed) => {
                    change(&mut changed);
                    let changed = to_json(&changed)?;
                    if changed != row {
                        writes.hash_set(key.to_owned(), field, changed);
                    }
                }
                // R25: it harms itself only.
                Err(error) => error!(%error, field, "row left as it is"),
            }
        }
        Ok(())
    }

    /// Lets rates begin again, which lets start at most one more period's starts, and workers write their
    /// rows again: all of them are stopped.
    async fn set_starts_back(&mut self, writes: &mut Writes, reset: &ClockReset) -> Result<()> {
        let keys = self.keys().clone();
        for (field, log) in self.read_all(&keys.starts()).await? {
            let is_ahead =
                decode_starts(&log)?.starts().last().is_some_and(|last| *last > reset.to);
            if is_ahead {
                writes.unplace(keys.expiry(), format!("s {field}"));
                writes.hash_delete(keys.starts(), field);
            }
        }
        for (field, row) in self.read_all(&keys.workers()).await? {
            if from_json::<WorkerRow>("a worker", &row)?.seen_at > reset.to {
                writes.hash_delete(keys.workers(), field);
            }
        }
        Ok(())
    }

    /// Lets schedules go on from now.
    async fn set_schedules_back(&mut self, writes: &mut Writes, reset: &ClockReset) -> Result<()> {
        let keys = self.keys().clone();
        self.rewrite(writes, &keys.schedules(), |info: &mut ScheduleInfo| {
            info.handled = info.handled.min(reset.to);
            info.last = info.last.map(|last| last.min(reset.to));
            info.next = info.next.map(|next| next.min(reset.to));
        })
        .await?;
        let all = Read::lowest(keys.plan(), usize::MAX);
        for (name, at) in self.look(vec![all]).await?.scored()? {
            if at > reset.to {
                writes.place(keys.plan(), name, reset.to);
            }
        }
        Ok(())
    }

    /// Moves what stands in sorted sets by a time, as its rows say; when upkeep looks at an idempotency
    /// key again is in no row.
    async fn set_scores_back(&mut self, writes: &mut Writes, reset: &ClockReset) -> Result<()> {
        let keys = self.keys().clone();
        let mut sets =
            vec![keys.leases(), keys.waiting(), keys.ended(), keys.dead(), keys.expiry()];
        let lanes: BTreeMap<&QueueName, ()> =
            self.known.lanes().map(|(_, lane)| (&lane.queue, ())).collect();
        sets.extend(lanes.keys().map(|queue| keys.begun(queue)));
        let heads: Vec<String> = lanes.into_keys().map(|queue| keys.heads(queue)).collect();
        let reads = heads.iter().map(|heads| Read::lowest(heads.clone(), usize::MAX)).collect();
        let mut looked = self.look(reads).await?;
        let mut lines = Vec::new();
        for heads in heads {
            for (line, _) in looked.scored()? {
                sets.push(keys.line(&line));
                lines.push((heads.clone(), keys.line(&line), line));
            }
        }
        let reads = sets.iter().map(|set| Read::lowest(set.clone(), usize::MAX)).collect();
        let mut looked = self.look(reads).await?;
        for set in sets {
            for (member, at) in looked.scored()? {
                let is_dropped =
                    set == keys.expiry() && member.starts_with("s ") && at > reset.after;
                if moved(reset, at) != at && !is_dropped {
                    writes.place(set.clone(), member, moved(reset, at));
                }
            }
        }
        lines.into_iter().for_each(|(heads, line, lane)| writes.head(heads, line, lane));
        Ok(())
    }

    /// Forgets the ticks of the time that never came: they fire when it comes.
    async fn set_ticks_back(
        &mut self,
        writes: &mut Writes,
        jobs: &[JobId],
        to: Timestamp,
    ) -> Result<()> {
        let keys = self.keys().clone();
        for (name, row) in self.read_all(&keys.ticks()).await? {
            let name = ScheduleName::new(name)?;
            let set = match from_json::<Record>("a record of ticks", &row) {
                Ok(record) => self.set_record_back(writes, (&name, record), to).await,
                Err(error) => Err(error),
            };
            match set {
                // R25: it harms itself only.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    error!(%error, schedule = %name, "ticks left as they are");
                }
                other => other?,
            }
        }
        for jobs in jobs.chunks(CHUNK) {
            let reads = jobs.iter().map(|job| Read::All(keys.ticks_of(*job)));
            let mut looked = self.look(reads.collect()).await?;
            for job in jobs {
                for (schedule, kept) in looked.pairs()? {
                    let (id, mut ticks) = Shown::parse_all(&kept)?;
                    let count = ticks.len();
                    ticks.retain(|shown| shown.tick <= to);
                    if ticks.len() < count {
                        let kept = Shown::write_all(&id, &ticks);
                        writes.hash_set(keys.ticks_of(*job), schedule, kept);
                    }
                }
            }
        }
        Ok(())
    }

    async fn set_record_back(
        &mut self,
        writes: &mut Writes,
        (name, mut record): (&ScheduleName, Record),
        to: Timestamp,
    ) -> Result<()> {
        let keys = self.keys().clone();
        for span in self.closed_spans(name, to + MICROSECOND, Timestamp::MAX).await? {
            writes.unplace(span.set(&keys, name), span.member());
            if let Some(span) = span.until(to) {
                writes.place(span.set(&keys, name), span.member(), span.last);
            }
        }
        record.newest = record.newest.and_then(|span| span.until(to));
        record.closed = record.closed.map(|closed| closed.min(to));
        record.oldest = record.oldest.min(to);
        writes.place(keys.tick_times(), name.to_string(), record.oldest);
        writes.hash_set(keys.ticks(), name, record.changed()?);
        Ok(())
    }
}

/// A time as it is after the reset. What never comes stays so.
fn moved(reset: &ClockReset, at: Timestamp) -> Timestamp {
    if at > reset.after && at < NEVER { at.before(reset.by) } else { at }
}

/// Later than any clock; as a score of Redis, the end of time is rounded.
const NEVER: Timestamp = Timestamp::from_micros(i64::MAX / 2);

fn move_job(job: &mut Job, reset: &ClockReset) {
    let set_back = |at: &mut Timestamp| *at = moved(reset, *at);
    let window = &mut job.window;
    let times = [
        &mut window.first_at,
        &mut window.last_at,
        &mut window.asked_at,
        &mut window.not_before,
        &mut window.due_at,
    ];
    times.into_iter().for_each(set_back);
    let times =
        [&mut window.bound_at, &mut job.lease_until, &mut job.started_at, &mut job.ended_at];
    times.into_iter().flatten().for_each(set_back);
}
