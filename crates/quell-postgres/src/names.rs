//! Interned names: tasks, queues and lanes have numbers that never change.
//!
//! The cache belongs to one process. A name that it does not know is looked up, or made, in a
//! transaction of its own before the call's: so no call ever holds a lock on names, and what the
//! cache knows is always committed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use lru::LruCache;
use quell_core::touched::{Needs, Wanted};
use quell_core::trigger::Priority;
use quell_core::{Key, QueueName, Result, TaskName};
use sqlx::postgres::PgRow;

use crate::bounded::Bounded;
use crate::connections::Connections;
use crate::error::explain;
use crate::row::get;
use crate::sql::{PgQuery, Sql};
use crate::tx::{read, repeatable};

/// What a lane's number stands for.
pub(crate) type Lane = quell_engine::sql::Lane<i32>;

/// The names of a lane.
pub(crate) type LaneNames = (QueueName, TaskName, Priority);

#[derive(Debug, Default)]
pub(crate) struct Names {
    known: RwLock<Known>,
    partitions: Partitions,
}

#[derive(Debug, Default)]
struct Known {
    tasks: HashMap<TaskName, i32>,
    by_names: HashMap<LaneNames, Arc<Lane>>,
    lanes: HashMap<i32, Arc<Lane>>,
}

/// The partitions that were used last, with their numbers. There may be one for each customer.
#[derive(Debug)]
struct Partitions(Mutex<LruCache<Key, (i32, Instant)>>);

impl Default for Partitions {
    fn default() -> Self {
        Partitions(Mutex::new(LruCache::unbounded()))
    }
}

/// More partitions than these are cached only while they are in use.
const CACHED: usize = 10_000;
/// What was used within this time is in use: a call that has looked a partition up still finds it,
/// however many others were looked up meanwhile.
const IN_USE: Duration = Duration::from_secs(60);

impl Partitions {
    fn get(&self, partition: &Key) -> Option<i32> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, used) = cached.get_mut(partition)?;
        *used = Instant::now();
        Some(*id)
    }

    fn learn(&self, partition: Key, id: i32) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.put(partition, (id, Instant::now()));
        let is_old = |(_, (_, used)): (&Key, &(i32, Instant))| used.elapsed() > IN_USE;
        while cached.len() > CACHED && cached.peek_lru().is_some_and(is_old) {
            cached.pop_lru();
        }
    }
}

impl Names {
    fn known<R>(&self, look: impl FnOnce(&Known) -> R) -> R {
        look(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn learn(&self, lane: Lane) -> Arc<Lane> {
        let lane = Arc::new(lane);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.tasks.insert(lane.task.clone(), lane.task_id);
        let names = (lane.queue.clone(), lane.task.clone(), lane.priority);
        known.by_names.insert(names, Arc::clone(&lane));
        known.lanes.insert(lane.id, Arc::clone(&lane));
        lane
    }

    /// The lane of these names, where this process knows it.
    pub(crate) fn find(
        &self,
        queue: &QueueName,
        task: &TaskName,
        priority: Priority,
    ) -> Option<Arc<Lane>> {
        let names = (queue.clone(), task.clone(), priority);
        self.known(|known| known.by_names.get(&names).cloned())
    }

    /// The lane with this number, where this process knows it.
    pub(crate) fn lane(&self, id: i32) -> Option<Arc<Lane>> {
        self.known(|known| known.lanes.get(&id).cloned())
    }

    /// The lanes of a queue that this process knows.
    pub(crate) fn lanes_of(&self, queue: &QueueName) -> Vec<i32> {
        self.known(|known| {
            let lanes = known.lanes.values().filter(|lane| lane.queue == *queue);
            lanes.map(|lane| lane.id).collect()
        })
    }

    pub(crate) fn task_id(&self, task: &TaskName) -> Option<i32> {
        self.known(|known| known.tasks.get(task).copied())
    }

    /// The keys that are wanted, as two columns; of tasks that are not known there are none.
    pub(crate) fn task_keys(&self, wanted: &Wanted<'_>) -> (Vec<i32>, Vec<String>) {
        let mut columns = (Vec::new(), Vec::new());
        for (task, keys) in wanted {
            let Some(task_id) = self.task_id(task) else { continue };
            for key in keys {
                columns.0.push(task_id);
                columns.1.push((*key).to_owned());
            }
        }
        columns
    }

    /// The tasks that look into the payloads of their windows.
    pub(crate) fn readers(&self, needs: &Needs<'_>) -> Vec<i32> {
        let reads = needs.reads_payload.iter().filter(|(_, reads)| **reads);
        reads.filter_map(|(task, _)| self.task_id(task)).collect()
    }

    /// Makes lanes known to this process, where the store knows them.
    pub(crate) async fn look_up(
        &self,
        pool: &Connections,
        sql: &Sql,
        names: impl Iterator<Item = LaneNames>,
    ) -> Result<()> {
        const FIND: &str = "select l.id, l.task_id
               from quell.lane l
               join quell.queue q on q.id = l.queue_id and q.name = $1
               join quell.task t on t.id = l.task_id and t.name = $2
              where l.priority = $3";
        for names in self.unknown(names) {
            let rows = read(pool, sql, "read names", bind(sql.query(FIND), &names)).await?;
            if let Some(row) = rows.first() {
                self.learn_row(row, names)?;
            }
        }
        Ok(())
    }

    /// As [`Names::look_up`], and makes those that are new, in a transaction of their own.
    pub(crate) async fn intern(
        &self,
        pool: &Connections,
        sql: &Sql,
        names: impl Iterator<Item = LaneNames>,
    ) -> Result<()> {
        let names: Vec<LaneNames> = names.collect();
        self.look_up(pool, sql, names.iter().cloned()).await?;
        for names in self.unknown(names.into_iter()) {
            let rows = repeatable(pool, sql, "make names", make_query(sql, &names)).await?;
            self.learn_row(crate::tx::first(&rows)?, names)?;
        }
        Ok(())
    }

    /// Those of these lanes that this process does not know.
    pub(crate) fn unknown(&self, names: impl Iterator<Item = LaneNames>) -> HashSet<LaneNames> {
        names.filter(|names| !self.known(|known| known.by_names.contains_key(names))).collect()
    }

    fn learn_row(&self, row: &PgRow, (queue, task, priority): LaneNames) -> Result<()> {
        let (id, task_id) = (get(row, 0)?, get(row, 1)?);
        self.learn(Lane { id, task_id, queue, task, priority });
        Ok(())
    }

    /// The number of a partition, where this process knows it.
    pub(crate) fn partition_id(&self, partition: &Key) -> Option<i32> {
        self.partitions.get(partition)
    }

    /// Makes partitions known to this process, and to the store where they are new.
    pub(crate) async fn intern_partitions(
        &self,
        pool: &Connections,
        sql: &Sql,
        partitions: impl Iterator<Item = Key>,
    ) -> Result<()> {
        let unknown: BTreeSet<Key> =
            partitions.filter(|partition| self.partition_id(partition).is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = unknown.iter().map(|name| name.as_str().to_owned()).collect();
        let query = sql.query("select name, id from quell.partitions_of($1)").bind(names);
        for row in &repeatable(pool, sql, "make names", query).await? {
            self.partitions.learn(Key::new(get::<&str, _>(row, 0)?)?, get(row, 1)?);
        }
        Ok(())
    }

    /// Notes the number of a task.
    pub(crate) fn learn_task(&self, task: TaskName, id: i32) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).tasks.insert(task, id);
    }

    /// Makes the lanes with these numbers known to this process.
    pub(crate) async fn load(
        &self,
        db: &mut Bounded,
        sql: &Sql,
        ids: impl Iterator<Item = i32>,
    ) -> Result<()> {
        let Some(query) = self.lanes_query(sql, ids) else { return Ok(()) };
        let rows = db.fetch_all(query).await.map_err(|e| explain("read names", e))?;
        self.learn_lanes(&rows)
    }

    /// Asks for those of these lanes that this process does not know; none where it knows all.
    pub(crate) fn lanes_query(&self, sql: &Sql, ids: impl Iterator<Item = i32>) -> Option<PgQuery> {
        const LANES: &str = "select l.id, l.task_id, q.name, t.name, l.priority
               from quell.lane l
               join quell.queue q on q.id = l.queue_id
               join quell.task t on t.id = l.task_id
              where l.id = any($1)";
        let unknown: HashSet<i32> = ids.filter(|id| self.lane(*id).is_none()).collect();
        let ids: Vec<i32> = unknown.into_iter().collect();
        (!ids.is_empty()).then(|| sql.query(LANES).bind(ids))
    }

    /// Takes in what [`Names::lanes_query`] brought.
    pub(crate) fn learn_lanes(&self, rows: &[PgRow]) -> Result<()> {
        for row in rows {
            self.learn(Lane {
                id: get(row, 0)?,
                task_id: get(row, 1)?,
                queue: QueueName::new(get::<&str, _>(row, 2)?)?,
                task: TaskName::new(get::<&str, _>(row, 3)?)?,
                priority: get(row, 4)?,
            });
        }
        Ok(())
    }
}

/// The lane of these names, made where there is none.
pub(crate) fn make_query(sql: &Sql, names: &LaneNames) -> PgQuery {
    bind(sql.query("select id, task_id from quell.lane_of($1, $2, $3)"), names)
}

fn bind(query: PgQuery, (queue, task, priority): &LaneNames) -> PgQuery {
    query.bind(queue.as_str().to_owned()).bind(task.as_str().to_owned()).bind(*priority)
}
