//! What Quell's keys in Redis are called.
//!
//! All keys of a store begin with its prefix; those of one shard share a hash tag, so that a
//! Cluster keeps them on one node. Names have neither spaces nor `|`, so a name, one of these and
//! whatever comes after cannot be mistaken for another pair.

use quell_core::{JobId, Key, QueueName, ScheduleName, TaskName, WorkerId};

/// The names of one shard's keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Prefix and hash tag.
    base: String,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident: $suffix:literal,)*) => {
        $($(#[$doc])* pub(crate) fn $name(&self) -> String { self.named($suffix) })*
    };
}

impl Keys {
    pub(crate) fn new(prefix: &str, tag: &str) -> Self {
        Keys { base: format!("{prefix}:{{{tag}}}") }
    }

    fn named(&self, suffix: &str) -> String {
        format!("{}:{suffix}", self.base)
    }

    keys! {
        /// The highest time seen, in microseconds.
        clock: "clock",
        /// The number of the newest job.
        seq: "seq",
        /// What the shard is and which version of its names and settings it has.
        meta: "meta",
        /// The queues in which tasks have their keys, where each queue has a shard.
        homes: "homes",
        /// Rows of jobs, by number.
        jobs: "jobs",
        /// The numbers of lanes, by queue, task and priority.
        lanes: "lanes",
        /// The numbers of shapes, by their JSON.
        shapes: "shapes",
        /// Settings of queues, by name; empty where they were deleted.
        queues: "queues",
        /// Settings of tasks, by name.
        tasks: "tasks",
        /// Jobs that run, by the end of their lease.
        leases: "leases",
        /// Windows that wait for an attempt of their key, by when they are due.
        waiting: "waiting",
        /// Succeeded, cancelled and absorbed jobs, by when they ended.
        ended: "ended",
        /// Dead jobs, by when they died.
        dead: "dead",
        /// Jobs for whose end a process waits.
        awaited: "awaited",
        /// How many jobs there are, by queue, task and state.
        counts: "counts",
        /// How many attempts run, by queue, and by worker and partition of it.
        slots: "slots",
        /// The running jobs of keys, and the first closed window of each: see `busy`.
        runs: "runs",
        /// Attempts on record, by job.
        attempts: "attempts",
        /// Effects, by job.
        effects: "effects",
        /// What jobs were before, by job.
        pasts: "pasts",
        /// The jobs that imported dead jobs became, by their origin.
        origins: "origins",
        /// The jobs that a job absorbed: a set for each successor.
        absorbed: "absorbed",
        /// Dedup keys.
        holds: "holds",
        /// Idempotency keys.
        records: "records",
        /// What edges remember of keys.
        memories: "memories",
        /// Dedup and idempotency keys and memories, by when they expire.
        expiry: "expiry",
        /// Logs of starts, by queue and partition.
        starts: "starts",
        /// Schedules, by name.
        schedules: "schedules",
        /// Schedules, by their next tick.
        plan: "plan",
        /// Which ticks fired, by schedule: see `fired`.
        ticks: "ticks",
        /// Schedules, by the time before which none of their ticks is on record.
        tick_times: "tick-times",
        /// Jobs that are set aside, by number.
        unreadable: "unreadable",
        /// What is known of them.
        unreadable_jobs: "unreadable-jobs",
        /// Their rows, as they were.
        unreadable_rows: "unreadable-rows",
        /// Alerts, by name.
        alerts: "alerts",
        /// What is on record beside the settings of queues and tasks.
        remarks: "remarks",
        /// Worker rows, by name and incarnation.
        workers: "workers",
    }

    /// A window as the published debouncers show it: for an operator's eyes, and where the open
    /// window of a key is found.
    pub(crate) fn debounce(&self, task: &TaskName, key: &Key) -> String {
        self.named(&format!("debounce:{task}|{key}"))
    }

    /// The closed windows of a key (R10), in the order of their numbers.
    pub(crate) fn closed(&self, task: &TaskName, key: &Key) -> String {
        self.named(&format!("closed:{task}|{key}"))
    }

    /// Jobs that may start, by when they are due.
    pub(crate) fn line(&self, lane: &str) -> String {
        self.named(&format!("line:{lane}"))
    }

    /// The lines of a queue in which jobs are, by when the first is due.
    pub(crate) fn heads(&self, queue: &QueueName) -> String {
        self.named(&format!("heads:{queue}"))
    }

    /// Jobs of partitions of a queue that have started before and may start again: see `turns`.
    pub(crate) fn begun(&self, queue: &QueueName) -> String {
        self.named(&format!("begun:{queue}"))
    }

    /// The dedup and idempotency keys that name a job.
    pub(crate) fn names(&self, job: JobId) -> String {
        self.named(&format!("names:{job}"))
    }

    /// The closed spans of a schedule that are shorter than an hour, by their last tick: see `fired`.
    pub(crate) fn fired(&self, schedule: &ScheduleName) -> String {
        self.named(&format!("fired:{schedule}"))
    }

    /// Those of an hour and more.
    pub(crate) fn fired_long(&self, schedule: &ScheduleName) -> String {
        self.named(&format!("fired-long:{schedule}"))
    }

    /// The newest ticks among a job's triggers, by schedule.
    pub(crate) fn ticks_of(&self, job: JobId) -> String {
        self.named(&format!("ticks:{job}"))
    }

    /// The newest jobs of a task that have a key.
    pub(crate) fn recent(&self, task: &TaskName) -> String {
        self.named(&format!("recent:{task}"))
    }
}

/// A field that stands for a key of a task.
pub(crate) fn task_key(task: &TaskName, key: &Key) -> String {
    format!("{task} {key}")
}

/// Reads what [`task_key`] wrote.
pub(crate) fn split_task_key(field: &str) -> Option<(TaskName, Key)> {
    let (task, key) = field.split_once(' ')?;
    Some((TaskName::new(task).ok()?, Key::new(key).ok()?))
}

/// A number as a member of a sorted set, so that those of one score are in the order of numbers: the
/// first character encodes the number of digits that follow.
pub(crate) fn member(job: JobId) -> String {
    let digits = job.get().to_string();
    let length = ('a'..='z').nth(digits.len().saturating_sub(1)).unwrap_or('z');
    format!("{length}{digits}")
}

/// The fields of what runs in a queue: as a whole, at a worker, of a partition.
pub(crate) fn slots_of(
    queue: &QueueName,
    worker: Option<&WorkerId>,
    partition: Option<&Key>,
) -> Vec<String> {
    let worker = worker.map(|worker| slot_of_worker(queue, worker));
    let partition = partition.map(|partition| slot_of_partition(queue, partition));
    std::iter::once(queue.to_string()).chain(worker).chain(partition).collect()
}

/// The field of what runs in a queue at one worker.
pub(crate) fn slot_of_worker(queue: &QueueName, worker: &WorkerId) -> String {
    format!("{queue} w {worker}")
}

/// The field that counts the starts and ends of a queue with limits. What runs may be as many as
/// before though one has ended and another begun: their times are then to be heeded, too.
pub(crate) fn slot_changes(queue: &QueueName) -> String {
    format!("{queue} n")
}

/// The field that counts the starts of a queue of strict order, and what comes to be next in a partition
/// (R41).
pub(crate) fn slot_turns(queue: &QueueName) -> String {
    format!("{queue} t")
}

/// The field of what runs of a partition.
pub(crate) fn slot_of_partition(queue: &QueueName, partition: &Key) -> String {
    format!("{queue} p {partition}")
}
