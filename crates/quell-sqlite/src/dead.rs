//! Dead letters (R25, R26): the list of the dead, what is kept of them, and how they leave.

use std::collections::HashMap;

use quell_core::history::Event;
use quell_core::{
    Attempt, DeadFilter, DeadLetter, DeadPlace, Imported, Job, JobId, JobState, Origin, Past,
    Payload, Redrive, Result, SettledAs, no_such_job,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite};

use crate::error::explain;
use crate::keys::json;
use crate::names::base_lane;
use crate::read::{Reader, select_jobs};
use crate::row::{ENDED_AT, decode_attempt, get, optional_time, signed, time, unsigned};
use crate::tx::Tx;
use crate::write::{Last, insert_new, put};

impl Reader {
    /// A page of the dead, the latest death first.
    pub(crate) async fn dead(&mut self, filter: &DeadFilter) -> Result<Vec<Job>> {
        let (mut jobs, mut filter) = (Vec::new(), filter.clone());
        loop {
            let wanted = filter.page();
            let rows = self.rows(select_dead(&filter)).await?;
            jobs.extend(self.readable(&rows));
            let Some(last) = rows.last().filter(|_| rows.len() >= wanted && jobs.is_empty()) else {
                return Ok(jobs);
            };
            let id = JobId::new(unsigned(get(last, 0)?));
            filter.before = Some(DeadPlace { died_at: time(last, ENDED_AT)?, id });
        }
    }

    pub(crate) async fn count_dead(&mut self, filter: &DeadFilter) -> Result<u64> {
        let mut query = QueryBuilder::new("select count(*) from quell_job j");
        push_filter(&mut query, filter);
        let counted = query.build_query_scalar::<i64>().fetch_one(&mut *self.db).await;
        counted.map(unsigned).map_err(|e| explain("count the dead", e))
    }

    pub(crate) async fn letters(&mut self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        let ids: Vec<JobId> = ids.iter().copied().take(DeadFilter::MAX_PAGE).collect();
        let numbers = json(&ids.iter().map(|id| signed(id.get())).collect::<Vec<_>>())?;
        let mut query = select_jobs();
        query.push(" where j.id in (select value from json_each(").push_bind(numbers.clone());
        query.push(")) and j.state = ").push_bind(JobState::Dead.code());
        let rows = self.rows(query).await?;
        let jobs = self.readable(&rows);
        let mut attempts = self.attempts_of(&numbers).await?;
        let mut effects = self.effects_of(&numbers).await?;
        let mut pasts = self.pasts_of(&numbers).await?;
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

    async fn attempts_of(&mut self, ids: &str) -> Result<HashMap<JobId, Vec<Attempt>>> {
        const ATTEMPTS: &str =
            "select token, worker, started_at, ended_at, outcome, error, job_id from quell_attempt
              where job_id in (select value from json_each(?1)) order by job_id, token";
        let rows = sqlx::query(ATTEMPTS).bind(ids.to_owned()).fetch_all(&mut *self.db).await;
        let mut attempts: HashMap<JobId, Vec<Attempt>> = HashMap::new();
        for row in &rows.map_err(|e| explain("read attempts", e))? {
            let id = JobId::new(unsigned(get(row, 6)?));
            attempts.entry(id).or_default().push(decode_attempt(row)?);
        }
        Ok(attempts)
    }

    async fn pasts_of(&mut self, ids: &str) -> Result<HashMap<JobId, Past>> {
        const PASTS: &str = "select original, of_job, of_first_at, job_id from quell_past
              where job_id in (select value from json_each(?1))";
        let rows = sqlx::query(PASTS).bind(ids.to_owned()).fetch_all(&mut *self.db).await;
        let rows = rows.map_err(|e| explain("read what jobs were", e))?;
        rows.iter().map(|row| Ok((JobId::new(unsigned(get(row, 3)?)), decode(row)?))).collect()
    }

    /// What a job was before someone edited or imported it.
    pub(crate) async fn past(&mut self, id: JobId) -> Result<Past> {
        let ids = json(&[signed(id.get())])?;
        Ok(self.pasts_of(&ids).await?.remove(&id).unwrap_or_default())
    }
}

fn decode(row: &SqliteRow) -> Result<Past> {
    let original: Option<&str> = get(row, 0)?;
    let job = get::<Option<i64>, _>(row, 1)?.map(|id| JobId::new(unsigned(id)));
    let origin = job.zip(optional_time(row, 2)?).map(|(job, first_at)| Origin { job, first_at });
    Ok(Past { original: original.map(Payload::from_stored), origin })
}

/// The rows of a page of the dead, the latest death first.
fn select_dead(filter: &DeadFilter) -> QueryBuilder<Sqlite> {
    let mut query = select_jobs();
    push_filter(&mut query, filter);
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
fn push_filter(query: &mut QueryBuilder<Sqlite>, filter: &DeadFilter) {
    // The bound on the state is what makes the index of ended jobs serve.
    query.push(" where j.state >= 2 and j.state = ").push_bind(JobState::Dead.code());
    if let Some(task) = &filter.task {
        query.push(" and j.task_id in (select id from quell_task where name = ");
        query.push_bind(task.as_str().to_owned()).push(")");
    }
    if let Some(queue) = &filter.queue {
        query.push(concat!(
            " and ",
            base_lane!("j"),
            " in (select l.id from quell_lane l
                  join quell_queue q on q.id = l.queue_id where q.name = "
        ));
        query.push_bind(queue.as_str().to_owned()).push(")");
    }
    if let Some(error) = &filter.error {
        // Here, too, only ASCII letters have a case.
        query
            .push(" and instr(lower(j.error), ")
            .push_bind(error.to_ascii_lowercase())
            .push(") > 0");
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
        let id = redrive.id;
        let mut job = self.load(id).await?.ok_or_else(|| no_such_job(id))?;
        let mut heir = self.heir_of(&job).await?;
        let (became, before) = job.redrive(self.now, redrive.payload.as_ref(), heir.as_mut())?;
        // Keys that the job's end freed stay free.
        const FREED: &str = "delete from quell_hold
              where job_id = ?1 and until in ('\"started\"', '\"done\"')";
        let freed = sqlx::query(FREED).bind(signed(id.get())).execute(&mut *self.db).await;
        freed.map_err(|e| explain("free dedup keys", e))?;
        self.free_records_of(id).await?;
        let edited = before.is_some();
        if let Some(before) = before {
            self.keep_original(id, &before).await?;
        }
        let became = self.heed_key(&mut job, became).await?;
        let (t, place) = (self.now, self.told());
        self.put_back(&job, heir.as_ref()).await?;
        self.tell_at(place, || Event::Redrive { t, job: id, became, edited });
        Ok(became)
    }

    /// R26: the first payload stays on record, however many edits follow.
    async fn keep_original(&mut self, id: JobId, original: &Payload) -> Result<()> {
        const KEEP: &str = "insert into quell_past (job_id, original) values (?1, ?2)
                 on conflict (job_id) do update set original = coalesce(original, ?2)";
        let kept = sqlx::query(KEEP).bind(signed(id.get())).bind(original.as_str().to_owned());
        let kept = kept.execute(&mut *self.db).await;
        kept.map(drop).map_err(|e| explain("keep a payload", e))
    }

    /// Removes those that are dead.
    pub(crate) async fn discard(&mut self, ids: &[JobId], reason: &str) -> Result<Vec<JobId>> {
        const DEAD: &str = "select id from quell_job
              where id in (select value from json_each(?1)) and state in (?2, ?3)";
        let asked = json(&ids.iter().map(|id| signed(id.get())).collect::<Vec<_>>())?;
        let dead = sqlx::query_scalar(DEAD).bind(asked).bind(JobState::Dead.code());
        let dead = dead.bind(JobState::Unreadable.code());
        let dead: Vec<i64> =
            dead.fetch_all(&mut *self.db).await.map_err(|e| explain("read the dead", e))?;
        self.remove(&dead).await?;
        let mut left: std::collections::HashSet<i64> = dead.into_iter().collect();
        let gone: Vec<JobId> =
            ids.iter().copied().filter(|id| left.remove(&signed(id.get()))).collect();
        let t = self.now;
        for job in gone.iter().copied() {
            self.tell(|| Event::Discard { t, job, reason: reason.to_owned() });
        }
        Ok(gone)
    }

    /// Takes letters in as dead jobs, those that are not here yet.
    pub(crate) async fn import_dead(&mut self, letters: &[DeadLetter]) -> Result<Vec<Imported>> {
        let mut imported = Vec::with_capacity(letters.len());
        for letter in letters {
            let known = self.known_as(letter).await?;
            let id = match known {
                Some(id) => id,
                None => self.import(letter).await?,
            };
            imported.push(Imported { id, known: known.is_some() });
        }
        Ok(imported)
    }

    /// The job that a letter is here, if it is.
    async fn known_as(&mut self, letter: &DeadLetter) -> Result<Option<JobId>> {
        const CAME: &str = "select job_id from quell_past where of_job = ?1 and of_first_at = ?2";
        let origin = letter.origin();
        // What a process of an earlier version left behind as it removed a job.
        const FORGET: &str = "delete from quell_past
              where of_job = ?1 and of_first_at = ?2
                and not exists (select 1 from quell_job where id = quell_past.job_id)";
        let forgot = sqlx::query(FORGET).bind(signed(origin.job.get()));
        let forgot = forgot.bind(origin.first_at.as_micros()).execute(&mut *self.db).await;
        forgot.map_err(|e| explain("forget a removed job", e))?;
        let came: Option<i64> = sqlx::query_scalar(CAME)
            .bind(signed(origin.job.get()))
            .bind(origin.first_at.as_micros())
            .fetch_optional(&mut *self.db)
            .await
            .map_err(|e| explain("look for an imported job", e))?;
        if let Some(id) = came {
            return Ok(Some(JobId::new(unsigned(id))));
        }
        let row = self.load(origin.job).await?;
        Ok(row.filter(|row| letter.is_of(row)).map(|row| row.id))
    }

    async fn import(&mut self, letter: &DeadLetter) -> Result<JobId> {
        const PAST: &str = "insert into quell_past (job_id, original, of_job, of_first_at)
             values (?1, ?2, ?3, ?4)";
        let id = JobId::new(self.next_id);
        self.next_id += 1;
        let (job, past) = letter.arrive(id);
        insert_new(&mut self.db, self.names, &mut self.tally, &[&job], Last::Alone).await?;
        put(&mut self.db, self.names, &mut self.tally, &[&job]).await?;
        for attempt in &letter.attempts {
            self.write_attempt(id, attempt).await?;
        }
        for effect in &letter.effects {
            self.put_effect(id, effect).await?;
        }
        let origin = letter.origin();
        sqlx::query(PAST)
            .bind(signed(id.get()))
            .bind(past.original.map(|original| original.as_str().to_owned()))
            .bind(signed(origin.job.get()))
            .bind(origin.first_at.as_micros())
            .execute(&mut *self.db)
            .await
            .map_err(|e| explain("write what a job was", e))?;
        let t = self.now;
        self.tell(|| Event::imported(t, &job, origin));
        Ok(id)
    }
}
