//! Bugs in what operators change: jobs that wait, and settings.

use quell_core::history::Event;
use quell_core::job::Adjusted;
use quell_core::{Answer, ErrorKind, Operation, Store};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

/// Answers as if a change had been made.
fn without_effect(buggy: &Buggy, operation: &Operation) -> Option<Answer> {
    let Operation::Adjust { id, .. } = operation else { return None };
    let job = at_once(buggy.inner.job(*id)).ok().flatten()?;
    Some(Answer::Adjust(job.adjusted()))
}

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r15_run_now_ends_each_wait", "r07_r15_a_join_does_not_undo_a_run_now"],
        bends: &[Bend::Perform(|buggy, _, operation| match operation {
            Operation::Adjust { adjustment, .. } if adjustment.run_now => {
                without_effect(buggy, operation).map(Ok)
            }
            _ => None,
        })],
        ..Bug::new("RunsNothingNow", 15, "run now has no effect")
    },
    Bug {
        checker: &["P13", "P6"],
        bends: &[Bend::Event(|_, event| {
            if let Event::Adjust { run_now, .. } = event {
                *run_now = false;
            }
        })],
        ..Bug::new(
            "HidesRunNow",
            15,
            "a job that was run now starts early, and the record hides why",
        )
    },
    Bug {
        suite: &["r15_r30_a_new_priority_moves_a_job_in_line"],
        bends: &[Bend::Perform(|buggy, _, operation| match operation {
            Operation::Adjust { adjustment, .. } if adjustment.priority.is_some() => {
                without_effect(buggy, operation).map(Ok)
            }
            _ => None,
        })],
        ..Bug::new("KeepsPriorities", 30, "a new priority has no effect")
    },
    Bug {
        suite: &["r15_only_jobs_that_wait_are_changed"],
        bends: &[Bend::Answer(|_, now, operation, answer| match (operation, answer) {
            (Operation::Adjust { .. }, Err(error)) if error.kind() == ErrorKind::IllegalMove => {
                let due_at = now.unwrap_or_default();
                Ok(Answer::Adjust(Adjusted { due_at, priority: 0, waits: false }))
            }
            (_, answer) => answer,
        })],
        ..Bug::new("ChangesWhatRuns", 15, "a job that runs is changed, as its answer says")
    },
    Bug {
        suite: &["r32_settings_are_replaced_by_who_knows_them"],
        bends: &[Bend::Ask(|buggy, _, operation| {
            if let Operation::ReplaceQueue { queue, known, .. } = operation {
                let queues = at_once(buggy.inner.queues()).unwrap_or_default();
                let there = queues.into_iter().find(|there| there.name == *queue);
                *known = there.map(|there| there.settings);
            }
        })],
        ..Bug::new("ReplacesUnseen", 32, "settings are replaced whatever they are")
    },
];
