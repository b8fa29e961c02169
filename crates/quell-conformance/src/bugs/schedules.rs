//! Bugs in schedules: ticks, pauses, runs by hand and backfills.

use quell_core::history::Event;
use quell_core::schedule::{CatchUp, Fired, ScheduleInfo, ScheduleState, TickedBy};
use quell_core::{Answer, Now, Operation, Receipt, Result, ScheduleName, Store, Timestamp};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &["r36_a_tick_is_a_trigger_at_its_time"],
        bends: &[
            Bend::Ask(|_, _, operation| {
                if let Operation::Tick { limit } = operation {
                    *limit = 0;
                }
            }),
            Bend::Answer(|_, _, _, answer| {
                let mut answer = answer?;
                // Otherwise workers ask again without end.
                if let Answer::Tick(ticked) = &mut answer {
                    ticked.next = None;
                }
                Ok(answer)
            }),
        ],
        ..Bug::new("FiresNoTicks", 36, "no tick fires")
    },
    Bug {
        suite: &["r36_ticks_that_race_fire_once"],
        bends: &[Bend::Answer(|_, _, _, answer| {
            let mut answer = answer?;
            if let Answer::Tick(ticked) = &mut answer {
                ticked.fired.extend(ticked.fired.clone());
            }
            Ok(answer)
        })],
        ..Bug::new("FiresTicksTwice", 36, "each tick is answered twice")
    },
    Bug {
        checker: &["P25"],
        alone: true,
        bends: &[Bend::Answer(|buggy, _, _, answer| {
            let answer = answer?;
            if let Answer::Tick(ticked) = &answer {
                for fired in &ticked.fired {
                    if buggy.each_third() {
                        fire_again(buggy, ticked.now, fired)?;
                    }
                }
            }
            Ok(answer)
        })],
        ..Bug::new("TicksTwice", 36, "a tick that two workers request fires twice")
    },
    Bug {
        checker: &["P2"],
        bends: &[Bend::Answer(|buggy, now, _, answer| {
            let answer = answer?;
            if let Answer::Tick(ticked) = &answer {
                let receipts = ticked.fired.iter().map(|fired| &fired.receipt);
                receipts.for_each(|receipt| lose(buggy, now, receipt));
            }
            Ok(answer)
        })],
        ..Bug::new("TicksInVain", 36, "some ticks fire and trigger nothing")
    },
    Bug {
        suite: &["r36_missed_ticks_follow_catch_up", "r15_r36_a_job_tells_the_ticks_it_came_from"],
        checker: &["P25"],
        bends: &[
            Bend::Ask(|buggy, _, operation| {
                if let Operation::SetSchedule { schedule } = operation {
                    let wanted = std::mem::replace(&mut schedule.catch_up, CatchUp::None);
                    buggy.memory().catch_up.insert(schedule.name.clone(), wanted);
                }
            }),
            Bend::Event(|buggy, event| {
                if let Event::Schedule { schedule, catch_up, .. } = event
                    && let Some(wanted) = buggy.memory().catch_up.get(schedule)
                {
                    *catch_up = *wanted;
                }
            }),
        ],
        ..Bug::new("MissesTicks", 36, "missed ticks are not caught up")
    },
    Bug {
        suite: &["r36_a_step_of_ticks_is_bounded"],
        bends: &[Bend::Ask(|_, _, operation| {
            if let Operation::Tick { limit } = operation {
                *limit = usize::MAX;
            }
        })],
        ..Bug::new("IgnoresTheBoundOfTicks", 36, "a step fires every tick that is due")
    },
    Bug {
        suite: &[
            "r36_a_paused_schedule_fires_nothing_and_catches_up_nothing",
            "r36_r40_an_unknown_schedule_is_said_to_be",
        ],
        checker: &["P25"],
        bends: &[Bend::Perform(|buggy, now, operation| match operation {
            Operation::SetScheduleState { name, state: ScheduleState::Paused } => {
                Some(pretend_pause(buggy, now, name))
            }
            _ => None,
        })],
        ..Bug::new("TicksOn", 36, "a paused schedule ticks")
    },
    Bug {
        suite: &["r36_a_schedule_is_set_again"],
        bends: &[Bend::Ask(|buggy, now, operation| {
            if let Operation::SetSchedule { schedule } = operation {
                let _unknown = at_once(buggy.inner.delete_schedule(*now, &schedule.name));
            }
        })],
        ..Bug::new("PlansAnewWhenSet", 36, "a schedule that is set again begins again")
    },
    Bug {
        suite: &["r36_a_run_is_outside_the_plan"],
        bends: &[Bend::Ask(|buggy, now, operation| {
            if let Operation::RunSchedule { name } = operation {
                let _unknown = at_once(buggy.inner.run_schedule(*now, name));
            }
        })],
        ..Bug::new("RunsSchedulesTwice", 36, "a run by hand triggers twice")
    },
    Bug {
        suite: &[
            "r36_a_backfill_fires_each_tick_at_most_once",
            "r36_r37_what_fired_is_known_for_a_year",
        ],
        bends: &[Bend::Ask(|buggy, now, operation| {
            if let Operation::Backfill { name, .. } = operation
                && let Ok(Some(info)) = schedule(buggy, name)
            {
                let _infallible = at_once(buggy.inner.delete_schedule(*now, name));
                let _infallible = at_once(buggy.inner.set_schedule(*now, &info.schedule));
            }
        })],
        ..Bug::new("ForgetsWhichTicksFired", 36, "a backfill fires ticks again")
    },
    Bug {
        suite: &["r36_the_record_of_ticks_is_read_by_time"],
        bends: &[Bend::Ask(|_, _, operation| {
            if let Operation::Ticks { to, .. } = operation {
                *to = Timestamp::MAX;
            }
        })],
        ..Bug::new("ReadsTicksPastTheEnd", 36, "a read of ticks has more than was asked for")
    },
    Bug {
        suite: &["r36_r40_a_backfill_is_bounded"],
        bends: &[Bend::Ask(|_, now, operation| {
            if let Operation::Backfill { to, .. } = operation {
                *to = (*to).min(now.unwrap_or(*to));
            }
        })],
        ..Bug::new(
            "CutsBackfillsShort",
            36,
            "a backfill into the future is shortened without an error",
        )
    },
];

fn schedule(buggy: &Buggy, name: &ScheduleName) -> Result<Option<ScheduleInfo>> {
    let schedules = at_once(buggy.inner.schedules())?;
    Ok(schedules.into_iter().find(|info| info.schedule.name == *name))
}

/// Answers and records a pause that has no effect.
fn pretend_pause(buggy: &Buggy, now: Now, name: &ScheduleName) -> Result<Answer> {
    if let Some(info) = schedule(buggy, name)? {
        let (t, state) = (now.unwrap_or(Timestamp::MIN), ScheduleState::Paused);
        buggy.sink.record(&Event::schedule(t, &ScheduleInfo { state, ..info }));
    }
    Ok(Answer::SetScheduleState(()))
}

/// Fires a tick once more.
fn fire_again(buggy: &Buggy, now: Timestamp, fired: &Fired) -> Result<()> {
    buggy.record();
    let receipt = at_once(buggy.inner.run_schedule(Some(now), &fired.schedule))?;
    let again = Fired { receipt, ..fired.clone() };
    buggy.draft(|events| {
        for event in events {
            if matches!(event, Event::ScheduleRun { .. }) {
                *event = Event::ticked(now, &again, TickedBy::Plan);
            }
        }
    });
    Ok(())
}

/// Removes the job that some ticks triggered.
fn lose(buggy: &Buggy, now: Now, receipt: &Receipt) {
    if let Receipt::Accepted { job, .. } = receipt
        && buggy.each_third()
    {
        let opened = |event: &Event| matches!(event, Event::Window { job: of, .. } if of == job);
        buggy.draft(|events| events.retain(|event| !opened(event)));
        let _lost = buggy.unseen(buggy.inner.cancel(now, *job, "lost"));
    }
}
