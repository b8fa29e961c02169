//! Worker rows (R25): what heartbeats write, and what lapses are judged by.
//!
//! A heartbeat is one statement on one row. All rows are read only where a worker starts, a lease
//! has lapsed or an operator asks; the core bounds their number.

use std::time::Duration;

use quell_core::heartbeat::{Heartbeat, WorkerRow, Workers, longest_gap, outdated};
use quell_core::{Result, Timestamp, WorkerId};
use sqlx::postgres::PgRow;

use crate::error::corrupt;
use crate::row::{count, get, signed_count, time};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx, first};

macro_rules! worker_columns {
    () => {
        "worker, incarnation, host, pid, version, queues, slots, lease, started_at, busy, \
         steady_since, seen_at"
    };
}

/// A further heartbeat, as [`WorkerRow::again`] restates it; returns the time, and no row where the
/// worker has none.
pub(crate) fn beat_query(sql: &Sql, asked: Asked, beat: &Heartbeat) -> PgQuery {
    const AGAIN: &str = "with clock as materialized (select quell.tick($1, $2) as now)
         update quell.worker w
            set busy = $5,
                steady_since = case when c.now - w.seen_at <= $6 then w.steady_since else c.now end,
                seen_at = greatest(w.seen_at, c.now)
           from clock c
          where w.worker = $3 and w.incarnation = $4
      returning c.now";
    asked
        .bind(sql.query(AGAIN))
        .bind(beat.worker.as_str().to_owned())
        .bind(i64::from(beat.incarnation))
        .bind(signed_count(beat.busy))
        .bind(micros(longest_gap(beat.lease)))
}

/// The time, with each row of a worker, by name and incarnation.
pub(crate) fn list_query(sql: &Sql, asked: Asked) -> PgQuery {
    const LIST: &str = concat!(
        "with clock as materialized (select quell.peek($1, $2) as now)
         select ",
        worker_columns!(),
        ", now from clock left join quell.worker on true order by worker, incarnation"
    );
    asked.bind(sql.query(LIST))
}

/// What [`list_query`] returned, for operators.
pub(crate) fn decode_list(rows: &[PgRow]) -> Result<Workers> {
    let now = time(first(rows)?, 12)?;
    let mut workers = Vec::with_capacity(rows.len());
    for row in rows {
        if get::<Option<&str>, _>(row, 0)?.is_some() {
            workers.push(decode(row)?);
        }
    }
    workers.retain(|row| row.is_kept(now));
    Ok(Workers { now, rows: workers })
}

pub(crate) fn remove_query(sql: &Sql, worker: &WorkerId, incarnation: u32) -> PgQuery {
    const REMOVE: &str = "delete from quell.worker where worker = $1 and incarnation = $2";
    sql.query(REMOVE).bind(worker.as_str().to_owned()).bind(i64::from(incarnation))
}

impl Tx<'_> {
    /// All rows, by name and incarnation.
    pub(crate) async fn workers(&mut self) -> Result<Vec<WorkerRow>> {
        const ALL: &str = concat!(
            "select ",
            worker_columns!(),
            " from quell.worker order by worker, incarnation"
        );
        let rows = self.fetch("read workers", self.sql.query(ALL)).await?;
        rows.iter().map(decode).collect()
    }

    /// Makes the row of a worker, and removes those that are outdated.
    pub(crate) async fn make_worker(&mut self, beat: &Heartbeat) -> Result<()> {
        const MAKE: &str = concat!(
            "insert into quell.worker (",
            worker_columns!(),
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) on conflict do nothing"
        );
        self.read_clock().await?;
        let row = WorkerRow::first(self.now, beat);
        let queues = serde_json::to_string(&row.queues)
            .map_err(|error| corrupt(format_args!("the queues of a worker: {error}")))?;
        let make = self
            .sql
            .query(MAKE)
            .bind(row.worker.as_str().to_owned())
            .bind(i64::from(row.incarnation))
            .bind(row.host)
            .bind(i64::from(row.pid))
            .bind(row.version)
            .bind(queues)
            .bind(signed_count(row.slots))
            .bind(micros(row.lease))
            .bind(row.started_at.as_micros())
            .bind(signed_count(row.busy))
            .bind(row.steady_since.as_micros())
            .bind(row.seen_at.as_micros());
        self.run("write a worker", make).await?;
        let rows = self.workers().await?;
        for (worker, incarnation) in outdated(self.now, &rows) {
            self.run("remove a worker", remove_query(self.sql, &worker, incarnation)).await?;
        }
        Ok(())
    }
}

fn decode(row: &PgRow) -> Result<WorkerRow> {
    let name: &str = get(row, 0)?;
    let queues = serde_json::from_str(get(row, 5)?)
        .map_err(|error| corrupt(format_args!("the queues of worker {name}: {error}")))?;
    Ok(WorkerRow {
        worker: WorkerId::new(name)?,
        incarnation: wide(row, 1)?,
        host: get(row, 2)?,
        pid: wide(row, 3)?,
        version: get(row, 4)?,
        queues,
        slots: count(row, 6)?,
        lease: Timestamp::from_micros(get(row, 7)?).since(Timestamp::from_micros(0)),
        started_at: time(row, 8)?,
        busy: count(row, 9)?,
        steady_since: time(row, 10)?,
        seen_at: time(row, 11)?,
    })
}

/// A `u32` that is kept as a `bigint`.
fn wide(row: &PgRow, index: usize) -> Result<u32> {
    Ok(u32::try_from(get::<i64, _>(row, index)?).unwrap_or(0))
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
