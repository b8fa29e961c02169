//! Accepting triggers: loads the rows they touch, lets the core decide, writes what changed.
//!
//! Triggers of one key fold in memory, so a hot key costs one row write per commit. Jobs without a
//! key are written in chunks that bind one value per row.

use std::collections::{HashMap, HashSet};

use quell_core::accept::{Rows, accept};
use quell_core::dedup::{Hold, HoldUntil};
use quell_core::edge::KeyMemory;
use quell_core::history::Event;
use quell_core::window::Thresholds;
use quell_core::{
    Batch, Job, JobId, JobState, Key, QueueName, Receipt, Result, TaskName, Timestamp,
};
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::error::{corrupt, explain};
use crate::names::Names;
use crate::row::{chunks, decode, get, job_columns, put, signed, time, unsigned};
use crate::tx::Tx;

type TaskKey = (TaskName, Key);
/// The keys to load, by task.
type Wanted<'t> = HashMap<&'t TaskName, HashSet<&'t str>>;

/// The rows that a call's triggers touch.
#[derive(Debug, Default)]
struct Touched {
    now: Timestamp,
    next_id: u64,
    thresholds: HashMap<QueueName, Thresholds>,
    jobs: HashMap<JobId, Job>,
    /// Jobs with a key that are new or changed, in the order of their first change.
    changed: Vec<JobId>,
    is_changed: HashSet<JobId>,
    /// New jobs without a key, by id.
    unkeyed: Vec<Job>,
    open: HashMap<TaskKey, JobId>,
    running: HashSet<TaskKey>,
    holds: HashMap<TaskKey, Hold>,
    memories: HashMap<TaskKey, KeyMemory>,
    new_holds: HashSet<TaskKey>,
    new_memories: HashSet<TaskKey>,
}

impl Tx<'_> {
    /// Accepts batches, each whole or not at all.
    pub(crate) async fn accept(&mut self, batches: &[Batch]) -> Result<Vec<Vec<Receipt>>> {
        let mut touched = Touched {
            now: self.now,
            next_id: self.next_id,
            thresholds: self
                .settings
                .iter()
                .filter_map(|(queue, settings)| Some((queue.clone(), settings.debounce?)))
                .collect(),
            ..Touched::default()
        };
        touched.load(&mut self.db, self.names, batches).await?;
        let receipts = batches.iter().map(|batch| accept(&mut touched, batch)).collect();
        self.next_id = touched.next_id;
        self.write(touched).await?;
        Ok(receipts)
    }

    async fn write(&mut self, touched: Touched) -> Result<()> {
        let mut keyed = Vec::with_capacity(touched.changed.len());
        for id in &touched.changed {
            let Some(job) = touched.jobs.get(id) else { continue };
            if job.state == JobState::Scheduled {
                let window = Event::window(self.now, job).filter(|_| self.has_history);
                self.tell(window);
                if !job.waits {
                    self.wake(&job.queue, job.window.due_at);
                }
            }
            keyed.push(job);
        }
        put(&mut self.db, self.names, &keyed).await?;
        for job in &touched.unkeyed {
            self.wake(&job.queue, job.window.due_at);
        }
        insert_unkeyed(&mut self.db, self.names, self.now, &touched.unkeyed).await?;
        // A trigger that takes a key also makes or joins a job, so its task is named by now.
        for task_key in &touched.new_holds {
            if let Some(hold) = touched.holds.get(task_key) {
                write_hold(&mut self.db, self.names, task_key, hold).await?;
            }
        }
        for task_key in &touched.new_memories {
            if let Some(memory) = touched.memories.get(task_key) {
                write_memory(&mut self.db, self.names, task_key, memory).await?;
            }
        }
        Ok(())
    }
}

impl Touched {
    async fn load(
        &mut self,
        db: &mut SqliteConnection,
        names: &Names,
        batches: &[Batch],
    ) -> Result<()> {
        let mut windows: Wanted<'_> = HashMap::new();
        let mut holds: Wanted<'_> = HashMap::new();
        let mut memories: Wanted<'_> = HashMap::new();
        for (batch, trigger) in batches.iter().flat_map(|b| b.triggers.iter().map(move |t| (b, t)))
        {
            if let Some(keyed) = &trigger.keyed {
                windows.entry(&trigger.task).or_default().insert(keyed.key.as_str());
                if keyed.debounce.edge.remembers() {
                    memories.entry(&trigger.task).or_default().insert(keyed.key.as_str());
                }
            }
            for dedup in trigger.dedup.iter().chain(&batch.dedup) {
                holds.entry(&trigger.task).or_default().insert(dedup.key.as_str());
            }
        }
        for (task, keys) in windows {
            self.load_windows(db, names, task, &keys).await?;
        }
        for (task, keys) in holds {
            self.load_holds(db, names, task, &keys).await?;
        }
        for (task, keys) in memories {
            self.load_memories(db, names, task, &keys).await?;
        }
        Ok(())
    }

    /// Loads open windows, and whether attempts of their keys run.
    async fn load_windows(
        &mut self,
        db: &mut SqliteConnection,
        names: &Names,
        task: &TaskName,
        keys: &HashSet<&str>,
    ) -> Result<()> {
        const WINDOWS: &str = concat!(
            "select ",
            job_columns!(),
            " from json_each(?2) k
              cross join quell_job j on j.task_id = ?1 and j.key = k.value and j.hold is not null"
        );
        let Some(task_id) = names.task_id(task) else { return Ok(()) };
        let rows = sqlx::query(WINDOWS).bind(task_id).bind(json(keys)?).fetch_all(db).await;
        for row in rows.map_err(|e| explain("read open windows", e))? {
            let job = decode(&row, names)?;
            let Some(key) = job.key.clone() else { continue };
            if job.state == JobState::Running {
                self.running.insert((task.clone(), key));
            } else {
                self.open.insert((task.clone(), key), job.id);
                self.jobs.insert(job.id, job);
            }
        }
        Ok(())
    }

    /// Loads dedup holds with the state of their jobs, which decides whether they hold.
    async fn load_holds(
        &mut self,
        db: &mut SqliteConnection,
        names: &Names,
        task: &TaskName,
        keys: &HashSet<&str>,
    ) -> Result<()> {
        const HOLDS: &str = concat!(
            "select ",
            job_columns!(),
            ", h.key, h.job_id, h.until, h.expires_at
               from json_each(?2) k
               cross join quell_hold h on h.task_id = ?1 and h.key = k.value
               left join quell_job j on j.id = h.job_id"
        );
        let Some(task_id) = names.task_id(task) else { return Ok(()) };
        let rows = sqlx::query(HOLDS).bind(task_id).bind(json(keys)?).fetch_all(db).await;
        for row in rows.map_err(|e| explain("read dedup keys", e))? {
            let key = Key::new(get::<&str, _>(&row, 26)?)?;
            let until = serde_json::from_str::<HoldUntil>(get(&row, 28)?)
                .map_err(|error| corrupt(format_args!("hold on {key}: {error}")))?;
            let job = JobId::new(unsigned(get(&row, 27)?));
            let hold = Hold { job, until, expires_at: time(&row, 29)? };
            self.holds.insert((task.clone(), key), hold);
            if get::<Option<i64>, _>(&row, 0)?.is_some() {
                let loaded = decode(&row, names)?;
                self.jobs.entry(job).or_insert(loaded);
            }
        }
        Ok(())
    }

    /// Loads what is remembered of keys, with the leading jobs that suppressed triggers count on.
    async fn load_memories(
        &mut self,
        db: &mut SqliteConnection,
        names: &Names,
        task: &TaskName,
        keys: &HashSet<&str>,
    ) -> Result<()> {
        const MEMORIES: &str = concat!(
            "select ",
            job_columns!(),
            ", m.key, m.burst_at, m.last_at, m.started_at, m.leader, m.expires_at
               from json_each(?2) k
               cross join quell_memory m on m.task_id = ?1 and m.key = k.value
               left join quell_job j on j.id = m.leader"
        );
        let Some(task_id) = names.task_id(task) else { return Ok(()) };
        let rows = sqlx::query(MEMORIES).bind(task_id).bind(json(keys)?).fetch_all(db).await;
        for row in rows.map_err(|e| explain("read remembered keys", e))? {
            let key = Key::new(get::<&str, _>(&row, 26)?)?;
            let leader = JobId::new(unsigned(get(&row, 30)?));
            let memory = KeyMemory {
                burst_at: time(&row, 27)?,
                last_at: time(&row, 28)?,
                started_at: time(&row, 29)?,
                leader,
                expires_at: time(&row, 31)?,
            };
            self.memories.insert((task.clone(), key), memory);
            if get::<Option<i64>, _>(&row, 0)?.is_some() {
                let loaded = decode(&row, names)?;
                self.jobs.entry(leader).or_insert(loaded);
            }
        }
        Ok(())
    }
}

fn json(keys: &HashSet<&str>) -> Result<String> {
    serde_json::to_string(keys).map_err(|error| corrupt(format_args!("keys: {error}")))
}

impl Rows for Touched {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn next_id(&mut self) -> JobId {
        let id = JobId::new(self.next_id);
        self.next_id += 1;
        id
    }

    fn thresholds(&self, queue: &QueueName) -> Option<Thresholds> {
        self.thresholds.get(queue).copied()
    }

    fn open_window(&self, task: &TaskName, key: &Key) -> Option<JobId> {
        self.open.get(&(task.clone(), key.clone())).copied()
    }

    fn key_runs(&self, task: &TaskName, key: &Key) -> bool {
        self.running.contains(&(task.clone(), key.clone()))
    }

    fn job(&self, id: JobId) -> Option<&Job> {
        let new = || self.unkeyed.binary_search_by_key(&id, |job| job.id).ok();
        self.jobs.get(&id).or_else(|| self.unkeyed.get(new()?))
    }

    fn insert(&mut self, job: Job) {
        match job.key.clone() {
            Some(key) => {
                self.open.insert((job.task.clone(), key), job.id);
                self.changed.push(job.id);
                self.is_changed.insert(job.id);
                self.jobs.insert(job.id, job);
            }
            None => self.unkeyed.push(job),
        }
    }

    fn update(&mut self, id: JobId, change: &mut dyn FnMut(&mut Job)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            change(job);
            if self.is_changed.insert(id) {
                self.changed.push(id);
            }
        }
    }

    fn hold(&self, task: &TaskName, key: &Key) -> Option<Hold> {
        self.holds.get(&(task.clone(), key.clone())).copied()
    }

    fn set_hold(&mut self, task: &TaskName, key: &Key, hold: Hold) {
        let task_key = (task.clone(), key.clone());
        self.new_holds.insert(task_key.clone());
        self.holds.insert(task_key, hold);
    }

    fn memory(&self, task: &TaskName, key: &Key) -> Option<KeyMemory> {
        self.memories.get(&(task.clone(), key.clone())).copied()
    }

    fn set_memory(&mut self, task: &TaskName, key: &Key, memory: KeyMemory) {
        let task_key = (task.clone(), key.clone());
        self.new_memories.insert(task_key.clone());
        self.memories.insert(task_key, memory);
    }
}

/// Inserts jobs without a key. Runs of plain ones (same lane, ids in a row, due at once) bind only
/// their payloads; the rest are put whole.
async fn insert_unkeyed(
    db: &mut SqliteConnection,
    names: &mut Names,
    now: Timestamp,
    jobs: &[Job],
) -> Result<()> {
    let plain = |job: &Job| job.window.asked_at == Timestamp::MIN;
    let alike = |a: &Job, b: &Job| {
        plain(a)
            && plain(b)
            && a.id.get() + 1 == b.id.get()
            && a.priority == b.priority
            && a.task == b.task
            && a.queue == b.queue
    };
    for run in jobs.chunk_by(alike) {
        let [first, ..] = run else { continue };
        if !plain(first) {
            put(db, names, &run.iter().collect::<Vec<_>>()).await?;
            continue;
        }
        let lane = names.intern(db, &first.queue, &first.task, first.priority).await?;
        for chunk in chunks(run) {
            let Some(first) = chunk.first() else { continue };
            let mut query = sqlx::query(AssertSqlSafe(plain_sql(chunk.len())))
                .bind(now.as_micros())
                .bind(signed(first.id.get()))
                .bind(lane.id)
                .bind(lane.task_id);
            for job in chunk {
                query = query.bind(job.payload.as_str().to_owned());
            }
            query.execute(&mut *db).await.map_err(|e| explain("write jobs", e))?;
        }
    }
    Ok(())
}

/// The statement that inserts `rows` plain jobs: now, first id, lane and task are shared.
fn plain_sql(rows: usize) -> String {
    let values: Vec<String> =
        (0..rows).map(|row| format!("(?2 + {row}, ?3, ?4, ?1, ?1, ?{})", row + 5)).collect();
    format!(
        "insert into quell_job (id, lane_id, task_id, due_at, first_at, payload) values {}",
        values.join(",")
    )
}

async fn write_hold(
    db: &mut SqliteConnection,
    names: &Names,
    (task, key): &TaskKey,
    hold: &Hold,
) -> Result<()> {
    let until =
        serde_json::to_string(&hold.until).map_err(|e| corrupt(format_args!("hold: {e}")))?;
    sqlx::query(
        "insert into quell_hold (task_id, key, job_id, until, expires_at) values (?1, ?2, ?3, ?4, ?5)
         on conflict (task_id, key) do update set
             job_id = excluded.job_id, until = excluded.until, expires_at = excluded.expires_at",
    )
    .bind(names.task_id(task))
    .bind(key.as_str().to_owned())
    .bind(signed(hold.job.get()))
    .bind(until)
    .bind(hold.expires_at.as_micros())
    .execute(db)
    .await
    .map_err(|e| explain("take a dedup key", e))?;
    Ok(())
}

pub(crate) async fn write_memory(
    db: &mut SqliteConnection,
    names: &Names,
    (task, key): &TaskKey,
    memory: &KeyMemory,
) -> Result<()> {
    sqlx::query(
        "insert into quell_memory (task_id, key, burst_at, last_at, started_at, leader, expires_at)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         on conflict (task_id, key) do update set
             burst_at = excluded.burst_at, last_at = excluded.last_at,
             started_at = excluded.started_at, leader = excluded.leader,
             expires_at = excluded.expires_at",
    )
    .bind(names.task_id(task))
    .bind(key.as_str().to_owned())
    .bind(memory.burst_at.as_micros())
    .bind(memory.last_at.as_micros())
    .bind(memory.started_at.as_micros())
    .bind(signed(memory.leader.get()))
    .bind(memory.expires_at.as_micros())
    .execute(db)
    .await
    .map_err(|e| explain("remember a key", e))?;
    Ok(())
}
