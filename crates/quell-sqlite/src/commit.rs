//! Writing what a step of the engine changes: one statement or two for all rows of a kind.
//!
//! SQL indexes follow from the tables, so places in the engine's indexes are written only where a row that
//! does not change moves: a key that is looked at again later, a schedule that is tried again later.
//!
//! Invariant: each job that comes, goes or changes its lane or state is noted in the counts.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::limit::{StartLog, WHOLE_QUEUE};
use quell_core::part::TaskKey;
use quell_core::schedule::{Tick, TickedBy};
use quell_core::{
    Attempt, AttemptOutcome, Effect, Job, JobId, Key, LeaseToken, Past, QueueName, QueueSettings,
    Result, ScheduleName, Timestamp, UnreadableJob,
};
use quell_engine::sql::effect_values;
use quell_engine::{Changes, Index, Row, RowName};

use crate::backend::Loaded;
use crate::counts::{decode_lane_state, lane_state_columns};
use crate::error::{corrupt, explain};
use crate::keys::{json, write_holds, write_memories, write_records};
use crate::others::{write_alert, write_remarks, write_schedule, write_worker};
use crate::row::signed;
use crate::tx::Tx;
use crate::write::{bind, put};

/// Rows to be written, and the names of rows to be removed, by kind.
#[derive(Default)]
struct Sorted {
    jobs: Vec<std::sync::Arc<Job>>,
    gone: Vec<i64>,
    asides: Vec<UnreadableJob>,
    no_asides: Vec<i64>,
    attempts: Vec<(JobId, Vec<Attempt>)>,
    effects: Vec<(JobId, Vec<Effect>)>,
    pasts: Vec<(JobId, Past)>,
    no_pasts: Vec<i64>,
    holds: Vec<(TaskKey, quell_core::dedup::Hold)>,
    records: Vec<(TaskKey, quell_core::idempotency::Record)>,
    memories: Vec<(TaskKey, quell_core::edge::KeyMemory)>,
    no_keys: BTreeMap<&'static str, Vec<TaskKey>>,
    ticks: Vec<Tick>,
    no_ticks: Vec<(ScheduleName, i64)>,
    starts: Vec<(QueueName, Option<Key>, StartLog)>,
    /// Rows of kinds that have few, each written by itself.
    others: Vec<(RowName, Option<Row>)>,
}

impl Sorted {
    fn of(rows: BTreeMap<RowName, Option<Row>>, aside: &BTreeSet<JobId>) -> Self {
        let mut sorted = Sorted::default();
        for (name, row) in rows {
            match (name, row) {
                (RowName::Job(_), Some(Row::Job(job))) => sorted.jobs.push(job),
                (RowName::Job(id), None) => sorted.gone.push(signed(id.get())),
                (RowName::Aside(id), Some(Row::Aside(row))) if aside.contains(&id) => {
                    sorted.asides.push(*row);
                }
                (RowName::Aside(id), None) => sorted.no_asides.push(signed(id.get())),
                (RowName::Attempts(id), Some(Row::Attempts(all))) => {
                    sorted.attempts.push((id, all))
                }
                (RowName::Attempts(id), None) => sorted.attempts.push((id, Vec::new())),
                (RowName::Effects(id), Some(Row::Effects(all))) => sorted.effects.push((id, all)),
                (RowName::Effects(id), None) => sorted.effects.push((id, Vec::new())),
                (RowName::Past(id), Some(Row::Past(past))) => sorted.pasts.push((id, *past)),
                (RowName::Past(id), None) => sorted.no_pasts.push(signed(id.get())),
                (RowName::Hold(key), Some(Row::Hold(hold))) => sorted.holds.push((key, hold)),
                (RowName::Record(key), Some(Row::Record(record))) => {
                    sorted.records.push((key, *record));
                }
                (RowName::Memory(key), Some(Row::Memory(memory))) => {
                    sorted.memories.push((key, memory));
                }
                (RowName::Hold(key), None) => sorted.remove_key(DROP_HOLDS, key),
                (RowName::Record(key), None) => sorted.remove_key(DROP_RECORDS, key),
                (RowName::Memory(key), None) => sorted.remove_key(DROP_MEMORIES, key),
                (RowName::Tick(..), Some(Row::Tick(tick))) => sorted.ticks.push(tick),
                (RowName::Tick(schedule, at), None) => {
                    sorted.no_ticks.push((schedule, at.as_micros()));
                }
                (RowName::Starts(queue, partition), Some(Row::Starts(log))) => {
                    sorted.starts.push((queue, partition, log));
                }
                (RowName::Starts(queue, partition), None) => {
                    sorted.starts.push((queue, partition, StartLog::default()));
                }
                // They follow from other rows, or are not stored.
                (
                    RowName::Key(_)
                    | RowName::Origin(_)
                    | RowName::Turn(_)
                    | RowName::Gate(_)
                    | RowName::Aside(_),
                    _,
                ) => {}
                (name, row) => sorted.others.push((name, row)),
            }
        }
        sorted
    }

    fn remove_key(&mut self, sql: &'static str, key: TaskKey) {
        self.no_keys.entry(sql).or_default().push(key);
    }
}

const DROP_HOLDS: &str = "delete from quell_hold where (task_id, key) in
     (select value ->> 0, value ->> 1 from json_each(?1))";
const DROP_RECORDS: &str = "delete from quell_idempotency where (task_id, key) in
     (select value ->> 0, value ->> 1 from json_each(?1))";
const DROP_MEMORIES: &str = "delete from quell_memory where (task_id, key) in
     (select value ->> 0, value ->> 1 from json_each(?1))";

impl Tx {
    /// Writes what a step changes; `loaded` is what it loaded.
    pub(crate) async fn apply(&mut self, changes: Changes, loaded: &Loaded) -> Result<()> {
        let written: BTreeSet<RowName> = changes.rows.keys().cloned().collect();
        let mut sorted = Sorted::of(changes.rows, &changes.aside);
        // Queues and tasks come first, as others need their numbers.
        for (name, row) in std::mem::take(&mut sorted.others) {
            self.write_other(&name, row.as_ref()).await?;
        }
        self.set_aside(&sorted.asides).await?;
        self.write_jobs(&sorted, loaded).await?;
        self.write_attempts(&sorted.attempts, loaded).await?;
        self.write_effects(&sorted.effects).await?;
        self.write_pasts(&sorted.pasts, &sorted.no_pasts).await?;
        for (sql, keys) in &sorted.no_keys {
            let names = self.names();
            let keys = keys.iter().map(|(task, key)| (names.task_id(task), key.as_str()));
            let keys = json(&keys.collect::<Vec<_>>())?;
            self.run("remove keys", sql, keys).await?;
        }
        let (db, names, _) = self.parts();
        write_holds(db, names, &sorted.holds).await?;
        write_records(db, names, &sorted.records).await?;
        write_memories(db, names, &sorted.memories).await?;
        self.write_ticks(&sorted.ticks, &sorted.no_ticks).await?;
        for (queue, partition, log) in &sorted.starts {
            self.write_starts(queue, partition.as_ref(), log).await?;
        }
        let stays = |name: &RowName| !written.contains(name);
        for (index, entry) in changes.enter.iter().filter(|(_, entry)| stays(&entry.name)) {
            self.move_place(index, &entry.name, Some(entry.place.at)).await?;
        }
        let enters = |name: &RowName| changes.enter.iter().any(|(_, entry)| entry.name == *name);
        for (index, _, name) in &changes.leave {
            if stays(name) && !enters(name) {
                self.move_place(index, name, None).await?;
            }
        }
        // R11: what a job held back may start whose key not even the engine could read.
        self.free_keys(changes.aside.iter().copied()).await
    }

    /// Runs a statement with one parameter, unless that is an empty array.
    async fn run(&mut self, what: &'static str, sql: &'static str, rows: String) -> Result<()> {
        if rows == "[]" {
            return Ok(());
        }
        let ran = sqlx::query(sql).bind(rows).execute(&mut self.writer.db).await;
        ran.map(drop).map_err(|e| explain(what, e))
    }

    async fn write_other(&mut self, name: &RowName, row: Option<&Row>) -> Result<()> {
        let (db, _, _) = self.parts();
        match (name, row) {
            (RowName::Queue(queue), Some(Row::Queue(settings))) => {
                self.write_queue(queue, settings.as_deref()).await
            }
            (RowName::Task(task), Some(Row::Task(settings))) => {
                const SET: &str = "update quell_task set settings = ?2 where id = ?1";
                let (db, names, _) = self.parts();
                let id = names.intern_task(db, task).await?;
                let set = sqlx::query(SET).bind(id).bind(json(settings)?).execute(db).await;
                set.map_err(|e| explain("set a task", e))?;
                self.settings_changed = true;
                Ok(())
            }
            (RowName::Schedule(name), Some(Row::Schedule(info))) => {
                write_schedule(db, name, Some(info)).await
            }
            // After its ticks.
            (RowName::Schedule(name), None) => {
                const TICKS: &str = "delete from quell_tick
                      where schedule_id = (select id from quell_schedule where name = ?1)";
                let ticks = sqlx::query(TICKS).bind(name.as_str().to_owned()).execute(&mut *db);
                ticks.await.map_err(|e| explain("remove ticks", e))?;
                write_schedule(db, name, None).await
            }
            (RowName::Worker(worker, incarnation), Some(Row::Worker(row))) => {
                write_worker(db, (worker, *incarnation), Some(row)).await
            }
            (RowName::Worker(worker, incarnation), None) => {
                write_worker(db, (worker, *incarnation), None).await
            }
            (RowName::Alert(name), Some(Row::Alert(version, state))) => {
                write_alert(db, name, Some((*version, state))).await
            }
            (RowName::Alert(name), None) => write_alert(db, name, None).await,
            (RowName::Remarks(of), Some(Row::Remarks(remarks))) => {
                write_remarks(db, of, Some(remarks)).await
            }
            (RowName::Remarks(of), None) => write_remarks(db, of, None).await,
            (name, row) => Err(corrupt(format_args!("a step writes {row:?} as {name:?}"))),
        }
    }

    async fn write_queue(
        &mut self,
        queue: &QueueName,
        settings: Option<&QueueSettings>,
    ) -> Result<()> {
        const SET: &str = "update quell_queue set settings = ?2, deleted = ?3 where id = ?1";
        let (db, names, _) = self.parts();
        let id = names.intern_queue(db, queue).await?;
        let text = settings.map_or_else(|| Ok("{}".to_owned()), json)?;
        let set = sqlx::query(SET).bind(id).bind(text).bind(settings.is_none());
        set.execute(db).await.map_err(|e| explain("set a queue", e))?;
        self.settings_changed = true;
        self.forget_held_back(id).await
    }

    /// Marks jobs as set aside, and keeps on record what their rows said.
    async fn set_aside(&mut self, asides: &[UnreadableJob]) -> Result<()> {
        const WAS: &str = concat!(
            "select ",
            lane_state_columns!(),
            " from quell_job where id in (select value ->> 0 from json_each(?1)) and state is not 6"
        );
        const RECORD: &str = "insert into quell_unreadable (job_id, was, set_aside_at, reason)
             select j.id, j.state, k.value ->> 1, k.value ->> 2
               from json_each(?1) k cross join quell_job j on j.id = k.value ->> 0
              where true
             on conflict (job_id) do update set
                 was = excluded.was, set_aside_at = excluded.set_aside_at, reason = excluded.reason";
        const MARK: &str = "update quell_job
                set state = 6, hold = null, waits = 0, lane_id = lane_id
              where id in (select value ->> 0 from json_each(?1))";
        if asides.is_empty() {
            return Ok(());
        }
        let row = |one: &UnreadableJob| {
            (signed(one.id.get()), one.set_aside_at.as_micros(), one.reason.clone())
        };
        let rows = json(&asides.iter().map(row).collect::<Vec<_>>())?;
        let what = "set an unreadable job aside";
        let was = sqlx::query(WAS).bind(rows.clone()).fetch_all(&mut self.writer.db).await;
        for row in &was.map_err(|e| explain(what, e))? {
            let was = decode_lane_state(row, 0)?;
            self.tally.move_one(was, was.with(quell_core::JobState::Unreadable));
        }
        self.run(what, RECORD, rows.clone()).await?;
        self.run(what, MARK, rows).await
    }

    async fn write_jobs(&mut self, sorted: &Sorted, loaded: &Loaded) -> Result<()> {
        const RESTORED: &str =
            "delete from quell_unreadable where job_id in (select value from json_each(?1))";
        const REMOVE: &str = concat!(
            "delete from quell_job where id in (select value from json_each(?1)) returning ",
            lane_state_columns!()
        );
        let what = "remove jobs";
        let is_written = |id: &i64| sorted.jobs.iter().any(|job| signed(job.id.get()) == *id);
        // What is set aside no more goes back, or goes.
        let discarded = sorted.no_asides.iter().copied().filter(|id| !is_written(id));
        let gone: Vec<i64> = sorted.gone.iter().copied().chain(discarded).collect();
        self.run("restore a job", RESTORED, json(&sorted.no_asides)?).await?;
        if !gone.is_empty() {
            let removed = sqlx::query(REMOVE).bind(json(&gone)?);
            let removed = removed.fetch_all(&mut self.writer.db).await;
            for row in &removed.map_err(|e| explain(what, e))? {
                self.tally.remove(decode_lane_state(row, 0)?);
            }
        }
        // A job that opens a window comes after one that gives that place up.
        let mut jobs: Vec<&Job> = sorted.jobs.iter().map(|job| &**job).collect();
        jobs.sort_by_key(|job| (job.is_open_window(), job.id));
        put(self.parts(), &jobs, |id| loaded.jobs.get(&id).copied()).await
    }

    /// Writes attempts that are new, and removes those that are given up.
    async fn write_attempts(
        &mut self,
        attempts: &[(JobId, Vec<Attempt>)],
        loaded: &Loaded,
    ) -> Result<()> {
        const ADD: &str = "insert or replace into quell_attempt
                (job_id, token, worker, started_at, ended_at, outcome, error)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        const GIVE_UP: &str = "delete from quell_attempt where (job_id, token) in
             (select value ->> 0, value ->> 1 from json_each(?1))";
        const REMOVE: &str =
            "delete from quell_attempt where job_id in (select value from json_each(?1))";
        let (mut gone, mut whole) = (Vec::new(), Vec::new());
        let none = BTreeSet::new();
        for (job, attempts) in attempts {
            let (id, known) = (signed(job.get()), loaded.attempts.get(job).unwrap_or(&none));
            if attempts.is_empty() {
                whole.push(id);
                continue;
            }
            let kept: BTreeSet<LeaseToken> = attempts.iter().map(|one| one.token).collect();
            gone.extend(known.difference(&kept).map(|token| (id, signed(token.get()))));
            for attempt in attempts.iter().filter(|one| !known.contains(&one.token)) {
                sqlx::query(ADD)
                    .bind(id)
                    .bind(signed(attempt.token.get()))
                    .bind(attempt.worker.as_str().to_owned())
                    .bind(attempt.started_at.as_micros())
                    .bind(attempt.ended_at.map(Timestamp::as_micros))
                    .bind(attempt.outcome.map(AttemptOutcome::code))
                    .bind(attempt.error.clone())
                    .execute(&mut self.writer.db)
                    .await
                    .map_err(|e| explain("record an attempt", e))?;
            }
        }
        self.run("give up attempts", GIVE_UP, json(&gone)?).await?;
        self.run("remove attempts", REMOVE, json(&whole)?).await
    }

    async fn write_effects(&mut self, effects: &[(JobId, Vec<Effect>)]) -> Result<()> {
        const REMOVE: &str =
            "delete from quell_effect where job_id in (select value from json_each(?1))";
        let ids: Vec<i64> = effects.iter().map(|(id, _)| signed(id.get())).collect();
        self.run("record effects", REMOVE, json(&ids)?).await?;
        for (id, effects) in effects {
            for effect in effects {
                self.put_effect(*id, effect).await?;
            }
        }
        Ok(())
    }

    async fn put_effect(&mut self, id: JobId, effect: &Effect) -> Result<()> {
        const PUT: &str = "insert into quell_effect
                (job_id, name, key, begun_at, begun_by, done_at, done_by, result)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let query = sqlx::query(PUT).bind(signed(id.get()));
        effect_values(effect)
            .into_iter()
            .fold(query, bind)
            .execute(&mut self.writer.db)
            .await
            .map_err(|e| explain("record an effect", e))?;
        Ok(())
    }

    async fn write_pasts(&mut self, pasts: &[(JobId, Past)], gone: &[i64]) -> Result<()> {
        // What an import finds of a job that is gone is replaced.
        const PUT: &str =
            "insert or replace into quell_past (job_id, original, of_job, of_first_at)
             values (?1, ?2, ?3, ?4)";
        const REMOVE: &str =
            "delete from quell_past where job_id in (select value from json_each(?1))";
        self.run("remove what jobs were", REMOVE, json(&gone)?).await?;
        for (id, past) in pasts {
            sqlx::query(PUT)
                .bind(signed(id.get()))
                .bind(past.original.as_ref().map(|original| original.as_str().to_owned()))
                .bind(past.origin.map(|origin| signed(origin.job.get())))
                .bind(past.origin.map(|origin| origin.first_at.as_micros()))
                .execute(&mut self.writer.db)
                .await
                .map_err(|e| explain("write what a job was", e))?;
        }
        Ok(())
    }

    async fn write_ticks(&mut self, ticks: &[Tick], gone: &[(ScheduleName, i64)]) -> Result<()> {
        const PUT: &str =
            "insert or replace into quell_tick (schedule_id, tick_at, job_id, backfilled)
             select s.id, k.value ->> 1, k.value ->> 2, k.value ->> 3
               from json_each(?1) k cross join quell_schedule s on s.name = k.value ->> 0";
        const REMOVE: &str = "delete from quell_tick where (schedule_id, tick_at) in (
             select s.id, k.value ->> 1
               from json_each(?1) k cross join quell_schedule s on s.name = k.value ->> 0)";
        self.run("remove ticks", REMOVE, json(&gone)?).await?;
        let row = |tick: &Tick| {
            let (job, backfilled) =
                (tick.job.map(|job| signed(job.get())), tick.by == TickedBy::Backfill);
            (tick.schedule.clone(), tick.tick.as_micros(), job, i64::from(backfilled))
        };
        self.run("record ticks", PUT, json(&ticks.iter().map(row).collect::<Vec<_>>())?).await
    }

    /// Writes the starts of a queue or a partition. A log of a queue without a rate counts nothing.
    async fn write_starts(
        &mut self,
        queue: &QueueName,
        partition: Option<&Key>,
        log: &StartLog,
    ) -> Result<()> {
        const FORGET: &str = "delete from quell_start where queue_id = ?1 and partition = ?2";
        const WRITE: &str = "insert into quell_start
                (queue_id, partition, at, starts, number, expires_at)
             select ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?3)";
        let what = "write starts";
        let settings = self.queue_settings(queue).await?;
        let Some(queue_id) = self.names().queue_id(queue) else { return Ok(()) };
        let name = partition.map_or(WHOLE_QUEUE, Key::as_str).to_owned();
        let forget = sqlx::query(FORGET).bind(queue_id).bind(name.clone());
        forget.execute(&mut self.writer.db).await.map_err(|e| explain(what, e))?;
        let rate = if partition.is_none() { settings.rate } else { settings.partition_rate };
        let Some(rate) = rate else { return Ok(()) };
        let (mut rows, mut number) = (Vec::new(), 0_usize);
        for same in log.starts().chunk_by(|one, other| one == other) {
            let Some(at) = same.first().copied() else { continue };
            number = number.saturating_add(same.len());
            rows.push((at.as_micros(), same.len(), number, (at + rate.period).as_micros()));
        }
        let write = sqlx::query(WRITE).bind(queue_id).bind(name).bind(json(&rows)?);
        write.execute(&mut self.writer.db).await.map(drop).map_err(|e| explain(what, e))
    }

    /// The settings of a queue as this transaction leaves them.
    async fn queue_settings(&mut self, queue: &QueueName) -> Result<QueueSettings> {
        const SETTINGS: &str = "select settings from quell_queue where name = ?1";
        let text = sqlx::query_scalar::<_, String>(SETTINGS).bind(queue.as_str().to_owned());
        let text = text.fetch_optional(&mut self.writer.db).await;
        let text = text.map_err(|e| explain("read the settings of a queue", e))?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    }

    /// Moves a row in an index that itself does not change; with no time it leaves.
    async fn move_place(
        &mut self,
        index: &Index,
        name: &RowName,
        at: Option<Timestamp>,
    ) -> Result<()> {
        const LOOK_LATER: &str = "update quell_idempotency set look_at = ?3
              where task_id = ?1 and key = ?2";
        const STARTS: &str = "update quell_start
                set expires_at = at + ?3 - (select max(s.at) from quell_start s
                                             where s.queue_id = ?1 and s.partition = ?2)
              where queue_id = ?1 and partition = ?2";
        const FORGET: &str = "delete from quell_start where queue_id = ?1 and partition = ?2";
        const POSTPONE: &str = "update quell_schedule set next_at = ?2 where name = ?1";
        let query = match (index, name, at) {
            (Index::Plan, RowName::Schedule(schedule), Some(at)) => {
                sqlx::query(POSTPONE).bind(schedule.as_str().to_owned()).bind(at.as_micros())
            }
            (Index::Expiry, RowName::Record((task, key)), Some(at)) => sqlx::query(LOOK_LATER)
                .bind(self.names().task_id(task))
                .bind(key.as_str().to_owned())
                .bind(at.as_micros()),
            (Index::Expiry, RowName::Starts(queue, partition), at) => {
                let query = sqlx::query(if at.is_some() { STARTS } else { FORGET });
                let name = partition.as_ref().map_or(WHOLE_QUEUE, Key::as_str).to_owned();
                let query = query.bind(self.names().queue_id(queue)).bind(name);
                match at {
                    Some(at) => query.bind(at.as_micros()),
                    None => query,
                }
            }
            _ => return Ok(()),
        };
        let moved = query.execute(&mut self.writer.db).await;
        moved.map(drop).map_err(|e| explain("move a row in an index", e))
    }
}
