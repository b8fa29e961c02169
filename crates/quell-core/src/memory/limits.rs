//! Queues, tasks and the starts that rates count, as the memory store keeps them (R31–R33).

use std::collections::BTreeMap;

use super::Event;
use super::state::State;
use crate::limit::{PartitionUsed, StartLog, Used};
use crate::queue::{QueueInfo, QueueSettings, Rate, TaskInfo, TaskSettings};
use crate::{Claim, Key, QueueName, TaskName, Timestamp};

/// The settings of queues and tasks, and the starts that limits count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Limits {
    /// None for a queue whose settings were deleted (R32).
    pub(super) queues: BTreeMap<QueueName, Option<QueueSettings>>,
    pub(super) tasks: BTreeMap<TaskName, TaskSettings>,
    /// Starts of a queue as a whole, and of each of its partitions.
    pub(super) starts: BTreeMap<(QueueName, Option<Key>), StartLog>,
}

impl Limits {
    fn know(&mut self, queue: &QueueName, task: &TaskName) {
        if !self.queues.contains_key(queue) {
            self.queues.insert(queue.clone(), Some(QueueSettings::default()));
        }
        if !self.tasks.contains_key(task) {
            self.tasks.insert(task.clone(), TaskSettings::default());
        }
    }

    /// A queue that was deleted has no settings, and hands out nothing.
    pub(super) fn settings(&self, queue: &QueueName) -> QueueSettings {
        match self.queues.get(queue) {
            Some(Some(settings)) => settings.clone(),
            Some(None) => QueueSettings { paused: true, ..QueueSettings::default() },
            None => QueueSettings::default(),
        }
    }

    pub(super) fn queues(&self) -> Vec<QueueInfo> {
        let info = |(name, settings): (&QueueName, &Option<QueueSettings>)| {
            Some(QueueInfo { name: name.clone(), settings: settings.clone()? })
        };
        self.queues.iter().filter_map(info).collect()
    }

    pub(super) fn tasks(&self) -> Vec<TaskInfo> {
        let info = |(name, settings): (&TaskName, &TaskSettings)| TaskInfo {
            name: name.clone(),
            settings: settings.clone(),
        };
        self.tasks.iter().map(info).collect()
    }

    pub(super) fn tasks_of(&self, names: &[TaskName]) -> Vec<TaskInfo> {
        let info = |name: &TaskName| TaskInfo {
            name: name.clone(),
            settings: self.tasks.get(name).cloned().unwrap_or_default(),
        };
        names.iter().map(info).collect()
    }

    pub(super) fn is_paused(&self, task: &TaskName) -> bool {
        self.tasks.get(task).is_some_and(|settings| settings.paused)
    }

    /// Puts a start on record where a rate counts it.
    fn record(&mut self, queue: &QueueName, partition: Option<&Key>, now: Timestamp) {
        let QueueSettings { rate, partition_rate, .. } = self.settings(queue);
        if let Some(rate) = rate {
            self.starts.entry((queue.clone(), None)).or_default().record(&rate, now);
        }
        if let Some((rate, partition)) = partition_rate.zip(partition) {
            let scope = (queue.clone(), Some(partition.clone()));
            self.starts.entry(scope).or_default().record(&rate, now);
        }
    }

    /// A rate counts from when it was set; a longer period counts what the shorter one did.
    fn change_rates(&mut self, queue: &QueueName, to: &QueueSettings, now: Timestamp) {
        let was = self.settings(queue);
        let keeps = |log: &mut StartLog, was: Option<Rate>, to: Option<Rate>| match (was, to) {
            (Some(was), Some(to)) => {
                if was.period < to.period {
                    log.forget(&was, now);
                }
                true
            }
            (None, _) | (_, None) => false,
        };
        self.starts.retain(|(of, partition), log| {
            *of != *queue
                || match partition {
                    None => keeps(log, was.rate, to.rate),
                    Some(_) => keeps(log, was.partition_rate, to.partition_rate),
                }
        });
    }

    /// How many queues and partitions have starts on record.
    pub(super) fn logs(&self) -> usize {
        self.starts.len()
    }

    /// Forgets the starts that count no more.
    pub(super) fn forget_starts(&mut self, now: Timestamp) {
        let mut starts = std::mem::take(&mut self.starts);
        starts.retain(|(queue, partition), log| {
            let settings = self.settings(queue);
            let rate = if partition.is_none() { settings.rate } else { settings.partition_rate };
            if let Some(rate) = rate {
                log.forget(&rate, now);
            }
            !log.is_empty()
        });
        self.starts = starts;
    }
}

impl State {
    /// Queues and tasks are known by their jobs; a queue that a window only passed through is not.
    pub(super) fn know_met(&mut self) {
        for id in std::mem::take(&mut self.met) {
            let names = self.job(id).map(|job| (job.queue.clone(), job.task.clone()));
            if let Some((queue, task)) = names {
                self.limits.know(&queue, &task);
            }
        }
    }

    pub(super) fn set_queue(&mut self, queue: &QueueName, settings: &QueueSettings) {
        let now = self.now();
        let before = self.limits.queues.get(queue).and_then(Option::as_ref);
        let settings = settings.kept(before, now);
        self.limits.change_rates(queue, &settings, now);
        self.limits.queues.insert(queue.clone(), Some(settings.clone()));
        let name = queue.clone();
        self.push_event(|| Event::Queue { t: now, queue: name, settings });
        self.wake_all(queue.clone());
    }

    pub(super) fn delete_queue(&mut self, queue: &QueueName) -> bool {
        let now = self.now();
        if !matches!(self.limits.queues.get(queue), Some(Some(_))) {
            return false;
        }
        self.limits.change_rates(queue, &QueueSettings::default(), now);
        self.limits.queues.insert(queue.clone(), None);
        self.push_event(|| Event::QueueDeleted { t: now, queue: queue.clone() });
        self.wake_all(queue.clone());
        true
    }

    pub(super) fn set_task(&mut self, task: &TaskName, settings: &TaskSettings) {
        let now = self.now();
        let settings = settings.kept(self.limits.tasks.get(task), now);
        self.limits.tasks.insert(task.clone(), settings.clone());
        self.push_event(|| Event::TaskChanged { t: now, task: task.clone(), settings });
        let queues: Vec<QueueName> = self.limits.queues.keys().cloned().collect();
        queues.into_iter().for_each(|queue| self.wake_all(queue));
    }

    /// What is taken of the limits of a queue.
    pub(super) fn used(&self, settings: &QueueSettings, claim: &Claim) -> Used {
        let of_queue = || self.running().filter(|job| job.queue == claim.queue);
        let by_worker = of_queue().filter(|job| job.worker.as_ref() == Some(&claim.worker));
        let log = self.limits.starts.get(&(claim.queue.clone(), None));
        let recent = log.zip(settings.rate).map(|(log, rate)| log.recent(&rate, self.now()));
        Used {
            running: of_queue().count(),
            by_worker: by_worker.count(),
            recent: recent.unwrap_or_default(),
        }
    }

    /// What is taken of the limits of a partition.
    pub(super) fn partition_used(
        &self,
        settings: &QueueSettings,
        queue: &QueueName,
        partition: &Key,
    ) -> PartitionUsed {
        let same =
            |job: &&crate::Job| job.queue == *queue && job.partition.as_ref() == Some(partition);
        let running = match settings.partition_concurrency {
            Some(_) => self.running().filter(same).count(),
            None => 0,
        };
        let log = self.limits.starts.get(&(queue.clone(), Some(partition.clone())));
        let Some((log, rate)) = log.zip(settings.partition_rate) else {
            return PartitionUsed { running, ..PartitionUsed::default() };
        };
        let now = self.now();
        PartitionUsed { running, recent: log.recent(&rate, now), free_at: log.free_at(&rate, now) }
    }

    /// When the queue's rate lets the next attempt start.
    pub(super) fn rate_free_at(&self, settings: &QueueSettings, queue: &QueueName) -> Timestamp {
        let log = self.limits.starts.get(&(queue.clone(), None));
        let free_at = log.zip(settings.rate).map(|(log, rate)| log.free_at(&rate, self.now()));
        free_at.unwrap_or(Timestamp::MIN)
    }

    pub(super) fn record_start(&mut self, queue: &QueueName, partition: Option<&Key>) {
        self.limits.record(queue, partition, self.now());
    }
}
