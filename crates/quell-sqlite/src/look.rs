//! Looking at a queue without writing: what is due, under which limits, and when to look again.
//!
//! Only lanes of tasks that the worker knows are looked at (R28), and of their partitions only those
//! in which a job may start, each at its head. So the cost grows neither with the backlog nor with
//! partitions that are empty.

use quell_core::limit::PartitionUsed;
use quell_core::{Key, NextDue, QueueName, QueueSettings, Result, TaskName, Timestamp, WorkerId};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::limit::Taken;
use crate::row::{get, optional_time, time};
use crate::tx::{Trip, opening, parse_settings};

/// What a look at a queue showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) now: Timestamp,
    pub(crate) inbox_waits: bool,
    pub(crate) lapse: Option<Timestamp>,
    pub(crate) settings: QueueSettings,
    /// Of the tasks that were asked for, by priority.
    pub(crate) lanes: Vec<DueLane>,
    pub(crate) taken: Taken,
}

/// A lane and when its jobs are due.
#[derive(Debug)]
pub(crate) struct DueLane {
    pub(crate) id: i64,
    pub(crate) priority: i64,
    pub(crate) partition: Option<Key>,
    /// The first of all.
    pub(crate) first: Option<Timestamp>,
    /// The first that is not due yet.
    pub(crate) later: Option<Timestamp>,
}

impl Look {
    /// Whether a write could start something now.
    pub(crate) fn is_due(&self) -> bool {
        let starts = || self.next().due.is_some_and(|due| due <= self.now);
        self.inbox_waits || (self.settings.room(&self.taken.used) > 0 && starts())
    }

    /// R31: a job waits for its partition's limits, and for the queue's rate.
    pub(crate) fn next(&self) -> NextDue {
        let starts = self.lanes.iter().filter_map(|lane| {
            self.settings.partition_start(lane.first?, &self.partition_used(lane))
        });
        let due = starts.min().map(|due| due.max(self.taken.free_at));
        NextDue { now: self.now, due, lapse: self.lapse }
    }

    /// What is taken of the limits of a lane's partition; nothing where it has none.
    pub(crate) fn partition_used(&self, lane: &DueLane) -> PartitionUsed {
        let used = lane.partition.as_ref().and_then(|name| self.taken.partitions.get(name));
        used.copied().unwrap_or_default()
    }

    /// The partitions of its lanes.
    pub(crate) fn partitions(&self) -> Vec<&Key> {
        let mut names: Vec<&Key> =
            self.lanes.iter().filter_map(|lane| lane.partition.as_ref()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// What [`look`] asks: `?1` is the time, `?2` the queue, `?3` the tasks.
macro_rules! look {
    () => {
        "with recursive
         base (id, priority) as (
             select l.id, l.priority
               from quell_queue q
               join quell_lane l on l.queue_id = q.id
               join quell_task t on t.id = l.task_id
              where q.name = ?2
                and t.name in (select value from json_each(?3))
                -- R33
                and coalesce(t.settings ->> 'paused', 0) = 0),
         lane (id, base, priority) as (
             select id, id, priority from base
             union all
             -- From each partition in which a job may start to the next one of its lane.
             select (select j.lane_id from quell_job j
                      where j.state = 0 and j.waits = 0
                        and j.lane_id > max(lane.id, lane.base << 32)
                        and j.lane_id < (lane.base + 1) << 32
                      order by j.lane_id limit 1),
                    base, priority
               from lane where id is not null)
         select max(?1, m.clock),
                exists (select 1 from quell_inbox where refused is null),
                (select min(lease_until) from quell_job where state = 1),
                q.settings, coalesce(q.deleted, 0),
                l.id, l.priority,
                (select p.name from quell_partition p
                  where p.lane_id = l.id >> 32 and p.number = l.id & 4294967295),
                (select min(due_at) from quell_job
                  where lane_id = l.id and state = 0 and waits = 0),
                (select min(due_at) from quell_job
                  where lane_id = l.id and state = 0 and waits = 0
                    and due_at > max(?1, m.clock))
           from quell_meta m
           left join quell_queue q on q.name = ?2
           left join lane l on l.id is not null
          order by l.priority desc"
    };
}

/// Looks, without writing, when something is due in a queue for those who know `tasks`.
pub(crate) async fn look(
    db: &mut SqliteConnection,
    now: Timestamp,
    queue: &QueueName,
    tasks: &[TaskName],
    worker: Option<&WorkerId>,
) -> Result<Look> {
    let query = sqlx::query(look!()).bind(now.as_micros());
    let query = query.bind(queue.as_str().to_owned()).bind(json(&tasks)?);
    let rows = query.fetch_all(&mut *db).await.map_err(|e| explain("look for due jobs", e))?;
    decode_look(db, &rows, queue, worker).await
}

/// Begins a transaction with a look.
pub(crate) fn open_with_look(
    now: Timestamp,
    queue: &QueueName,
    tasks: &[TaskName],
) -> Result<Trip> {
    let query = sqlx::query(opening!(look!())).bind(now.as_micros());
    Ok(query.bind(queue.as_str().to_owned()).bind(json(&tasks)?))
}

/// What a look brought, with what is taken of the limits, where there are any.
pub(crate) async fn decode_look(
    db: &mut SqliteConnection,
    rows: &[SqliteRow],
    queue: &QueueName,
    worker: Option<&WorkerId>,
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
    let settings = get::<Option<&str>, _>(head, 3)?;
    let settings = settings.map(|text| parse_settings(queue.as_str(), text, get(head, 4)?));
    let mut look = Look {
        now: time(head, 0)?,
        inbox_waits: get(head, 1)?,
        lapse: optional_time(head, 2)?,
        settings: settings.transpose()?.unwrap_or_default(),
        lanes,
        taken: Taken::default(),
    };
    look.taken = Taken::load(db, &look, queue, worker).await?;
    Ok(look)
}
