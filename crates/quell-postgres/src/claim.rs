//! Starting due jobs (R11, R28, R30, R31), and knowing when the next one is due (R34).
//!
//! A claim looks before it writes: where nothing is due, an idle worker writes nothing. Jobs are
//! taken in the order of the index of one lane and no further than asked, so the cost does not grow
//! with the backlog. Rows that another call holds are passed over. On a queue without limits a
//! claim of one lane is one statement; a queue with limits is locked first, without waiting, so
//! that contention is one clear error (R35).

use quell_core::history::Event;
use quell_core::{
    Claim, ClaimedJob, ErrorKind, JobId, Key, LeaseToken, NextDue, Payload, QueueName,
    QueueSettings, Result, TaskName, Timestamp,
};
use sqlx::PgPool;
use sqlx::postgres::PgRow;
use std::time::Duration;

use crate::error::corrupt;
use crate::names::{Lane, Names};
use crate::row::{blocked, count, get, optional_time, time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx, first, read};

/// When to look again at a job that was passed over because another call held its row.
const PASSED_OVER: Duration = Duration::from_millis(2);

/// What a look at a queue showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) now: Timestamp,
    pub(crate) inbox_waits: bool,
    pub(crate) settings: QueueSettings,
    lapse: Option<Timestamp>,
    /// Of the tasks that were asked for, by priority.
    lanes: Vec<DueLane>,
}

/// A lane and when its jobs are due.
#[derive(Clone, Copy, Debug)]
struct DueLane {
    id: i32,
    priority: i16,
    /// The first of all.
    first: Option<Timestamp>,
}

impl Look {
    /// Whether a write could start something now.
    pub(crate) fn is_due(&self) -> bool {
        self.inbox_waits || (!self.settings.paused && self.due_lanes().next().is_some())
    }

    pub(crate) fn next(&self) -> NextDue {
        let due = self.lanes.iter().filter_map(|lane| lane.first).min();
        NextDue { now: self.now, due, lapse: self.lapse }
    }

    /// Whether a claim is one statement: nothing to fold, nothing to count, one lane. Names it.
    pub(crate) fn only_lane(&self) -> Option<i32> {
        let mut due = self.due_lanes();
        let lane = due.next().filter(|_| !self.inbox_waits && self.settings.concurrency.is_none());
        lane.filter(|_| due.next().is_none()).map(|lane| lane.id)
    }

    fn due_lanes(&self) -> impl Iterator<Item = &DueLane> {
        self.lanes.iter().filter(|lane| lane.first.is_some_and(|due| due <= self.now))
    }
}

const LOOK: &str = concat!(
    "with clock as materialized (select quell.peek($1, $2) as now)
     select c.now,
            exists (select from quell.inbox where refused is null),
            (select lease_until from quell.job where state = 1 order by lease_until limit 1),
            q.settings, l.id, l.priority,
            (select j.due_at from quell.job j
              where j.lane_id = l.id and j.state = 0 and not ",
    blocked!(),
    "         order by j.due_at, j.id limit 1)
       from clock c
       left join quell.queue q on q.name = $3
       left join quell.lane l on l.queue_id = q.id
            and l.task_id in (select id from quell.task where name = any($4))
      order by l.priority desc, l.id"
);

fn look_query(sql: &Sql, asked: Asked, queue: &QueueName, tasks: &[TaskName]) -> PgQuery {
    let tasks: Vec<String> = tasks.iter().map(|task| task.as_str().to_owned()).collect();
    asked.bind(sql.query(LOOK)).bind(queue.as_str().to_owned()).bind(tasks)
}

/// Looks, without writing, when something is due in a queue for those who know `tasks`.
pub(crate) async fn look(
    pool: &PgPool,
    sql: &Sql,
    asked: Asked,
    queue: &QueueName,
    tasks: &[TaskName],
) -> Result<Look> {
    let query = look_query(sql, asked, queue, tasks);
    decode_look(queue, &read(pool, sql, "look for due jobs", query).await?)
}

fn decode_look(queue: &QueueName, rows: &[PgRow]) -> Result<Look> {
    let head = first(rows)?;
    let mut lanes = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(id) = get::<Option<i32>, _>(row, 4)? {
            lanes.push(DueLane { id, priority: get(row, 5)?, first: optional_time(row, 6)? });
        }
    }
    let settings: Option<&str> = get(head, 3)?;
    let settings = settings.map(|text| crate::read::parse_settings(queue.as_str(), text));
    Ok(Look {
        now: time(head, 0)?,
        inbox_waits: get(head, 1)?,
        lapse: optional_time(head, 2)?,
        settings: settings.transpose()?.unwrap_or_default(),
        lanes,
    })
}

/// Looks, without writing, whether a lease has lapsed.
pub(crate) async fn has_lapsed(pool: &PgPool, sql: &Sql, asked: Asked) -> Result<bool> {
    const LAPSED: &str = "select coalesce(
         (select lease_until from quell.job where state = 1 order by lease_until limit 1)
             <= quell.peek($1, $2), false)";
    let rows = read(pool, sql, "look for lapsed leases", asked.bind(sql.query(LAPSED))).await?;
    get(first(&rows)?, 0)
}

/// Starts the first `$4` due jobs of the lane `$3`, and says when its next one is due. `$clock` is
/// where the time comes from.
macro_rules! start {
    ($clock:literal) => {
        concat!(
            "with clock as materialized (select ",
            $clock,
            " as now),
             taken as materialized (
                 select j.id, j.due_at, j.ctid as place
                   from quell.job j
                  where j.lane_id = $3 and j.state = 0 and j.due_at <= (select now from clock)
                    -- R2: a trigger that joined since the clock was read is not covered yet.
                    and coalesce(j.last_at, j.first_at) <= (select now from clock)
                    and not ",
            blocked!(),
            "     order by j.due_at, j.id limit $4
                    for update of j skip locked),
             started as (
                 update quell.job j
                    set state = 1, starts = j.starts + 1, attempt = j.attempt + 1,
                        worker = $5, started_at = c.now,
                        lease_until = case when c.now > 9223372036854775807 - $6
                                           then 9223372036854775807 else c.now + $6 end
                   from taken t, clock c
                  where j.ctid = t.place
              returning j.id, j.due_at, j.starts, j.key, j.payload, j.attempt, j.failures,
                        j.triggers, j.first_at, j.lease_until, j.period, j.task_id),
             -- R13: a throttled key's start is remembered.
             remembered as (
                 insert into quell.memory
                        (task_id, key, leader, burst_at, last_at, started_at, expires_at)
                 select s.task_id, s.key, s.id, c.now, c.now, c.now,
                        case when c.now > 9223372036854775807 - s.period
                             then 9223372036854775807 else c.now + s.period end
                   from started s, clock c where s.period is not null and s.key is not null
                     on conflict (task_id, key) do update set
                        leader = excluded.leader, burst_at = excluded.burst_at,
                        last_at = excluded.last_at, started_at = excluded.started_at,
                        expires_at = excluded.expires_at)
             select c.now,
                    (select lease_until from quell.job
                      where state = 1 order by lease_until limit 1),
                    -- With fewer than asked for, what was passed over is told of too.
                    case when (select count(*) from taken) < $4 then
                        (select j.due_at from quell.job j
                          where j.lane_id = $3 and j.state = 0 and not ",
            blocked!(),
            "               and j.id not in (select id from taken)
                          order by j.due_at, j.id limit 1)
                    else
                        (select j.due_at from quell.job j
                          where j.lane_id = $3 and j.state = 0 and not ",
            blocked!(),
            "               and (j.due_at, j.id) > (select t.due_at, t.id from taken t
                                                     order by t.due_at desc, t.id desc limit 1)
                          order by j.due_at, j.id limit 1)
                    end,
                    s.id, s.due_at, s.starts, s.key, s.payload, s.attempt, s.failures, s.triggers,
                    s.first_at, s.lease_until
               from clock c left join started s on true
              order by s.due_at, s.id"
        )
    };
}

/// A claim of one lane: one statement, which is its own transaction.
pub(crate) fn start_query(sql: &Sql, asked: Asked, lane: i32, claim: &Claim) -> PgQuery {
    bind_start(asked.bind(sql.query(start!("quell.tick($1, $2)"))), lane, claim.limit, claim)
}

fn bind_start(query: PgQuery, lane: i32, limit: usize, claim: &Claim) -> PgQuery {
    let lease = i64::try_from(claim.lease.as_micros()).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    query.bind(lane).bind(limit).bind(claim.worker.as_str().to_owned()).bind(lease)
}

/// What [`start_query`] brought.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) now: Timestamp,
    pub(crate) jobs: Vec<ClaimedJob>,
    /// The earliest end of a lease as of before.
    lapse: Option<Timestamp>,
    /// When the lane's next job is due.
    next: Option<Timestamp>,
}

pub(crate) fn decode_started(rows: &[PgRow], lane: &Lane) -> Result<Started> {
    let head = first(rows)?;
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        if get::<Option<i64>, _>(row, 3)?.is_some() {
            jobs.push(decode_claimed(row, lane)?);
        }
    }
    let (lapse, next) = (optional_time(head, 1)?, optional_time(head, 2)?);
    Ok(Started { now: time(head, 0)?, jobs, lapse, next })
}

fn decode_claimed(row: &PgRow, lane: &Lane) -> Result<ClaimedJob> {
    let key: Option<&str> = get(row, 6)?;
    Ok(ClaimedJob {
        id: JobId::new(unsigned(get(row, 3)?)),
        token: LeaseToken::new(unsigned(get(row, 5)?)),
        task: lane.task.clone(),
        key: key.map(Key::new).transpose()?,
        payload: Payload::from_stored(get::<&str, _>(row, 7)?),
        attempt: count(row, 8)?,
        failures: count(row, 9)?,
        triggers: unsigned(get(row, 10)?),
        first_at: time(row, 11)?,
        due_at: time(row, 4)?,
        lease_until: time(row, 12)?,
    })
}

/// What is next after a claim of one lane; `before` is the look that it followed.
pub(crate) fn next_after(before: &Look, lane: i32, started: &Started, limit: usize) -> NextDue {
    let others = before.lanes.iter().filter(|other| other.id != lane).filter_map(|l| l.first);
    // A row that was passed over is held by a call that is about to end.
    let passed_over = started.jobs.len() < limit;
    let own = started
        .next
        .map(|due| if passed_over && due <= started.now { started.now + PASSED_OVER } else { due });
    let leases = started.jobs.iter().map(|job| job.lease_until);
    NextDue {
        now: started.now,
        due: others.chain(own).min(),
        lapse: leases.chain(started.lapse).min(),
    }
}

impl Tx<'_> {
    /// Starts at most as many due jobs as asked for, in the order of R30; says when the next is
    /// due.
    pub(crate) async fn claim(&mut self, claim: &Claim) -> Result<(Vec<ClaimedJob>, NextDue)> {
        self.fold_inbox().await?;
        let limited = self.lock_queue(&claim.queue).await?;
        self.tick().await?;
        let asked = self.asked();
        let query = look_query(self.sql, asked, &claim.queue, &claim.tasks);
        let mut look = decode_look(&claim.queue, &self.fetch("look for due jobs", query).await?)?;
        let mut room = if look.settings.paused { 0 } else { claim.limit };
        if let Some(limit) = limited.and_then(|settings| settings.concurrency) {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            room = room.min(limit.saturating_sub(self.running(&claim.queue).await?));
        }
        let mut jobs: Vec<ClaimedJob> = Vec::new();
        let lanes: Vec<DueLane> = look.due_lanes().copied().collect();
        for lanes in lanes.chunk_by(|a, b| a.priority == b.priority) {
            let left = room.saturating_sub(jobs.len());
            if left == 0 {
                break;
            }
            let mut started = Vec::new();
            for (lane, share) in lanes.iter().zip(self.shares(lanes, left).await?) {
                let one = self.start(claim, lane.id, share).await?;
                let next = next_after(&look, lane.id, &one, share);
                look.lapse = next.lapse;
                let own = one.next.map(|due| {
                    if one.jobs.len() < share && due <= self.now {
                        self.now + PASSED_OVER
                    } else {
                        due
                    }
                });
                if let Some(known) = look.lanes.iter_mut().find(|known| known.id == lane.id) {
                    known.first = own;
                }
                started.extend(one.jobs);
            }
            started.sort_unstable_by_key(|job: &ClaimedJob| (job.due_at, job.id));
            jobs.append(&mut started);
        }
        let now = self.now;
        for job in &jobs {
            self.tell(|| Event::claimed(now, claim, job));
        }
        Ok((jobs, look.next()))
    }

    fn asked(&self) -> Asked {
        Asked { now: Some(self.now), seen: self.now }
    }

    async fn start(&mut self, claim: &Claim, lane: i32, limit: usize) -> Result<Started> {
        let query = self.asked().bind(self.sql.query(start!("greatest($1::bigint, $2::bigint)")));
        let rows = self.fetch("start jobs", bind_start(query, lane, limit, claim)).await?;
        let (names, sql) = (self.names, self.sql);
        names.load(self.db(), sql, std::iter::once(lane)).await?;
        decode_started(&rows, &*known(names, lane)?)
    }

    /// R31, R35: the settings of a queue with limits, which no other claim may use until this one
    /// has committed. Whoever comes meanwhile is told of the contention at once.
    async fn lock_queue(&mut self, queue: &QueueName) -> Result<Option<QueueSettings>> {
        const LOCK: &str = "select settings from quell.queue
              where name = $1 and (settings::json ->> 'concurrency') is not null
                for update nowait";
        let query = self.sql.query(LOCK).bind(queue.as_str().to_owned());
        let rows = self.fetch("lock a queue with limits", query).await.map_err(|error| {
            if error.kind() == ErrorKind::Contention {
                error.at(format_args!("queue {queue}"))
            } else {
                error
            }
        })?;
        let parse = |row: &PgRow| crate::read::parse_settings(queue.as_str(), get(row, 0)?);
        rows.first().map(parse).transpose()
    }

    /// R31: how many attempts of the queue run, in all processes.
    async fn running(&mut self, queue: &QueueName) -> Result<usize> {
        const RUNNING: &str = "select count(*) from quell.job j
               join quell.lane l on l.id = j.lane_id
               join quell.queue q on q.id = l.queue_id
              where j.state = 1 and q.name = $1";
        let query = self.sql.query(RUNNING).bind(queue.as_str().to_owned());
        let rows = self.fetch("count running jobs", query).await?;
        Ok(usize::try_from(get::<i64, _>(first(&rows)?, 0)?).unwrap_or(usize::MAX))
    }

    /// How many of the first `limit` due jobs of these lanes, which share a priority, are in each.
    async fn shares(&mut self, lanes: &[DueLane], limit: usize) -> Result<Vec<usize>> {
        const DUE: &str = concat!(
            "select lane.ord
               from unnest($1::int[]) with ordinality lane (id, ord)
              cross join lateral (
                    select j.due_at, j.id from quell.job j
                     where j.lane_id = lane.id and j.state = 0 and j.due_at <= $2 and not ",
            blocked!(),
            "        order by j.due_at, j.id limit $3) due
              order by due.due_at, due.id limit $3"
        );
        let mut shares = vec![limit; lanes.len()];
        if lanes.len() < 2 {
            return Ok(shares);
        }
        let ids: Vec<i32> = lanes.iter().map(|lane| lane.id).collect();
        let query = self.sql.query(DUE).bind(ids).bind(self.now.as_micros());
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        shares.fill(0);
        for row in &self.fetch("read due jobs", query).await? {
            let index = usize::try_from(get::<i64, _>(row, 0)?).unwrap_or(0);
            if let Some(share) = index.checked_sub(1).and_then(|index| shares.get_mut(index)) {
                *share += 1;
            }
        }
        Ok(shares)
    }
}

/// A lane that was made known before.
pub(crate) fn known(names: &Names, lane: i32) -> Result<std::sync::Arc<Lane>> {
    names.lane(lane).ok_or_else(|| corrupt("the lane of due jobs"))
}
