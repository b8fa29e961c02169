//! Lines of several processes at one moment of store time, in an order that can have been.
//!
//! Two processes may commit within one microsecond, or one while the other waits with a time it
//! read before. Each process's own lines keep their order, lines of several processes that of their
//! writing where nothing speaks against it; between processes a claim comes after
//! the window that made the job and the joins it covers, and after the ends of attempts, which may
//! have left it its place; an end comes after its claim, a window after the claim of the
//! window before it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quell_core::history::Event;
use quell_core::{JobId, LeaseToken, SettledAs, Timestamp};

use super::Line;
use super::read::job_of;
use super::views::TaskKey;

/// A line, the time at which it stands, and the file that it is from.
pub(super) struct Placed {
    pub(super) time: Timestamp,
    pub(super) file: usize,
    pub(super) line: Line,
}

/// What a process wrote at one moment before another one wrote.
struct Queue {
    file: usize,
    lines: VecDeque<Line>,
}

/// What the lines so far say of one job.
#[derive(Debug, Default)]
struct Said {
    token: LeaseToken,
    runs: bool,
    count: u64,
    task_key: Option<TaskKey>,
}

#[derive(Debug, Default)]
struct World {
    jobs: BTreeMap<JobId, Said>,
    open: BTreeMap<TaskKey, JobId>,
}

/// Orders lines that are sorted by time and by file.
pub(super) fn untie(placed: Vec<Placed>) -> Vec<Line> {
    let mut world = World::default();
    let mut lines = Vec::with_capacity(placed.len());
    let mut rest = placed.into_iter().peekable();
    while let Some(first) = rest.next() {
        let time = first.time;
        let mut queues = vec![Queue { file: first.file, lines: [first.line].into() }];
        while let Some(next) = rest.next_if(|next| next.time == time) {
            match queues.last_mut() {
                Some(queue) if queue.file == next.file => queue.lines.push_back(next.line),
                _ => queues.push(Queue { file: next.file, lines: [next.line].into() }),
            }
        }
        let mut current = 0;
        loop {
            queues.retain(|queue| !queue.lines.is_empty());
            let Some(line) = world.next(&mut queues, &mut current) else { break };
            world.take(&line.event);
            lines.push(line);
        }
    }
    lines
}

impl World {
    /// Stays with a process for as long as that can be, so that what it committed at once stays
    /// together.
    fn next(&self, queues: &mut [Queue], current: &mut usize) -> Option<Line> {
        let may = |at: usize| {
            let Some((queue, before)) = queues.get(..=at).and_then(<[Queue]>::split_last) else {
                return false;
            };
            let is_next = before.iter().all(|earlier| earlier.file != queue.file);
            let may = |event| self.may(event) && !self.waits(event, queue.file, queues);
            is_next && queue.lines.front().is_some_and(|line| may(&line.event))
        };
        if !may(*current) {
            *current = (0..queues.len()).find(|at| may(*at)).unwrap_or(0);
        }
        queues.get_mut(*current)?.lines.pop_front()
    }

    /// Whether the event can be the next; of what is not known nothing is expected.
    fn may(&self, event: &Event) -> bool {
        match event {
            Event::Claimed { job, token, count, .. } => self.jobs.get(job).is_none_or(|said| {
                !said.runs
                    && token.starts() == said.token.starts().saturating_add(1)
                    && *count == said.count
            }),
            Event::Renew { job, token, .. } | Event::Expire { job, token, .. } => {
                self.jobs.get(job).is_none_or(|said| said.runs && said.token == *token)
            }
            Event::Settle { job, token, became, .. } => {
                let held = |said: &Said| said.runs && said.token == *token;
                *became == SettledAs::Refused || self.jobs.get(job).is_none_or(held)
            }
            Event::Window { job, task, key, count, shape, .. } => {
                let other =
                    key.as_ref().and_then(|key| self.open.get(&(task.clone(), key.clone())));
                (shape.closed || other.is_none_or(|open| open == job))
                    && self.jobs.get(job).is_none_or(|said| !said.runs && *count >= said.count)
            }
            _ => true,
        }
    }

    /// Whether another process has an event at this moment that comes before this one.
    fn waits(&self, event: &Event, file: usize, queues: &[Queue]) -> bool {
        let elsewhere = |before: &dyn Fn(&Event) -> bool| {
            let others = queues.iter().filter(|queue| queue.file != file);
            others.flat_map(|queue| &queue.lines).any(|line| before(&line.event))
        };
        match event {
            Event::Claimed { job, .. } => {
                let unknown = !self.jobs.contains_key(job);
                if unknown && elsewhere(&|before| made(before) == Some(*job)) {
                    return true;
                }
                // It may have started only because of what ended.
                let runs = |job: &JobId| self.jobs.get(job).is_some_and(|said| said.runs);
                elsewhere(&|before| ended(before).is_some_and(|job| runs(&job)))
            }
            Event::Expire { became: SettledAs::Absorbed { by, .. }, .. }
            | Event::Settle { became: SettledAs::Absorbed { by, .. }, .. } => {
                elsewhere(&|before| made(before) == Some(*by))
            }
            Event::Renew { job, token, .. }
            | Event::Expire { job, token, .. }
            | Event::Settle { job, token, .. } => {
                !self.jobs.contains_key(job)
                    && elsewhere(&|before| {
                        matches!(before, Event::Claimed { job: other, token: its, .. }
                            if other == job && its == token)
                    })
            }
            _ => false,
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Claimed { job, token, count, .. } => {
                self.close(*job);
                let said = self.jobs.entry(*job).or_default();
                (said.token, said.runs, said.count) = (*token, true, *count);
            }
            Event::Expire { job, .. } | Event::Cancel { job, .. } => self.end(*job),
            Event::Settle { job, became, .. } if *became != SettledAs::Refused => self.end(*job),
            Event::Window { job, task, key, count, shape, .. } => {
                let said = self.jobs.entry(*job).or_default();
                said.count = *count;
                if let Some(key) = key {
                    let task_key = (task.clone(), key.clone());
                    said.task_key = Some(task_key.clone());
                    if shape.closed {
                        self.close(*job);
                    } else {
                        self.open.insert(task_key, *job);
                    }
                }
            }
            Event::Prune { job, .. } | Event::Discard { job, .. } => {
                self.close(*job);
                self.jobs.remove(job);
            }
            _ => {}
        }
    }

    fn end(&mut self, job: JobId) {
        self.close(job);
        if let Some(said) = self.jobs.get_mut(&job) {
            said.runs = false;
        }
    }

    /// The job is no open window any more.
    fn close(&mut self, job: JobId) {
        let task_key = self.jobs.get(&job).and_then(|said| said.task_key.as_ref());
        if let Some(task_key) = task_key
            && self.open.get(task_key) == Some(&job)
        {
            self.open.remove(task_key);
        }
    }
}

/// The job that the event makes, or changes before a claim.
fn made(event: &Event) -> Option<JobId> {
    match event {
        Event::Window { job, .. } | Event::Import { job, .. } | Event::Restored { job, .. } => {
            Some(*job)
        }
        _ => None,
    }
}

/// The job whose attempt the event ends.
fn ended(event: &Event) -> Option<JobId> {
    match event {
        Event::Expire { job, .. } | Event::Cancel { job, .. } => Some(*job),
        Event::Settle { job, became, .. } if *became != SettledAs::Refused => Some(*job),
        _ => None,
    }
}

/// The jobs that two processes changed at one moment, or whose key or queue they did: the order is
/// unknown, and [`untie`] may have found another than there was. `lines` are in order.
pub(super) fn tied(lines: &[Line]) -> BTreeSet<JobId> {
    let mut keys: BTreeMap<JobId, TaskKey> = BTreeMap::new();
    let mut moments: BTreeMap<Timestamp, Vec<&Line>> = BTreeMap::new();
    for line in lines {
        if let Event::Window { job, task, key: Some(key), .. }
        | Event::Claimed { job, task, key: Some(key), .. } = &line.event
        {
            keys.insert(*job, (task.clone(), key.clone()));
        }
        if let Some(t) = line.event.at() {
            moments.entry(t).or_default().push(line);
        }
    }
    moments
        .retain(|_, lines| lines.iter().any(|line| Some(&line.p) != lines.first().map(|l| &l.p)));
    let mut tied = BTreeSet::new();
    for lines in moments.values() {
        let mut by: BTreeMap<Share<'_>, BTreeSet<&str>> = BTreeMap::new();
        let shares: Vec<_> = lines.iter().map(|line| shared(&line.event, &keys)).collect();
        for (line, shares) in lines.iter().zip(&shares) {
            shares.iter().for_each(|share| {
                by.entry(*share).or_default().insert(&line.p);
            });
        }
        let settings = lines
            .iter()
            .any(|line| matches!(line.event, Event::Queue { .. } | Event::TaskChanged { .. }));
        for shares in &shares {
            let jobs = || {
                shares.iter().filter_map(|share| match share {
                    Share::Job(job) => Some(*job),
                    Share::Key(_) => None,
                })
            };
            if settings || shares.iter().any(|share| by.get(share).is_some_and(|by| by.len() > 1)) {
                tied.extend(jobs());
            }
        }
    }
    tied
}

/// What two events may have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Share<'a> {
    Job(JobId),
    Key(&'a TaskKey),
}

fn shared<'a>(event: &Event, keys: &'a BTreeMap<JobId, TaskKey>) -> Vec<Share<'a>> {
    let successor = match event {
        Event::Expire { became: SettledAs::Absorbed { by, .. }, .. }
        | Event::Settle { became: SettledAs::Absorbed { by, .. }, .. } => Some(*by),
        _ => None,
    };
    let jobs = job_of(event).into_iter().chain(successor);
    let of = |job| [Some(Share::Job(job)), keys.get(&job).map(Share::Key)];
    jobs.flat_map(of).flatten().collect()
}
