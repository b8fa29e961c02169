//! Does a store fit a configuration: jobs that no task takes, queues that no task names, tasks that no
//! worker runs?
//!
//! Other programs may share the store with tasks of their own, so what a worker of late knows is fine.

use std::collections::{BTreeMap, BTreeSet};

use quell::worker::{WorkerRow, Workers};
use quell::{JobState, Quell, QueueName, TaskName};

use crate::config::Config;

/// What does not fit.
#[derive(Debug, Default)]
pub(super) struct Misfits {
    pub(super) problems: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Compares a store with a configuration.
pub(super) async fn compare(
    quell: &Quell,
    config: &Config,
    workers: &Workers,
) -> quell::Result<Misfits> {
    let mut found = Misfits::default();
    let seen: Vec<&WorkerRow> =
        workers.rows.iter().filter(|row| !row.is_unseen(workers.now)).collect();
    let waiting = waiting(quell).await?;
    for ((queue, task), jobs) in &waiting {
        found.of_waiting(config, &seen, (queue, task, *jobs));
    }
    for queue in quell.store().queues().await? {
        let has_jobs = waiting.keys().any(|(of, _)| *of == queue.name);
        found.of_queue(config, &seen, &queue.name, has_jobs);
    }
    found.of_tasks(config, &seen);
    Ok(found)
}

/// Jobs that have not ended, by queue and task.
async fn waiting(quell: &Quell) -> quell::Result<BTreeMap<(QueueName, TaskName), u64>> {
    let mut waiting = BTreeMap::new();
    for counts in quell.store().counts().await? {
        if matches!(counts.state, JobState::Scheduled | JobState::Running) {
            *waiting.entry((counts.queue, counts.task)).or_default() += counts.jobs;
        }
    }
    Ok(waiting)
}

impl Misfits {
    /// Jobs that wait for a task that no one has, or for a queue in which no one looks.
    fn of_waiting(
        &mut self,
        config: &Config,
        seen: &[&WorkerRow],
        (queue, task, jobs): (&QueueName, &TaskName, u64),
    ) {
        let runs = |row: &&WorkerRow| {
            row.may_take_from(queue) && row.tasks.as_ref().is_some_and(|tasks| tasks.contains(task))
        };
        if seen.iter().any(runs) {
            return;
        }
        match config.tasks.get(task).map(|declared| declared.checked.queue()) {
            None => self.problems.push(format!(
                "{jobs} jobs of task {task} wait in queue {queue}, and neither the configuration nor a \
                 worker seen of late has that task: declare it, start its workers, or cancel the jobs"
            )),
            Some(of_task) if of_task != queue => self.problems.push(format!(
                "{jobs} jobs of task {task} wait in queue {queue}, and the task's queue is {of_task} \
                 now: start a worker that takes the task from {queue}, or cancel the jobs and trigger \
                 again"
            )),
            Some(_) => {}
        }
    }

    /// A queue of the store that no task names.
    fn of_queue(
        &mut self,
        config: &Config,
        seen: &[&WorkerRow],
        queue: &QueueName,
        has_jobs: bool,
    ) {
        let of_task = config.tasks.values().any(|task| task.checked.queue() == queue);
        let of_worker = seen.iter().any(|row| row.queues.contains(queue));
        if !of_task && !of_worker && !has_jobs && !config.queues.contains_key(queue) {
            self.warnings.push(format!(
                "queue {queue} has settings, and no task of the configuration names it: `quell queue \
                 delete {queue}` removes them"
            ));
        }
    }

    /// Tasks of the configuration that no worker of late runs.
    fn of_tasks(&mut self, config: &Config, seen: &[&WorkerRow]) {
        let idle: BTreeSet<&TaskName> = config
            .tasks
            .iter()
            .filter(|(name, task)| {
                let queue = task.checked.queue();
                !seen.iter().any(|row| row.may_take_from(queue) && row.may_know(name))
            })
            .map(|(name, _)| name)
            .collect();
        if idle.is_empty() {
            return;
        }
        let names: Vec<&str> = idle.iter().map(|name| name.as_str()).collect();
        self.warnings.push(format!(
            "no worker seen of late runs {}: start `quell serve`, or the workers of these tasks",
            names.join(", ")
        ));
    }
}
