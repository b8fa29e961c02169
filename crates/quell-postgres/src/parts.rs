//! The parts of the ended jobs (R37): those that expire come into one after another, and a part whose
//! jobs have all expired is truncated.
//!
//! A part is turned once it has many jobs and the first of them ended a quarter of the retention ago.
//! So parts are few, and jobs stay for up to twice their retention. Where they are fewer, they are
//! removed by themselves, as are those of part 0, which holds what may stay for ever. So are all where
//! removals go on record, which names each job.

use std::time::Duration;

use quell_core::{JobState, Result, Timestamp};

use crate::connections::Connections;
use crate::error::corrupt;
use crate::row::{get, time, unsigned};
use crate::sql::Sql;
use crate::tx::{Asked, Tx, first, one_shot, read};

/// How many parts take turns.
const TURNS: i16 = 8;
/// Fewer jobs than these leave by themselves: that takes less than a truncation.
const MANY: i64 = 10_000;
/// How many times a retention parts are turned.
const SPANS: u32 = 4;
/// Where a part cannot be emptied for a retention, and for this long, others use it all the time: then its
/// jobs leave by themselves as well.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether jobs in this state are removed after their retention, unless someone says otherwise.
pub(crate) fn expires(state: JobState) -> bool {
    matches!(state, JobState::Succeeded | JobState::Cancelled | JobState::Absorbed)
}

/// The parts that take turns, and the time at which they were read.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) now: Timestamp,
    /// The one that jobs come into.
    current: i16,
    /// Those with many jobs.
    full: Vec<Full>,
}

/// A part with many jobs, and when the first and the last of them ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    part: i16,
    first: Timestamp,
    last: Timestamp,
}

/// What is to be done with parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The part that jobs come into from now on.
    pub(crate) turn: Option<i16>,
    /// Parts that are to be emptied.
    pub(crate) over: Vec<i16>,
    /// Parts whose jobs leave by themselves.
    pub(crate) sparse: Vec<i16>,
}

impl Parts {
    /// Reads them.
    pub(crate) async fn read(pool: &Connections, sql: &Sql, asked: Asked) -> Result<Self> {
        // What only hands could put there keeps a part from being emptied: its jobs leave one by one. The order
        // is that of an index; without it, a plan without statistics reads the whole part.
        const PARTS: &str = "with clock as materialized (select quell.peek($1, $2) as now),
                 many as (
                     select (c.place >> 3)::smallint as part
                       from quell.place_counts c where c.place > 7
                      group by 1 having sum(c.jobs) >= $3)
             select c.now, p.last_value::smallint, null::smallint, null::bigint, null::bigint
               from clock c, quell.ended_part p
              union all
             select null, null, m.part, e.first, e.last
               from many m
              cross join lateral (
                    select min(a.first) as first, max(a.last) as last
                      from unnest('{2,4,5}'::smallint[]) s (state)
                     cross join lateral (
                           select (select ended_at from quell.ended
                                    where part = m.part and state = s.state
                                    order by ended_at limit 1) as first,
                                  (select ended_at from quell.ended
                                    where part = m.part and state = s.state
                                    order by ended_at desc limit 1) as last) a) e
              where e.first is not null and e.last is not null
                and not exists (
                    select from quell.ended where part = m.part and state < 2
                     order by state, ended_at offset 0)
                and not exists (
                    select from quell.ended where part = m.part and state = 3
                     order by state, ended_at offset 0)
                and not exists (
                    select from quell.ended where part = m.part and state > 5
                     order by state, ended_at offset 0)";
        let query = asked.bind(sql.query(PARTS)).bind(MANY);
        let rows = read(pool, sql, "look at the parts of the ended jobs", query).await?;
        let (mut head, mut full) = (None, Vec::new());
        for row in &rows {
            match get::<Option<i16>, _>(row, 2)? {
                None => head = Some((time(row, 0)?, get(row, 1)?)),
                Some(part) => full.push(Full { part, first: time(row, 3)?, last: time(row, 4)? }),
            }
        }
        let (now, current) = head.ok_or_else(|| corrupt("an answer without its time"))?;
        Ok(Parts { now, current, full })
    }

    /// What is to be done where jobs are kept so long; without a retention, nothing. The part that jobs
    /// come into is never emptied: one of them may end at any moment.
    pub(crate) fn plan(&self, keep: Option<Duration>) -> Plan {
        let mut plan = Plan { sparse: (0..=TURNS).collect(), ..Plan::default() };
        let Some(keep) = keep else { return plan };
        let expired = self.now.before(keep);
        let next = self.current % TURNS + 1;
        for full in &self.full {
            if full.part != self.current && full.last <= expired {
                plan.over.push(full.part);
                if full.last <= expired.before(keep.max(PATIENCE)) {
                    continue;
                }
            } else if full.part == self.current {
                let is_free = self.full.iter().all(|other| other.part != next);
                if !is_free || full.first > self.now.before(keep / SPANS) {
                    // Where every part has many, the jobs of this one leave by themselves.
                    continue;
                }
                plan.turn = Some(next);
            }
            plan.sparse.retain(|part| *part != full.part);
        }
        plan
    }
}

/// How far what hangs on the jobs of a part is removed: up to this job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripped {
    pub(crate) part: i16,
    /// The file that the part has until it is truncated.
    file: i64,
    upto: i64,
    /// Whether that is the last of its jobs.
    pub(crate) is_done: bool,
}

/// Removes the rows of a table that belong to jobs of the part `$1` with ids after `$2` and up to `$3`
/// which ended by `$4`.
macro_rules! strip {
    ($table:literal) => {
        concat!(
            "delete from quell.",
            $table,
            " a
              where a.job_id > $2 and a.job_id <= $3
                and (select true from quell.ended e
                      where e.part = $1 and e.id = a.job_id and e.ended_at <= $4)"
        )
    };
}

impl Tx {
    /// Removes what hangs on the jobs of a part that ended by then, in a batch of about `limit`; goes on
    /// where an earlier call has come, if the part was not emptied since.
    pub(crate) async fn strip_part(
        &mut self,
        part: i16,
        expired: Timestamp,
        before: Option<Stripped>,
        limit: usize,
    ) -> Result<Stripped> {
        const SPAN: &str = "select min(id), max(id),
                    pg_relation_filenode(format('quell.ended_%s', $1)::regclass)::bigint
               from quell.ended where part = $1";
        const NEXT: &str = "select least($2::bigint,
                 (select job_id from quell.attempt where job_id > $1 and job_id <= $2
                   order by job_id offset $3 limit 1),
                 (select job_id from quell.effect where job_id > $1 and job_id <= $2
                   order by job_id offset $3 limit 1),
                 (select job_id from quell.hold where job_id > $1 and job_id <= $2
                   order by job_id offset $3 limit 1),
                 (select job_id from quell.past where job_id > $1 and job_id <= $2
                   order by job_id offset $3 limit 1),
                 (select job_id from quell.idempotency
                   where job_id > $1 and job_id <= $2 and state is null
                   order by job_id offset $3 limit 1))";
        const STRIP: [&str; 5] = [
            "update quell.idempotency i set state = e.state, output = e.output
               from quell.ended e
              where i.job_id > $2 and i.job_id <= $3 and i.state is null
                and e.part = $1 and e.id between i.job_id and i.job_id and e.ended_at <= $4",
            strip!("attempt"),
            strip!("effect"),
            concat!(strip!("hold"), " and a.expires_at + 0 = 9223372036854775807"),
            strip!("past"),
        ];
        const WHAT: &str = "remove what hangs on ended jobs";
        let rows = self.fetch(WHAT, self.sql.query(SPAN).bind(part)).await?;
        let row = first(&rows)?;
        let file: i64 = get(row, 2)?;
        let (Some(least), Some(last)) = (get::<Option<i64>, _>(row, 0)?, get(row, 1)?) else {
            return Ok(Stripped { part, file, upto: 0, is_done: true });
        };
        let before = before.filter(|before| before.part == part && before.file == file);
        let from = before.map_or(0, |before| before.upto).max(least.saturating_sub(1));
        let query = self.sql.query(NEXT).bind(from).bind(last);
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.fetch(WHAT, query).await?;
        let upto: i64 = get(first(&rows)?, 0)?;
        for sql in STRIP {
            let query = self.sql.query(sql).bind(part).bind(from).bind(upto);
            self.run(WHAT, query.bind(expired.as_micros())).await?;
        }
        Ok(Stripped { part, file, upto, is_done: upto >= last })
    }
}

/// Truncates a part whose jobs had all ended by then, and returns their number; none where one had not,
/// or where others use the part. It is a transaction of its own: all calls that need the part wait for it.
pub(crate) async fn empty_part(
    pool: &Connections,
    sql: &Sql,
    part: i16,
    expired: Timestamp,
) -> Result<Option<u64>> {
    let query = sql.query("select quell.empty_part($1, $2)").bind(part).bind(expired.as_micros());
    let rows = one_shot(pool, sql, query).await?;
    Ok(get::<Option<i64>, _>(first(&rows)?, 0)?.map(unsigned))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(minutes: u64) -> Timestamp {
        Timestamp::from_micros(i64::try_from(60_000_000 * minutes).unwrap())
    }

    fn parts(current: i16, full: &[(i16, u64, u64)]) -> Parts {
        let full = full.iter().map(|(part, first, last)| Full {
            part: *part,
            first: at(*first),
            last: at(*last),
        });
        Parts { now: at(1_000), current, full: full.collect() }
    }

    fn plan(turn: Option<i16>, over: &[i16], kept: &[i16]) -> Plan {
        let sparse = (0..=TURNS).filter(|part| !kept.contains(part)).collect();
        Plan { turn, over: over.to_vec(), sparse }
    }

    #[test]
    fn r37_a_part_is_emptied_once_its_last_job_has_expired() {
        let some = parts(3, &[(1, 920, 940), (2, 930, 941)]);
        assert_eq!(some.plan(Some(HOUR)), plan(None, &[1], &[1, 2]));
        assert_eq!(some.plan(Some(HOUR * 9 / 10)), plan(None, &[1, 2], &[1, 2]));
        assert_eq!(some.plan(None), plan(None, &[], &[]));
    }

    #[test]
    fn r37_a_part_is_turned_after_a_quarter_of_the_retention() {
        let young = parts(2, &[(2, 986, 1_000)]);
        assert_eq!(young.plan(Some(HOUR)), plan(None, &[], &[]));
        let old = parts(2, &[(2, 985, 1_000)]);
        assert_eq!(old.plan(Some(HOUR)), plan(Some(3), &[], &[2]));
        let last = parts(8, &[(8, 985, 1_000)]);
        assert_eq!(last.plan(Some(HOUR)), plan(Some(1), &[], &[8]));
        // It is not emptied before that, though all its jobs have expired.
        let over = parts(8, &[(8, 900, 940)]);
        assert_eq!(over.plan(Some(HOUR)), plan(Some(1), &[], &[8]));
        assert_eq!(over.plan(Some(Duration::ZERO)), plan(Some(1), &[], &[8]));
    }

    #[test]
    fn r37_the_jobs_of_a_part_that_is_always_in_use_leave_by_themselves() {
        let used = parts(3, &[(1, 700, 881)]);
        assert_eq!(used.plan(Some(HOUR)), plan(None, &[1], &[1]));
        let used = parts(3, &[(1, 700, 880)]);
        assert_eq!(used.plan(Some(HOUR)), plan(None, &[1], &[]));
        let brief = parts(3, &[(1, 700, 989)]);
        assert_eq!(brief.plan(Some(HOUR / 60)), plan(None, &[1], &[]));
    }

    #[test]
    fn r37_without_a_free_part_jobs_leave_by_themselves() {
        let stuck = parts(2, &[(2, 900, 1_000), (3, 800, 950)]);
        assert_eq!(stuck.plan(Some(HOUR)), plan(None, &[], &[3]));
    }
}
