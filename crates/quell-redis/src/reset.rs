//! How a store's clock is set back (R38).
//!
//! Each shard is one step, which reads all rows of the shard, moves the times that its clock made
//! while it was ahead, and writes them with the clock: whatever happens meanwhile, a shard is as it
//! was or set back. Where a reset ends between two shards, the next one goes on with the others. No
//! other process of the store may run, so it delays no one.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use quell_core::checkup::{ClockReset, in_use};
use quell_core::part::Rows;
use quell_core::{ErrorKind, JobId, Result, ScheduleName, Steps, Timestamp, WakeHub};
use redis::Value;
use tracing::error;

use crate::RedisOptions;
use crate::directory::Prefix;
use crate::ends::Ends;
use crate::fired::{MICROSECOND, Record, Shown};
use crate::link::{Link, Scripts};
use crate::look::{Read, job_of};
use crate::pace::TRIES;
use crate::read::CHUNK;
use crate::row::from_json;
use crate::shard::{Time, Way};
use crate::store::{ShardStore, step};
use crate::trust::authorities;
use crate::tx::{Committed, Tx, VERSION, contended};

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
        };
        let told = (None, Arc::new(WakeHub::new()), Arc::new(Ends::default()));
        let shards = Prefix::open((self.prefix, self.layout, self.spread), way, told).await?;
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
            shard.set_clock_back(&reset).await?;
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

impl ShardStore {
    /// Sets the clock of the shard back, unless it is not ahead: an earlier reset may have done so.
    async fn set_clock_back(&self, reset: &ClockReset) -> Result<()> {
        step!(self, "set the clock back", (Time::Last, 0, false), |tx| {
            if tx.now > reset.after {
                tx.load_everything().await?;
                tx.set_ticks_back(reset.to).await?;
                tx.set_back(reset).await?;
            }
            Some(())
        });
        Ok(())
    }
}

impl Tx<'_> {
    /// Loads all rows that have times but for ticks.
    async fn load_everything(&mut self) -> Result<()> {
        let keys = self.shard.keys.clone();
        let reads = vec![
            Read::All(keys.jobs()),
            Read::All(keys.schedules()),
            Read::lowest(keys.expiry(), usize::MAX),
        ];
        let mut looked = self.look(reads).await?;
        let (jobs, schedules) = (looked.pairs()?, looked.pairs()?);
        let names = looked.scored()?;
        let mut ids = Vec::with_capacity(jobs.len());
        for (id, row) in jobs {
            ids.push(job_of(&id)?);
            self.note(keys.jobs(), &id, Some(row));
        }
        self.take_all_settings();
        self.load_whole(&ids).await?;
        self.load_named(&names.into_iter().map(|(name, _)| name).collect()).await?;
        for (name, row) in schedules {
            match from_json("a schedule", &row) {
                Ok(info) => {
                    self.note(keys.schedules(), &name, Some(row));
                    self.rows.schedules.insert(ScheduleName::new(name)?, info);
                }
                // R25: it harms itself only, and is tried again each minute.
                Err(error) => error!(%error, "schedule left as it is"),
            }
        }
        Ok(())
    }

    /// Forgets the ticks of the time that never came: they fire when it comes.
    async fn set_ticks_back(&mut self, to: Timestamp) -> Result<()> {
        let keys = self.shard.keys.clone();
        let records = self.look(vec![Read::All(keys.ticks())]).await?.pairs()?;
        for (name, row) in records {
            let record = from_json::<Record>("a record of ticks", &row);
            self.note(keys.ticks(), &name, Some(row));
            let name = ScheduleName::new(name)?;
            let set = match record {
                Ok(record) => self.set_record_back(&name, record, to).await,
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
        let jobs: Vec<JobId> = self.rows.jobs.keys().copied().collect();
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
                        self.beside.hash_set(keys.ticks_of(*job), schedule, kept);
                    }
                }
            }
        }
        Ok(())
    }

    async fn set_record_back(
        &mut self,
        name: &ScheduleName,
        mut record: Record,
        to: Timestamp,
    ) -> Result<()> {
        let keys = self.shard.keys.clone();
        for span in self.closed_spans(name, to + MICROSECOND, Timestamp::MAX).await? {
            self.beside.unplace(span.set(&keys, name), span.member());
            if let Some(span) = span.until(to) {
                self.beside.place(span.set(&keys, name), span.member(), span.last);
            }
        }
        record.newest = record.newest.and_then(|span| span.until(to));
        record.closed = record.closed.map(|closed| closed.min(to));
        record.oldest = record.oldest.min(to);
        self.beside.place(keys.tick_times(), name.to_string(), record.oldest);
        self.beside.hash_set(keys.ticks(), name, record.changed()?);
        Ok(())
    }

    /// Writes every row with its times moved, and the clock.
    async fn set_back(&mut self, reset: &ClockReset) -> Result<()> {
        let keys = self.shard.keys.clone();
        let reads =
            vec![Read::lowest(keys.expiry(), usize::MAX), Read::All(keys.unreadable_jobs())];
        let mut looked = self.look(reads).await?;
        let (names, aside) = (looked.scored()?, looked.pairs()?);
        let mut writes = std::mem::take(&mut self.beside);
        // When upkeep looks at an idempotency key again is in no row.
        for (name, at) in names.into_iter().filter(|(_, at)| *at > reset.after) {
            writes.place(keys.expiry(), name, moved(reset, at));
        }
        for (id, row) in aside {
            let mut job: serde_json::Value = from_json("an unreadable job", &row)?;
            if let Some(at) = job.get_mut("set_aside_at").and_then(|at| Some((at.as_i64()?, at))) {
                *at.1 = moved(reset, Timestamp::from_micros(at.0)).as_micros().into();
                writes.hash_set(keys.unreadable_jobs(), id, job.to_string().into_bytes());
            }
        }
        // All workers are stopped; each writes its row again when it starts.
        for row in self.workers().await?.iter().filter(|row| row.seen_at > reset.to) {
            self.remove_worker_row(&row.worker, row.incarnation);
        }
        writes.append(&mut self.beside);
        let before = self.rows.clone();
        let mut after = before.clone();
        move_times(&mut after, reset);
        writes.rows(self, &before, &after)?;
        let version = format!("{:016x}", fastrand::u64(..));
        writes.hash_set(keys.meta(), VERSION, version.into_bytes());
        writes.set(keys.clock(), reset.to.as_micros().to_string());
        self.beside = writes;
        // The commit raises the clock to this.
        self.now = reset.to;
        Ok(())
    }
}

/// A time as it is after the reset. What never comes stays so.
fn moved(reset: &ClockReset, at: Timestamp) -> Timestamp {
    if at > reset.after && at < NEVER { at.before(reset.by) } else { at }
}

/// Later than any clock; as a score of Redis, the end of time is rounded.
const NEVER: Timestamp = Timestamp::from_micros(i64::MAX / 2);

fn move_times(rows: &mut Rows, reset: &ClockReset) {
    let set_back = |at: &mut Timestamp| *at = moved(reset, *at);
    for job in rows.jobs.values_mut() {
        let job = Arc::make_mut(job);
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
    for attempt in rows.attempts.values_mut().flatten() {
        set_back(&mut attempt.started_at);
        attempt.ended_at.iter_mut().for_each(set_back);
    }
    for effect in rows.effects.values_mut().flat_map(|effects| effects.values_mut()) {
        set_back(&mut effect.begun_at);
        effect.done.iter_mut().for_each(|done| set_back(&mut done.at));
    }
    rows.holds.values_mut().for_each(|hold| set_back(&mut hold.expires_at));
    rows.records.values_mut().for_each(|record| set_back(&mut record.expires_at));
    for memory in rows.memories.values_mut() {
        let times = [
            &mut memory.burst_at,
            &mut memory.last_at,
            &mut memory.started_at,
            &mut memory.expires_at,
        ];
        times.into_iter().for_each(set_back);
    }
    // A rate begins again: at most one more period's starts.
    rows.starts.retain(|_, log| log.starts().last().is_none_or(|last| *last <= reset.to));
    for info in rows.schedules.values_mut() {
        info.handled = info.handled.min(reset.to);
        info.last = info.last.map(|last| last.min(reset.to));
        info.next = info.next.map(|next| next.min(reset.to));
    }
}
