//! Loading rows for a step of the engine. A step that writes locks jobs in the order of their ids, with
//! the windows that come before and after them, so that steps of different processes wait for each other
//! briefly and never in a circle.
//!
//! Invariant: what follows from other rows, such as which jobs of a key wait and run, is read once they
//! are locked.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_core::part::TaskKey;
use quell_core::{
    Job, JobId, JobState, Key, Lease, LeaseToken, NewTrigger, Payload, Result, TaskName, Timestamp,
};
use quell_engine::{KeyJobs, Row, RowName};
use sqlx::postgres::PgRow;

use crate::backend::PostgresBackend;
use crate::error::corrupt;
use crate::leases::{lease_until, wait_query};
use crate::row::{
    JOB_COLUMNS, blocked, closed_before, decode, get, job_columns, lane_of, next_window,
    optional_time, signed, time, unsigned,
};
use crate::sql::PgQuery;
use crate::step::{Home, Loaded, Step};
use crate::tx::first;

/// Jobs wherever they are, as one moment has them.
const JOBS: &str = concat!(
    "select ",
    job_columns!("j.payload", concat!("j.state = 0 and ", blocked!()), lease_until!()),
    ", j.state > 1
      from (select * from quell.job union all select * from quell.ended) j
     where j.id = any($1) and j.state + 0 <> 6"
);

/// Jobs that wait or run.
const LOCK: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.job j where j.id = any($1) order by j.id for update of j"
);

/// The same with the windows that come before and after them.
const LOCK_AROUND: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.job j
      where j.id = any($1 || array(
                select unnest(array[",
    next_window!("o"),
    ", ",
    closed_before!("o"),
    "]) from quell.job o
                 where o.id = any($1)))
      order by j.id
        for update of j"
);

/// Jobs that have ended.
const LOCK_ENDED: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.ended j where j.id = any($1) and j.state + 0 <> 6 order by j.id for update of j"
);

/// The windows that come before and after jobs that have ended.
const LOCK_AROUND_ENDED: &str = concat!(
    "select ",
    job_columns!("j.payload", "false"),
    " from quell.job j
      where j.id = any(array(
                select unnest(array[",
    next_window!("o"),
    ", ",
    closed_before!("o"),
    "]) from quell.ended o
                 where o.id = any($1)))
      order by j.id
        for update of j"
);

/// What is read once rows are locked: the time `$clock`, when the leases of the jobs `$1` with the draws
/// `$2` expire, and which jobs of the keys `$3`, `$4` wait and run.
///
/// The state of those that run is written as a range, which keeps the server from the index of all jobs that
/// run: it may take that for an empty one.
macro_rules! after_locks {
    ($clock:literal) => {
        concat!(
            "select 0::bigint, ",
            $clock,
            ", null::bigint, null::bigint, null::bigint, null::bigint[]
              union all
             select 1, l.id, coalesce(
                    (select x.until from quell.lease x where x.draw = l.draw and x.job_id = l.id),
                    (select x.until from quell.lease x where x.draw = l.draw and x.job_id = 0)),
                    null, null, null
               from unnest($1::bigint[], $2::bigint[]) l (id, draw)
              union all
             select 2, k.ord,
                    (select n.id from quell.job n
                      where n.task_id = k.task_id and n.key = k.key and n.state = 0
                        and not n.closed
                      order by n.key limit 1),
                    (select n.id from quell.job n
                      where n.task_id = k.task_id and n.key = k.key and n.state = 0 and n.closed
                      order by n.id limit 1),
                    (select n.id from quell.job n
                      where n.task_id = k.task_id and n.key = k.key and n.state = 0 and n.closed
                      order by n.id desc limit 1),
                    array(select n.id from quell.job n
                           where n.task_id = k.task_id and n.key = k.key
                             and (n.state = 1 or n.closed) and n.state between 1 and 1
                           order by n.state desc, n.id)
               from unnest($3::int[], $4::text[]) with ordinality k (task_id, key, ord)"
        )
    };
}

/// Within a transaction that writes.
const AFTER_LOCKS: &str = after_locks!("quell.tick($5, $6)");
/// In a step that only reads, which has its time.
const KEYS: &str = after_locks!("$5::bigint + $6::bigint");

/// The ids of jobs as PostgreSQL takes them.
pub(crate) fn numbers<'i>(ids: impl IntoIterator<Item = &'i JobId>) -> Vec<i64> {
    ids.into_iter().map(|id| signed(id.get())).collect()
}

impl PostgresBackend {
    /// Loads rows, and locks them where the step writes.
    pub(crate) async fn load_rows(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
    ) -> Result<Vec<(RowName, Row)>> {
        let mut found = Vec::new();
        let is_moving = names.iter().any(|name| matches!(name, RowName::Attempts(_)));
        let ids = |of: fn(&RowName) -> Option<JobId>| names.iter().filter_map(of).collect();
        let jobs: Vec<JobId> =
            ids(|name| if let RowName::Job(id) = name { Some(*id) } else { None });
        self.load_jobs(step, &jobs, is_moving).await?;
        let keys: BTreeSet<&TaskKey> = names
            .iter()
            .filter_map(|name| if let RowName::Key(key) = name { Some(key) } else { None })
            .collect();
        self.load_keys(step, keys.iter().copied().cloned().collect()).await?;
        for key in keys {
            let jobs = step.keys.get(key).filter(|jobs| **jobs != KeyJobs::default());
            found.extend(jobs.map(|jobs| (RowName::Key(key.clone()), Row::Key(jobs.clone()))));
        }
        self.load_hanging(step, names, &mut found).await?;
        self.load_names(step, names, &mut found).await?;
        self.load_settings(step, names, &mut found).await?;
        self.load_schedules(step, names, &mut found).await?;
        let jobs: BTreeSet<JobId> =
            jobs.into_iter().chain(self.wait_for_renewals(step).await?).collect();
        let here = jobs.iter().filter_map(|id| Some((*id, Arc::clone(&step.jobs.get(id)?.job))));
        found.extend(here.map(|(id, job)| (RowName::Job(id), Row::Job(job))));
        step.there.extend(found.iter().map(|(name, _)| name.clone()));
        Ok(found)
    }

    /// Loads those of these jobs that the step does not have yet.
    async fn load_jobs(&self, step: &mut Step, ids: &[JobId], is_moving: bool) -> Result<()> {
        let unread = ids.iter().filter(|id| !step.jobs.contains_key(id)).copied();
        // No call changes a job because a key names it, so it is read without waiting for its row's lock.
        let is_locked = |id: &JobId| step.writes() && !step.named.contains(id);
        let (locked, read): (Vec<JobId>, Vec<JobId>) = unread.partition(is_locked);
        if !read.is_empty() {
            let query = self.sql.query(JOBS).bind(numbers(&read));
            let rows = step.fetch(self, "read jobs", query).await?;
            self.know_lanes_of(step, &rows).await?;
            for row in &rows {
                let home = if get(row, JOB_COLUMNS)? { Home::Ended } else { Home::Waiting };
                let job = Arc::new(decode(row, &self.names)?);
                step.jobs.insert(job.id, Loaded { job, home });
            }
        }
        if locked.is_empty() {
            return Ok(());
        }
        let lock = if is_moving { LOCK_AROUND } else { LOCK };
        let mut new = self.lock_jobs(step, (lock, Home::Waiting), &locked).await?;
        let missing = |step: &Step| {
            let ids = locked.iter().filter(|id| !step.jobs.contains_key(id));
            ids.copied().collect::<Vec<JobId>>()
        };
        let elsewhere = missing(step);
        if !elsewhere.is_empty() {
            new.extend(self.lock_jobs(step, (LOCK_ENDED, Home::Ended), &elsewhere).await?);
            let gone = missing(step);
            if gone.len() < elsewhere.len() && is_moving {
                let around = (LOCK_AROUND_ENDED, Home::Waiting);
                new.extend(self.lock_jobs(step, around, &elsewhere).await?);
            }
            if !gone.is_empty() {
                // One that came back between the two statements.
                new.extend(self.lock_jobs(step, (lock, Home::Waiting), &gone).await?);
            }
        }
        self.read_after_locks(step, &new).await
    }

    /// Locks jobs; returns those that the step did not have.
    async fn lock_jobs(
        &self,
        step: &mut Step,
        (lock, home): (&'static str, Home),
        ids: &[JobId],
    ) -> Result<Vec<JobId>> {
        let query = self.sql.query(lock).bind(numbers(ids));
        let rows = step.fetch(self, "lock jobs", query).await?;
        self.know_lanes_of(step, &rows).await?;
        let mut new = Vec::with_capacity(rows.len());
        for row in &rows {
            let job = Arc::new(decode(row, &self.names)?);
            step.jobs.entry(job.id).or_insert_with(|| {
                new.push(job.id);
                Loaded { job, home }
            });
        }
        Ok(new)
    }

    /// Reads the time, the leases of these jobs and what their keys are about, now that they are locked.
    async fn read_after_locks(&self, step: &mut Step, new: &[JobId]) -> Result<()> {
        let jobs = || new.iter().filter_map(|id| step.jobs.get(id)).map(|loaded| &loaded.job);
        let is_running = |job: &&Arc<Job>| job.state == JobState::Running;
        let leases: Vec<Lease> =
            jobs().filter(is_running).map(|job| Lease { job: job.id, token: job.token }).collect();
        let keys: BTreeSet<TaskKey> = jobs()
            .filter(|job| !job.state.is_ended())
            .filter_map(|job| Some((job.task.clone(), job.key.clone()?)))
            .collect();
        self.read_leases(step, &leases, &keys.into_iter().collect::<Vec<TaskKey>>()).await?;
        for id in new {
            let Some(loaded) = step.jobs.get_mut(id) else { continue };
            let job = Arc::make_mut(&mut loaded.job);
            let key = job.key.as_ref().map(|key| (job.task.clone(), key.clone()));
            if let Some(jobs) = key.and_then(|key| step.keys.get(&key)) {
                job.waits = waits(job, jobs);
            }
        }
        Ok(())
    }

    /// Reads the time, when leases expire, and what keys are about.
    async fn read_leases(&self, step: &mut Step, leases: &[Lease], keys: &[TaskKey]) -> Result<()> {
        let ids = numbers(leases.iter().map(|lease| &lease.job));
        let draws: Vec<i64> = leases.iter().map(|lease| signed(lease.token.draw().get())).collect();
        let query = self.sql.query(AFTER_LOCKS).bind(ids).bind(draws);
        let query = step.asked.bind(self.bind_keys(query, keys)?);
        let rows = step.fetch(self, "read the time", query).await?;
        for row in &rows {
            match get::<i64, _>(row, 0)? {
                0 => step.late = step.late.max(Some(time(row, 1)?)),
                1 => {
                    let id = JobId::new(unsigned(get(row, 1)?));
                    let until = optional_time(row, 2)?;
                    if let Some(loaded) = step.jobs.get_mut(&id) {
                        Arc::make_mut(&mut loaded.job).lease_until = until;
                    }
                }
                _ => self.take_key(step, keys, row)?,
            }
        }
        Ok(())
    }

    /// Waits for renewals that are in flight, where leases that the step decides by seem to have expired, and
    /// reads those again; returns their jobs. The time goes on meanwhile, and so may renewals of the others:
    /// the step decides once each lease is there or has expired for good. Going back to the savepoint lets
    /// the leases go: those that share them renew while this step has its jobs.
    async fn wait_for_renewals(&self, step: &mut Step) -> Result<Vec<JobId>> {
        let mut read = Vec::new();
        loop {
            let expired = if step.writes() { step.expired() } else { Vec::new() };
            if expired.is_empty() {
                return Ok(read);
            }
            step.fetch(self, "set a savepoint", self.sql.query("savepoint renewals")).await?;
            step.fetch(self, "wait for renewals", wait_query(&self.sql, &expired)).await?;
            let back = self.sql.query("rollback to savepoint renewals");
            step.fetch(self, "go back to a savepoint", back).await?;
            let release = self.sql.query("release savepoint renewals");
            step.fetch(self, "release a savepoint", release).await?;
            self.read_leases(step, &expired, &[]).await?;
            step.note_gone(&expired);
            read.extend(expired.iter().map(|lease| lease.job));
        }
    }

    /// Loads what the keys are about that the step does not know yet.
    async fn load_keys(&self, step: &mut Step, keys: BTreeSet<TaskKey>) -> Result<()> {
        let unread: Vec<TaskKey> =
            keys.into_iter().filter(|key| !step.keys.contains_key(key)).collect();
        if unread.is_empty() {
            return Ok(());
        }
        self.know_tasks(step, unread.iter().map(|(task, _)| task)).await?;
        let none = Vec::<i64>::new();
        let query = self.sql.query(KEYS).bind(none.clone()).bind(none);
        let query = self.bind_keys(query, &unread)?.bind(0_i64).bind(0_i64);
        let rows = step.fetch(self, "read keys", query).await?;
        for row in &rows {
            if get::<i64, _>(row, 0)? == 2 {
                self.take_key(step, &unread, row)?;
            }
        }
        Ok(())
    }

    /// Binds keys; those of tasks that are not there have no rows.
    fn bind_keys(&self, query: PgQuery, keys: &[TaskKey]) -> Result<PgQuery> {
        let (mut tasks, mut texts) = (Vec::new(), Vec::new());
        for (task, key) in keys {
            tasks.push(self.names.task_id(task).unwrap_or(-1));
            texts.push(key.as_str().to_owned());
        }
        Ok(query.bind(tasks).bind(texts))
    }

    fn take_key(&self, step: &mut Step, keys: &[TaskKey], row: &PgRow) -> Result<()> {
        let place = usize::try_from(get::<i64, _>(row, 1)?.saturating_sub(1)).unwrap_or(usize::MAX);
        let key = keys.get(place).ok_or_else(|| corrupt("a key that was not asked for"))?;
        let id = |index: usize| -> Result<Option<JobId>> {
            Ok(get::<Option<i64>, _>(row, index)?.map(|id| JobId::new(unsigned(id))))
        };
        let running = get::<Option<Vec<i64>>, _>(row, 5)?.unwrap_or_default();
        let jobs = KeyJobs {
            open: id(2)?,
            closed: id(3)?,
            running: running.into_iter().map(|id| JobId::new(unsigned(id))).collect(),
            // The windows of a key run in the order of their ids: those that wait decide.
            newest: id(4)?,
            ..KeyJobs::default()
        };
        let jobs =
            if jobs == KeyJobs::default() { jobs } else { KeyJobs { at: Timestamp::MIN, ..jobs } };
        step.keys.insert(key.clone(), jobs);
        Ok(())
    }

    /// Reads the time now that rows are locked.
    pub(crate) async fn read_clock(&self, step: &mut Step) -> Result<()> {
        let query = step.asked.bind(self.sql.query("select quell.tick($1, $2)"));
        let rows = step.fetch(self, "read the time", query).await?;
        step.late = step.late.max(Some(time(first(&rows)?, 0)?));
        Ok(())
    }

    /// Makes tasks known to this process, where the store knows them.
    pub(crate) async fn know_tasks<'t>(
        &self,
        step: &mut Step,
        tasks: impl Iterator<Item = &'t TaskName>,
    ) -> Result<()> {
        const TASKS: &str = "select name, id from quell.task where name = any($1)";
        let unknown: BTreeSet<&TaskName> =
            tasks.filter(|task| self.names.task_id(task).is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = unknown.iter().map(|task| task.as_str().to_owned()).collect();
        let rows = step.fetch(self, "read names", self.sql.query(TASKS).bind(names)).await?;
        for row in &rows {
            self.names.learn_task(TaskName::new(get::<&str, _>(row, 0)?)?, get(row, 1)?);
        }
        Ok(())
    }

    /// Makes the lanes of these rows known, which another process may have made.
    pub(crate) async fn know_lanes_of(&self, step: &mut Step, rows: &[PgRow]) -> Result<()> {
        let lanes = rows.iter().map(lane_of).collect::<Result<Vec<i32>>>()?;
        match self.names.lanes_query(&self.sql, lanes.into_iter()) {
            Some(query) => self.names.learn_lanes(&step.fetch(self, "read names", query).await?),
            None => Ok(()),
        }
    }

    /// The row of a job that is set aside, decoded again.
    pub(crate) async fn decode_aside(&self, step: &mut Step, id: JobId) -> Result<Option<Row>> {
        const ASIDE: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.ended j
              where j.part = 0 and j.id = $1 and j.state + 0 = 6
                and (select u.was from quell.unreadable u where u.job_id = $1) between 0 and 5"
        );
        let query = self.sql.query(ASIDE).bind(signed(id.get()));
        let rows = step.fetch(self, "read an unreadable job", query).await?;
        self.know_lanes_of(step, &rows).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let job = Arc::new(decode(row, &self.names)?);
        step.jobs.insert(id, Loaded { job: Arc::clone(&job), home: Home::Ended });
        Ok(Some(Row::Job(job)))
    }

    /// What can be decoded of a job's row; the rest is as it usually is.
    pub(crate) async fn decode_in_part(&self, step: &mut Step, id: JobId) -> Result<Option<Job>> {
        const PART: &str =
            "select j.id, j.lane_id, j.state::int, j.key, j.partition, j.token, j.closed,
                    j.ended_at
               from (select * from quell.job union all select * from quell.ended) j
              where j.id = $1";
        let query = self.sql.query(PART).bind(signed(id.get()));
        let rows = step.fetch(self, "read an unreadable job", query).await?;
        self.know_lanes_of(step, &rows).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some(lane) = self.names.lane(lane_of(row)?) else { return Ok(None) };
        let payload = Payload::from_stored("null");
        let trigger = NewTrigger::new(lane.task.clone(), lane.queue.clone(), payload);
        let key = |index: usize| -> Result<Option<Key>> {
            Ok(get::<Option<&str>, _>(row, index)?.and_then(|text| Key::new(text).ok()))
        };
        let state = u8::try_from(get::<i32, _>(row, 2)?).ok().and_then(JobState::from_code);
        let mut job = Job {
            priority: lane.priority,
            state: state.unwrap_or(JobState::Unreadable),
            key: key(3)?,
            partition: key(4)?,
            token: LeaseToken::new(unsigned(get(row, 5)?)),
            ended_at: optional_time(row, 7)?,
            ..Job::unkeyed(id, &trigger, Timestamp::MIN)
        };
        job.shape.closed = get(row, 6)?;
        Ok(Some(job))
    }
}

/// Whether a job may not start because of others of its key (R10, R11).
fn waits(job: &Job, jobs: &KeyJobs) -> bool {
    if job.state != JobState::Scheduled || job.shape.overlap {
        return false;
    }
    let runs = jobs.running.iter().any(|id| *id != job.id);
    let is_before = |id: JobId| id < job.id;
    runs || jobs.closed.is_some_and(is_before)
        || (job.is_closed_window() && jobs.open.is_some_and(is_before))
}
