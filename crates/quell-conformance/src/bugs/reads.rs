//! Bugs in what a store shows of its jobs, and in how it removes, cancels and watches them.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::{
    Answer, ErrorKind, ExplainTarget, JobResult, JobState, Operation, Pruned, Retention, Store,
};

use super::store::at_once;
use super::{Bend, Bug};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r18_jobs_are_listed_or_the_list_is_refused"],
        bends: &[Bend::Perform(|_, _, operation| {
            matches!(operation, Operation::Jobs { .. }).then(|| Ok(Answer::Jobs(Vec::new())))
        })],
        ..Bug::new("ListsNothing", 18, "lists of jobs are empty")
    },
    Bug {
        checker: &["P1"],
        alone: true,
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Jobs(jobs) = &mut answer {
                jobs.retain(|job| {
                    job.state != JobState::Succeeded || !job.id.get().is_multiple_of(3)
                });
            }
            Ok(answer)
        })],
        ..Bug::new("Vanishes", 1, "jobs that succeeded are gone")
    },
    Bug {
        suite: &["r15_a_job_a_trigger_and_a_key_are_explained"],
        bends: &[Bend::Perform(|_, _, operation| {
            matches!(operation, Operation::Explain { .. }).then(|| Ok(Answer::Explain(None)))
        })],
        ..Bug::new("ExplainsNothing", 15, "nothing is explained")
    },
    Bug {
        suite: &[
            "r15_a_dedup_and_an_idempotency_key_lead_to_their_job",
            "r15_a_key_of_any_task_leads_to_the_newest_job",
            "r15_r37_a_key_tells_of_a_job_that_was_removed",
        ],
        bends: &[Bend::Answer(|_, _, operation, answer| match operation {
            Operation::Explain {
                target: ExplainTarget::IdempotencyKey { .. } | ExplainTarget::DedupKey { .. },
            } => Ok(Answer::Explain(None)),
            _ => answer,
        })],
        ..Bug::new("LeadsNowhere", 15, "dedup and idempotency keys lead to no job")
    },
    Bug {
        suite: &[
            "r31_partitions_are_listed_by_what_waits_in_them",
            "r11_r31_a_job_that_waits_for_its_key_is_in_the_backlog",
            "r31_a_look_at_a_backlog_is_bounded_and_hides_no_line",
        ],
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Backlog(backlog) = &mut answer {
                backlog.partitions.iter_mut().for_each(|one| one.waiting.later += 1);
            }
            Ok(answer)
        })],
        ..Bug::new("MiscountsBacklogs", 31, "a partition has a job more than waits in it")
    },
    Bug {
        suite: &["r25_the_first_and_the_last_attempts_are_kept"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Attempts(attempts) = &mut answer
                && attempts.len() > 20
            {
                attempts.drain(..5);
            }
            Ok(answer)
        })],
        ..Bug::new("KeepsTheLastAttemptsOnly", 25, "the first attempts of a job are not kept")
    },
    Bug {
        suite: &["r37_an_output_without_a_key_goes_with_its_job"],
        bends: &[Bend::Answer(|_, _, operation, answer| match (operation, answer?) {
            (Operation::ResultOf { id }, Answer::ResultOf(None)) => {
                let (job, state) = (*id, JobState::Succeeded);
                let invented = JobResult { job, state, output: None, error: None };
                Ok(Answer::ResultOf(Some(invented)))
            }
            (_, answer) => Ok(answer),
        })],
        ..Bug::new("InventsResults", 37, "a job that is not there has a result")
    },
    Bug {
        suite: &["r25_a_reason_of_any_length_is_kept_up_to_its_bound"],
        bends: &[Bend::Ask(|_, _, operation| {
            if let Operation::Cancel { reason, .. } = operation {
                "cancelled".clone_into(reason);
            }
        })],
        ..Bug::new("CutsReasons", 25, "the reason of a cancellation is not kept")
    },
    Bug {
        checker: &["P11"],
        alone: true,
        bends: &[Bend::Answer(|buggy, now, operation, answer| match (operation, now, answer) {
            (Operation::Cancel { id, .. }, Some(t), Err(error))
                if error.kind() == ErrorKind::IllegalMove =>
            {
                buggy.sink.record(&Event::Cancel { t, job: *id });
                Ok(Answer::Cancel(()))
            }
            (_, _, answer) => answer,
        })],
        ..Bug::new("CancelsEnded", 25, "a job that has ended can be cancelled")
    },
    Bug {
        suite: &["r37_each_end_has_its_retention"],
        bends: &[Bend::Ask(|_, _, operation| {
            if let Operation::Prune { retention, .. } = operation {
                let at_once = Some(Duration::ZERO);
                *retention = Retention { succeeded: at_once, dead: at_once };
            }
        })],
        ..Bug::new("PrunesAtOnce", 37, "ended jobs are removed before their retention is over")
    },
    Bug {
        suite: &[
            "r37_expired_keys_go_as_fast_as_they_come",
            "r37_an_expired_key_goes_once_its_job_has_ended",
        ],
        bends: &[Bend::Perform(|_, _, operation| match operation {
            Operation::Prune { limit, .. } if *limit < usize::MAX => {
                Some(Ok(Answer::Prune(Pruned::default())))
            }
            _ => None,
        })],
        ..Bug::new("KeepsExpiredKeys", 37, "nothing is removed")
    },
    Bug {
        suite: &["r27_dead_jobs_and_the_oldest_due_one_are_told"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Overview(overview) = &mut answer {
                overview.lanes.clear();
            }
            Ok(answer)
        })],
        ..Bug::new("SeesNoTrouble", 27, "alerts see neither dead jobs nor late ones")
    },
    Bug {
        suite: &[
            "r27_an_alerts_row_is_changed_by_who_knows_it",
            "r27_servers_that_race_raise_once_and_clear_once",
        ],
        bends: &[Bend::Ask(|buggy, _, operation| {
            if let Operation::SetAlert { name, version, .. } = operation {
                let rows = at_once(buggy.inner.alerts()).unwrap_or_default();
                *version = rows.iter().find(|row| row.name == *name).map_or(0, |row| row.version);
            }
        })],
        ..Bug::new("WritesAlertsUnseen", 27, "an alert is written whatever its version is")
    },
];
