//! Lines of several processes at one moment of store time, in an order that can have been.
//!
//! Two processes may commit within one microsecond, or one while the other waits with a time it
//! read before. Each process's own lines keep their order; between processes a claim comes after
//! the end of the attempt before it and after the joins it covers, a window after the claim of the
//! window before it.

use std::collections::{BTreeMap, VecDeque};

use quell_core::history::Event;
use quell_core::{JobId, Key, SettledAs, TaskName, Timestamp};

use super::Line;

/// A line, the time at which it stands, and the file that it is from.
pub(super) struct Placed {
    pub(super) time: Timestamp,
    pub(super) file: usize,
    pub(super) line: Line,
}

/// What the lines so far say of one job.
#[derive(Debug, Default)]
struct Said {
    token: u64,
    runs: bool,
    count: u64,
    task_key: Option<(TaskName, Key)>,
}

#[derive(Debug, Default)]
struct World {
    jobs: BTreeMap<JobId, Said>,
    open: BTreeMap<(TaskName, Key), JobId>,
}

/// Orders lines that are sorted by time and by file.
pub(super) fn untie(placed: Vec<Placed>) -> Vec<Line> {
    let mut world = World::default();
    let mut lines = Vec::with_capacity(placed.len());
    let mut rest = placed.into_iter().peekable();
    while let Some(first) = rest.next() {
        let time = first.time;
        let mut files: Vec<(usize, VecDeque<Line>)> = vec![(first.file, [first.line].into())];
        while let Some(next) = rest.next_if(|next| next.time == time) {
            match files.last_mut() {
                Some((file, queue)) if *file == next.file => queue.push_back(next.line),
                _ => files.push((next.file, [next.line].into())),
            }
        }
        let mut queues: Vec<VecDeque<Line>> = files.into_iter().map(|(_, queue)| queue).collect();
        let mut current = 0;
        loop {
            queues.retain(|queue| !queue.is_empty());
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
    fn next(&self, queues: &mut [VecDeque<Line>], current: &mut usize) -> Option<Line> {
        let may = |queue: &VecDeque<Line>| queue.front().is_some_and(|line| self.may(&line.event));
        let stays = queues.get(*current).is_some_and(may);
        if !stays {
            *current = queues.iter().position(may).unwrap_or(0);
        }
        queues.get_mut(*current)?.pop_front()
    }

    /// Whether the event can be the next; of what is not known nothing is expected.
    fn may(&self, event: &Event) -> bool {
        match event {
            Event::Claimed { job, token, count, .. } => self.jobs.get(job).is_none_or(|said| {
                !said.runs && token.get() == said.token.saturating_add(1) && *count == said.count
            }),
            Event::Renew { job, token, .. } | Event::Lapse { job, token, .. } => {
                self.jobs.get(job).is_none_or(|said| said.runs && said.token == token.get())
            }
            Event::Settle { job, token, became, .. } => {
                let held = |said: &Said| said.runs && said.token == token.get();
                *became == SettledAs::Refused || self.jobs.get(job).is_none_or(held)
            }
            Event::Window { job, task, key, count, .. } => {
                let other =
                    key.as_ref().and_then(|key| self.open.get(&(task.clone(), key.clone())));
                other.is_none_or(|open| open == job)
                    && self.jobs.get(job).is_none_or(|said| !said.runs && *count >= said.count)
            }
            _ => true,
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Claimed { job, token, count, .. } => {
                self.close(*job);
                let said = self.jobs.entry(*job).or_default();
                (said.token, said.runs, said.count) = (token.get(), true, *count);
            }
            Event::Lapse { job, .. } | Event::Cancel { job, .. } => self.end(*job),
            Event::Settle { job, became, .. } if *became != SettledAs::Refused => self.end(*job),
            Event::Window { job, task, key, count, .. } => {
                let said = self.jobs.entry(*job).or_default();
                said.count = *count;
                if let Some(key) = key {
                    let task_key = (task.clone(), key.clone());
                    said.task_key = Some(task_key.clone());
                    self.open.insert(task_key, *job);
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
