//! What an operation may touch, as far as the operation itself says.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::heartbeat::WorkerDrain;
use crate::{
    AlertName, Batch, ExplainTarget, JobId, Key, Operation, QueueName, ScheduleName, TaskName,
    WorkerId,
};

/// A row that an operation names, and with it what belongs to that row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// A queue: its settings, what its limits count, and the jobs in it.
    Queue(QueueName),
    /// A task: its settings.
    Task(TaskName),
    /// A debounce key of a task: its windows, its attempts and what edges remember of it.
    Key(TaskName, Key),
    /// A dedup key of a task, and the job that it names.
    Dedup(TaskName, Key),
    /// An idempotency key of a task, and the job that it names.
    Idempotency(TaskName, Key),
    /// A job: what is on record of it, the keys that name it, and the other jobs of its debounce
    /// key.
    Job(JobId),
    /// A schedule, its ticks, and what its trigger touches.
    Schedule(ScheduleName),
    /// A worker.
    Worker(WorkerId),
    /// An alert.
    Alert(AlertName),
}

/// Which rows an [`Operation`] reads or writes: for a store that finds rows, locks them or chooses
/// a shard before it takes the operation.
///
/// ```
/// use quell_core::{Key, Operation, Root, Scope, TaskName};
///
/// # fn main() -> quell_core::Result<()> {
/// let (task, key) = (TaskName::new("report")?, Key::new("customer-7")?);
/// let flush = Operation::Flush { task: task.clone(), key: key.clone() };
/// assert_eq!(flush.scope(), Scope::Of([Root::Key(task, key)].into()));
/// assert_eq!(Operation::Counts {}.scope(), Scope::Store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// These and what belongs to them.
    Of(BTreeSet<Root>),
    /// Any row: what is due, expired, old or in a list decides.
    Store,
}

impl Scope {
    fn of(roots: impl IntoIterator<Item = Root>) -> Self {
        Scope::Of(roots.into_iter().collect())
    }

    fn of_batches(batches: &[Batch]) -> Self {
        let mut roots = BTreeSet::new();
        for batch in batches {
            // The key of a batch is of its first task (R17).
            let first = batch.triggers.first().map(|trigger| &trigger.task);
            let whole = batch.dedup.iter().zip(first);
            roots.extend(whole.map(|(dedup, task)| Root::Dedup(task.clone(), dedup.key.clone())));
            for trigger in &batch.triggers {
                let task = &trigger.task;
                roots.insert(Root::Queue(trigger.queue.clone()));
                roots.insert(Root::Task(task.clone()));
                let keyed = trigger.keyed.as_ref();
                roots.extend(keyed.map(|keyed| Root::Key(task.clone(), keyed.key.clone())));
                let dedup = trigger.dedup.as_ref();
                roots.extend(dedup.map(|dedup| Root::Dedup(task.clone(), dedup.key.clone())));
                let known = trigger.idempotency.as_ref();
                roots.extend(known.map(|known| Root::Idempotency(task.clone(), known.key.clone())));
            }
        }
        Scope::Of(roots)
    }

    fn of_target(target: &ExplainTarget) -> Self {
        match target {
            ExplainTarget::Job(id) => Scope::of([Root::Job(*id)]),
            ExplainTarget::Trigger(trigger) => Scope::of([Root::Job(trigger.job)]),
            ExplainTarget::IdempotencyKey { task: Some(task), key } => {
                Scope::of([Root::Idempotency(task.clone(), key.clone())])
            }
            ExplainTarget::DedupKey { task: Some(task), key } => {
                Scope::of([Root::Dedup(task.clone(), key.clone())])
            }
            // A key may be named without its task.
            ExplainTarget::Key { .. }
            | ExplainTarget::IdempotencyKey { task: None, .. }
            | ExplainTarget::DedupKey { task: None, .. } => Scope::Store,
        }
    }

    fn of_queues(queues: &[(QueueName, Arc<[TaskName]>)]) -> Self {
        let tasks = queues.iter().flat_map(|(_, tasks)| tasks.iter().cloned());
        let queues = queues.iter().map(|(queue, _)| Root::Queue(queue.clone()));
        Scope::of(tasks.map(Root::Task).chain(queues))
    }

    fn of_queue(queue: &QueueName, tasks: &[TaskName]) -> Self {
        let tasks = tasks.iter().cloned().map(Root::Task);
        Scope::of(tasks.chain([Root::Queue(queue.clone())]))
    }
}

impl Operation {
    /// Which rows it may touch.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self {
            Operation::Enqueue { batches } => Scope::of_batches(batches),
            Operation::Claim { claim } => Scope::of_queue(&claim.queue, &claim.tasks),
            Operation::NextDue { queue, tasks } => Scope::of_queue(queue, tasks),
            Operation::Peek { queues } => Scope::of_queues(queues),
            Operation::Renew { leases, .. } => {
                Scope::of(leases.iter().map(|lease| Root::Job(lease.job)))
            }
            Operation::Settle { settlements } => {
                Scope::of(settlements.iter().map(|one| Root::Job(one.lease.job)))
            }
            Operation::BeginEffect { lease, .. } | Operation::EndEffect { lease, .. } => {
                Scope::of([Root::Job(lease.job)])
            }
            Operation::Effects { id }
            | Operation::Job { id }
            | Operation::ResultOf { id }
            | Operation::Attempts { id }
            | Operation::Cancel { id, .. }
            | Operation::Adjust { id, .. } => Scope::of([Root::Job(*id)]),
            Operation::Redrive { redrive } => Scope::of([Root::Job(redrive.id)]),
            Operation::Exports { ids }
            | Operation::Discard { ids, .. }
            | Operation::Restore { ids } => Scope::of(ids.iter().copied().map(Root::Job)),
            Operation::Explain { target } => Scope::of_target(target),
            Operation::Flush { task, key } | Operation::CancelKey { task, key } => {
                Scope::of([Root::Key(task.clone(), key.clone())])
            }
            Operation::Backlog { of } => Scope::of([Root::Queue(of.queue.clone())]),
            Operation::SetQueue { queue, .. }
            | Operation::ReplaceQueue { queue, .. }
            | Operation::DeleteQueue { queue } => Scope::of([Root::Queue(queue.clone())]),
            Operation::SetTask { task, .. } | Operation::ReplaceTask { task, .. } => {
                Scope::of([Root::Task(task.clone())])
            }
            Operation::TaskSettingsOf { tasks } => Scope::of(tasks.iter().cloned().map(Root::Task)),
            Operation::SetSchedule { schedule } => {
                Scope::of([Root::Schedule(schedule.name.clone())])
            }
            Operation::SetScheduleState { name, .. }
            | Operation::DeleteSchedule { name }
            | Operation::RunSchedule { name }
            | Operation::Ticks { name, .. }
            | Operation::Backfill { name, .. } => Scope::of([Root::Schedule(name.clone())]),
            Operation::Heartbeat { beat } => Scope::of([Root::Worker(beat.worker.clone())]),
            Operation::RemoveWorker { worker, .. }
            | Operation::DrainWorker { drain: WorkerDrain { worker, .. } } => {
                Scope::of([Root::Worker(worker.clone())])
            }
            Operation::SetAlert { name, .. } => Scope::of([Root::Alert(name.clone())]),
            Operation::Workers {}
            | Operation::Reap { .. }
            | Operation::Queues {}
            | Operation::Tasks {}
            | Operation::Jobs { .. }
            | Operation::Counts {}
            | Operation::Prune { .. }
            | Operation::Overview {}
            | Operation::Alerts {}
            | Operation::Checkup {}
            | Operation::Schedules {}
            | Operation::Tick { .. }
            | Operation::Dead { .. }
            | Operation::CountDead { .. }
            | Operation::ImportDead { .. }
            | Operation::Unreadable { .. } => Scope::Store,
        }
    }
}
