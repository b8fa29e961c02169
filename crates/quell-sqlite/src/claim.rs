//! Starting due jobs (R11, R28, R30, R31), and knowing when the next one is due (R34).
//!
//! A claim looks before it writes: where nothing is due, an idle worker writes nothing. Each lane
//! is read in the order of its index and no further than asked, so the cost does not grow with the
//! backlog, with windows that are not due, or with tasks the worker does not know.

use quell_core::edge::{Edge, remember_start};
use quell_core::job::Shape;
use quell_core::{
    Claim, ClaimedJob, JobId, Key, LeaseToken, NextDue, Payload, QueueName, Result, TaskName,
    Timestamp,
};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::enqueue::write_memory;
use crate::error::{corrupt, explain};
use crate::names::Lane;
use crate::row::{get, optional_time, signed, time, unsigned};
use crate::tx::Tx;

/// A lane and when its first job is due.
#[derive(Debug)]
struct DueLane {
    lane_id: i64,
    priority: i64,
    due: Option<Timestamp>,
}

/// What a look at the whole store showed.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) now: Timestamp,
    pub(crate) lapse: Option<Timestamp>,
    pub(crate) inbox_waits: bool,
}

/// Looks, without writing, at what does not belong to a queue.
pub(crate) async fn look_head(db: &mut SqliteConnection, now: Timestamp) -> Result<Head> {
    const HEAD: &str = "select clock, exists (select 1 from quell_inbox where refused is null),
                               (select min(lease_until) from quell_job where state = 1)
                          from quell_meta";
    let row = sqlx::query(HEAD).fetch_one(db).await;
    let row = row.map_err(|e| explain("look for due jobs", e))?;
    Ok(Head {
        now: now.max(time(&row, 0)?),
        inbox_waits: get(&row, 1)?,
        lapse: optional_time(&row, 2)?,
    })
}

/// What a look without a lock showed.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) next: NextDue,
    pub(crate) inbox_waits: bool,
}

impl Look {
    /// Whether a write could start something now.
    pub(crate) fn is_due(&self) -> bool {
        self.inbox_waits || self.next.due.is_some_and(|due| due <= self.next.now)
    }
}

/// Looks, without writing, when something is due.
pub(crate) async fn look(
    db: &mut SqliteConnection,
    now: Timestamp,
    queue: &QueueName,
    tasks: &[TaskName],
) -> Result<Look> {
    let head = look_head(db, now).await?;
    let lanes = due_lanes(db, queue, tasks).await?;
    let due = lanes.iter().filter_map(|lane| lane.due).min();
    let next = NextDue { now: head.now, due, lapse: head.lapse };
    Ok(Look { next, inbox_waits: head.inbox_waits })
}

/// The queue's lanes of these tasks, by priority, each with its first due time.
async fn due_lanes(
    db: &mut SqliteConnection,
    queue: &QueueName,
    tasks: &[TaskName],
) -> Result<Vec<DueLane>> {
    const LANES: &str = "select l.id, l.priority,
                   (select min(j.due_at) from quell_job j
                     where j.lane_id = l.id and j.state = 0 and j.waits = 0)
              from quell_queue q
              join quell_lane l on l.queue_id = q.id
              join quell_task t on t.id = l.task_id
             where q.name = ?1 and t.name in (select value from json_each(?2))
             order by l.priority desc";
    let names: Vec<&str> = tasks.iter().map(TaskName::as_str).collect();
    let names = serde_json::to_string(&names).map_err(|e| corrupt(format_args!("tasks: {e}")))?;
    let rows = sqlx::query(LANES).bind(queue.as_str().to_owned()).bind(names).fetch_all(db).await;
    let rows = rows.map_err(|e| explain("look for due jobs", e))?;
    rows.iter()
        .map(|row| {
            Ok(DueLane {
                lane_id: get(row, 0)?,
                priority: get(row, 1)?,
                due: optional_time(row, 2)?,
            })
        })
        .collect()
}

impl Tx<'_> {
    /// Starts at most as many due jobs as asked for, in the order of R30.
    pub(crate) async fn claim(&mut self, claim: &Claim) -> Result<Vec<ClaimedJob>> {
        let settings = self.settings.get(&claim.queue).cloned().unwrap_or_default();
        if settings.paused {
            return Ok(Vec::new());
        }
        let mut room = claim.limit;
        if let Some(limit) = settings.concurrency {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            room = room.min(limit.saturating_sub(self.running(&claim.queue).await?));
        }
        let now = self.now;
        let mut lanes = due_lanes(&mut self.db, &claim.queue, &claim.tasks).await?;
        lanes.retain(|lane| lane.due.is_some_and(|due| due <= now));
        let mut jobs = Vec::new();
        for same_priority in lanes.chunk_by(|a, b| a.priority == b.priority) {
            let left = room - jobs.len();
            if left == 0 {
                break;
            }
            let ids = self.first_due(same_priority, left).await?;
            let mut started = self.start(claim, &ids).await?;
            started.sort_unstable_by_key(|job| (job.due_at, job.id));
            jobs.append(&mut started);
        }
        Ok(jobs)
    }

    /// R31: how many attempts of the queue run, in all processes.
    async fn running(&mut self, queue: &QueueName) -> Result<usize> {
        let Some(queue_id) = self.names.queue_id(queue) else { return Ok(0) };
        let running: i64 = sqlx::query_scalar(
            "select count(*) from quell_job j
               join quell_lane l on l.id = j.lane_id
              where j.state = 1 and l.queue_id = ?1",
        )
        .bind(queue_id)
        .fetch_one(&mut *self.db)
        .await
        .map_err(|e| explain("count running jobs", e))?;
        Ok(usize::try_from(running).unwrap_or(usize::MAX))
    }

    /// The first due jobs of lanes of one priority.
    async fn first_due(&mut self, lanes: &[DueLane], limit: usize) -> Result<Vec<JobId>> {
        const DUE: &str = "select due_at, id from quell_job
              where lane_id = ?1 and state = 0 and waits = 0 and due_at <= ?2
              order by due_at, id limit ?3";
        let limit_bound = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut due = Vec::new();
        for lane in lanes {
            let rows = sqlx::query(DUE)
                .bind(lane.lane_id)
                .bind(self.now.as_micros())
                .bind(limit_bound)
                .fetch_all(&mut *self.db)
                .await
                .map_err(|e| explain("read due jobs", e))?;
            for row in &rows {
                due.push((time(row, 0)?, JobId::new(unsigned(get(row, 1)?))));
            }
        }
        due.sort_unstable();
        Ok(due.into_iter().take(limit).map(|(_, id)| id).collect())
    }

    async fn start(&mut self, claim: &Claim, ids: &[JobId]) -> Result<Vec<ClaimedJob>> {
        const START: &str = "update quell_job
                set state = 1,
                    -- R11: the key is held by the attempt.
                    hold = case when key is null then null else id end,
                    starts = starts + 1, attempt = attempt + 1,
                    worker = ?2, started_at = ?3, lease_until = ?4
              where id in (select value from json_each(?1))
          returning id, starts, lane_id, key, payload, attempt, failures, triggers, first_at,
                    due_at, shape";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let lease_until = self.now + claim.lease;
        let rows = sqlx::query(START)
            .bind(json_ids(ids))
            .bind(claim.worker.as_str().to_owned())
            .bind(self.now.as_micros())
            .bind(lease_until.as_micros())
            .fetch_all(&mut *self.db)
            .await
            .map_err(|e| explain("start jobs", e))?;
        let mut jobs = Vec::with_capacity(rows.len());
        for row in &rows {
            let lane = self.names.lane(get(row, 2)?).ok_or_else(|| corrupt("a job's lane"))?;
            let (job, shape) = decode_claimed(row, lane, lease_until)?;
            if let (Some(shape), Some(key)) = (shape, &job.key) {
                let throttled = Some(shape.edge) == Some(Edge::Throttle);
                if let (true, Some(period)) = (throttled, shape.period) {
                    let memory = remember_start(job.id, self.now, period);
                    let task_key = (job.task.clone(), key.clone());
                    write_memory(&mut self.db, self.names, &task_key, &memory).await?;
                }
            }
            jobs.push(job);
        }
        Ok(jobs)
    }
}

fn decode_claimed(
    row: &SqliteRow,
    lane: &Lane,
    lease_until: Timestamp,
) -> Result<(ClaimedJob, Option<Shape>)> {
    let id = JobId::new(unsigned(get(row, 0)?));
    let key: Option<&str> = get(row, 3)?;
    let shape: Option<&str> = get(row, 10)?;
    let shape = shape.map(serde_json::from_str).transpose();
    let job = ClaimedJob {
        id,
        token: LeaseToken::new(unsigned(get(row, 1)?)),
        task: lane.task.clone(),
        key: key.map(Key::new).transpose()?,
        payload: Payload::from_stored(get::<&str, _>(row, 4)?),
        attempt: get(row, 5)?,
        failures: get(row, 6)?,
        triggers: unsigned(get(row, 7)?),
        first_at: time(row, 8)?,
        due_at: time(row, 9)?,
        lease_until,
    };
    let shape = shape.map_err(|error| corrupt(format_args!("shape of job {id}: {error}")))?;
    Ok((job, shape))
}

/// Ids as a JSON array, for `json_each`.
pub(crate) fn json_ids(ids: &[JobId]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 + ids.len() * 8);
    text.push('[');
    for (index, id) in ids.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _infallible = write!(text, "{comma}{}", signed(id.get()));
    }
    text.push(']');
    text
}
