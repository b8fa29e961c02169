//! What this process knows of processes of workers elsewhere: their last sign of life, and their tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_core::heartbeat::Beaten;
use quell_core::{QueueName, TaskName, Timestamp, WorkerId};

use super::PullProcess;

/// The most processes that are remembered. More than that send a heartbeat with each call.
const MOST: usize = 10_000;

/// What is known of one process of a worker.
#[derive(Debug, Default)]
struct Known {
    beaten_at: Option<Timestamp>,
    queues: BTreeSet<QueueName>,
    /// The tasks that are on record.
    tasks: BTreeSet<TaskName>,
    /// How many of them its last heartbeat named.
    beaten_tasks: usize,
    /// Whether an operator drains it, as its last heartbeat learnt (R29).
    drained: bool,
}

type All = BTreeMap<(WorkerId, u32), Known>;

/// What is known of each process.
#[derive(Debug, Default)]
pub(super) struct Beats(Mutex<All>);

impl Beats {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tasks that a process runs, where these bring new ones; they are on record from then on.
    pub(super) fn introduce(
        &self,
        process: &PullProcess,
        tasks: &[TaskName],
    ) -> Option<BTreeSet<TaskName>> {
        let mut all = self.all();
        let known = known(&mut all, process);
        let before = known.tasks.len();
        known.tasks.extend(tasks.iter().cloned());
        (known.tasks.len() > before).then(|| known.tasks.clone())
    }

    /// All queues that the process has named, these included, and its tasks, where a heartbeat is due; it
    /// counts as sent.
    pub(super) fn due(
        &self,
        process: &PullProcess,
        queues: &[QueueName],
        interval: Duration,
        now: Timestamp,
    ) -> Option<(Vec<QueueName>, Vec<TaskName>)> {
        let mut all = self.all();
        let known = known(&mut all, process);
        let before = known.queues.len();
        known.queues.extend(queues.iter().cloned());
        // It comes with calls of the worker, not by a timer: so no gap is longer than one that still
        // counts as unbroken, which is one and a half intervals.
        let is_time = known.beaten_at.is_none_or(|at| now.since(at) >= interval / 2);
        let is_new = known.queues.len() > before || known.tasks.len() > known.beaten_tasks;
        if !is_time && !is_new {
            return None;
        }
        known.beaten_at = Some(now);
        known.beaten_tasks = known.tasks.len();
        Some((known.queues.iter().cloned().collect(), known.tasks.iter().cloned().collect()))
    }

    /// Notes what a heartbeat learnt.
    pub(super) fn answered(&self, process: &PullProcess, beaten: Beaten) {
        let key = (process.worker.clone(), process.incarnation);
        if let Some(known) = self.all().get_mut(&key) {
            known.drained = beaten.drained;
        }
    }

    /// Whether an operator drains the process.
    pub(super) fn is_drained(&self, process: &PullProcess) -> bool {
        let key = (process.worker.clone(), process.incarnation);
        self.all().get(&key).is_some_and(|known| known.drained)
    }

    /// Lets the next call send a heartbeat.
    pub(super) fn failed(&self, process: &PullProcess) {
        let key = (process.worker.clone(), process.incarnation);
        if let Some(known) = self.all().get_mut(&key) {
            known.beaten_at = None;
            known.beaten_tasks = 0;
        }
    }

    /// Whether a process that runs a task gave a sign of life since then.
    pub(super) fn runs(&self, task: &TaskName, since: Timestamp) -> bool {
        let is_there = |known: &Known| known.beaten_at.is_some_and(|at| at >= since);
        self.all().values().any(|known| known.tasks.contains(task) && is_there(known))
    }

    /// Forgets a process that has left.
    pub(super) fn forget(&self, worker: &WorkerId, incarnation: u32) {
        self.all().remove(&(worker.clone(), incarnation));
    }
}

/// What is known of a process; the one whose last heartbeat is the oldest makes room for a new one.
fn known<'a>(all: &'a mut All, process: &PullProcess) -> &'a mut Known {
    let key = (process.worker.clone(), process.incarnation);
    if all.len() >= MOST && !all.contains_key(&key) {
        let oldest =
            all.iter().min_by_key(|(_, known)| known.beaten_at).map(|(key, _)| key.clone());
        oldest.and_then(|oldest| all.remove(&oldest));
    }
    all.entry(key).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(name: &str) -> PullProcess {
        PullProcess::new(WorkerId::new(name).unwrap(), 1)
    }

    #[test]
    fn r25_no_gap_between_heartbeats_is_longer_than_one_and_a_half_intervals() {
        let (beats, interval) = (Beats::default(), Duration::from_secs(10));
        let due =
            |at: i64| beats.due(&process("w"), &[], interval, Timestamp::from_secs(at)).is_some();
        // Calls that are 4.9 s apart at most.
        let calls = [0, 4, 5, 9, 10, 14, 19].map(|at| (at, due(at)));
        let sent: Vec<i64> = calls.iter().filter(|(_, sent)| *sent).map(|(at, _)| *at).collect();
        assert_eq!(sent, [0, 5, 10, 19]);
    }

    #[test]
    fn r15_a_new_task_is_reported_at_once() {
        let beats = Beats::default();
        let task = |name: &str| TaskName::new(name).unwrap();
        let sent = |at: i64| {
            let due =
                beats.due(&process("w"), &[], Duration::from_secs(10), Timestamp::from_secs(at));
            due.map(|(_, tasks)| tasks)
        };
        beats.introduce(&process("w"), &[task("b")]);
        assert_eq!(sent(0), Some(vec![task("b")]));
        assert_eq!(sent(1), None);
        beats.introduce(&process("w"), &[task("a")]);
        assert_eq!(sent(2), Some(vec![task("a"), task("b")]));
    }

    #[test]
    fn what_is_known_of_processes_is_bounded_and_a_new_task_is_told_with_all() {
        let beats = Beats::default();
        let task = |name: &str| TaskName::new(name).unwrap();
        for number in 0..MOST + 50 {
            let at = Timestamp::from_secs(i64::try_from(number).unwrap());
            beats.due(&process(&format!("w{number}")), &[], Duration::from_secs(10), at);
        }
        assert_eq!(beats.all().len(), MOST);
        let (one, both) = ([task("a")], [task("b"), task("a")]);
        assert_eq!(beats.introduce(&process("x"), &one).map(|all| all.len()), Some(1));
        assert_eq!(beats.introduce(&process("x"), &one), None);
        assert_eq!(beats.introduce(&process("x"), &both).map(|all| all.len()), Some(2));
        beats.forget(&process("x").worker, 1);
        assert_eq!(beats.introduce(&process("x"), &one).map(|all| all.len()), Some(1));
    }
}
