//! What waits and runs in the partitions of a queue, in the memory store (R31).

use std::collections::{BTreeMap, BTreeSet};

use super::state::State;
use crate::backlog::{Backlog, BacklogOf, Seen, Spread};
use crate::{Job, JobState, TaskName};

/// Jobs of a queue with this task and priority.
type Line = (TaskName, i16);

impl State {
    pub(super) fn backlog(&self, of: &BacklogOf) -> Backlog {
        let of_queue = |job: &&Job| job.queue == of.queue;
        let waiting: Vec<&Job> = self
            .all_jobs()
            .filter(|job| job.state == JobState::Scheduled)
            .filter(of_queue)
            .collect();
        let line = |job: &Job| -> Line { (job.task.clone(), job.priority) };
        let lines: BTreeSet<Line> = waiting.iter().map(|job| line(job)).collect();
        let mut spread = Spread::new(of, lines, true);
        while let Some((lines, limit)) = spread.next_lines() {
            let seen = |asked: &Line| {
                let mut jobs: Vec<&&Job> =
                    waiting.iter().filter(|job| line(job) == *asked).collect();
                jobs.sort_by_key(|job| (job.window.due_at, job.id));
                let mut seen = Seen { is_cut: jobs.len() > limit, ..Seen::default() };
                for job in jobs.into_iter().take(limit) {
                    seen.count(job.partition.as_ref(), job.window.due_at, self.now());
                }
                seen
            };
            let seen: Vec<Seen> = lines.iter().map(seen).collect();
            spread.add(seen);
        }
        let mut running = BTreeMap::new();
        for job in self.running().filter(of_queue) {
            let jobs: &mut u64 = running.entry(job.partition.clone()).or_default();
            *jobs = jobs.saturating_add(1);
        }
        Backlog::new(self.now(), of, spread.end(), running)
    }
}
