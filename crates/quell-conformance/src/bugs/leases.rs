//! Bugs in leases and in what an attempt costs: fences, renewals, expiry, backoff and workers.

use std::time::Duration;

use quell_core::heartbeat::WorkerRow;
use quell_core::history::Event;
use quell_core::{
    Answer, AttemptOutcome, ClaimedJob, Failure, FailureKind, Operation, Outcome, Result, Store,
};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

/// Changes the jobs that a claim answers with.
fn claimed(answer: Result<Answer>, change: impl FnMut(&mut ClaimedJob)) -> Result<Answer> {
    let mut answer = answer?;
    if let Answer::Claim(claimed) = &mut answer {
        claimed.jobs.iter_mut().for_each(change);
    }
    Ok(answer)
}

fn listed(answer: Result<Answer>, change: impl FnOnce(&mut Vec<WorkerRow>)) -> Result<Answer> {
    let mut answer = answer?;
    if let Answer::Workers(workers) = &mut answer {
        change(&mut workers.rows);
    }
    Ok(answer)
}

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r29_a_worker_learns_with_its_heartbeats_that_it_is_drained"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Heartbeat(beaten) = &mut answer {
                beaten.drained = false;
            }
            Ok(answer)
        })],
        ..Bug::new("DrainsUnheard", 29, "heartbeats do not say that the worker is drained")
    },
    Bug {
        suite: &["r29_a_worker_learns_with_its_heartbeats_that_it_is_drained"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            listed(answer, |rows| rows.iter_mut().for_each(|row| row.drained = None))
        })],
        ..Bug::new("DrainsUnlisted", 29, "the list does not say which workers are drained")
    },
    Bug {
        suite: &[
            "r21_an_expired_lease_is_taken_back_and_nothing_it_reports_counts",
            "r21_only_the_current_token_counts",
        ],
        checker: &["P10"],
        alone: true,
        bends: &[Bend::Settlement(|buggy, _, settlement| {
            if let Some(job) = at_once(buggy.inner.job(settlement.lease.job))? {
                settlement.lease.token = job.token;
            }
            Ok(())
        })],
        ..Bug::new("NoFence", 21, "settlements count without a valid lease token")
    },
    Bug {
        suite: &["r21_a_renewed_lease_holds"],
        bends: &[Bend::Answer(|_, now, operation, answer| {
            let mut answer = answer?;
            if let (Operation::Renew { lease, .. }, Answer::Renew(renewed)) =
                (operation, &mut answer)
            {
                let again = now.map(|now| now + *lease);
                renewed.iter_mut().for_each(|one| *one = one.until().or(again).into());
            }
            Ok(answer)
        })],
        ..Bug::new("RenewsWhatIsLost", 21, "a renewal of a lost lease is answered as if it held")
    },
    Bug {
        checker: &["P27"],
        alone: true,
        bends: &[Bend::Perform(|_, now, operation| {
            let Operation::Renew { leases, lease } = operation else { return None };
            let until = now.map(|now| now + *lease);
            Some(Ok(Answer::Renew(leases.iter().map(|_| until.into()).collect())))
        })],
        ..Bug::new("NeverRenews", 21, "leases are never renewed")
    },
    Bug {
        suite: &["r21_expired_leases_are_taken_back_in_order", "r31_a_crashed_slot_comes_back"],
        checker: &["P32"],
        alone: true,
        bends: &[Bend::Perform(|_, _, operation| {
            matches!(operation, Operation::Reap { .. }).then(|| Ok(Answer::Reap(Vec::new())))
        })],
        ..Bug::new("NeverReaps", 21, "expired leases are never reclaimed")
    },
    Bug {
        checker: &["P2"],
        bends: &[Bend::Answer(|buggy, now, _, answer| {
            let answer = answer?;
            if let Answer::Reap(expired) = &answer {
                buggy.record();
                for one in expired {
                    // One that was absorbed lives on in its successor.
                    let _ended = at_once(buggy.inner.cancel(now, one.lease.job, "lost"));
                }
                buggy.draft(Vec::clear);
            }
            Ok(answer)
        })],
        ..Bug::new("CrashLosesJob", 2, "a job whose lease expired is lost")
    },
    Bug {
        suite: &["r24_a_retry_waits_for_its_backoff"],
        checker: &["P13"],
        alone: true,
        bends: &[Bend::Settlement(|_, _, settlement| {
            if let Outcome::Failed(failure) = &mut settlement.outcome
                && let FailureKind::Transient { backoff, .. } = &mut failure.kind
            {
                *backoff = Duration::ZERO;
            }
            Ok(())
        })],
        ..Bug::new("ForgetsBackoff", 24, "a failed job is retried without its backoff")
    },
    Bug {
        suite: &["r29_released_and_snoozed_attempts_are_not_spent"],
        bends: &[Bend::Settlement(|_, _, settlement| {
            if matches!(settlement.outcome, Outcome::Released) {
                let (error, ended) = ("boom".to_owned(), AttemptOutcome::Failed);
                let backoff = Duration::ZERO;
                let kind = FailureKind::Transient { backoff, last: false, asked: false };
                settlement.outcome = Outcome::Failed(Failure { error, ended, kind });
            }
            Ok(())
        })],
        ..Bug::new("SpendsAttemptsOnReleases", 29, "a release spends an attempt")
    },
    Bug {
        checker: &["P12"],
        alone: true,
        bends: &[Bend::Answer(|buggy, _, _, answer| {
            claimed(answer, |job| {
                if job.crashes > 0 {
                    job.attempt += 1;
                    charge(buggy, job);
                }
            })
        })],
        ..Bug::new("ChargesExpiries", 25, "an expired lease spends an attempt")
    },
    Bug {
        suite: &[
            "r21_r25_crashes_in_a_row_are_counted_until_an_attempt_reports",
            "r12_r25_the_successor_takes_over_the_crashes",
            "r25_a_crash_beside_other_workers_counts",
            "r25_the_crash_of_the_only_worker_counts_once_the_next_one_starts",
        ],
        bends: &[Bend::Answer(|_, _, _, answer| claimed(answer, |job| job.crashes = 0))],
        ..Bug::new("ForgetsCrashes", 25, "crashes are not counted")
    },
    Bug {
        suite: &[
            "r39_an_outage_of_the_store_counts_no_crash",
            "r21_r25_a_worker_that_is_back_has_not_crashed",
        ],
        bends: &[Bend::Answer(|_, _, _, answer| {
            claimed(answer, |job| {
                let starts = u32::try_from(job.token.starts()).expect("few starts");
                job.crashes = starts - 1;
            })
        })],
        ..Bug::new("CountsEveryExpiry", 25, "each expired lease counts as a crash")
    },
    Bug {
        suite: &[
            "r25_workers_are_listed_until_they_stop_or_stay_away",
            "r15_r25_a_worker_row_names_the_tasks_of_its_worker",
        ],
        bends: &[Bend::Answer(|_, _, _, answer| listed(answer, Vec::clear))],
        ..Bug::new("ForgetsWorkers", 25, "workers are not listed")
    },
    Bug {
        suite: &[
            "r25_workers_are_listed_until_they_stop_or_stay_away",
            "r15_r25_a_worker_row_names_the_tasks_of_its_worker",
        ],
        bends: &[Bend::Answer(|_, _, _, answer| {
            listed(answer, |rows| rows.iter_mut().for_each(|row| row.tasks = None))
        })],
        ..Bug::new("ForgetsTasksOfWorkers", 15, "the tasks of workers are not kept")
    },
];

/// The claim's event has the attempt that the worker receives.
fn charge(buggy: &Buggy, claimed: &ClaimedJob) {
    buggy.draft(|events| {
        for event in events {
            if let Event::Claimed { job, attempt, .. } = event
                && *job == claimed.id
            {
                *attempt = claimed.attempt;
            }
        }
    });
}
