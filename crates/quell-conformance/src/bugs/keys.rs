//! Bugs in dedup and idempotency keys, and in the outputs that idempotency keys keep.

use quell_core::{
    Batch, Capabilities, Error, ErrorKind, JobId, Outcome, Receipt, Result, Timestamp,
};

use super::triggers::mark_first;
use super::{Bend, Bug, Buggy};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r16_a_key_is_taken_for_its_ttl", "r17_one_key_for_a_batch"],
        checker: &["P16"],
        alone: true,
        bends: &[Bend::Batch(forget_dedup)],
        ..Bug::new("TakesKeyTwice", 16, "a dedup key that is held is granted again")
    },
    Bug {
        suite: &["r17_one_key_for_a_batch"],
        bends: &[Bend::Batch(|_, _, batch| {
            batch.dedup = None;
            None
        })],
        ..Bug::new("ForgetsBatchKeys", 17, "the dedup key of a batch is ignored")
    },
    Bug {
        suite: &["r18_a_dedup_key_is_kept_or_refused"],
        bends: &[
            Bend::Claims(|claims| Capabilities { dedup: false, ..claims }),
            Bend::Batch(forget_dedup),
        ],
        ..Bug::new(
            "ClaimsNoDedupAndAcceptsKeys",
            18,
            "a store without the capability accepts dedup keys and ignores them",
        )
    },
    Bug {
        suite: &["r16_a_call_that_was_cut_off_burns_no_key"],
        bends: &[Bend::Interleave(|buggy, now, batches| {
            mark_first(buggy, now, batches, |trigger| {
                trigger.dedup.as_ref().map(|dedup| &dedup.key)
            })
        })],
        ..Bug::new("BurnsDedupKeys", 16, "a call that is cut off keeps its dedup key")
    },
    Bug {
        checker: &["P17"],
        alone: true,
        bends: &[Bend::Batch(burn)],
        ..Bug::new("BurnsKey", 16, "a trigger whose write failed keeps its dedup key")
    },
    Bug {
        suite: &[
            "r19_later_triggers_get_the_first_ones_job_and_output",
            "r19_another_payload_is_refused",
            "r20_equal_payloads_of_a_window_are_one_trigger",
            "r03_idempotency_is_checked_before_dedup_and_debounce",
        ],
        checker: &["P26"],
        alone: true,
        bends: &[Bend::Trigger(|_, trigger| trigger.idempotency = None)],
        ..Bug::new("ForgetsIdempotency", 19, "idempotency keys are not kept")
    },
    Bug {
        suite: &[
            "r19_a_key_is_kept_for_its_retention",
            "r19_a_key_that_was_free_stays_free_after_a_redrive",
        ],
        bends: &[Bend::Trigger(|_, trigger| {
            if let Some(idempotency) = &mut trigger.idempotency {
                idempotency.retention *= 1_000;
            }
        })],
        ..Bug::new("KeepsIdempotencyKeysForever", 19, "idempotency keys outlive their retention")
    },
    Bug {
        suite: &["r19_an_output_is_kept_with_its_job", "r37_an_output_outlives_its_jobs_row"],
        bends: &[Bend::Settlement(|_, _, settlement| {
            if settlement.outcome.is_success() {
                settlement.outcome = Outcome::succeeded();
            }
            Ok(())
        })],
        ..Bug::new("ForgetsOutputs", 19, "outputs are not kept")
    },
];

fn forget_dedup(
    _: &Buggy,
    _: Option<Timestamp>,
    batch: &mut Batch,
) -> Option<Result<Vec<Receipt>>> {
    batch.dedup = None;
    batch.triggers.iter_mut().for_each(|trigger| trigger.dedup = None);
    None
}

fn burn(buggy: &Buggy, _: Option<Timestamp>, batch: &mut Batch) -> Option<Result<Vec<Receipt>>> {
    let [trigger] = &batch.triggers[..] else { return None };
    let key = (trigger.task.clone(), trigger.dedup.as_ref()?.key.clone());
    if let Some(job) = buggy.memory().burned.get(&key).copied() {
        return Some(Ok(vec![Receipt::Duplicate { job }]));
    }
    if !buggy.each_third() {
        return None;
    }
    let mut memory = buggy.memory();
    let job = JobId::new(9_000_000 + memory.count);
    memory.burned.insert(key, job);
    Some(Err(Error::new(ErrorKind::Unavailable, "the write failed")))
}
