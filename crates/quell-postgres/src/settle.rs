//! Ending attempts: success in one statement for many, everything else by the core's moves (R12,
//! R21, R24, R25), and taking jobs back whose leases lapsed.

use std::collections::{BTreeMap, HashSet};

use quell_core::crash::is_crash;
use quell_core::history::Event;
use quell_core::{
    AttemptOutcome, JobId, Lapsed, Lease, LeaseToken, Outcome, Payload, Result, Settled, SettledAs,
    Settlement, Timestamp,
};
use sqlx::postgres::PgRow;

use crate::counts::counts_itself;
use crate::error::corrupt;
use crate::leases::{bind_leases, draws, forget, holds, known};
use crate::moving::Moving;
use crate::row::{get, next_window, optional_time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx};

/// Ends all the attempts that succeeded. R21: only a current, unlapsed lease counts. Ended jobs go
/// where they are in nobody's way. R11: tells of windows whose key no longer runs.
///
/// States are compared so that no partial index seems to serve: the id is what finds the row. It is
/// compared so that a plan made while the table was empty does not read the jobs first: a join that
/// is no equality has no other order.
macro_rules! succeed {
    ($clock:expr, $later:literal, $counted:literal) => {
        concat!(
            "with clock as materialized (select ",
            $clock,
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
                 select greatest(c.now, ",
            $later,
            ") as now from clock c where (select count(*) from gone) >= 0),
             part as materialized (select last_value::smallint as part from quell.ended_part),
             kept as (
                 insert into quell.ended
                        (part, id, due_at, first_at, last_at, bound_at, asked_at, not_before, triggers,
                         suppressed, token, started_at, ended_at, absorbed_by, period, lane_id,
                         task_id, attempt, lapses, state, reason, overlap, closed, key, worker,
                         error, shape, payload, partition_id, partition, output)
                 select p.part, g.id, due_at, first_at, last_at, bound_at, asked_at, not_before, triggers,
                        suppressed, token, started_at, e.now, absorbed_by, period, lane_id,
                        task_id, attempt, lapses, 2, reason, overlap, closed, key, worker, error,
                        shape, payload, partition_id, partition, returned
                   from gone g, ended e, part p)",
            $counted,
            "
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
        )
    };
}

/// Time that has passed meanwhile was promised at the beginning, but for long waits.
const SUCCEED: &str = succeed!(
    concat!(counts_itself!(), ", quell.tick($1, $2)"),
    "coalesce($1, (select case when t.host < c.now + 400000 then t.host else quell.tick($1, $2) end
                     from (select (extract(epoch from clock_timestamp()) * 1000000)::bigint as host
                           offset 0) t))",
    ",
             counted as (
                 insert into quell.delta (lane_id, was, now, jobs)
                 select lane_id, 1, 2 + 8 * p.part, count(*) from gone, part p
                  group by lane_id, p.part)"
);
/// Within a transaction, at its time.
const SUCCEED_AT: &str = succeed!("greatest($1::bigint, $2::bigint)", "$1", "");

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

impl Tx<'_> {
    /// Ends attempts; answers come in the same order.
    pub(crate) async fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let others = settlements.iter().filter(|one| !one.outcome.is_success());
        let mut moving = self.lock(others.map(|one| one.lease.job).collect()).await?;
        self.read_clock().await?;
        let query = self.asked_now().bind(self.sql.query(SUCCEED_AT));
        let query = bind_well(query, settlements);
        let rows = self.fetch("end attempts", query).await?;
        let mut succeeded = decode_succeeded(&rows)?;
        self.free(&succeeded.freed).await?;
        let mut settled = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let Settlement { lease, outcome } = settlement;
            let (now, place) = (self.now, self.told());
            let became = if outcome.is_success() {
                // A lease that is settled twice in one call counts once.
                let accepted = succeeded.leases.remove(lease);
                if accepted { SettledAs::Succeeded } else { SettledAs::Refused }
            } else {
                self.settle_one(&mut moving, settlement).await?
            };
            if became == SettledAs::Succeeded {
                self.news.ended.push(lease.job);
            }
            self.tell_at(place, || Event::settled(now, settlement, became));
            settled.push(Settled { lease: *lease, became });
        }
        self.write_moved(moving).await?;
        // A caller's transaction that ends a job leaves its lease alone.
        let ended =
            settlements.iter().filter(|one| matches!(one.outcome, Outcome::InTransaction(_)));
        self.forget_leases(&ended.map(|one| one.lease).collect::<Vec<_>>()).await?;
        Ok(settled)
    }

    async fn settle_one(
        &mut self,
        moving: &mut Moving,
        settlement: &Settlement,
    ) -> Result<SettledAs> {
        let (now, Settlement { lease, outcome }) = (self.now, settlement);
        let taken = moving.take(lease.job).filter(|(job, _)| job.is_held_by(lease.token, now));
        let Some((mut job, mut heir)) = taken else {
            let ended = match outcome {
                Outcome::InTransaction(_) => {
                    self.load_anywhere(vec![lease.job]).await?.remove(&lease.job)
                }
                _ => None,
            };
            return Ok(settlement.without_lease(ended.as_ref()));
        };
        if let Some((ended, error)) = outcome.on_record() {
            moving.attempts.push((job.clone(), ended, error));
        }
        let became = job.settle(now, outcome, heir.as_mut());
        let became = self.heed_key(&mut job, became).await?;
        self.put_back(moving, job, heir);
        Ok(became)
    }

    /// Takes back leases that lapsed, oldest first (R21). What another call is taking back already
    /// is passed over.
    pub(crate) async fn reap(&mut self, limit: usize) -> Result<Vec<Lapsed>> {
        let (leases, rows) = self.lock_lapsed(limit).await?;
        let mut moving = self.lock(leases.iter().map(|lease| lease.job).collect()).await?;
        self.read_clock().await?;
        let workers = if leases.is_empty() { Vec::new() } else { self.workers().await? };
        let (now, mut lapsed) = (self.now, Vec::with_capacity(leases.len()));
        for lease in leases {
            let Some((mut job, mut heir)) = moving.take(lease.job) else { continue };
            let crash = is_crash(&job, &workers);
            moving.attempts.push((job.clone(), AttemptOutcome::Lapsed, None));
            let became = job.lapse(now, crash, heir.as_mut());
            let became = self.heed_key(&mut job, became).await?;
            let place = self.told();
            self.put_back(&mut moving, job, heir);
            let Lease { job, token } = lease;
            self.tell_at(place, || Event::Lapse { t: now, job, token, became, crash });
            lapsed.push(Lapsed { lease, became, crash });
        }
        self.write_moved(moving).await?;
        self.forget_leases(&rows).await?;
        Ok(lapsed)
    }
}
