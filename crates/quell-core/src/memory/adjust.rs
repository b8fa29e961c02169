//! Changes that an operator asks for and that depend on what is there: of a job that waits (R15),
//! and of settings that are still those that the operator read (R32).

use super::Event;
use super::state::State;
use crate::job::{Adjusted, Adjustment};
use crate::{JobId, QueueName, QueueSettings, Result, SettledAs, TaskName, TaskSettings};

impl State {
    pub(super) fn adjust(&mut self, id: JobId, adjustment: &Adjustment) -> Result<Adjusted> {
        adjustment.validate()?;
        let now = self.now();
        // Refused before anything is written.
        self.known(id)?.clone().adjust(now, adjustment)?;
        let Adjustment { run_now, priority } = *adjustment;
        self.push_event(|| Event::Adjust { t: now, job: id, run_now, priority });
        self.update(id, |job| job.adjust(now, adjustment)).transpose()?;
        if run_now {
            // R11, R13: what holds its key holds it still.
            let due = self.known(id)?.window.due_at;
            self.moved_back(id, SettledAs::Scheduled { due });
        }
        Ok(self.known(id)?.adjusted())
    }

    /// Sets a queue whose settings are still those that the caller knows.
    pub(super) fn replace_queue(
        &mut self,
        queue: &QueueName,
        known: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> bool {
        let is_same = self.limits.queues.get(queue).and_then(Option::as_ref) == known;
        if is_same {
            self.set_queue(queue, settings);
        }
        is_same
    }
    /// Sets a task whose settings are still those that the caller knows.
    pub(super) fn replace_task(
        &mut self,
        task: &TaskName,
        known: &TaskSettings,
        settings: &TaskSettings,
    ) -> bool {
        let there = self.limits.tasks.get(task);
        let is_same = there.map_or(*known == TaskSettings::default(), |there| there == known);
        if is_same {
            self.set_task(task, settings);
        }
        is_same
    }
}
