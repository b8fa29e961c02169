//! Starting due jobs (R11, R28, R30, R31), and knowing when the next one is due (R34).
//!
//! A claim looks before it writes: where nothing is due, an idle worker writes nothing. Each lane
//! is read in the order of its index and no further than asked, so the cost does not grow with the
//! backlog, with windows that are not due, or with tasks the worker does not know.

use quell_core::edge::{Edge, KeyMemory, remember_start};
use quell_core::history::Event;
use quell_core::job::Shape;
use quell_core::touched::TaskKey;
use quell_core::{
    Claim, ClaimedJob, JobId, Key, LeaseToken, NextDue, Payload, QueueName, Result, TaskName,
    Timestamp,
};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::keys::{json, write_memories};
use crate::names::Lane;
use crate::row::{get, optional_time, time, unsigned};
use crate::tx::{Trip, Tx, opening};

/// What a look at a queue showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) now: Timestamp,
    pub(crate) inbox_waits: bool,
    lapse: Option<Timestamp>,
    paused: bool,
    /// Of the tasks that were asked for, by priority.
    lanes: Vec<DueLane>,
}

/// A lane and when its jobs are due.
#[derive(Debug)]
struct DueLane {
    id: i64,
    priority: i64,
    /// The first of all.
    first: Option<Timestamp>,
    /// The first that is not due yet.
    later: Option<Timestamp>,
}

impl Look {
    /// Whether a write could start something now.
    pub(crate) fn is_due(&self) -> bool {
        let due = |lane: &DueLane| lane.first.is_some_and(|due| due <= self.now);
        self.inbox_waits || (!self.paused && self.lanes.iter().any(due))
    }

    pub(crate) fn next(&self) -> NextDue {
        let due = self.lanes.iter().filter_map(|lane| lane.first).min();
        NextDue { now: self.now, due, lapse: self.lapse }
    }
}

/// What [`look`] asks: `?1` is the time, `?2` the queue, `?3` the tasks.
macro_rules! look {
    () => {
        "select max(?1, m.clock),
                exists (select 1 from quell_inbox where refused is null),
                (select min(lease_until) from quell_job where state = 1),
                coalesce(q.settings ->> 'paused', 0),
                l.id, l.priority,
                (select min(due_at) from quell_job
                  where lane_id = l.id and state = 0 and waits = 0),
                (select min(due_at) from quell_job
                  where lane_id = l.id and state = 0 and waits = 0
                    and due_at > max(?1, m.clock))
           from quell_meta m
           left join quell_queue q on q.name = ?2
           left join quell_lane l on l.queue_id = q.id
                and l.task_id in (select t.id from json_each(?3) k
                                    join quell_task t on t.name = k.value)
          order by l.priority desc"
    };
}

/// Looks, without writing, when something is due in a queue for those who know `tasks`.
pub(crate) async fn look(
    db: &mut SqliteConnection,
    now: Timestamp,
    queue: &QueueName,
    tasks: &[TaskName],
) -> Result<Look> {
    let query = sqlx::query(look!()).bind(now.as_micros());
    let query = query.bind(queue.as_str().to_owned()).bind(json(&tasks)?);
    decode_look(&query.fetch_all(db).await.map_err(|e| explain("look for due jobs", e))?)
}

/// Begins a transaction with a look.
pub(crate) fn open_with_look(now: Timestamp, claim: &Claim) -> Result<Trip> {
    let query = sqlx::query(opening!(look!())).bind(now.as_micros());
    Ok(query.bind(claim.queue.as_str().to_owned()).bind(json(&claim.tasks)?))
}

fn decode_look(rows: &[SqliteRow]) -> Result<Look> {
    let head = rows.first().ok_or_else(|| corrupt("quell_meta"))?;
    let mut lanes = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(id) = get::<Option<i64>, _>(row, 4)? {
            let (first, later) = (optional_time(row, 6)?, optional_time(row, 7)?);
            lanes.push(DueLane { id, priority: get(row, 5)?, first, later });
        }
    }
    Ok(Look {
        now: time(head, 0)?,
        inbox_waits: get(head, 1)?,
        lapse: optional_time(head, 2)?,
        paused: get(head, 3)?,
        lanes,
    })
}

/// Looks, without writing, whether a lease has lapsed.
pub(crate) async fn has_lapsed(db: &mut SqliteConnection, now: Timestamp) -> Result<bool> {
    const LAPSED: &str = "select exists (select 1 from quell_job
                 where state = 1 and lease_until <= max(?1, clock)) from quell_meta";
    let lapsed = sqlx::query_scalar(LAPSED).bind(now.as_micros()).fetch_one(db).await;
    lapsed.map_err(|e| explain("look for lapsed leases", e))
}

/// Starts the first `?3` due jobs of the lane `?1`.
macro_rules! start {
    () => {
        "update quell_job
            set state = 1,
                -- R11: the key is held by the attempt.
                hold = case when key is null then null else id end,
                starts = starts + 1, attempt = attempt + 1,
                worker = ?4, started_at = ?2, lease_until = ?5
          where id in (select id from quell_job
                        where lane_id = ?1 and state = 0 and waits = 0 and due_at <= ?2
                        order by due_at, id limit ?3)"
    };
}

impl Tx<'_> {
    /// Starts at most as many due jobs as asked for, in the order of R30; says when the next is
    /// due. `looked` is what the opening brought.
    pub(crate) async fn claim(
        &mut self,
        claim: &Claim,
        looked: &[SqliteRow],
    ) -> Result<(Vec<ClaimedJob>, NextDue)> {
        let mut look = if self.inbox_waits {
            self.fold_inbox().await?;
            look(&mut self.db, self.now, &claim.queue, &claim.tasks).await?
        } else {
            decode_look(looked)?
        };
        let mut room = if look.paused { 0 } else { claim.limit };
        let settings = self.settings.get(&claim.queue);
        if let Some(limit) = settings.and_then(|settings| settings.concurrency) {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            room = room.min(limit.saturating_sub(self.running(&claim.queue).await?));
        }
        let (now, until) = (self.now, self.now + claim.lease);
        let (mut jobs, mut taken) = (Vec::new(), Vec::new());
        for lanes in look.lanes.chunk_by_mut(|a, b| a.priority == b.priority) {
            let left = room - jobs.len();
            if left == 0 {
                break;
            }
            let mut due: Vec<&mut DueLane> =
                lanes.iter_mut().filter(|lane| lane.first.is_some_and(|due| due <= now)).collect();
            let shares = self.shares(&due, left).await?;
            let mut started = Vec::new();
            for (lane, share) in due.iter_mut().zip(shares) {
                let mut first = self.first_due(lane, share, until).await?;
                taken.push((lane.id, first.len()));
                started.append(&mut first);
            }
            started.sort_unstable_by_key(|job: &ClaimedJob| (job.due_at, job.id));
            jobs.append(&mut started);
        }
        let mut next = look.next();
        if !jobs.is_empty() {
            next.lapse = Some(next.lapse.map_or(until, |before| before.min(until)));
        }
        self.start(claim, &taken).await?;
        for job in &jobs {
            self.tell(|| Event::claimed(now, claim, job));
        }
        Ok((jobs, next))
    }

    /// R31: how many attempts of the queue run, in all processes.
    async fn running(&mut self, queue: &QueueName) -> Result<usize> {
        const RUNNING: &str = "select count(*) from quell_job j
               join quell_lane l on l.id = j.lane_id
              where j.state = 1 and l.queue_id = ?1";
        let Some(queue_id) = self.names.queue_id(queue) else { return Ok(0) };
        let running = sqlx::query_scalar(RUNNING).bind(queue_id).fetch_one(&mut *self.db).await;
        let running: i64 = running.map_err(|e| explain("count running jobs", e))?;
        Ok(usize::try_from(running).unwrap_or(usize::MAX))
    }

    /// How many of the first `limit` due jobs of these lanes, which share a priority, are in each.
    async fn shares(&mut self, lanes: &[&mut DueLane], limit: usize) -> Result<Vec<usize>> {
        const DUE: &str = "select due_at, id from quell_job
              where lane_id = ?1 and state = 0 and waits = 0 and due_at <= ?2
              order by due_at, id limit ?3";
        let mut shares = vec![limit; lanes.len()];
        if lanes.len() < 2 {
            return Ok(shares);
        }
        let mut due = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            let rows = sqlx::query(DUE)
                .bind(lane.id)
                .bind(self.now.as_micros())
                .bind(i64::try_from(limit).unwrap_or(i64::MAX))
                .fetch_all(&mut *self.db)
                .await
                .map_err(|e| explain("read due jobs", e))?;
            for row in &rows {
                due.push((time(row, 0)?, get::<i64, _>(row, 1)?, index));
            }
        }
        due.sort_unstable();
        due.truncate(limit);
        for (index, share) in shares.iter_mut().enumerate() {
            *share = due.iter().filter(|(_, _, lane)| *lane == index).count();
        }
        Ok(shares)
    }

    /// Reads the first `limit` due jobs of a lane as they will be once started, and notes when its
    /// next one is due.
    async fn first_due(
        &mut self,
        lane: &mut DueLane,
        limit: usize,
        until: Timestamp,
    ) -> Result<Vec<ClaimedJob>> {
        // One more than asked for, to know when the next one is due.
        const DUE: &str = "select id, due_at, starts, key, payload, attempt, failures, triggers,
                    first_at, shape
               from quell_job
              where lane_id = ?1 and state = 0 and waits = 0 and due_at <= ?2
              order by due_at, id limit ?3 + 1";
        let rows = sqlx::query(DUE)
            .bind(lane.id)
            .bind(self.now.as_micros())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX - 1))
            .fetch_all(&mut *self.db)
            .await
            .map_err(|e| explain("read due jobs", e))?;
        lane.first = match rows.get(limit) {
            Some(next) => Some(time(next, 1)?),
            None => lane.later,
        };
        let named = self.names.lane(lane.id).ok_or_else(|| corrupt("the lane of due jobs"))?;
        let mut jobs = Vec::with_capacity(rows.len());
        let mut memories = Vec::new();
        for row in rows.iter().take(limit) {
            let (job, shape) = decode_claimed(row, named, until)?;
            memories.extend(shape.and_then(|shape| remembered(&job, &shape, self.now)));
            jobs.push(job);
        }
        write_memories(&mut self.db, self.names, &memories).await?;
        Ok(jobs)
    }

    /// Starts the first due jobs of lanes: as many of each as were read. A `returning` clause
    /// instead of reading first costs more.
    async fn start(&mut self, claim: &Claim, taken: &[(i64, usize)]) -> Result<()> {
        for (index, (lane_id, count)) in taken.iter().enumerate() {
            let is_last = index + 1 == taken.len();
            let query = sqlx::query(if is_last { concat!(start!(), "; commit") } else { start!() })
                .bind(*lane_id)
                .bind(self.now.as_micros())
                .bind(i64::try_from(*count).unwrap_or(i64::MAX))
                .bind(claim.worker.as_str().to_owned())
                .bind((self.now + claim.lease).as_micros());
            if is_last {
                self.parting = Some(query);
            } else {
                query.execute(&mut *self.db).await.map_err(|e| explain("start jobs", e))?;
            }
        }
        Ok(())
    }
}

/// R13: a throttled key's start is remembered.
fn remembered(job: &ClaimedJob, shape: &Shape, now: Timestamp) -> Option<(TaskKey, KeyMemory)> {
    let period = shape.period.filter(|_| shape.edge == Edge::Throttle)?;
    let task_key = (job.task.clone(), job.key.clone()?);
    Some((task_key, remember_start(job.id, now, period)))
}

fn decode_claimed(
    row: &SqliteRow,
    lane: &Lane,
    lease_until: Timestamp,
) -> Result<(ClaimedJob, Option<Shape>)> {
    let id = JobId::new(unsigned(get(row, 0)?));
    let key: Option<&str> = get(row, 3)?;
    let shape: Option<&str> = get(row, 9)?;
    let shape = shape.map(serde_json::from_str).transpose();
    let shape = shape.map_err(|error| corrupt(format_args!("shape of job {id}: {error}")))?;
    let starts: i64 = get(row, 2)?;
    let attempt: u32 = get(row, 5)?;
    let job = ClaimedJob {
        id,
        token: LeaseToken::new(unsigned(starts).saturating_add(1)),
        task: lane.task.clone(),
        key: key.map(Key::new).transpose()?,
        payload: Payload::from_stored(get::<&str, _>(row, 4)?),
        attempt: attempt.saturating_add(1),
        failures: get(row, 6)?,
        triggers: unsigned(get(row, 7)?),
        first_at: time(row, 8)?,
        due_at: time(row, 1)?,
        lease_until,
    };
    Ok((job, shape))
}
