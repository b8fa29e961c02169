//! Looking at a queue without writing: what is due, under which limits, and when to look again.
//!
//! Only lanes of tasks that the worker knows are looked at (R28), and of their partitions only those
//! in which a job may start, each at its head. So the cost grows neither with the backlog nor with
//! partitions that are empty.

use quell_core::line::{DueLane, Line, Taken};
use quell_core::{Key, QueueName, QueueSettings, Result, TaskName, Timestamp, WorkerId};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::limit::load_taken;
use crate::row::{get, optional_time, time};
use crate::tx::{Trip, opening, parse_settings};

/// What a look at a queue showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) inbox_waits: bool,
    pub(crate) line: Line,
}

impl Look {
    /// Whether a write could start something now.
    pub(crate) fn is_due(&self) -> bool {
        self.inbox_waits || self.line.is_due()
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
    let settings = match get::<Option<&str>, _>(head, 3)? {
        Some(text) => parse_settings(queue.as_str(), text, get(head, 4)?),
        None => QueueSettings::default(),
    };
    let mut line = Line {
        now: time(head, 0)?,
        lapse: optional_time(head, 2)?,
        settings,
        lanes,
        taken: Taken::default(),
    };
    line.taken = load_taken(db, &line, queue, worker).await?;
    Ok(Look { inbox_waits: get(head, 1)?, line })
}
