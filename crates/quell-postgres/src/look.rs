//! Looking at a queue without writing: what is due, under which limits, and when to look again.
//!
//! Only lanes of tasks that the worker knows are looked at (R28), and of their partitions only those
//! in which a job waits, each at its head. So the cost grows neither with the backlog nor with
//! partitions that are empty.

use std::collections::HashMap;
use std::sync::Arc;

use quell_core::line::{DueLane, Line, Taken};
use quell_core::{Key, NextDue, QueueName, QueueSettings, Result, TaskName, WorkerId};
use sqlx::postgres::PgRow;

use crate::connections::Connections;
use crate::leases::first_lapse;
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

    /// Whether a claim may be one statement: nothing to count, and one lane at most has anything due,
    /// outside of partitions.
    pub(crate) fn is_straight(&self) -> bool {
        let settings = &self.line.settings;
        let is_due = |lane: &&DueLane| lane.first.is_some_and(|due| due <= self.line.now);
        let mut due = self.line.lanes.iter().filter(is_due);
        let is_plain = due.next().is_none_or(|lane| lane.partition.is_none());
        !settings.limits_concurrency()
            && !settings.limits_rate()
            && is_plain
            && due.next().is_none()
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

/// The head of each partition of the lane `l` in which a job waits, whatever keeps it back: a
/// window that waits for its key is looked at once more.
macro_rules! heads {
    () => {
        "(with recursive head (partition_id, due_at) as (
              (select j.partition_id, j.due_at from quell.job j
                where j.lane_id = l.id and j.state = 0 and j.behind is null
                order by j.partition_id, j.due_at, j.id limit 1)
              union all
              select n.partition_id, n.due_at
                from head p
               cross join lateral (
                     select j.partition_id, j.due_at from quell.job j
                      where j.lane_id = l.id and j.partition_id > p.partition_id and j.state = 0
                        and j.behind is null
                      order by j.partition_id, j.due_at, j.id limit 1) n)
          select due_at from head) h"
    };
}

/// The lanes of the queue `$queue` and the tasks `$tasks`, as `line`: of their partitions those in
/// which a job may start, each at its head. Each lane begins with the partition -1, which has no
/// due time. Of jobs without a partition those before `$due` and `$id` are passed over, which `$trail`
/// brings for each lane. Part of a recursive `with`.
macro_rules! lanes {
    ($queue:literal, $tasks:literal) => {
        crate::look::lanes!($queue, $tasks, "null::bigint", "null::bigint", "")
    };
    ($queue:literal, $tasks:literal, $due:literal, $id:literal, $trail:literal) => {
        concat!(
            "base as materialized (
                 select l.id, l.priority, coalesce(",
            $due,
            ", '-9223372036854775808'::bigint) as from_due, coalesce(",
            $id,
            ", 0) as from_id
                   from quell.queue q
                   join quell.lane l on l.queue_id = q.id
                   join quell.task t on t.id = l.task_id ",
            $trail,
            "     where q.name = ",
            $queue,
            "       and t.name = any(",
            $tasks,
            ")
                    -- R33
                    and coalesce((t.settings::json ->> 'paused')::boolean, false) = false),
             line (id, priority, partition_id, due_at, from_due, from_id) as (
                 select b.id, b.priority, -1, null::bigint, b.from_due, b.from_id from base b
                 union all
                 -- From each partition in which a job may start to the next one of its lane.
                 select p.id, p.priority, h.partition_id, h.due_at,
                        '-9223372036854775808'::bigint, 0::bigint
                   from line p
                  cross join lateral (
                        select j.partition_id, j.due_at from quell.job j
                         where j.lane_id = p.id and j.state = 0 and j.behind is null
                           and (j.partition_id, j.due_at, j.id)
                               >= (p.partition_id + 1, p.from_due, p.from_id)
                           and not ",
            blocked!(),
            "            order by j.partition_id, j.due_at, j.id limit 1) h)"
        )
    };
}
pub(crate) use lanes;

const LOOK: &str = concat!(
    "with recursive clock as materialized (select quell.peek($1, $2) as now), ",
    lanes!("$3", "$4"),
    "
     select c.now,
            exists (select from quell.inbox where refused is null),
            ",
    first_lapse!(),
    ",
            q.settings, coalesce(q.deleted, false), l.id, l.priority, l.partition_id,
            (select n.name from quell.partition n where n.id = l.partition_id),
            l.due_at,
            (select j.due_at from quell.job j
              where j.lane_id = l.id and j.partition_id = l.partition_id and j.state = 0
                and j.behind is null and j.due_at > c.now and not ",
    blocked!(),
    "         order by j.due_at, j.id limit 1)
       from clock c
       left join quell.queue q on q.name = $3
       left join line l on l.partition_id >= 0
      order by l.priority desc, l.id, l.partition_id"
);

pub(crate) fn look_query(
    sql: &Sql,
    asked: Asked,
    queue: &QueueName,
    tasks: &[TaskName],
) -> PgQuery {
    asked.bind(sql.query(LOOK)).bind(queue.as_str().to_owned()).bind(names_of(tasks))
}

/// Names as PostgreSQL takes them.
pub(crate) fn names_of(tasks: &[TaskName]) -> Vec<String> {
    tasks.iter().map(|task| task.as_str().to_owned()).collect()
}

/// Looks, without writing, when something is due in a queue for those who know `tasks`.
pub(crate) async fn look(
    pool: &Connections,
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
    let settings = match get::<Option<&str>, _>(head, 3)? {
        Some(text) => parse_settings(queue.as_str(), text, get(head, 4)?),
        None => QueueSettings::default(),
    };
    let line = Line {
        now: time(head, 0)?,
        lapse: optional_time(head, 2)?,
        settings,
        lanes,
        taken: Taken::default(),
    };
    Ok(Look { inbox_waits: get(head, 1)?, line })
}

/// When something may be to do in each of these queues: the head of its first lane, whatever its
/// limits say. One statement, however many queues.
pub(crate) async fn peek(
    pool: &Connections,
    sql: &Sql,
    asked: Asked,
    queues: &[(QueueName, Arc<[TaskName]>)],
) -> Result<Vec<NextDue>> {
    const PEEK: &str = concat!(
        "with clock as materialized (select quell.peek($1, $2) as now),
         due as (
             select q.name, min(h.due_at) as due_at
               from (select distinct queue, task
                       from unnest($3::text[], $4::text[]) a (queue, task)) a
               join quell.queue q on q.name = a.queue and not q.deleted
                and coalesce((q.settings::json ->> 'paused')::boolean, false) = false
               join quell.task t on t.name = a.task
                and coalesce((t.settings::json ->> 'paused')::boolean, false) = false
               join quell.lane l on l.queue_id = q.id and l.task_id = t.id
              cross join lateral ",
        heads!(),
        "     group by q.name)
         select c.now,
                exists (select from quell.inbox where refused is null),
                ",
        first_lapse!(),
        ",
                d.name, d.due_at
           from clock c left join due d on true"
    );
    let (mut names, mut tasks) = (Vec::new(), Vec::new());
    for (queue, known) in queues {
        names.extend(known.iter().map(|_| queue.as_str().to_owned()));
        tasks.extend(known.iter().map(|task| task.as_str().to_owned()));
    }
    let query = asked.bind(sql.query(PEEK)).bind(names).bind(tasks);
    let rows = read(pool, sql, "look for due jobs", query).await?;
    let head = first(&rows)?;
    let (now, lapse) = (time(head, 0)?, optional_time(head, 2)?);
    // Whoever looks at a queue folds the inbox.
    let all = get::<bool, _>(head, 1)?.then_some(now);
    let mut due = HashMap::new();
    for row in &rows {
        if let (Some(name), Some(at)) = (get::<Option<&str>, _>(row, 3)?, optional_time(row, 4)?) {
            due.insert(name, at);
        }
    }
    let of = |(queue, _): &(QueueName, _)| NextDue {
        now,
        due: all.into_iter().chain(due.get(queue.as_str()).copied()).min(),
        lapse,
    };
    Ok(queues.iter().map(of).collect())
}
