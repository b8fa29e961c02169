//! Accepting triggers: dedup first, then debounce (R3, R5–R9, R13, R16, R17).

use super::state::{State, TaskKey};
use crate::dedup::Dedup;
use crate::edge::{Landing, land, remember_trigger};
use crate::trigger::Keyed;
use crate::window::Debounce;
use crate::{Batch, Job, JobId, NewTrigger, Receipt, TriggerId};

impl State {
    /// Accepts a batch as a whole, or says that it is a duplicate as a whole (R17).
    pub(super) fn accept(&mut self, batch: &Batch) -> Vec<Receipt> {
        let first = batch.triggers.first();
        let batch_key = first.zip(batch.dedup.as_ref());
        if let Some((trigger, dedup)) = batch_key
            && let Some(job) = self.holder(trigger, dedup)
        {
            return vec![Receipt::Duplicate { job }; batch.triggers.len()];
        }
        let receipts: Vec<Receipt> =
            batch.triggers.iter().map(|trigger| self.accept_one(trigger)).collect();
        let job = receipts.first().and_then(Receipt::job);
        if let (Some((trigger, dedup)), Some(job)) = (batch_key, job) {
            self.hold(trigger, dedup, job);
        }
        receipts
    }

    fn accept_one(&mut self, trigger: &NewTrigger) -> Receipt {
        if let Some(dedup) = &trigger.dedup
            && let Some(job) = self.holder(trigger, dedup)
        {
            return Receipt::Duplicate { job };
        }
        self.know_queue(&trigger.queue);
        let receipt = match &trigger.keyed {
            Some(keyed) => self.accept_keyed(trigger, keyed),
            None => self.accept_unkeyed(trigger),
        };
        if let (Some(dedup), Some(job)) = (&trigger.dedup, receipt.job()) {
            self.hold(trigger, dedup, job);
        }
        receipt
    }

    fn accept_unkeyed(&mut self, trigger: &NewTrigger) -> Receipt {
        let job = Job::unkeyed(self.next_id(), trigger, self.now());
        self.opened(job)
    }

    fn accept_keyed(&mut self, trigger: &NewTrigger, keyed: &Keyed) -> Receipt {
        let debounce = self.resolve(trigger, &keyed.debounce);
        let keyed = Keyed { debounce, ..keyed.clone() };
        let step = trigger.step(&debounce, &keyed.fold, self.now());
        let task_key: TaskKey = (trigger.task.clone(), keyed.key.clone());
        let open = self.open_window(&trigger.task, &keyed.key);
        let window = open.and_then(|id| self.job(id)).map(|job| job.window);
        let memory = self.memories.get(&task_key).copied();
        let (job, receipt) = match land(&step, &debounce, window.as_ref(), memory.as_ref()) {
            Landing::Opens(window) => {
                let waits = !debounce.overlap && self.key_runs(&task_key);
                let job = Job::opened(self.next_id(), trigger, &keyed, window, waits);
                (job.id, self.opened(job))
            }
            Landing::Joins(window) => {
                let id = open.unwrap_or(JobId::new(0));
                self.update(id, |job| job.joined(trigger, &keyed, window));
                (id, self.debounced(id, window.triggers))
            }
            Landing::Suppressed(id) => {
                let counted = self.update(id, |job| {
                    job.suppressed();
                    job.window.triggers
                });
                (id, self.debounced(id, counted.unwrap_or(1)))
            }
        };
        if let Some(memory) = remember_trigger(memory.as_ref(), &step, debounce.edge, job) {
            self.memories.insert(task_key, memory);
        }
        receipt
    }

    /// R14: the queue's thresholds replace the process's defaults.
    fn resolve(&self, trigger: &NewTrigger, debounce: &Debounce) -> Debounce {
        let own = debounce.from_default.then(|| self.settings(&trigger.queue).debounce).flatten();
        Debounce { thresholds: own.unwrap_or(debounce.thresholds), ..*debounce }
    }

    fn opened(&mut self, job: Job) -> Receipt {
        let (id, trigger, due) = (job.id, job.newest_trigger(), job.window.due_at);
        self.insert(job);
        Receipt::Accepted { job: id, trigger, due }
    }

    fn debounced(&self, job: JobId, triggers: u64) -> Receipt {
        let due = self.job(job).map_or(self.now(), |job| job.window.due_at);
        Receipt::Debounced { job, trigger: TriggerId { job, seq: triggers }, triggers, due }
    }

    /// The job that holds a dedup key now (R16).
    fn holder(&self, trigger: &NewTrigger, dedup: &Dedup) -> Option<JobId> {
        let hold = self.holds.get(&(trigger.task.clone(), dedup.key.clone()))?;
        let job = self.job(hold.job).map(|job| (job.state, job.starts > 0));
        hold.holds(self.now(), job).then_some(hold.job)
    }

    fn hold(&mut self, trigger: &NewTrigger, dedup: &Dedup, job: JobId) {
        let hold = dedup.hold(job, self.now());
        self.holds.insert((trigger.task.clone(), dedup.key.clone()), hold);
    }
}
