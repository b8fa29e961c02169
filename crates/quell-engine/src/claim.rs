//! Who comes next, and starting it (R11, R28, R30, R31, R33).
//!
//! A queue has a line for each task and priority. A look reads its first page; what it lacks is
//! read when it is needed. A job whose partition is full is passed over. Partitions of strict order
//! are in `turns`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quell_core::edge::Edge;
use quell_core::limit::{PartitionUsed, Used};
use quell_core::part::{Rows, TaskKey};
use quell_core::{
    Claim, Claimed, JobId, Key, NextDue, QueueName, QueueSettings, Result, TaskName, Timestamp,
    WorkerId,
};

use crate::backend::{Backend, Entry, Index, Kind, Lanes, Place, Scan, Seen, Time};
use crate::changes::key_of;
use crate::engine::Engine;
use crate::load::PAGE;
use crate::rows::{GATES, Row, RowName};
use crate::step::Step;

/// A job in line.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) task: TaskName,
    pub(crate) place: Place,
    pub(crate) due: Timestamp,
    pub(crate) id: JobId,
    pub(crate) partition: Option<Key>,
}

/// The jobs of one priority, as far as they were read.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) task: TaskName,
    pub(crate) priority: i16,
    /// Which of them it has.
    pub(crate) lanes: Lanes,
    pub(crate) entries: VecDeque<Found>,
    /// The last one that was read, where there may be more.
    pub(crate) more: Option<(Place, RowName)>,
}

/// The outcome of a claim's step.
#[derive(Debug)]
pub(crate) enum Started {
    /// It started these jobs.
    Claimed(Claimed),
    /// It started none, and took out of the line what was set aside.
    Swept,
}

/// A queue as a worker sees it.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) queue: QueueName,
    /// The gate that a claim goes through.
    gate: Option<u8>,
    pub(crate) settings: QueueSettings,
    used: Used,
    /// When the queue's rate lets the next one start.
    free_at: Timestamp,
    pub(crate) partitions: BTreeMap<Key, PartitionUsed>,
    expiry: Option<Timestamp>,
    pub(crate) lines: Vec<Line>,
    /// Jobs that were passed over.
    passed: Vec<Found>,
    /// Jobs that have started before and are next in their partitions (R41).
    pub(crate) begun: BTreeSet<JobId>,
    /// Those of them that hold up others.
    pub(crate) suspects: Vec<Found>,
}

impl View {
    fn used_of(&self, found: &Found) -> PartitionUsed {
        let used = found.partition.as_ref().and_then(|name| self.partitions.get(name));
        used.copied().unwrap_or_default()
    }

    pub(crate) fn has_room(&self, found: &Found) -> bool {
        found.partition.is_none() || self.settings.partition_room(&self.used_of(found)) > 0
    }

    /// Those of the chosen jobs that have started before, and now and then some that hold up others.
    fn some_begun(&self, chosen: &[Found]) -> Vec<Found> {
        const SOME: usize = 4;
        let has_begun = |found: &&Found| self.begun.contains(&found.id);
        let mut some: Vec<Found> = chosen.iter().filter(has_begun).cloned().collect();
        if chosen.is_empty() || fastrand::u8(..16) == 0 {
            some.extend(fastrand::choose_multiple(self.suspects.iter().cloned(), SOME));
        }
        some
    }

    /// Counts what its rates have let start, from the logs in these rows.
    fn count_rates(&mut self, rows: &Rows, now: Timestamp) {
        for ((queue, partition), log) in &rows.starts {
            if *queue != self.queue {
                continue;
            }
            match (partition, self.settings.rate, self.settings.partition_rate) {
                (None, Some(rate), _) => {
                    self.used.recent = log.recent(&rate, now);
                    self.free_at = log.free_at(&rate, now);
                }
                (Some(partition), _, Some(rate)) => {
                    let used = self.partitions.entry(partition.clone()).or_default();
                    used.recent = log.recent(&rate, now);
                    used.free_at = log.free_at(&rate, now);
                }
                (None | Some(_), _, _) => {}
            }
        }
    }
}

impl<B: Backend> Engine<B> {
    /// Whether a queue hands out nothing until its settings change: it is paused, or was deleted (R32).
    ///
    /// # Errors
    /// As those of [`Store`](quell_core::Store), also where the settings cannot be decoded.
    pub async fn is_paused(&self, queue: &QueueName) -> Result<bool> {
        let mut step = self.reading(Time::Last).await?;
        step.load([RowName::Queue(queue.clone())]).await?;
        let found = step.rows.queues.get(queue);
        Ok(found.is_some_and(|found| found.as_ref().is_none_or(|settings| settings.paused)))
    }
}

impl<B: Backend> Step<'_, B> {
    /// Looks at a queue for those who know these tasks and want this many jobs.
    pub(crate) async fn look_at(
        &mut self,
        queue: &QueueName,
        tasks: &[TaskName],
        worker: Option<&WorkerId>,
        limit: usize,
    ) -> Result<View> {
        // Before the settings: so a claim meets a change of them that it does not see.
        let gate = worker.map(|_| fastrand::u8(..GATES));
        self.load(gate.map(RowName::Gate)).await?;
        let mut names = vec![RowName::Queue(queue.clone()), RowName::Starts(queue.clone(), None)];
        names.extend(tasks.iter().cloned().map(RowName::Task));
        names.extend(worker.map(|_| RowName::Turn(queue.clone())));
        self.load(names).await?;
        let settings = match self.rows.queues.get(queue) {
            Some(Some(settings)) => settings.clone(),
            // One that was deleted hands out nothing (R32).
            Some(None) => QueueSettings { paused: true, ..QueueSettings::default() },
            None => QueueSettings::default(),
        };
        let mut view = View {
            queue: queue.clone(),
            gate,
            settings,
            used: Used::default(),
            free_at: Timestamp::MIN,
            partitions: BTreeMap::new(),
            expiry: None,
            lines: Vec::new(),
            passed: Vec::new(),
            begun: BTreeSet::new(),
            suspects: Vec::new(),
        };
        self.count_running(&mut view, worker).await?;
        if view.settings.partition_rate.is_some() {
            self.load_starts(queue).await?;
        }
        view.count_rates(&self.rows, self.now);
        let paused = |task: &&TaskName| self.rows.tasks.get(*task).is_some_and(|task| task.paused);
        let tasks: BTreeSet<TaskName> =
            tasks.iter().filter(|task| !paused(task)).cloned().collect();
        if view.settings.is_strict() {
            self.read_turns(&mut view, &tasks, limit).await?;
        } else {
            view.lines = self.lines_of(queue, tasks, (Lanes::All, self.page())).await?;
        }
        Ok(view)
    }

    /// Meets all claims in flight, which have read settings that change now (R31, R33): nothing starts by
    /// them any more.
    pub(crate) fn close_gates(&mut self) {
        for gate in 0..GATES {
            self.beside.put(RowName::Gate(gate), Row::Gate(fastrand::u64(..)));
        }
    }

    /// Meets claims in flight where this job is about to be next in its partition (R41).
    pub(crate) fn meet_claims(&mut self, id: JobId) {
        let queue = self.rows.jobs.get(&id).map(|job| &job.queue);
        let settings = queue.and_then(|queue| self.rows.queues.get(queue)?.as_ref());
        if settings.is_some_and(QueueSettings::is_strict) {
            self.close_gates();
        }
    }

    /// What runs, as far as the limits of the queue count it, and the earliest end of a lease.
    async fn count_running(&mut self, view: &mut View, worker: Option<&WorkerId>) -> Result<()> {
        if !view.settings.limits_concurrency() {
            let first = self.scan_one(Scan::first(Index::Leases, 1)).await?;
            view.expiry = first.entries.first().map(|entry| entry.place.at);
            return Ok(());
        }
        if let Some(running) = self.running(&view.queue, worker).await? {
            let first = self.scan_one(Scan::first(Index::Leases, 1)).await?;
            view.expiry = first.entries.first().map(|entry| entry.place.at);
            (view.used.running, view.used.by_worker) = (running.all, running.by_worker);
            for (partition, count) in running.by_partition {
                view.partitions.entry(partition).or_default().running = count;
            }
            return Ok(());
        }
        let leases = self.scan_all(Scan::first(Index::Leases, PAGE)).await?;
        view.expiry = leases.first().map(|entry| entry.place.at);
        for note in leases.into_iter().filter_map(|entry| entry.note) {
            if note.queue != view.queue {
                continue;
            }
            view.used.running = view.used.running.saturating_add(1);
            if worker.is_some() && note.worker.as_ref() == worker {
                view.used.by_worker = view.used.by_worker.saturating_add(1);
            }
            if let Some(partition) = note.partition {
                let used = view.partitions.entry(partition).or_default();
                used.running = used.running.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Reads the first page of each line of these tasks, the highest priority first.
    pub(crate) async fn lines_of(
        &mut self,
        queue: &QueueName,
        tasks: BTreeSet<TaskName>,
        (lanes, page): (Lanes, usize),
    ) -> Result<Vec<Line>> {
        let first = |task: &TaskName| {
            let line = Index::Line(queue.clone(), task.clone());
            Scan { lanes, ..Scan::first(line, page) }
        };
        let mut asked: Vec<(TaskName, Scan)> =
            tasks.into_iter().map(|task| (task.clone(), first(&task))).collect();
        let mut lines = Vec::new();
        while !asked.is_empty() {
            let scans: Vec<Scan> = asked.iter().map(|(_, scan)| scan.clone()).collect();
            let seen = self.scan(&scans).await?;
            let mut next = Vec::new();
            for ((task, scan), seen) in asked.into_iter().zip(seen) {
                let lowest = seen.entries.last().map(|entry| entry.place.rank);
                let more = add_page(&mut lines, &task, lanes, seen);
                let Some(lowest) = more.then_some(lowest).flatten() else { continue };
                // There may be lines of lower priorities behind the rest of this one.
                let end = Place { rank: lowest, at: Timestamp::MAX };
                let after = Some((end, RowName::Job(JobId::new(u64::MAX))));
                next.push((task, Scan { after, ..scan }));
            }
            asked = next;
        }
        lines.sort_by_key(|line| Reverse(line.priority));
        Ok(lines)
    }

    /// Reads the next page of a line that has been used up, if there is one.
    pub(crate) async fn refill(
        &mut self,
        queue: &QueueName,
        line: &mut Line,
        page: usize,
    ) -> Result<()> {
        while line.entries.is_empty()
            && let Some(after) = line.more.take()
        {
            let index = Index::Line(queue.clone(), line.task.clone());
            let first = Scan::first(index, page);
            let scan = Scan { after: Some(after), lanes: line.lanes, ..first };
            let seen = self.scan_one(scan).await?;
            let rank = Reverse(line.priority);
            let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
            line.more = last.filter(|(place, _)| seen.more && place.rank == rank);
            let (task, lanes) = (line.task.clone(), line.lanes);
            let same = seen.entries.into_iter().take_while(|entry| entry.place.rank == rank);
            let meant = same.filter(|entry| lanes.takes(entry.note.as_ref()));
            line.entries.extend(meant.filter_map(|entry| found(&task, entry)));
        }
        Ok(())
    }

    /// The next jobs that may start, at most `limit`, in the order of R30.
    async fn choose(&mut self, view: &mut View, limit: usize) -> Result<Vec<Found>> {
        let room = limit.min(view.settings.room(&view.used));
        let mut chosen = Vec::new();
        let priorities: BTreeSet<Reverse<i16>> =
            view.lines.iter().map(|line| Reverse(line.priority)).collect();
        for Reverse(priority) in priorities {
            while chosen.len() < room {
                let mut first: Option<(Timestamp, JobId, usize)> = None;
                for line in 0..view.lines.len() {
                    if view.lines.get(line).is_none_or(|line| line.priority != priority) {
                        continue;
                    }
                    let Some(of_line) = view.lines.get_mut(line) else { continue };
                    self.refill(&view.queue, of_line, self.page()).await?;
                    let head = of_line.entries.front().filter(|head| head.due <= self.now);
                    let Some(head) = head else { continue };
                    let head = (head.due, head.id, line);
                    first = Some(first.map_or(head, |first| first.min(head)));
                }
                let Some((_, _, line)) = first else { break };
                let Some(next) = view.lines.get_mut(line).and_then(|line| line.entries.pop_front())
                else {
                    break;
                };
                if !view.has_room(&next) {
                    view.passed.push(next);
                    continue;
                }
                if let Some(partition) = next.partition.clone() {
                    let used = view.partitions.entry(partition).or_default();
                    used.running = used.running.saturating_add(1);
                    used.recent = used.recent.saturating_add(1);
                }
                chosen.push(next);
            }
        }
        Ok(chosen)
    }

    /// When something will be to do for the worker that has this view.
    pub(crate) async fn next_of(&mut self, view: &mut View) -> Result<NextDue> {
        let mut due: Option<Timestamp> = None;
        let sooner =
            |due: Option<Timestamp>, at: Timestamp| Some(due.map_or(at, |due| due.min(at)));
        for passed in &view.passed {
            if let Some(at) = view.settings.partition_start(passed.due, &view.used_of(passed)) {
                due = sooner(due, at);
            }
        }
        for line in 0..view.lines.len() {
            // In the order of their due times: behind one that nothing keeps back none is sooner.
            while let Some(of_line) = view.lines.get_mut(line) {
                self.refill(&view.queue, of_line, self.page()).await?;
                let Some(head) = of_line.entries.pop_front() else { break };
                let start = view.settings.partition_start(head.due, &view.used_of(&head));
                if let Some(at) = start {
                    due = sooner(due, at);
                }
                if start == Some(head.due) || due.is_some_and(|due| due <= head.due) {
                    break;
                }
            }
        }
        let due = due.map(|due| due.max(view.free_at));
        Ok(NextDue { now: self.now, due, expiry: view.expiry })
    }

    /// The answer to a claim that has nothing to start; none where it may have, or something is to be
    /// put right.
    pub(crate) async fn nothing_to_start(&mut self, claim: &Claim) -> Result<Option<Claimed>> {
        let worker = Some(&claim.worker);
        let mut view = self.look_at(&claim.queue, &claim.tasks, worker, claim.limit).await?;
        let is_suspect = !view.suspects.is_empty() && fastrand::u8(..16) == 0;
        if is_suspect || !self.choose(&mut view, claim.limit).await?.is_empty() {
            return Ok(None);
        }
        let (rated, next) = (view.settings.limits_rate(), self.next_of(&mut view).await?);
        Ok(Some(Claimed { now: self.now, jobs: Vec::new(), next, rated }))
    }

    /// Starts at most as many due jobs as asked for. None where what was read does not fit together.
    pub(crate) async fn start(&mut self, claim: &Claim) -> Result<Option<Started>> {
        let worker = Some(&claim.worker);
        let mut view = self.look_at(&claim.queue, &claim.tasks, worker, claim.limit).await?;
        let rated = view.settings.limits_rate();
        let chosen = self.choose(&mut view, claim.limit).await?;
        if view.settings.is_strict() && self.mends(claim, &view, &chosen).await? {
            return Ok(Some(Started::Swept));
        }
        let mut jobs = Vec::new();
        if !chosen.is_empty() {
            let ids: Vec<JobId> = chosen.iter().map(|found| found.id).collect();
            self.load_jobs(ids.iter().copied()).await?;
            let index = |found: &Found| Index::Line(claim.queue.clone(), found.task.clone());
            let mut places: Vec<(Index, Place, JobId)> =
                chosen.iter().map(|found| (index(found), found.place, found.id)).collect();
            if view.settings.is_strict() {
                let begun =
                    |found: &Found| (Index::Begun(claim.queue.clone()), found.place, found.id);
                places.extend(chosen.iter().map(begun));
            }
            if self.sweep(places).await? {
                return Ok(Some(Started::Swept));
            }
            if !self.load_chosen(claim, &chosen, &ids).await? {
                return Ok(None);
            }
            let Some(started) = self.take(|part| part.start(claim, &ids)) else { return Ok(None) };
            jobs = started;
            if let Some(gate) = view.gate {
                self.beside.put(RowName::Gate(gate), Row::Gate(fastrand::u64(..)));
            }
            if view.settings.limits_concurrency() {
                let turn = fastrand::u64(..);
                self.beside.put(RowName::Turn(claim.queue.clone()), Row::Turn(turn));
            }
            let until = jobs.iter().map(|job| job.lease_until).min();
            view.expiry = view.expiry.into_iter().chain(until).min();
            if let Some(rows) = self.after() {
                view.count_rates(rows, self.now);
            }
        }
        let next = self.next_of(&mut view).await?;
        Ok(Some(Started::Claimed(Claimed { now: self.now, jobs, next, rated })))
    }

    /// Whether entries of jobs that have started before were put right: of those that were chosen, and some
    /// that hold up others, now and then.
    async fn mends(&mut self, claim: &Claim, view: &View, chosen: &[Found]) -> Result<bool> {
        let some = view.some_begun(chosen);
        if some.is_empty() {
            return Ok(false);
        }
        self.mend_begun(&claim.queue, some).await
    }

    /// Loads the jobs that were chosen, if they are still next.
    async fn load_chosen(
        &mut self,
        claim: &Claim,
        chosen: &[Found],
        ids: &[JobId],
    ) -> Result<bool> {
        let may_start = |found: &Found| {
            let job = self.rows.jobs.get(&found.id);
            let job = job.filter(|job| job.may_start(self.now) && job.queue == claim.queue);
            job.is_some_and(|job| job.partition == found.partition)
        };
        if !chosen.iter().all(may_start) {
            return Ok(false);
        }
        let keys: BTreeSet<TaskKey> =
            self.rows.jobs.values().filter_map(|job| key_of(job)).collect();
        // R13: a throttled key remembers its starts.
        let throttled = self.rows.jobs.values().filter(|job| job.shape.edge == Edge::Throttle);
        let memories: Vec<RowName> =
            throttled.filter_map(|job| key_of(job)).map(RowName::Memory).collect();
        self.load(keys.iter().cloned().map(RowName::Key).chain(memories)).await?;
        self.load_firsts(&keys, &ids.iter().copied().collect()).await?;
        self.load_settings_of_jobs().await?;
        let partitions: BTreeSet<Key> =
            chosen.iter().filter_map(|found| found.partition.clone()).collect();
        let starts =
            partitions.into_iter().map(|name| RowName::Starts(claim.queue.clone(), Some(name)));
        let unread: Vec<RowName> = starts.filter(|name| !self.has_loaded(name)).collect();
        let before = self.rows.starts.len();
        self.load(unread).await?;
        // A log that came into being after the logs were counted lets fewer start.
        let counts = self.rows.queues.get(&claim.queue).and_then(Option::as_ref);
        let is_rated = counts.is_some_and(|settings| settings.partition_rate.is_some());
        Ok(!is_rated || self.rows.starts.len() == before)
    }

    /// Loads the logs of starts of a queue and all its partitions.
    pub(crate) async fn load_starts(&mut self, queue: &QueueName) -> Result<()> {
        let all = Scan::first(Index::Rows(Kind::Starts), PAGE);
        let logs = self.scan_all(all).await?.into_iter().map(|entry| entry.name);
        let of_queue = |name: &RowName| matches!(name, RowName::Starts(of, _) if of == queue);
        self.load(logs.filter(of_queue)).await
    }
}

/// Takes a page of the lines of a task in; says whether there may be more of them.
fn add_page(lines: &mut Vec<Line>, task: &TaskName, lanes: Lanes, seen: Seen) -> bool {
    let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
    for entry in seen.entries {
        let Reverse(priority) = entry.place.rank;
        if lines.last().is_none_or(|line| line.task != *task || line.priority != priority) {
            let (task, entries) = (task.clone(), VecDeque::new());
            lines.push(Line { task, priority, lanes, entries, more: None });
        }
        let is_meant = lanes.takes(entry.note.as_ref());
        let found = found(task, entry).filter(|_| is_meant);
        if let Some(line) = lines.last_mut() {
            line.entries.extend(found);
        }
    }
    // Of all lines but the last, the page has everything. One without entries is of no line.
    if let Some(last) = last
        && let Some(line) = lines.last_mut().filter(|line| line.task == *task)
    {
        line.more = seen.more.then_some(last);
    }
    seen.more
}

pub(crate) fn found(task: &TaskName, entry: Entry) -> Option<Found> {
    let RowName::Job(id) = entry.name else { return None };
    let partition = entry.note.and_then(|note| note.partition);
    Some(Found { task: task.clone(), place: entry.place, due: entry.place.at, id, partition })
}
