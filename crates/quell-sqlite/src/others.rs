//! Rows that are few and are about no job: schedules with their ticks, workers, alerts, and the jobs that
//! imported dead jobs became.
//!
//! Invariant: what is written here is read here again as it was.

use std::time::Duration;

use quell_core::heartbeat::WorkerRow;
use quell_core::queue::Remarks;
use quell_core::schedule::{ScheduleInfo, ScheduleState, Tick, TickedBy};
use quell_core::{AlertName, AlertState, JobId, Result, ScheduleName, Timestamp, WorkerId};
use quell_engine::sql::{decode_names, decode_schedule};
use quell_engine::{Row, RowName, SettingsOf};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::load::{Found, fetch, id};
use crate::row::{Columns, get, signed, time, unsigned};

pub(crate) async fn load_schedules(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const SCHEDULES: &str =
        "select s.name, s.schedule, s.paused, s.handled_at, s.last_at, s.next_at
           from json_each(?1) k cross join quell_schedule s on s.name = k.value";
    let named = names.iter().filter_map(|name| match name {
        RowName::Schedule(name) => Some(name.as_str()),
        _ => None,
    });
    let rows = fetch(db, "read schedules", SCHEDULES, json(&named.collect::<Vec<_>>())?).await?;
    let row = |row: &SqliteRow| {
        let info = decode_schedule(&Columns(row))?;
        Ok((RowName::Schedule(info.schedule.name.clone()), Row::Schedule(Box::new(info))))
    };
    rows.iter().map(row).collect()
}

pub(crate) async fn load_ticks(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const TICKS: &str = "select s.name, t.tick_at, t.job_id, t.backfilled
           from json_each(?1) k
          cross join quell_schedule s on s.name = k.value ->> 0
          cross join quell_tick t on t.schedule_id = s.id and t.tick_at = k.value ->> 1";
    let named = names.iter().filter_map(|name| match name {
        RowName::Tick(schedule, at) => Some((schedule.as_str(), at.as_micros())),
        _ => None,
    });
    let rows = fetch(db, "read ticks", TICKS, json(&named.collect::<Vec<_>>())?).await?;
    let row = |row: &SqliteRow| {
        let (schedule, tick) = (ScheduleName::new(get::<&str, _>(row, 0)?)?, time(row, 1)?);
        let job = get::<Option<i64>, _>(row, 2)?.map(|id| JobId::new(unsigned(id)));
        let by = if get(row, 3)? { TickedBy::Backfill } else { TickedBy::Plan };
        let name = RowName::Tick(schedule.clone(), tick);
        Ok((name, Row::Tick(Tick { schedule, tick, job, by })))
    };
    rows.iter().map(row).collect()
}

pub(crate) async fn load_origins(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const ORIGINS: &str = "select k.key, p.job_id
           from json_each(?1) k
          cross join quell_past p on p.of_job = k.value ->> 0 and p.of_first_at = k.value ->> 1
          where exists (select 1 from quell_job j where j.id = p.job_id)";
    let named = names.iter().map(|name| match name {
        RowName::Origin(origin) => Some((signed(origin.job.get()), origin.first_at.as_micros())),
        _ => None,
    });
    let what = "look for imported jobs";
    let rows = fetch(db, what, ORIGINS, json(&named.collect::<Vec<_>>())?).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let name = names.get(crate::load::place(row)?).map(|name| (*name).clone());
        let became = id(row, 1)?;
        found.extend(name.map(|name| (name, Row::Origin(became))));
    }
    Ok(found)
}

pub(crate) async fn load_workers(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const WORKERS: &str = "select w.worker, incarnation, host, pid, version, queues, slots, lease,
                started_at, busy, steady_since, seen_at, tasks
           from json_each(?1) k
          cross join quell_worker w
             on w.worker = k.value ->> 0 and w.incarnation = k.value ->> 1";
    let named = names.iter().filter_map(|name| match name {
        RowName::Worker(worker, incarnation) => Some((worker.as_str(), *incarnation)),
        _ => None,
    });
    let rows = fetch(db, "read workers", WORKERS, json(&named.collect::<Vec<_>>())?).await?;
    let row = |row: &SqliteRow| {
        let worker = decode_worker(row)?;
        let name = RowName::Worker(worker.worker.clone(), worker.incarnation);
        Ok((name, Row::Worker(Box::new(worker))))
    };
    rows.iter().map(row).collect()
}

fn decode_worker(row: &SqliteRow) -> Result<WorkerRow> {
    let name: &str = get(row, 0)?;
    let (queues, tasks) = decode_names(name, get(row, 5)?, get(row, 12)?)?;
    let lease: i64 = get(row, 7)?;
    Ok(WorkerRow {
        drained: None,
        worker: WorkerId::new(name)?,
        incarnation: get(row, 1)?,
        host: get(row, 2)?,
        pid: get(row, 3)?,
        version: get(row, 4)?,
        queues,
        tasks,
        slots: get(row, 6)?,
        lease: Duration::from_micros(u64::try_from(lease).unwrap_or(0)),
        started_at: time(row, 8)?,
        busy: get(row, 9)?,
        steady_since: time(row, 10)?,
        seen_at: time(row, 11)?,
    })
}

pub(crate) async fn load_alerts(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const ALERTS: &str = "select a.name, a.version, a.state
           from json_each(?1) k cross join quell_alert a on a.name = k.value";
    let named = names.iter().filter_map(|name| match name {
        RowName::Alert(name) => Some(name.as_str()),
        _ => None,
    });
    let rows = fetch(db, "read alerts", ALERTS, json(&named.collect::<Vec<_>>())?).await?;
    let row = |row: &SqliteRow| {
        let name: &str = get(row, 0)?;
        let state: AlertState = serde_json::from_str(get(row, 2)?)
            .map_err(|error| corrupt(format_args!("the state of alert {name}: {error}")))?;
        let name = RowName::Alert(AlertName::new(name)?);
        Ok((name, Row::Alert(unsigned(get(row, 1)?), Box::new(state))))
    };
    rows.iter().map(row).collect()
}

/// Writes a schedule, or removes it with nothing that hangs on it.
pub(crate) async fn write_schedule(
    db: &mut SqliteConnection,
    name: &ScheduleName,
    info: Option<&ScheduleInfo>,
) -> Result<()> {
    const PUT: &str =
        "insert into quell_schedule (name, schedule, paused, handled_at, last_at, next_at)
         values (?1, ?2, ?3, ?4, ?5, ?6)
         on conflict (name) do update set
             schedule = excluded.schedule, paused = excluded.paused,
             handled_at = excluded.handled_at, last_at = excluded.last_at,
             next_at = excluded.next_at";
    const REMOVE: &str = "delete from quell_schedule where name = ?1";
    let name = name.as_str().to_owned();
    let query = match info {
        None => sqlx::query(REMOVE).bind(name),
        Some(info) => sqlx::query(PUT)
            .bind(name)
            .bind(json(&info.schedule)?)
            .bind(info.state == ScheduleState::Paused)
            .bind(info.handled.as_micros())
            .bind(info.last.map(Timestamp::as_micros))
            .bind(info.next.map(Timestamp::as_micros)),
    };
    query.execute(db).await.map(drop).map_err(|e| explain("write a schedule", e))
}

/// Writes a worker, or removes it.
pub(crate) async fn write_worker(
    db: &mut SqliteConnection,
    (worker, incarnation): (&WorkerId, u32),
    row: Option<&WorkerRow>,
) -> Result<()> {
    const PUT: &str = "insert into quell_worker (worker, incarnation, host, pid, version, queues,
                slots, lease, started_at, busy, steady_since, seen_at, tasks)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
         on conflict (worker, incarnation) do update set
             busy = excluded.busy, steady_since = excluded.steady_since,
             seen_at = excluded.seen_at, queues = excluded.queues, tasks = excluded.tasks";
    const REMOVE: &str = "delete from quell_worker where worker = ?1 and incarnation = ?2";
    let name = worker.as_str().to_owned();
    let query = match row {
        None => sqlx::query(REMOVE).bind(name).bind(incarnation),
        Some(row) => sqlx::query(PUT)
            .bind(name)
            .bind(incarnation)
            .bind(row.host.clone())
            .bind(row.pid)
            .bind(row.version.clone())
            .bind(json(&row.queues)?)
            .bind(row.slots)
            .bind(i64::try_from(row.lease.as_micros()).unwrap_or(i64::MAX))
            .bind(row.started_at.as_micros())
            .bind(row.busy)
            .bind(row.steady_since.as_micros())
            .bind(row.seen_at.as_micros())
            .bind(row.tasks.as_ref().map(json).transpose()?),
    };
    query.execute(db).await.map(drop).map_err(|e| explain("write a worker", e))
}

/// Writes an alert, or removes it.
pub(crate) async fn write_alert(
    db: &mut SqliteConnection,
    name: &AlertName,
    row: Option<(u64, &AlertState)>,
) -> Result<()> {
    const PUT: &str =
        "insert or replace into quell_alert (name, version, state) values (?1, ?2, ?3)";
    const REMOVE: &str = "delete from quell_alert where name = ?1";
    let name = name.as_str().to_owned();
    let query = match row {
        None => sqlx::query(REMOVE).bind(name),
        Some((version, state)) => {
            sqlx::query(PUT).bind(name).bind(signed(version)).bind(json(state)?)
        }
    };
    query.execute(db).await.map(drop).map_err(|e| explain("write an alert", e))
}

pub(crate) async fn load_remarks(db: &mut SqliteConnection, names: &[&RowName]) -> Result<Found> {
    const REMARKS: &str = "select r.name, r.remarks
           from json_each(?1) k cross join quell_remarks r on r.name = k.value";
    let named = names.iter().filter_map(|name| match name {
        RowName::Remarks(of) => Some(of.to_string()),
        _ => None,
    });
    let rows = fetch(db, "read remarks", REMARKS, json(&named.collect::<Vec<_>>())?).await?;
    let row = |row: &SqliteRow| {
        let of = get::<&str, _>(row, 0)?.parse()?;
        let remarks = serde_json::from_str(get(row, 1)?)
            .map_err(|error| corrupt(format_args!("the remarks of {of}: {error}")))?;
        Ok((RowName::Remarks(of), Row::Remarks(remarks)))
    };
    rows.iter().map(row).collect()
}

pub(crate) async fn write_remarks(
    db: &mut SqliteConnection,
    of: &SettingsOf,
    remarks: Option<&Remarks>,
) -> Result<()> {
    const PUT: &str = "insert or replace into quell_remarks (name, remarks) values (?1, ?2)";
    const REMOVE: &str = "delete from quell_remarks where name = ?1";
    let query = match remarks {
        None => sqlx::query(REMOVE).bind(of.to_string()),
        Some(remarks) => sqlx::query(PUT).bind(of.to_string()).bind(json(remarks)?),
    };
    query.execute(db).await.map(drop).map_err(|e| explain("write remarks", e))
}
