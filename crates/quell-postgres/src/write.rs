//! Jobs as rows on disk, written: new ones, changed windows, and whole rows.
//!
//! Each statement writes many rows from arrays, in an order that all calls share: windows by task
//! and key, so that calls which open the same ones never wait in a circle.
//!
//! Rows that are there are found with `between`: a plan made while a table was empty would turn a
//! join by equality round, and read the table for each call. This join has one order only.

use std::collections::BTreeMap;

use quell_core::edge::Edge;
use quell_core::job::Shape;
use quell_core::trace::TraceContext;
use quell_core::trigger::When;
use quell_core::{Job, JobId, NewTrigger, Result, Timestamp};
use quell_engine::sql::Value;
use serde::Serialize;

use crate::counts::counts_itself;
use crate::error::corrupt;
use crate::names::{Lane, Names};
use crate::parts::expires;
use crate::row::{signed, signed_count};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx};

/// New jobs, and how many of each lane. A delay past the end of time ends there.
const INSERT_PLAIN: &str = concat!(
    "with clock as materialized (
             select quell.tick($1, $2) as now, ",
    counts_itself!(),
    "),
         counted as (
             insert into quell.delta (lane_id, now, jobs)
             select lane_id, 0, jobs from unnest($10::int[], $11::bigint[]) c (lane_id, jobs)),
         asked as (
             select t.ord, t.lane_id, t.task_id, t.partition_id, t.partition, t.payload, t.traces, c.now,
                    case when t.delay > 9223372036854775807 - c.now then 9223372036854775807
                         else coalesce(t.at, c.now + t.delay) end as asked_at
               from clock c, unnest($3::int[], $4::int[], $5::bigint[], $6::bigint[], $7::text[],
                    $8::int[], $9::text[], $12::text[])
                    with ordinality
                    as t (lane_id, task_id, delay, at, payload, partition_id, partition, traces, ord)
              order by t.ord),
         new as (
             insert into quell.job
                    (id, lane_id, task_id, due_at, first_at, asked_at, reason, payload,
                     partition_id, partition, traces)
             select nextval('quell.job_id'), lane_id, task_id, greatest(now, asked_at), now,
                    asked_at, case when asked_at > now then 1 else 0 end, payload, partition_id,
                    partition, traces
               from asked
          returning id)
         select c.now, (select array_agg(id) from new) from clock c"
);

/// New jobs that have no key and take none: one statement, which is its own transaction (R9).
pub(crate) fn insert_plain(
    sql: &Sql,
    names: &Names,
    asked: Asked,
    triggers: &[&NewTrigger],
) -> Result<PgQuery> {
    let (mut lanes, mut tasks) = (Vec::new(), Vec::new());
    let (mut delays, mut times, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
    let (mut partition_ids, mut partitions, mut traces) = (Vec::new(), Vec::new(), Vec::new());
    let mut counted: BTreeMap<i32, i64> = BTreeMap::new();
    for trigger in triggers {
        let lane = names.find(&trigger.queue, &trigger.task, trigger.priority);
        let lane = lane.ok_or_else(|| corrupt("the lane of a trigger"))?;
        let (delay, at) = match trigger.when {
            When::Now => (None, None),
            When::After(delay) => {
                (Some(i64::try_from(delay.as_micros()).unwrap_or(i64::MAX)), None)
            }
            When::At(at) => (None, unless_min(at)),
        };
        lanes.push(lane.id);
        *counted.entry(lane.id).or_default() += 1;
        tasks.push(lane.task_id);
        delays.push(delay);
        times.push(at);
        payloads.push(trigger.payload.as_str().to_owned());
        let partition = trigger.partition.as_ref();
        partition_ids.push(match partition {
            None => 0,
            Some(name) => names.partition_id(name).ok_or_else(|| corrupt("a partition"))?,
        });
        partitions.push(partition.map(|name| name.as_str().to_owned()));
        traces.push(trigger.trace.as_ref().map(TraceContext::to_string));
    }
    // An empty column stands for nulls.
    if traces.iter().all(Option::is_none) {
        traces.clear();
    }
    let query = asked.bind(sql.query(INSERT_PLAIN)).bind(lanes).bind(tasks);
    let query = query.bind(delays).bind(times).bind(payloads).bind(partition_ids).bind(partitions);
    let (counted_lanes, counts): (Vec<i32>, Vec<i64>) = counted.into_iter().unzip();
    Ok(query.bind(counted_lanes).bind(counts).bind(traces))
}

impl Tx {
    /// Jobs with their lanes. Fails, to be tried again, where a lane has no number yet.
    fn laned<'j>(&mut self, jobs: &[&'j Job]) -> Result<Vec<Laned<'j>>> {
        let mut laned = Vec::with_capacity(jobs.len());
        for job in jobs {
            laned.extend(self.name(job).map(|named| (*job, named)));
        }
        self.check_named()?;
        Ok(laned)
    }

    /// Ids for new jobs.
    pub(crate) async fn new_ids(&mut self, count: usize) -> Result<Vec<i64>> {
        const IDS: &str = "select nextval('quell.job_id') from generate_series(1, $1)";
        if count == 0 {
            return Ok(Vec::new());
        }
        let query = self.sql.query(IDS).bind(i64::try_from(count).unwrap_or(i64::MAX));
        let rows = self.fetch("number new jobs", query).await?;
        let mut ids = rows.iter().map(|row| crate::row::get(row, 0)).collect::<Result<Vec<_>>>()?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// Inserts new jobs. Fails, to be tried again, where another call opened a window of the same
    /// key a moment earlier. `behind` are the closed windows that they wait behind, whose rows this
    /// call holds.
    pub(crate) async fn insert_new(&mut self, jobs: &[&Job], behind: &Behind) -> Result<()> {
        const INSERT: &str = "insert into quell.job
                (id, lane_id, task_id, due_at, first_at, bound_at, asked_at, not_before, reason,
                 triggers, suppressed, overlap, period, key, shape, payload, partition_id, partition,
                 closed, behind, traces)
             select * from unnest($1::bigint[], $2::int[], $3::int[], $4::bigint[], $5::bigint[],
                 $6::bigint[], $7::bigint[], $8::bigint[], $9::smallint[], $10::bigint[],
                 $11::bigint[], $12::bool[], $13::bigint[], $14::text[], $15::text[], $16::text[],
                 $17::int[], $18::text[], $19::bool[], $20::bigint[], $21::text[])";
        if jobs.is_empty() {
            return Ok(());
        }
        let mut jobs = self.laned(jobs)?;
        jobs.sort_by(|(a, la), (b, lb)| {
            (la.0.task_id, &a.key, a.id).cmp(&(lb.0.task_id, &b.key, b.id))
        });
        let query = self
            .sql
            .query(INSERT)
            .bind(column(&jobs, |job, _| signed(job.id.get())))
            .bind(column(&jobs, |_, lane| lane.id))
            .bind(column(&jobs, |_, lane| lane.task_id))
            .bind(column(&jobs, |job, _| job.window.due_at.as_micros()))
            .bind(column(&jobs, |job, _| job.window.first_at.as_micros()));
        let query = bind_windows(query, &jobs)
            .bind(column(&jobs, |job, _| job.shape.overlap))
            .bind(column(&jobs, |job, _| period(&job.shape)))
            .bind(column(&jobs, |job, _| job.key.as_ref().map(|key| key.as_str().to_owned())))
            .bind(shapes(&jobs)?)
            .bind(column(&jobs, |job, _| job.payload.as_str().to_owned()))
            .bind(jobs.iter().map(|(_, (_, partition))| *partition).collect::<Vec<_>>())
            .bind(column(&jobs, |job, _| partition(job)))
            .bind(column(&jobs, |job, _| job.is_closed_window()))
            .bind(column(&jobs, |job, _| behind.get(&job.id).map(|id| signed(id.get()))))
            .bind(column(&jobs, |job, _| traces(job)));
        self.run("write new jobs", query).await
    }

    /// Writes what triggers change in jobs that were there before: the window, and what was folded
    /// in. An empty payload was not read, which says that it stays. A job that has ended since is
    /// where a leading edge counts what it does not run.
    pub(crate) async fn update_joined(&mut self, jobs: &[&Job]) -> Result<()> {
        const UPDATE: &str = "update quell.job j
                set lane_id = w.lane_id, due_at = w.due_at, last_at = w.last_at,
                    bound_at = w.bound_at, asked_at = w.asked_at, not_before = w.not_before,
                    reason = w.reason, triggers = w.triggers, suppressed = w.suppressed,
                    attempt = w.attempt, overlap = w.overlap, period = w.period, shape = w.shape,
                    payload = coalesce(w.payload, j.payload), partition_id = w.partition_id,
                    partition = w.partition, closed = w.closed, traces = w.traces,
                    behind = case when not w.overlap then j.behind end
               from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[],
                           $6::bigint[], $7::bigint[], $8::smallint[], $9::bigint[], $10::bigint[],
                           $11::int[], $12::bool[], $13::bigint[], $14::text[], $15::text[],
                           $16::int[], $17::text[], $18::bool[], $19::text[])
                    as w (id, lane_id, due_at, last_at, bound_at, asked_at, not_before, reason,
                          triggers, suppressed, attempt, overlap, period, shape, payload,
                          partition_id, partition, closed, traces)
              where j.id between w.id and w.id";
        const SUPPRESS: &str =
            "update quell.ended j set triggers = w.triggers, suppressed = w.suppressed
               from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as w (id, triggers, suppressed)
              where j.id between w.id and w.id";
        let (ended, here): (Vec<&Job>, Vec<&Job>) =
            jobs.iter().partition(|job| job.state.is_ended());
        if !here.is_empty() {
            let jobs = self.laned(&here)?;
            let text = |job: &Job| {
                let payload = job.payload.as_str();
                (!payload.is_empty()).then(|| payload.to_owned())
            };
            let query = self
                .sql
                .query(UPDATE)
                .bind(column(&jobs, |job, _| signed(job.id.get())))
                .bind(column(&jobs, |_, lane| lane.id))
                .bind(column(&jobs, |job, _| job.window.due_at.as_micros()))
                .bind(column(&jobs, |job, _| job.window.last_at.as_micros()));
            let query = bind_windows(query, &jobs)
                .bind(column(&jobs, |job, _| signed_count(job.attempt)))
                .bind(column(&jobs, |job, _| job.shape.overlap))
                .bind(column(&jobs, |job, _| period(&job.shape)))
                .bind(shapes(&jobs)?)
                .bind(column(&jobs, |job, _| text(job)))
                .bind(jobs.iter().map(|(_, (_, partition))| *partition).collect::<Vec<_>>())
                .bind(column(&jobs, |job, _| partition(job)))
                .bind(column(&jobs, |job, _| job.is_closed_window()))
                .bind(column(&jobs, |job, _| traces(job)));
            self.run("write windows", query).await?;
        }
        if !ended.is_empty() {
            let query = self
                .sql
                .query(SUPPRESS)
                .bind(ended.iter().map(|job| signed(job.id.get())).collect::<Vec<_>>())
                .bind(ended.iter().map(|job| signed(job.window.triggers)).collect::<Vec<_>>())
                .bind(ended.iter().map(|job| signed(job.suppressed)).collect::<Vec<_>>());
            self.run("count suppressed triggers", query).await?;
        }
        Ok(())
    }

    /// Writes whole jobs that were there before, wherever their state puts them now. `was_ended`
    /// are those that come back from among the ended; `behind` is as for [`Tx::insert_new`].
    pub(crate) async fn put(
        &mut self,
        jobs: &[&Job],
        was_ended: bool,
        behind: &Behind,
    ) -> Result<()> {
        const UPDATE: &str = "update quell.job j
                set (lane_id, state, due_at, last_at, bound_at, asked_at, not_before, reason,
                     triggers, suppressed, attempt, failures, token, lapses, overlap, period,
                     started_at, ended_at, absorbed_by, worker, error, shape, payload,
                     partition_id, partition, closed, behind, traces)
                  = (w.lane_id, w.state, w.due_at, w.last_at, w.bound_at, w.asked_at, w.not_before,
                     w.reason, w.triggers, w.suppressed, w.attempt, w.failures, w.token, w.lapses,
                     w.overlap, w.period, w.started_at, w.ended_at, w.absorbed_by,
                     w.worker, w.error, w.shape, w.payload, w.partition_id, w.partition,
                     w.closed, w.behind, w.traces)
               from json_populate_recordset(null::quell.job, $1::json) w
              where j.id between w.id and w.id";
        const LEAVE: [&str; 2] = [
            "delete from quell.job where id = any($1)",
            "delete from quell.ended where id = any($1)",
        ];
        const ENTER: [&str; 2] = [
            "insert into quell.job select * from json_populate_recordset(null::quell.job, $1::json)",
            // Who names no part comes into the one that takes what ends.
            "insert into quell.ended
             select r.*
               from (select json_populate_record(null::quell.ended,
                                                 json_build_object('part', last_value)) as filled
                       from quell.ended_part) p
              cross join lateral json_populate_recordset(p.filled, $1::json) r",
        ];
        let (gone, here): (Vec<&Job>, Vec<&Job>) =
            jobs.iter().partition(|job| job.state.is_ended());
        // A job that gives up a key is written before a job that takes it.
        for (jobs, from, to) in
            [(gone, usize::from(was_ended), 1), (here, usize::from(was_ended), 0)]
        {
            if jobs.is_empty() {
                continue;
            }
            let mut rows = self
                .laned(&jobs)?
                .into_iter()
                .map(|(job, (lane, partition))| {
                    let behind = behind.get(&job.id).map(|id| signed(id.get()));
                    Ok(Row { behind, ..Row::of(job, &lane, partition)? })
                })
                .collect::<Result<Vec<_>>>()?;
            rows.sort_by(|a, b| (a.task_id, &a.key).cmp(&(b.task_id, &b.key)));
            let rows = serde_json::to_string(&rows)
                .map_err(|error| corrupt(format_args!("rows of jobs: {error}")))?;
            if (from, to) == (0, 0) {
                self.run("write jobs", self.sql.query(UPDATE).bind(rows)).await?;
                continue;
            }
            if let (Some(leave), Some(enter)) = (LEAVE.get(from), ENTER.get(to)) {
                let ids: Vec<i64> = jobs.iter().map(|job| signed(job.id.get())).collect();
                self.run("move jobs", self.sql.query(leave).bind(ids)).await?;
                self.run("move jobs", self.sql.query(enter).bind(rows)).await?;
            }
        }
        Ok(())
    }
}

/// The closed windows that others wait behind (R10): see the schema.
pub(crate) type Behind = BTreeMap<JobId, JobId>;

/// A job's row, with the names of its columns.
#[derive(Debug, Serialize)]
struct Row<'j> {
    id: i64,
    due_at: i64,
    first_at: i64,
    last_at: i64,
    bound_at: Option<i64>,
    asked_at: Option<i64>,
    not_before: Option<i64>,
    triggers: i64,
    suppressed: i64,
    token: i64,
    started_at: Option<i64>,
    ended_at: Option<i64>,
    absorbed_by: Option<i64>,
    period: Option<i64>,
    lane_id: i32,
    task_id: i32,
    attempt: i32,
    failures: i32,
    // The column is older than the name.
    #[serde(rename = "lapses")]
    crashes: i32,
    partition_id: i32,
    state: u8,
    reason: u8,
    overlap: bool,
    closed: bool,
    /// R37: none is the part that takes what ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<i16>,
    behind: Option<i64>,
    key: Option<&'j str>,
    partition: Option<&'j str>,
    worker: Option<&'j str>,
    error: Option<String>,
    shape: Option<String>,
    payload: &'j str,
    output: Option<&'j str>,
    traces: Option<&'j str>,
}

impl<'j> Row<'j> {
    fn of(job: &'j Job, lane: &Lane, partition_id: i32) -> Result<Self> {
        let window = &job.window;
        let maybe = |time: Option<Timestamp>| time.map(Timestamp::as_micros);
        Ok(Row {
            id: signed(job.id.get()),
            due_at: window.due_at.as_micros(),
            first_at: window.first_at.as_micros(),
            last_at: window.last_at.as_micros(),
            bound_at: maybe(window.bound_at),
            asked_at: unless_min(window.asked_at),
            not_before: unless_min(window.not_before),
            triggers: signed(window.triggers),
            suppressed: signed(job.suppressed),
            token: signed(job.token.get()),
            started_at: maybe(job.started_at),
            ended_at: maybe(job.ended_at),
            absorbed_by: job.absorbed_by.map(|id| signed(id.get())),
            period: period(&job.shape),
            lane_id: lane.id,
            task_id: lane.task_id,
            attempt: signed_count(job.attempt),
            failures: signed_count(job.failures),
            crashes: signed_count(job.crashes),
            partition_id,
            state: job.state.code(),
            reason: window.reason.code(),
            overlap: job.shape.overlap,
            // R10: it may have been one, and what is behind it goes on: see the schema.
            closed: job.is_closed_window() || (job.state.is_ended() && job.key.is_some()),
            part: (!expires(job.state)).then_some(0),
            behind: None,
            key: job.key.as_ref().map(quell_core::Key::as_str),
            partition: job.partition.as_ref().map(quell_core::Key::as_str),
            worker: job.worker.as_ref().map(quell_core::WorkerId::as_str),
            error: job.error.as_deref().map(storable),
            shape: shape(job)?,
            payload: job.payload.as_str(),
            output: job.output.as_ref().map(quell_core::Payload::as_str),
            traces: job.traces.as_str(),
        })
    }
}

/// Binds the value of a column.
pub(crate) fn bind(query: PgQuery, value: Value) -> PgQuery {
    match value {
        Value::Number(number) => query.bind(number),
        Value::Text(text) => query.bind(text),
    }
}

/// PostgreSQL's text has no NUL: an error that has one shows the symbol for it.
pub(crate) fn storable(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// A job, its lane, and the number of its partition.
type Laned<'j> = (&'j Job, (std::sync::Arc<Lane>, i32));

/// Binds the columns from `bound_at` to `suppressed`: what triggers change in a window, except its times.
fn bind_windows(query: PgQuery, jobs: &[Laned<'_>]) -> PgQuery {
    query
        .bind(column(jobs, |job, _| job.window.bound_at.map(Timestamp::as_micros)))
        .bind(column(jobs, |job, _| unless_min(job.window.asked_at)))
        .bind(column(jobs, |job, _| unless_min(job.window.not_before)))
        .bind(column(jobs, |job, _| i16::from(job.window.reason.code())))
        .bind(column(jobs, |job, _| signed(job.window.triggers)))
        .bind(column(jobs, |job, _| signed(job.suppressed)))
}

fn column<T>(jobs: &[Laned<'_>], value: impl Fn(&Job, &Lane) -> T) -> Vec<T> {
    jobs.iter().map(|(job, (lane, _))| value(job, lane)).collect()
}

fn shapes(jobs: &[Laned<'_>]) -> Result<Vec<Option<String>>> {
    jobs.iter().map(|(job, _)| shape(job)).collect()
}

fn shape(job: &Job) -> Result<Option<String>> {
    let shape = (job.shape != Shape::default()).then(|| serde_json::to_string(&job.shape));
    let id = job.id;
    shape.transpose().map_err(|error| corrupt(format_args!("shape of job {id}: {error}")))
}

/// R13: the period of a throttled key, in microseconds.
fn period(shape: &Shape) -> Option<i64> {
    let period = shape.period.filter(|_| shape.edge == Edge::Throttle)?;
    Some(i64::try_from(period.as_micros()).unwrap_or(i64::MAX))
}

fn partition(job: &Job) -> Option<String> {
    job.partition.as_ref().map(|partition| partition.as_str().to_owned())
}

/// The trace contexts of a job (R42).
fn traces(job: &Job) -> Option<String> {
    job.traces.as_str().map(str::to_owned)
}

fn unless_min(time: Timestamp) -> Option<i64> {
    (time != Timestamp::MIN).then(|| time.as_micros())
}
