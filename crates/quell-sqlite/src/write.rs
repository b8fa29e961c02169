//! Jobs as rows on disk, written: new ones, changed windows, and whole rows.
//!
//! Each statement writes many rows and binds as few values for each as it can, because binding is
//! what costs. There are few sizes of each statement, so that all stay prepared; the rows a
//! statement has too many are bound as nulls and skipped.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use quell_core::job::Shape;
use quell_core::{Job, JobId, JobState, Result, Timestamp};
use quell_engine::sql::Value;
use sqlx::SqliteConnection;

use crate::counts::{LaneState, LaneTally, count_and_commit};
use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::names::Names;
use crate::row::signed;
use crate::tx::Trip;

/// What a write needs of its transaction: the connection, the names and the counts.
pub(crate) type Parts<'t> = (&'t mut SqliteConnection, &'t mut Names, &'t mut LaneTally);

/// When the last statement of a write goes to the connection.
pub(crate) enum Last<'p> {
    /// At once, as those before it.
    Alone,
    /// With the commit: it is stored here for [`Tx::parting`](crate::tx::Tx).
    WithCommit(&'p mut Option<Trip>),
}

/// How many rows a statement takes, from small to large.
const SIZES: [usize; 6] = [1, 4, 16, 64, 256, 1024];

/// A statement in each of the [`SIZES`].
struct Sized {
    texts: [OnceLock<String>; SIZES.len()],
    /// The same, which commit.
    partings: [OnceLock<String>; SIZES.len()],
    /// Before and after the rows.
    around: [&'static str; 2],
    /// Values of one row.
    columns: usize,
    /// At most this many rows.
    largest: usize,
}

impl Sized {
    const fn new(around: [&'static str; 2], columns: usize, largest: usize) -> Self {
        Sized {
            texts: [const { OnceLock::new() }; SIZES.len()],
            partings: [const { OnceLock::new() }; SIZES.len()],
            around,
            columns,
            largest,
        }
    }

    /// The index of the size for the first chunk of `left` rows.
    fn size_for(&self, left: usize) -> Option<usize> {
        let fits = |index: &usize| SIZES.get(*index).is_some_and(|size| *size <= self.largest);
        // The size above, unless half of it would be empty.
        let above = SIZES.iter().position(|size| *size >= left && left * 2 > *size);
        let below = || SIZES.iter().rposition(|size| *size <= left.min(self.largest));
        above.filter(fits).or_else(below).filter(|_| left > 0)
    }

    fn text(&'static self, index: usize, size: usize, commits: bool) -> Option<&'static str> {
        let text = if commits { self.partings.get(index) } else { self.texts.get(index) };
        Some(text?.get_or_init(|| {
            let row = format!("({})", vec!["?"; self.columns].join(","));
            let [before, after] = self.around;
            let commit = if commits { concat!(";", count_and_commit!("?")) } else { "" };
            format!("{before}{}{after}{commit}", vec![row; size].join(","))
        }))
    }

    /// Writes `items`: `bind` binds the values of one, `finish` what stands after the rows.
    async fn write<T>(
        &'static self,
        db: &mut SqliteConnection,
        mut items: &[T],
        mut bind: impl FnMut(Trip, &T) -> Result<Trip>,
        finish: impl Fn(Trip) -> Trip,
        last: Last<'_>,
    ) -> Result<()> {
        let mut last = Some(last);
        while let Some(index) = self.size_for(items.len()) {
            let size = SIZES.get(index).copied().unwrap_or(1);
            let (chunk, rest) = items.split_at(size.min(items.len()));
            let parting = match last.take_if(|_| rest.is_empty()) {
                Some(Last::WithCommit(parting)) => Some(parting),
                Some(Last::Alone) | None => None,
            };
            let Some(text) = self.text(index, size, parting.is_some()) else { break };
            let mut query = sqlx::query(text);
            for item in chunk {
                query = bind(query, item)?;
            }
            for _ in chunk.len() * self.columns..size * self.columns {
                query = query.bind(None::<i64>);
            }
            let query = finish(query);
            match parting {
                Some(parting) => *parting = Some(query),
                None => {
                    query.execute(&mut *db).await.map_err(|e| explain("write jobs", e))?;
                }
            }
            items = rest;
        }
        Ok(())
    }
}

/// A job and the numbers of its lane and task.
type Laned<'j> = (&'j Job, i64, i64);

async fn laned<'j>(
    db: &mut SqliteConnection,
    names: &mut Names,
    jobs: &[&'j Job],
) -> Result<Vec<Laned<'j>>> {
    let mut laned = Vec::with_capacity(jobs.len());
    for job in jobs {
        let lane = names.intern(db, &job.queue, &job.task, job.priority).await?;
        let lane_id = names.intern_partition(db, lane.id, job.partition.as_ref()).await?;
        laned.push((*job, lane_id, lane.task_id));
    }
    Ok(laned)
}

/// Inserts new jobs that have neither key nor delay, all of one lane, in the order of their ids.
pub(crate) async fn insert_plain(
    (db, names, tally): Parts<'_>,
    jobs: &[&Job],
    last: Last<'_>,
) -> Result<()> {
    static INSERT: Sized = Sized::new(
        [
            "with w (id, payload) as (values ",
            ")
             insert into quell_job (id, payload, lane_id, task_id, due_at, first_at, partition)
             select id, payload, ?, ?, ?, ?, ? from w where id is not null",
        ],
        2,
        1024,
    );
    static INSERT_TRACED: Sized = Sized::new(
        [
            "with w (id, payload, traces) as (values ",
            ")
             insert into quell_job (id, payload, traces, lane_id, task_id, due_at, first_at, partition)
             select id, payload, traces, ?, ?, ?, ?, ? from w where id is not null",
        ],
        3,
        1024,
    );
    let Some(first) = jobs.first() else { return Ok(()) };
    let lane = names.intern(db, &first.queue, &first.task, first.priority).await?;
    let lane_id = names.intern_partition(db, lane.id, first.partition.as_ref()).await?;
    let partition = partition(first);
    let is_traced = jobs.iter().any(|job| !job.traces.is_empty());
    let insert = if is_traced { &INSERT_TRACED } else { &INSERT };
    let (due, first) = (first.window.due_at.as_micros(), first.window.first_at.as_micros());
    let bind = |query: Trip, job: &&Job| {
        let query = query.bind(signed(job.id.get())).bind(job.payload.as_str().to_owned());
        Ok(if is_traced { query.bind(traces(job)) } else { query })
    };
    let finish = |query: Trip| {
        let query = query.bind(lane_id).bind(lane.task_id).bind(due).bind(first);
        query.bind(partition.clone())
    };
    // The first jobs of partitions are kept after it.
    let last = if partition.is_some() { Last::Alone } else { last };
    insert.write(db, jobs, bind, finish, last).await?;
    tally.add(LaneState::new(lane_id, JobState::Scheduled), jobs.len());
    note_heads(db, partition.iter().map(|_| lane_id)).await
}

/// Inserts new jobs of any kind, in the order of their ids.
pub(crate) async fn insert_new(
    (db, names, tally): Parts<'_>,
    jobs: &[&Job],
    last: Last<'_>,
) -> Result<()> {
    static INSERT: Sized = Sized::new(
        [
            "with w (id, lane_id, task_id, waits, due_at, first_at, bound_at, asked_at, not_before,
                     reason, triggers, suppressed, key, hold, shape, partition, payload, traces)
                  as (values ",
            ")
             insert into quell_job (id, lane_id, task_id, waits, due_at, first_at, bound_at,
                                    asked_at, not_before, reason, triggers, suppressed, key, hold,
                                    shape, partition, payload, traces)
             select * from w where id is not null",
        ],
        18,
        256,
    );
    let bind = |query: Trip, (job, lane_id, task_id): &Laned<'_>| {
        let window = &job.window;
        let query = query
            .bind(signed(job.id.get()))
            .bind(*lane_id)
            .bind(*task_id)
            .bind(job.waits)
            .bind(window.due_at.as_micros())
            .bind(window.first_at.as_micros());
        let query = bind_window(query, job);
        Ok(query
            .bind(job.key.as_ref().map(|key| key.as_str().to_owned()))
            .bind(hold(job))
            .bind(shape(job)?)
            .bind(partition(job))
            .bind(job.payload.as_str().to_owned())
            .bind(traces(job)))
    };
    let jobs = laned(db, names, jobs).await?;
    let has_partitions = jobs.iter().any(|(job, ..)| job.partition.is_some());
    let last = if has_partitions { Last::Alone } else { last };
    INSERT.write(db, &jobs, bind, |query| query, last).await?;
    for (_, lane_id, _) in &jobs {
        tally.add(LaneState::new(*lane_id, JobState::Scheduled), 1);
    }
    let in_partitions = jobs.iter().filter(|(job, ..)| job.partition.is_some());
    note_heads(db, in_partitions.map(|(_, lane_id, _)| *lane_id)).await
}

/// Keeps the first jobs of these partitions' lanes, into which jobs were inserted.
async fn note_heads(db: &mut SqliteConnection, lanes: impl Iterator<Item = i64>) -> Result<()> {
    const HEADS: &str = "update quell_partition
            set (head_at, head_id) = (select due_at, id from quell_job
                                       where lane_id = k.value and state = 0 and waits = 0
                                       order by due_at, id limit 1)
           from json_each(?1) k
          where quell_partition.lane_id = k.value >> 32
            and quell_partition.number = k.value & 4294967295";
    let lanes: BTreeSet<i64> = lanes.collect();
    if lanes.is_empty() {
        return Ok(());
    }
    let noted = sqlx::query(HEADS).bind(json(&lanes)?).execute(&mut *db).await;
    noted.map(drop).map_err(|e| explain("keep the first jobs of partitions", e))
}

/// Writes what triggers change in jobs that were there before: the window, and what was folded in.
///
/// Fewer columns than [`put`], and so fewer indexes: those of keys, leases and ends stay untouched. The
/// caller knows which jobs moved to another lane, and counts them.
pub(crate) async fn update_joined(
    db: &mut SqliteConnection,
    names: &mut Names,
    jobs: &[&Job],
    last: Last<'_>,
) -> Result<()> {
    static UPDATE: Sized = Sized::new(
        [
            "with w (id, lane_id, waits, due_at, last_at, bound_at, asked_at, not_before, reason,
                     triggers, suppressed, attempt, shape, partition, hold, payload, traces)
                  as (values ",
            ")
             update quell_job
                set lane_id = w.lane_id, waits = w.waits, due_at = w.due_at, last_at = w.last_at,
                    bound_at = w.bound_at, asked_at = w.asked_at, not_before = w.not_before,
                    reason = w.reason, triggers = w.triggers, suppressed = w.suppressed,
                    attempt = w.attempt, shape = w.shape, partition = w.partition,
                    traces = w.traces,
                    -- Null where it stays: only a window that closes gives up its place.
                    hold = coalesce(w.hold, quell_job.hold),
                    -- Null where it was not read, which says that it stays.
                    payload = coalesce(w.payload, quell_job.payload)
               from w
              where quell_job.id = w.id",
        ],
        17,
        256,
    );
    let bind = |query: Trip, (job, lane_id, _): &Laned<'_>| {
        let window = &job.window;
        let payload = job.payload.as_str();
        let query = query
            .bind(signed(job.id.get()))
            .bind(*lane_id)
            .bind(job.waits)
            .bind(window.due_at.as_micros())
            .bind(window.last_at.as_micros());
        let query = bind_window(query, job);
        Ok(query
            .bind(job.attempt)
            .bind(shape(job)?)
            .bind(partition(job))
            .bind(hold(job).filter(|hold| *hold < 0))
            .bind((!payload.is_empty()).then(|| payload.to_owned()))
            .bind(traces(job)))
    };
    let jobs = laned(db, names, jobs).await?;
    UPDATE.write(db, &jobs, bind, |query| query, last).await
}

/// A job with all its columns, new or there before.
static PUT: Sized = Sized::new(
    [
        "with w (id, lane_id, task_id, state, waits, due_at, first_at, last_at, bound_at,
                 asked_at, not_before, reason, triggers, suppressed, attempt, failures, token,
                 lapses, key, hold, lease_until, started_at, ended_at, absorbed_by, worker,
                 error, shape, payload, partition, output, traces) as (values ",
        ")
         insert into quell_job (id, lane_id, task_id, state, waits, due_at, first_at, last_at,
                                bound_at, asked_at, not_before, reason, triggers, suppressed,
                                attempt, failures, token, lapses, key, hold, lease_until,
                                started_at, ended_at, absorbed_by, worker, error, shape,
                                payload, partition, output, traces)
         select * from w where id is not null
             on conflict (id) do update set
                lane_id = excluded.lane_id, state = excluded.state, waits = excluded.waits,
                due_at = excluded.due_at, last_at = excluded.last_at,
                bound_at = excluded.bound_at, asked_at = excluded.asked_at,
                not_before = excluded.not_before, reason = excluded.reason,
                triggers = excluded.triggers, suppressed = excluded.suppressed,
                attempt = excluded.attempt, failures = excluded.failures,
                token = excluded.token, lapses = excluded.lapses, hold = excluded.hold,
                lease_until = excluded.lease_until, started_at = excluded.started_at,
                ended_at = excluded.ended_at, absorbed_by = excluded.absorbed_by,
                worker = excluded.worker, error = excluded.error, shape = excluded.shape,
                payload = excluded.payload, partition = excluded.partition,
                output = excluded.output, traces = excluded.traces",
    ],
    31,
    64,
);

/// Writes whole jobs. `was` is what the row of a job said that was there before, and none of a new one.
/// Where one takes over another's place at a key, the other must come first.
pub(crate) async fn put(
    (db, names, tally): Parts<'_>,
    jobs: &[&Job],
    was: impl Fn(JobId) -> Option<LaneState>,
) -> Result<()> {
    let jobs = laned(db, names, jobs).await?;
    PUT.write(db, &jobs, bind_whole, |query| query, Last::Alone).await?;
    let mut lanes_of_new = Vec::new();
    for (job, lane_id, _) in &jobs {
        let now = LaneState::new(*lane_id, job.state);
        match was(job.id) {
            Some(was) => tally.move_one(was, now),
            None => {
                tally.add(now, 1);
                lanes_of_new.extend(job.partition.as_ref().map(|_| *lane_id));
            }
        }
    }
    note_heads(db, lanes_of_new.into_iter()).await
}

/// Binds all columns of a job.
fn bind_whole(query: Trip, (job, lane_id, task_id): &Laned<'_>) -> Result<Trip> {
    let window = &job.window;
    let maybe = |time: Option<Timestamp>| time.map(Timestamp::as_micros);
    let query = query
        .bind(signed(job.id.get()))
        .bind(*lane_id)
        .bind(*task_id)
        .bind(job.state.code())
        .bind(job.waits)
        .bind(window.due_at.as_micros())
        .bind(window.first_at.as_micros())
        .bind(window.last_at.as_micros());
    Ok(bind_window(query, job)
        .bind(job.attempt)
        .bind(job.failures)
        .bind(signed(job.token.get()))
        .bind(job.crashes)
        .bind(job.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(hold(job))
        .bind(maybe(job.lease_until))
        .bind(maybe(job.started_at))
        .bind(maybe(job.ended_at))
        .bind(job.absorbed_by.map(|id| signed(id.get())))
        .bind(job.worker.as_ref().map(|worker| worker.as_str().to_owned()))
        .bind(job.error.clone())
        .bind(shape(job)?)
        .bind(job.payload.as_str().to_owned())
        .bind(partition(job))
        .bind(job.output.as_ref().map(|output| output.as_str().to_owned()))
        .bind(traces(job)))
}

/// Binds the columns from `bound_at` to `suppressed`: what triggers change in a window, except its times.
fn bind_window(query: Trip, job: &Job) -> Trip {
    let window = &job.window;
    query
        .bind(window.bound_at.map(Timestamp::as_micros))
        .bind(unless_min(window.asked_at))
        .bind(unless_min(window.not_before))
        .bind(window.reason.code())
        .bind(signed(window.triggers))
        .bind(signed(job.suppressed))
}

/// Binds the value of a column.
pub(crate) fn bind(query: Trip, value: Value) -> Trip {
    match value {
        Value::Number(number) => query.bind(number),
        Value::Text(text) => query.bind(text),
    }
}

/// Which place of its key a job holds: see the schema.
fn hold(job: &Job) -> Option<i64> {
    match (job.state, &job.key) {
        (JobState::Scheduled, Some(_)) if job.shape.closed => Some(-signed(job.id.get())),
        (JobState::Scheduled, Some(_)) => Some(0),
        (JobState::Running, Some(_)) => Some(signed(job.id.get())),
        _ => None,
    }
}

fn partition(job: &Job) -> Option<String> {
    job.partition.as_ref().map(|partition| partition.as_str().to_owned())
}

/// The trace contexts of a job (R42).
fn traces(job: &Job) -> Option<String> {
    job.traces.as_str().map(str::to_owned)
}

fn shape(job: &Job) -> Result<Option<String>> {
    let shape = (job.shape != Shape::default()).then(|| serde_json::to_string(&job.shape));
    let job = job.id;
    shape.transpose().map_err(|error| corrupt(format_args!("shape of job {job}: {error}")))
}

fn unless_min(time: Timestamp) -> Option<i64> {
    (time != Timestamp::MIN).then(|| time.as_micros())
}
