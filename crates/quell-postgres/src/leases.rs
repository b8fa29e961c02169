//! Leases, in a table of their own (R21), so that renewals write no job and wait for none: a caller's
//! transaction that ends a job holds its row until the commit (R22).
//!
//! The jobs of one claim share the draw in their tokens, and one row, whose `job_id` is 0. A job whose
//! lease was renewed without the others has a row of its own, which counts instead of the shared one.
//! Who writes leases locks their rows in the order of the table's key. Who takes jobs back locks the
//! leases before it looks at the jobs, and passes over jobs that others hold. Everybody else locks
//! jobs before leases.
//!
//! A shared row that nobody needs any more leaves with the last job. Where two jobs ended at the same
//! time neither may see that it was the last; the row leaves when it lapses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_core::{JobId, Lease, LeaseToken, Result, Timestamp};
use sqlx::postgres::PgRow;

use crate::connections::Connections;
use crate::row::{get, signed, time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx, first, read};

/// The draw of a job's token: the 39 lowest bits.
macro_rules! draw {
    ($of:literal) => {
        concat!("(", $of, ".token & 549755813887)")
    };
}
pub(crate) use draw;

/// When the lease of the job `j` lapses, if it runs.
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

/// When the first lease lapses: at the earliest, where a shared row is left over.
macro_rules! first_lapse {
    () => {
        "(select x.until from quell.lease x order by x.until limit 1)"
    };
}
pub(crate) use first_lapse;

/// With `lapse`: gives leases to the jobs `started`, which share the draw `$draw`, until
/// `clock.until`. A claim may be several statements: those after the first give each job a lease of its
/// own, and so does a claim whose draw another has drawn.
macro_rules! grant {
    ($draw:literal) => {
        concat!(
            "granted as (
                 insert into quell.lease (draw, job_id, until)
                 select ",
            $draw,
            ", 0, c.until from clock c where exists (select from started)
                     on conflict (draw, job_id) do nothing
              returning draw),
             granted_apart as (
                 insert into quell.lease (draw, job_id, until)
                 select ",
            $draw,
            ", s.id, c.until from started s, clock c where not exists (select from granted)
                     on conflict (draw, job_id) do update set until = excluded.until)"
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
                   join quell.lease x on x.draw = d.draw
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
                          and not exists (
                              select from quell.job k
                               where ",
            $crate::leases::draw!("k"),
            " = x.draw and k.state = 1
                                 and k.id not in (select g.id from gone g)
                                 and (x.draw, k.id) not in (select o.draw, o.job_id from known o)) end"
        )
    };
}
pub(crate) use forget;

/// Looks, without writing, whether a lease has lapsed.
pub(crate) async fn has_lapsed(pool: &Connections, sql: &Sql, asked: Asked) -> Result<bool> {
    const LAPSED: &str =
        concat!("select coalesce(", first_lapse!(), " <= quell.peek($1, $2), false)");
    let rows = read(pool, sql, "look for lapsed leases", asked.bind(sql.query(LAPSED))).await?;
    get(first(&rows)?, 0)
}

/// Extends leases that still hold (R21): one statement, which is its own transaction.
///
/// Jobs are read and not locked: whoever ends one meanwhile comes after.
pub(crate) fn renew_query(sql: &Sql, asked: Asked, leases: &[Lease], length: Duration) -> PgQuery {
    const RENEW: &str = concat!(
        "with clock as materialized (
             select now, case when now > 9223372036854775807 - $6
                              then 9223372036854775807 else now + $6 end as until
               from (select quell.tick($1, $2) as now) t),
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
         -- Shared rows whose jobs are all among them.
         whole as materialized (
             select distinct r.draw from running r
              where not exists (
                    select from quell.job k
                     where ",
        draw!("k"),
        " = r.draw and k.state = 1
                       and k.id not in (select id from running)
                       and (r.draw, k.id) not in (select draw, job_id from known))),
         alone as materialized (
             select r.draw, r.id from running r
              where (r.draw, r.id) in (select draw, job_id from known)),
         -- Without a shared row that holds, nobody gets one of their own.
         held as materialized (
             select x.draw, x.job_id
               from known n
               join quell.lease x on x.draw = n.draw and x.job_id = n.job_id
              where x.until > (select now from clock)
                and (x.job_id = 0 or (x.draw, x.job_id) in (select draw, id from alone))
              order by x.draw, x.job_id
                for no key update of x),
         renewed as (
             update quell.lease x set until = c.until
               from held h, clock c
              where x.draw = h.draw and x.job_id = h.job_id
                and (x.job_id <> 0 or x.draw in (select draw from whole))),
         parted as (
             insert into quell.lease (draw, job_id, until)
             select r.draw, r.id, c.until
               from running r join held h on h.draw = r.draw and h.job_id = 0, clock c
              where r.draw not in (select draw from whole)
                and (r.draw, r.id) not in (select draw, id from alone)
              order by r.draw, r.id
                 on conflict (draw, job_id) do update set until = excluded.until)
         select c.now, r.id, r.token, c.until
           from clock c
           left join running r
             on (r.draw, case when (r.draw, r.id) in (select draw, id from alone)
                              then r.id else 0 end) in (select draw, job_id from held)"
    );
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

impl Tx<'_> {
    /// Locks leases that lapsed, and jobs that have them, the oldest first: `limit` at most. What
    /// another call holds is passed over. Returns the draws of all leases that it locked.
    pub(crate) async fn lock_lapsed(&mut self, limit: usize) -> Result<(Vec<Lease>, Vec<i64>)> {
        // Those that lapse together come together: which of their jobs is first, the jobs say.
        const LEASES: &str = "select x.draw, x.job_id, x.until from quell.lease x
              where x.until <= $1
                and x.until <= coalesce((select y.until from quell.lease y
                                          order by y.until limit 1 offset $2 - 1), $1)
              order by x.until
                for update skip locked";
        // A statement of its own: the leases are locked, so that it sees what renewals did before.
        const JOBS: &str = concat!(
            "select j.id, j.token
               from unnest($1::bigint[], $2::bigint[], $3::bigint[]) l (draw, job_id, until)
               join quell.job j on ",
            draw!("j"),
            " = l.draw and j.state = 1
              where l.job_id = j.id
                 or l.job_id = 0 and not exists (
                        select from quell.lease o where o.draw = l.draw and o.job_id = j.id)
              order by l.until, j.id limit $4
                for update of j skip locked"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let query = self.sql.query(LEASES).bind(self.now.as_micros()).bind(limit);
        let (mut draws, mut jobs, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for row in &self.fetch("read lapsed leases", query).await? {
            draws.push(get::<i64, _>(row, 0)?);
            jobs.push(get::<i64, _>(row, 1)?);
            ends.push(get::<i64, _>(row, 2)?);
        }
        if draws.is_empty() {
            return Ok((Vec::new(), draws));
        }
        let query = self.sql.query(JOBS).bind(draws.clone()).bind(jobs).bind(ends).bind(limit);
        let mut leases = Vec::new();
        for row in &self.fetch("lock jobs whose leases lapsed", query).await? {
            let token = LeaseToken::new(unsigned(get(row, 1)?));
            leases.push(Lease { job: JobId::new(unsigned(get(row, 0)?)), token });
        }
        Ok((leases, draws))
    }

    /// Removes leases of these draws that no running job has any more; returns how many.
    pub(crate) async fn forget_leases(&mut self, draws: Vec<i64>) -> Result<usize> {
        const FORGET: &str = concat!(
            "with ",
            known!("$1"),
            "
             delete from quell.lease d
              using known x
              where d.draw = x.draw and d.job_id = x.job_id
                and not exists (
                    select from quell.job k
                     where ",
            draw!("k"),
            " = x.draw and k.state = 1
                       and case when x.job_id <> 0 then k.id = x.job_id
                                else (x.draw, k.id) not in (
                                         select o.draw, o.job_id from known o) end)
          returning d.draw"
        );
        if draws.is_empty() {
            return Ok(0);
        }
        Ok(self.fetch("remove leases", self.sql.query(FORGET).bind(draws)).await?.len())
    }
}
