//! Looking at a queue without writing: what is due, under which limits, and when to look again.
//!
//! Only lanes of tasks that the worker knows are looked at (R28), and of their partitions only those
//! that come first in the index of first jobs. So the cost grows neither with the backlog nor with
//! the number of partitions.

use std::cmp::Reverse;

use quell_core::line::{DueLane, Line, Taken};
use quell_core::{Claim, Key, QueueName, QueueSettings, Result, TaskName, Timestamp, WorkerId};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::heads::{Stale, read_heads};
use super::limit::load_taken;
use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::names::parse_settings;
use crate::row::{get, optional_time, time};
use crate::tx::{Trip, opening};

/// What a look at a queue showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) inbox_waits: bool,
    pub(crate) line: Line,
    /// Partitions that the next claim has to hold back in the index.
    pub(crate) stale: Stale,
}

impl Look {
    /// Whether a write could start something now.
    pub(crate) fn is_due(&self) -> bool {
        self.inbox_waits || !self.stale.is_empty() || self.line.is_due()
    }
}

// In all statements it is `limit ?1 + 0`: SQLite prepares a statement with `limit ?1` again each time
// it is bound, as the plan may depend on the value, and that cost a claim 0.4 ms.

/// What [`look`] reads: `?1` is the time, `?2` the queue, `?3` the tasks, `?4` how many partitions in
/// which a job is due are read of each lane.
macro_rules! look {
    () => {
        "with clock (now) as (select max(?1, clock) from quell_meta),
         base (id, priority, limits_partitions) as (
             select l.id, l.priority,
                    iif(json_valid(q.settings),
                        coalesce(q.settings ->> 'partition_concurrency',
                                 q.settings ->> 'partition_rate'), null) is not null
               from quell_queue q
               join quell_lane l on l.queue_id = q.id
               join quell_task t on t.id = l.task_id
              where q.name = ?2
                and t.name in (select value from json_each(?3))
                -- R33
                and coalesce(t.settings ->> 'paused', 0) = 0),
         lane (id, priority, partition, first) as (
             select id, priority, null,
                    (select min(due_at) from quell_job
                      where lane_id = base.id and state = 0 and waits = 0)
               from base
             union all
             -- R30: the partitions whose first jobs are the first that are due.
             select (b.id << 32) + p.number, b.priority, p.name, p.head_at
               from clock cross join base b cross join quell_partition p
                 on p.lane_id = b.id and p.name in (
                    select name from quell_partition
                     where lane_id = b.id and head_at <= now
                     order by head_at, head_id limit ?4 + 0)
              where not b.limits_partitions
             union all
             -- The first that is due later.
             select (b.id << 32) + p.number, b.priority, p.name, p.head_at
               from clock cross join base b cross join quell_partition p
                 on p.lane_id = b.id and p.name = (
                    select name from quell_partition
                     where lane_id = b.id and head_at > now order by head_at limit 1)
              where not b.limits_partitions)
         select now,
                exists (select 1 from quell_inbox where refused is null),
                (select min(lease_until) from quell_job where state = 1),
                q.settings, coalesce(q.deleted, 0),
                l.id, l.priority, l.partition, l.first,
                (select min(due_at) from quell_job
                  where lane_id = l.id and state = 0 and waits = 0 and due_at > now)
           from clock
           left join quell_queue q on q.name = ?2
           left join lane l
          order by l.priority desc"
    };
}

/// What a look is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) queue: &'a QueueName,
    pub(crate) tasks: &'a [TaskName],
    pub(crate) worker: Option<&'a WorkerId>,
    /// How many jobs the worker wants to start.
    pub(crate) limit: usize,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(claim: &'a Claim) -> Self {
        let Claim { queue, tasks, worker, limit, .. } = claim;
        Asked { queue, tasks, worker: Some(worker), limit: *limit }
    }

    /// How many partitions in which a job is due are read of each lane: one more than may be
    /// touched, so that the next one is known.
    fn heads(&self) -> usize {
        self.limit.saturating_add(1)
    }

    fn bind(&self, query: Trip, now: Timestamp) -> Result<Trip> {
        let query = query.bind(now.as_micros()).bind(self.queue.as_str().to_owned());
        let heads = i64::try_from(self.heads()).unwrap_or(i64::MAX);
        Ok(query.bind(json(&self.tasks)?).bind(heads))
    }
}

/// Looks, without writing, when something is due in a queue.
pub(crate) async fn look(
    db: &mut SqliteConnection,
    now: Timestamp,
    asked: &Asked<'_>,
) -> Result<Look> {
    let query = asked.bind(sqlx::query(look!()), now)?;
    let rows = query.fetch_all(&mut *db).await.map_err(|e| explain("look for due jobs", e))?;
    let settings = settings_of(&rows, asked)?;
    decode_look(db, &rows, settings, asked).await
}

/// Begins a transaction with a look.
pub(crate) fn open_with_look(now: Timestamp, asked: &Asked<'_>) -> Result<Trip> {
    asked.bind(sqlx::query(opening!(look!())), now)
}

/// What a look brought, with what is taken of the limits in these settings, where there are any.
pub(crate) async fn decode_look(
    db: &mut SqliteConnection,
    rows: &[SqliteRow],
    settings: QueueSettings,
    asked: &Asked<'_>,
) -> Result<Look> {
    let head = rows.first().ok_or_else(|| corrupt("quell_meta"))?;
    let mut lanes = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(id) = get::<Option<i64>, _>(row, 5)? {
            let partition = get::<Option<&str>, _>(row, 7)?.map(Key::new).transpose()?;
            let (first, later) = (optional_time(row, 8)?, optional_time(row, 9)?);
            lanes.push(DueLane { id, priority: get(row, 6)?, partition, first, later });
        }
    }
    let mut line = Line {
        now: time(head, 0)?,
        expiry: optional_time(head, 2)?,
        settings,
        lanes,
        taken: Taken::default(),
    };
    line.taken = load_taken(db, &line, asked.queue, asked.worker).await?;
    let mut stale = Stale::new();
    if limits_partitions(&line.settings) {
        stale = read_heads(db, &mut line, asked.queue, asked.heads()).await?;
        // Higher priority first.
        line.lanes.sort_by_key(|lane| Reverse(lane.priority));
    }
    Ok(Look { inbox_waits: get(head, 1)?, line, stale })
}

/// The settings of the queue, by what a look brought.
pub(crate) fn settings_of(rows: &[SqliteRow], asked: &Asked<'_>) -> Result<QueueSettings> {
    let head = rows.first().ok_or_else(|| corrupt("quell_meta"))?;
    Ok(match get::<Option<&str>, _>(head, 3)? {
        // R32: a queue that was deleted hands out nothing.
        Some(_) if get(head, 4)? => QueueSettings { paused: true, ..QueueSettings::default() },
        Some(text) => parse_settings(asked.queue.as_str(), text),
        None => QueueSettings::default(),
    })
}

/// Whether partitions have limits, so that their first jobs are read by themselves.
pub(crate) fn limits_partitions(settings: &QueueSettings) -> bool {
    settings.partition_concurrency.is_some() || settings.partition_rate.is_some()
}
