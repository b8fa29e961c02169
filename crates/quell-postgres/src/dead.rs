//! Dead letters (R25, R26): the list of the dead, what is kept of them, and how they leave.

use std::collections::{BTreeMap, HashMap, HashSet};

use quell_core::history::Event;
use quell_core::{
    Attempt, AttemptOutcome, DeadFilter, DeadLetter, DeadPlace, Imported, Job, JobId, Origin, Past,
    Payload, Redrive, Result, SettledAs, Timestamp, no_such_job,
};
use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder};

use crate::error::{corrupt, explain};
use crate::read::{Reader, push_names};
use crate::row::{
    ENDED_AT, decode_attempt, get, job_columns, optional_time, signed, time, unsigned,
};
use crate::sql::Sql;
use crate::tx::{Tx, first};
use crate::write::{Behind, storable};

impl Reader<'_> {
    /// A page of the dead, the latest death first.
    pub(crate) async fn dead(&mut self, filter: &DeadFilter) -> Result<Vec<Job>> {
        let (mut jobs, mut filter) = (Vec::new(), filter.clone());
        loop {
            let wanted = filter.page();
            let query = select_dead(self.sql, &filter);
            let rows = self.fetch_built("read the dead", query).await?;
            jobs.extend(self.readable(&rows).await?);
            let Some(last) = rows.last().filter(|_| rows.len() >= wanted && jobs.is_empty()) else {
                return Ok(jobs);
            };
            let id = JobId::new(unsigned(get(last, 0)?));
            filter.before = Some(DeadPlace { died_at: time(last, ENDED_AT)?, id });
        }
    }

    pub(crate) async fn count_dead(&mut self, filter: &DeadFilter) -> Result<u64> {
        const COUNT: &str = "select count(*) from quell.ended j where j.part = 0 and j.state = 3";
        let mut query = QueryBuilder::<Postgres>::new(self.sql.text(COUNT).as_ref());
        push_filter(&mut query, self.sql, filter);
        let rows = self.fetch_built("count the dead", query).await?;
        get(first(&rows)?, 0).map(unsigned)
    }

    pub(crate) async fn letters(&mut self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        const DEAD: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.ended j where j.part = 0 and j.id = any($1) and j.state + 0 = 3"
        );
        let ids: Vec<JobId> = ids.iter().copied().take(DeadFilter::MAX_PAGE).collect();
        let numbers = numbers(&ids);
        let rows = self.fetch("read the dead", self.sql.query(DEAD).bind(numbers.clone())).await?;
        let jobs = self.readable(&rows).await?;
        let mut attempts = self.attempts_of(&numbers).await?;
        let mut effects = self.effects_of(&numbers).await?;
        let mut pasts = self.pasts_of(numbers).await?;
        let letters: HashMap<JobId, DeadLetter> = jobs
            .into_iter()
            .map(|job| {
                let id = job.id;
                let attempts = attempts.remove(&id).unwrap_or_default();
                let effects = effects.remove(&id).unwrap_or_default();
                let past = pasts.remove(&id).unwrap_or_default();
                (id, DeadLetter { job, attempts, effects, past })
            })
            .collect();
        Ok(ids.iter().filter_map(|id| letters.get(id).cloned()).collect())
    }

    async fn attempts_of(&mut self, ids: &[i64]) -> Result<HashMap<JobId, Vec<Attempt>>> {
        const ATTEMPTS: &str =
            "select token, worker, started_at, ended_at, outcome, error, job_id from quell.attempt
              where job_id = any($1) order by job_id, token";
        let query = self.sql.query(ATTEMPTS).bind(ids.to_vec());
        let mut attempts: HashMap<JobId, Vec<Attempt>> = HashMap::new();
        for row in &self.fetch("read attempts", query).await? {
            let id = JobId::new(unsigned(get(row, 6)?));
            attempts.entry(id).or_default().push(decode_attempt(row)?);
        }
        Ok(attempts)
    }

    async fn pasts_of(&mut self, ids: Vec<i64>) -> Result<HashMap<JobId, Past>> {
        const PASTS: &str = "select original, of_job, of_first_at, job_id from quell.past
              where job_id = any($1)";
        let rows = self.fetch("read what jobs were", self.sql.query(PASTS).bind(ids)).await?;
        rows.iter().map(|row| Ok((JobId::new(unsigned(get(row, 3)?)), decode_past(row)?))).collect()
    }

    /// What a job was before someone edited or imported it.
    pub(crate) async fn past(&mut self, id: JobId) -> Result<Past> {
        let pasts = self.pasts_of(vec![signed(id.get())]).await?;
        Ok(pasts.into_values().next().unwrap_or_default())
    }

    async fn fetch_built(
        &mut self,
        what: &'static str,
        mut query: QueryBuilder<Postgres>,
    ) -> Result<Vec<PgRow>> {
        let query = query.build().persistent(self.sql.is_persistent());
        self.db.fetch_all(query).await.map_err(|e| explain(what, e))
    }
}

fn numbers(ids: &[JobId]) -> Vec<i64> {
    ids.iter().map(|id| signed(id.get())).collect()
}

fn decode_past(row: &PgRow) -> Result<Past> {
    let original: Option<&str> = get(row, 0)?;
    let job = get::<Option<i64>, _>(row, 1)?.map(|id| JobId::new(unsigned(id)));
    let origin = job.zip(optional_time(row, 2)?).map(|(job, first_at)| Origin { job, first_at });
    Ok(Past { original: original.map(Payload::from_stored), origin })
}

/// The rows of a page of the dead, the latest death first.
fn select_dead(sql: &Sql, filter: &DeadFilter) -> QueryBuilder<Postgres> {
    const DEAD: &str = concat!(
        "select ",
        job_columns!("j.payload", "false"),
        " from quell.ended j where j.part = 0 and j.state = 3"
    );
    let mut query = QueryBuilder::<Postgres>::new(sql.text(DEAD).as_ref());
    push_filter(&mut query, sql, filter);
    if let Some(before) = filter.before {
        // The first bound is for the index, which does not know the second.
        let (died_at, id) = (before.died_at.as_micros(), signed(before.id.get()));
        query.push(" and j.ended_at <= ").push_bind(died_at);
        query.push(" and (j.ended_at, j.id) < (").push_bind(died_at).push(", ");
        query.push_bind(id).push(")");
    }
    let page = i64::try_from(filter.page()).unwrap_or(i64::MAX);
    query.push(" order by j.ended_at desc, j.id desc limit ").push_bind(page);
    query
}

/// All of a filter but its page.
fn push_filter(query: &mut QueryBuilder<Postgres>, sql: &Sql, filter: &DeadFilter) {
    push_names(query, sql, filter.task.as_ref(), filter.queue.as_ref());
    if let Some(error) = &filter.error {
        // In this collation, as in every other store, only ASCII letters have a case.
        query.push(" and strpos(lower(j.error collate \"C\"), ");
        query.push_bind(error.to_ascii_lowercase()).push(") > 0");
    }
    if let Some(after) = filter.died_after {
        query.push(" and j.ended_at >= ").push_bind(after.as_micros());
    }
    if let Some(before) = filter.died_before {
        query.push(" and j.ended_at < ").push_bind(before.as_micros());
    }
}

impl Tx<'_> {
    pub(crate) async fn redrive(&mut self, redrive: &Redrive) -> Result<SettledAs> {
        const FREED: &str = "delete from quell.hold
              where job_id = $1 and until in ('\"started\"', '\"done\"')";
        let (id, place) = (redrive.id, self.told());
        // Keys that the job's end freed stay free.
        self.run("free dedup keys", self.sql.query(FREED).bind(signed(id.get()))).await?;
        self.free_records_of(id).await?;
        let mut before = None;
        let moved = self
            .move_one(id, |now, job, heir| {
                let (became, was) = job.redrive(now, redrive.payload.as_ref(), heir)?;
                before = was;
                Ok(Some(became))
            })
            .await?;
        let became = moved.ok_or_else(|| no_such_job(id))?;
        let edited = before.is_some();
        if let Some(before) = before {
            self.keep_original(id, &before).await?;
        }
        let t = self.now;
        self.tell_at(place, || Event::Redrive { t, job: id, became, edited });
        Ok(became)
    }

    /// R26: the first payload stays on record, however many edits follow.
    async fn keep_original(&mut self, id: JobId, original: &Payload) -> Result<()> {
        const KEEP: &str = "insert into quell.past as p (job_id, original) values ($1, $2)
                 on conflict (job_id) do update set original = coalesce(p.original, excluded.original)";
        let query = self.sql.query(KEEP).bind(signed(id.get()));
        self.run("keep a payload", query.bind(original.as_str().to_owned())).await
    }

    /// Removes those that are dead.
    pub(crate) async fn discard(&mut self, ids: &[JobId], reason: &str) -> Result<Vec<JobId>> {
        const DEAD: &str = "select id from quell.ended
              where part = 0 and id = any($1) and state + 0 in (3, 6) order by id for update";
        let query = self.sql.query(DEAD).bind(numbers(ids));
        let mut dead = Vec::new();
        for row in &self.fetch("read the dead", query).await? {
            dead.push(get::<i64, _>(row, 0)?);
        }
        self.read_clock().await?;
        self.remove(&dead).await?;
        let mut left: HashSet<i64> = dead.into_iter().collect();
        let gone: Vec<JobId> =
            ids.iter().copied().filter(|id| left.remove(&signed(id.get()))).collect();
        let t = self.now;
        for job in gone.iter().copied() {
            self.tell(|| Event::Discard { t, job, reason: reason.to_owned() });
        }
        Ok(gone)
    }

    /// Takes letters in as dead jobs, those that are not here yet. Where another call takes in one
    /// of them at the same time, the two meet at an index, and one of them starts over.
    pub(crate) async fn import_dead(&mut self, letters: &[DeadLetter]) -> Result<Vec<Imported>> {
        let known = self.known_as(letters).await?;
        let mut new: BTreeMap<Origin, &DeadLetter> = BTreeMap::new();
        let mut order: Vec<Origin> = Vec::new();
        for (letter, _) in letters.iter().zip(&known).filter(|(_, known)| known.is_none()) {
            // The first of two equal ones counts.
            new.entry(letter.origin()).or_insert_with(|| {
                order.push(letter.origin());
                letter
            });
        }
        // Names first, so that a call which starts over has taken no ids.
        new.values().for_each(|letter| drop(self.name(&letter.job)));
        self.check_named()?;
        self.read_clock().await?;
        let ids = self.new_ids(order.len()).await?;
        let ids = ids.into_iter().map(|id| JobId::new(unsigned(id)));
        let ids: BTreeMap<Origin, JobId> = order.iter().copied().zip(ids).collect();
        let came: Vec<(JobId, &DeadLetter)> = order
            .iter()
            .filter_map(|origin| Some((*ids.get(origin)?, *new.get(origin)?)))
            .collect();
        self.write_letters(&came).await?;
        let mut seen = HashSet::new();
        let imported = letters.iter().zip(known).map(|(letter, known)| {
            let origin = letter.origin();
            let id = known.or_else(|| ids.get(&origin).copied());
            let id = id.ok_or_else(|| corrupt("the number of a letter"))?;
            Ok(Imported { id, known: known.is_some() || !seen.insert(origin) })
        });
        imported.collect()
    }

    /// The jobs that letters are here, where they are.
    async fn known_as(&mut self, letters: &[DeadLetter]) -> Result<Vec<Option<JobId>>> {
        // What a process of an earlier version left behind as it removed a job.
        const FORGET: &str = "delete from quell.past p
              using unnest($1::bigint[], $2::bigint[]) k (of_job, of_first_at)
              where p.of_job between k.of_job and k.of_job and p.of_first_at = k.of_first_at
                and not exists (select from quell.job j where j.id = p.job_id)
                and not exists (select from quell.ended j where j.id = p.job_id)";
        const KNOWN: &str = "select coalesce(
                    (select p.job_id from quell.past p
                      where p.of_job = k.of_job and p.of_first_at = k.of_first_at),
                    (select j.id from quell.job j
                      where j.id = k.of_job and j.first_at = k.of_first_at
                        and j.task_id = (select t.id from quell.task t where t.name = k.task)),
                    (select j.id from quell.ended j
                      where j.id = k.of_job and j.first_at = k.of_first_at
                        and j.task_id = (select t.id from quell.task t where t.name = k.task)))
               from unnest($1::bigint[], $2::bigint[], $3::text[])
                    with ordinality k (of_job, of_first_at, task, ord)
              order by k.ord";
        let (jobs, times): (Vec<i64>, Vec<i64>) = letters
            .iter()
            .map(|letter| {
                let Origin { job, first_at } = letter.origin();
                (signed(job.get()), first_at.as_micros())
            })
            .unzip();
        let tasks: Vec<String> =
            letters.iter().map(|letter| letter.job.task.as_str().to_owned()).collect();
        let forget = self.sql.query(FORGET).bind(jobs.clone()).bind(times.clone());
        self.run("forget removed jobs", forget).await?;
        let query = self.sql.query(KNOWN).bind(jobs).bind(times).bind(tasks);
        let rows = self.fetch("look for imported jobs", query).await?;
        let known =
            |row: &PgRow| Ok(get::<Option<i64>, _>(row, 0)?.map(|id| JobId::new(unsigned(id))));
        rows.iter().map(known).collect()
    }

    async fn write_letters(&mut self, came: &[(JobId, &DeadLetter)]) -> Result<()> {
        const PASTS: &str = "insert into quell.past (job_id, original, of_job, of_first_at)
             select * from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[])";
        if came.is_empty() {
            return Ok(());
        }
        let rows: Vec<(Job, Past)> = came.iter().map(|(id, letter)| letter.arrive(*id)).collect();
        let jobs: Vec<&Job> = rows.iter().map(|(job, _)| job).collect();
        self.put(&jobs, true, &Behind::new()).await?;
        self.write_attempts(came).await?;
        self.write_effects(came).await?;
        let text = |past: &Past| past.original.as_ref().map(|payload| payload.as_str().to_owned());
        let origins = || came.iter().map(|(_, letter)| letter.origin());
        let query = self
            .sql
            .query(PASTS)
            .bind(came.iter().map(|(id, _)| signed(id.get())).collect::<Vec<_>>())
            .bind(rows.iter().map(|(_, past)| text(past)).collect::<Vec<_>>())
            .bind(origins().map(|origin| signed(origin.job.get())).collect::<Vec<_>>())
            .bind(origins().map(|origin| origin.first_at.as_micros()).collect::<Vec<_>>());
        self.run("write what jobs were", query).await?;
        let t = self.now;
        for ((job, _), (_, letter)) in rows.iter().zip(came) {
            self.tell(|| Event::imported(t, job, letter.origin()));
        }
        Ok(())
    }

    async fn write_attempts(&mut self, came: &[(JobId, &DeadLetter)]) -> Result<()> {
        const ATTEMPTS: &str = "insert into quell.attempt
                (job_id, token, worker, started_at, ended_at, outcome, error)
             select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[],
                                  $5::bigint[], $6::smallint[], $7::text[])";
        let attempts: Vec<(JobId, &Attempt)> = came
            .iter()
            .flat_map(|(id, letter)| letter.attempts.iter().map(|attempt| (*id, attempt)))
            .collect();
        let of = |attempts: &[(JobId, &Attempt)], value: fn(&Attempt) -> i64| {
            attempts.iter().map(|(_, attempt)| value(attempt)).collect::<Vec<i64>>()
        };
        let outcome = |attempt: &Attempt| attempt.outcome.map(AttemptOutcome::code).map(i16::from);
        let query = self
            .sql
            .query(ATTEMPTS)
            .bind(attempts.iter().map(|(id, _)| signed(id.get())).collect::<Vec<_>>())
            .bind(of(&attempts, |attempt| signed(attempt.token.get())))
            .bind(attempts.iter().map(|(_, a)| a.worker.as_str().to_owned()).collect::<Vec<_>>())
            .bind(of(&attempts, |attempt| attempt.started_at.as_micros()))
            .bind(
                attempts
                    .iter()
                    .map(|(_, attempt)| attempt.ended_at.map(Timestamp::as_micros))
                    .collect::<Vec<_>>(),
            )
            .bind(attempts.iter().map(|(_, attempt)| outcome(attempt)).collect::<Vec<_>>())
            .bind(
                attempts
                    .iter()
                    .map(|(_, attempt)| attempt.error.as_deref().map(storable))
                    .collect::<Vec<_>>(),
            );
        self.run("write attempts", query).await
    }
}
