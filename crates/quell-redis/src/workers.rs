//! Worker rows (R25): what heartbeats write, and what lapses are judged by.
//!
//! Each shard keeps the rows of the workers that claim from it: whether a shard could be reached
//! follows from the heartbeats that reached it. A heartbeat reads and writes one field. All rows are
//! read only where a worker starts, a lease has lapsed or an operator asks; the core bounds their
//! number. Lapses are judged by rows as they were read: a heartbeat that comes meanwhile is no
//! write conflict.

use quell_core::heartbeat::{Heartbeat, WorkerRow, Workers, outdated};
use quell_core::{Result, WorkerId};

use crate::look::{Looked, Read};
use crate::row::{from_json, to_json};
use crate::shard::Time;
use crate::store::ShardStore;
use crate::tx::{Cell, Tx};

impl ShardStore {
    pub(crate) async fn list_workers(&self, time: Time) -> Result<Workers> {
        let reads = [Read::All(self.shard.keys.workers())];
        let mut looked = self.shard.look("read workers", time, &reads).await?;
        let now = looked.now;
        let mut rows = decode_all(&mut looked)?;
        rows.retain(|row| row.is_kept(now));
        Ok(Workers { now, rows })
    }

    /// Keeps the row of a worker that has sent heartbeats since before there was this shard, unless
    /// the shard knows the worker.
    pub(crate) async fn take_over(&self, row: &WorkerRow) -> Result<()> {
        let (key, field) = (self.shard.keys.workers(), field(&row.worker, row.incarnation));
        let mut command = redis::cmd("HSETNX");
        command.arg(&key).arg(field).arg(to_json(row)?);
        self.shard.link.command("write a worker", &key, &command).await.map(drop)
    }
}

impl Tx<'_> {
    /// All rows, by name and incarnation.
    pub(crate) async fn workers(&mut self) -> Result<Vec<WorkerRow>> {
        let reads = vec![Read::All(self.shard.keys.workers())];
        decode_all(&mut self.look(reads).await?)
    }

    /// Makes the row of a worker, or changes it.
    pub(crate) async fn write_heartbeat(&mut self, beat: &Heartbeat) -> Result<()> {
        let (key, field) = (self.shard.keys.workers(), field(&beat.worker, beat.incarnation));
        self.fetch(vec![Cell::new(key.clone(), field.clone())], Vec::new()).await?;
        let own = self.cell(key.clone(), &field);
        let own: Option<WorkerRow> = own.map(|row| from_json("a worker", row)).transpose()?;
        let row = match own {
            Some(row) => row.again(self.now, beat),
            None => {
                let rows = self.workers().await?;
                for (worker, incarnation) in outdated(self.now, &rows) {
                    self.remove_worker_row(&worker, incarnation);
                }
                WorkerRow::first(self.now, beat)
            }
        };
        self.beside.hash_set(key, &field, to_json(&row)?);
        Ok(())
    }

    /// Removes the row of a worker.
    pub(crate) fn remove_worker_row(&mut self, worker: &WorkerId, incarnation: u32) {
        self.beside.hash_delete(self.shard.keys.workers(), field(worker, incarnation));
    }
}

fn field(worker: &WorkerId, incarnation: u32) -> String {
    format!("{worker} {incarnation}")
}

fn decode_all(looked: &mut Looked) -> Result<Vec<WorkerRow>> {
    let mut rows = Vec::new();
    for (_, row) in looked.pairs()? {
        rows.push(from_json::<WorkerRow>("a worker", &row)?);
    }
    rows.sort_by(|a, b| (&a.worker, a.incarnation).cmp(&(&b.worker, b.incarnation)));
    Ok(rows)
}
