//! Bugs in dead jobs: what is kept of them, and how operators find, redrive, discard and import them.

use std::time::Duration;

use quell_core::{
    Answer, DeadExport, JobId, Operation, Origin, Past, Result, Retention, SettledAs, Store,
};

use super::store::at_once;
use super::{Bend, Bug};

/// Changes the dead jobs that are exported.
fn exported(answer: Result<Answer>, change: impl FnMut(&mut DeadExport)) -> Result<Answer> {
    let mut answer = answer?;
    if let Answer::Exports(jobs) = &mut answer {
        jobs.iter_mut().for_each(change);
    }
    Ok(answer)
}

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r25_a_dead_job_keeps_everything"],
        checker: &["P15"],
        alone: true,
        bends: &[Bend::Settled(|buggy, now, _, settled| {
            if settled.became == SettledAs::Dead {
                let keep = Retention { succeeded: None, dead: Some(Duration::ZERO) };
                buggy.unseen(buggy.inner.prune(now, &keep, usize::MAX))?;
            }
            Ok(())
        })],
        ..Bug::new("DropsDead", 25, "dead jobs are dropped")
    },
    Bug {
        suite: &["r26_a_redrive_brings_fresh_attempts_or_joins_the_window"],
        bends: &[Bend::Perform(|_, _, operation| {
            let dead = || Ok(Answer::Redrive(SettledAs::Dead));
            matches!(operation, Operation::Redrive { .. }).then(dead)
        })],
        ..Bug::new("RedrivesNothing", 26, "a redrive has no effect")
    },
    Bug {
        suite: &["r25_the_dead_are_found_by_what_they_died_of"],
        bends: &[Bend::Ask(|_, _, operation| {
            if let Operation::Dead { filter } = operation {
                filter.error = None;
            }
        })],
        ..Bug::new("ListsAllTheDead", 25, "a list of dead jobs ignores the error of its filter")
    },
    Bug {
        suite: &["r26_an_edited_payload_runs_and_the_original_is_kept"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            exported(answer, |one| one.past = Past::default())
        })],
        ..Bug::new("ForgetsTheOriginal", 26, "an edit replaces the original payload")
    },
    Bug {
        suite: &["r26_a_redriven_job_keeps_its_history"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            exported(answer, |one| {
                let first = one.job.starts().saturating_sub(u64::from(one.job.attempt));
                one.attempts.retain(|attempt| attempt.token.starts() > first);
            })
        })],
        ..Bug::new("ForgetsAttemptsAtRedrive", 26, "a redrive forgets earlier attempts")
    },
    Bug {
        suite: &["r25_a_discard_takes_the_dead_and_nobody_else"],
        bends: &[Bend::Ask(|buggy, now, operation| {
            if let Operation::Discard { ids, reason } = operation {
                for id in ids {
                    // Jobs that have ended cannot be cancelled.
                    let _ended = at_once(buggy.inner.cancel(*now, *id, reason));
                }
            }
        })],
        ..Bug::new("DiscardsTheLiving", 25, "a discard cancels jobs that are not dead")
    },
    Bug {
        suite: &["r26_an_import_made_twice_makes_one_job"],
        bends: &[Bend::Ask(|buggy, _, operation| {
            if let Operation::ImportDead { exports: jobs } = operation {
                let nth = buggy.count();
                for one in jobs {
                    let Origin { job, first_at } = one.origin();
                    let job = JobId::new(job.get() + 1_000 * nth);
                    one.past.origin = Some(Origin { job, first_at });
                }
            }
        })],
        ..Bug::new("ImportsTwice", 26, "an import that is repeated makes a second job")
    },
];
