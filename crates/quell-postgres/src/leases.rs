//! Leases, in a table of their own (R21), so that renewals write no job and wait for none: a caller's
//! transaction that ends a job holds its row until the commit (R22).
//!
//! The jobs of one claim share the draw in their tokens, and one row, whose `job_id` is 0. A job whose
//! lease was renewed without the others has a row of its own, which counts instead of the shared one.
//! A call that writes leases locks their rows in the order of the table's key, and waits for nothing
//! else meanwhile. A call that takes jobs back locks the leases before it reads the jobs, and skips jobs
//! that others hold. Its later locks may deadlock with those of an operator's call; the server then
//! aborts one of the two, which is retried.
//!
//! A shared row that no job needs any more is removed with the last job. Where two jobs ended at the same
//! time neither may see that it was the last; the row is removed when it expires.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_core::{JobId, Lease, LeaseToken, Result, Timestamp};
use sqlx::postgres::PgRow;

use crate::backend::PostgresBackend;
use crate::connections::Connections;
use crate::row::{get, signed, time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::step::Step;
use crate::tx::{Asked, Tx, first, read};

/// The draw of a job's token: the 39 lowest bits.
macro_rules! draw {
    ($of:literal) => {
        concat!("(", $of, ".token & 549755813887)")
    };
}
pub(crate) use draw;

/// A running job of the draw `$draw` for which `$and` is true. The order, and that it is no `exists`,
/// leave the server no way but the index by draws, even where it took the tables for empty.
macro_rules! running_of {
    ($draw:literal, $and:literal) => {
        concat!(
            "(select k.id from quell.job k
               where ",
            $crate::leases::draw!("k"),
            " = ",
            $draw,
            " and k.state = 1 and ",
            $and,
            " order by ",
            $crate::leases::draw!("k"),
            " limit 1)"
        )
    };
}
pub(crate) use running_of;

/// When the lease of the job `j` expires, if it runs.
macro_rules! lease_until {
    () => {
        concat!(
            "case when j.state = 1 then
                 (select coalesce(max(x.until) filter (where x.job_id = j.id), max(x.until))
                    from quell.lease x
                   where x.draw = ",
            $crate::leases::draw!("j"),
            " and x.job_id in (0, j.id)) end"
        )
    };
}
pub(crate) use lease_until;

/// When the first lease expires; where a shared row is left over, this may be too early.
macro_rules! first_expiry {
    () => {
        "(select x.until from quell.lease x order by x.until limit 1)"
    };
    // Those before `$from` are passed over.
    ($from:literal) => {
        concat!(
            "(select x.until from quell.lease x where x.until >= ",
            $from,
            " order by x.until limit 1)"
        )
    };
}
pub(crate) use first_expiry;

/// The time `$now`, and `until` when a lease of the length `$length` lasts that begins then.
macro_rules! until {
    ($now:literal, $length:literal) => {
        concat!(
            "select now, case when now > 9223372036854775807 - ",
            $length,
            " then 9223372036854775807 else now + ",
            $length,
            " end as until from (select ",
            $now,
            " as now) t"
        )
    };
}
pub(crate) use until;

/// The rest of a statement that gives the jobs `started` one lease of the draw `$draw`, until
/// `clock.until`, and goes on with `$more`.
macro_rules! grant_shared {
    ($draw:literal, $more:expr) => {
        concat!(
            "granted as (
                 insert into quell.lease (draw, job_id, until)
                 select ",
            $draw,
            ", 0, c.until from clock c where exists (select from started)",
            $more
        )
    };
}
pub(crate) use grant_shared;

/// Gives the jobs `started` one lease, until `clock.until`. No lease has the draw `$draw` yet: where
/// another call is giving it one, the statement fails with a conflict.
macro_rules! grant_new {
    ($draw:literal) => {
        $crate::leases::grant_shared!($draw, ")")
    };
}
pub(crate) use grant_new;

/// Gives leases to the jobs `started`, which share the draw `$draw`, until `clock.until`. A claim may
/// be several statements: those after the first give each job a lease of its own, and so does a claim
/// whose draw another has drawn.
macro_rules! grant {
    ($draw:literal) => {
        $crate::leases::grant_shared!(
            $draw,
            concat!(
                "
                     on conflict (draw, job_id) do nothing
              returning draw),
             granted_apart as (
                 insert into quell.lease (draw, job_id, until)
                 select ",
                $draw,
                ", s.id, c.until from started s, clock c where not exists (select from granted)
                     on conflict (draw, job_id) do update set until = excluded.until)"
            )
        )
    };
}
pub(crate) use grant;

/// Whether the job `j` has a lease that holds, by `known`: the leases of the draws that are asked
/// about.
macro_rules! holds {
    () => {
        concat!(
            "case when (",
            $crate::leases::draw!("j"),
            ", j.id) in (select draw, job_id from known)
                  then (",
            $crate::leases::draw!("j"),
            ", j.id) in (select draw, job_id from known where until > (select now from clock))
                  else ",
            $crate::leases::draw!("j"),
            " in (select draw from known
                   where job_id = 0 and until > (select now from clock)) end"
        )
    };
}
pub(crate) use holds;

/// The leases of the draws `$draws`, in the order in which all calls lock them.
macro_rules! known {
    ($draws:literal) => {
        concat!(
            "known as materialized (
                 select x.draw, x.job_id, x.until
                   from unnest(",
            $draws,
            "::bigint[]) d (draw)
                   join quell.lease x on x.draw between d.draw and d.draw
                  order by x.draw, x.job_id)"
        )
    };
}
pub(crate) use known;

/// Removes those of the `known` leases that only the jobs `gone` needed.
macro_rules! forget {
    () => {
        concat!(
            "delete from quell.lease d
              using known x
              where d.draw = x.draw and d.job_id = x.job_id
                and case when x.job_id <> 0
                         then (x.draw, x.job_id) in (select ",
            $crate::leases::draw!("g"),
            ", g.id from gone g)
                         else x.draw in (select ",
            $crate::leases::draw!("g"),
            " from gone g)
                          and ",
            $crate::leases::running_of!(
                "x.draw",
                "k.id not in (select g.id from gone g)
                     and (x.draw, k.id) not in (select o.draw, o.job_id from known o)"
            ),
            " is null end"
        )
    };
}
pub(crate) use forget;

/// Checks, without writing, whether a lease has expired.
pub(crate) async fn has_expired(pool: &Connections, sql: &Sql, asked: Asked) -> Result<bool> {
    const EXPIRED: &str =
        concat!("select coalesce(", first_expiry!(), " <= quell.peek($1, $2), false)");
    let rows = read(pool, sql, "look for expired leases", asked.bind(sql.query(EXPIRED))).await?;
    get(first(&rows)?, 0)
}

/// The leases `$3` with the tokens `$4` and the draws `$5`, for `$6` microseconds from now.
const RENEW: &str = concat!(
    "with clock as materialized (",
    until!("quell.tick($1, $2)", "$6"),
    "),
         ",
    known!("$5"),
    ",
         running as materialized (
             select j.id, j.token, ",
    draw!("j"),
    " as draw
               from quell.job j
              where j.id = any($3)
                and ((j.id, j.token) in (
                        select id, token
                          from unnest($3::bigint[], $4::bigint[]) l (id, token))) is true
                and j.state + 0 = 1),
         -- Here and below, `is true` keeps a set from becoming a join, which compares all with all.
         alone as materialized (
             select r.draw, r.id from running r
              where ((r.draw, r.id) in (select draw, job_id from known)) is true),
         -- Shared rows whose jobs are all among them.
         whole as materialized (
             select r.draw from (select distinct draw from running) r
              where ",
    running_of!(
        "r.draw",
        "k.id not in (select id from running)
             and (r.draw, k.id) not in (select draw, job_id from known)"
    ),
    " is null),
         locked as materialized (
             select x.draw, x.job_id, x.until
               from known n
               join quell.lease x on x.draw between n.draw and n.draw
                                 and x.job_id between n.job_id and n.job_id
              where x.job_id = 0 or ((x.draw, x.job_id) in (select draw, id from alone)) is true
              order by x.draw, x.job_id
                for no key update of x),
         -- The time is read again once all are locked: who was waited for may have taken jobs back.
         later as materialized (
             select quell.peek($1, c.now) as now
               from clock c where (select count(*) from locked) >= 0),
         held as materialized (
             select k.draw, k.job_id from locked k where k.until > (select now from later)),
         renewed as (
             update quell.lease x set until = greatest(x.until, c.until)
               from held h, clock c
              where x.draw between h.draw and h.draw and x.job_id between h.job_id and h.job_id
                and (x.job_id <> 0 or (x.draw in (select draw from whole)) is true)),
         -- Without a shared row that is current, no job gets one of its own.
         parted as (
             insert into quell.lease as x (draw, job_id, until)
             select r.draw, r.id, c.until
               from running r, clock c
              where (r.draw in (select draw from held where job_id = 0)) is true
                and r.draw not in (select draw from whole)
                and (r.draw, r.id) not in (select draw, id from alone)
              order by r.draw, r.id
                 on conflict (draw, job_id) do update
                set until = greatest(x.until, excluded.until)),
         kept as materialized (
             select r.id, r.token from running r
              where ((r.draw, case when (r.draw, r.id) in (select draw, id from alone)
                                   then r.id else 0 end)
                        in (select draw, job_id from held)) is true)
         select c.now, r.id, r.token, c.until from clock c left join kept r on true"
);

/// Extends leases that still hold (R21): one statement, which is its own transaction.
///
/// Jobs are read and not locked: a call that ends one meanwhile comes after.
pub(crate) fn renew_query(sql: &Sql, asked: Asked, leases: &[Lease], length: Duration) -> PgQuery {
    let query = bind_leases(asked.bind(sql.query(RENEW)), leases.iter()).bind(draws(leases));
    query.bind(i64::try_from(length.as_micros()).unwrap_or(i64::MAX))
}

/// Binds the ids and the tokens of leases.
pub(crate) fn bind_leases<'l>(query: PgQuery, leases: impl Iterator<Item = &'l Lease>) -> PgQuery {
    // In the order of their ids, as all calls lock.
    let sorted: BTreeSet<&Lease> = leases.collect();
    let (ids, tokens): (Vec<i64>, Vec<i64>) =
        sorted.iter().map(|lease| (signed(lease.job.get()), signed(lease.token.get()))).unzip();
    query.bind(ids).bind(tokens)
}

/// The draws of leases, each once.
pub(crate) fn draws<'l>(leases: impl IntoIterator<Item = &'l Lease>) -> Vec<i64> {
    let draws: BTreeSet<i64> =
        leases.into_iter().map(|lease| signed(lease.token.draw().get())).collect();
    draws.into_iter().collect()
}

/// Waits for renewals of these leases that are in flight.
pub(crate) fn wait_query<'l>(sql: &Sql, leases: impl IntoIterator<Item = &'l Lease>) -> PgQuery {
    const WAIT: &str = "select from quell.lease x where x.draw = any($1)
          order by x.draw, x.job_id for share";
    sql.query(WAIT).bind(draws(leases))
}

/// The time, and the new end of each lease that still held.
pub(crate) fn decode_renewed(rows: &[PgRow]) -> Result<(Timestamp, BTreeMap<Lease, Timestamp>)> {
    let now = time(first(rows)?, 0)?;
    let mut renewed = BTreeMap::new();
    for row in rows {
        if let Some(id) = get::<Option<i64>, _>(row, 1)? {
            let token = LeaseToken::new(unsigned(get(row, 2)?));
            renewed.insert(Lease { job: JobId::new(unsigned(id)), token }, time(row, 3)?);
        }
    }
    Ok((now, renewed))
}

/// A lease that expired and was locked.
#[derive(Clone, Copy, Debug)]
struct ExpiredRow {
    until: i64,
    draw: i64,
    /// 0 for one that jobs share.
    job: i64,
}

impl PostgresBackend {
    /// Locks jobs whose leases expired by then, the oldest first, `limit` at most. Rows that another call
    /// holds are skipped. The step keeps the leases that it locked for them.
    pub(crate) async fn lock_expired(
        &self,
        step: &mut Step,
        by: Timestamp,
        limit: usize,
    ) -> Result<Vec<(Timestamp, JobId)>> {
        let (mut jobs, mut rows) = (Vec::new(), Vec::new());
        loop {
            let found = self.lock_expired_rows(step, (by, limit), rows.last().copied()).await?;
            let is_full = found.len() >= most_rows(limit);
            if !found.is_empty() {
                jobs = self.lock_jobs_of(step, &found, limit).await?;
            }
            rows.extend(found);
            // A full page may be of jobs that others hold, or of leases that were left behind.
            if !jobs.is_empty() || !is_full {
                let of = |row: ExpiredRow| Lease {
                    job: JobId::new(unsigned(row.job)),
                    token: LeaseToken::new(unsigned(row.draw)),
                };
                step.expired.extend(rows.into_iter().map(of));
                return Ok(jobs);
            }
        }
    }

    async fn lock_expired_rows(
        &self,
        step: &mut Step,
        (by, limit): (Timestamp, usize),
        after: Option<ExpiredRow>,
    ) -> Result<Vec<ExpiredRow>> {
        const ROWS: &str = "select x.until, x.draw, x.job_id from quell.lease x
              where x.until <= $1 and x.until >= $3 and (x.until, x.draw, x.job_id) > ($3, $4, $5)
              order by x.until, x.draw, x.job_id limit $2
                for update skip locked";
        let ExpiredRow { until, draw, job } =
            after.unwrap_or(ExpiredRow { until: i64::MIN, draw: i64::MIN, job: i64::MIN });
        let rows = i64::try_from(most_rows(limit)).unwrap_or(i64::MAX);
        let query = self.sql.query(ROWS).bind(by.as_micros()).bind(rows);
        let query = query.bind(until).bind(draw).bind(job);
        let rows = step.fetch(self, "lock expired leases", query).await?;
        let of =
            |row| Ok(ExpiredRow { until: get(row, 0)?, draw: get(row, 1)?, job: get(row, 2)? });
        rows.iter().map(of).collect()
    }

    /// The jobs that have these leases, which are locked: so this sees what renewals did before.
    async fn lock_jobs_of(
        &self,
        step: &mut Step,
        rows: &[ExpiredRow],
        limit: usize,
    ) -> Result<Vec<(Timestamp, JobId)>> {
        const JOBS: &str = concat!(
            "with l as materialized (
                 select * from unnest($1::bigint[], $2::bigint[], $3::bigint[])
                          l (until, draw, job_id)),
             due as materialized (
                 select l.until, j.id, j.token
                   from l join quell.job j on j.id between l.job_id and l.job_id
                  where l.job_id <> 0 and j.state + 0 = 1 and ",
            draw!("j"),
            " = l.draw
                  union all
                 select l.until, j.id, j.token
                   from l
                  cross join lateral (
                        select j.id, j.token from quell.job j
                         where ",
            draw!("j"),
            " = l.draw and j.state = 1
                           and (select o.job_id from quell.lease o
                            where o.draw = l.draw and o.job_id = j.id) is null
                         order by ",
            draw!("j"),
            " offset 0) j
                  where l.job_id = 0)
             select j.id, d.until
               from due d join quell.job j on j.id between d.id and d.id
              where j.token = d.token and j.state + 0 = 1
              order by d.until, j.id limit $4
                for update of j skip locked"
        );
        let column = |of: fn(&ExpiredRow) -> i64| rows.iter().map(of).collect::<Vec<_>>();
        let query = self.sql.query(JOBS).bind(column(|row| row.until)).bind(column(|row| row.draw));
        let query = query.bind(column(|row| row.job));
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let of = |row| Ok((time(row, 1)?, JobId::new(unsigned(get(row, 0)?))));
        step.fetch(self, "lock jobs whose leases expired", query).await?.iter().map(of).collect()
    }
}

impl Tx {
    /// Removes these leases and those that they shared where no running job has them any more.
    pub(crate) async fn forget_leases(&mut self, leases: &[Lease]) -> Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        self.run("remove leases", forget_query(&self.sql, leases)).await
    }
}

/// Removes the leases `x` that no running job has any more.
macro_rules! forget_of {
    ($leases:literal) => {
        concat!(
            "delete from quell.lease d
              using (",
            $leases,
            ") x
              where d.draw between x.draw and x.draw and d.job_id between x.id and x.id
                and case when x.id <> 0
                         then (select k.id from quell.job k
                                where k.id between x.id and x.id and k.state + 0 = 1 and ",
            draw!("k"),
            " = x.draw)
                         else ",
            running_of!(
                "x.draw",
                "(select o.job_id from quell.lease o
                   where o.draw = x.draw and o.job_id = k.id) is null"
            ),
            " end is null"
        )
    };
}

/// Removes these leases and those that they shared where no running job has them any more.
pub(crate) fn forget_query(sql: &Sql, leases: &[Lease]) -> PgQuery {
    const FORGET: &str = forget_of!(
        "select id, draw from unnest($1::bigint[], $2::bigint[]) l (id, draw)
          union
         select 0, draw from unnest($2::bigint[]) l (draw)
          order by draw, id"
    );
    bind_pairs(sql.query(FORGET), leases)
}

/// Removes leases that have expired and were left behind.
pub(crate) fn forget_left_query(sql: &Sql, asked: Asked) -> PgQuery {
    const FORGET: &str = forget_of!(
        "select l.draw, l.job_id as id from quell.lease l
          where l.until <= (select quell.peek($1, $2) offset 0)
          order by l.until, l.draw, l.job_id limit 1000 for update skip locked"
    );
    asked.bind(sql.query(FORGET))
}

/// How many leases are locked at a time to take `limit` jobs back: many may expire together, and the
/// order of their jobs is read from the jobs.
fn most_rows(limit: usize) -> usize {
    limit.max(1_000)
}

/// Binds the ids and the draws of leases.
fn bind_pairs(query: PgQuery, leases: &[Lease]) -> PgQuery {
    let (ids, draws): (Vec<i64>, Vec<i64>) = leases
        .iter()
        .map(|lease| (signed(lease.job.get()), signed(lease.token.draw().get())))
        .unzip();
    query.bind(ids).bind(draws)
}
