//! Bugs in what workers claim, in which order, and when they are notified.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::{
    Answer, Claim, ClaimedJob, Job, JobFilter, JobState, NextDue, Operation, Result, Store,
    Timestamp,
};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &[
            "r08_quiet_period_bound_and_backoff_hold_to_the_microsecond",
            "r09_a_delay_holds_to_the_microsecond",
        ],
        bends: &[Bend::Ask(|_, now, operation| {
            if matches!(operation, Operation::Claim { .. }) {
                *now = now.map(|now| now + Duration::from_secs(2));
            }
        })],
        ..Bug::new("ClaimsAhead", 8, "claims take jobs two seconds before they are due")
    },
    Bug {
        suite: &["r28_unknown_tasks_are_left_alone"],
        bends: &[
            Bend::Trigger(|buggy, trigger| {
                buggy.memory().tasks.insert(trigger.task.clone());
            }),
            Bend::Ask(|buggy, _, operation| {
                if let Operation::Claim { claim } = operation {
                    claim.tasks = buggy.memory().tasks.iter().cloned().collect();
                }
            }),
        ],
        ..Bug::new(
            "HandsOutUnknownTasks",
            28,
            "workers get jobs of tasks that they have not registered",
        )
    },
    Bug {
        suite: &["r30_priority_then_due_then_id", "r30_the_whole_range_of_priorities"],
        bends: &[Bend::Trigger(|_, trigger| trigger.priority = 0)],
        ..Bug::new("IgnoresPriorities", 30, "priorities are ignored")
    },
    Bug {
        checker: &["P23"],
        alone: true,
        bends: &[Bend::Trigger(|buggy, trigger| {
            if buggy.each_third() {
                trigger.priority = trigger.priority.saturating_add(1);
            }
        })],
        ..Bug::new("OutOfOrder", 30, "some jobs jump the queue")
    },
    Bug {
        suite: &["r31_a_claim_is_bounded"],
        bends: &[Bend::Ask(|_, _, operation| {
            if let Operation::Claim { claim } = operation {
                claim.limit = usize::MAX;
            }
        })],
        ..Bug::new("ClaimsTheBacklog", 31, "a claim takes every job that is due")
    },
    Bug {
        checker: &["P11"],
        bends: &[Bend::Answer(run_again)],
        ..Bug::new("RunsTwice", 25, "a job that succeeded runs again")
    },
    Bug {
        suite: &["r34_next_due_is_exact"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            each_next(answer, |next| next.due = next.due.map(|due| due + Duration::from_secs(1)))
        })],
        ..Bug::new("LooksTooLate", 34, "the next due time is a second late")
    },
    Bug {
        suite: &["r34_new_and_earlier_due_times_are_told", "r34_a_freed_key_is_told"],
        checker: &["P7b"],
        alone: true,
        bends: &[Bend::NoWakeups],
        ..Bug::new("LosesWakeups", 34, "wake-ups are lost")
    },
    Bug {
        suite: &[
            "r19_who_waits_hears_of_every_end",
            "r12_r19_who_waits_hears_that_a_job_was_absorbed",
        ],
        bends: &[Bend::NoEnds],
        ..Bug::new("TellsNoEnds", 19, "callers that wait for the end of a job are not notified")
    },
    Bug {
        suite: &["r38_store_time_never_goes_back"],
        bends: &[Bend::Answer(|_, now, _, answer| {
            each_next(answer, |next| next.now = now.unwrap_or(next.now))
        })],
        ..Bug::new("TimeGoesBack", 38, "store time goes back")
    },
    Bug {
        suite: &["r42_an_attempt_is_given_the_traces_of_its_triggers"],
        checker: &["P33"],
        alone: true,
        bends: &[Bend::Answer(|buggy, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Claim(claimed) = &mut answer {
                for job in claimed.jobs.iter_mut().filter(|_| buggy.each_third()) {
                    job.traces = quell_core::trace::Traces::default();
                }
            }
            Ok(answer)
        })],
        ..Bug::new("ForgetsTraces", 42, "some attempts are not given the traces of their triggers")
    },
];

/// Changes what a store answers about the next due time.
fn each_next(answer: Result<Answer>, change: impl FnMut(&mut NextDue)) -> Result<Answer> {
    let mut answer = answer?;
    match &mut answer {
        Answer::NextDue(next) => std::slice::from_mut(next).iter_mut().for_each(change),
        Answer::Peek(all) => all.iter_mut().for_each(change),
        _ => {}
    }
    Ok(answer)
}

fn run_again(
    buggy: &Buggy,
    _: Option<Timestamp>,
    operation: &Operation,
    answer: Result<Answer>,
) -> Result<Answer> {
    let mut answer = answer?;
    if let (Operation::Claim { claim }, Answer::Claim(claimed)) = (operation, &mut answer)
        && claimed.jobs.is_empty()
        && claim.limit > 0
    {
        buggy.record();
        claimed.jobs.extend(succeeded_once(buggy, claimed.now, claim)?);
    }
    Ok(answer)
}

/// A claim of a job that has succeeded and did not run again so far.
fn succeeded_once(buggy: &Buggy, now: Timestamp, claim: &Claim) -> Result<Option<ClaimedJob>> {
    let jobs = at_once(buggy.inner.jobs(&JobFilter::default().state(JobState::Succeeded)))?;
    let mut memory = buggy.memory();
    let job = jobs.iter().find(|job| {
        job.queue == claim.queue && claim.tasks.contains(&job.task) && !memory.had.contains(&job.id)
    });
    let Some(job) = job else { return Ok(None) };
    memory.had.insert(job.id);
    let again = Job {
        token: job.token.next(claim.draw),
        attempt: job.attempt + 1,
        failures: 0,
        crashes: 0,
        lease_until: Some(now + claim.lease),
        ..job.clone()
    };
    let Some(again) = ClaimedJob::of(&again) else { return Ok(None) };
    buggy.sink.record(&Event::claimed(now, claim, &again));
    Ok(Some(again))
}
