//! Rows of names: queues and tasks with their settings (R32, R33), workers (R25) and alerts (R27), as the
//! engine's steps load and write them.
//!
//! A step that changes a queue locks its row, as a claim under its limits does; any other reads it without
//! a lock, so that no end of an attempt keeps a claim from starting.

use std::collections::BTreeSet;

use quell_core::heartbeat::WorkerRow;
use quell_core::queue::Remarks;
use quell_core::{
    AlertName, AlertState, QueueName, QueueSettings, Result, TaskName, TaskSettings, WorkerId,
};
use quell_engine::{Entry, Kind, Place, Row, RowName, Scan, Seen, SettingsOf};
use sqlx::postgres::PgRow;

use crate::alerts::decode_alert;
use crate::backend::PostgresBackend;
use crate::error::corrupt;
use crate::read::parse_settings;
use crate::row::{get, signed, signed_count};
use crate::step::Step;
use crate::tx::Tx;
use crate::workers::{decode_worker, json, micros, worker_columns};

/// What a queue was before a step that changes it.
#[derive(Clone, Debug)]
pub(crate) struct QueueBefore {
    pub(crate) settings: QueueSettings,
    pub(crate) deleted: bool,
}

impl PostgresBackend {
    /// Loads queues, tasks, workers and alerts.
    pub(crate) async fn load_settings(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        const QUEUES: &str = "select name, settings, deleted from quell.queue where name = any($1)";
        const LOCK_QUEUES: &str = "select name, settings, deleted from quell.queue
              where name = any($1) order by name for update";
        const TASKS: &str = "select name, settings, id from quell.task where name = any($1)";
        let texts = |of: fn(&RowName) -> Option<&str>| -> Vec<String> {
            names.iter().filter_map(of).map(str::to_owned).collect()
        };
        let queues =
            texts(|name| if let RowName::Queue(name) = name { Some(name.as_str()) } else { None });
        // The turn of a queue is its row: who asks for it changes the queue.
        let changes = names.iter().any(|name| matches!(name, RowName::Turn(_)));
        if !queues.is_empty() {
            let sql = if step.writes() && changes { LOCK_QUEUES } else { QUEUES };
            let query = self.sql.query(sql).bind(queues);
            for row in &step.fetch(self, "read queues", query).await? {
                let (text, deleted): (&str, bool) = (get(row, 0)?, get(row, 2)?);
                let settings = parse_settings(text, get(row, 1)?, false);
                let name = QueueName::new(text)?;
                let before = QueueBefore { settings: settings.clone(), deleted };
                step.queues.insert(name.clone(), before);
                let settings = (!deleted).then(|| Box::new(settings));
                found.push((RowName::Queue(name), Row::Queue(settings)));
            }
        }
        let tasks =
            texts(|name| if let RowName::Task(name) = name { Some(name.as_str()) } else { None });
        if !tasks.is_empty() {
            let query = self.sql.query(TASKS).bind(tasks);
            for row in &step.fetch(self, "read tasks", query).await? {
                let text: &str = get(row, 0)?;
                let settings = serde_json::from_str(get(row, 1)?)
                    .map_err(|error| corrupt(format_args!("settings of task {text}: {error}")))?;
                let name = TaskName::new(text)?;
                self.names.learn_task(name.clone(), get(row, 2)?);
                found.push((RowName::Task(name), Row::Task(settings)));
            }
        }
        self.load_workers(step, names, found).await?;
        self.load_alerts(step, names, found).await?;
        self.load_remarks(step, names, found).await
    }

    async fn load_workers(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        const WORKERS: &str =
            concat!("select ", worker_columns!(), " from quell.worker where worker = any($1)");
        let workers = names.iter().filter_map(|name| match name {
            RowName::Worker(worker, _) => Some(worker.as_str().to_owned()),
            _ => None,
        });
        let workers: Vec<String> = workers.collect();
        if workers.is_empty() {
            return Ok(());
        }
        let query = self.sql.query(WORKERS).bind(workers);
        for row in &step.fetch(self, "read workers", query).await? {
            let row = decode_worker(row)?;
            let name = RowName::Worker(row.worker.clone(), row.incarnation);
            if names.contains(&name) {
                found.push((name, Row::Worker(Box::new(row))));
            }
        }
        Ok(())
    }

    async fn load_alerts(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        const ALERTS: &str = "select name, version, state from quell.alert where name = any($1)";
        const LOCK: &str = "select name, version, state from quell.alert
              where name = any($1) order by name for update";
        let alerts = names.iter().filter_map(|name| match name {
            RowName::Alert(name) => Some(name.as_str().to_owned()),
            _ => None,
        });
        let alerts: Vec<String> = alerts.collect();
        if alerts.is_empty() {
            return Ok(());
        }
        let query = self.sql.query(if step.writes() { LOCK } else { ALERTS }).bind(alerts);
        for row in &step.fetch(self, "read alerts", query).await? {
            let row = decode_alert(row)?;
            found.push((RowName::Alert(row.name), Row::Alert(row.version, Box::new(row.state))));
        }
        Ok(())
    }

    async fn load_remarks(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        const REMARKS: &str = "select name, remarks from quell.remarks where name = any($1)";
        let named = names.iter().filter_map(|name| match name {
            RowName::Remarks(of) => Some(of.to_string()),
            _ => None,
        });
        let named: Vec<String> = named.collect();
        if named.is_empty() {
            return Ok(());
        }
        let query = self.sql.query(REMARKS).bind(named);
        for row in &step.fetch(self, "read remarks", query).await? {
            let of = get::<&str, _>(row, 0)?.parse()?;
            let remarks = serde_json::from_str(get(row, 1)?)
                .map_err(|error| corrupt(format_args!("the remarks of {of}: {error}")))?;
            found.push((RowName::Remarks(of), Row::Remarks(remarks)));
        }
        Ok(())
    }

    /// All rows of a kind, by name.
    pub(crate) async fn rows_of(&self, step: &mut Step, kind: Kind, scan: &Scan) -> Result<Seen> {
        let sql = match kind {
            Kind::Queues => "select name from quell.queue order by name collate \"C\"",
            Kind::Tasks => "select name from quell.task order by name collate \"C\"",
            Kind::Workers => {
                "select worker, incarnation from quell.worker order by worker, incarnation"
            }
            Kind::Alerts => "select name from quell.alert order by name",
            Kind::Schedules => "select name from quell.schedule order by name collate \"C\"",
            // A change of a queue's rates changes its starts, which nothing reads for that.
            Kind::Starts => return Ok(Seen::default()),
        };
        let rows = step.fetch(self, "read names", self.sql.query(sql)).await?;
        let entry = |row: &PgRow| {
            let text: &str = get(row, 0)?;
            let name = match kind {
                Kind::Queues | Kind::Starts => RowName::Queue(QueueName::new(text)?),
                Kind::Tasks => RowName::Task(TaskName::new(text)?),
                Kind::Workers => RowName::Worker(
                    WorkerId::new(text)?,
                    u32::try_from(get::<i64, _>(row, 1)?).unwrap_or(0),
                ),
                Kind::Alerts => RowName::Alert(AlertName::new(text)?),
                Kind::Schedules => RowName::Schedule(quell_core::ScheduleName::new(text)?),
            };
            Ok(Entry { place: Place::NONE, name, note: None })
        };
        let mut entries = rows.iter().map(entry).collect::<Result<Vec<Entry>>>()?;
        let after = scan.after.as_ref().map(|(_, name)| name);
        entries.retain(|entry| after.is_none_or(|after| entry.name > *after));
        // They are few: one answer has all of them.
        Ok(Seen { entries, more: false })
    }
}

impl Tx {
    /// Writes a queue's settings; none deletes them.
    pub(crate) async fn write_queue(
        &mut self,
        queue: &QueueName,
        before: Option<&QueueBefore>,
        after: Option<&QueueSettings>,
    ) -> Result<()> {
        const MAKE: &str = "insert into quell.queue (name) values ($1) on conflict do nothing";
        const SET: &str = "insert into quell.queue (name, settings, deleted) values ($1, $2, $3)
             on conflict (name) do update
                set settings = excluded.settings, deleted = excluded.deleted";
        const ID: &str = "select id from quell.queue where name = $1";
        let name = queue.as_str().to_owned();
        let settings = after.cloned().unwrap_or_default();
        if before.is_none() && after.is_some() && settings == QueueSettings::default() {
            // A trigger names it for the first time. Where it is there by now, it has settings.
            return self.run("make a queue", self.sql.query(MAKE).bind(name)).await;
        }
        let text = serde_json::to_string(&settings)
            .map_err(|error| corrupt(format_args!("settings of queue {queue}: {error}")))?;
        let text = if after.is_some() { text } else { "{}".to_owned() };
        let query = self.sql.query(SET).bind(name.clone()).bind(text).bind(after.is_none());
        self.run("set a queue", query).await?;
        let Some(before) = before.filter(|before| !before.deleted) else { return Ok(()) };
        let rows = self.fetch("read a queue", self.sql.query(ID).bind(name)).await?;
        match rows.first() {
            Some(row) => self.change_rates(get(row, 0)?, &before.settings, &settings).await,
            None => Ok(()),
        }
    }

    /// Writes a task's settings; `is_new` where the step saw no such task.
    pub(crate) async fn write_task(
        &mut self,
        task: &TaskName,
        settings: &TaskSettings,
        is_new: bool,
    ) -> Result<()> {
        const MAKE: &str = "insert into quell.task (name) values ($1) on conflict do nothing";
        const SET: &str = "insert into quell.task (name, settings) values ($1, $2)
             on conflict (name) do update set settings = excluded.settings";
        let name = task.as_str().to_owned();
        if is_new && *settings == TaskSettings::default() {
            return self.run("make a task", self.sql.query(MAKE).bind(name)).await;
        }
        let text = serde_json::to_string(settings)
            .map_err(|error| corrupt(format_args!("settings of task {task}: {error}")))?;
        self.run("set a task", self.sql.query(SET).bind(name).bind(text)).await
    }

    /// Writes a worker's row, or removes it.
    pub(crate) async fn write_worker(
        &mut self,
        (worker, incarnation): (&WorkerId, u32),
        row: Option<&WorkerRow>,
    ) -> Result<()> {
        const REMOVE: &str = "delete from quell.worker where worker = $1 and incarnation = $2";
        const PUT: &str = concat!(
            "insert into quell.worker (",
            worker_columns!(),
            ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
                 on conflict (worker, incarnation) do update
                set busy = excluded.busy, steady_since = excluded.steady_since,
                    seen_at = greatest(worker.seen_at, excluded.seen_at),
                    queues = excluded.queues, tasks = excluded.tasks"
        );
        let Some(row) = row else {
            let query = self.sql.query(REMOVE).bind(worker.as_str().to_owned());
            return self.run("remove a worker", query.bind(i64::from(incarnation))).await;
        };
        let tasks = row.tasks.as_ref().map(json).transpose()?;
        let query = self
            .sql
            .query(PUT)
            .bind(worker.as_str().to_owned())
            .bind(i64::from(incarnation))
            .bind(row.host.clone())
            .bind(i64::from(row.pid))
            .bind(row.version.clone())
            .bind(json(&row.queues)?)
            .bind(signed_count(row.slots))
            .bind(micros(row.lease))
            .bind(row.started_at.as_micros())
            .bind(signed_count(row.busy))
            .bind(row.steady_since.as_micros())
            .bind(row.seen_at.as_micros())
            .bind(tasks);
        self.run("write a worker", query).await
    }

    /// Writes what is on record beside settings, or removes that.
    pub(crate) async fn write_remarks(
        &mut self,
        of: &SettingsOf,
        remarks: Option<&Remarks>,
    ) -> Result<()> {
        const PUT: &str = "insert into quell.remarks (name, remarks) values ($1, $2)
              on conflict (name) do update set remarks = excluded.remarks";
        const REMOVE: &str = "delete from quell.remarks where name = $1";
        let Some(remarks) = remarks else {
            return self.run("remove remarks", self.sql.query(REMOVE).bind(of.to_string())).await;
        };
        let text = serde_json::to_string(remarks)
            .map_err(|error| corrupt(format_args!("the remarks of {of}: {error}")))?;
        self.run("write remarks", self.sql.query(PUT).bind(of.to_string()).bind(text)).await
    }

    /// Writes an alert, or removes it; one that the step saw is locked. If another call makes it at the
    /// same time, this one has a write conflict and is retried.
    pub(crate) async fn write_alert(
        &mut self,
        name: &AlertName,
        row: Option<(u64, &AlertState)>,
        is_new: bool,
    ) -> Result<()> {
        const MAKE: &str = "insert into quell.alert (name, version, state) values ($1, $2, $3)";
        const CHANGE: &str = "update quell.alert set version = $2, state = $3 where name = $1";
        const REMOVE: &str = "delete from quell.alert where name = $1";
        let text = name.as_str().to_owned();
        let Some((version, state)) = row else {
            return self.run("remove an alert", self.sql.query(REMOVE).bind(text)).await;
        };
        let state = serde_json::to_string(state)
            .map_err(|error| corrupt(format_args!("the state of alert {name}: {error}")))?;
        let query = self.sql.query(if is_new { MAKE } else { CHANGE }).bind(text);
        self.run("write an alert", query.bind(signed(version)).bind(state)).await
    }
}
