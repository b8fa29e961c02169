//! Dedup keys (R16), idempotency keys (R19) and what edges remember (R13), as the engine's steps load and
//! write them.
//!
//! Each key is looked up by itself: planned while a table was empty, a plain join would read all of it for
//! each call. A key that was there is locked; one that was not is inserted plainly: if another call took
//! it a moment earlier, this one has a write conflict and is retried.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::dedup::Hold;
use quell_core::edge::KeyMemory;
use quell_core::idempotency::Record;
use quell_core::part::TaskKey;
use quell_core::{JobId, Key, Result, TaskName};
use quell_engine::{Entry, Index, Place, Row, RowName, Seen};
use sqlx::postgres::PgRow;

use crate::backend::PostgresBackend;
use crate::error::corrupt;
use crate::idempotency::{RECORDS, decode_record};
use crate::keys::{HOLDS, MEMORIES, decode_hold, decode_memory};
use crate::load::numbers;
use crate::row::{get, unsigned};
use crate::step::Step;
use crate::tx::Tx;

impl PostgresBackend {
    /// Loads dedup keys, idempotency keys and memories.
    pub(crate) async fn load_names(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        let keys = |of: fn(&RowName) -> Option<&TaskKey>| names.iter().filter_map(of).collect();
        let holds: Vec<&TaskKey> =
            keys(|name| if let RowName::Hold(key) = name { Some(key) } else { None });
        for (key, hold) in self.load_of_keys(step, &HOLDS, &holds, decode_hold).await? {
            step.named.insert(hold.job);
            found.push((RowName::Hold(key), Row::Hold(hold)));
        }
        let memories: Vec<&TaskKey> =
            keys(|name| if let RowName::Memory(key) = name { Some(key) } else { None });
        for (key, memory) in self.load_of_keys(step, &MEMORIES, &memories, decode_memory).await? {
            found.push((RowName::Memory(key), Row::Memory(memory)));
        }
        // After all other rows of a step: what removes a job's row waits for its records.
        let records: Vec<&TaskKey> =
            keys(|name| if let RowName::Record(key) = name { Some(key) } else { None });
        for (key, record) in self.load_of_keys(step, &RECORDS, &records, decode_record).await? {
            step.named.insert(record.job);
            found.push((RowName::Record(key), Row::Record(Box::new(record))));
        }
        Ok(())
    }

    /// Loads the rows of keys, by a statement that locks or one that does not.
    async fn load_of_keys<T>(
        &self,
        step: &mut Step,
        (locking, reading): &(&'static str, &'static str),
        keys: &[&TaskKey],
        value: impl Fn(&PgRow) -> Result<T>,
    ) -> Result<Vec<(TaskKey, T)>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.know_tasks(step, keys.iter().map(|(task, _)| task)).await?;
        let (mut tasks, mut texts, mut by_id) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (task, key) in keys {
            let Some(id) = self.names.task_id(task) else { continue };
            by_id.insert(id, task);
            tasks.push(id);
            texts.push(key.as_str().to_owned());
        }
        let sql = if step.writes() { locking } else { reading };
        let query = self.sql.query(sql).bind(tasks).bind(texts);
        let mut loaded = Vec::new();
        for row in &step.fetch(self, "read keys", query).await? {
            let task = by_id.get(&get::<i32, _>(row, 0)?).ok_or_else(|| corrupt("a key's task"))?;
            let key = ((*task).clone(), Key::new(get::<&str, _>(row, 1)?)?);
            loaded.push((key, value(row)?));
        }
        Ok(loaded)
    }

    /// What names these jobs: dedup and idempotency keys, one list for each.
    pub(crate) async fn names_of_jobs(&self, step: &mut Step, jobs: &[JobId]) -> Result<Vec<Seen>> {
        // A join could read all keys of a task.
        const NAMES: &str = "select h.job_id, false,
                    (select t.name from quell.task t where t.id = h.task_id), h.key
               from quell.hold h
              where h.job_id = any($1)
              union all
             select i.job_id, true,
                    (select t.name from quell.task t where t.id = i.task_id), i.key
               from quell.idempotency i
              where i.job_id = any($1)";
        let mut seen = vec![Seen::default(); jobs.len()];
        if jobs.is_empty() {
            return Ok(seen);
        }
        let places: BTreeMap<JobId, usize> =
            jobs.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        let query = self.sql.query(NAMES).bind(numbers(jobs));
        for row in &step.fetch(self, "read the keys of jobs", query).await? {
            let id = JobId::new(unsigned(get(row, 0)?));
            let task = TaskName::new(get::<&str, _>(row, 2)?)?;
            let key = (task, Key::new(get::<&str, _>(row, 3)?)?);
            let name = if get(row, 1)? { RowName::Record(key) } else { RowName::Hold(key) };
            let entry = Entry { place: Place::NONE, name, note: None };
            if let Some(seen) = places.get(&id).and_then(|place| seen.get_mut(*place)) {
                seen.entries.push(entry);
            }
        }
        seen.iter_mut().for_each(|seen| seen.entries.sort_unstable());
        Ok(seen)
    }

    /// The first closed windows of a key.
    pub(crate) async fn closed_windows(
        &self,
        step: &mut Step,
        key: &TaskKey,
        limit: usize,
    ) -> Result<Seen> {
        const CLOSED: &str = "select n.id from quell.job n
              where n.task_id = $1 and n.key = $2 and n.state = 0 and n.closed
              order by n.id limit $3";
        self.know_tasks(step, std::iter::once(&key.0)).await?;
        let query = self.sql.query(CLOSED).bind(self.names.task_id(&key.0));
        let query = query.bind(key.1.as_str().to_owned());
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = step.fetch(self, "read closed windows", query).await?;
        let entry = |row: &PgRow| {
            let name = RowName::Job(JobId::new(unsigned(get(row, 0)?)));
            Ok(Entry { place: Place::NONE, name, note: None })
        };
        let entries = rows.iter().map(entry).collect::<Result<Vec<Entry>>>()?;
        Ok(Seen { more: entries.len() >= limit, entries })
    }
}

/// Keys after a step; none for those that are removed.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    pub(crate) holds: Vec<(TaskKey, Option<Hold>)>,
    pub(crate) records: Vec<(TaskKey, Option<Record>)>,
    pub(crate) memories: Vec<(TaskKey, Option<KeyMemory>)>,
}

/// Keys with what is kept of them.
type Rows<T> = Vec<(TaskKey, T)>;

/// Those that stay, and the names of those that are removed.
fn parted<T: Clone>(rows: &[(TaskKey, Option<T>)]) -> (Rows<T>, Rows<()>) {
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for (key, row) in rows {
        match row {
            Some(row) => kept.push((key.clone(), row.clone())),
            None => gone.push((key.clone(), ())),
        }
    }
    (kept, gone)
}

/// Removes the rows of the keys `$1`, `$2`, which this call has locked: they stay where they are.
macro_rules! remove {
    ($table:literal) => {
        concat!(
            "delete from quell.",
            $table,
            " where ctid = any(array(
                    select r.place
                      from unnest($1::int[], $2::text[]) k (task_id, key)
                     cross join lateral (
                           select w.ctid as place from quell.",
            $table,
            " w where w.task_id = k.task_id and w.key = k.key offset 0) r))"
        )
    };
}

impl Tx {
    /// Writes keys as they are after a step; those that were there are locked by it.
    pub(crate) async fn write_keys(&mut self, step: &Step, after: &Keyed) -> Result<()> {
        for name in &step.there {
            match name {
                RowName::Hold(key) => drop(self.locked.insert(key.clone())),
                RowName::Record(key) => drop(self.locked_records.insert(key.clone())),
                _ => {}
            }
        }
        let (holds, freed) = parted(&after.holds);
        self.remove_keys(remove!("hold"), &freed).await?;
        self.write_holds(&holds).await?;
        let (records, freed) = parted(&after.records);
        self.remove_keys(remove!("idempotency"), &freed).await?;
        self.write_records(&records).await?;
        let (memories, freed) = parted(&after.memories);
        self.remove_keys(remove!("memory"), &freed).await?;
        self.write_memories(&memories).await
    }

    async fn remove_keys(&mut self, sql: &'static str, keys: &[(TaskKey, ())]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let (tasks, texts) = self.columns(keys)?;
        self.run("free keys", self.sql.query(sql).bind(tasks).bind(texts)).await
    }
}

/// The index that names a job.
pub(crate) fn of_job(index: &Index) -> Option<JobId> {
    match index {
        Index::Of(id) => Some(*id),
        _ => None,
    }
}
