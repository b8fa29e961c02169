//! Worker rows (R25): what heartbeats write, and what lease expiries are judged by.
//!
//! A heartbeat is one statement on one row, but for the first, which is a step of the engine.

use std::time::Duration;

use quell_core::heartbeat::{Heartbeat, MOST_QUEUES, WorkerRow, longest_gap};
use quell_core::{Result, Timestamp, WorkerId};
use quell_engine::SettingsOf;
use quell_engine::sql::decode_names;
use serde::Serialize;
use sqlx::postgres::PgRow;

use crate::error::corrupt;
use crate::row::{count, get, signed_count, time};
use crate::sql::{PgQuery, Sql};
use crate::tx::Asked;

/// The columns of a worker.
macro_rules! worker_columns {
    () => {
        "worker, incarnation, host, pid, version, queues, slots, lease, started_at, busy, \
         steady_since, seen_at, tasks"
    };
}
pub(crate) use worker_columns;

/// A further heartbeat, as [`WorkerRow::again`] restates it; returns the time and whether the worker is
/// drained (R29), and no row where the worker has none, or where the heartbeat names queues or tasks that the row does not.
pub(crate) fn beat_query(sql: &Sql, asked: Asked, beat: &Heartbeat) -> Result<PgQuery> {
    const AGAIN: &str = "with clock as materialized (select quell.tick($1, $2) as now)
         update quell.worker w
            set busy = $5,
                steady_since = case when c.now - w.seen_at <= $6 then w.steady_since else c.now end,
                seen_at = greatest(w.seen_at, c.now)
           from clock c
          where w.worker = $3 and w.incarnation = $4
            and w.queues::jsonb @> $7::jsonb
            and (w.tasks is null or w.tasks::jsonb @> $8::jsonb)
      returning c.now, exists (select from quell.remarks r where r.name = $9)";
    let drain = SettingsOf::Worker(beat.worker.clone(), beat.incarnation);
    let queues = json(&beat.queues.iter().take(MOST_QUEUES).collect::<Vec<_>>())?;
    let tasks = beat.tasks.as_ref().map(json).transpose()?;
    Ok(asked
        .bind(sql.query(AGAIN))
        .bind(beat.worker.as_str().to_owned())
        .bind(i64::from(beat.incarnation))
        .bind(signed_count(beat.busy))
        .bind(micros(longest_gap(beat.lease)))
        .bind(queues)
        .bind(tasks)
        .bind(drain.to_string()))
}

/// A row of [`worker_columns`].
pub(crate) fn decode_worker(row: &PgRow) -> Result<WorkerRow> {
    let name: &str = get(row, 0)?;
    let (queues, tasks) = decode_names(name, get(row, 5)?, get(row, 12)?)?;
    Ok(WorkerRow {
        worker: WorkerId::new(name)?,
        incarnation: wide(row, 1)?,
        host: get(row, 2)?,
        pid: wide(row, 3)?,
        version: get(row, 4)?,
        queues,
        tasks,
        slots: count(row, 6)?,
        lease: Timestamp::from_micros(get(row, 7)?).since(Timestamp::from_micros(0)),
        started_at: time(row, 8)?,
        busy: count(row, 9)?,
        steady_since: time(row, 10)?,
        seen_at: time(row, 11)?,
        drained: None,
    })
}

/// The names of a worker's queues or tasks, as its row keeps them.
pub(crate) fn json(names: &impl Serialize) -> Result<String> {
    serde_json::to_string(names)
        .map_err(|error| corrupt(format_args!("the queues or tasks of a worker: {error}")))
}

/// A `u32` that is kept as a `bigint`.
fn wide(row: &PgRow, index: usize) -> Result<u32> {
    Ok(u32::try_from(get::<i64, _>(row, index)?).unwrap_or(0))
}

/// A duration as PostgreSQL keeps it.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
