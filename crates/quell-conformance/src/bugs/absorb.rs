//! Bugs in what becomes of a failed job whose key has a newer window.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::{
    Answer, AttemptOutcome, FailureKind, JobState, NextDue, Now, Outcome, Result, Settled,
    SettledAs, Settlement, Store, Timestamp,
};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r12_the_run_of_failures_goes_on_in_the_successor_and_buries_nobody"],
        bends: &[Bend::Settlement(|_, _, settlement| {
            if let Outcome::Failed(failure) = &mut settlement.outcome
                && matches!(failure.kind, FailureKind::Transient { last: true, .. })
            {
                failure.kind = FailureKind::Permanent;
            }
            Ok(())
        })],
        ..Bug::new("BuriesInsteadOfAbsorbing", 12, "a job dies although its key has a newer window")
    },
    Bug {
        checker: &["P14"],
        bends: &[Bend::Settlement(absorb_nothing)],
        ..Bug::new("AbsorbsNothing", 12, "a failed job is absorbed, but its triggers are not")
    },
    Bug {
        checker: &["P14"],
        alone: true,
        bends: &[Bend::Event(name_another)],
        ..Bug::new(
            "AbsorbsElsewhere",
            12,
            "a job names another job than its successor as the one that absorbed it",
        )
    },
    Bug {
        checker: &["P7b"],
        bends: &[
            Bend::NoWakeups,
            Bend::Settled(disarm),
            Bend::Answer(|buggy, _, _, answer| {
                let mut answer = answer?;
                match &mut answer {
                    Answer::Claim(claimed) => hide_disarmed(buggy, &mut claimed.next)?,
                    Answer::NextDue(next) => hide_disarmed(buggy, next)?,
                    Answer::Peek(all) => {
                        all.iter_mut().try_for_each(|next| hide_disarmed(buggy, next))?;
                    }
                    _ => {}
                }
                Ok(answer)
            }),
        ],
        ..Bug::new(
            "AbsorbDisarms",
            34,
            "a window that absorbed a job is due earlier than workers are notified",
        )
    },
];

fn absorb_nothing(buggy: &Buggy, now: Now, settlement: &mut Settlement) -> Result<()> {
    let Some(job) = at_once(buggy.inner.job(settlement.lease.job))? else { return Ok(()) };
    let at = now.unwrap_or(Timestamp::MIN);
    if matches!(settlement.outcome, Outcome::Failed(_))
        && let Some(key) = &job.key
        && job.is_held_by(settlement.lease.token, at)
        && let Some(successor) = buggy.of_key(&job.task, key, JobState::Scheduled)?
    {
        buggy.unseen(buggy.inner.cancel(now, job.id, "lost"))?;
        let became = SettledAs::Absorbed { by: successor.id, due: successor.window.due_at };
        buggy.sink.record(&Event::settled(at, settlement, became));
    }
    Ok(())
}

fn name_another(buggy: &Buggy, event: &mut Event) {
    let mut memory = buggy.memory();
    let (became, job) = match event {
        Event::Settle { became: SettledAs::Succeeded, job, .. } => {
            memory.elsewhere = Some(*job);
            return;
        }
        // A failure would hold back another job, too.
        Event::Settle { outcome: AttemptOutcome::Failed, .. } => return,
        Event::Settle { became, job, .. } | Event::Expire { became, job, .. } => (became, *job),
        _ => return,
    };
    if let (SettledAs::Absorbed { by, .. }, Some(other)) = (became, memory.elsewhere)
        && other != job
    {
        *by = other;
    }
}

fn disarm(buggy: &Buggy, now: Now, _: &Settlement, settled: &mut Settled) -> Result<()> {
    if let SettledAs::Absorbed { by, .. } = settled.became {
        buggy.memory().disarmed.insert(by);
        let due = now.unwrap_or(Timestamp::MIN) + Duration::from_secs(3_600);
        settled.became = SettledAs::Absorbed { by, due };
    }
    Ok(())
}

/// Leaves out the due time of windows that absorbed a job.
fn hide_disarmed(buggy: &Buggy, next: &mut NextDue) -> Result<()> {
    let disarmed = buggy.memory().disarmed.clone();
    for id in disarmed {
        let job = at_once(buggy.inner.job(id))?;
        if job.is_some_and(|job| Some(job.window.due_at) == next.due) {
            next.due = None;
        }
    }
    Ok(())
}
