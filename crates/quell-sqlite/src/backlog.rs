//! What waits and runs in the partitions of a queue (R31), counted by the index of jobs that may start.
//!
//! Jobs of a lane are in the order of its partitions there. Where a lane has more jobs than may be looked
//! at, each of the partitions whose first jobs are due first gets the same part of them: so no partition
//! hides another, and no statement reads more than twice its limit.

use std::collections::BTreeMap;

use quell_core::backlog::{Backlog, BacklogOf, Seen, Spread, Waiting};
use quell_core::{Key, Result, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::explain;
use crate::names::{Names, base_of};
use crate::row::{get, optional_time, unsigned};

/// Jobs of one lane, `?1`, at most `?2`, at the time `?3`: by partition, and last whether there are more.
const LANE: &str = "
    with size as materialized (
        select count(*) as jobs from (
            select 1 from quell_job
             where lane_id = ?1 and state = 0 and waits = 0 limit ?2 + 0 + 1)
        union all
        select count(*) from (
            select 1 from quell_job
             where lane_id > ?1 << 32 and lane_id < (?1 + 1) << 32 and state = 0 and waits = 0
             limit ?2 + 0 + 1)),
    part as materialized (
        select name, (lane_id << 32) + number as lane_id from quell_partition
         where lane_id = ?1 and head_at is not null
         order by head_at, head_id limit ?2 + 0),
    share as materialized (
        select case when (select sum(jobs) from size) <= ?2 then ?2 + 0
                    else max(1, ?2 / (1 + (select count(*) from part))) end as jobs),
    plain as (
        select due_at from quell_job
         where lane_id = ?1 and state = 0 and waits = 0
         order by due_at, id limit (select jobs from share))
    select null, count(*), sum(due_at <= ?3), min(due_at), 0 from plain
     union all
    select p.name, count(*), sum(j.due_at <= ?3), min(j.due_at), 0
      from part p
     cross join quell_job j on j.id in (
           select i.id from quell_job i
            where i.lane_id = p.lane_id and i.state = 0 and i.waits = 0
            order by i.due_at, i.id limit (select jobs from share))
     group by p.name
     union all
    select null, 0, 0, null, coalesce(sum(jobs), 0) > ?2 from size";

/// Jobs that wait for their key, of all queues: there are few. At most `?1`, and one more.
const OF_KEYS: &str = "select lane_id, partition, due_at from quell_job
     where waits = 1 and state = 0 limit ?1 + 0 + 1";

/// What runs, of all queues: as much as all workers have slots.
const RUNNING: &str = "select lane_id, partition from quell_job where state = 1";

/// Where jobs wait.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// Those of a lane.
    Lane(i64),
    /// Those that wait for their key.
    Key,
}

/// The partitions of a queue with the most waiting jobs.
pub(crate) async fn read_backlog(
    db: &mut SqliteConnection,
    names: &Names,
    now: Timestamp,
    of: &BacklogOf,
) -> Result<Backlog> {
    let lanes: Vec<i64> = names.lanes_of(&of.queue, None).iter().map(|lane| lane.id).collect();
    let lines = lanes.iter().copied().map(Line::Lane).chain([Line::Key]);
    let mut spread = Spread::new(of, lines, true);
    while let Some((lines, limit)) = spread.next_lines() {
        let mut all = Vec::with_capacity(lines.len());
        for line in lines {
            all.push(match line {
                Line::Lane(lane) => seen_of_lane(db, lane, limit, now).await?,
                Line::Key => seen_of_keys(db, &lanes, limit, now).await?,
            });
        }
        spread.add(all);
    }
    let mut running: BTreeMap<Option<Key>, u64> = BTreeMap::new();
    for row in fetch(db, sqlx::query(RUNNING)).await? {
        if lanes.contains(&base_of(get(&row, 0)?)) {
            let jobs = running.entry(partition(&row, 1)?).or_default();
            *jobs = jobs.saturating_add(1);
        }
    }
    Ok(Backlog::new(now, of, spread.end(), running))
}

async fn seen_of_lane(
    db: &mut SqliteConnection,
    lane: i64,
    limit: usize,
    now: Timestamp,
) -> Result<Seen> {
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = sqlx::query(LANE).bind(lane).bind(most).bind(now.as_micros());
    let mut seen = Seen::default();
    for row in fetch(db, query).await? {
        let jobs = unsigned(get(&row, 1)?);
        seen.is_cut |= get::<bool, _>(&row, 4)?;
        if jobs > 0 {
            let due = unsigned(get(&row, 2)?);
            let (later, first_due) = (jobs.saturating_sub(due), optional_time(&row, 3)?);
            let waiting = seen.waiting.entry(partition(&row, 0)?).or_default();
            waiting.add(Waiting { due, later, first_due });
        }
    }
    Ok(seen)
}

async fn seen_of_keys(
    db: &mut SqliteConnection,
    lanes: &[i64],
    limit: usize,
    now: Timestamp,
) -> Result<Seen> {
    let rows =
        fetch(db, sqlx::query(OF_KEYS).bind(i64::try_from(limit).unwrap_or(i64::MAX))).await?;
    let mut seen = Seen { is_cut: rows.len() > limit, ..Seen::default() };
    for row in rows.iter().take(limit) {
        if lanes.contains(&base_of(get(row, 0)?)) {
            let due_at = Timestamp::from_micros(get(row, 2)?);
            seen.count(partition(row, 1)?.as_ref(), due_at, now);
        }
    }
    Ok(seen)
}

fn partition(row: &SqliteRow, index: usize) -> Result<Option<Key>> {
    get::<Option<&str>, _>(row, index)?.map(Key::new).transpose()
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

async fn fetch(db: &mut SqliteConnection, query: Query<'_>) -> Result<Vec<SqliteRow>> {
    query.fetch_all(db).await.map_err(|e| explain("read what waits in a queue", e))
}
