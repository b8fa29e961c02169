//! Bugs in effects: what attempts record of the world outside, and what commits with a settlement.

use quell_core::effect::EffectStart;
use quell_core::{Answer, Operation, Result, SettledAs, Timestamp};

use super::{Bend, Bug, Buggy};

/// Changes the answer to an effect that begins.
macro_rules! begun {
    ($operation:ident, $answer:ident, |$lease:pat_param, $key:pat_param| $($arms:tt)*) => {
        match ($operation, $answer) {
            (Operation::BeginEffect { lease: $lease, key: $key, .. }, answer) => {
                let begun = match answer {
                    Ok(Answer::BeginEffect(begun)) => Ok(begun),
                    Ok(other) => return Ok(other),
                    Err(error) => Err(error),
                };
                let begun: Result<EffectStart> = match begun { $($arms)* };
                begun.map(Answer::BeginEffect)
            }
            (_, answer) => answer,
        }
    };
}

/// Every result of an effect is accepted.
const ACCEPT_RESULTS: Bend = Bend::Answer(|_, _, operation, answer| match operation {
    Operation::EndEffect { .. } => Ok(Answer::EndEffect(())),
    _ => answer,
});

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r23_an_intent_and_its_result_are_on_record", "r23_a_bare_intent_keeps_its_key"],
        bends: &[
            Bend::Answer(|_, _, operation, answer| {
                begun!(operation, answer, |_, key|
                    Ok(_) => Ok(EffectStart::New { key: key.clone() }),
                    Err(error) => Err(error),
                )
            }),
            ACCEPT_RESULTS,
        ],
        ..Bug::new("ForgetsEffects", 23, "effects are not recorded")
    },
    Bug {
        suite: &["r23_a_bare_intent_keeps_its_key", "r23_intents_that_race_have_one_key"],
        bends: &[Bend::Answer(|_, _, operation, answer| {
            begun!(operation, answer, |_, key|
                Ok(EffectStart::Intended { .. }) => Ok(EffectStart::Intended { key: key.clone() }),
                begun => begun,
            )
        })],
        ..Bug::new("ChangesKeysOfEffects", 23, "an intent changes its key")
    },
    Bug {
        suite: &["r23_a_bare_intent_keeps_its_key"],
        checker: &["P19"],
        alone: true,
        bends: &[Bend::Answer(|_, _, operation, answer| {
            begun!(operation, answer, |_, key|
                Ok(EffectStart::Intended { .. }) => Ok(EffectStart::New { key: key.clone() }),
                begun => begun,
            )
        })],
        ..Bug::new(
            "ForgetsIntents",
            23,
            "the intent of an effect that an attempt left behind is lost",
        )
    },
    Bug {
        suite: &[
            "r21_r23_an_attempt_without_its_lease_records_nothing",
            "r23_a_result_needs_its_intent_and_stays",
        ],
        bends: &[
            Bend::Answer(|_, _, operation, answer| {
                begun!(operation, answer, |_, key|
                    Err(_) => Ok(EffectStart::New { key: key.clone() }),
                    begun => begun,
                )
            }),
            ACCEPT_RESULTS,
        ],
        ..Bug::new("RecordsWithoutLease", 21, "effects are recorded without a valid lease token")
    },
    Bug {
        suite: &[
            "r23_names_are_each_jobs_own",
            "r12_r23_a_successor_has_effects_of_its_own",
            "r23_the_same_intent_twice_is_one",
        ],
        bends: &[Bend::Answer(share)],
        ..Bug::new("SharesEffects", 23, "jobs share the effects of one name")
    },
    Bug {
        suite: &["r23_r26_effects_outlast_every_way_back"],
        bends: &[Bend::Answer(|_, _, operation, answer| {
            begun!(operation, answer, |lease, key|
                Ok(_) if lease.token.starts() > 2 => Ok(EffectStart::New { key: key.clone() }),
                begun => begun,
            )
        })],
        ..Bug::new("LosesEffectsOnTheWay", 23, "effects are lost after the second attempt")
    },
    Bug {
        suite: &["r23_r37_effects_go_with_their_jobs_row"],
        bends: &[Bend::Answer(keep_of_removed)],
        ..Bug::new("KeepsEffectsOfRemovedJobs", 37, "effects outlive the rows of their jobs")
    },
    Bug {
        suite: &["r23_r40_what_is_too_large_is_refused"],
        bends: &[ACCEPT_RESULTS],
        ..Bug::new("RecordsAnyResult", 40, "a result that is too large is accepted and dropped")
    },
    Bug {
        checker: &["P18"],
        alone: true,
        bends: &[Bend::Settled(|buggy, _, presented, settled| {
            if presented.outcome.is_success() && settled.became != SettledAs::Succeeded {
                buggy.record_effect(presented.lease);
            }
            Ok(())
        })],
        ..Bug::new(
            "EffectOutside",
            21,
            "effects are committed whether or not the settlement counts",
        )
    },
];

fn share(
    buggy: &Buggy,
    _: Option<Timestamp>,
    operation: &Operation,
    answer: Result<Answer>,
) -> Result<Answer> {
    let Operation::BeginEffect { name, key, .. } = operation else { return answer };
    let before = buggy.memory().effect_keys.insert(name.clone(), key.clone());
    match (answer, before) {
        (Ok(Answer::BeginEffect(_)), Some(key)) => {
            Ok(Answer::BeginEffect(EffectStart::Intended { key }))
        }
        (answer, _) => answer,
    }
}

fn keep_of_removed(
    buggy: &Buggy,
    _: Option<Timestamp>,
    operation: &Operation,
    answer: Result<Answer>,
) -> Result<Answer> {
    match (operation, answer) {
        (Operation::Effects { id }, Ok(Answer::Effects(effects))) => {
            let before = buggy.memory().effects.insert(*id, effects.clone());
            let kept = before.filter(|_| effects.is_empty());
            Ok(Answer::Effects(kept.unwrap_or(effects)))
        }
        (_, answer) => answer,
    }
}
