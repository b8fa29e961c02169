//! Bugs in what a store accepts: whole calls, batches, delays and payloads.

use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_core::{
    Answer, Batch, Error, ErrorKind, Fold, JobId, Key, NewTrigger, Now, Payload, Receipt, Result,
    TaskName, Timestamp, TriggerId, When,
};

use super::{Accepting, Bend, Bug, Buggy};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r02_every_accepted_trigger_is_covered_by_a_later_attempt"],
        bends: &[Bend::Trigger(|buggy, trigger| {
            if buggy.each_third() {
                trigger.task = lost();
            }
        })],
        ..Bug::new("LosesEveryThird", 2, "each third trigger is lost")
    },
    Bug {
        checker: &["P2"],
        bends: &[Bend::Batch(acknowledge_unwritten)],
        ..Bug::new("AcksBeforeWrite", 2, "the call is acknowledged before the write")
    },
    Bug {
        checker: &["P3"],
        alone: true,
        bends: &[Bend::Receipts(refuse_accepted)],
        ..Bug::new("RunsRefused", 1, "a trigger without a key runs although the call failed")
    },
    Bug {
        suite: &["r01_r02_a_crash_between_key_and_message_cannot_exist"],
        bends: &[Bend::Interleave(|buggy, now, batches| {
            mark_first(buggy, now, batches, |trigger| {
                trigger.keyed.as_ref().map(|keyed| &keyed.key)
            })
        })],
        ..Bug::new("PushesTheMessageLater", 1, "the message follows the key in a second write")
    },
    Bug {
        suite: &["r05_a_batch_that_was_cut_off_is_whole_or_never_was"],
        bends: &[Bend::Interleave(|buggy, now, batches| {
            Box::pin(accept_each_member(buggy, now, batches))
        })],
        ..Bug::new("AcceptsMemberByMember", 5, "a batch is written one trigger at a time")
    },
    Bug {
        suite: &["r18_a_large_batch_is_accepted_or_refused_whole"],
        bends: &[Bend::Batch(|_, _, batch| {
            batch.triggers.truncate(1_000);
            None
        })],
        ..Bug::new("CutsLargeBatches", 18, "the end of a large batch is dropped")
    },
    Bug {
        suite: &["r06_keys_of_different_tasks_and_parts_never_meet"],
        bends: &[Bend::Trigger(|_, trigger| {
            trigger.task = TaskName::new("t").expect("a valid name");
        })],
        ..Bug::new("GluesTaskAndKey", 6, "keys of different tasks are one")
    },
    Bug {
        suite: &["r40_the_largest_input_that_is_allowed_is_kept_whole"],
        bends: &[Bend::Trigger(|_, trigger| {
            if let Some(keyed) = &mut trigger.keyed {
                let short: String = keyed.key.as_str().chars().take(100).collect();
                keyed.key = Key::new(&short).expect("a part of a key is a key");
            }
        })],
        ..Bug::new("CutsKeys", 40, "the end of a long key is dropped")
    },
    Bug {
        suite: &["r09_a_trigger_without_a_key_is_its_own_job_at_once"],
        bends: &[Bend::Trigger(|_, trigger| {
            if trigger.keyed.is_none() {
                trigger.when = When::After(Duration::from_secs(10));
            }
        })],
        ..Bug::new("MakesPlainTriggersWait", 9, "a trigger without a key is debounced")
    },
    Bug {
        suite: &["r09_a_delay_holds_to_the_microsecond"],
        bends: &[Bend::Trigger(|_, trigger| trigger.when = When::Now)],
        ..Bug::new("ForgetsDelays", 9, "delays are ignored")
    },
    Bug {
        suite: &[
            "r07_r40_a_delay_beyond_max_is_refused_and_one_within_it_is_kept",
            "r14_r40_a_delay_is_judged_by_the_queues_thresholds",
        ],
        bends: &[Bend::Trigger(|_, trigger| {
            if let (Some(keyed), When::After(delay)) = (&trigger.keyed, trigger.when) {
                trigger.when = When::After(delay.min(keyed.debounce.thresholds.max()));
            }
        })],
        ..Bug::new("CutsDelays", 40, "a delay past the longest one is shortened without an error")
    },
    Bug {
        suite: &[
            "r10_payloads_fold_as_the_policy_says",
            "r09_r10_a_task_that_collects_gets_an_array_without_a_key_too",
            "r26_a_large_window_is_carried_and_edited_at_its_size",
        ],
        bends: &[Bend::Trigger(|_, trigger| trigger.fold = Fold::Last)],
        ..Bug::new("KeepsTheLastPayload", 10, "each fold keeps the last payload only")
    },
    Bug {
        checker: &["P5"],
        alone: true,
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Claim(claimed) = &mut answer {
                let folded = claimed.jobs.iter_mut().filter(|job| job.key.is_some());
                folded
                    .filter(|job| job.triggers > 1)
                    .for_each(|job| job.payload = Payload::from_stored("{}"));
            }
            Ok(answer)
        })],
        ..Bug::new("MangledPayload", 10, "the handler receives another payload than the fold")
    },
];

/// A task without a worker.
fn lost() -> TaskName {
    TaskName::new("lost").expect("a valid name")
}

fn acknowledge_unwritten(
    buggy: &Buggy,
    now: Now,
    batch: &mut Batch,
) -> Option<Result<Vec<Receipt>>> {
    let [trigger] = &batch.triggers[..] else { return None };
    if trigger.dedup.is_some() || !buggy.each_third() {
        return None;
    }
    let job = JobId::new(8_000_000 + buggy.memory().count);
    let (trigger, due) = (TriggerId { job, seq: 1 }, now.unwrap_or(Timestamp::MIN));
    Some(Ok(vec![Receipt::Accepted { job, trigger, due }]))
}

fn refuse_accepted(
    buggy: &Buggy,
    _: Option<Timestamp>,
    batch: &Batch,
    receipts: &mut Result<Vec<Receipt>>,
) {
    let plain =
        |one: &NewTrigger| one.keyed.is_none() && one.dedup.is_none() && one.idempotency.is_none();
    if receipts.is_ok() && batch.triggers.iter().all(plain) && buggy.each_third() {
        *receipts = Err(Error::new(ErrorKind::Unavailable, "the answer was lost"));
    }
}

/// Marks keys in a write of its own, before the triggers: where the call ends in between, the mark
/// stays and the next trigger with that key is lost.
pub(super) fn mark_first(
    buggy: &Buggy,
    now: Now,
    mut batches: Vec<Batch>,
    key: fn(&NewTrigger) -> Option<&Key>,
) -> Accepting<'_> {
    let accept: BoxFuture<'_, _> = Box::pin(async move {
        let triggers = batches.iter().flat_map(|batch| &batch.triggers);
        let marks: Vec<Key> = triggers.filter_map(key).cloned().collect();
        if !marks.is_empty() {
            if marks.iter().any(|key| buggy.memory().marked.contains(key)) {
                let triggers = batches.iter_mut().flat_map(|batch| &mut batch.triggers);
                triggers.for_each(|trigger| trigger.task = lost());
            }
            buggy.memory().marked.extend(marks.iter().cloned());
            tokio::task::yield_now().await;
            buggy.memory().marked.retain(|key| !marks.contains(key));
        }
        buggy.enqueue(now, batches)
    });
    accept
}

async fn accept_each_member(
    buggy: &Buggy,
    now: Now,
    batches: Vec<Batch>,
) -> Result<Vec<Result<Vec<Receipt>>>> {
    let mut receipts = Vec::new();
    for batch in batches {
        let mut of_batch = Vec::new();
        for trigger in batch.triggers {
            let one = Batch { triggers: vec![trigger], dedup: batch.dedup.clone() };
            of_batch.extend(buggy.enqueue(now, vec![one])?.remove(0)?);
            tokio::task::yield_now().await;
        }
        receipts.push(Ok(of_batch));
    }
    Ok(receipts)
}
