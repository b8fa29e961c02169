//! Partitions by their first jobs, where a queue limits them (R30, R31).
//!
//! The index of first jobs is read in the order of their due times, and partitions that are full are
//! skipped in it. So the cost grows neither with what waits in a full partition nor with partitions
//! in which nothing is due.

use std::collections::BTreeSet;

use quell_core::limit::PartitionUsed;
use quell_core::line::{DueLane, Line};
use quell_core::{Key, QueueName, Result, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::limit::count_partitions;
use crate::error::explain;
use crate::keys::json;
use crate::row::{get, optional_time};
use crate::tx::Tx;

/// Partitions whose stored `free_at` is too early, each with the right one.
pub(crate) type Stale = Vec<(Key, Timestamp)>;

/// How many first jobs are read at least where a rate may hold back partitions that the index does
/// not know to be full.
const PAGE: usize = 64;

/// `?1` is the lanes without partitions and their priorities, `?2` the time, `?3` how many due ones
/// are read of each, `?4` the partitions that are full.
const HEADS: &str = "with base (id, priority) as (
             select value ->> 0, value ->> 1 from json_each(?1)),
         head (lane_id, priority, name) as (
             select b.id, b.priority, p.name
               from base b cross join quell_partition p
                 on p.lane_id = b.id and p.name in (
                    select name from quell_partition
                     where lane_id = b.id and head_at <= ?2 and (free_at is null or free_at <= ?2)
                       and name not in (select value from json_each(?4))
                     order by head_at, head_id limit ?3 + 0)
             union all
             -- The first that is due later.
             select b.id, b.priority,
                    (select name from quell_partition
                      where lane_id = b.id and head_at > ?2
                        and (free_at is null or free_at <= head_at)
                        and name not in (select value from json_each(?4))
                      order by head_at limit 1)
               from base b
             union all
             -- The first that its rate holds back.
             select b.id, b.priority,
                    (select name from quell_partition
                      where lane_id = b.id and free_at > ?2 and free_at > head_at
                        and name not in (select value from json_each(?4))
                      order by free_at limit 1)
               from base b)
         select (h.lane_id << 32) + p.number, h.priority, p.name, p.head_at,
                (select min(due_at) from quell_job
                  where lane_id = (h.lane_id << 32) + p.number and state = 0 and waits = 0
                    and due_at > ?2),
                p.free_at
           from head h cross join quell_partition p on p.lane_id = h.lane_id and p.name = h.name";

/// Reads into the line, of each of these lanes without a partition, the first `due` partitions in
/// which a job may start now, the first one in which one may start later, and the first one that its
/// rate holds back. Returns the partitions that the index showed as free although they are full.
pub(crate) async fn read_heads(
    db: &mut SqliteConnection,
    line: &mut Line,
    queue: &QueueName,
    due: usize,
) -> Result<Stale> {
    let mut stale = Stale::new();
    if line.settings.partition_concurrency == Some(0) {
        return Ok(stale);
    }
    let bases: Vec<(i64, i64)> = line.lanes.iter().map(|lane| (lane.id, lane.priority)).collect();
    let bases = json(&bases)?;
    let has_rate = line.settings.partition_rate.is_some();
    let due = i64::try_from(if has_rate { due.max(PAGE) } else { due }).unwrap_or(i64::MAX);
    let mut skipped = full(line);
    loop {
        let query = sqlx::query(HEADS).bind(bases.clone()).bind(line.now.as_micros());
        let rows = query.bind(due).bind(json(&skipped)?).fetch_all(&mut *db).await;
        let rows = rows.map_err(|e| explain("read the first jobs of partitions", e))?;
        let heads = rows.iter().map(decode).collect::<Result<Vec<_>>>()?;
        if has_rate {
            let names: BTreeSet<&str> = heads.iter().map(Head::name).collect();
            count_partitions(db, line, queue, &names.into_iter().collect::<Vec<_>>()).await?;
        }
        let found: Stale = heads.iter().filter_map(|head| head.stale(line)).collect();
        line.lanes.extend(heads.into_iter().map(|head| head.lane));
        if found.is_empty() {
            return Ok(stale);
        }
        skipped.extend(found.iter().map(|(name, _)| name.as_str().to_owned()));
        stale.extend(found);
    }
}

/// A partition's lane, and when its rate lets the next job start, as far as the index shows.
struct Head {
    lane: DueLane,
    free_at: Timestamp,
}

impl Head {
    fn name(&self) -> &str {
        self.lane.partition.as_ref().map_or("", Key::as_str)
    }

    /// The partition and its time, where its rate holds it back for longer than the index shows.
    fn stale(&self, line: &Line) -> Option<(Key, Timestamp)> {
        let (used, first) = (line.partition_used(&self.lane), self.lane.first?);
        let shown = first.max(self.free_at).max(line.now);
        let name = self.lane.partition.clone().filter(|_| used.free_at > shown);
        name.map(|name| (name, used.free_at))
    }
}

/// The partitions all of whose slots are taken.
fn full(line: &Line) -> Vec<String> {
    let is_full = |running| {
        let used = PartitionUsed { running, ..PartitionUsed::default() };
        line.settings.partition_start(line.now, &used).is_none()
    };
    let taken = line.taken.partitions.iter().filter(|(_, used)| is_full(used.running));
    taken.map(|(name, _)| name.as_str().to_owned()).collect()
}

fn decode(row: &SqliteRow) -> Result<Head> {
    let lane = DueLane {
        id: get(row, 0)?,
        priority: get(row, 1)?,
        partition: get::<Option<&str>, _>(row, 2)?.map(Key::new).transpose()?,
        first: optional_time(row, 3)?,
        later: optional_time(row, 4)?,
    };
    Ok(Head { lane, free_at: optional_time(row, 5)?.unwrap_or(Timestamp::MIN) })
}

impl Tx {
    /// Stores until when rates hold partitions back, so that looks skip them in the index.
    pub(crate) async fn hold_back(&mut self, queue: &QueueName, until: &Stale) -> Result<()> {
        const HOLD_BACK: &str = "update quell_partition
                set free_at = k.value ->> 1
               from json_each(?2) k cross join quell_lane l
              where l.queue_id = ?1
                and quell_partition.lane_id = l.id and quell_partition.name = k.value ->> 0";
        if until.is_empty() {
            return Ok(());
        }
        let rows: Vec<_> = until.iter().map(|(name, at)| (name.as_str(), at.as_micros())).collect();
        let query = sqlx::query(HOLD_BACK).bind(self.names().queue_id(queue)).bind(json(&rows)?);
        let held = query.execute(&mut self.writer.db).await;
        held.map(drop).map_err(|e| explain("hold back partitions", e))
    }

    /// Forgets until when the rate of a queue's partitions holds them back: it has changed.
    pub(crate) async fn forget_held_back(&mut self, queue_id: i64) -> Result<()> {
        const FORGET: &str = "update quell_partition set free_at = null
              where free_at is not null
                and lane_id in (select id from quell_lane where queue_id = ?1)";
        let forgot = sqlx::query(FORGET).bind(queue_id).execute(&mut self.writer.db).await;
        forgot.map(drop).map_err(|e| explain("free partitions", e))
    }
}
