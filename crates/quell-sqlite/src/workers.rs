//! Worker rows (R25): what heartbeats write, and what lapses are judged by.
//!
//! A heartbeat reads and writes one row. All rows are read only where a worker starts, a lease has
//! lapsed or an operator asks; the core bounds their number.

use std::time::Duration;

use quell_core::heartbeat::{Heartbeat, WorkerRow, Workers, outdated};
use quell_core::{Result, Timestamp, WorkerId};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::row::{get, time};
use crate::tx::Tx;

macro_rules! worker_columns {
    () => {
        "worker, incarnation, host, pid, version, queues, slots, lease, started_at, busy, \
         steady_since, seen_at"
    };
}

/// All rows, by name and incarnation.
pub(crate) async fn read_workers(db: &mut SqliteConnection) -> Result<Vec<WorkerRow>> {
    const ALL: &str =
        concat!("select ", worker_columns!(), " from quell_worker order by worker, incarnation");
    let rows = sqlx::query(ALL).fetch_all(db).await.map_err(|e| explain("read workers", e))?;
    rows.iter().map(decode).collect()
}

/// The rows that operators see at `now`.
pub(crate) async fn list_workers(db: &mut SqliteConnection, now: Timestamp) -> Result<Workers> {
    let clock = sqlx::query("select max(?1, clock) from quell_meta").bind(now.as_micros());
    let clock = clock.fetch_one(&mut *db).await.map_err(|e| explain("read the clock", e))?;
    let now = time(&clock, 0)?;
    let mut rows = read_workers(db).await?;
    rows.retain(|row| row.is_kept(now));
    Ok(Workers { now, rows })
}

impl Tx<'_> {
    /// Makes the row of a worker, or changes it.
    pub(crate) async fn heartbeat(&mut self, beat: &Heartbeat) -> Result<()> {
        const OWN: &str = concat!(
            "select ",
            worker_columns!(),
            " from quell_worker where worker = ?1 and incarnation = ?2"
        );
        let own = sqlx::query(OWN).bind(beat.worker.as_str().to_owned()).bind(beat.incarnation);
        let own = own.fetch_optional(&mut *self.db).await;
        match own.map_err(|e| explain("read a worker", e))? {
            Some(row) => self.change_worker(&decode(&row)?.again(self.now, beat)).await,
            None => {
                self.make_worker(&WorkerRow::first(self.now, beat)).await?;
                let rows = read_workers(&mut self.db).await?;
                for (worker, incarnation) in outdated(self.now, &rows) {
                    self.remove_worker(&worker, incarnation).await?;
                }
                Ok(())
            }
        }
    }

    async fn change_worker(&mut self, row: &WorkerRow) -> Result<()> {
        const CHANGE: &str = "update quell_worker
                set busy = ?3, steady_since = ?4, seen_at = ?5
              where worker = ?1 and incarnation = ?2";
        let change = sqlx::query(CHANGE)
            .bind(row.worker.as_str().to_owned())
            .bind(row.incarnation)
            .bind(row.busy)
            .bind(row.steady_since.as_micros())
            .bind(row.seen_at.as_micros());
        let changed = change.execute(&mut *self.db).await;
        changed.map(drop).map_err(|e| explain("write a heartbeat", e))
    }

    async fn make_worker(&mut self, row: &WorkerRow) -> Result<()> {
        const MAKE: &str = concat!(
            "insert into quell_worker (",
            worker_columns!(),
            ") values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
        );
        let made = sqlx::query(MAKE)
            .bind(row.worker.as_str().to_owned())
            .bind(row.incarnation)
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
            .execute(&mut *self.db)
            .await;
        made.map(drop).map_err(|e| explain("write a worker", e))
    }

    /// Removes the row of a worker.
    pub(crate) async fn remove_worker(
        &mut self,
        worker: &WorkerId,
        incarnation: u32,
    ) -> Result<()> {
        const REMOVE: &str = "delete from quell_worker where worker = ?1 and incarnation = ?2";
        let remove = sqlx::query(REMOVE).bind(worker.as_str().to_owned()).bind(incarnation);
        let removed = remove.execute(&mut *self.db).await;
        removed.map(drop).map_err(|e| explain("remove a worker", e))
    }
}

fn decode(row: &SqliteRow) -> Result<WorkerRow> {
    let name: &str = get(row, 0)?;
    let queues = serde_json::from_str(get(row, 5)?)
        .map_err(|error| corrupt(format_args!("the queues of worker {name}: {error}")))?;
    let lease: i64 = get(row, 7)?;
    Ok(WorkerRow {
        worker: WorkerId::new(name)?,
        incarnation: get(row, 1)?,
        host: get(row, 2)?,
        pid: get(row, 3)?,
        version: get(row, 4)?,
        queues,
        slots: get(row, 6)?,
        lease: Duration::from_micros(u64::try_from(lease).unwrap_or(0)),
        started_at: time(row, 8)?,
        busy: get(row, 9)?,
        steady_since: time(row, 10)?,
        seen_at: time(row, 11)?,
    })
}
