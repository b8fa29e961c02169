//! Writing what a step of the engine changes: rows alone, as the indexes and the counts follow from them.
//!
//! Invariant: who gives up a key comes before who takes it, and a lease leaves with the attempt that had
//! it.

use std::collections::BTreeSet;

use quell_core::part::Notifications;
use quell_core::schedule::{ScheduleInfo, Tick};
use quell_core::{
    Job, JobId, JobState, Key, Lease, LeaseToken, Result, ScheduleName, TaskName, Timestamp,
    UnreadableJob,
};
use quell_engine::{Changes, Committed, Index, Row, RowName};
use std::sync::Arc;

use crate::backend::PostgresBackend;
use crate::drafts::Numbers;
use crate::error::wants_retry;
use crate::hanging::Hanging;
use crate::keyed::Keyed;
use crate::row::unsigned;
use crate::step::{Home, Step};
use crate::tx::{Outgoing, Tx, Unnamed};
use crate::write::Behind;

/// What a step changes, by kind.
#[derive(Debug, Default)]
struct Sorted {
    /// Jobs that are written, those that were among the waiting or running ones first.
    jobs: Vec<Arc<Job>>,
    removed: Vec<JobId>,
    asides: Vec<UnreadableJob>,
    /// Jobs that are no longer set aside.
    cleared: Vec<JobId>,
    hanging: Hanging,
    keys: Keyed,
    schedules: Vec<(ScheduleName, Option<ScheduleInfo>)>,
    ticks: Vec<(ScheduleName, Timestamp, Option<Tick>)>,
    postponed: Vec<(ScheduleName, Timestamp)>,
    /// Queues, tasks, workers and alerts.
    others: Vec<(RowName, Option<Row>)>,
}

/// What a row of one kind holds; none where it is removed.
macro_rules! only {
    ($row:ident, $kind:path) => {
        match $row {
            Some($kind(held)) => Some(held),
            _ => None,
        }
    };
}

impl Sorted {
    fn of(changes: Changes, numbers: &Numbers) -> Self {
        let mut sorted = Sorted::default();
        for (index, entry) in changes.enter {
            if let (Index::Plan, RowName::Schedule(name)) = (index, entry.name) {
                let row = RowName::Schedule(name.clone());
                if !changes.rows.contains_key(&row) {
                    sorted.postponed.push((name, entry.place.at));
                }
            }
        }
        for (name, row) in changes.rows {
            let (name, row) = numbers.row(name, row);
            sorted.put(name, row, &changes.aside);
        }
        sorted
    }

    fn put(&mut self, name: RowName, row: Option<Row>, aside: &BTreeSet<JobId>) {
        match (name, row) {
            (RowName::Job(_), Some(Row::Job(job))) => self.jobs.push(job),
            (RowName::Job(id), _) => self.removed.push(id),
            (RowName::Aside(id), Some(Row::Aside(row))) => {
                if aside.contains(&id) {
                    self.asides.push(*row);
                }
            }
            (RowName::Aside(id), _) => self.cleared.push(id),
            (RowName::Attempts(id), row) => {
                self.hanging.attempts.push((id, only!(row, Row::Attempts)));
            }
            (RowName::Effects(id), row) => {
                self.hanging.effects.push((id, only!(row, Row::Effects)));
            }
            (RowName::Past(id), row) => {
                self.hanging.pasts.push((id, only!(row, Row::Past).map(|past| *past)));
            }
            (RowName::Hold(key), row) => self.keys.holds.push((key, only!(row, Row::Hold))),
            (RowName::Record(key), row) => {
                self.keys.records.push((key, only!(row, Row::Record).map(|record| *record)));
            }
            (RowName::Memory(key), row) => {
                self.keys.memories.push((key, only!(row, Row::Memory)));
            }
            (RowName::Schedule(name), row) => {
                self.schedules.push((name, only!(row, Row::Schedule).map(|info| *info)));
            }
            (RowName::Tick(name, at), row) => self.ticks.push((name, at, only!(row, Row::Tick))),
            // They follow from other rows, or a lock stands for them.
            (
                RowName::Key(_)
                | RowName::Origin(_)
                | RowName::Turn(_)
                | RowName::Gate(_)
                | RowName::Starts(..),
                _,
            ) => {}
            (
                name @ (RowName::Queue(_)
                | RowName::Task(_)
                | RowName::Worker(..)
                | RowName::Alert(_)
                | RowName::Remarks(_)),
                row,
            ) => self.others.push((name, row)),
        }
    }
}

impl PostgresBackend {
    /// Writes what a step changes, commits it and publishes it.
    pub(crate) async fn commit_step(
        &self,
        mut step: Step,
        changes: Changes,
        notifications: &Notifications,
    ) -> Result<Committed> {
        let mut tx = step.take_tx()?;
        let numbers = match tx.number(step.first_draft, &changes).await {
            Ok(numbers) => numbers,
            Err(error) => {
                let unnamed = std::mem::take(&mut tx.unnamed);
                tx.roll_back().await;
                return self.begin_again(unnamed, error).await;
            }
        };
        let sorted = Sorted::of(changes, &numbers);
        tx.now = tx.now.max(step.late.unwrap_or(tx.now));
        tx.has_history = self.history.is_some();
        if let Err(error) = tx.write_and_fold(&step, &sorted).await {
            // Those of what waited in the inbox.
            let unnamed = std::mem::take(&mut tx.unnamed);
            tx.roll_back().await;
            return self.begin_again(unnamed, error).await;
        }
        let _ordered = match &self.order {
            Some(order) => Some(order.lock().await),
            None => None,
        };
        let now = tx.now;
        match tx.commit().await {
            Ok(folded) => {
                let mut news = Outgoing::of(notifications);
                numbers.events(&mut news.events);
                numbers.keep();
                news.append(folded);
                self.publish(now, news);
                Ok(Committed::Done)
            }
            Err(error) => self.begin_again(Unnamed::default(), error).await,
        }
    }

    /// A conflict, where another try may do.
    async fn begin_again(&self, unnamed: Unnamed, error: quell_core::Error) -> Result<Committed> {
        if !unnamed.is_empty() {
            self.intern(unnamed).await?;
            return Ok(Committed::Conflict);
        }
        if wants_retry(&error) { Ok(Committed::Conflict) } else { Err(error) }
    }
}

impl Tx {
    /// Draws ids for the jobs that a step has made. Names come first: a step that is retried for a missing
    /// name has drawn no ids.
    async fn number(&mut self, first: u64, changes: &Changes) -> Result<Numbers> {
        for row in changes.rows.values() {
            if let Some(Row::Job(job)) = row {
                self.name(job);
            }
        }
        self.check_named()?;
        let ids = self.new_ids(usize::try_from(changes.ids).unwrap_or(usize::MAX)).await?;
        let ids: Vec<JobId> = ids.into_iter().map(|id| JobId::new(unsigned(id))).collect();
        Ok(Numbers::new(first, &ids))
    }

    /// Writes what changes; what waits in the inbox comes after it.
    async fn write_and_fold(&mut self, step: &Step, sorted: &Sorted) -> Result<()> {
        self.write_changes(step, sorted).await?;
        self.fold_inbox().await
    }

    async fn write_changes(&mut self, step: &Step, sorted: &Sorted) -> Result<()> {
        for (name, row) in &sorted.others {
            self.write_other(step, name, row.as_ref()).await?;
        }
        let leases = self.set_rows_aside(&sorted.asides).await?;
        self.write_jobs(step, sorted, leases).await?;
        self.write_hanging(step, &sorted.hanging).await?;
        self.write_keys(step, &sorted.keys).await?;
        self.write_schedules(step, &sorted.schedules).await?;
        let gone = sorted.schedules.iter().filter(|(_, info)| info.is_none());
        let gone: BTreeSet<&ScheduleName> = gone.map(|(name, _)| name).collect();
        let ticks = sorted.ticks.iter().filter(|(name, ..)| !gone.contains(name)).cloned();
        self.write_ticks(&ticks.collect::<Vec<_>>()).await?;
        self.postpone(&sorted.postponed).await
    }

    async fn write_jobs(
        &mut self,
        step: &Step,
        sorted: &Sorted,
        leases: Vec<(i64, i64)>,
    ) -> Result<()> {
        const REMOVE: &str = "delete from quell.ended where id = any($1)";
        let (mut here, mut back, mut new, mut came) = (vec![], vec![], vec![], vec![]);
        for job in &sorted.jobs {
            match step.jobs.get(&job.id) {
                Some(loaded) if is_same(&loaded.job, job) => {}
                Some(loaded) if loaded.home == Home::Waiting => here.push(&**job),
                Some(_) => back.push(&**job),
                None if job.state.is_ended() => came.push(&**job),
                None => new.push(&**job),
            }
        }
        let lined = Lined::of(step, &sorted.jobs);
        let behind = &lined.written;
        let kept: BTreeSet<JobId> = sorted.jobs.iter().map(|job| job.id).collect();
        let removed: Vec<JobId> =
            sorted.cleared.iter().filter(|id| !kept.contains(id)).copied().collect();
        self.clear_asides(&sorted.cleared, &removed).await?;
        self.put(&here, false, behind).await?;
        self.put(&back, true, behind).await?;
        self.put(&came, true, behind).await?;
        // A window that closes has given up its place before another opens.
        self.insert_new(&new, behind).await?;
        self.line_up(&lined.others).await?;
        if !sorted.removed.is_empty() {
            let ids = crate::load::numbers(&sorted.removed);
            self.run("remove ended jobs", self.sql.query(REMOVE).bind(ids)).await?;
        }
        let ran = |job: &&&Job| {
            let was = step.jobs.get(&job.id).map(|loaded| loaded.job.state);
            was == Some(JobState::Running) && job.state != JobState::Running
        };
        let token =
            |job: &&Job| step.jobs.get(&job.id).map_or(job.token, |loaded| loaded.job.token);
        let mut ended: Vec<Lease> =
            here.iter().filter(ran).map(|job| Lease { job: job.id, token: token(job) }).collect();
        ended.extend(leases.into_iter().map(|(id, draw)| Lease {
            job: JobId::new(unsigned(id)),
            token: LeaseToken::new(unsigned(draw)),
        }));
        ended.extend(&step.expired);
        self.forget_leases(&ended).await
    }

    /// Puts windows behind others. A claim that has just found one of them looks again, as its row
    /// changes.
    async fn line_up(&mut self, behind: &Behind) -> Result<()> {
        const LINE_UP: &str = "update quell.job j set behind = b.behind
               from unnest($1::bigint[], $2::bigint[]) b (id, behind)
              where j.id between b.id and b.id";
        if behind.is_empty() {
            return Ok(());
        }
        let ids = crate::load::numbers(behind.keys());
        let query = self.sql.query(LINE_UP).bind(ids);
        self.run("put windows behind others", query.bind(crate::load::numbers(behind.values())))
            .await
    }

    async fn write_other(&mut self, step: &Step, name: &RowName, row: Option<&Row>) -> Result<()> {
        let is_new = !step.there.contains(name);
        match (name, row) {
            (RowName::Queue(queue), Some(Row::Queue(settings))) => {
                self.write_queue(queue, step.queues.get(queue), settings.as_deref()).await
            }
            (RowName::Task(task), Some(Row::Task(settings))) => {
                self.write_task(task, settings, is_new).await
            }
            (RowName::Worker(worker, incarnation), row) => {
                let row = match row {
                    Some(Row::Worker(row)) => Some(&**row),
                    _ => None,
                };
                self.write_worker((worker, *incarnation), row).await
            }
            (RowName::Alert(alert), row) => {
                let row = match row {
                    Some(Row::Alert(version, state)) => Some((*version, &**state)),
                    _ => None,
                };
                self.write_alert(alert, row, is_new).await
            }
            (RowName::Remarks(of), row) => {
                let remarks = match row {
                    Some(Row::Remarks(remarks)) => Some(remarks),
                    _ => None,
                };
                self.write_remarks(of, remarks).await
            }
            _ => Ok(()),
        }
    }
}

/// Whether a row says the same of two jobs: that one waits for others of its key follows from theirs.
fn is_same(was: &Job, is: &Job) -> bool {
    was == is || (was.waits != is.waits && *was == Job { waits: was.waits, ..is.clone() })
}

/// R10: the closed windows behind which windows wait, as far as the step holds their rows. Claims do not
/// look at those that stand behind another.
#[derive(Debug, Default)]
struct Lined {
    /// Windows that are written.
    written: Behind,
    /// Windows behind one that is written, which are not.
    others: Behind,
}

impl Lined {
    fn of(step: &Step, written: &[Arc<Job>]) -> Self {
        let ids: BTreeSet<JobId> = written.iter().map(|job| job.id).collect();
        let kept = step.jobs.values().map(|loaded| &loaded.job);
        let kept = kept.filter(|job| !ids.contains(&job.id));
        let waiting = kept.chain(written).filter(|job| job.state == JobState::Scheduled);
        let waiting: Vec<(&TaskName, &Key, &Job)> =
            waiting.filter_map(|job| Some((&job.task, job.key.as_ref()?, &**job))).collect();
        let closed = waiting.iter().filter(|(.., job)| job.is_closed_window());
        let closed: BTreeSet<(&TaskName, &Key, JobId)> =
            closed.map(|(task, key, job)| (*task, *key, job.id)).collect();
        let mut lined = Lined::default();
        for (task, key, job) in waiting.iter().filter(|(.., job)| !job.shape.overlap) {
            let mut before = closed.range((*task, *key, JobId::new(0))..(*task, *key, job.id));
            let Some((.., before)) = before.next_back() else { continue };
            if ids.contains(&job.id) {
                lined.written.insert(job.id, *before);
            } else if ids.contains(before) {
                lined.others.insert(job.id, *before);
            }
        }
        lined
    }
}
