//! R28 and R33: nothing starts of a paused queue or task, nor at a worker that did not register the
//! task.

use std::collections::BTreeMap;
use std::time::Duration;

use quell::Timestamp;
use quell::history::Event;

use super::super::seen::Counts;
use super::history::leases;

/// Settings take hold at the next poll (R32), and claims that are in flight go on.
const POLL: Duration = Duration::from_secs(1);
/// The longest that a claim waits for a lock.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// A job that was claimed may wait this long in a worker's hands.
const HOLD: Duration = Duration::from_millis(100);

/// A pause of a queue or a task, from the operator's receipt to the call that ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) is_of_queue: bool,
    pub(crate) name: String,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

impl Pause {
    /// A claim's time is read before it waits for its lock: what comes shortly before the end of the
    /// pause may have been granted after it.
    fn meets(&self, t: Timestamp, grace: Duration) -> bool {
        t > self.from + grace && t + LOCK_WAIT < self.until
    }
}

/// A poll after the receipt no claim is granted, and once the hold is over too, no handler starts.
pub(super) fn nothing_starts_in_a_pause(
    events: &[Event],
    pauses: &[Pause],
    counts: &mut Counts,
) -> Result<(), String> {
    let leases = leases(events);
    let queues: BTreeMap<_, &str> =
        leases.iter().map(|lease| ((lease.job, lease.token), lease.queue.as_str())).collect();
    for pause in pauses {
        counts.add(if pause.is_of_queue { "pauses of a queue" } else { "pauses of a task" }, 1);
        let is_of =
            |queue: &str, task: &str| pause.name == if pause.is_of_queue { queue } else { task };
        for lease in leases.iter().filter(|lease| is_of(&lease.queue, lease.task.as_str())) {
            if pause.meets(lease.from, POLL) {
                return Err(format!("claimed in a pause: {lease:?}, {pause:?}"));
            }
        }
        for event in events {
            let Event::Start { t, job, token, task, .. } = event else { continue };
            let queue = queues.get(&(*job, *token)).copied().unwrap_or_default();
            if is_of(queue, task.as_str()) && pause.meets(*t, POLL + HOLD) {
                return Err(format!("started in a pause: {event:?}, {pause:?}"));
            }
        }
    }
    Ok(())
}

/// Every claim and start of a task is at a worker that registered it.
pub(super) fn workers_know_their_tasks(
    events: &[Event],
    counts: &mut Counts,
) -> Result<(), String> {
    let mut registered = BTreeMap::new();
    for event in events {
        if let Event::Worker { worker, tasks } = event {
            let tasks: Vec<_> = tasks.iter().map(|task| task.task.clone()).collect();
            registered.insert(worker.clone(), tasks);
        }
    }
    for event in events {
        let (Event::Claimed { worker, task, .. } | Event::Start { worker, task, .. }) = event
        else {
            continue;
        };
        let Some(tasks) = registered.get(worker) else {
            counts.add("starts at workers that are on no record", 1);
            continue;
        };
        if !tasks.contains(task) {
            return Err(format!("{worker} did not register {task}: {event:?}"));
        }
        counts.add("claims and starts at workers that registered the task", 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use quell::history::WorkerTask;
    use quell::{QueueName, Retry, TaskName};

    use super::super::made::{at, claimed, settled, started, worker};
    use super::*;

    #[test]
    fn r33_a_claim_or_a_late_start_in_a_pause_is_found() {
        let verdict = |events: &[Event], is_of_queue: bool| {
            let name = if is_of_queue { "narrow" } else { "stamped" }.to_owned();
            let pause = Pause { is_of_queue, name, from: at(1_000), until: at(9_000_000) };
            nothing_starts_in_a_pause(events, &[pause], &mut Counts::default()).is_ok()
        };
        let before = [claimed(900, 1, 1), settled(950, 1, 1)];
        for of_queue in [true, false] {
            assert!(verdict(&[claimed(1_001_000, 1, 1)], of_queue), "within a poll");
            assert!(!verdict(&[claimed(1_001_001, 1, 1)], of_queue));
            assert!(verdict(&[claimed(9_000_000, 1, 1)], of_queue), "after the pause");
            for (t, expected) in [(1_101_000, true), (1_101_001, false), (9_000_000, true)] {
                let events = [&before[..], &[started(t, 1, 1)]].concat();
                assert_eq!(verdict(&events, of_queue), expected, "a start at {t}");
            }
        }
    }

    #[test]
    fn r28_a_start_at_a_worker_that_does_not_know_the_task_is_found() {
        let knows = |task: &str| {
            let (task, queue) = (TaskName::new(task).unwrap(), QueueName::new("q").unwrap());
            let tasks = vec![WorkerTask { task, queue, retry: Retry::default() }];
            Event::Worker { worker: worker("w"), tasks }
        };
        let verdict = |events: &[Event]| workers_know_their_tasks(events, &mut Counts::default());
        assert_eq!(verdict(&[knows("stamped"), claimed(1, 1, 1)]), Ok(()));
        assert!(verdict(&[knows("other"), claimed(1, 1, 1)]).is_err());
        assert!(verdict(&[knows("other"), started(1, 1, 1)]).is_err());
    }
}
