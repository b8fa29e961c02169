//! What hangs on jobs: attempts (R25), effects (R23), what they were before (R26), and what is known of
//! those that are set aside. Each kind is loaded, and written as far as it differs.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::{
    Attempt, AttemptOutcome, Effect, JobId, JobState, LeaseToken, Origin, Past, Result, Timestamp,
    UnreadableJob,
};
use quell_engine::sql::effect_values;
use quell_engine::{Row, RowName};
use sqlx::postgres::PgRow;

use crate::backend::PostgresBackend;
use crate::load::numbers;
use crate::names::Names;
use crate::row::{decode_attempt, decode_effect, decode_past, get, signed, time, unsigned};
use crate::step::Step;
use crate::tx::Tx;
use crate::write::{bind, storable};

/// Attempts of the jobs `$1`, with the job at the end.
pub(crate) const ATTEMPTS: &str =
    "select token, worker, started_at, ended_at, outcome, error, job_id from quell.attempt
      where job_id = any($1) order by job_id, token";
/// Effects of the jobs `$1`, likewise.
pub(crate) const EFFECTS: &str =
    "select name, key, begun_at, begun_by, done_at, done_by, result, job_id
       from quell.effect where job_id = any($1) order by job_id, name";
/// What the jobs `$1` were, likewise.
pub(crate) const PASTS: &str =
    "select original, of_job, of_first_at, job_id from quell.past where job_id = any($1)";

/// The values of rows by their jobs, whose ids are at `index`.
pub(crate) fn by_job<T>(
    rows: &[PgRow],
    index: usize,
    value: impl Fn(&PgRow) -> Result<T>,
) -> Result<BTreeMap<JobId, Vec<T>>> {
    let mut by_job: BTreeMap<JobId, Vec<T>> = BTreeMap::new();
    for row in rows {
        let id = JobId::new(unsigned(get(row, index)?));
        by_job.entry(id).or_default().push(value(row)?);
    }
    Ok(by_job)
}

impl PostgresBackend {
    /// Loads what hangs on jobs.
    pub(crate) async fn load_hanging(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        let ids = |of: fn(&RowName) -> Option<JobId>| names.iter().filter_map(of).collect();
        let attempts: Vec<JobId> =
            ids(|name| if let RowName::Attempts(id) = name { Some(*id) } else { None });
        let effects: Vec<JobId> =
            ids(|name| if let RowName::Effects(id) = name { Some(*id) } else { None });
        let pasts: Vec<JobId> =
            ids(|name| if let RowName::Past(id) = name { Some(*id) } else { None });
        if !attempts.is_empty() {
            let query = self.sql.query(ATTEMPTS).bind(numbers(&attempts));
            let rows = step.fetch(self, "read attempts", query).await?;
            for (id, attempts) in by_job(&rows, 6, decode_attempt)? {
                step.attempts.insert(id, attempts.iter().map(|attempt| attempt.token).collect());
                found.push((RowName::Attempts(id), Row::Attempts(attempts)));
            }
        }
        if !effects.is_empty() {
            let query = self.sql.query(EFFECTS).bind(numbers(&effects));
            let rows = step.fetch(self, "read effects", query).await?;
            for (id, effects) in by_job(&rows, 7, decode_effect)? {
                step.effects.insert(id, effects.clone());
                found.push((RowName::Effects(id), Row::Effects(effects)));
            }
        }
        if !pasts.is_empty() {
            let query = self.sql.query(PASTS).bind(numbers(&pasts));
            let rows = step.fetch(self, "read what jobs were", query).await?;
            for (id, pasts) in by_job(&rows, 3, decode_past)? {
                let past = pasts.into_iter().next().unwrap_or_default();
                found.push((RowName::Past(id), Row::Past(Box::new(past))));
            }
        }
        self.load_asides(step, names, found).await?;
        self.load_origins(step, names, found).await
    }

    async fn load_asides(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        const ASIDES: &str = "select e.id, e.lane_id, u.was, u.set_aside_at, u.reason
               from quell.unreadable u
              cross join lateral (
                    select id, lane_id from quell.ended
                     where part = 0 and id = u.job_id offset 0) e
              where u.job_id = any($1)";
        const LOCK: &str = "select from quell.unreadable
              where job_id = any($1) order by job_id for update";
        let aside = names
            .iter()
            .filter_map(|name| if let RowName::Aside(id) = name { Some(*id) } else { None });
        let ids: Vec<JobId> = aside.collect();
        if ids.is_empty() {
            return Ok(());
        }
        if step.writes() {
            let query = self.sql.query(LOCK).bind(numbers(&ids));
            if step.fetch(self, "lock unreadable jobs", query).await?.is_empty() {
                return Ok(());
            }
        }
        let query = self.sql.query(ASIDES).bind(numbers(&ids));
        let rows = step.fetch(self, "read unreadable jobs", query).await?;
        self.know_lanes_of(step, &rows).await?;
        for row in &rows {
            let aside = decode_unreadable(row, &self.names)?;
            found.push((RowName::Aside(aside.id), Row::Aside(Box::new(aside))));
        }
        Ok(())
    }

    /// The jobs that imported ones became.
    async fn load_origins(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        // What a process of an earlier version left behind as it removed a job.
        const FORGET: &str = "delete from quell.past p
              using unnest($1::bigint[], $2::bigint[]) k (of_job, of_first_at)
              where p.of_job between k.of_job and k.of_job and p.of_first_at = k.of_first_at
                and not exists (select from quell.job j where j.id = p.job_id)
                and not exists (select from quell.ended j where j.id = p.job_id)";
        const ORIGINS: &str = "select p.of_job, p.of_first_at, p.job_id
               from unnest($1::bigint[], $2::bigint[]) k (of_job, of_first_at)
               join quell.past p on p.of_job between k.of_job and k.of_job
                                and p.of_first_at = k.of_first_at";
        let origins = names.iter().filter_map(|name| match name {
            RowName::Origin(Origin { job, first_at }) => {
                Some((signed(job.get()), first_at.as_micros()))
            }
            _ => None,
        });
        let (jobs, times): (Vec<i64>, Vec<i64>) = origins.unzip();
        if jobs.is_empty() {
            return Ok(());
        }
        if step.writes() {
            let query = self.sql.query(FORGET).bind(jobs.clone()).bind(times.clone());
            step.fetch(self, "forget removed jobs", query).await?;
        }
        let query = self.sql.query(ORIGINS).bind(jobs).bind(times);
        for row in &step.fetch(self, "look for imported jobs", query).await? {
            let job = JobId::new(unsigned(get(row, 0)?));
            let origin = Origin { job, first_at: time(row, 1)? };
            let became = JobId::new(unsigned(get(row, 2)?));
            found.push((RowName::Origin(origin), Row::Origin(became)));
        }
        Ok(())
    }
}

/// What hangs on jobs after a step; none for what is removed.
#[derive(Debug, Default)]
pub(crate) struct Hanging {
    pub(crate) attempts: Vec<(JobId, Option<Vec<Attempt>>)>,
    pub(crate) effects: Vec<(JobId, Option<Vec<Effect>>)>,
    pub(crate) pasts: Vec<(JobId, Option<Past>)>,
}

impl Tx {
    /// Writes what differs from what the step has loaded.
    pub(crate) async fn write_hanging(&mut self, step: &Step, after: &Hanging) -> Result<()> {
        const REMOVE: [&str; 3] = [
            "delete from quell.attempt where job_id = any($1)",
            "delete from quell.effect where job_id = any($1)",
            "delete from quell.past where job_id = any($1)",
        ];
        fn gone<T>(rows: &[(JobId, Option<T>)]) -> Vec<i64> {
            let ids = rows.iter().filter(|(_, row)| row.is_none()).map(|(id, _)| id);
            numbers(ids)
        }
        let all = [gone(&after.attempts), gone(&after.effects), gone(&after.pasts)];
        for (sql, ids) in REMOVE.into_iter().zip(all) {
            if !ids.is_empty() {
                self.run("remove what hangs on jobs", self.sql.query(sql).bind(ids)).await?;
            }
        }
        self.write_attempts(step, &after.attempts).await?;
        self.write_effects(step, &after.effects).await?;
        self.write_pasts(&after.pasts).await
    }

    async fn write_attempts(
        &mut self,
        step: &Step,
        after: &[(JobId, Option<Vec<Attempt>>)],
    ) -> Result<()> {
        const RECORD: &str = "insert into quell.attempt
                (job_id, token, worker, started_at, ended_at, outcome, error)
             select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[],
                                  $5::bigint[], $6::smallint[], $7::text[])";
        const GIVE_UP: &str = "delete from quell.attempt a
              using unnest($1::bigint[], $2::bigint[]) g (job_id, token)
              where a.job_id between g.job_id and g.job_id and a.token = g.token";
        let known = BTreeSet::new();
        let (mut new, mut old) = (Vec::new(), Vec::new());
        for (id, attempts) in after {
            let known = step.attempts.get(id).unwrap_or(&known);
            let Some(attempts) = attempts else { continue };
            let is_new = |attempt: &&Attempt| !known.contains(&attempt.token);
            new.extend(attempts.iter().filter(is_new).map(|attempt| (*id, attempt)));
            let kept: BTreeSet<LeaseToken> = attempts.iter().map(|one| one.token).collect();
            old.extend(known.difference(&kept).map(|token| (*id, *token)));
        }
        if !old.is_empty() {
            let (jobs, tokens): (Vec<i64>, Vec<i64>) =
                old.iter().map(|(id, token)| (signed(id.get()), signed(token.get()))).unzip();
            let query = self.sql.query(GIVE_UP).bind(jobs).bind(tokens);
            self.run("give up attempts", query).await?;
        }
        if new.is_empty() {
            return Ok(());
        }
        let column = |value: fn(&Attempt) -> i64| {
            new.iter().map(|(_, attempt)| value(attempt)).collect::<Vec<i64>>()
        };
        let ends = new.iter().map(|(_, attempt)| attempt.ended_at.map(Timestamp::as_micros));
        let outcome = |attempt: &Attempt| attempt.outcome.map(AttemptOutcome::code).map(i16::from);
        let query = self
            .sql
            .query(RECORD)
            .bind(numbers(new.iter().map(|(id, _)| id)))
            .bind(column(|attempt| signed(attempt.token.get())))
            .bind(new.iter().map(|(_, a)| a.worker.as_str().to_owned()).collect::<Vec<_>>())
            .bind(column(|attempt| attempt.started_at.as_micros()))
            .bind(ends.collect::<Vec<_>>())
            .bind(new.iter().map(|(_, attempt)| outcome(attempt)).collect::<Vec<_>>())
            .bind(new.iter().map(|(_, a)| a.error.as_deref().map(storable)).collect::<Vec<_>>());
        self.run("record attempts", query).await
    }

    async fn write_effects(
        &mut self,
        step: &Step,
        after: &[(JobId, Option<Vec<Effect>>)],
    ) -> Result<()> {
        const PUT: &str = "insert into quell.effect
                (job_id, name, key, begun_at, begun_by, done_at, done_by, result)
             values ($1, $2, $3, $4, $5, $6, $7, $8)
                 on conflict (job_id, name) do update
                set done_at = excluded.done_at, done_by = excluded.done_by,
                    result = excluded.result";
        for (job, effects) in after {
            let known = step.effects.get(job).map(Vec::as_slice).unwrap_or_default();
            let changed = effects.iter().flatten().filter(|effect| !known.contains(effect));
            for effect in changed {
                let query = self.sql.query(PUT).bind(signed(job.get()));
                let query = effect_values(effect).into_iter().fold(query, bind);
                self.run("record an effect", query).await?;
            }
        }
        Ok(())
    }

    async fn write_pasts(&mut self, after: &[(JobId, Option<Past>)]) -> Result<()> {
        const PUT: &str = "insert into quell.past (job_id, original, of_job, of_first_at)
             select * from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[])
                 on conflict (job_id) do update set original = excluded.original,
                    of_job = excluded.of_job, of_first_at = excluded.of_first_at";
        let pasts = || after.iter().filter_map(|(id, past)| Some((id, past.as_ref()?)));
        if pasts().next().is_none() {
            return Ok(());
        }
        let text = |past: &Past| past.original.as_ref().map(|text| text.as_str().to_owned());
        let origins = || pasts().map(|(_, past)| past.origin);
        let query = self
            .sql
            .query(PUT)
            .bind(numbers(pasts().map(|(id, _)| id)))
            .bind(pasts().map(|(_, past)| text(past)).collect::<Vec<_>>())
            .bind(origins().map(|of| of.map(|of| signed(of.job.get()))).collect::<Vec<_>>())
            .bind(origins().map(|of| of.map(|of| of.first_at.as_micros())).collect::<Vec<_>>());
        self.run("write what jobs were", query).await
    }

    /// Sets jobs aside, wherever they are: their rows stay as they are, among the ended. Returns the
    /// leases of those that ran.
    pub(crate) async fn set_rows_aside(
        &mut self,
        asides: &[UnreadableJob],
    ) -> Result<Vec<(i64, i64)>> {
        const MOVE: &str = concat!(
            "with gone as (delete from quell.job where id = any($1) returning *)
             insert into quell.ended as j select * from gone returning j.id, ",
            crate::leases::draw!("j")
        );
        const MARK: &str = "with was as (
                 select id, state from quell.ended
                  where id = any($1) and state + 0 <> 6 for update),
             gone as (delete from quell.ended e using was w where e.id = w.id returning e as job),
             marked as (
                 insert into quell.ended
                 select (json_populate_record(g.job, '{\"state\": 6, \"part\": 0}')).* from gone g)
             insert into quell.unreadable as u (job_id, set_aside_at, was, reason)
             select w.id, a.at, w.state, a.reason
               from was w
               join unnest($1::bigint[], $2::bigint[], $3::text[]) a (id, at, reason)
                 on a.id between w.id and w.id
                 on conflict (job_id) do update set
                    set_aside_at = excluded.set_aside_at, was = excluded.was,
                    reason = excluded.reason";
        const WHAT: &str = "set an unreadable job aside";
        if asides.is_empty() {
            return Ok(Vec::new());
        }
        let ids = numbers(asides.iter().map(|aside| &aside.id));
        let times: Vec<i64> = asides.iter().map(|aside| aside.set_aside_at.as_micros()).collect();
        let reasons: Vec<String> = asides.iter().map(|aside| storable(&aside.reason)).collect();
        let mut leases = Vec::new();
        for row in &self.fetch(WHAT, self.sql.query(MOVE).bind(ids.clone())).await? {
            leases.push((get(row, 0)?, get(row, 1)?));
        }
        self.run(WHAT, self.sql.query(MARK).bind(ids).bind(times).bind(reasons)).await?;
        Ok(leases)
    }

    /// Takes jobs off the list of those that are set aside; `removed` are those whose rows go, too.
    pub(crate) async fn clear_asides(&mut self, ids: &[JobId], removed: &[JobId]) -> Result<()> {
        const CLEAR: &str = "delete from quell.unreadable where job_id = any($1)";
        const REMOVE: &str =
            "delete from quell.ended where part = 0 and id = any($1) and state + 0 = 6";
        for (sql, ids) in [(CLEAR, ids), (REMOVE, removed)] {
            if !ids.is_empty() {
                let query = self.sql.query(sql).bind(numbers(ids));
                self.run("take jobs off a list", query).await?;
            }
        }
        Ok(())
    }
}

fn decode_unreadable(row: &PgRow, names: &Names) -> Result<UnreadableJob> {
    let lane = names.lane(get(row, 1)?);
    let (queue, task) = lane.map(|lane| (lane.queue.clone(), lane.task.clone())).unzip();
    Ok(UnreadableJob {
        id: JobId::new(unsigned(get(row, 0)?)),
        queue,
        task,
        was: state_before(row, 2),
        set_aside_at: time(row, 3)?,
        reason: get(row, 4)?,
    })
}

fn state_before(row: &PgRow, index: usize) -> Option<JobState> {
    let code: i16 = get(row, index).ok()?;
    JobState::from_code(u8::try_from(code).ok()?).filter(|state| *state != JobState::Unreadable)
}
