//! Ending attempts: success in one statement for many, everything else by the core's moves (R12,
//! R21, R24, R25), and taking lapsed leases back.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use quell_core::crash::is_crash;
use quell_core::history::Event;
use quell_core::{
    AttemptOutcome, Job, JobId, JobState, Lapsed, Lease, LeaseToken, Outcome, Payload, Result,
    Settled, SettledAs, Settlement, Timestamp,
};
use sqlx::postgres::PgRow;

use crate::error::corrupt;
use crate::row::{decode, get, job_columns, optional_time, signed, time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx};
use crate::write::storable;

/// Ends all the attempts that succeeded. R21: only a current, unlapsed lease counts. Ended jobs go
/// where they are in nobody's way. R11: tells of windows whose key no longer runs.
///
/// States are compared so that no partial index seems to serve: the id is what finds the row. It is
/// compared so that a plan made while the table was empty does not read the jobs first: a join that
/// is no equality has no other order.
macro_rules! succeed {
    ($clock:literal, $later:literal) => {
        concat!(
            "with clock as materialized (select ",
            $clock,
            " as now),
             gone as (
                 delete from quell.job j
                  using clock c, unnest($3::bigint[], $4::bigint[], $5::text[]) l (id, token, output)
                  where j.id between l.id and l.id and j.starts = l.token and j.state + 0 = 1
                    and j.lease_until + 0 > c.now
              returning j.*, l.output as returned),
             -- A renewal that was waited for happened before: the time is read once all are gone.
             ended as materialized (
                 select greatest(c.now, ",
            $later,
            ") as now from clock c where (select count(*) from gone) >= 0),
             kept as (
                 insert into quell.ended
                        (id, due_at, first_at, last_at, bound_at, asked_at, not_before, triggers,
                         suppressed, starts, started_at, ended_at, absorbed_by, period, lane_id,
                         task_id, attempt, lapses, state, reason, overlap, key, worker, error,
                         shape, payload, partition_id, partition, output)
                 select g.id, due_at, first_at, last_at, bound_at, asked_at, not_before, triggers,
                        suppressed, starts, started_at, e.now, absorbed_by, period, lane_id,
                        task_id, attempt, lapses, 2, reason, overlap, key, worker, error, shape,
                        payload, partition_id, partition, returned
                   from gone g, ended e)
             select e.now, g.id, g.starts, null::int, null::bigint
               from ended e left join gone g on true
              union all
             select null, null, null, w.lane_id, w.due_at
               from gone g
              cross join lateral (
                    select j.lane_id, j.due_at from quell.job j
                     where j.task_id = g.task_id and j.key = g.key and j.state = 0
                    offset 0) w
              where g.key is not null"
        )
    };
}

const SUCCEED: &str = succeed!(
    "quell.tick($1, $2)",
    "coalesce($1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)"
);
/// Within a transaction, at its time.
const SUCCEED_AT: &str = succeed!("greatest($1::bigint, $2::bigint)", "$1");

/// Ends the attempts that succeeded: one statement, which is its own transaction.
pub(crate) fn succeed_query(sql: &Sql, asked: Asked, settlements: &[Settlement]) -> PgQuery {
    bind_well(asked.bind(sql.query(SUCCEED)), settlements)
}

/// The leases that ended well, in the order of their ids, as all calls lock, and what was returned;
/// the first end of an attempt counts. Where nothing returned anything, the last column is empty,
/// which stands for nulls.
fn bind_well(query: PgQuery, settlements: &[Settlement]) -> PgQuery {
    let mut ends: BTreeMap<Lease, Option<&str>> = BTreeMap::new();
    for Settlement { lease, outcome } in settlements {
        if let Outcome::Succeeded { output } = outcome {
            ends.entry(*lease).or_insert(output.as_ref().map(Payload::as_str));
        }
    }
    let outputs: Vec<Option<String>> = if ends.values().any(Option::is_some) {
        ends.values().map(|output| output.map(str::to_owned)).collect()
    } else {
        Vec::new()
    };
    bind_leases(query, ends.keys()).bind(outputs)
}

fn bind_leases<'l>(query: PgQuery, leases: impl Iterator<Item = &'l Lease>) -> PgQuery {
    // In the order of their ids, as all calls lock.
    let sorted: BTreeSet<&Lease> = leases.collect();
    let (ids, tokens): (Vec<i64>, Vec<i64>) =
        sorted.iter().map(|lease| (signed(lease.job.get()), signed(lease.token.get()))).unzip();
    query.bind(ids).bind(tokens)
}

/// What [`succeed_query`] brought.
#[derive(Debug)]
pub(crate) struct Succeeded {
    pub(crate) now: Timestamp,
    pub(crate) leases: HashSet<Lease>,
    /// Lanes in which windows may start that waited for their key, and when.
    pub(crate) freed: Vec<(i32, Timestamp)>,
}

pub(crate) fn decode_succeeded(rows: &[PgRow]) -> Result<Succeeded> {
    let (mut now, mut leases, mut freed) = (None, HashSet::new(), Vec::new());
    for row in rows {
        now = now.max(optional_time(row, 0)?);
        if let Some(id) = get::<Option<i64>, _>(row, 1)? {
            let token = LeaseToken::new(unsigned(get(row, 2)?));
            leases.insert(Lease { job: JobId::new(unsigned(id)), token });
        } else if let (Some(lane), Some(due)) = (get(row, 3)?, optional_time(row, 4)?) {
            freed.push((lane, due));
        }
    }
    let now = now.ok_or_else(|| corrupt("an answer without its time"))?;
    Ok(Succeeded { now, leases, freed })
}

/// Extends leases that still hold (R21): one statement, which is its own transaction.
///
/// No join with the leases, which a plan made while the table was empty would turn round.
pub(crate) fn renew_query(sql: &Sql, asked: Asked, leases: &[Lease], length: Duration) -> PgQuery {
    const RENEW: &str = "with clock as materialized (select quell.tick($1, $2) as now),
         held as (
             update quell.job j
                set lease_until = case when c.now > 9223372036854775807 - $5
                                       then 9223372036854775807 else c.now + $5 end
               from clock c
              where j.id = any($3)
                and ((j.id, j.starts) in (
                        select id, token
                          from unnest($3::bigint[], $4::bigint[]) l (id, token))) is true
                and j.state + 0 = 1 and j.lease_until + 0 > c.now
          returning j.id, j.starts, j.lease_until)
         select c.now, h.id, h.starts, h.lease_until from clock c left join held h on true";
    let query = bind_leases(asked.bind(sql.query(RENEW)), leases.iter());
    query.bind(i64::try_from(length.as_micros()).unwrap_or(i64::MAX))
}

/// The time, and the new end of each lease that still held.
pub(crate) fn decode_renewed(rows: &[PgRow]) -> Result<(Timestamp, BTreeMap<Lease, Timestamp>)> {
    let now = time(crate::tx::first(rows)?, 0)?;
    let mut renewed = BTreeMap::new();
    for row in rows {
        if let Some(id) = get::<Option<i64>, _>(row, 1)? {
            let token = LeaseToken::new(unsigned(get(row, 2)?));
            renewed.insert(Lease { job: JobId::new(unsigned(id)), token }, time(row, 3)?);
        }
    }
    Ok((now, renewed))
}

/// Jobs that a call moves, locked in the order of their ids, and what it made of them.
#[derive(Debug, Default)]
struct Moving {
    jobs: BTreeMap<JobId, Job>,
    changed: BTreeSet<JobId>,
    /// Dedup holds that follow an absorbed job.
    followed: Vec<(JobId, JobId)>,
    attempts: Vec<(Job, AttemptOutcome, Option<String>)>,
}

impl Moving {
    /// A job and the open window of its key, to be changed and put back (R12).
    fn take(&self, id: JobId) -> Option<(Job, Option<Job>)> {
        let job = self.jobs.get(&id)?.clone();
        let heir = job.key.as_ref().and_then(|key| {
            let is_heir = |other: &&Job| {
                other.id != id
                    && other.is_open_window()
                    && other.task == job.task
                    && other.key.as_ref() == Some(key)
            };
            self.jobs.values().find(is_heir).cloned()
        });
        Some((job, heir))
    }
}

/// A job that has ended.
const ENDED: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.ended j where j.id = any($1) and j.state + 0 <> 6 for update of j"
);
/// A job that was set aside.
const ASIDE: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.ended j where j.id = any($1) and j.state + 0 = 6 for update of j"
);

impl Tx<'_> {
    /// Ends attempts; answers come in the same order.
    pub(crate) async fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let others = settlements.iter().filter(|one| !one.outcome.is_success());
        let mut moving = self.lock(others.map(|one| one.lease.job).collect()).await?;
        self.read_clock().await?;
        let query = self.asked_now().bind(self.sql.query(SUCCEED_AT));
        let query = bind_well(query, settlements);
        let rows = self.fetch("end attempts", query).await?;
        let mut succeeded = decode_succeeded(&rows)?;
        self.free(&succeeded.freed).await?;
        let mut settled = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let Settlement { lease, outcome } = settlement;
            let (now, place) = (self.now, self.told());
            let became = if outcome.is_success() {
                // A lease that is settled twice in one call counts once.
                let accepted = succeeded.leases.remove(lease);
                if accepted { SettledAs::Succeeded } else { SettledAs::Refused }
            } else {
                self.settle_one(&mut moving, settlement).await?
            };
            if became == SettledAs::Succeeded {
                self.news.ended.push(lease.job);
            }
            self.tell_at(place, || Event::settled(now, settlement, became));
            settled.push(Settled { lease: *lease, became });
        }
        self.write_moved(moving).await?;
        Ok(settled)
    }

    async fn settle_one(
        &mut self,
        moving: &mut Moving,
        settlement: &Settlement,
    ) -> Result<SettledAs> {
        let (now, Settlement { lease, outcome }) = (self.now, settlement);
        let taken = moving.take(lease.job).filter(|(job, _)| job.is_held_by(lease.token, now));
        let Some((mut job, mut heir)) = taken else {
            let ended = match outcome {
                Outcome::InTransaction(_) => {
                    self.load_anywhere(vec![lease.job]).await?.remove(&lease.job)
                }
                _ => None,
            };
            return Ok(settlement.without_lease(ended.as_ref()));
        };
        if let Some((ended, error)) = outcome.on_record() {
            moving.attempts.push((job.clone(), ended, error));
        }
        let became = job.settle(now, outcome, heir.as_mut());
        let became = self.heed_key(&mut job, became).await?;
        self.put_back(moving, job, heir);
        Ok(became)
    }

    /// Takes back leases that lapsed, oldest first (R21). What another call is taking back already
    /// is passed over.
    pub(crate) async fn reap(&mut self, limit: usize) -> Result<Vec<Lapsed>> {
        const LAPSED: &str = "select id, starts from quell.job
              where state = 1 and lease_until <= $1
              order by lease_until, id limit $2 for update skip locked";
        let query = self.sql.query(LAPSED).bind(self.now.as_micros());
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.fetch("read lapsed leases", query).await?;
        let mut leases = Vec::with_capacity(rows.len());
        for row in &rows {
            let token = LeaseToken::new(unsigned(get(row, 1)?));
            leases.push(Lease { job: JobId::new(unsigned(get(row, 0)?)), token });
        }
        let mut moving = self.lock(leases.iter().map(|lease| lease.job).collect()).await?;
        self.read_clock().await?;
        let workers = if leases.is_empty() { Vec::new() } else { self.workers().await? };
        let (now, mut lapsed) = (self.now, Vec::with_capacity(leases.len()));
        for lease in leases {
            let Some((mut job, mut heir)) = moving.take(lease.job) else { continue };
            let crash = is_crash(&job, &workers);
            moving.attempts.push((job.clone(), AttemptOutcome::Lapsed, None));
            let became = job.lapse(now, crash, heir.as_mut());
            let became = self.heed_key(&mut job, became).await?;
            let place = self.told();
            self.put_back(&mut moving, job, heir);
            let Lease { job, token } = lease;
            self.tell_at(place, || Event::Lapse { t: now, job, token, became, crash });
            lapsed.push(Lapsed { lease, became, crash });
        }
        self.write_moved(moving).await?;
        Ok(lapsed)
    }

    /// Cancels a job, or puts a dead one back: `change` moves it, in view of its key's open window.
    pub(crate) async fn move_one(
        &mut self,
        id: JobId,
        change: impl FnOnce(Timestamp, &mut Job, Option<&mut Job>) -> Result<Option<SettledAs>>,
    ) -> Result<Option<SettledAs>> {
        let mut moving = self.lock(BTreeSet::from([id])).await?;
        let was_ended = !moving.jobs.contains_key(&id);
        if was_ended {
            self.lock_ended(&mut moving, id, ENDED).await?;
        }
        let Some((mut job, mut heir)) = moving.take(id) else { return Ok(None) };
        self.read_clock().await?;
        let ran = job.clone();
        let became = change(self.now, &mut job, heir.as_mut())?;
        if ran.state == JobState::Running {
            moving.attempts.push((ran, AttemptOutcome::Cancelled, job.error.clone()));
            self.news.cancelled.push(id);
        }
        let became = match became {
            Some(became) => self.heed_key(&mut job, became).await?,
            None => SettledAs::Cancelled,
        };
        self.put_back(&mut moving, job, heir);
        if was_ended {
            let moved = moving.jobs.get(&id).cloned();
            moving.changed.remove(&id);
            if let Some(moved) = moved {
                self.put(&[&moved], true).await?;
            }
        }
        self.write_moved(moving).await?;
        Ok(Some(became))
    }

    /// Locks jobs that wait or run, and the open windows of their keys, in the order of their ids.
    async fn lock(&mut self, ids: BTreeSet<JobId>) -> Result<Moving> {
        const LOCK: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.job j
              where j.id = any($1 || array(
                        select w.id from quell.job o
                         cross join lateral (
                               select i.id from quell.job i
                                where i.task_id = o.task_id and i.key = o.key and i.state = 0
                               offset 0) w
                         where o.id = any($1)))
              order by j.id
                for update of j"
        );
        self.lock_by(LOCK, ids.iter().map(|id| signed(id.get())).collect()).await
    }

    async fn lock_by(&mut self, sql: &'static str, ids: Vec<i64>) -> Result<Moving> {
        if ids.is_empty() {
            return Ok(Moving::default());
        }
        let rows = self.fetch("lock jobs", self.sql.query(sql).bind(ids)).await?;
        self.know_lanes(&rows).await?;
        let jobs = rows.iter().map(|row| decode(row, self.names).map(|job| (job.id, job)));
        Ok(Moving { jobs: jobs.collect::<Result<_>>()?, ..Moving::default() })
    }

    /// Puts a job back that was set aside, if its row can be decoded (R25).
    pub(crate) async fn restore_one(
        &mut self,
        id: JobId,
        was: JobState,
    ) -> Result<Option<JobState>> {
        let mut moving = Moving::default();
        match self.lock_ended(&mut moving, id, ASIDE).await {
            Err(error) if error.unreadable_job().is_some() => return Ok(None),
            locked => locked?,
        }
        let Some((mut job, mut successor)) = moving.take(id) else { return Ok(None) };
        let waits = matches!(was, JobState::Scheduled | JobState::Running);
        let place = self.told();
        job.restore(self.now, was, successor.as_mut().filter(|_| waits));
        let due = job.window.due_at;
        self.heed_key(&mut job, SettledAs::Scheduled { due }).await?;
        let state = job.state;
        self.put_back(&mut moving, job, successor);
        let moved = moving.jobs.get(&id).cloned();
        moving.changed.remove(&id);
        self.put(&moved.iter().collect::<Vec<_>>(), true).await?;
        self.write_moved(moving).await?;
        let t = self.now;
        self.tell_at(place, || Event::Restored { t, job: id, state });
        Ok(Some(state))
    }

    /// Locks a job that has ended, as `which` selects it, and the open window of its key.
    async fn lock_ended(
        &mut self,
        moving: &mut Moving,
        id: JobId,
        which: &'static str,
    ) -> Result<()> {
        const WINDOW: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.ended e
             cross join lateral (
                   select * from quell.job w
                    where w.task_id = e.task_id and w.key = e.key and w.state = 0
                      for update) j
             where e.id = any($1)"
        );
        let id = vec![signed(id.get())];
        let mut found = self.lock_by(which, id.clone()).await?;
        moving.jobs.append(&mut found.jobs);
        let mut window = self.lock_by(WINDOW, id).await?;
        window.jobs.retain(|_, job| job.is_open_window());
        moving.jobs.append(&mut window.jobs);
        Ok(())
    }

    async fn write_moved(&mut self, moving: Moving) -> Result<()> {
        self.record_attempts(&moving.attempts).await?;
        let changed: Vec<Job> =
            moving.changed.iter().filter_map(|id| moving.jobs.get(id).cloned()).collect();
        self.put(&changed.iter().collect::<Vec<_>>(), false).await?;
        for (from, to) in &moving.followed {
            // A key that was taken until the start is free: the job has started.
            const FOLLOW: &str = "update quell.hold set job_id = $2
                  where job_id = $1 and until <> '\"started\"'";
            let query = self.sql.query(FOLLOW).bind(signed(from.get())).bind(signed(to.get()));
            self.run("move dedup keys", query).await?;
            self.hand_over_records(*from, *to).await?;
        }
        let ran = moving.attempts.iter().map(|(job, ..)| job);
        self.free_keys_of(ran.map(|job| job.id).collect::<Vec<_>>(), &changed).await
    }

    /// Takes a moved job, and the heir that may have absorbed it, to be written.
    fn put_back(&mut self, moving: &mut Moving, job: Job, heir: Option<Job>) {
        let heir = heir.filter(|heir| job.absorbed_by == Some(heir.id));
        if job.state.is_ended() {
            self.news.ended.push(job.id);
        }
        let rows = [Some(&job), heir.as_ref()].into_iter().flatten();
        for row in rows.filter(|row| row.state == JobState::Scheduled) {
            let now = self.now;
            self.tell(|| Event::window(now, row));
            self.news.wake(&row.queue, row.window.due_at);
        }
        if let Some(heir) = heir {
            moving.followed.push((job.id, heir.id));
            moving.changed.insert(heir.id);
            moving.jobs.insert(heir.id, heir);
        }
        moving.changed.insert(job.id);
        moving.jobs.insert(job.id, job);
    }

    /// R11: tells of windows whose key no longer runs because these jobs ended.
    async fn free_keys_of(&mut self, ran: Vec<JobId>, changed: &[Job]) -> Result<()> {
        const WINDOWS: &str = "select w.lane_id, w.due_at
               from unnest($1::int[], $2::text[]) k (task_id, key)
              cross join lateral (
                    select j.lane_id, j.due_at from quell.job j
                     where j.task_id = k.task_id and j.key = k.key and j.state = 0
                    offset 0) w";
        let ended = changed.iter().filter(|job| ran.contains(&job.id) && job.state.is_ended());
        let (mut tasks, mut keys) = (Vec::new(), Vec::new());
        for job in ended {
            let (Some(task), Some(key)) = (self.names.task_id(&job.task), &job.key) else {
                continue;
            };
            tasks.push(task);
            keys.push(key.as_str().to_owned());
        }
        if keys.is_empty() {
            return Ok(());
        }
        let query = self.sql.query(WINDOWS).bind(tasks).bind(keys);
        let mut freed = Vec::new();
        for row in &self.fetch("free keys", query).await? {
            freed.push((get(row, 0)?, time(row, 1)?));
        }
        self.free(&freed).await
    }

    async fn free(&mut self, freed: &[(i32, Timestamp)]) -> Result<()> {
        let (names, sql) = (self.names, self.sql);
        names.load(self.db(), sql, freed.iter().map(|(lane, _)| *lane)).await?;
        for (lane, due) in freed {
            let lane = names.lane(*lane).ok_or_else(|| corrupt("lane"))?;
            self.news.wake(&lane.queue, *due);
        }
        Ok(())
    }

    /// Puts attempts that did not succeed on record.
    async fn record_attempts(
        &mut self,
        attempts: &[(Job, AttemptOutcome, Option<String>)],
    ) -> Result<()> {
        const RECORD: &str = "insert into quell.attempt
                (job_id, token, worker, started_at, ended_at, outcome, error)
             values ($1, $2, $3, $4, $5, $6, $7)";
        for (job, outcome, error) in attempts {
            let (Some(worker), Some(started_at)) = (&job.worker, job.started_at) else { continue };
            let query = self
                .sql
                .query(RECORD)
                .bind(signed(job.id.get()))
                .bind(signed(job.starts))
                .bind(worker.as_str().to_owned())
                .bind(started_at.as_micros())
                .bind(self.now.as_micros())
                .bind(i16::from(outcome.code()))
                .bind(error.as_deref().map(storable));
            self.run("record an attempt", query).await?;
            self.give_up_attempts(job).await?;
        }
        Ok(())
    }
}
