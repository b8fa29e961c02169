//! Where a dedup key or an idempotency key leads: one row of each task that is meant (R15, R16, R19).
//!
//! Each row is looked up by itself: planned while a table was empty, a plain join would read all of it.

use quell_core::{Job, Key, Lead, Result, TaskName, Timestamp};

use crate::idempotency::decode_record;
use crate::keys::decode_hold;
use crate::read::Reader;
use crate::row::get;

/// The row of the key `$1`, of each task or of the one that is named `$2`.
macro_rules! rows_named {
    ($columns:literal, $table:literal, $tasks:literal) => {
        concat!(
            "select t.name, r.key, ",
            $columns,
            " from quell.task t cross join lateral (select * from quell.",
            $table,
            " w where w.task_id = t.id and w.key = $1 offset 0) r",
            $tasks
        )
    };
}

/// The same of all tasks, and of the named one.
macro_rules! of_tasks {
    ($columns:literal, $table:literal) => {
        (rows_named!($columns, $table, ""), rows_named!($columns, $table, " where t.name = $2"))
    };
}

const HOLDS: (&str, &str) = of_tasks!("r.job_id, r.until, r.expires_at", "hold");
const RECORDS: (&str, &str) =
    of_tasks!("r.job_id, r.fingerprint, r.expires_at, r.state, r.output", "idempotency");

impl Reader<'_> {
    /// The job that holds a dedup key at `now`.
    ///
    /// # Errors
    /// `NotFound` where its row was removed.
    pub(crate) async fn holder(
        &mut self,
        now: Timestamp,
        task: Option<&TaskName>,
        key: &Key,
    ) -> Result<Option<Job>> {
        let mut leads = Vec::new();
        for row in self.rows_named(HOLDS, task, key).await? {
            let (task, hold) = (TaskName::new(get::<&str, _>(&row, 0)?)?, decode_hold(&row)?);
            let job = self.job(hold.job).await?;
            leads.extend(Lead::of_hold(now, &task, &hold, job.as_ref()));
        }
        self.newest(leads).await
    }

    /// The job that an idempotency key leads to at `now`.
    ///
    /// # Errors
    /// `NotFound` where its row was removed.
    pub(crate) async fn recorded(
        &mut self,
        now: Timestamp,
        task: Option<&TaskName>,
        key: &Key,
    ) -> Result<Option<Job>> {
        let mut leads = Vec::new();
        for row in self.rows_named(RECORDS, task, key).await? {
            let (task, record) = (TaskName::new(get::<&str, _>(&row, 0)?)?, decode_record(&row)?);
            let job = self.job(record.job).await?;
            leads.extend(Lead::of_record(now, &task, &record, job.as_ref()));
        }
        self.newest(leads).await
    }

    async fn rows_named(
        &mut self,
        (of_all, of_one): (&'static str, &'static str),
        task: Option<&TaskName>,
        key: &Key,
    ) -> Result<Vec<sqlx::postgres::PgRow>> {
        let key = key.as_str().to_owned();
        let query = match task {
            Some(task) => self.sql.query(of_one).bind(key).bind(task.as_str().to_owned()),
            None => self.sql.query(of_all).bind(key),
        };
        self.fetch("look up a key", query).await
    }

    async fn newest(&mut self, leads: Vec<Lead>) -> Result<Option<Job>> {
        match Lead::newest(leads)? {
            Some(id) => self.job(id).await,
            None => Ok(None),
        }
    }
}
