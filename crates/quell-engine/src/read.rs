//! What operators read: jobs, their results, how many there are, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_core::alert::{AlertRow, LaneOverview, Overview};
use quell_core::part::TaskKey;
use quell_core::schedule::{RecordedTick, Tick, no_such_schedule};
use quell_core::{
    Counts, DeadFilter, ErrorKind, ExplainTarget, Job, JobFilter, JobId, JobResult, JobState, Key,
    KeyAdvice, Lead, QueueInfo, QueueName, Result, ScheduleName, TaskInfo, TaskName, Timestamp,
    UnreadableJob, UnreadablePage,
};
use tracing::warn;

use crate::backend::{Backend, Entry, Index, Kind, Place, Scan};
use crate::load::PAGE;
use crate::rows::{Row, RowName, SettingsOf};
use crate::step::Step;
use crate::upkeep::job_of;

/// Entries of an index that are read at a time where all are.
const INDEX_PAGE: usize = 1_000;
/// Jobs that are looked through for the newest ones of a task.
const MOST_LOOKED_THROUGH: usize = 2_000;
/// An overview sees the earliest of the jobs that wait for their key.
const MOST_WAITING: usize = 1_000;

impl<B: Backend> Step<'_, B> {
    /// Loads the rows of jobs, of those that are there and can be decoded: one that cannot must not
    /// hide the others.
    pub(crate) async fn load_readable(&mut self, ids: &[JobId]) -> Result<()> {
        match self.load_jobs(ids.iter().copied()).await {
            Err(error) if error.unreadable_job().is_some() => {}
            other => return other,
        }
        for id in ids {
            match self.load_jobs([*id]).await {
                Err(error) if error.unreadable_job().is_some() => {
                    warn!(%error, "row left out");
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// One job.
    pub(crate) async fn job(&mut self, id: JobId) -> Result<Option<Job>> {
        self.load_jobs([id]).await?;
        if let Some(job) = self.rows.jobs.get(&id) {
            return Ok(Some(Job::clone(job)));
        }
        self.load([RowName::Aside(id)]).await?;
        match self.others.get(&RowName::Aside(id)) {
            Some(Row::Aside(aside)) => Err(quell_core::Error::unreadable(id, &aside.reason)),
            _ => Ok(None),
        }
    }

    /// The result of a job, or of the successor that absorbed it (R19).
    pub(crate) async fn result(&mut self, id: JobId) -> Result<Option<JobResult>> {
        let mut id = id;
        loop {
            match self.job(id).await {
                Ok(Some(Job { state: JobState::Absorbed, absorbed_by: Some(by), .. })) => id = by,
                Ok(Some(job)) => return Ok(Some(JobResult::of(&job))),
                Ok(None) => break,
                Err(error) if error.unreadable_job() == Some(id) => {
                    return Ok(Some(JobResult::unreadable(id, &error)));
                }
                Err(error) => return Err(error),
            }
        }
        self.load_names(&[id]).await?;
        let mut of_job = self.rows.records.values().filter(|record| record.job == id);
        let kept = of_job.find_map(|record| record.kept.as_ref());
        Ok(kept.map(|kept| JobResult::kept(id, kept)))
    }

    /// A page of jobs, newest first.
    pub(crate) async fn list(&mut self, filter: &JobFilter) -> Result<Vec<Job>> {
        let finds = self.finds_jobs();
        let index = match filter.state {
            Some(JobState::Running) if !finds => Some(Index::Leases),
            Some(JobState::Dead) if !finds => Some(Index::Dead),
            Some(JobState::Unreadable) => return Ok(Vec::new()),
            Some(_) | None => None,
        };
        let mut page = Vec::new();
        if let Some(index) = index {
            let all = self.scan_all(Scan::first(index, INDEX_PAGE)).await?;
            let mut ids: Vec<JobId> = all.iter().filter_map(job_of).collect();
            ids.sort_unstable_by(|a, b| b.cmp(a));
            ids.retain(|id| filter.before.is_none_or(|before| *id < before));
            for ids in ids.chunks(PAGE) {
                if self
                    .take_matching(ids, &mut page, |job| filter.matches(job), filter.page())
                    .await?
                {
                    break;
                }
            }
            return Ok(page);
        }
        let before = filter.before.map(|before| (Place::NONE, RowName::Job(before)));
        let limit = if finds { filter.page() } else { PAGE };
        let filter_of_scan = finds.then(|| filter.clone());
        let first = Scan::first(Index::Jobs, limit);
        let mut scan = Scan { after: before, filter: filter_of_scan, ..first };
        loop {
            let seen = self.scan_one(scan.clone()).await?;
            let ids: Vec<JobId> = seen.entries.iter().filter_map(job_of).collect();
            let is_full = self
                .take_matching(&ids, &mut page, |job| filter.matches(job), filter.page())
                .await?;
            let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
            match last.filter(|_| seen.more && !is_full) {
                Some(last) => scan.after = Some(last),
                None => return Ok(page),
            }
        }
    }

    /// Fills a page with those of these jobs that match, in this order; says whether it is full.
    async fn take_matching(
        &mut self,
        ids: &[JobId],
        page: &mut Vec<Job>,
        matches: impl Fn(&Job) -> bool,
        size: usize,
    ) -> Result<bool> {
        self.load_readable(ids).await?;
        for id in ids {
            let job = self.rows.jobs.remove(id).filter(|job| matches(job) && page.len() < size);
            page.extend(job.map(Arc::unwrap_or_clone));
        }
        Ok(page.len() >= size)
    }

    /// The lines that there may be.
    pub(crate) async fn all_lines(&mut self) -> Result<Vec<Index>> {
        let (queues, tasks) = (self.queue_names().await?, self.task_names().await?);
        let lines = queues.iter().flat_map(|queue| {
            tasks.iter().map(move |task| Index::Line(queue.clone(), task.clone()))
        });
        Ok(lines.collect())
    }

    async fn queue_names(&mut self) -> Result<Vec<QueueName>> {
        let all = self.scan_all(Scan::first(Index::Rows(Kind::Queues), PAGE)).await?;
        let names = all.into_iter().filter_map(|entry| match entry.name {
            RowName::Queue(queue) => Some(queue),
            _ => None,
        });
        Ok(names.collect())
    }

    async fn task_names(&mut self) -> Result<Vec<TaskName>> {
        let all = self.scan_all(Scan::first(Index::Rows(Kind::Tasks), PAGE)).await?;
        let names = all.into_iter().filter_map(|entry| match entry.name {
            RowName::Task(task) => Some(task),
            _ => None,
        });
        Ok(names.collect())
    }

    /// The queues there are, with their settings.
    pub(crate) async fn queues(&mut self) -> Result<Vec<QueueInfo>> {
        let names = self.queue_names().await?;
        self.load(names.iter().cloned().map(RowName::Queue)).await?;
        self.load_remarks(names.into_iter().map(SettingsOf::Queue)).await?;
        let info = |(name, settings): (&QueueName, &Option<quell_core::QueueSettings>)| {
            Some(QueueInfo { name: name.clone(), settings: settings.clone()? })
        };
        Ok(self.rows.queues.iter().filter_map(info).collect())
    }

    /// The tasks there are, with their settings.
    pub(crate) async fn tasks(&mut self) -> Result<Vec<TaskInfo>> {
        let names = self.task_names().await?;
        self.load(names.into_iter().map(RowName::Task)).await?;
        // Also those that are not paused may have thresholds of an operator (R14).
        let all: Vec<SettingsOf> = self.rows.tasks.keys().cloned().map(SettingsOf::Task).collect();
        self.load_remarks(all).await?;
        let info = |(name, settings): (&TaskName, &quell_core::TaskSettings)| TaskInfo {
            name: name.clone(),
            settings: settings.clone(),
        };
        Ok(self.rows.tasks.iter().map(info).collect())
    }

    /// The settings of these tasks, in this order.
    pub(crate) async fn task_settings(&mut self, names: &[TaskName]) -> Result<Vec<TaskInfo>> {
        self.load(names.iter().cloned().map(RowName::Task)).await?;
        self.load_remarks(names.iter().cloned().map(SettingsOf::Task)).await?;
        let info = |name: &TaskName| TaskInfo {
            name: name.clone(),
            settings: self.rows.tasks.get(name).cloned().unwrap_or_default(),
        };
        Ok(names.iter().map(info).collect())
    }

    /// Loads all settings.
    pub(crate) async fn load_all_settings(&mut self) -> Result<()> {
        let queues = self.queue_names().await?.into_iter().map(RowName::Queue);
        let tasks = self.task_names().await?.into_iter().map(RowName::Task);
        self.load(queues.chain(tasks)).await
    }

    /// Loads all that an explanation contains, and returns what to ask for; none where nothing is known.
    pub(crate) async fn load_story(
        &mut self,
        target: &ExplainTarget,
    ) -> Result<Option<ExplainTarget>> {
        let (id, target) = match target {
            ExplainTarget::Job(id) => (*id, target.clone()),
            ExplainTarget::Trigger(trigger) => (trigger.job, target.clone()),
            ExplainTarget::Key { task, key } => {
                let Some(id) = self.newest_of(task.as_ref(), key).await? else { return Ok(None) };
                (id, ExplainTarget::Job(id))
            }
            ExplainTarget::IdempotencyKey { task, key } => {
                let named = self.named_by(RowName::Record, task.as_ref(), key).await?;
                let Some(id) = named else { return Ok(None) };
                (id, ExplainTarget::Job(id))
            }
            ExplainTarget::DedupKey { task, key } => {
                let named = self.named_by(RowName::Hold, task.as_ref(), key).await?;
                let Some(id) = named else { return Ok(None) };
                (id, ExplainTarget::Job(id))
            }
        };
        self.load_around(&[id]).await?;
        let Some(job) = self.rows.jobs.get(&id) else { return Ok(None) };
        let (task, key) = (job.task.clone(), job.key.clone());
        if let Some(key) = key {
            let jobs = self.keys.get(&(task.clone(), key));
            let open = jobs.and_then(|jobs| jobs.open);
            self.load_jobs(open).await?;
        }
        let named = self.of.get(&id).into_iter().flatten();
        let is_story = |name: &&RowName| matches!(name, RowName::Job(_) | RowName::Tick(..));
        let story: Vec<RowName> =
            named.map(|entry| &entry.name).filter(is_story).cloned().collect();
        self.load(story).await?;
        self.load_newest(&task).await?;
        Ok(Some(target))
    }

    /// The job that a dedup or idempotency key leads to (R16, R19), by the row of the key.
    ///
    /// # Errors
    /// Of kind [`NotFound`](ErrorKind::NotFound) where the job's row was removed;
    /// [`Error::unreadable`](quell_core::Error::unreadable) where it is set aside.
    async fn named_by(
        &mut self,
        row: fn(TaskKey) -> RowName,
        task: Option<&TaskName>,
        key: &Key,
    ) -> Result<Option<JobId>> {
        let tasks = match task {
            Some(task) => vec![task.clone()],
            None => self.task_names().await?,
        };
        self.load(tasks.into_iter().map(|task| row((task, key.clone())))).await?;
        let held = self.rows.holds.values().map(|hold| hold.job);
        let jobs: BTreeSet<JobId> =
            held.chain(self.rows.records.values().map(|record| record.job)).collect();
        self.load_jobs(jobs.iter().copied()).await?;
        let (now, jobs) = (self.now, &self.rows.jobs);
        let job = |id: &JobId| jobs.get(id).map(Arc::as_ref);
        let holds = self.rows.holds.iter();
        let holds = holds.filter_map(|(of, hold)| Lead::of_hold(now, &of.0, hold, job(&hold.job)));
        let records = self
            .rows
            .records
            .iter()
            .filter_map(|(of, record)| Lead::of_record(now, &of.0, record, job(&record.job)));
        match Lead::newest(holds.chain(records)) {
            Err(error) => self.unless_aside(error).await,
            led => led,
        }
    }

    /// The error of a job that is set aside, where that is why the row of a key's job is not there.
    async fn unless_aside(&mut self, error: quell_core::Error) -> Result<Option<JobId>> {
        let held = self.rows.holds.values().map(|hold| hold.job);
        let named: BTreeSet<JobId> =
            held.chain(self.rows.records.values().map(|record| record.job)).collect();
        for id in named {
            self.job(id).await?;
        }
        Err(error)
    }

    /// The newest job of a key.
    async fn newest_of(&mut self, task: Option<&TaskName>, key: &Key) -> Result<Option<JobId>> {
        let tasks = match task {
            Some(task) => vec![task.clone()],
            None => self.task_names().await?,
        };
        let names = tasks.iter().map(|task| RowName::Key((task.clone(), key.clone())));
        self.load(names).await?;
        let newest = self.keys.values().filter_map(|jobs| jobs.newest).max();
        if newest.is_some() && !self.forgets_newest() {
            return Ok(newest);
        }
        // The newest job of all may have been removed before an older one.
        let of_key = |job: &Job| job.key.as_ref() == Some(key) && tasks.contains(&job.task);
        let found = self.newest_where(1, &tasks, of_key).await?;
        Ok(found.first().copied().max(newest))
    }

    /// Loads the newest keyed jobs of a task, so far back as it looks.
    async fn load_newest(&mut self, task: &TaskName) -> Result<()> {
        let sample = usize::try_from(KeyAdvice::SAMPLE).unwrap_or(usize::MAX);
        let is_keyed = |job: &Job| job.task == *task && job.key.is_some();
        self.newest_where(sample, std::slice::from_ref(task), is_keyed).await.map(drop)
    }

    /// The newest jobs of these tasks that have a key and satisfy this; others are not shown to the step.
    async fn newest_where(
        &mut self,
        most: usize,
        tasks: &[TaskName],
        holds: impl Fn(&Job) -> bool,
    ) -> Result<Vec<JobId>> {
        let shown: BTreeSet<JobId> = self.rows.jobs.keys().copied().collect();
        let mut found = Vec::new();
        if let Some(listed) = self.listed(tasks).await? {
            for ids in listed.chunks(PAGE) {
                self.pick(ids, &shown, &mut found, |found, job| found < most && holds(job)).await?;
                if found.len() >= most {
                    break;
                }
            }
            return Ok(found);
        }
        let (mut scan, mut looked) = (Scan::first(Index::Jobs, PAGE), 0_usize);
        loop {
            let seen = self.scan_one(scan.clone()).await?;
            let ids: Vec<JobId> = seen.entries.iter().filter_map(job_of).collect();
            self.pick(&ids, &shown, &mut found, |found, job| found < most && holds(job)).await?;
            looked = looked.saturating_add(ids.len());
            let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
            let goes_on = seen.more && found.len() < most && looked < MOST_LOOKED_THROUGH;
            match last.filter(|_| goes_on) {
                Some(last) => scan.after = Some(last),
                None => return Ok(found),
            }
        }
    }

    /// The newest jobs of these tasks that have a key, the newest first, where the backend lists them.
    async fn listed(&mut self, tasks: &[TaskName]) -> Result<Option<Vec<JobId>>> {
        let sample = usize::try_from(KeyAdvice::SAMPLE).unwrap_or(usize::MAX);
        let mut listed = BTreeSet::new();
        for task in tasks {
            let Some(ids) = self.newest_keyed(task, sample).await? else {
                return Ok(None);
            };
            listed.extend(ids);
        }
        Ok(Some(listed.into_iter().rev().collect()))
    }

    /// Finds those of these jobs that are meant, by how many were found before; the others are hidden again
    /// unless they were `shown`.
    async fn pick(
        &mut self,
        ids: &[JobId],
        shown: &BTreeSet<JobId>,
        found: &mut Vec<JobId>,
        is_meant: impl Fn(usize, &Job) -> bool,
    ) -> Result<()> {
        self.load_readable(ids).await?;
        for id in ids {
            if self.rows.jobs.get(id).is_some_and(|job| is_meant(found.len(), job)) {
                found.push(*id);
            } else if !shown.contains(id) {
                self.hide_job(*id);
            }
        }
        Ok(())
    }

    /// R27: what alerts look at.
    pub(crate) async fn overview(&mut self) -> Result<Overview> {
        let mut lanes = Lanes::default();
        for index in self.all_lines().await? {
            if let (Some(due), Index::Line(queue, task)) = (self.first_due(&index).await?, index) {
                lanes.of(queue, task).note_due(due);
            }
        }
        let waiting = self.scan_one(Scan::first(Index::Waiting, MOST_WAITING)).await?;
        for Entry { place, note, .. } in waiting.entries {
            if let Some(note) = note {
                lanes.of(note.queue, note.task).note_due(place.at);
            }
        }
        let dead = self.counts().await?.into_iter().filter(|of| of.state == JobState::Dead);
        for Counts { queue, task, jobs, .. } in dead {
            lanes.of(queue, task).0.dead = jobs;
        }
        let mut unreadable = 0_u64;
        for entry in self.scan_all(Scan::first(Index::Unreadable, PAGE)).await? {
            unreadable = unreadable.saturating_add(1);
            let Some(note) = entry.note else { continue };
            let lane = lanes.of(note.queue, note.task);
            lane.0.unreadable = lane.0.unreadable.saturating_add(1);
        }
        let lanes = lanes.0.into_values().map(|lane| lane.0).collect();
        Ok(Overview { now: self.now, lanes, unreadable })
    }

    /// When the first job of a line is due, of any priority.
    async fn first_due(&mut self, line: &Index) -> Result<Option<Timestamp>> {
        let (mut first, mut scan) = (None, Scan::first(line.clone(), 1));
        loop {
            let seen = self.scan_one(scan.clone()).await?;
            let Some(Place { rank, at }) = seen.entries.first().map(|entry| entry.place) else {
                return Ok(first);
            };
            first = Some(first.map_or(at, |first: Timestamp| first.min(at)));
            let end = Place { rank, at: Timestamp::MAX };
            scan.after = Some((end, RowName::Job(JobId::new(u64::MAX))));
        }
    }

    /// The alerts there are, by name.
    pub(crate) async fn alerts(&mut self) -> Result<Vec<AlertRow>> {
        let all = self.scan_all(Scan::first(Index::Rows(Kind::Alerts), PAGE)).await?;
        let names: Vec<RowName> = all.into_iter().map(|entry| entry.name).collect();
        self.load(names.iter().cloned()).await?;
        let row = |name: &RowName| match (name, self.others.get(name)) {
            (RowName::Alert(name), Some(Row::Alert(version, state))) => {
                let (name, state) = (name.clone(), (**state).clone());
                Some(AlertRow { name, version: *version, state })
            }
            _ => None,
        };
        let mut rows: Vec<AlertRow> = names.iter().filter_map(row).collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    /// Loads all schedules that can be decoded.
    pub(crate) async fn load_all_schedules(&mut self) -> Result<()> {
        let all = self.scan_all(Scan::first(Index::Rows(Kind::Schedules), PAGE)).await?;
        for name in all.into_iter().map(|entry| entry.name) {
            match self.load([name]).await {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    warn!(%error, "schedule left out of a list");
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Walks the dead, the last death first, until `take` has enough.
    pub(crate) async fn walk_dead(
        &mut self,
        filter: &DeadFilter,
        mut take: impl FnMut(Job) -> bool,
    ) -> Result<()> {
        let before = filter.before.map(|place| place.died_at);
        let to = before.into_iter().chain(filter.died_before).min();
        // A page is mostly found among the first ones.
        let limit = filter.page().min(PAGE);
        let mut scan = Scan { from: filter.died_after, to, ..Scan::first(Index::Dead, limit) };
        loop {
            let seen = self.scan_one(scan.clone()).await?;
            let may_match = seen.entries.iter().filter(|entry| may_match(filter, entry));
            let ids: Vec<JobId> = may_match.filter_map(job_of).collect();
            self.load_readable(&ids).await?;
            for id in ids {
                let job = self.rows.jobs.remove(&id).filter(|job| filter.matches(job));
                if job.is_some_and(|job| !take(Arc::unwrap_or_clone(job))) {
                    return Ok(());
                }
            }
            scan.limit = scan.limit.saturating_mul(2).min(PAGE);
            let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
            match last.filter(|_| seen.more) {
                Some(last) => scan.after = Some(last),
                None => return Ok(()),
            }
        }
    }

    /// The first ticks of a schedule that are on record in this time.
    pub(crate) async fn ticks(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<RecordedTick>> {
        self.load_schedules([name.clone()]).await?;
        if !self.rows.schedules.contains_key(name) {
            return Err(no_such_schedule(name));
        }
        let most = limit.min(RecordedTick::MAX_PAGE);
        self.load_first_ticks(name, from, to, most).await?;
        let has_causes = self.backend.keeps_causes_of_ticks();
        let recorded = |tick: &Tick| match has_causes {
            true => tick.into(),
            false => RecordedTick { tick: tick.tick, by: None, job: None },
        };
        // A backend that keeps spans answers with all of a range.
        Ok(self.rows.ticks.values().map(recorded).take(most).collect())
    }

    /// How many dead jobs match a filter, whatever page it asks for. Only for a text in errors are their
    /// rows read.
    pub(crate) async fn count_dead(&mut self, filter: &DeadFilter) -> Result<u64> {
        let filter = &DeadFilter { before: None, ..filter.clone() };
        let mut count = 0_u64;
        if filter.error.is_some() {
            self.walk_dead(filter, |_| {
                count = count.saturating_add(1);
                true
            })
            .await?;
            return Ok(count);
        }
        if filter.died_after.is_none() && filter.died_before.is_none() {
            let is_of = |of: &&Counts| {
                of.state == JobState::Dead
                    && filter.task.as_ref().is_none_or(|task| *task == of.task)
                    && filter.queue.as_ref().is_none_or(|queue| *queue == of.queue)
            };
            return Ok(self.counts().await?.iter().filter(is_of).map(|of| of.jobs).sum());
        }
        let first = Scan::first(Index::Dead, PAGE);
        let all = Scan { from: filter.died_after, to: filter.died_before, ..first };
        let died = self.scan_all(all).await?;
        let of_some = filter.task.is_some() || filter.queue.is_some();
        if of_some && died.iter().any(|entry| entry.note.is_none()) {
            // Only their rows have their queues and tasks.
            self.walk_dead(filter, |_| {
                count = count.saturating_add(1);
                true
            })
            .await?;
            return Ok(count);
        }
        let is_before = |entry: &&Entry| filter.died_before.is_none_or(|at| entry.place.at < at);
        let matching = died.iter().filter(|entry| may_match(filter, entry)).filter(is_before);
        Ok(u64::try_from(matching.count()).unwrap_or(u64::MAX))
    }

    /// A page of jobs that are set aside, newest first.
    pub(crate) async fn unreadable(&mut self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        let after = page.before.map(|id| (Place::NONE, RowName::Job(id)));
        let scan = Scan { after, ..Scan::first(Index::Unreadable, page.size()) };
        let seen = self.scan_one(scan).await?;
        let ids: Vec<JobId> = seen.entries.iter().filter_map(job_of).collect();
        self.load(ids.iter().map(|id| RowName::Aside(*id))).await?;
        let of = |id: JobId| match self.others.get(&RowName::Aside(id)) {
            Some(Row::Aside(aside)) => Some((**aside).clone()),
            _ => None,
        };
        Ok(ids.into_iter().filter_map(of).collect())
    }
}

/// Whether a dead job may match a filter, by what the index says of it.
fn may_match(filter: &DeadFilter, entry: &Entry) -> bool {
    entry.note.as_ref().is_none_or(|note| {
        filter.task.as_ref().is_none_or(|task| *task == note.task)
            && filter.queue.as_ref().is_none_or(|queue| *queue == note.queue)
    })
}

/// What alerts look at, by queue and task.
#[derive(Default)]
struct Lanes(BTreeMap<(QueueName, TaskName), Lane>);

struct Lane(LaneOverview);

impl Lanes {
    fn of(&mut self, queue: QueueName, task: TaskName) -> &mut Lane {
        let names = (queue.clone(), task.clone());
        let empty = LaneOverview { queue, task, dead: 0, unreadable: 0, first_due: None };
        self.0.entry(names).or_insert(Lane(empty))
    }
}

impl Lane {
    fn note_due(&mut self, due: Timestamp) {
        let first = self.0.first_due;
        self.0.first_due = Some(first.map_or(due, |first| first.min(due)));
    }
}
