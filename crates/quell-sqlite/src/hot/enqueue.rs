//! Accepting triggers: loads the rows they touch, lets the core decide, writes what changed.
//!
//! Triggers of one key fold in memory, so a hot key costs one row write per commit. A call takes two
//! trips to the connection's thread where it can: the transaction begins with reading the windows, and
//! commits with the last write.

use quell_core::accept::{Refused, accept, accept_promised};
use quell_core::history::Event;
use quell_core::touched::{Needs, Touched};
use quell_core::{Batch, Fold, Job, JobState, Receipt, Result, TaskName, Timestamp};
use sqlx::sqlite::SqliteRow;

use crate::counts::LaneState;
use crate::error::explain;
use crate::keys::{
    json, load_holds, load_memories, load_records, write_holds, write_memories, write_records,
};
use crate::row::{decode, job_columns};
use crate::tx::{Trip, Tx, open_at, opening};
use crate::write::{Last, insert_new, insert_plain, update_joined};

/// What comes after triggers were accepted.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The commit.
    Commit,
    /// More of the same transaction.
    GoOn,
}

impl Ending {
    /// How a write ends, after which nothing is written if `is_last`.
    fn last(self, is_last: bool, parting: &mut Option<Trip>) -> Last<'_> {
        match self {
            Ending::Commit if is_last => Last::WithCommit(parting),
            Ending::Commit | Ending::GoOn => Last::Alone,
        }
    }
}

/// How triggers are accepted.
type Rule = fn(&mut Touched, &Batch) -> Result<Vec<Receipt>, Refused>;

/// Open windows of a task, and the attempts of their keys that run: `?2` the keys, `?3` whether
/// payloads are read, `?4` the task.
macro_rules! windows {
    () => {
        concat!(
            "select ",
            job_columns!("case when ?3 then j.payload end"),
            " from quell_task t
              cross join json_each(?2) k
              cross join quell_job j on j.task_id = t.id and j.key = k.value and j.hold >= 0
             where t.name = ?4
             union all
             select ",
            job_columns!("null"),
            " from quell_task t
              cross join json_each(?2) k
              -- R10: a closed window holds back newer ones, and the first of them is enough to know.
              cross join quell_job j on j.id = (select -max(c.hold) from quell_job c
                                                 where c.task_id = t.id and c.key = k.value
                                                   and c.hold < 0)
             where t.name = ?4"
        )
    };
}

/// Begins a transaction that accepts what has these `needs`. Where the windows are of one task, they
/// are read in the same trip.
pub(crate) fn open_with_windows(now: Timestamp, needs: &Needs<'_>) -> Result<Trip> {
    match only_task(needs) {
        None => Ok(open_at(now)),
        Some(task) => bind_windows(sqlx::query(opening!(windows!())), now, task, needs),
    }
}

/// The task of all windows that are needed, if it is one.
fn only_task<'n>(needs: &Needs<'n>) -> Option<&'n TaskName> {
    let mut tasks = needs.windows.keys();
    tasks.next().copied().filter(|_| tasks.next().is_none())
}

fn bind_windows(query: Trip, now: Timestamp, task: &TaskName, needs: &Needs<'_>) -> Result<Trip> {
    let keys = json(&needs.windows.get(task))?;
    let reads_payload = needs.reads_payload.get(task).copied().unwrap_or(true);
    let query = query.bind(now.as_micros()).bind(keys).bind(reads_payload);
    Ok(query.bind(task.as_str().to_owned()))
}

impl Tx {
    /// Accepts batches, each whole or not at all, and commits with the last write: nothing may come
    /// after it. `windows` is what [`open_with_windows`] read for their `needs`.
    pub(crate) async fn enqueue(
        &mut self,
        batches: &[Batch],
        needs: &Needs<'_>,
        windows: &[SqliteRow],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        // What the inbox holds comes first, and may change the windows.
        let read = (only_task(needs).is_some() && !self.inbox_waits).then_some(windows);
        self.fold_inbox_first().await?;
        self.accept_by(batches, needs, read, accept, Ending::Commit).await
    }

    /// Accepts batches that were promised before: those of committed transactions and of schedules.
    pub(crate) async fn accept_promised(
        &mut self,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let needs = Needs::of(batches);
        self.accept_by(batches, &needs, None, accept_promised, Ending::GoOn).await
    }

    async fn accept_by(
        &mut self,
        batches: &[Batch],
        needs: &Needs<'_>,
        windows: Option<&[SqliteRow]>,
        rule: Rule,
        ending: Ending,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let settings = self.names().settings();
        let thresholds =
            settings.filter_map(|(queue, settings)| Some((queue.clone(), settings.debounce?)));
        let thresholds = thresholds.collect();
        let mut touched = Touched::new(self.now, self.next_id, thresholds);
        match windows {
            Some(rows) => self.add_windows(&mut touched, rows)?,
            None => self.load_windows(&mut touched, needs).await?,
        }
        let (db, names, _) = self.parts();
        touched.add_holds(load_holds(db, names, &needs.holds).await?);
        touched.add_memories(load_memories(db, names, &needs.memories).await?);
        touched.add_records(load_records(db, names, &needs.records).await?);
        let receipts = batches.iter().map(|batch| Ok(rule(&mut touched, batch)?)).collect();
        self.next_id = touched.next_id();
        self.write(&touched, ending).await?;
        Ok(receipts)
    }

    /// Loads open windows, and whether attempts of their keys run.
    async fn load_windows(&mut self, touched: &mut Touched, needs: &Needs<'_>) -> Result<()> {
        for task in needs.windows.keys() {
            let query = bind_windows(sqlx::query(windows!()), self.now, task, needs)?;
            let rows = query.fetch_all(&mut self.writer.db).await;
            self.add_windows(touched, &rows.map_err(|e| explain("read open windows", e))?)?;
        }
        Ok(())
    }

    fn add_windows(&self, touched: &mut Touched, rows: &[SqliteRow]) -> Result<()> {
        for row in rows {
            let job = decode(row, self.names())?;
            if let Some(key) = job.key.clone() {
                touched.add_job((job.task.clone(), key), job);
            }
        }
        Ok(())
    }

    async fn write(&mut self, touched: &Touched, ending: Ending) -> Result<()> {
        let (new, changed) = (touched.new_keyed(), touched.changed());
        let now = self.now;
        for job in changed.iter().chain(&new) {
            if job.state != JobState::Scheduled {
                // Only a leading edge counts triggers in a job that does not wait.
                self.record_event(|| Event::suppressed(now, job));
                continue;
            }
            self.keys_wait |= job.waits;
            self.record_event(|| Event::window(now, job));
            if touched.is_news(job) {
                self.wake(&job.queue, job.window.due_at);
            }
        }
        self.count_moved(touched, &changed).await?;
        let (holds, records) = (touched.taken(), touched.recorded());
        let (memories, unkeyed) = (touched.remembered(), touched.new_unkeyed());
        let mut parting = None;
        let no_keys = holds.is_empty() && records.is_empty() && memories.is_empty();
        let no_others = no_keys && unkeyed.is_empty();
        // A window that closes gives up its place before another opens.
        let joins = ending.last(no_others && new.is_empty(), &mut parting);
        let (db, names, tally) = self.parts();
        update_joined(db, names, &changed, joins).await?;
        let opens = ending.last(no_others, &mut parting);
        insert_new((db, names, tally), &new, opens).await?;
        self.write_unkeyed(unkeyed, ending.last(no_keys, &mut parting)).await?;
        let (db, names, _) = self.parts();
        write_holds(db, names, &holds).await?;
        write_records(db, names, &records).await?;
        write_memories(db, names, &memories).await?;
        self.parting = parting;
        Ok(())
    }

    /// R7: a join may move a window to another queue, or to a higher priority.
    async fn count_moved(&mut self, touched: &Touched, changed: &[&Job]) -> Result<()> {
        for job in changed {
            let Some((queue, priority)) = touched.moved_from(job) else { continue };
            let (db, names, tally) = self.parts();
            let from = names.intern(db, queue, &job.task, priority).await?;
            let to = names.intern(db, &job.queue, &job.task, job.priority).await?;
            let [from, to] = [from, to].map(|lane| LaneState::new(lane.id, job.state));
            tally.move_one(from, to);
        }
        Ok(())
    }

    async fn write_unkeyed(&mut self, jobs: &[Job], last: Last<'_>) -> Result<()> {
        let now = self.now;
        for job in jobs {
            self.record_event(|| Event::window(now, job));
            self.wake(&job.queue, job.window.due_at);
        }
        let is_plain =
            |job: &&Job| job.window.asked_at == Timestamp::MIN && job.shape.fold == Fold::Last;
        let (plain, others): (Vec<&Job>, Vec<&Job>) = jobs.iter().partition(is_plain);
        let runs: Vec<&[&Job]> = plain.chunk_by(|a, b| lane(a) == lane(b)).collect();
        let Some((last_run, runs)) = runs.split_last() else {
            return insert_new(self.parts(), &others, last).await;
        };
        insert_new(self.parts(), &others, Last::Alone).await?;
        for run in runs {
            insert_plain(self.parts(), run, Last::Alone).await?;
        }
        insert_plain(self.parts(), last_run, last).await
    }
}

/// What jobs of one lane share.
fn lane(job: &Job) -> impl PartialEq + '_ {
    (job.priority, &job.task, &job.queue, &job.partition)
}
