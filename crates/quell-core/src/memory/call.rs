//! The operations of the memory store: each is one step, or one look.

use super::MemoryStore;
use crate::accept::accept;
use crate::store::lacks;
use crate::{Answer, Claimed, DeadFilter, Now, Operation, Result};

impl MemoryStore {
    /// Takes the step that an operation names.
    #[expect(clippy::too_many_lines, reason = "it has an arm for each operation")]
    #[expect(clippy::unit_arg, reason = "the answers of some steps have no value")]
    pub(super) fn take(&self, now: Now, operation: Operation) -> Result<Answer> {
        Ok(match operation {
            Operation::Enqueue { batches } => Answer::Enqueue(self.step(now, |state| {
                batches.iter().map(|batch| Ok(accept(state, batch)?)).collect()
            })),
            Operation::Claim { claim } => Answer::Claim(self.step(now, |state| Claimed {
                now: state.now(),
                jobs: state.claim(&claim),
                next: state.next_due(&claim.queue, &claim.tasks),
                rated: state.settings(&claim.queue).limits_rate(),
            })),
            Operation::Renew { leases, lease } => Answer::Renew(self.step(now, |state| {
                leases.iter().map(|held| state.renew(held, lease).into()).collect()
            })),
            Operation::Settle { settlements } => Answer::Settle(
                self.step(now, |state| settlements.iter().map(|one| state.settle(one)).collect()),
            ),
            Operation::BeginEffect { lease, name, key } => Answer::BeginEffect(
                self.step(now, |state| state.begin_effect(&lease, &name, &key))?,
            ),
            Operation::EndEffect { lease, name, result } => {
                Answer::EndEffect(self.step(now, |state| state.end_effect(&lease, &name, &result))?)
            }
            Operation::Effects { id } => Answer::Effects(self.locked().effects(id)),
            Operation::Heartbeat { beat } => {
                Answer::Heartbeat(self.step(now, |state| state.heartbeat(&beat)))
            }
            Operation::DrainWorker { drain } => {
                drain.validate()?;
                Answer::DrainWorker(self.step(now, |state| state.drain_worker(&drain)))
            }
            Operation::RemoveWorker { worker, incarnation } => Answer::RemoveWorker(
                self.step(now, |state| state.remove_worker(&worker, incarnation)),
            ),
            Operation::Workers {} => Answer::Workers(self.step(now, |state| state.workers())),
            Operation::Reap { limit } => Answer::Reap(self.step(now, |state| state.reap(limit))),
            Operation::NextDue { queue, tasks } => {
                Answer::NextDue(self.step(now, |state| state.next_due(&queue, &tasks)))
            }
            Operation::Peek { queues } => Answer::Peek(self.step(now, |state| {
                queues.iter().map(|(queue, tasks)| state.next_due(queue, tasks)).collect()
            })),
            Operation::Backlog { of } => {
                Answer::Backlog(self.step(now, |state| state.backlog(&of)))
            }
            Operation::Queues {} => Answer::Queues(self.locked().limits.queues()),
            Operation::SetQueue { queue, settings } => {
                settings.validate()?;
                Answer::SetQueue(self.step(now, |state| state.set_queue(&queue, &settings)))
            }
            Operation::ReplaceQueue { queue, known, settings } => {
                settings.validate()?;
                let known = known.as_ref();
                Answer::ReplaceQueue(
                    self.step(now, |state| state.replace_queue(&queue, known, &settings)),
                )
            }
            Operation::DeleteQueue { queue } => {
                Answer::DeleteQueue(self.step(now, |state| state.delete_queue(&queue)))
            }
            Operation::Tasks {} => Answer::Tasks(self.locked().limits.tasks()),
            Operation::TaskSettingsOf { tasks } => {
                Answer::TaskSettingsOf(self.locked().limits.tasks_of(&tasks))
            }
            Operation::SetTask { task, settings } => {
                settings.validate()?;
                Answer::SetTask(self.step(now, |state| state.set_task(&task, &settings)))
            }
            Operation::ReplaceTask { task, known, settings } => {
                settings.validate()?;
                Answer::ReplaceTask(
                    self.step(now, |state| state.replace_task(&task, &known, &settings)),
                )
            }
            Operation::Job { id } => Answer::Job(self.locked().job(id).cloned()),
            Operation::ResultOf { id } => Answer::ResultOf(self.locked().result(id)),
            Operation::Jobs { filter } => Answer::Jobs(self.locked().jobs(&filter)),
            Operation::Counts {} => Answer::Counts(self.locked().counts()),
            Operation::Attempts { id } => Answer::Attempts(self.locked().attempts(id)),
            Operation::Explain { target } => {
                Answer::Explain(self.step(now, |state| state.explain(&target))?)
            }
            Operation::Flush { task, key } => {
                Answer::Flush(self.step(now, |state| state.flush(&task, &key)))
            }
            Operation::CancelKey { task, key } => {
                Answer::CancelKey(self.step(now, |state| state.cancel_key(&task, &key))?)
            }
            Operation::Cancel { id, reason } => {
                Answer::Cancel(self.step(now, |state| state.cancel(id, &reason))?)
            }
            Operation::Adjust { id, adjustment } => {
                Answer::Adjust(self.step(now, |state| state.adjust(id, &adjustment))?)
            }
            Operation::Redrive { redrive } => {
                Answer::Redrive(self.step(now, |state| state.redrive(&redrive))?)
            }
            Operation::Prune { retention, limit } => {
                Answer::Prune(self.step(now, |state| state.prune(&retention, limit)))
            }
            Operation::Overview {} => Answer::Overview(self.step(now, |state| state.overview())),
            Operation::Alerts {} => Answer::Alerts(self.locked().alerts()),
            Operation::SetAlert { name, version, state: to } => Answer::SetAlert(
                self.step(now, |state| state.set_alert(&name, version, to.as_ref())),
            ),
            Operation::Checkup {} => return Err(lacks("checkup", "there is nothing to check")),
            Operation::SetSchedule { schedule } => {
                Answer::SetSchedule(self.step(now, |state| state.set_schedule(&schedule)))
            }
            Operation::SetScheduleState { name, state: to } => Answer::SetScheduleState(
                self.step(now, |state| state.set_schedule_state(&name, to))?,
            ),
            Operation::DeleteSchedule { name } => {
                Answer::DeleteSchedule(self.step(now, |state| state.delete_schedule(&name))?)
            }
            Operation::Schedules {} => Answer::Schedules(self.locked().schedules()),
            Operation::Ticks { name, from, to, limit } => {
                Answer::Ticks(self.locked().ticks_between(&name, from, to, limit)?)
            }
            Operation::Tick { limit } => Answer::Tick(self.step(now, |state| state.tick(limit))),
            Operation::RunSchedule { name } => {
                Answer::RunSchedule(self.step(now, |state| state.run_schedule(&name))?)
            }
            Operation::Backfill { name, from, to } => {
                Answer::Backfill(self.step(now, |state| state.backfill(&name, from, to))?)
            }
            Operation::Dead { filter } => Answer::Dead(self.locked().dead(&filter)),
            Operation::CountDead { filter } => {
                let all = DeadFilter { before: None, ..filter };
                let count = self.locked().all_jobs().filter(|job| all.matches(job)).count();
                Answer::CountDead(u64::try_from(count).unwrap_or(u64::MAX))
            }
            Operation::Exports { ids } => {
                let state = self.locked();
                let first = ids.iter().take(DeadFilter::MAX_PAGE);
                Answer::Exports(first.filter_map(|id| state.export(*id)).collect())
            }
            Operation::Discard { ids, reason } => Answer::Discard(self.step(now, |state| {
                ids.iter().copied().filter(|id| state.discard(*id, &reason)).collect()
            })),
            Operation::ImportDead { exports } => Answer::ImportDead(
                self.step(now, |state| exports.iter().map(|export| state.import(export)).collect()),
            ),
            // Rows in memory are values: none is ever unreadable.
            Operation::Unreadable { .. } => Answer::Unreadable(Vec::new()),
            Operation::Restore { .. } => Answer::Restore(Vec::new()),
        })
    }
}
