//! Accepting triggers: loads the rows they touch, lets the core decide, writes what changed.
//!
//! Triggers of one key fold in memory, so a hot key costs one row write per commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_core::accept::{Refused, accept, accept_promised};
use quell_core::history::Event;
use quell_core::touched::{Needs, TaskKey, Touched};
use quell_core::{Batch, Job, JobId, JobState, Receipt, Result};
use sqlx::postgres::PgRow;

use crate::row::{decode, job_columns, lane_of, signed, unsigned};
use crate::tx::Tx;
use crate::write::Behind;

/// New jobs are numbered from here while the core decides which there will be.
const DRAFTS: u64 = 1 << 62;

/// The open windows of the keys `$1`, `$2`, with the payloads of tasks that are among `$3`.
///
/// Planned while the table was empty, a plain join would read all windows for each call. So each key
/// is looked up by itself, and the sums keep other indexes away from the second part.
pub(crate) const WINDOWS: &str = concat!(
    "with found as materialized (
         select w.id from unnest($1::int[], $2::text[]) k (task_id, key)
          cross join lateral (
                select j.id from quell.job j
                 where j.task_id = k.task_id and j.key = k.key and j.state = 0
                   and not j.closed
                offset 0) w)
     select ",
    job_columns!("case when j.task_id = any($3) then j.payload end", "false"),
    " from quell.job j
     where j.id = any(array(select id from found)) and j.state + 0 = 0
     order by j.id + 0
       for no key update of j"
);

/// How triggers are accepted.
type Rule = fn(&mut Touched, &Batch) -> Result<Vec<Receipt>, Refused>;

/// The numbers that new jobs get.
#[derive(Debug, Default)]
struct Numbers(Vec<i64>);

impl Numbers {
    fn of(&self, id: JobId) -> JobId {
        let draft = id.get().checked_sub(DRAFTS).and_then(|index| usize::try_from(index).ok());
        let number = draft.and_then(|index| self.0.get(index).copied());
        number.map_or(id, |number| JobId::new(unsigned(number)))
    }

    fn receipt(&self, receipt: Receipt) -> Receipt {
        let renumbered = |mut trigger: quell_core::TriggerId| {
            trigger.job = self.of(trigger.job);
            trigger
        };
        match receipt {
            Receipt::Accepted { job, trigger, due } => {
                Receipt::Accepted { job: self.of(job), trigger: renumbered(trigger), due }
            }
            Receipt::Debounced { job, trigger, triggers, due } => {
                let (job, trigger) = (self.of(job), renumbered(trigger));
                Receipt::Debounced { job, trigger, triggers, due }
            }
            Receipt::Duplicate { job } => Receipt::Duplicate { job: self.of(job) },
            Receipt::Existing { job, state, output } => {
                Receipt::Existing { job: self.of(job), state, output }
            }
            other => other,
        }
    }

    fn jobs(&self, jobs: &[&Job]) -> Vec<Job> {
        jobs.iter().map(|job| Job { id: self.of(job.id), ..(*job).clone() }).collect()
    }
}

impl Tx {
    /// Accepts batches that were promised before, each whole or not at all: those of committed
    /// transactions and of schedules. The names in them are known.
    pub(crate) async fn accept_promised(
        &mut self,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.accept_by(batches, &Needs::of(batches), accept_promised).await
    }

    /// Accepts batches, each whole or not at all. The names in them are known, and `needs` are theirs.
    pub(crate) async fn accept(
        &mut self,
        batches: &[Batch],
        needs: &Needs<'_>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.accept_by(batches, needs, accept).await
    }

    async fn accept_by(
        &mut self,
        batches: &[Batch],
        needs: &Needs<'_>,
        rule: Rule,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let thresholds =
            if needs.thresholds { self.load_thresholds().await? } else { BTreeMap::new() };
        let opened = self.opened.take();
        let is_timed = opened.is_some();
        let windows = self.load_windows(needs, opened).await?;
        let holds = self.load_holds(&needs.holds).await?;
        self.locked.extend(holds.iter().map(|loaded| loaded.key.clone()));
        let mut memories = self.load_memories(&needs.memories).await?;
        let leaders: BTreeSet<JobId> = memories.iter().map(|one| one.value.leader).collect();
        let leaders = self.load_anywhere(leaders.into_iter().collect()).await?;
        for memory in &mut memories {
            memory.job = leaders.get(&memory.value.leader).cloned();
        }
        let records = self.load_records(&needs.records).await?;
        self.locked_records.extend(records.iter().map(|loaded| loaded.key.clone()));
        if !is_timed {
            self.read_clock().await?;
        }
        let mut touched = Touched::new(self.now, DRAFTS, thresholds);
        windows.into_iter().for_each(|(key, job)| touched.add_job(key, job));
        touched.add_holds(holds);
        touched.add_memories(memories);
        touched.add_records(records);
        let receipts: Vec<Result<Vec<Receipt>, Refused>> =
            batches.iter().map(|batch| rule(&mut touched, batch)).collect();
        // Before numbers are taken: a try that fails for a name would lose them.
        for job in touched.new_unkeyed().iter().chain(touched.new_keyed()).chain(touched.changed())
        {
            self.name(job);
        }
        self.check_named()?;
        let new = usize::try_from(touched.next_id().saturating_sub(DRAFTS)).unwrap_or(usize::MAX);
        let numbers = Numbers(self.new_ids(new).await?);
        self.write(&touched, &numbers).await?;
        let renumber = |batch: Vec<Receipt>| {
            batch.into_iter().map(|receipt| numbers.receipt(receipt)).collect()
        };
        let refused = |mut refused: Refused| {
            if let Refused::Conflict(conflict) = &mut refused {
                conflict.job = conflict.job.map(|job| numbers.of(job));
            }
            refused.into()
        };
        Ok(receipts.into_iter().map(|batch| batch.map(renumber).map_err(refused)).collect())
    }

    /// Loads the open windows of keys, and locks them in the order of their ids, unless that is done.
    /// Whether attempts of the keys run is of no concern: who may start follows from the rows.
    async fn load_windows(
        &mut self,
        needs: &Needs<'_>,
        opened: Option<Vec<PgRow>>,
    ) -> Result<Vec<(TaskKey, Job)>> {
        let rows = match opened {
            Some(rows) => rows,
            None if needs.windows.is_empty() => return Ok(Vec::new()),
            None => {
                let (tasks, keys) = self.names.task_keys(&needs.windows);
                let query = self.sql.query(WINDOWS).bind(tasks).bind(keys);
                let query = query.bind(self.names.readers(needs));
                self.fetch("read open windows", query).await?
            }
        };
        self.know_lanes(&rows).await?;
        let mut windows = Vec::with_capacity(rows.len());
        for row in &rows {
            let job = decode(row, &self.names)?;
            // The lock may have been waited for, and the row have moved on.
            if let (JobState::Scheduled, Some(key)) = (job.state, job.key.clone()) {
                windows.push(((job.task.clone(), key), job));
            }
        }
        Ok(windows)
    }

    /// Loads jobs that wait or run.
    pub(crate) async fn load_here(&mut self, ids: Vec<JobId>) -> Result<BTreeMap<JobId, Job>> {
        const HERE: &str = concat!(
            "select ",
            job_columns!("null::text", "false"),
            " from quell.job j where j.id = any($1)"
        );
        self.load_by_id(HERE, ids).await
    }

    /// Loads jobs wherever they are, locked.
    pub(crate) async fn load_anywhere(&mut self, ids: Vec<JobId>) -> Result<BTreeMap<JobId, Job>> {
        const HERE: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.job j where j.id = any($1) order by j.id for no key update"
        );
        const ENDED: &str = concat!(
            "select ",
            job_columns!("j.payload", "false"),
            " from quell.ended j where j.id = any($1) and j.state + 0 <> 6
              order by j.id for no key update"
        );
        let mut jobs = self.load_by_id(HERE, ids.clone()).await?;
        let ended: Vec<JobId> = ids.into_iter().filter(|id| !jobs.contains_key(id)).collect();
        jobs.append(&mut self.load_by_id(ENDED, ended).await?);
        Ok(jobs)
    }

    pub(crate) async fn load_by_id(
        &mut self,
        sql: &'static str,
        ids: Vec<JobId>,
    ) -> Result<BTreeMap<JobId, Job>> {
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let ids: Vec<i64> = ids.iter().map(|id| signed(id.get())).collect();
        let rows = self.fetch("read jobs", self.sql.query(sql).bind(ids)).await?;
        self.know_lanes(&rows).await?;
        let jobs = rows.iter().map(|row| decode(row, &self.names));
        jobs.map(|job| job.map(|job| (job.id, job))).collect()
    }

    /// Makes the lanes of these rows known, which another process may have made.
    pub(crate) async fn know_lanes(&mut self, rows: &[PgRow]) -> Result<()> {
        let ids = rows.iter().map(lane_of).collect::<Result<Vec<i32>>>()?;
        let (names, sql) = (Arc::clone(&self.names), Arc::clone(&self.sql));
        names.load(self.db(), &sql, ids.into_iter()).await
    }

    async fn load_thresholds(
        &mut self,
    ) -> Result<BTreeMap<quell_core::QueueName, quell_core::window::Thresholds>> {
        let query = self.sql.query("select name, settings from quell.queue where settings <> '{}'");
        let mut thresholds = BTreeMap::new();
        for row in &self.fetch("read the settings of queues", query).await? {
            let (queue, settings) = crate::read::decode_queue(row)?;
            thresholds.extend(settings.debounce.map(|debounce| (queue, debounce)));
        }
        Ok(thresholds)
    }

    async fn write(&mut self, touched: &Touched, numbers: &Numbers) -> Result<()> {
        let unkeyed = numbers.jobs(&touched.new_unkeyed().iter().collect::<Vec<_>>());
        let new = numbers.jobs(&touched.new_keyed());
        let changed = touched.changed();
        let now = self.now;
        for job in changed.iter().copied().chain(&new).chain(&unkeyed) {
            if job.state != JobState::Scheduled {
                // Only a leading edge counts triggers in a job that does not wait.
                self.record_event(|| Event::suppressed(now, job));
                continue;
            }
            self.record_event(|| Event::window(now, job));
            if touched.is_news(job) {
                self.news.wake(&job.queue, job.window.due_at);
            }
        }
        let waiting = touched.new_keyed().into_iter().filter(|job| !job.shape.overlap);
        let behind: Behind = waiting
            .filter_map(|job| Some((numbers.of(job.id), numbers.of(touched.closed_before(job)?))))
            .collect();
        let inserted: Vec<&Job> = new.iter().chain(&unkeyed).collect();
        // A window that closes gives up its place before another opens.
        self.update_joined(&changed).await?;
        self.insert_new(&inserted, &behind).await?;
        let taken = touched.taken();
        let renumbered = taken.into_iter().map(|(key, mut hold)| {
            hold.job = numbers.of(hold.job);
            (key, hold)
        });
        self.write_holds(&renumbered.collect::<Vec<_>>()).await?;
        let renumbered = touched.recorded().into_iter().map(|(key, mut record)| {
            record.job = numbers.of(record.job);
            (key, record)
        });
        self.write_records(&renumbered.collect::<Vec<_>>()).await?;
        let renumbered = touched.remembered().into_iter().map(|(key, mut memory)| {
            memory.leader = numbers.of(memory.leader);
            (key, memory)
        });
        self.write_memories(&renumbered.collect::<Vec<_>>()).await
    }
}
