//! What operators read: one state of the store for each answer.

use quell_core::alert::Overview;
use quell_core::schedule::Tick;
use quell_core::{
    Attempt, Effect, ExplainTarget, Explanation, Job, JobFilter, JobId, KeyAdvice, Past, QueueName,
    QueueSettings, Result, TaskName, Timestamp,
};
use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder};
use tracing::{error, warn};

use crate::alerts::{decode_overview, overview_lanes, overview_query};
use crate::bounded::Bounded;
use crate::error::explain;
use crate::hanging::{ATTEMPTS, EFFECTS, PASTS};
use crate::leases::lease_until;
use crate::names::Names;
use crate::row::{
    blocked, decode, decode_attempt, decode_effect, decode_past, get, job_columns, lane_of, signed,
    unsigned,
};
use crate::schedules::{decode_tick, ticks_query};
use crate::sql::{PgQuery, Sql};
use crate::tx::Asked;

/// The jobs for which `$these` is true, wherever they are.
macro_rules! jobs_where {
    ($these:literal) => {
        concat!(
            "select ",
            job_columns!("j.payload", concat!("j.state = 0 and ", blocked!()), lease_until!()),
            " from (select * from quell.job union all select * from quell.ended) j where ",
            $these
        )
    };
}

/// Begins to read one state.
pub(crate) const BEGIN: &str = "begin isolation level repeatable read read only";
/// As [`BEGIN`], for what reads every row: its time is limited by what the role or the database
/// says, and here.
pub(crate) const BEGIN_LONG: &str =
    "begin isolation level repeatable read read only; set local statement_timeout to default";

/// One state of the store, in a transaction that has begun.
pub(crate) struct Reader<'s> {
    pub(crate) db: &'s mut Bounded,
    pub(crate) sql: &'s Sql,
    names: &'s Names,
}

/// The conditions on jobs `j` of this task and this queue.
pub(crate) fn push_names(
    query: &mut QueryBuilder<Postgres>,
    sql: &Sql,
    task: Option<&TaskName>,
    queue: Option<&QueueName>,
) {
    if let Some(task) = task {
        query.push(sql.rewrite(" and j.task_id in (select id from quell.task where name = "));
        query.push_bind(task.as_str().to_owned()).push(")");
    }
    if let Some(queue) = queue {
        query.push(sql.rewrite(
            " and j.lane_id in (select l.id from quell.lane l
                  join quell.queue q on q.id = l.queue_id where q.name = ",
        ));
        query.push_bind(queue.as_str().to_owned()).push(")");
    }
}

impl<'s> Reader<'s> {
    pub(crate) fn new(db: &'s mut Bounded, sql: &'s Sql, names: &'s Names) -> Self {
        Reader { db, sql, names }
    }

    /// Leaves the state.
    pub(crate) async fn end(self) -> Result<()> {
        if !self.db.is_sound() {
            // It is closed, which ends the state: nothing is waited for a second time.
            return Ok(());
        }
        let ended = self.db.execute(sqlx::raw_sql("rollback")).await;
        ended.map(drop).map_err(|e| explain("end reading", e))
    }

    pub(crate) async fn fetch(&mut self, what: &'static str, query: PgQuery) -> Result<Vec<PgRow>> {
        self.db.fetch_all(query).await.map_err(|e| explain(what, e))
    }

    pub(crate) async fn decode(&mut self, rows: &[PgRow]) -> Result<Vec<Job>> {
        self.know_lanes(rows).await?;
        rows.iter().map(|row| decode(row, self.names)).collect()
    }

    /// Those of the rows that can be decoded: one that cannot must not hide the others.
    pub(crate) async fn readable(&mut self, rows: &[PgRow]) -> Result<Vec<Job>> {
        self.know_lanes(rows).await?;
        let decode = |row: &PgRow| {
            let decoded = decode(row, self.names);
            decoded.inspect_err(|error| warn!(%error, "row left out of a list")).ok()
        };
        Ok(rows.iter().filter_map(decode).collect())
    }

    pub(crate) async fn know_lanes(&mut self, rows: &[PgRow]) -> Result<()> {
        let lanes = rows.iter().map(lane_of).collect::<Result<Vec<_>>>()?;
        self.names.load(self.db, self.sql, lanes.into_iter()).await
    }

    pub(crate) async fn job(&mut self, id: JobId) -> Result<Option<Job>> {
        const JOB: &str = jobs_where!("j.id = $1");
        let rows = self.fetch("read a job", self.sql.query(JOB).bind(signed(id.get()))).await?;
        Ok(self.decode(&rows).await?.pop())
    }

    /// A page of jobs, newest first. Rows that cannot be decoded are left out.
    pub(crate) async fn jobs(&mut self, filter: &JobFilter) -> Result<Vec<Job>> {
        let (mut jobs, mut filter) = (Vec::new(), filter.clone());
        loop {
            let wanted = filter.page();
            let mut query = select_page(self.sql, &filter);
            let query = query.build().persistent(self.sql.is_persistent());
            let rows = self.db.fetch_all(query).await.map_err(|e| explain("read jobs", e))?;
            jobs.extend(self.readable(&rows).await?);
            let last = rows.last().map(|row| get::<i64, _>(row, 0)).transpose()?;
            if rows.len() < wanted || jobs.len() >= wanted {
                return Ok(jobs);
            }
            filter.before = last.map(|id| JobId::new(unsigned(id)));
        }
    }

    /// A job's attempts, oldest first; the one on its row last.
    pub(crate) async fn attempts(&mut self, id: JobId) -> Result<Vec<Attempt>> {
        let query = self.sql.query(ATTEMPTS).bind(vec![signed(id.get())]);
        let rows = self.fetch("read attempts", query).await?;
        let mut attempts = rows.iter().map(decode_attempt).collect::<Result<Vec<_>>>()?;
        attempts.extend(self.job(id).await?.and_then(|job| job.attempt_on_row()));
        Ok(attempts)
    }

    async fn effects(&mut self, id: JobId) -> Result<Vec<Effect>> {
        let query = self.sql.query(EFFECTS).bind(vec![signed(id.get())]);
        self.fetch("read effects", query).await?.iter().map(decode_effect).collect()
    }

    /// What a job was before someone edited or imported it.
    async fn past(&mut self, id: JobId) -> Result<Past> {
        let query = self.sql.query(PASTS).bind(vec![signed(id.get())]);
        let rows = self.fetch("read what jobs were", query).await?;
        Ok(rows.first().map(decode_past).transpose()?.unwrap_or_default())
    }

    pub(crate) async fn overview(&mut self, asked: Asked) -> Result<Overview> {
        let rows = self.fetch("look at queues for alerts", overview_query(self.sql, asked)).await?;
        let lanes = overview_lanes(&rows)?;
        self.names.load(self.db, self.sql, lanes.into_iter()).await?;
        decode_overview(&rows, self.names)
    }

    /// The newest ticks among a job's triggers.
    async fn ticks(&mut self, job: JobId) -> Result<Vec<Tick>> {
        let rows = self.fetch("read ticks", ticks_query(self.sql, job)).await?;
        Ok(Tick::newest(rows.iter().map(decode_tick).collect::<Result<_>>()?))
    }

    /// What happened, and why (R15).
    pub(crate) async fn explain(
        &mut self,
        now: Timestamp,
        target: &ExplainTarget,
    ) -> Result<Option<Explanation>> {
        let (trigger, job) = match target {
            ExplainTarget::Job(id) => (None, self.job(*id).await?),
            ExplainTarget::Trigger(trigger) => {
                let job = self.job(trigger.job).await?;
                (Some(*trigger), job.filter(|job| trigger.seq <= job.window.triggers))
            }
            ExplainTarget::Key { task, key } => {
                let filter = JobFilter {
                    task: task.clone(),
                    key: Some(key.clone()),
                    limit: 1,
                    ..JobFilter::default()
                };
                (None, self.jobs(&filter).await?.pop())
            }
            ExplainTarget::IdempotencyKey { task, key } => {
                (None, self.recorded(now, task.as_ref(), key).await?)
            }
            ExplainTarget::DedupKey { task, key } => {
                (None, self.holder(now, task.as_ref(), key).await?)
            }
        };
        let Some(job) = job else { return Ok(None) };
        Ok(Some(Explanation {
            trigger,
            attempts: self.attempts(job.id).await?,
            absorbed: self.absorbed_by(job.id).await?,
            open_window: self.open_window(&job).await?,
            keys: self.key_advice(&job.task).await?,
            ticks: self.ticks(job.id).await?,
            past: self.past(job.id).await?,
            effects: self.effects(job.id).await?,
            job,
        }))
    }

    async fn absorbed_by(&mut self, id: JobId) -> Result<Vec<JobId>> {
        let sql = "select id from quell.ended where absorbed_by = $1 order by id";
        let query = self.sql.query(sql).bind(signed(id.get()));
        let rows = self.fetch("read absorbed jobs", query).await?;
        rows.iter().map(|row| get(row, 0).map(|id| JobId::new(unsigned(id)))).collect()
    }

    async fn open_window(&mut self, job: &Job) -> Result<Option<JobId>> {
        const WINDOW: &str = "select id from quell.job
              where task_id = $1 and key = $2 and state = 0 and not closed
                and id <> $3";
        let Some(key) = &job.key else { return Ok(None) };
        let query = self.sql.query(WINDOW).bind(self.names.task_id(&job.task));
        let query = query.bind(key.as_str().to_owned()).bind(signed(job.id.get()));
        let rows = self.fetch("read an open window", query).await?;
        rows.first().map(|row| get(row, 0).map(|id| JobId::new(unsigned(id)))).transpose()
    }

    /// R15: looks at the newest keyed jobs of a task, if they are among the newest of all.
    async fn key_advice(&mut self, task: &TaskName) -> Result<Option<KeyAdvice>> {
        // The sum keeps the index of keys out, which would bring all keys of the task for sorting.
        const ADVICE: &str = "select count(*), coalesce(sum(triggers), 0)::bigint
               from (select j.triggers
                       from (select id, task_id, key, triggers from quell.job
                             union all
                             select id, task_id, key, triggers from quell.ended) j
                      where j.task_id + 0 = $1 and j.key is not null
                        and j.id > greatest((select max(id) from quell.job),
                                            (select max(id) from quell.ended)) - 20 * $2
                      order by j.id desc limit $2) newest";
        let query = self.sql.query(ADVICE).bind(self.names.task_id(task));
        let rows =
            self.fetch("look at a task's keys", query.bind(signed(KeyAdvice::SAMPLE))).await?;
        let row = crate::tx::first(&rows)?;
        let advice = KeyAdvice { jobs: unsigned(get(row, 0)?), triggers: unsigned(get(row, 1)?) };
        Ok((advice.jobs > 0).then_some(advice))
    }
}

/// The rows of a page of jobs, newest first. What is set aside is in no list of jobs.
fn select_page(sql: &Sql, filter: &JobFilter) -> QueryBuilder<Postgres> {
    const JOBS: &str = jobs_where!("j.state <> 6");
    let mut query = QueryBuilder::<Postgres>::new(sql.text(JOBS).as_ref());
    push_names(&mut query, sql, filter.task.as_ref(), filter.queue.as_ref());
    if filter.task.is_none() && filter.key.is_some() {
        // With all the tasks named, the index of keys serves.
        query.push(sql.rewrite(" and j.task_id in (select id from quell.task)"));
    }
    if let Some(key) = &filter.key {
        query.push(" and j.key = ").push_bind(key.as_str().to_owned());
    }
    if let Some(state) = filter.state {
        query.push(" and j.state = ").push_bind(i16::from(state.code()));
    }
    if let Some(before) = filter.before {
        query.push(" and j.id < ").push_bind(signed(before.get()));
    }
    let page = i64::try_from(filter.page()).unwrap_or(i64::MAX);
    query.push(" order by j.id desc limit ").push_bind(page);
    query
}

/// A row of name and settings.
pub(crate) fn decode_queue(row: &PgRow) -> Result<(QueueName, QueueSettings)> {
    let name: &str = get(row, 0)?;
    Ok((QueueName::new(name)?, parse_settings(name, get(row, 1)?, false)))
}

/// The settings of a queue; one that was deleted is as one that is paused (R32). So is one whose
/// settings cannot be decoded (R25): it holds itself back, and no other queue.
pub(crate) fn parse_settings(queue: &str, text: &str, deleted: bool) -> QueueSettings {
    let decoded = serde_json::from_str(text).map_err(|error| {
        error!(%error, queue, "settings cannot be decoded: the queue is held");
    });
    let held = decoded.is_err() || deleted;
    let settings: QueueSettings = decoded.unwrap_or_default();
    QueueSettings { paused: settings.paused || held, ..settings }
}
