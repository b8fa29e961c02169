//! Looking at a queue without writing: what is due, under which limits, and when to look again.
//!
//! Only lanes of tasks that the worker knows are looked at (R28), each at its first jobs. Of a queue
//! that limits its partitions, the heads of these are read in their order, and no more than needed. So
//! the cost grows neither with the backlog nor with the partitions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use quell_core::line::{DueLane, Line, Taken};
use quell_core::{NextDue, QueueName, QueueSettings, Result, TaskName, WorkerId};
use sqlx::postgres::PgRow;

use crate::connections::Connections;
use crate::hot::heads::{Heads, Stale};
use crate::hot::limit::{count_running, count_starts_of_partitions, count_starts_of_queue};
use crate::hot::trail::{At, Part, Places, Strand};
use crate::leases::first_expiry;
use crate::read::parse_settings;
use crate::row::{blocked, get, optional_time, time};
use crate::sql::{PgQuery, Sql};
use crate::turns::read_turns;
use crate::tx::{Asked, Tx, first, read};

/// What a look at a queue showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) inbox_waits: bool,
    pub(crate) line: Line,
    /// The lanes with their priorities, also those in which nothing waits.
    pub(crate) lanes: BTreeMap<i32, i64>,
    /// The first job of each strand that may start, and the first head.
    pub(crate) firsts: BTreeMap<Strand, At>,
    /// From where the jobs of each of [`Line::lanes`] are read.
    pub(crate) from: BTreeMap<i64, At>,
    /// Heads that are no longer where the first job of their partition is.
    pub(crate) stale: BTreeSet<Stale>,
}

impl Look {
    /// Whether a write could start something now.
    pub(crate) fn is_due(&self) -> bool {
        self.inbox_waits || self.line.is_due()
    }

    /// Whether a claim may be one statement: nothing to count, and one strand at most has anything due.
    pub(crate) fn is_straight(&self) -> bool {
        let settings = &self.line.settings;
        let is_due = |lane: &&DueLane| lane.first.is_some_and(|due| due <= self.line.now);
        let due = self.line.lanes.iter().filter(is_due).count();
        !settings.limits_concurrency() && !settings.limits_rate() && due <= 1
    }
}

/// Stands in a [`joint`] number for the partitions of a lane together.
pub(crate) const ANY_PARTITION: i32 = i32::MAX;

/// The number of a lane and a partition together; 0 for none, or [`ANY_PARTITION`].
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

/// Two parts of a `with`. `base` has the lanes of the queue `$queue` and the tasks `$tasks` with their
/// parts: jobs without a partition, and jobs with one, unless the queue limits its partitions. `line`
/// has the first job of each that may start, and skips all before `$places`, which are the values of
/// [`Places::bind`].
macro_rules! lanes {
    ($queue:literal, $tasks:literal, $places:literal) => {
        concat!(
            "base as materialized (
                 select l.id, l.priority, s.part,
                        coalesce(trail.due_at, '-9223372036854775808'::bigint) as from_due,
                        coalesce(trail.id, 0) as from_id
                   from quell.queue q
                   join quell.lane l on l.queue_id = q.id
                   join quell.task t on t.id = l.task_id
                  cross join (values (0), (1)) s (part)
                   left join unnest(",
            $places,
            ") trail (lane, part, due_at, id) on trail.lane = l.id and trail.part = s.part
                  where q.name = ",
            $queue,
            "       and t.name = any(",
            $tasks,
            ")
                    -- R33
                    and coalesce((t.settings::json ->> 'paused')::boolean, false) = false
                    and (s.part = 0 or q.settings = '{}'
                         or coalesce(q.settings::json ->> 'partition_concurrency',
                                     q.settings::json ->> 'partition_rate') is null)),
             line as materialized (
                 select b.id, b.priority, b.part, h.due_at, h.id as job_id
                   from base b
                  cross join lateral (
                        select j.due_at, j.id from quell.job j
                         where j.lane_id = b.id and least(j.partition_id, 1) = b.part
                           and j.state = 0 and j.behind is null
                           and (j.due_at, j.id) >= (b.from_due, b.from_id) and not ",
            blocked!(),
            "            order by j.due_at, j.id limit 1) h)"
        )
    };
}
pub(crate) use lanes;

const LOOK: &str = concat!(
    "with clock as materialized (select quell.peek($1, $2) as now), ",
    lanes!("$3", "$4", "$5::int[], $6::int[], $7::bigint[], $8::bigint[]"),
    "
     select c.now,
            exists (select from quell.inbox where refused is null),
            ",
    first_expiry!(),
    ",
            q.settings, coalesce(q.deleted, false), b.id, b.priority, b.part, l.due_at, l.job_id
       from clock c
       left join quell.queue q on q.name = $3
       left join base b on true
       left join line l on l.id = b.id and l.part = b.part
      order by b.priority desc, b.id, b.part"
);

/// Who answers the statements of a look.
pub(crate) trait Ask {
    /// The rows of a statement; `what` is for its error.
    async fn ask(&mut self, what: &'static str, query: PgQuery) -> Result<Vec<PgRow>>;
}

/// Each statement in a transaction of its own.
#[derive(Debug)]
pub(crate) struct Alone<'p>(pub(crate) &'p Connections, pub(crate) &'p Sql);

impl Ask for Alone<'_> {
    async fn ask(&mut self, what: &'static str, query: PgQuery) -> Result<Vec<PgRow>> {
        read(self.0, self.1, what, query).await
    }
}

impl Ask for Tx {
    async fn ask(&mut self, what: &'static str, query: PgQuery) -> Result<Vec<PgRow>> {
        self.fetch(what, query).await
    }
}

/// Who looks at what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looking<'l> {
    pub(crate) sql: &'l Sql,
    pub(crate) asked: Asked,
    pub(crate) queue: &'l QueueName,
    pub(crate) tasks: &'l [TaskName],
    pub(crate) worker: Option<&'l WorkerId>,
    /// How many jobs may start at most.
    pub(crate) most: usize,
    /// What comes before is passed over.
    pub(crate) from: &'l Places,
}

impl Looking<'_> {
    /// Looks, without writing, when something is due in a queue for those who know the tasks.
    pub(crate) async fn look(&self, by: &mut impl Ask) -> Result<Look> {
        let query = self.asked.bind(self.sql.query(LOOK)).bind(self.queue.as_str().to_owned());
        let query = self.from.bind(query.bind(names_of(self.tasks)));
        let mut look = decode(self.queue, &by.ask("look for due jobs", query).await?)?;
        let settings = look.line.settings.clone();
        let mut full = Vec::new();
        if settings.limits_concurrency() {
            full = count_running(by, self, &mut look.line).await?;
        }
        if let Some(rate) = settings.rate {
            count_starts_of_queue(by, self, &mut look.line, rate).await?;
        }
        if settings.is_strict() {
            read_turns(by, self, &mut look, full).await?;
            look.line.lanes.sort_by_key(|lane| (-lane.priority, lane.id));
        } else if settings.limits_partitions() {
            let mut heads = Heads::new(self, &look, full);
            while let Some(query) = heads.next(self) {
                let rows = by.ask("read the heads of partitions", query).await?;
                let names = heads.take(&rows, &mut look)?;
                if let Some(rate) = settings.partition_rate.filter(|_| !names.is_empty()) {
                    count_starts_of_partitions(by, self, &mut look.line, rate, &names).await?;
                }
                heads.settle(&look.line);
            }
            look.line.lanes.sort_by_key(|lane| (-lane.priority, lane.id));
        }
        Ok(look)
    }
}

/// Names as PostgreSQL takes them.
pub(crate) fn names_of(tasks: &[TaskName]) -> Vec<String> {
    tasks.iter().map(|task| task.as_str().to_owned()).collect()
}

/// What a look brought, without what is taken of the limits.
fn decode(queue: &QueueName, rows: &[PgRow]) -> Result<Look> {
    let head = first(rows)?;
    let settings = match get::<Option<&str>, _>(head, 3)? {
        Some(text) => parse_settings(queue.as_str(), text, get(head, 4)?),
        None => QueueSettings::default(),
    };
    let line = Line {
        now: time(head, 0)?,
        expiry: optional_time(head, 2)?,
        settings,
        lanes: Vec::with_capacity(rows.len()),
        taken: Taken::default(),
    };
    let mut look = Look {
        inbox_waits: get(head, 1)?,
        line,
        lanes: BTreeMap::new(),
        firsts: BTreeMap::new(),
        from: BTreeMap::new(),
        stale: BTreeSet::new(),
    };
    for row in rows {
        let Some(lane) = get::<Option<i32>, _>(row, 5)? else { continue };
        let priority = i64::from(get::<i16, _>(row, 6)?);
        look.lanes.insert(lane, priority);
        let first = optional_time(row, 8)?;
        let Some(due) = first else { continue };
        let place = (due, get(row, 9)?);
        let part = Part::of_jobs(get(row, 7)?);
        let partition = if part == Part::Plain { 0 } else { ANY_PARTITION };
        let id = joint(lane, partition);
        look.firsts.insert((lane, part), place);
        look.from.insert(id, place);
        look.line.lanes.push(DueLane { id, priority, partition: None, first, later: None });
    }
    Ok(look)
}

/// The due time of the first waiting job in each part of the lane `l`, as `h`. The key of a job may
/// still be blocked.
macro_rules! first_waiting {
    () => {
        "(values (0), (1)) s (part)
           cross join lateral (
                 select j.due_at from quell.job j
                  where j.lane_id = l.id and least(j.partition_id, 1) = s.part
                    and j.state = 0 and j.behind is null
                  order by j.due_at, j.id limit 1) h"
    };
}
pub(crate) use first_waiting;

/// When something may be to do in each of these queues: the first job that waits, whatever keeps it
/// back. One statement, however many queues.
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
               cross join ",
        first_waiting!(),
        "     group by q.name)
         select c.now,
                exists (select from quell.inbox where refused is null),
                ",
        first_expiry!(),
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
    let (now, expiry) = (time(head, 0)?, optional_time(head, 2)?);
    // A claim on any queue folds the inbox.
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
        expiry,
    };
    Ok(queues.iter().map(of).collect())
}
