//! Interned names: tasks, queues, lanes and partitions have numbers that never change. With the names of
//! queues and tasks come their settings.
//!
//! Partitions may be many, so only those that were used lately are cached. The cache belongs to one
//! process. Names that a transaction adds are in it at once; if that transaction does not commit, the
//! whole cache is dropped, because numbers were guessed. A new name, or other settings, of another process
//! raise the version of `quell_meta`, which drops the cache too.

use std::collections::HashMap;

use quell_core::trigger::Priority;
use quell_core::{Key, QueueName, QueueSettings, Result, TaskName, TaskSettings};
use sqlx::{Row, SqliteConnection};
use tracing::error;

use crate::error::{corrupt, explain};

/// The lane of a job's row, which may stand in a lane of a partition.
macro_rules! base_lane {
    ($job:literal) => {
        concat!(
            "iif(",
            $job,
            ".lane_id < 4294967296, ",
            $job,
            ".lane_id, ",
            $job,
            ".lane_id >> 32)"
        )
    };
}
pub(crate) use base_lane;

/// The lane of a number that a job's row carries.
pub(crate) fn base_of(lane_id: i64) -> i64 {
    if lane_id >> 32 == 0 { lane_id } else { lane_id >> 32 }
}

/// How many partitions are cached.
const CACHED: usize = 10_000;

/// What a lane's number stands for.
pub(crate) type Lane = quell_engine::sql::Lane<i64>;

/// A task: its number and its settings, or why they cannot be decoded.
#[derive(Debug)]
struct Task {
    id: i64,
    settings: Result<TaskSettings, String>,
}

/// A queue: its number and its settings; none where they were deleted.
#[derive(Debug)]
struct Queue {
    id: i64,
    settings: Option<QueueSettings>,
}

#[derive(Debug, Default)]
pub(crate) struct Names {
    tasks: HashMap<TaskName, Task>,
    queues: HashMap<QueueName, Queue>,
    by_names: HashMap<(QueueName, TaskName, Priority), i64>,
    lanes: HashMap<i64, Lane>,
    /// The lanes of partitions, by the lane and the name.
    partitions: HashMap<(i64, Key), i64>,
    changed: bool,
}

impl Names {
    /// Reads all names; there are few.
    pub(crate) async fn load(db: &mut SqliteConnection) -> Result<Names> {
        const LANES: &str = "select l.id, l.task_id, q.name, t.name, l.priority
               from quell_lane l
               join quell_queue q on q.id = l.queue_id
               join quell_task t on t.id = l.task_id";
        let what = "read the names of queues and tasks";
        let mut names = Names::default();
        let rows =
            sqlx::query("select id, name, settings from quell_task").fetch_all(&mut *db).await;
        for row in rows.map_err(|e| explain(what, e))? {
            let settings = serde_json::from_str(text(&row, 2)?).map_err(|error| error.to_string());
            names.tasks.insert(name(&row, 1)?, Task { id: number(&row, 0)?, settings });
        }
        const QUEUES: &str = "select id, name, settings, deleted from quell_queue";
        let rows = sqlx::query(QUEUES).fetch_all(&mut *db).await;
        for row in rows.map_err(|e| explain(what, e))? {
            let name: QueueName = name(&row, 1)?;
            let is_deleted = number(&row, 3)? != 0;
            let settings = (!is_deleted).then_some(text(&row, 2)?);
            let settings = settings.map(|text| parse_settings(name.as_str(), text));
            names.queues.insert(name, Queue { id: number(&row, 0)?, settings });
        }
        let rows = sqlx::query(LANES).fetch_all(&mut *db).await;
        for row in rows.map_err(|e| explain(what, e))? {
            let priority = Priority::try_from(number(&row, 4)?).map_err(|_| corrupt("a lane"))?;
            names.insert(Lane {
                id: number(&row, 0)?,
                task_id: number(&row, 1)?,
                queue: name(&row, 2)?,
                task: name(&row, 3)?,
                priority,
            });
        }
        Ok(names)
    }

    fn insert(&mut self, lane: Lane) {
        let by_names = (lane.queue.clone(), lane.task.clone(), lane.priority);
        self.by_names.insert(by_names, lane.id);
        self.lanes.insert(lane.id, lane);
    }

    /// Whether names were added since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// What the number stands for that a job's row carries.
    pub(crate) fn lane(&self, id: i64) -> Option<&Lane> {
        self.lanes.get(&base_of(id))
    }

    pub(crate) fn task_id(&self, task: &TaskName) -> Option<i64> {
        self.tasks.get(task).map(|task| task.id)
    }

    pub(crate) fn queue_id(&self, queue: &QueueName) -> Option<i64> {
        self.queues.get(queue).map(|queue| queue.id)
    }

    /// The settings of a task; none where there is no such task.
    pub(crate) fn task_settings(&self, task: &TaskName) -> Result<Option<TaskSettings>> {
        let settings = self.tasks.get(task).map(|task| task.settings.clone()).transpose();
        settings.map_err(|error| corrupt(format_args!("settings of task {task}: {error}")))
    }

    /// The settings of a queue: none where there is no such queue, and none within where they were
    /// deleted.
    pub(crate) fn queue_settings(&self, queue: &QueueName) -> Option<Option<&QueueSettings>> {
        self.queues.get(queue).map(|queue| queue.settings.as_ref())
    }

    /// All queues that have settings.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&QueueName, &QueueSettings)> {
        self.queues.iter().filter_map(|(name, queue)| Some((name, queue.settings.as_ref()?)))
    }

    /// The names of all queues, in order.
    pub(crate) fn queue_names(&self) -> Vec<QueueName> {
        let mut names: Vec<QueueName> = self.queues.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// The names of all tasks, in order.
    pub(crate) fn task_names(&self) -> Vec<TaskName> {
        let mut names: Vec<TaskName> = self.tasks.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// The lanes of a queue, and of one task if asked for, those of the highest priority first.
    pub(crate) fn lanes_of(&self, queue: &QueueName, task: Option<&TaskName>) -> Vec<&Lane> {
        let is_of =
            |lane: &&Lane| lane.queue == *queue && task.is_none_or(|task| lane.task == *task);
        let mut lanes: Vec<&Lane> = self.lanes.values().filter(is_of).collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.priority));
        lanes
    }

    pub(crate) fn find(
        &self,
        queue: &QueueName,
        task: &TaskName,
        priority: Priority,
    ) -> Option<&Lane> {
        let id = self.by_names.get(&(queue.clone(), task.clone(), priority))?;
        self.lanes.get(id)
    }

    /// The lane of these names; makes it inside the caller's write transaction where there is none.
    pub(crate) async fn intern(
        &mut self,
        db: &mut SqliteConnection,
        queue: &QueueName,
        task: &TaskName,
        priority: Priority,
    ) -> Result<Lane> {
        if let Some(lane) = self.find(queue, task, priority) {
            return Ok(lane.clone());
        }
        self.changed = true;
        let queue_id = self.intern_queue(db, queue).await?;
        let task_id = self.intern_task(db, task).await?;
        let id = sqlx::query_scalar(
            "insert into quell_lane (queue_id, task_id, priority) values (?1, ?2, ?3)
             on conflict (queue_id, task_id, priority) do update set priority = priority
             returning id",
        )
        .bind(queue_id)
        .bind(task_id)
        .bind(priority)
        .fetch_one(&mut *db)
        .await
        .map_err(|e| explain("name a lane", e))?;
        let lane = Lane { id, task_id, queue: queue.clone(), task: task.clone(), priority };
        self.insert(lane.clone());
        Ok(lane)
    }

    /// The number of the lane of a partition, or the lane's own without one.
    pub(crate) async fn intern_partition(
        &mut self,
        db: &mut SqliteConnection,
        lane_id: i64,
        partition: Option<&Key>,
    ) -> Result<i64> {
        const NUMBER: &str = "insert into quell_partition (lane_id, name, number)
             values (?1, ?2, 1 + coalesce((select max(number) from quell_partition
                                            where lane_id = ?1), 0))
             on conflict (lane_id, name) do update set number = number
             returning number";
        let Some(partition) = partition else { return Ok(lane_id) };
        let known = (lane_id, partition.clone());
        if let Some(id) = self.partitions.get(&known) {
            return Ok(*id);
        }
        let number = sqlx::query_scalar(NUMBER).bind(lane_id).bind(partition.as_str().to_owned());
        let number: i64 = number.fetch_one(db).await.map_err(|e| explain("name a partition", e))?;
        if self.partitions.len() >= CACHED {
            self.partitions.clear();
        }
        let id = (lane_id << 32) + number;
        self.partitions.insert(known, id);
        Ok(id)
    }

    /// The task's number; makes the task where there is none.
    pub(crate) async fn intern_task(
        &mut self,
        db: &mut SqliteConnection,
        task: &TaskName,
    ) -> Result<i64> {
        if let Some(id) = self.task_id(task) {
            return Ok(id);
        }
        self.changed = true;
        let id = intern_one(
            db,
            "insert into quell_task (name) values (?1)
             on conflict (name) do update set name = name returning id",
            task.as_str(),
        )
        .await?;
        self.tasks.insert(task.clone(), Task { id, settings: Ok(TaskSettings::default()) });
        Ok(id)
    }

    /// The queue's number; makes the queue where there is none.
    pub(crate) async fn intern_queue(
        &mut self,
        db: &mut SqliteConnection,
        queue: &QueueName,
    ) -> Result<i64> {
        if let Some(id) = self.queue_id(queue) {
            return Ok(id);
        }
        self.changed = true;
        let id = intern_one(
            db,
            "insert into quell_queue (name) values (?1)
             on conflict (name) do update set name = name returning id",
            queue.as_str(),
        )
        .await?;
        let settings = Some(QueueSettings::default());
        self.queues.insert(queue.clone(), Queue { id, settings });
        Ok(id)
    }
}

async fn intern_one(db: &mut SqliteConnection, sql: &'static str, name: &str) -> Result<i64> {
    let id = sqlx::query_scalar(sql).bind(name).fetch_one(db).await;
    id.map_err(|e| explain("name a queue or task", e))
}

/// R25: a queue whose settings cannot be decoded hands out nothing: it holds itself back, and no other
/// queue.
pub(crate) fn parse_settings(queue: &str, text: &str) -> QueueSettings {
    serde_json::from_str(text).unwrap_or_else(|error| {
        error!(%error, queue, "cannot decode the settings of a queue: it is held");
        QueueSettings { paused: true, ..QueueSettings::default() }
    })
}

fn text(row: &sqlx::sqlite::SqliteRow, index: usize) -> Result<&str> {
    row.try_get(index).map_err(|e| explain("read settings", e))
}

fn number(row: &sqlx::sqlite::SqliteRow, index: usize) -> Result<i64> {
    row.try_get(index).map_err(|e| explain("read a name", e))
}

fn name<N: std::str::FromStr>(row: &sqlx::sqlite::SqliteRow, index: usize) -> Result<N> {
    let text: &str = row.try_get(index).map_err(|e| explain("read a name", e))?;
    text.parse().map_err(|_| corrupt(format_args!("name {text:?}")))
}
