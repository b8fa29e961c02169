//! Explanations of the memory store (R15).

use super::state::State;
use crate::store::Lead;
use crate::{ExplainTarget, Explanation, Job, KeyAdvice, Result, TaskName, TriggerId};

impl State {
    pub(super) fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        let found = match target {
            ExplainTarget::Job(id) => self.job(*id),
            ExplainTarget::Trigger(trigger) => {
                self.job(trigger.job).filter(|job| trigger.seq <= job.window.triggers)
            }
            ExplainTarget::Key { task, key } => {
                let of_key = |job: &&Job| {
                    job.key.as_ref() == Some(key) && task.as_ref().is_none_or(|t| *t == job.task)
                };
                self.all_jobs().rev().find(of_key)
            }
            ExplainTarget::IdempotencyKey { task, key } => {
                Lead::newest(self.leads_of_records(task.as_ref(), key))?.and_then(|id| self.job(id))
            }
            ExplainTarget::DedupKey { task, key } => {
                Lead::newest(self.leads_of_holds(task.as_ref(), key))?.and_then(|id| self.job(id))
            }
        };
        let trigger = match target {
            ExplainTarget::Trigger(trigger) => Some(*trigger),
            ExplainTarget::Job(_)
            | ExplainTarget::Key { .. }
            | ExplainTarget::IdempotencyKey { .. }
            | ExplainTarget::DedupKey { .. } => None,
        };
        Ok(found.map(|job| self.story(trigger, job)))
    }

    fn story(&self, trigger: Option<TriggerId>, job: &Job) -> Explanation {
        let window = job.key.as_ref().and_then(|key| self.open_window(&job.task, key));
        let absorbed = self.jobs.values().filter(|other| other.absorbed_by == Some(job.id));
        Explanation {
            trigger,
            job: job.clone(),
            attempts: self.attempts(job.id),
            absorbed: absorbed.map(|other| other.id).collect(),
            open_window: window.filter(|window| *window != job.id),
            keys: self.key_advice(&job.task),
            ticks: self.ticks_of(job.id),
            past: self.pasts.get(&job.id).cloned().unwrap_or_default(),
            effects: self.effects(job.id),
        }
    }

    /// R15: looks at the newest keyed jobs of a task.
    fn key_advice(&self, task: &TaskName) -> Option<KeyAdvice> {
        let keyed = self.all_jobs().rev().filter(|job| job.task == *task && job.key.is_some());
        let sample = usize::try_from(KeyAdvice::SAMPLE).unwrap_or(usize::MAX);
        let (jobs, triggers) = keyed.take(sample).fold((0_u64, 0_u64), |(jobs, triggers), job| {
            (jobs.saturating_add(1), triggers.saturating_add(job.window.triggers))
        });
        (jobs > 0).then_some(KeyAdvice { jobs, triggers })
    }
}
