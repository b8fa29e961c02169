//! What operators read, without the write lock.

use quell_core::alert::{AlertRow, Overview};
use quell_core::heartbeat::Workers;
use quell_core::schedule::ScheduleInfo;
use quell_core::{
    Attempt, Counts, ExplainTarget, Explanation, Job, JobFilter, JobId, JobResult, JobState,
    KeyAdvice, QueueInfo, QueueName, Result, TaskInfo, TaskName, Timestamp,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection, SqlitePool, Transaction};
use tracing::warn;

use crate::alerts::{read_alerts, read_overview};
use crate::error::{corrupt, explain};
use crate::idempotency::read_kept;
use crate::names::{Names, base_lane};
use crate::row::{decode, decode_attempt, get, job_columns, signed, unsigned};
use crate::schedules::{read_schedules, read_ticks};
use crate::tx::parse_settings;
use crate::workers::list_workers;

/// One state of the store, and the names as of then: it ends with the reader.
pub(crate) struct Reader {
    pub(crate) db: Transaction<'static, Sqlite>,
    names: Names,
}

impl Reader {
    pub(crate) async fn new(pool: &SqlitePool) -> Result<Self> {
        let begun = pool.begin().await;
        let mut db = begun.map_err(|e| explain("open a reading connection", e))?;
        let names = Names::load(&mut db).await?;
        Ok(Reader { db, names })
    }

    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.db
    }

    pub(crate) async fn job(&mut self, id: JobId) -> Result<Option<Job>> {
        let mut query = select_jobs();
        query.push(" where j.id = ").push_bind(signed(id.get()));
        let rows = self.rows(query).await?;
        rows.first().map(|row| decode(row, &self.names)).transpose()
    }

    /// What came of a job, or of the heir that absorbed it (R19).
    pub(crate) async fn result(&mut self, id: JobId) -> Result<Option<JobResult>> {
        let mut id = id;
        loop {
            match self.job(id).await {
                Ok(Some(Job { state: JobState::Absorbed, absorbed_by: Some(by), .. })) => id = by,
                Ok(Some(job)) => return Ok(Some(JobResult::of(&job))),
                Ok(None) => return read_kept(&mut self.db, id).await,
                Err(error) if error.unreadable_job() == Some(id) => {
                    return Ok(Some(JobResult::unreadable(id, &error)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A page of jobs, newest first. Rows that cannot be decoded are left out.
    pub(crate) async fn jobs(&mut self, filter: &JobFilter) -> Result<Vec<Job>> {
        let (mut jobs, mut filter) = (Vec::new(), filter.clone());
        loop {
            let wanted = filter.page();
            let rows = self.rows(select_page(&filter)).await?;
            jobs.extend(self.readable(&rows));
            let last = rows.last().map(|row| get::<i64, _>(row, 0)).transpose()?;
            if rows.len() < wanted || jobs.len() >= wanted {
                return Ok(jobs);
            }
            filter.before = last.map(|id| JobId::new(unsigned(id)));
        }
    }

    pub(crate) async fn rows(&mut self, mut query: QueryBuilder<Sqlite>) -> Result<Vec<SqliteRow>> {
        query.build().fetch_all(&mut *self.db).await.map_err(|e| explain("read jobs", e))
    }

    /// Those of the rows that can be decoded: one that cannot must not hide the others.
    pub(crate) fn readable(&self, rows: &[SqliteRow]) -> Vec<Job> {
        let decode = |row: &SqliteRow| {
            let decoded = decode(row, &self.names);
            decoded.inspect_err(|error| warn!(%error, "row left out of a list")).ok()
        };
        rows.iter().filter_map(decode).collect()
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// How many jobs there are, as writers keep it: no job is read.
    pub(crate) async fn counts(&mut self) -> Result<Vec<Counts>> {
        const COUNTS: &str = "select queue, task, state, jobs from quell_counts order by 1, 2, 3";
        let rows = sqlx::query(COUNTS).fetch_all(&mut *self.db).await;
        rows.map_err(|e| explain("count jobs", e))?.iter().map(decode_counts).collect()
    }

    /// A job's attempts, oldest first; the one on its row last.
    pub(crate) async fn attempts(&mut self, id: JobId) -> Result<Vec<Attempt>> {
        const ATTEMPTS: &str = "select token, worker, started_at, ended_at, outcome, error
               from quell_attempt where job_id = ?1 order by token";
        let rows = sqlx::query(ATTEMPTS).bind(signed(id.get())).fetch_all(&mut *self.db).await;
        let rows = rows.map_err(|e| explain("read attempts", e))?;
        let mut attempts = rows.iter().map(decode_attempt).collect::<Result<Vec<_>>>()?;
        attempts.extend(self.job(id).await?.and_then(|job| job.attempt_on_row()));
        Ok(attempts)
    }

    pub(crate) async fn queues(&mut self) -> Result<Vec<QueueInfo>> {
        let sql = "select name, settings from quell_queue where deleted = 0 order by name";
        let rows = sqlx::query(sql).fetch_all(&mut *self.db).await;
        let rows = rows.map_err(|e| explain("read queues", e))?;
        rows.iter()
            .map(|row| {
                let name: &str = get(row, 0)?;
                let settings = parse_settings(name, get(row, 1)?, false);
                Ok(QueueInfo { name: QueueName::new(name)?, settings })
            })
            .collect()
    }

    pub(crate) async fn tasks(&mut self) -> Result<Vec<TaskInfo>> {
        let sql = "select name, settings from quell_task order by name";
        let rows = sqlx::query(sql).fetch_all(&mut *self.db).await;
        let rows = rows.map_err(|e| explain("read tasks", e))?;
        rows.iter()
            .map(|row| {
                let name: &str = get(row, 0)?;
                let settings = serde_json::from_str(get(row, 1)?)
                    .map_err(|error| corrupt(format_args!("settings of task {name}: {error}")))?;
                Ok(TaskInfo { name: TaskName::new(name)?, settings })
            })
            .collect()
    }

    pub(crate) async fn overview(&mut self, now: Timestamp) -> Result<Overview> {
        read_overview(&mut self.db, &self.names, now).await
    }

    pub(crate) async fn workers(&mut self, now: Timestamp) -> Result<Workers> {
        list_workers(&mut self.db, now).await
    }

    pub(crate) async fn alerts(&mut self) -> Result<Vec<AlertRow>> {
        read_alerts(&mut self.db).await
    }

    pub(crate) async fn schedules(&mut self) -> Result<Vec<ScheduleInfo>> {
        read_schedules(&mut self.db).await
    }

    /// What happened, and why (R15).
    pub(crate) async fn explain(&mut self, target: &ExplainTarget) -> Result<Option<Explanation>> {
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
        };
        let Some(job) = job else { return Ok(None) };
        Ok(Some(Explanation {
            trigger,
            attempts: self.attempts(job.id).await?,
            absorbed: self.absorbed_by(job.id).await?,
            open_window: self.open_window(&job).await?,
            keys: self.key_advice(&job.task).await?,
            ticks: read_ticks(&mut self.db, job.id).await?,
            past: self.past(job.id).await?,
            effects: self.effects(job.id).await?,
            job,
        }))
    }

    async fn absorbed_by(&mut self, id: JobId) -> Result<Vec<JobId>> {
        let sql = "select id from quell_job where absorbed_by = ?1 order by id";
        let ids = sqlx::query_scalar(sql).bind(signed(id.get())).fetch_all(&mut *self.db).await;
        let ids: Vec<i64> = ids.map_err(|e| explain("read absorbed jobs", e))?;
        Ok(ids.into_iter().map(|id| JobId::new(unsigned(id))).collect())
    }

    async fn open_window(&mut self, job: &Job) -> Result<Option<JobId>> {
        let Some(key) = &job.key else { return Ok(None) };
        let id: Option<i64> = sqlx::query_scalar(
            "select id from quell_job where task_id = ?1 and key = ?2 and hold = 0 and id <> ?3",
        )
        .bind(self.names.task_id(&job.task))
        .bind(key.as_str().to_owned())
        .bind(signed(job.id.get()))
        .fetch_optional(&mut *self.db)
        .await
        .map_err(|e| explain("read an open window", e))?;
        Ok(id.map(|id| JobId::new(unsigned(id))))
    }

    /// R15: looks at the newest keyed jobs of a task, if they are among the newest of all.
    async fn key_advice(&mut self, task: &TaskName) -> Result<Option<KeyAdvice>> {
        // The plus keeps the index of keys out, which would bring all keys of the task for sorting.
        const ADVICE: &str = "select count(*), coalesce(sum(triggers), 0)
               from (select triggers from quell_job
                      where +task_id = ?1 and key is not null
                        and id > (select max(id) from quell_job) - 20 * ?2
                      order by id desc limit ?2 + 0)";
        let row = sqlx::query(ADVICE)
            .bind(self.names.task_id(task))
            .bind(signed(KeyAdvice::SAMPLE))
            .fetch_one(&mut *self.db)
            .await
            .map_err(|e| explain("look at a task's keys", e))?;
        let advice = KeyAdvice { jobs: unsigned(get(&row, 0)?), triggers: unsigned(get(&row, 1)?) };
        Ok((advice.jobs > 0).then_some(advice))
    }
}

pub(crate) fn select_jobs() -> QueryBuilder<Sqlite> {
    QueryBuilder::new(concat!("select ", job_columns!("j.payload"), " from quell_job j"))
}

/// The rows of a page of jobs, newest first. What is set aside is in no list of jobs.
fn select_page(filter: &JobFilter) -> QueryBuilder<Sqlite> {
    let mut query = select_jobs();
    query.push(" where j.state is not 6");
    if let Some(task) = &filter.task {
        query.push(" and j.task_id in (select id from quell_task where name = ");
        query.push_bind(task.as_str().to_owned()).push(")");
    } else if filter.key.is_some() {
        // With all the tasks named, the index of keys serves.
        query.push(" and j.task_id in (select id from quell_task)");
    }
    if let Some(key) = &filter.key {
        query.push(" and j.key = ").push_bind(key.as_str().to_owned());
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
    if let Some(state) = filter.state {
        query.push(" and j.state = ").push_bind(state.code());
        // Succeeded jobs are many, and the newest are found soonest by walking back; the others
        // are few enough to be sorted, and the bound makes their index serve.
        match state {
            JobState::Dead | JobState::Cancelled | JobState::Absorbed => {
                query.push(" and j.state >= 2");
            }
            JobState::Running => {
                query.push(" and j.state = 1 and j.lease_until > ").push_bind(i64::MIN);
            }
            JobState::Scheduled | JobState::Succeeded | JobState::Unreadable => {}
        }
    }
    if let Some(before) = filter.before {
        query.push(" and j.id < ").push_bind(signed(before.get()));
    }
    let page = i64::try_from(filter.page()).unwrap_or(i64::MAX);
    query.push(" order by j.id desc limit ").push_bind(page);
    query
}

fn decode_counts(row: &SqliteRow) -> Result<Counts> {
    let state = u8::try_from(get::<i64, _>(row, 2)?).ok().and_then(JobState::from_code);
    Ok(Counts {
        queue: QueueName::new(get::<&str, _>(row, 0)?)?,
        task: TaskName::new(get::<&str, _>(row, 1)?)?,
        state: state.ok_or_else(|| corrupt("the state of a job"))?,
        jobs: unsigned(get(row, 3)?),
    })
}
