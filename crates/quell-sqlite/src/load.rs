//! Rows by their names: one statement for all rows of a kind.
//!
//! What the engine keeps of a key beside its jobs ([`RowName::Key`]) follows from the jobs. Turns and gates
//! are never there: the write lock keeps claims apart.
//!
//! Invariant: a row is loaded as it is stored, or it is an error; only attempts are left out where they
//! cannot be decoded.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::sync::Arc;

use quell_core::limit::{StartLog, WHOLE_QUEUE};
use quell_core::{Effect, Error, Job, JobId, JobState, Key, Result, Timestamp};
use quell_engine::{KeyJobs, Row, RowName};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use tracing::warn;

use crate::backend::SqliteTx;
use crate::counts::decode_lane_state;
use crate::error::explain;
use crate::keys::{json, kept};
use crate::names::Names;
use crate::others;
use crate::row::{
    decode, decode_attempt, decode_effect, decode_in_part, decode_past, decode_unreadable, get,
    job_columns, signed, time, unsigned,
};

/// Rows with their names.
pub(crate) type Found = Vec<(RowName, Row)>;

impl SqliteTx {
    /// Loads rows; those that are not there are left out.
    pub(crate) async fn load(&mut self, names: &BTreeSet<RowName>) -> Result<Found> {
        let all: Vec<&RowName> = names.iter().collect();
        let mut found = Vec::new();
        for names in all.chunk_by(|one, other| discriminant(*one) == discriminant(*other)) {
            let Some(first) = names.first() else { continue };
            let rows = match first {
                RowName::Job(_) => self.load_jobs(names).await?,
                RowName::Attempts(_) => self.load_attempts(names).await?,
                RowName::Effects(_) => load_effects(self.connection(), names).await?,
                RowName::Past(_) => load_pasts(self.connection(), names).await?,
                RowName::Aside(_) => self.load_asides(names).await?,
                RowName::Key(_) => self.load_keys(names).await?,
                RowName::Hold(_) | RowName::Record(_) | RowName::Memory(_) => {
                    self.load_names(names).await?
                }
                RowName::Queue(_) | RowName::Task(_) => settings(self.names(), names)?,
                RowName::Starts(..) => self.load_starts(names).await?,
                RowName::Turn(_) | RowName::Gate(_) => Vec::new(),
                RowName::Schedule(_) => others::load_schedules(self.connection(), names).await?,
                RowName::Tick(..) => others::load_ticks(self.connection(), names).await?,
                RowName::Origin(_) => others::load_origins(self.connection(), names).await?,
                RowName::Worker(..) => others::load_workers(self.connection(), names).await?,
                RowName::Alert(_) => others::load_alerts(self.connection(), names).await?,
                RowName::Remarks(_) => others::load_remarks(self.connection(), names).await?,
            };
            found.extend(rows);
        }
        Ok(found)
    }

    async fn load_jobs(&mut self, names: &[&RowName]) -> Result<Found> {
        const JOBS: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            " from json_each(?1) k cross join quell_job j on j.id = k.value
              where j.state is not 6"
        );
        let rows = fetch(self.connection(), "read jobs", JOBS, ids(names)?).await?;
        rows.iter().map(|row| self.decode_job(row)).collect()
    }

    fn decode_job(&mut self, row: &SqliteRow) -> Result<(RowName, Row)> {
        let job = decode(row, self.names())?;
        self.seen.jobs.insert(job.id, decode_lane_state(row, 1)?);
        Ok((RowName::Job(job.id), Row::Job(Arc::new(job))))
    }

    /// The row of a job that is set aside, decoded again.
    pub(crate) async fn load_aside(&mut self, id: JobId) -> Result<Option<Row>> {
        const JOB: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            " from quell_job j where j.id = ?1 and j.state = 6"
        );
        let id = signed(id.get()).to_string();
        let rows = fetch(self.connection(), "read a job", JOB, id).await?;
        rows.first().map(|row| Ok(self.decode_job(row)?.1)).transpose()
    }

    /// What can be decoded of the row of a job. From here on what its key says is as this job is.
    pub(crate) async fn load_in_part(&mut self, id: JobId) -> Result<Option<Job>> {
        const JOB: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            ", j.hold from quell_job j where j.id = ?1"
        );
        self.seen.apart.insert(id);
        let text = signed(id.get()).to_string();
        let rows = fetch(self.connection(), "read a job", JOB, text).await?;
        Ok(rows.first().and_then(|row| decode_in_part(id, row, self.names())))
    }

    async fn load_attempts(&mut self, names: &[&RowName]) -> Result<Found> {
        const ATTEMPTS: &str = "select token, worker, started_at, ended_at, outcome, error, job_id
               from json_each(?1) k cross join quell_attempt a on a.job_id = k.value";
        let rows = fetch(self.connection(), "read attempts", ATTEMPTS, ids(names)?).await?;
        let mut attempts: BTreeMap<JobId, Vec<_>> = BTreeMap::new();
        for row in &rows {
            match decode_attempt(row) {
                Ok(attempt) => attempts.entry(id(row, 6)?).or_default().push(attempt),
                Err(error) => warn!(%error, "cannot decode an attempt: left out"),
            }
        }
        for (id, attempts) in &mut attempts {
            attempts.sort_by_key(|attempt| attempt.token);
            let tokens = attempts.iter().map(|attempt| attempt.token).collect();
            self.seen.attempts.insert(*id, tokens);
        }
        let row = |(id, attempts)| (RowName::Attempts(id), Row::Attempts(attempts));
        Ok(attempts.into_iter().map(row).collect())
    }

    async fn load_asides(&mut self, names: &[&RowName]) -> Result<Found> {
        const ASIDES: &str = "select u.job_id, u.was, u.set_aside_at, u.reason, j.lane_id
               from json_each(?1) k
              cross join quell_unreadable u on u.job_id = k.value
              cross join quell_job j on j.id = u.job_id";
        let what = "read unreadable jobs";
        let rows = fetch(self.connection(), what, ASIDES, ids(names)?).await?;
        let row = |row: &SqliteRow| {
            let aside = decode_unreadable(row, self.names())?;
            Ok((RowName::Aside(aside.id), Row::Aside(Box::new(aside))))
        };
        rows.iter().map(row).collect()
    }

    /// The jobs of keys that wait and run, and the newest one.
    async fn load_keys(&mut self, names: &[&RowName]) -> Result<Found> {
        // R10: of the closed windows the first and the last one are enough to know.
        const KEYS: &str = "select k.key, j.id, j.hold, j.state
               from json_each(?1) k
              cross join quell_job j
                 on j.task_id = k.value ->> 0 and j.key = k.value ->> 1 and j.hold >= 0
             union all
             select k.key, j.id, j.hold, j.state
               from json_each(?1) k
              cross join quell_job j
                 on j.id in ((select -max(c.hold) from quell_job c
                               where c.task_id = k.value ->> 0 and c.key = k.value ->> 1
                                 and c.hold < 0),
                             (select -min(c.hold) from quell_job c
                               where c.task_id = k.value ->> 0 and c.key = k.value ->> 1
                                 and c.hold < 0),
                             (select c.id from quell_job c
                               where c.task_id = k.value ->> 0 and c.key = k.value ->> 1
                                 and c.hold is null and c.state is not 6
                               order by c.id desc limit 1))";
        let asked = json(&task_keys(self.names(), names))?;
        let rows = fetch(self.connection(), "read the jobs of keys", KEYS, asked).await?;
        let mut keys: BTreeMap<usize, KeyJobs> = BTreeMap::new();
        for row in &rows {
            let (id, hold): (JobId, Option<i64>) = (id(row, 1)?, get(row, 2)?);
            let jobs = keys.entry(place(row)?).or_default();
            let Some(hold) = hold else {
                jobs.newest = jobs.newest.max(Some(id));
                continue;
            };
            let state = get::<i64, _>(row, 3).ok();
            let expected = if hold > 0 { JobState::Running } else { JobState::Scheduled };
            if state != Some(i64::from(expected.code())) {
                if self.seen.apart.contains(&id) {
                    continue;
                }
                return Err(Error::unreadable(id, "its state does not fit its place at its key"));
            }
            jobs.newest = jobs.newest.max(Some(id));
            match hold {
                0 => jobs.open = Some(id),
                1.. => drop(jobs.running.insert(id)),
                _ => jobs.closed = jobs.closed.into_iter().chain([id]).min(),
            }
        }
        let row =
            |(place, jobs): (usize, KeyJobs)| Some(((*names.get(place)?).clone(), Row::Key(jobs)));
        Ok(keys.into_iter().filter_map(row).collect())
    }

    /// Dedup keys, idempotency keys, and memories of edges.
    async fn load_names(&mut self, names: &[&RowName]) -> Result<Found> {
        const HOLDS: &str = "select k.key, h.job_id, h.until, h.expires_at
               from json_each(?1) k
              cross join quell_hold h on h.task_id = k.value ->> 0 and h.key = k.value ->> 1";
        const RECORDS: &str =
            "select k.key, i.job_id, i.fingerprint, i.expires_at, i.state, i.output
               from json_each(?1) k
              cross join quell_idempotency i
                 on i.task_id = k.value ->> 0 and i.key = k.value ->> 1";
        const MEMORIES: &str =
            "select k.key, m.leader, m.burst_at, m.last_at, m.started_at, m.expires_at, m.triggers
               from json_each(?1) k
              cross join quell_memory m on m.task_id = k.value ->> 0 and m.key = k.value ->> 1";
        let asked = json(&task_keys(self.names(), names))?;
        let sql = match names.first() {
            Some(RowName::Hold(_)) => HOLDS,
            Some(RowName::Record(_)) => RECORDS,
            _ => MEMORIES,
        };
        let rows = fetch(self.connection(), "read keys", sql, asked).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(name) = names.get(place(row)?) else { continue };
            let decoded = match name {
                RowName::Hold(_) => Row::Hold(kept::hold(row, 1)?),
                RowName::Record(_) => Row::Record(Box::new(kept::record(row, 1)?)),
                _ => Row::Memory(kept::memory(row, 1)?),
            };
            found.push(((*name).clone(), decoded));
        }
        Ok(found)
    }

    async fn load_starts(&mut self, names: &[&RowName]) -> Result<Found> {
        const STARTS: &str = "select k.key, s.at, s.starts
               from json_each(?1) k
              cross join quell_start s
                 on s.queue_id = k.value ->> 0 and s.partition = k.value ->> 1";
        let known = self.names();
        let of = names.iter().map(|name| match name {
            RowName::Starts(queue, partition) => {
                let partition = partition.as_ref().map_or(WHOLE_QUEUE, Key::as_str);
                Some((known.queue_id(queue)?, partition))
            }
            _ => None,
        });
        let asked = json(&of.collect::<Vec<_>>())?;
        let rows = fetch(self.connection(), "read starts", STARTS, asked).await?;
        let mut logs: BTreeMap<usize, Vec<Timestamp>> = BTreeMap::new();
        for row in &rows {
            let starts = usize::try_from(get::<i64, _>(row, 2)?).unwrap_or(0);
            let log = logs.entry(place(row)?).or_default();
            log.extend(std::iter::repeat_n(time(row, 1)?, starts));
        }
        let row = |(place, mut log): (usize, Vec<Timestamp>)| {
            log.sort_unstable();
            let name = (*names.get(place)?).clone();
            Some((name, Row::Starts(log.into_iter().collect::<StartLog>())))
        };
        Ok(logs.into_iter().filter_map(row).collect())
    }
}

async fn load_effects(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const EFFECTS: &str = "select name, e.key, begun_at, begun_by, done_at, done_by, result, job_id
           from json_each(?1) k cross join quell_effect e on e.job_id = k.value";
    let rows = fetch(db, "read effects", EFFECTS, ids(names)?).await?;
    let mut effects: BTreeMap<JobId, Vec<Effect>> = BTreeMap::new();
    for row in &rows {
        effects.entry(id(row, 7)?).or_default().push(decode_effect(row)?);
    }
    let row = |(id, mut effects): (JobId, Vec<Effect>)| {
        effects.sort_by(|one, other| one.name.cmp(&other.name));
        (RowName::Effects(id), Row::Effects(effects))
    };
    Ok(effects.into_iter().map(row).collect())
}

async fn load_pasts(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const PASTS: &str = "select original, of_job, of_first_at, job_id
           from json_each(?1) k cross join quell_past p on p.job_id = k.value";
    let rows = fetch(db, "read what jobs were", PASTS, ids(names)?).await?;
    let row =
        |row: &SqliteRow| Ok((RowName::Past(id(row, 3)?), Row::Past(Box::new(decode_past(row)?))));
    rows.iter().map(row).collect()
}

/// The settings of queues and tasks, which are cached with their names.
fn settings(known: &Names, names: &[&RowName]) -> Result<Found> {
    let mut found = Vec::new();
    for name in names {
        let row = match name {
            RowName::Queue(queue) => known
                .queue_settings(queue)
                .map(|settings| Row::Queue(settings.cloned().map(Box::new))),
            RowName::Task(task) => known.task_settings(task)?.map(Row::Task),
            _ => None,
        };
        found.extend(row.map(|row| ((*name).clone(), row)));
    }
    Ok(found)
}

/// Runs a statement with one parameter.
pub(crate) async fn fetch(
    db: &mut SqliteConnection,
    what: &'static str,
    sql: &'static str,
    asked: String,
) -> Result<Vec<SqliteRow>> {
    sqlx::query(sql).bind(asked).fetch_all(db).await.map_err(|e| explain(what, e))
}

/// The jobs that these names are about, as a JSON array.
fn ids(names: &[&RowName]) -> Result<String> {
    let id = |name: &&RowName| match name {
        RowName::Job(id)
        | RowName::Attempts(id)
        | RowName::Effects(id)
        | RowName::Past(id)
        | RowName::Aside(id) => Some(signed(id.get())),
        _ => None,
    };
    json(&names.iter().filter_map(id).collect::<Vec<_>>())
}

/// The numbers of the tasks and the keys that these names are about, each at the place of its name; none
/// where there is no such task.
fn task_keys<'n>(known: &Names, names: &[&'n RowName]) -> Vec<Option<(i64, &'n str)>> {
    let of = |name: &&'n RowName| match name {
        RowName::Key((task, key))
        | RowName::Hold((task, key))
        | RowName::Record((task, key))
        | RowName::Memory((task, key)) => Some((known.task_id(task)?, key.as_str())),
        _ => None,
    };
    names.iter().map(of).collect()
}

/// The place of a row's name among those that were asked for: the first column.
pub(crate) fn place(row: &SqliteRow) -> Result<usize> {
    Ok(usize::try_from(get::<i64, _>(row, 0)?).unwrap_or(usize::MAX))
}

/// The id of a job.
pub(crate) fn id(row: &SqliteRow, index: usize) -> Result<JobId> {
    Ok(JobId::new(unsigned(get(row, index)?)))
}
