//! Who comes next, and starting it (R11, R28, R30, R31, R33).
//!
//! A queue has a line for each task and priority. A look reads its first page; what it lacks is
//! read when it is needed. A job whose partition is full is passed over.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quell_core::edge::Edge;
use quell_core::limit::{PartitionUsed, Used};
use quell_core::part::{Rows, TaskKey};
use quell_core::{
    Claim, Claimed, JobId, Key, NextDue, QueueName, QueueSettings, Result, TaskName, Timestamp,
    WorkerId,
};

use crate::backend::{Backend, Entry, Index, Kind, Place, Scan, Seen, Time};
use crate::changes::key_of;
use crate::engine::Engine;
use crate::load::PAGE;
use crate::rows::{GATES, Row, RowName};
use crate::step::Step;

/// A job in line.
#[derive(Clone, Debug)]
struct Found {
    task: TaskName,
    place: Place,
    due: Timestamp,
    id: JobId,
    partition: Option<Key>,
}

/// The jobs of one task and priority, as far as they were read.
#[derive(Debug)]
struct Line {
    task: TaskName,
    priority: i16,
    entries: VecDeque<Found>,
    /// The last one that was read, where there may be more.
    more: Option<(Place, RowName)>,
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
    queue: QueueName,
    /// The gate that a claim goes through.
    gate: Option<u8>,
    settings: QueueSettings,
    used: Used,
    /// When the queue's rate lets the next one start.
    free_at: Timestamp,
    partitions: BTreeMap<Key, PartitionUsed>,
    expiry: Option<Timestamp>,
    lines: Vec<Line>,
    /// Jobs that were passed over.
    passed: Vec<Found>,
}

impl View {
    fn used_of(&self, found: &Found) -> PartitionUsed {
        let used = found.partition.as_ref().and_then(|name| self.partitions.get(name));
        used.copied().unwrap_or_default()
    }

    fn has_room(&self, found: &Found) -> bool {
        found.partition.is_none() || self.settings.partition_room(&self.used_of(found)) > 0
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
    /// Looks at a queue for those who know these tasks.
    pub(crate) async fn look_at(
        &mut self,
        queue: &QueueName,
        tasks: &[TaskName],
        worker: Option<&WorkerId>,
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
        };
        self.count_running(&mut view, worker).await?;
        if view.settings.partition_rate.is_some() {
            self.load_starts(queue).await?;
        }
        view.count_rates(&self.rows, self.now);
        let paused = |task: &&TaskName| self.rows.tasks.get(*task).is_some_and(|task| task.paused);
        let tasks: BTreeSet<TaskName> =
            tasks.iter().filter(|task| !paused(task)).cloned().collect();
        self.read_lines(&mut view, tasks).await?;
        Ok(view)
    }

    /// Meets all claims in flight, which have read settings that change now (R31, R33): nothing starts by
    /// them any more.
    pub(crate) fn close_gates(&mut self) {
        for gate in 0..GATES {
            self.beside.put(RowName::Gate(gate), Row::Gate(fastrand::u64(..)));
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

    /// Reads the first page of each line of these tasks.
    async fn read_lines(&mut self, view: &mut View, tasks: BTreeSet<TaskName>) -> Result<()> {
        let page = self.page();
        let line = |task: &TaskName| Index::Line(view.queue.clone(), task.clone());
        let mut asked: Vec<(TaskName, Scan)> =
            tasks.into_iter().map(|task| (task.clone(), Scan::first(line(&task), page))).collect();
        while !asked.is_empty() {
            let scans: Vec<Scan> = asked.iter().map(|(_, scan)| scan.clone()).collect();
            let seen = self.scan(&scans).await?;
            let mut next = Vec::new();
            for ((task, scan), seen) in asked.into_iter().zip(seen) {
                let lowest = seen.entries.last().map(|entry| entry.place.rank);
                let Some(lowest) = view.add(&task, seen).then_some(lowest).flatten() else {
                    continue;
                };
                // There may be lines of lower priorities behind the rest of this one.
                let end = Place { rank: lowest, at: Timestamp::MAX };
                let after = Some((end, RowName::Job(JobId::new(u64::MAX))));
                next.push((task, Scan { after, ..scan }));
            }
            asked = next;
        }
        view.lines.sort_by_key(|line| Reverse(line.priority));
        Ok(())
    }

    /// Reads the next page of a line that has been used up, if there is one.
    async fn refill(&mut self, view: &mut View, line: usize) -> Result<()> {
        let Some(line) = view.lines.get_mut(line) else { return Ok(()) };
        while line.entries.is_empty()
            && let Some(after) = line.more.take()
        {
            let index = Index::Line(view.queue.clone(), line.task.clone());
            let scan = Scan { after: Some(after), ..Scan::first(index, self.page()) };
            let seen = self.scan_one(scan).await?;
            let rank = Reverse(line.priority);
            let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
            line.more = last.filter(|(place, _)| seen.more && place.rank == rank);
            let same = seen.entries.into_iter().take_while(|entry| entry.place.rank == rank);
            let task = line.task.clone();
            line.entries.extend(same.filter_map(|entry| found(&task, entry)));
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
                    self.refill(view, line).await?;
                    let head = view.lines.get(line).and_then(|line| line.entries.front());
                    let Some(head) = head.filter(|head| head.due <= self.now) else { continue };
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
            loop {
                self.refill(view, line).await?;
                let Some(head) = view.lines.get_mut(line).and_then(|line| line.entries.pop_front())
                else {
                    break;
                };
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

    /// Starts at most as many due jobs as asked for. None where what was read does not fit together.
    pub(crate) async fn start(&mut self, claim: &Claim) -> Result<Option<Started>> {
        let mut view = self.look_at(&claim.queue, &claim.tasks, Some(&claim.worker)).await?;
        let rated = view.settings.limits_rate();
        let chosen = self.choose(&mut view, claim.limit).await?;
        let mut jobs = Vec::new();
        if !chosen.is_empty() {
            let ids: Vec<JobId> = chosen.iter().map(|found| found.id).collect();
            self.load_jobs(ids.iter().copied()).await?;
            let index = |found: &Found| Index::Line(claim.queue.clone(), found.task.clone());
            let places = chosen.iter().map(|found| (index(found), found.place, found.id));
            if self.sweep(places.collect()).await? {
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

impl View {
    /// Takes in a page of the lines of a task; says whether there may be more of them.
    fn add(&mut self, task: &TaskName, seen: Seen) -> bool {
        let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
        for entry in seen.entries {
            let Reverse(priority) = entry.place.rank;
            let Some(found) = found(task, entry) else { continue };
            match self.lines.last_mut() {
                Some(line) if line.task == *task && line.priority == priority => {
                    line.entries.push_back(found);
                }
                Some(_) | None => {
                    let (task, entries) = (task.clone(), [found].into());
                    self.lines.push(Line { task, priority, entries, more: None });
                }
            }
        }
        // Of all lines but the last, the page has everything. One without entries is of no line.
        if let Some(last) = last
            && let Some(line) = self.lines.last_mut().filter(|line| line.task == *task)
        {
            line.more = seen.more.then_some(last);
        }
        seen.more
    }
}

fn found(task: &TaskName, entry: Entry) -> Option<Found> {
    let RowName::Job(id) = entry.name else { return None };
    let partition = entry.note.and_then(|note| note.partition);
    Some(Found { task: task.clone(), place: entry.place, due: entry.place.at, id, partition })
}
