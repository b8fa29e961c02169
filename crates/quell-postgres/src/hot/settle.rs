//! Ending attempts that succeeded: one statement for many (R21). Every other end is a step of the engine.

use std::collections::{BTreeMap, HashSet};

use quell_core::{JobId, Lease, LeaseToken, Outcome, Payload, Result, Settlement, Timestamp};
use sqlx::postgres::PgRow;

use crate::counts::counts_itself;
use crate::error::corrupt;
use crate::leases::{bind_leases, draws, forget, holds, known};
use crate::row::{get, next_window, optional_time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::tx::Asked;

/// Ends all the attempts that succeeded. R21: only a current lease that has not expired counts. Ended
/// jobs move to a table where they slow no claim down. R11: returns windows whose key no longer runs.
///
/// States are compared so that no partial index seems to serve: the id is what finds the row. It is
/// compared so that a plan made while the table was empty does not read the jobs first: a join that
/// is no equality has no other order.
///
/// Time that has passed meanwhile was promised at the beginning, but for long waits.
const SUCCEED: &str = concat!(
            "with clock as materialized (select ",
            counts_itself!(),
            ", quell.tick($1, $2)",
            " as now),
             ",
            known!("$6"),
            ",
             gone as (
                 delete from quell.job j
                  using unnest($3::bigint[], $4::bigint[], $5::text[]) l (id, token, output)
                  where j.id between l.id and l.id and j.token = l.token and j.state + 0 = 1
                    and ",
            holds!(),
            "
              returning j.*, l.output as returned),
             forgotten as (",
            forget!(),
            "),
             -- What was waited for happened before: the time is read once all are gone.
             ended as materialized (
                 select greatest(c.now, coalesce($1,
                        (select case when t.host < c.now + 400000 then t.host
                                     else quell.tick($1, $2) end
                           from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as host
                                 offset 0) t))) as now from clock c where (select count(*) from gone) >= 0),
             part as materialized (select last_value::smallint as part from quell.ended_part),
             kept as (
                 insert into quell.ended
                        (part, id, due_at, first_at, last_at, bound_at, asked_at, not_before, triggers,
                         suppressed, token, started_at, ended_at, absorbed_by, period, lane_id,
                         task_id, attempt, lapses, state, reason, overlap, closed, key, worker,
                         error, shape, payload, partition_id, partition, output, traces)
                 select p.part, g.id, due_at, first_at, last_at, bound_at, asked_at, not_before, triggers,
                        suppressed, token, started_at, e.now, absorbed_by, period, lane_id,
                        task_id, attempt, lapses, 2, reason, overlap, closed, key, worker, error,
                        shape, payload, partition_id, partition, returned, traces
                   from gone g, ended e, part p),
             counted as (
                 insert into quell.delta (lane_id, was, now, jobs)
                 select lane_id, 1, 2 + 8 * p.part, count(*) from gone, part p
                  group by lane_id, p.part)
             select e.now, g.id, g.token, null::int, null::bigint
               from ended e left join gone g on true
              union all
             -- R10: what is behind a closed window may have closed meanwhile.
             select null, null, null, w.lane_id, case when g.closed then 0 else w.due_at end
               from gone g
              cross join lateral (select ",
            next_window!("g"),
            " as id offset 0) n
               join quell.job w on w.id between n.id and n.id
              where g.key is not null"
        );

/// Ends the attempts that succeeded: one statement, which is its own transaction.
pub(crate) fn succeed_query(sql: &Sql, asked: Asked, settlements: &[Settlement]) -> PgQuery {
    bind_well(asked.bind(sql.query(SUCCEED)), settlements)
}

/// The leases that ended well, in the order of their ids, as all calls lock, and what was returned;
/// the first end of an attempt counts. Where nothing returned anything, the last column is empty,
/// which stands for nulls.
fn bind_well(query: PgQuery, settlements: &[Settlement]) -> PgQuery {
    let mut ends: BTreeMap<Lease, Option<&str>> = BTreeMap::new();
    for Settlement { lease, outcome } in settlements {
        if let Outcome::Succeeded { output } = outcome {
            ends.entry(*lease).or_insert(output.as_ref().map(Payload::as_str));
        }
    }
    let outputs: Vec<Option<String>> = if ends.values().any(Option::is_some) {
        ends.values().map(|output| output.map(str::to_owned)).collect()
    } else {
        Vec::new()
    };
    bind_leases(query, ends.keys()).bind(outputs).bind(draws(ends.keys()))
}

/// What [`succeed_query`] brought.
#[derive(Debug)]
pub(crate) struct Succeeded {
    pub(crate) now: Timestamp,
    /// The leases that ended.
    pub(crate) leases: HashSet<Lease>,
    /// Lanes in which windows may start that waited for their key, and when.
    pub(crate) freed: Vec<(i32, Timestamp)>,
}

pub(crate) fn decode_succeeded(rows: &[PgRow]) -> Result<Succeeded> {
    let (mut now, mut leases, mut freed) = (None, HashSet::new(), Vec::new());
    for row in rows {
        now = now.max(optional_time(row, 0)?);
        if let Some(id) = get::<Option<i64>, _>(row, 1)? {
            let token = LeaseToken::new(unsigned(get(row, 2)?));
            leases.insert(Lease { job: JobId::new(unsigned(id)), token });
        } else if let (Some(lane), Some(due)) = (get(row, 3)?, optional_time(row, 4)?) {
            freed.push((lane, due));
        }
    }
    let now = now.ok_or_else(|| corrupt("an answer without its time"))?;
    Ok(Succeeded { now, leases, freed })
}
