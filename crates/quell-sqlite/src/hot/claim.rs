//! Starting due jobs (R11, R28, R30, R31).
//!
//! A claim looks before it writes: where nothing is due, an idle worker writes nothing. Each lane
//! is read in the order of its index and no further than asked, so the cost does not grow with the
//! backlog, with windows that are not due, or with what waits in a partition that is full.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::edge::{Edge, KeyMemory, remember_start};
use quell_core::history::Event;
use quell_core::job::Shape;
use quell_core::line::{Candidates, DueLane, Line, Place};
use quell_core::touched::TaskKey;
use quell_core::{
    Claim, ClaimedJob, Draw, JobId, JobState, Key, LeaseToken, NextDue, Payload, QueueSettings,
    Result, Timestamp,
};
use quell_engine::sql::{Columns as _, unreadable_row};
use sqlx::sqlite::SqliteRow;

use super::heads::{Stale, read_heads};
use super::limit::{count_partitions, count_starts};
use super::look::{Asked, Look, decode_look, limits_partitions, look};
use crate::counts::{LaneState, count_and_commit};
use crate::error::{corrupt, explain};
use crate::keys::{json, write_memories};
use crate::names::Lane;
use crate::row::{Columns, get, signed, time, unsigned};
use crate::tx::{Trip, Tx};

/// The columns of a job that starts.
macro_rules! started_columns {
    () => {
        "j.id, j.due_at, j.token, j.key, j.payload, j.attempt, j.failures, j.triggers, \
         j.first_at, j.shape, j.lane_id, j.lapses, j.traces"
    };
}

/// The first due jobs of a lane.
const OF_LANE: &str = concat!(
    "select ",
    started_columns!(),
    " from quell_job j
      where j.lane_id = ?1 and j.state = 0 and j.waits = 0 and j.due_at <= ?2
      order by j.due_at, j.id limit ?3 + 0"
);

/// Jobs by their ids.
const OF_IDS: &str = concat!(
    "select ",
    started_columns!(),
    " from quell_job j where j.id in (select value from json_each(?1))"
);

/// Starts jobs, with what `$more` sets; a `returning` clause instead of reading first costs more.
macro_rules! start {
    ($more:literal) => {
        concat!(
            "update quell_job
                set state = 1,
                    -- R11: the key is held by the attempt.
                    hold = case when key is null then null else id end,
                    -- R21: one start more, and the draw.
                    token = (min((token >> 39) + 1, 16777215) << 39) | ?5, attempt = attempt + 1,
                    worker = ?3, started_at = ?2, lease_until = ?4",
            $more,
            " where id in (select value from json_each(?1))"
        )
    };
}

const START: &str = concat!(start!(""), ";", count_and_commit!("?6"));
/// Jobs of partitions leave these (see the schema).
const START_IN_PARTITIONS: &str = start!(", lane_id = lane_id");
const START_IN_PARTITIONS_AND_COMMIT: &str =
    concat!(start!(", lane_id = lane_id"), ";", count_and_commit!("?6"));

/// The first due jobs of several lanes, as places in line.
const HEADS: &str = "select j.due_at, j.id, j.lane_id
       from json_each(?1) k
       cross join quell_job j
          on j.id in (select id from quell_job
                       where lane_id = k.value and state = 0 and waits = 0 and due_at <= ?2
                       order by due_at, id limit ?3 + 0)";

impl Tx {
    /// Starts at most as many due jobs as asked for, in the order of R30; says when the next is
    /// due, and whether a rate counts the starts. `looked` is what the opening brought, `settings` are
    /// those in it.
    pub(crate) async fn claim(
        &mut self,
        claim: &Claim,
        (looked, settings): (&[SqliteRow], QueueSettings),
    ) -> Result<(Vec<ClaimedJob>, NextDue, bool)> {
        let asked = Asked::of(claim);
        let Look { mut line, stale, .. } = if self.inbox_waits {
            self.fold_inbox().await?;
            look(&mut self.writer.db, self.now, &asked).await?
        } else {
            decode_look(&mut self.writer.db, looked, settings, &asked).await?
        };
        self.hold_back(&claim.queue, &stale).await?;
        let room = claim.limit.min(line.settings.room(&line.taken.used));
        let mut started = Vec::new();
        let mut lanes = std::mem::take(&mut line.lanes);
        for of_priority in lanes.chunk_by_mut(|a, b| a.priority == b.priority) {
            let left = room - started.len();
            if left == 0 {
                break;
            }
            let mut first = self.first_due(&line, of_priority, left, claim).await?;
            first.iter().for_each(|one| line.taken.start(one.partition.as_ref()));
            started.append(&mut first);
        }
        line.lanes = lanes;
        if !started.is_empty() {
            let until = self.now + claim.lease;
            line.expiry = Some(line.expiry.map_or(until, |before| before.min(until)));
            self.record(claim, &mut line, &started).await?;
        }
        let jobs = started.into_iter().map(|started| started.job).collect::<Vec<_>>();
        for job in &jobs {
            let now = self.now;
            self.record_event(|| Event::claimed(now, claim, job));
        }
        Ok((jobs, line.next(), line.settings.limits_rate()))
    }

    /// Reads the first `left` due jobs of these lanes, which share a priority, as they will be once
    /// started, and notes when the next of each lane is due. Full partitions are passed over (R31).
    async fn first_due(
        &mut self,
        line: &Line,
        lanes: &mut [DueLane],
        left: usize,
        claim: &Claim,
    ) -> Result<Vec<Started>> {
        let candidates = Candidates::of(line, lanes, left);
        let rows = match candidates.lanes[..] {
            [] => return Ok(Vec::new()),
            [(lane, room)] => {
                // One more than asked for, to know when the next one is due.
                let query = sqlx::query(OF_LANE).bind(lane).bind(self.now.as_micros());
                let query = query.bind(i64::try_from(room).unwrap_or(i64::MAX - 1) + 1);
                let mut rows = self.fetch(query).await?;
                let next = rows.get(room).map(|row| time(row, 1)).transpose()?;
                rows.truncate(room);
                candidates.note_next(lanes, |_| next);
                rows
            }
            _ => {
                let (chosen, next) = self.merged(&candidates, left).await?;
                candidates.note_next(lanes, |lane| next.get(&lane).copied());
                self.fetch(sqlx::query(OF_IDS).bind(json(&chosen)?)).await?
            }
        };
        let (mut started, mut memories) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in &rows {
            let lane: i64 = get(row, 10)?;
            let named = self.names().lane(lane).ok_or_else(|| corrupt("the lane of due jobs"))?;
            let (job, shape) = decode_claimed(row, named, (self.now + claim.lease, claim.draw))?;
            memories.extend(shape.and_then(|shape| remembered(&job, &shape, self.now)));
            let waiting = LaneState::new(lane, JobState::Scheduled);
            self.tally.move_one(waiting, waiting.with(JobState::Running));
            let partition = candidates.partitions.get(&lane).cloned();
            started.push(Started { job, partition });
        }
        started.sort_unstable_by_key(|one| (one.job.due_at, one.job.id));
        let (db, names, _) = self.parts();
        write_memories(db, names, &memories).await?;
        Ok(started)
    }

    /// The first `left` jobs of several lanes, and when the next of each lane is due.
    async fn merged(
        &mut self,
        candidates: &Candidates,
        left: usize,
    ) -> Result<(Vec<i64>, BTreeMap<i64, Timestamp>)> {
        let lanes: Vec<i64> = candidates.lanes.iter().map(|(lane, _)| *lane).collect();
        // Mostly each lane has its share, so that reading `left` of each is rarely needed.
        for depth in [left / lanes.len() + 2, left.saturating_add(1)] {
            let query = sqlx::query(HEADS).bind(json(&lanes)?).bind(self.now.as_micros());
            let query = query.bind(i64::try_from(depth).unwrap_or(i64::MAX));
            let mut places: Vec<Place> = Vec::new();
            for row in &self.fetch(query).await? {
                places.push((time(row, 0)?, get(row, 1)?, get(row, 2)?));
            }
            places.sort_unstable();
            if let Some(merged) = candidates.merge(&places, left, depth) {
                return Ok(merged);
            }
        }
        Err(corrupt("the jobs that are due"))
    }

    async fn fetch(&mut self, query: Trip) -> Result<Vec<SqliteRow>> {
        query.fetch_all(&mut self.writer.db).await.map_err(|e| explain("read due jobs", e))
    }

    /// Writes the starts, last of all.
    async fn record(&mut self, claim: &Claim, line: &mut Line, started: &[Started]) -> Result<()> {
        if line.settings.limits_rate() {
            self.record_rates(claim, line, started).await?;
        }
        let ids: Vec<i64> = started.iter().map(|one| signed(one.job.id.get())).collect();
        let start = |sql| -> Result<Trip> {
            let start = sqlx::query(sql).bind(json(&ids)?).bind(self.now.as_micros());
            let start = start.bind(claim.worker.as_str().to_owned());
            let start = start.bind((self.now + claim.lease).as_micros());
            Ok(start.bind(signed(claim.draw.get())))
        };
        if !limits_partitions(&line.settings) {
            let in_partitions = started.iter().any(|one| one.partition.is_some());
            let parting = if in_partitions { START_IN_PARTITIONS_AND_COMMIT } else { START };
            self.parting = Some(start(parting)?);
            return Ok(());
        }
        // These starts may fill partitions, so that what comes next is known only after them.
        let start = start(START_IN_PARTITIONS)?;
        start.execute(&mut self.writer.db).await.map_err(|e| explain("start jobs", e))?;
        line.lanes.retain(|lane| lane.partition.is_none());
        let stale = read_heads(&mut self.writer.db, line, &claim.queue, 1).await?;
        self.hold_back(&claim.queue, &stale).await
    }

    /// Puts starts on record for the queue's rates, and holds back partitions that they fill.
    async fn record_rates(
        &mut self,
        claim: &Claim,
        line: &mut Line,
        started: &[Started],
    ) -> Result<()> {
        let partitions: Vec<_> = started.iter().map(|one| one.partition.as_ref()).collect();
        for starts in line.settings.rated_starts(&claim.queue, &partitions) {
            self.record_starts(&starts).await?;
        }
        let mut taken = std::mem::take(&mut line.taken);
        count_starts(&mut taken, &mut self.writer.db, line, &claim.queue).await?;
        line.taken = taken;
        let names: BTreeSet<&str> = partitions.iter().flatten().map(|name| name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        count_partitions(&mut self.writer.db, line, &claim.queue, &names).await?;
        let free_at = |name: &Key| line.taken.partitions.get(name).map(|used| used.free_at);
        let full = started.iter().filter_map(|one| {
            let name = one.partition.as_ref()?;
            Some((name.clone(), free_at(name).filter(|at| *at > line.now)?))
        });
        let full: Stale = full.collect();
        self.hold_back(&claim.queue, &full).await
    }
}

/// A job that starts, and its partition.
struct Started {
    job: ClaimedJob,
    partition: Option<Key>,
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
    lease: (Timestamp, Draw),
) -> Result<(ClaimedJob, Option<Shape>)> {
    let id = JobId::new(unsigned(get(row, 0)?));
    decode_started(id, row, lane, lease).map_err(|error| unreadable_row(id, &error))
}

fn decode_started(
    id: JobId,
    row: &SqliteRow,
    lane: &Lane,
    (lease_until, draw): (Timestamp, Draw),
) -> Result<(ClaimedJob, Option<Shape>)> {
    let key: Option<&str> = get(row, 3)?;
    let shape: Option<&str> = get(row, 9)?;
    let shape = shape.map(serde_json::from_str).transpose();
    let shape = shape.map_err(|error| corrupt(format_args!("shape: {error}")))?;
    let token = LeaseToken::new(unsigned(get(row, 2)?));
    let attempt: u32 = get(row, 5)?;
    let job = ClaimedJob {
        id,
        token: token.next(draw),
        task: lane.task.clone(),
        key: key.map(Key::new).transpose()?,
        payload: Payload::from_stored(get::<&str, _>(row, 4)?),
        attempt: attempt.saturating_add(1),
        failures: get(row, 6)?,
        crashes: get(row, 11)?,
        triggers: unsigned(get(row, 7)?),
        first_at: time(row, 8)?,
        due_at: time(row, 1)?,
        lease_until,
        traces: Columns(row).traces(12)?,
    };
    Ok((job, shape))
}
