//! Debounced triggers of the common kind, in one statement that is its own transaction: each joins
//! the open window of its key, or opens one (R6, R7). Triggers of one key fold before that.
//!
//! Common are calls of single triggers whose task keeps the last payload, trails, and names its
//! thresholds. What the statement does not take, because the window has a history that asks for
//! more, `enqueue` does in a transaction of several.

use std::collections::BTreeMap;

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::trace::Traces;
use quell_core::trigger::{Keyed, When};
use quell_core::{Batch, Error, Fold, Job, NewTrigger, Now, Receipt, Result, Timestamp, TriggerId};
use sqlx::postgres::PgRow;

use crate::backend::PostgresBackend;
use crate::counts::counts_itself;
use crate::error::{corrupt, wants_retry};
use crate::names::Names;
use crate::row::{JOB_COLUMNS, decode, job_columns, optional_time};
use crate::sql::PgQuery;
use crate::tx::Outgoing;

/// The sum of a moment and a duration, which ends where time does.
macro_rules! after {
    ($at:expr, $duration:literal) => {
        concat!(
            "(case when ",
            $duration,
            " > 9223372036854775807 - ",
            $at,
            " then 9223372036854775807 else ",
            $at,
            " + ",
            $duration,
            " end)"
        )
    };
}

/// When the trigger counts: a call that wrote the window's row while this one waited for it came first.
macro_rules! joined_at {
    () => {
        "greatest(c.now, coalesce(j.last_at, j.first_at))"
    };
}

/// Keys are sorted, as for all calls that open windows, and rows are locked by their ids.
const GATHER: &str = concat!(
    "with clock as materialized (
         select quell.tick($1, $2) as now, ", counts_itself!(), ",
                exists (select from quell.inbox where refused is null) as inbox_waits),
     asked as materialized (
         select a.*, w.id, w.due_at
           from unnest($3::int[], $4::int[], $5::text[], $6::bigint[], $7::text[], $8::bigint[],
                       $9::bigint[], $10::int[], $11::text[], $12::text[]) with ordinality
                as a (lane_id, task_id, key, triggers, payload, quiet, longest, partition_id,
                      partition, traces, ord)
           left join lateral (
                select j.id, j.due_at from quell.job j
                 where j.task_id = a.task_id and j.key between a.key and a.key and j.state = 0
                   and not j.closed
                 -- The order of the index of windows: where the table was empty when this was
                 -- planned, every other index seems as good.
                 order by j.key limit 1) w on true
          order by w.id, a.ord),
     -- R7: a join. Windows that wait for a backoff or a delay, whose bound has moved, or whose queue,
     -- priority or shape would change, are left alone.
     joined as (
         update quell.job j
            set last_at = ", joined_at!(), ",
                due_at = least(", after!(joined_at!(), "a.quiet"), ", j.bound_at),
                reason = case when j.bound_at < ", after!(joined_at!(), "a.quiet"), "
                              then 3 else 2 end,
                triggers = j.triggers + a.triggers, attempt = 0, payload = a.payload,
                -- R42: the first 16; one that is the same as that before it is not kept twice.
                traces = case when a.traces is null then j.traces else (
                    select array_to_string((had || case when had[cardinality(had)] = came[1]
                                                        then came[2:] else came end)[1:16], chr(10))
                      from (select string_to_array(j.traces, chr(10)) as had,
                                   string_to_array(a.traces, chr(10)) as came offset 0) t) end
           from asked a, clock c
          where j.id = any(array(select id from asked)) and j.id between a.id and a.id
            and j.state + 0 = 0 and not c.inbox_waits
            and j.lane_id + 0 = a.lane_id and j.partition_id + 0 = a.partition_id
            and j.bound_at = ", after!("j.first_at", "a.longest"), "
            and j.asked_at is null and j.not_before is null and j.shape is null
            and j.period is null and not j.overlap
      returning ", job_columns!("null::text", "false"), ", a.due_at as due_before),
     -- R6. Where another call opened a window of the same key a moment earlier, this one joins.
     opened as (
         insert into quell.job as j
                (id, lane_id, task_id, due_at, first_at, bound_at, reason, triggers, key, payload,
                 partition_id, partition, traces)
         select nextval('quell.job_id'), a.lane_id, a.task_id, ", after!("c.now", "a.quiet"), ",
                c.now, ", after!("c.now", "a.longest"), ", 2, a.triggers, a.key, a.payload,
                a.partition_id, a.partition, a.traces
           from asked a, clock c
          where a.id is null and not c.inbox_waits
          order by a.ord
             on conflict (task_id, key) where state = 0 and key is not null and not closed do nothing
      returning ", job_columns!("null::text", "false"), ", null::bigint as due_before),
     counted as (
         insert into quell.delta (lane_id, now, jobs)
         select lane_id, 0, count(*) from opened group by lane_id)
     select * from joined union all select * from opened"
);

/// The triggers of one key in a call.
#[derive(Debug)]
struct Burst<'b> {
    /// The last of them, whose payload stays.
    last: &'b NewTrigger,
    keyed: &'b Keyed,
    /// Which of the call's batches they are.
    batches: Vec<usize>,
    traces: Traces,
}

/// Bursts as the statement takes them.
#[derive(Debug, Default)]
struct Columns {
    lanes: Vec<i32>,
    tasks: Vec<i32>,
    keys: Vec<String>,
    triggers: Vec<i64>,
    payloads: Vec<String>,
    quiet: Vec<i64>,
    longest: Vec<i64>,
    partition_ids: Vec<i32>,
    partitions: Vec<Option<String>>,
    traces: Vec<Option<String>>,
}

impl Columns {
    /// None where a name has no number yet.
    fn of(bursts: &BTreeMap<(i32, &str), Burst<'_>>, names: &Names) -> Option<Self> {
        let micros =
            |time: std::time::Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let mut columns = Columns::default();
        for ((task, key), Burst { last, keyed, batches, traces }) in bursts {
            let partition = last.partition.as_ref();
            columns.lanes.push(names.find(&last.queue, &last.task, last.priority)?.id);
            columns.tasks.push(*task);
            columns.keys.push((*key).to_owned());
            columns.triggers.push(i64::try_from(batches.len()).unwrap_or(i64::MAX));
            columns.payloads.push(last.payload.as_str().to_owned());
            columns.quiet.push(micros(keyed.debounce.thresholds.min()));
            columns.longest.push(micros(keyed.debounce.thresholds.max()));
            columns.partition_ids.push(partition.map_or(Some(0), |name| names.partition_id(name))?);
            columns.partitions.push(partition.map(|name| name.as_str().to_owned()));
            columns.traces.push(traces.as_str().map(str::to_owned));
        }
        Some(columns)
    }

    fn bind(self, query: PgQuery) -> PgQuery {
        let query = query.bind(self.lanes).bind(self.tasks).bind(self.keys).bind(self.triggers);
        let query = query.bind(self.payloads).bind(self.quiet).bind(self.longest);
        query.bind(self.partition_ids).bind(self.partitions).bind(self.traces)
    }
}

/// The bursts of a call by the numbers of their tasks and by their keys; none where one trigger is
/// not of the common kind.
fn bursts<'b>(batches: &'b [Batch], names: &Names) -> Option<BTreeMap<(i32, &'b str), Burst<'b>>> {
    let mut bursts: BTreeMap<(i32, &str), Burst<'_>> = BTreeMap::new();
    for (index, batch) in batches.iter().enumerate() {
        let [trigger] = batch.triggers.as_slice() else { return None };
        let keyed = trigger.keyed.as_ref()?;
        if batch.dedup.is_some() || !is_common(trigger, keyed) {
            return None;
        }
        let place = (names.task_id(&trigger.task)?, keyed.key.as_str());
        let burst = bursts.entry(place).or_insert_with(|| Burst {
            last: trigger,
            keyed,
            batches: Vec::with_capacity(1),
            traces: Traces::default(),
        });
        let same = |a: &NewTrigger| (&a.queue, a.priority, &a.partition) == lane_of(trigger);
        if burst.keyed.debounce != keyed.debounce || !same(burst.last) {
            return None;
        }
        burst.last = trigger;
        burst.batches.push(index);
        trigger.trace.iter().for_each(|context| burst.traces.push(context));
    }
    Some(bursts)
}

fn lane_of(trigger: &NewTrigger) -> (&quell_core::QueueName, i16, &Option<quell_core::Key>) {
    (&trigger.queue, trigger.priority, &trigger.partition)
}

fn is_common(trigger: &NewTrigger, keyed: &Keyed) -> bool {
    let debounce = &keyed.debounce;
    trigger.when == When::Now
        && trigger.dedup.is_none()
        && trigger.idempotency.is_none()
        && trigger.fold == Fold::Last
        && debounce.edge == Edge::Trailing
        && debounce.max_triggers.is_none()
        && !debounce.from_default
        && !debounce.overlap
}

impl PostgresBackend {
    /// Takes what it can in one statement, and the rest in a transaction of several. Where that
    /// fails, what was taken before stays.
    pub(crate) async fn gather_or_enqueue(
        &self,
        now: Now,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let gathered = self.gather(now, batches).await?;
        if gathered.iter().all(Option::is_none) {
            return self.enqueue_whole(now, batches).await;
        }
        let left = batches.iter().zip(&gathered).filter(|(_, receipt)| receipt.is_none());
        let left: Vec<Batch> = left.map(|(batch, _)| batch.clone()).collect();
        let mut answers = Vec::new().into_iter();
        if !left.is_empty() {
            let answered = self.enqueue_whole(now, &left).await;
            let failed = |error: Error| left.iter().map(|_| Err(error.share())).collect();
            answers = answered.unwrap_or_else(failed).into_iter();
        }
        let answer = |receipt: Option<Receipt>| match receipt {
            Some(receipt) => Ok(vec![receipt]),
            None => answers.next().unwrap_or_else(|| Err(corrupt("an answer to a batch"))),
        };
        Ok(gathered.into_iter().map(answer).collect())
    }

    /// Answers none for each batch that one statement does not take.
    async fn gather(&self, now: Now, batches: &[Batch]) -> Result<Vec<Option<Receipt>>> {
        let mut receipts = vec![None; batches.len()];
        let Some(bursts) = bursts(batches, &self.names) else { return Ok(receipts) };
        let Some(columns) = Columns::of(&bursts, &self.names) else { return Ok(receipts) };
        let query = columns.bind(self.asked(now).bind(self.sql.query(GATHER)));
        let (rows, _ordered) = match self.one_shot(query).await {
            Ok(answer) => answer,
            // After a write conflict, the statement has changed nothing.
            Err(error) if wants_retry(&error) => return Ok(receipts),
            Err(error) => return Err(error),
        };
        let mut news = Outgoing::default();
        let mut latest = Timestamp::MIN;
        for row in &rows {
            let (job, before) = self.decode_gathered(row)?;
            let burst = job.key.as_ref().zip(self.names.task_id(&job.task));
            let burst = burst.and_then(|(key, task)| bursts.get(&(task, key.as_str())));
            let burst = burst.ok_or_else(|| corrupt("a window that no trigger asked for"))?;
            latest = latest.max(job.window.last_at);
            if self.history.is_some() {
                news.events.push(Event::window(job.window.last_at, &job));
            }
            if before.is_none_or(|before| job.window.due_at < before) {
                news.wake(&job.queue, job.window.due_at);
            }
            for (receipt, batch) in
                receipts_of(&job, burst.batches.len(), before.is_none()).zip(&burst.batches)
            {
                if let Some(place) = receipts.get_mut(*batch) {
                    *place = Some(receipt);
                }
            }
        }
        self.publish(latest, news);
        Ok(receipts)
    }

    /// A window, and when it was due before; none for a new one.
    fn decode_gathered(&self, row: &PgRow) -> Result<(Job, Option<Timestamp>)> {
        Ok((decode(row, &self.names)?, optional_time(row, JOB_COLUMNS)?))
    }
}

/// The receipts of the last `count` triggers of a window; the first of them may have opened it.
fn receipts_of(job: &Job, count: usize, is_new: bool) -> impl Iterator<Item = Receipt> {
    let (job, due, newest) = (job.id, job.window.due_at, job.window.triggers);
    let earlier = u64::try_from(count).map_or(0, |count| newest.saturating_sub(count));
    (earlier + 1..=newest).map(move |seq| {
        let trigger = TriggerId { job, seq };
        match is_new && seq == 1 {
            true => Receipt::Accepted { job, trigger, due },
            false => Receipt::Debounced { job, trigger, triggers: seq, due },
        }
    })
}
