//! Bugs in how triggers are counted and what their callers receive.

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::{Batch, JobFilter, JobState, Now, Receipt, Result, Store, Timestamp, TriggerId};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r03_receipts_tell_what_became_of_each_trigger"],
        bends: &[Bend::Receipts(|_, _, _, receipts| {
            for receipt in receipts.iter_mut().flatten() {
                if let Receipt::Debounced { triggers, .. } = receipt {
                    *triggers += 1;
                }
            }
        })],
        ..Bug::new("CountsOneTooMany", 3, "receipts count one trigger too many")
    },
    Bug {
        checker: &["P4"],
        alone: true,
        bends: &[Bend::Receipts(repeat_ids)],
        ..Bug::new("SameTrigger", 3, "a trigger gets the id of the previous one")
    },
    Bug {
        suite: &["r05_a_batch_keeps_its_order_and_a_duplicate_fails_nobody"],
        bends: &[Bend::Receipts(|_, _, _, receipts| {
            if let Ok(receipts) = receipts {
                receipts.reverse();
            }
        })],
        ..Bug::new("AnswersOutOfOrder", 5, "the receipts of a batch are in another order")
    },
    Bug {
        checker: &["P2"],
        bends: &[Bend::Batch(join_running)],
        ..Bug::new(
            "JoinsRunning",
            2,
            "a trigger that arrives while its key runs is counted by that run",
        )
    },
    Bug {
        checker: &["P2"],
        alone: true,
        bends: &[Bend::Batch(suppress_trailing)],
        ..Bug::new("SuppressesTrailing", 13, "a trigger of a trailing task is suppressed")
    },
];

fn repeat_ids(
    buggy: &Buggy,
    _: Option<Timestamp>,
    batch: &Batch,
    receipts: &mut Result<Vec<Receipt>>,
) {
    if batch.triggers.iter().any(|trigger| trigger.dedup.is_some() || trigger.idempotency.is_some())
    {
        return;
    }
    for receipt in receipts.iter_mut().flatten() {
        if let Receipt::Debounced { trigger, .. } = receipt
            && trigger.seq > 2
            && buggy.each_third()
        {
            trigger.seq -= 1;
        }
    }
}

fn join_running(
    buggy: &Buggy,
    _: Option<Timestamp>,
    batch: &mut Batch,
) -> Option<Result<Vec<Receipt>>> {
    let [trigger] = &batch.triggers[..] else { return None };
    let keyed = trigger.keyed.as_ref().filter(|_| trigger.dedup.is_none())?;
    match buggy.of_key(&trigger.task, &keyed.key, JobState::Running) {
        Ok(Some(job)) => {
            let (id, triggers, due) = (job.id, job.window.triggers + 1, job.window.due_at);
            let trigger = TriggerId { job: id, seq: triggers };
            Some(Ok(vec![Receipt::Debounced { job: id, trigger, triggers, due }]))
        }
        Ok(None) => None,
        Err(error) => Some(Err(error)),
    }
}

/// Counts a trigger of a trailing task on the key's last job, which has run.
fn suppress_trailing(buggy: &Buggy, now: Now, batch: &mut Batch) -> Option<Result<Vec<Receipt>>> {
    let [trigger] = &batch.triggers[..] else { return None };
    let keyed = trigger.keyed.as_ref()?;
    if keyed.debounce.edge != Edge::Trailing
        || trigger.dedup.is_some()
        || trigger.idempotency.is_some()
    {
        return None;
    }
    let of_key = JobFilter::default().task(trigger.task.clone()).key(keyed.key.clone()).limit(1);
    let job = match at_once(buggy.inner.jobs(&of_key)) {
        Ok(mut jobs) => jobs.pop().filter(|job| job.state == JobState::Succeeded)?,
        Err(error) => return Some(Err(error)),
    };
    if !buggy.memory().had.insert(job.id) {
        return None;
    }
    let (id, count, due) = (job.id, job.window.triggers + 1, job.window.due_at);
    let t = now.unwrap_or(Timestamp::MIN);
    buggy.sink.record(&Event::Suppressed { t, job: id, count, suppressed: 1 });
    let trigger = TriggerId { job: id, seq: count };
    Some(Ok(vec![Receipt::Debounced { job: id, trigger, triggers: count, due }]))
}
