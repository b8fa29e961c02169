//! Looking at a queue without writing: what is due, under which limits, and when to look again.
//!
//! Only lanes of tasks that the worker knows are looked at (R28), and of their partitions only those
//! in which a job waits, each at its head. So the cost grows neither with the backlog nor with
//! partitions that are empty.

use quell_core::line::{DueLane, Line, Taken};
use quell_core::{Key, QueueName, Result, TaskName, WorkerId};
use sqlx::PgPool;
use sqlx::postgres::PgRow;

use crate::limit::Counting;
use crate::read::parse_settings;
use crate::row::{blocked, get, optional_time, time};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, first, read};

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

    /// Whether a claim is one statement: nothing to fold, nothing to count, one lane without
    /// partitions. Names it.
    pub(crate) fn only_lane(&self) -> Option<i32> {
        let settings = &self.line.settings;
        if self.inbox_waits || settings.limits_concurrency() || settings.limits_rate() {
            return None;
        }
        let now = self.line.now;
        let is_due = |lane: &&DueLane| lane.first.is_some_and(|due| due <= now);
        let mut due = self.line.lanes.iter().filter(is_due);
        let lane = due.next().filter(|lane| lane.partition.is_none())?;
        due.next().is_none().then(|| base_of(lane.id))
    }
}

/// The number of a lane and a partition together.
pub(crate) fn joint(lane: i32, partition: i32) -> i64 {
    (i64::from(lane) << 32) | i64::from(partition)
}

/// The lane in a [`joint`] number.
pub(crate) fn base_of(joint: i64) -> i32 {
    i32::try_from(joint >> 32).unwrap_or(0)
}

/// The partition in a [`joint`] number.
pub(crate) fn partition_of(joint: i64) -> i32 {
    i32::try_from(joint & 0xffff_ffff).unwrap_or(0)
}

const LOOK: &str = concat!(
    "with recursive clock as materialized (select quell.peek($1, $2) as now),
     base as materialized (
         select l.id, l.priority
           from quell.queue q
           join quell.lane l on l.queue_id = q.id
           join quell.task t on t.id = l.task_id
          where q.name = $3 and t.name = any($4)
            -- R33
            and coalesce((t.settings::json ->> 'paused')::boolean, false) = false),
     line (id, priority, partition_id, due_at) as (
         select b.id, b.priority, h.partition_id, h.due_at
           from base b
          cross join lateral (
                select j.partition_id, j.due_at from quell.job j
                 where j.lane_id = b.id and j.state = 0 and not ",
    blocked!(),
    "            order by j.partition_id, j.due_at, j.id limit 1) h
         union all
         -- From each partition in which a job may start to the next one of its lane.
         select p.id, p.priority, h.partition_id, h.due_at
           from line p
          cross join lateral (
                select j.partition_id, j.due_at from quell.job j
                 where j.lane_id = p.id and j.partition_id > p.partition_id and j.state = 0
                   and not ",
    blocked!(),
    "            order by j.partition_id, j.due_at, j.id limit 1) h)
     select c.now,
            exists (select from quell.inbox where refused is null),
            (select lease_until from quell.job where state = 1 order by lease_until limit 1),
            q.settings, coalesce(q.deleted, false), l.id, l.priority, l.partition_id, n.name,
            l.due_at,
            (select j.due_at from quell.job j
              where j.lane_id = l.id and j.partition_id = l.partition_id and j.state = 0
                and j.due_at > c.now and not ",
    blocked!(),
    "         order by j.due_at, j.id limit 1)
       from clock c
       left join quell.queue q on q.name = $3
       left join line l on true
       left join quell.partition n on n.id = l.partition_id
      order by l.priority desc, l.id, l.partition_id"
);

pub(crate) fn look_query(
    sql: &Sql,
    asked: Asked,
    queue: &QueueName,
    tasks: &[TaskName],
) -> PgQuery {
    let tasks: Vec<String> = tasks.iter().map(|task| task.as_str().to_owned()).collect();
    asked.bind(sql.query(LOOK)).bind(queue.as_str().to_owned()).bind(tasks)
}

/// Looks, without writing, when something is due in a queue for those who know `tasks`.
pub(crate) async fn look(
    pool: &PgPool,
    sql: &Sql,
    asked: Asked,
    (queue, tasks, worker): (&QueueName, &[TaskName], Option<&WorkerId>),
) -> Result<Look> {
    let query = look_query(sql, asked, queue, tasks);
    let mut look = decode_look(queue, &read(pool, sql, "look for due jobs", query).await?)?;
    let mut counting = Counting::new(&look.line, queue, worker);
    while let Some(query) = counting.next(sql) {
        counting.take(&read(pool, sql, "count what is taken of limits", query).await?)?;
    }
    look.line.taken = counting.taken;
    Ok(look)
}

/// What a look brought, without what is taken of the limits.
pub(crate) fn decode_look(queue: &QueueName, rows: &[PgRow]) -> Result<Look> {
    let head = first(rows)?;
    let mut lanes = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(id) = get::<Option<i32>, _>(row, 5)? {
            let partition = get::<Option<&str>, _>(row, 8)?.map(Key::new).transpose()?;
            let (first, later) = (optional_time(row, 9)?, optional_time(row, 10)?);
            let priority = i64::from(get::<i16, _>(row, 6)?);
            lanes.push(DueLane { id: joint(id, get(row, 7)?), priority, partition, first, later });
        }
    }
    let settings = get::<Option<&str>, _>(head, 3)?;
    let settings = settings.map(|text| parse_settings(queue.as_str(), text, get(head, 4)?));
    let line = Line {
        now: time(head, 0)?,
        lapse: optional_time(head, 2)?,
        settings: settings.transpose()?.unwrap_or_default(),
        lanes,
        taken: Taken::default(),
    };
    Ok(Look { inbox_waits: get(head, 1)?, line })
}
