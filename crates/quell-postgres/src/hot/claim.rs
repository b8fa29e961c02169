//! Starting due jobs (R11, R28, R30, R31), and knowing when the next one is due (R34).
//!
//! A claim looks before it writes: where nothing is due, an idle worker writes nothing. Jobs are
//! taken in the order of the index of one lane and no further than asked, so the cost does not grow
//! with the backlog. Rows that another call holds are passed over. On a queue without limits, in
//! which one lane has something due, all of this is one statement; a queue with limits is locked
//! first, without waiting, so that contention is one clear error (R35).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quell_core::history::Event;
use quell_core::line::{Candidates, DueLane, Place};
use quell_core::{
    Claim, Claimed, ClaimedJob, Error, ErrorKind, JobId, Key, LeaseToken, NextDue, Payload,
    QueueName, Result, Timestamp,
};
use quell_engine::sql::{Columns as _, unreadable_row};
use sqlx::postgres::PgRow;

use crate::counts::counts_itself;
use crate::error::corrupt;
use crate::hot::heads::{RAISED, Stale};
use crate::hot::look::{ANY_PARTITION, Look, Looking, base_of, lanes, names_of, partition_of};
use crate::hot::trail::{At, Part, Places, Reached, Strand};
use crate::leases::{first_expiry, grant, grant_new, until};
use crate::names::Names;
use crate::row::{Columns, blocked, count, get, optional_time, signed, time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx, first};

/// When to look again at a job that was passed over because another call held its row.
pub(crate) const PASSED_OVER: Duration = Duration::from_millis(2);

/// Starts jobs for the worker `$3`, with leases of `$4` and the draw `$6`: of those that are due, at
/// most `$5` that `$chosen` says, among it that they wait. `$granted` gives them their leases. Goes on
/// from `clock`, as `until` makes it.
macro_rules! start {
    ($chosen:literal, $granted:expr) => {
        concat!(
            "taken as materialized (
                 select j.id, j.due_at, j.ctid as place
                   from quell.job j
                  where ",
            $chosen,
            "       and j.due_at <= (select now from clock)
                    -- R2: a trigger that joined since the clock was read is not covered yet.
                    and coalesce(j.last_at, j.first_at) <= (select now from clock)
                    and not ",
            blocked!(),
            "     order by j.due_at, j.id limit $5
                    for update of j skip locked),
             started as (
                 update quell.job j
                    set state = 1, attempt = j.attempt + 1,
                        -- R21: one start more, and the draw.
                        token = (least((j.token >> 39) + 1, 16777215) << 39) | $6,
                        worker = $3, started_at = c.now
                   from taken t, clock c
                  where j.ctid = t.place
              returning j.id, j.due_at, j.token, j.key, j.payload, j.attempt, j.failures,
                        j.triggers, j.first_at, j.period, j.task_id, j.lane_id, j.partition,
                        j.lapses, j.traces),
             ",
            $granted,
            ",
             -- R13: a throttled key's start is remembered.
             remembered as (
                 insert into quell.memory
                        (task_id, key, leader, burst_at, last_at, started_at, expires_at)
                 select s.task_id, s.key, s.id, c.now, c.now, c.now,
                        case when c.now > 9223372036854775807 - s.period
                             then 9223372036854775807 else c.now + s.period end
                   from started s, clock c where s.period is not null and s.key is not null
                     on conflict (task_id, key) do update set
                        leader = excluded.leader, triggers = 0, burst_at = excluded.burst_at,
                        last_at = excluded.last_at, started_at = excluded.started_at,
                        expires_at = excluded.expires_at)
             select c.now, s.id, s.due_at, s.token, s.key, s.payload, s.attempt, s.failures,
                    s.triggers, s.first_at, c.until, s.lane_id, s.partition, s.lapses, s.traces"
        )
    };
}

/// How many columns [`start`] brings.
const STARTED_COLUMNS: usize = 15;

/// A claim of a queue without limits in which one lane at most has anything due, and there either jobs
/// with a partition or others: one statement, which is its own transaction. Where the queue is not like
/// that, or the inbox waits, it starts nothing and says so. The time is put on record only with a start.
///
/// It passes over what comes before the [`Places`] of the claims before it.
const STRAIGHT: &str = concat!(
    "with clock as materialized (",
    until!("quell.peek($1, $2)", "$4"),
    "), ",
    lanes!("$7", "$8", "$10::int[], $11::int[], $12::bigint[], $13::bigint[]"),
    ", seen as materialized (
         select ",
    counts_itself!(),
    ", not exists (select from quell.inbox where refused is null)
                and not exists (
                    select from quell.queue
                     where name = $7
                       and (deleted or settings <> '{}' and (
                            coalesce((settings::json ->> 'paused')::boolean, false) or ",
    crate::hot::expire::limited!(),
    "                  )))
                -- A draw that was drawn before has leases already.
                and not exists (select from quell.lease where draw = $6)
                and count(*) filter (where l.due_at <= c.now) <= 1
                -- A lane whose names are not known would be asked about after the commit.
                and coalesce(bool_and(l.id = any($9)) filter (where l.due_at <= c.now), true)
                    as straight,
                min(l.id) filter (where l.due_at <= c.now) as lane,
                min(l.part) filter (where l.due_at <= c.now) as part,
                min(l.due_at) filter (where l.due_at > c.now) as later
           from clock c left join line l on true),
     -- Where it is read from: its first job that may start was found already.
     head as materialized (
         select l.id as lane, l.part, l.due_at as from_due, l.job_id as from_id
           from line l
           join seen s on s.straight and l.id = s.lane and l.part = s.part),
     ",
    start!(
        "j.lane_id = (select lane from head) and least(j.partition_id, 1) = (select part from head)
                    and j.state = 0 and j.behind is null
                    and (j.due_at, j.id) >= ((select from_due from head), (select from_id from head))",
        concat!(
            grant_new!("$6"),
            ",
             counted as (
                 insert into quell.delta (lane_id, was, now, jobs)
                 select lane_id, 0, 1, count(*) from started group by lane_id)"
        )
    ),
    ",      e.straight, e.later,
            ",
    first_expiry!("$14"),
    ",
            -- It includes those that were passed over.
            (select array[j.due_at, j.id] from quell.job j
              where j.lane_id = (select lane from head)
                and least(j.partition_id, 1) = (select part from head)
                and j.state = 0 and j.behind is null
                and (j.due_at, j.id) >= ((select from_due from head), (select from_id from head))
                and j.id not in (select id from taken) and not ",
    blocked!(),
    "         order by j.due_at, j.id limit 1),
            (select quell.tick($1, now) from clock where exists (select from taken)),
            e.lane, e.part
       from clock c cross join seen e left join started s on true
      order by s.due_at, s.id"
);

/// Jobs by their ids, within a transaction. The time is read with the rows: what made room for them,
/// an end of their key's attempt or of others under a limit, came before (R11, R31).
const START_IDS: &str = concat!(
    "with clock as materialized (",
    until!("quell.tick($1, $2)", "$4"),
    "), ",
    // The sum keeps other indexes away, which a plan made while the table was empty would read whole.
    start!(
        "j.id = any($7) and j.state + 0 = 0 and j.behind is null
                    -- R31, R41: it is still where it was chosen.
                    and exists (
                        select from unnest($7::bigint[], $8::int[], $9::int[]) k (id, lane, part)
                         where k.id = j.id and k.lane = j.lane_id
                           and (k.part = j.partition_id
                                or k.part = 2147483647 and j.partition_id <> 0))",
        grant!("$6")
    ),
    " from clock c left join started s on true order by s.due_at, s.id"
);

/// A claim that is one statement, where the queue allows it; `lanes` are those that are known, and
/// what comes before `from` is passed over.
pub(crate) fn straight_query(
    sql: &Sql,
    asked: Asked,
    claim: &Claim,
    lanes: Vec<i32>,
    from: &Places,
) -> PgQuery {
    let query = bind_start(asked.bind(sql.query(STRAIGHT)), claim.limit, claim);
    let query = query.bind(claim.queue.as_str().to_owned()).bind(names_of(&claim.tasks));
    from.bind(query.bind(lanes)).bind(from.expiry.as_micros())
}

fn bind_start(query: PgQuery, limit: usize, claim: &Claim) -> PgQuery {
    let lease = i64::try_from(claim.lease.as_micros()).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = query.bind(claim.worker.as_str().to_owned()).bind(lease).bind(limit);
    query.bind(signed(claim.draw.get()))
}

/// Jobs that started.
#[derive(Debug)]
struct Started {
    now: Timestamp,
    jobs: Vec<ClaimedJob>,
    /// The partitions of the jobs.
    partitions: Vec<Option<Key>>,
}

/// The lanes of the jobs that started.
fn started_lanes(rows: &[PgRow]) -> Result<Vec<i32>> {
    let mut lanes = Vec::new();
    for row in rows {
        lanes.extend(get::<Option<i32>, _>(row, 11)?);
    }
    Ok(lanes)
}

/// Jobs that started, and the errors of those whose rows cannot be decoded (R25). The lanes of the
/// jobs must be known.
fn decode_started(rows: &[PgRow], names: &Names) -> Result<(Started, Vec<Error>)> {
    let (mut jobs, mut partitions, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let Some(id) = get::<Option<i64>, _>(row, 1)? else { continue };
        let id = JobId::new(unsigned(id));
        match decode_claimed(id, row, names) {
            Ok((job, partition)) => {
                jobs.push(job);
                partitions.push(partition);
            }
            Err(error) => unreadable.push(unreadable_row(id, &error)),
        }
    }
    Ok((Started { now: time(first(rows)?, 0)?, jobs, partitions }, unreadable))
}

/// What a claim of one statement found.
#[derive(Debug)]
pub(crate) struct Straight {
    pub(crate) claimed: Claimed,
    /// The errors of jobs that started and cannot be decoded.
    pub(crate) unreadable: Vec<Error>,
    /// How far it came, where something was due.
    pub(crate) reached: Option<Reached>,
}

/// What [`straight_query`] brought; none where the queue does not allow it. The lanes of the jobs
/// must be known.
pub(crate) fn decode_straight(
    rows: &[PgRow],
    names: &Names,
    limit: usize,
) -> Result<Option<Straight>> {
    let head = first(rows)?;
    if !get::<bool, _>(head, STARTED_COLUMNS)? {
        return Ok(None);
    }
    let (Started { now, jobs, .. }, unreadable) = decode_started(rows, names)?;
    let left = match get::<Option<Vec<i64>>, _>(head, STARTED_COLUMNS + 3)?.as_deref() {
        Some([due, id]) => Some((Timestamp::from_micros(*due), *id)),
        _ => None,
    };
    let own = left.map(|(due, _)| later(due, now, jobs.len() < limit));
    let leases = jobs.iter().map(|job| job.lease_until);
    let next = NextDue {
        now,
        due: optional_time(head, STARTED_COLUMNS + 1)?.into_iter().chain(own).min(),
        expiry: leases.chain(optional_time(head, STARTED_COLUMNS + 2)?).min(),
    };
    let reached = match get::<Option<i32>, _>(head, STARTED_COLUMNS + 5)? {
        None => None,
        Some(lane) => {
            let part = Part::of_jobs(get(head, STARTED_COLUMNS + 6)?);
            let last = jobs.last().map(|job| (job.due_at, signed(job.id.get())));
            Some(Reached { strand: (lane, part), last, left })
        }
    };
    // It starts nothing where a queue has limits.
    let claimed = Claimed { now, jobs, next, rated: false };
    Ok(Some(Straight { claimed, unreadable, reached }))
}

fn decode_claimed(id: JobId, row: &PgRow, names: &Names) -> Result<(ClaimedJob, Option<Key>)> {
    let lane = names.lane(get(row, 11)?).ok_or_else(|| corrupt("the lane of due jobs"))?;
    let key: Option<&str> = get(row, 4)?;
    let partition = get::<Option<&str>, _>(row, 12)?.map(Key::new).transpose()?;
    let job = ClaimedJob {
        id,
        token: LeaseToken::new(unsigned(get(row, 3)?)),
        task: lane.task.clone(),
        key: key.map(Key::new).transpose()?,
        payload: Payload::from_stored(get::<&str, _>(row, 5)?),
        attempt: count(row, 6)?,
        failures: count(row, 7)?,
        crashes: count(row, 13)?,
        triggers: unsigned(get(row, 8)?),
        first_at: time(row, 9)?,
        due_at: time(row, 2)?,
        lease_until: time(row, 10)?,
        traces: Columns(row).traces(14)?,
    };
    Ok((job, partition))
}

/// A row that was passed over is held by a call that is about to end.
fn later(due: Timestamp, now: Timestamp, passed_over: bool) -> Timestamp {
    if passed_over && due <= now { now + PASSED_OVER } else { due }
}

/// What a claim of several statements found.
#[derive(Debug)]
pub(crate) struct Winding {
    pub(crate) jobs: Vec<ClaimedJob>,
    pub(crate) next: NextDue,
    /// Whether a rate counts the starts.
    pub(crate) rated: bool,
    /// How far it came.
    pub(crate) reached: Vec<Reached>,
}

impl Look {
    /// How far a claim came that took these places, and after which this is the look.
    pub(crate) fn reached(&self, taken: &[Place]) -> Vec<Reached> {
        let mut last = BTreeMap::<Strand, At>::new();
        for (due, id, lane) in taken {
            let part = match partition_of(*lane) {
                0 => Part::Plain,
                ANY_PARTITION => Part::Partitioned,
                // It is read from its head.
                _ => continue,
            };
            let last = last.entry((base_of(*lane), part)).or_insert((*due, *id));
            *last = (*last).max((*due, *id));
        }
        let mut parts = vec![Part::Plain, Part::Partitioned];
        if self.line.settings.limits_partitions() {
            // All heads have been read, as far as they are due.
            let all = (self.line.now, 0);
            last.extend(self.lanes.keys().map(|lane| ((*lane, Part::Heads), all)));
            parts = vec![Part::Plain, Part::Heads];
        }
        let strands = self.lanes.keys().flat_map(|lane| parts.iter().map(|part| (*lane, *part)));
        let reached = strands.map(|strand| {
            let (last, left) = (last.get(&strand).copied(), self.firsts.get(&strand).copied());
            Reached { strand, last, left }
        });
        reached.collect()
    }
}

impl Tx {
    /// Starts at most as many due jobs as asked for, in the order of R30; says when the next is
    /// due. What comes before `from` is passed over.
    pub(crate) async fn claim(&mut self, claim: &Claim, from: &Places) -> Result<Winding> {
        self.fold_inbox().await?;
        let queue = &claim.queue;
        let is_locked = self.lock_queue(queue).await?;
        let mut look = self.look(claim, from, claim.limit).await?;
        let settings = &look.line.settings;
        if !is_locked && (settings.limits_concurrency() || settings.limits_rate()) {
            // They were set since: another claim may be at it.
            self.lock_queue(queue).await?;
            look = self.look(claim, from, claim.limit).await?;
        }
        let room = claim.limit.min(look.line.settings.room(&look.line.taken.used));
        let (mut jobs, mut partitions, mut taken) = (Vec::new(), Vec::new(), Vec::new());
        let lanes = std::mem::take(&mut look.line.lanes);
        for of_priority in lanes.chunk_by(|a, b| a.priority == b.priority) {
            let left = room - jobs.len();
            if left == 0 {
                break;
            }
            let chosen = self.choose(&look, of_priority, left).await?;
            let mut started = self.start(left, claim, &chosen).await?;
            taken.extend(chosen);
            self.now = self.now.max(started.now);
            for job in &started.jobs {
                self.record_event(|| Event::claimed(started.now, claim, job));
            }
            started.partitions.iter().for_each(|name| look.line.taken.start(name.as_ref()));
            jobs.append(&mut started.jobs);
            partitions.append(&mut started.partitions);
        }
        let rated = look.line.settings.limits_rate();
        if rated && !jobs.is_empty() {
            let names: Vec<Option<&Key>> = partitions.iter().map(Option::as_ref).collect();
            for starts in look.line.settings.rated_starts(queue, &names) {
                self.record_starts(&starts).await?;
            }
        }
        let after = self.look(claim, from, 1).await?;
        let (mut next, reached) = (after.line.next(), after.reached(&taken));
        // Last, as writers wait for its locks.
        let of_partitions = taken.iter().map(|(_, _, lane)| (base_of(*lane), partition_of(*lane)));
        let is_one = |(_, partition): &Stale| !matches!(*partition, 0 | ANY_PARTITION);
        let started: BTreeSet<Stale> = of_partitions.filter(is_one).collect();
        let others = look.stale.difference(&started).copied();
        let stale: Vec<Stale> = started.iter().copied().chain(others).take(RAISED).collect();
        self.raise_heads(&stale).await?;
        next.due = next.due.map(|due| later(due, next.now, jobs.len() < room));
        Ok(Winding { jobs, next, rated, reached })
    }

    /// Reads the line before the worker, who may start `most` jobs.
    async fn look(&mut self, claim: &Claim, from: &Places, most: usize) -> Result<Look> {
        let sql = Arc::clone(&self.sql);
        let looking = Looking {
            sql: &sql,
            asked: self.asked_now(),
            queue: &claim.queue,
            tasks: &claim.tasks,
            worker: Some(&claim.worker),
            most,
            from,
        };
        looking.look(self).await
    }

    /// Starts these jobs, except those that another call has taken.
    async fn start(&mut self, left: usize, claim: &Claim, chosen: &[Place]) -> Result<Started> {
        let asked = Asked { seen: self.now, ..self.asked };
        let query = asked.bind(self.sql.query(START_IDS));
        let ids: Vec<i64> = chosen.iter().map(|(_, id, _)| *id).collect();
        let lanes: Vec<i32> = chosen.iter().map(|(_, _, lane)| base_of(*lane)).collect();
        let parts: Vec<i32> = chosen.iter().map(|(_, _, lane)| partition_of(*lane)).collect();
        let query = bind_start(query, left, claim).bind(ids).bind(lanes).bind(parts);
        let rows = self.fetch("start jobs", query).await?;
        let (names, sql) = (Arc::clone(&self.names), Arc::clone(&self.sql));
        names.load(self.db(), &sql, started_lanes(&rows)?.into_iter()).await?;
        let (started, mut unreadable) = decode_started(&rows, &names)?;
        unreadable.pop().map_or(Ok(started), Err)
    }

    /// The first `left` due jobs of these lanes, which share a priority. Full partitions are passed
    /// over (R31).
    async fn choose(&mut self, look: &Look, lanes: &[DueLane], left: usize) -> Result<Vec<Place>> {
        const FIRST: &str = concat!(
            "select due.due_at, due.id, lane.ord - 1
               from unnest($1::int[], $2::int[], $5::bigint[], $6::bigint[]) with ordinality
                    lane (id, partition_id, from_due, from_id, ord)
              cross join lateral (
                    (select j.due_at, j.id from quell.job j
                      where lane.partition_id in (0, 2147483647)
                        and j.lane_id = lane.id
                        and least(j.partition_id, 1) = least(lane.partition_id, 1)
                        and j.state = 0 and j.behind is null and j.due_at <= $3
                        and (j.due_at, j.id) >= (lane.from_due, lane.from_id) and not ",
            blocked!(),
            "         order by j.due_at, j.id limit $4)
                     union all
                    (select j.due_at, j.id from quell.job j
                      where lane.partition_id not in (0, 2147483647)
                        and j.lane_id = lane.id and j.partition_id = lane.partition_id
                        and j.partition_id <> 0
                        and j.state = 0 and j.behind is null and j.due_at <= $3
                        and (j.due_at, j.id) >= (lane.from_due, lane.from_id) and not ",
            blocked!(),
            "         order by j.due_at, j.id limit $4)) due
              order by due.due_at, due.id"
        );
        let candidates = Candidates::of(&look.line, lanes, left);
        let lanes = candidates.lanes.iter().map(|(lane, _)| *lane);
        // R41: of a partition of strict order, the look found the one job that may start.
        let is_found = |lane: &i64| {
            look.line.settings.is_strict() && !matches!(partition_of(*lane), 0 | ANY_PARTITION)
        };
        let (found, lanes): (Vec<i64>, Vec<i64>) = lanes.partition(is_found);
        let found = found.iter().filter_map(|lane| Some((*look.from.get(lane)?, *lane)));
        let found: Vec<Place> = found.map(|((due, id), lane)| (due, id, lane)).collect();
        if lanes.is_empty() && found.is_empty() {
            return Ok(Vec::new());
        }
        let from = |lane: &i64| look.from.get(lane).copied().unwrap_or((Timestamp::MIN, 0));
        // Mostly each lane has its share, so that reading `left` of each is rarely needed.
        for depth in [left / lanes.len().max(1) + 2, left.saturating_add(2)] {
            let query = self
                .sql
                .query(FIRST)
                .bind(lanes.iter().map(|lane| base_of(*lane)).collect::<Vec<_>>())
                .bind(lanes.iter().map(|lane| partition_of(*lane)).collect::<Vec<_>>())
                .bind(self.now.as_micros())
                .bind(i64::try_from(depth).unwrap_or(i64::MAX))
                .bind(lanes.iter().map(|lane| from(lane).0.as_micros()).collect::<Vec<_>>())
                .bind(lanes.iter().map(|lane| from(lane).1).collect::<Vec<_>>());
            let mut places = found.clone();
            let rows = match lanes[..] {
                [] => Vec::new(),
                _ => self.fetch("read due jobs", query).await?,
            };
            for row in &rows {
                let lane = usize::try_from(get::<i64, _>(row, 2)?).ok();
                let lane = lane.and_then(|index| lanes.get(index)).copied().unwrap_or_default();
                places.push((time(row, 0)?, get(row, 1)?, lane));
            }
            places.sort_unstable();
            if let Some((chosen, _)) = candidates.merge(&places, left, depth) {
                let chosen: BTreeSet<i64> = chosen.into_iter().collect();
                places.retain(|(_, id, _)| chosen.contains(id));
                return Ok(places);
            }
        }
        Err(corrupt("the jobs that are due"))
    }

    /// R31, R35: a queue with limits is this claim's alone until it has committed. Other claims that
    /// come meanwhile fail with the contention at once. Says whether it has any.
    async fn lock_queue(&mut self, queue: &QueueName) -> Result<bool> {
        const LOCK: &str = concat!(
            "select 1 from quell.queue where name = $1 and ",
            crate::hot::expire::limited!(),
            " for update nowait"
        );
        let query = self.sql.query(LOCK).bind(queue.as_str().to_owned());
        let locked = self.fetch("lock a queue with limits", query).await;
        locked.map(|rows| !rows.is_empty()).map_err(|error| match error.kind() {
            ErrorKind::Contention => error.at(format_args!("queue {queue}")),
            _ => error,
        })
    }
}
