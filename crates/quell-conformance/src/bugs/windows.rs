//! Bugs in debounce windows: how long they stay open, what closes them, what may run beside them.

use std::time::Duration;

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    Answer, Batch, JobState, Key, NewTrigger, Now, Operation, Receipt, Result, SettledAs, Store,
    Timestamp,
};

use super::store::at_once;
use super::{Bend, Bug, Buggy};

/// Changes the debounce policy of a trigger with a key.
fn debounce(trigger: &mut NewTrigger, change: impl FnOnce(&mut Debounce)) {
    if let Some(keyed) = &mut trigger.keyed {
        change(&mut keyed.debounce);
    }
}

/// Changes thresholds, where they are still valid and the key is not throttled.
fn thresholds(
    trigger: &mut NewTrigger,
    change: impl FnOnce(Duration, Duration) -> (Duration, Duration),
) {
    debounce(trigger, |debounce| {
        let (min, max) = change(debounce.thresholds.min(), debounce.thresholds.max());
        if let Ok(changed) = Thresholds::new(min, max)
            && debounce.edge != Edge::Throttle
        {
            debounce.thresholds = changed;
        }
    });
}

pub(super) const BUGS: &[Bug] = &[
    Bug {
        suite: &[
            "r06_triggers_that_race_share_one_window",
            "r06_r08_the_published_scenarios_are_exact",
        ],
        bends: &[Bend::Trigger(|buggy, trigger| {
            let nth = buggy.count();
            if let Some(keyed) = &mut trigger.keyed {
                let twin = format!("{}#{}", keyed.key.as_str(), nth % 2);
                keyed.key = Key::new(&twin).unwrap_or_else(|_| keyed.key.clone());
            }
        })],
        ..Bug::new("OpensSecondWindows", 6, "a key has two open windows")
    },
    Bug {
        checker: &["P8"],
        alone: true,
        bends: &[
            Bend::Batch(open_second),
            Bend::Answer(|_, _, _, answer| {
                let mut answer = answer?;
                if let Answer::Claim(claimed) = &mut answer {
                    let keys = claimed.jobs.iter_mut().filter_map(|job| job.key.as_mut());
                    keys.for_each(rename);
                }
                Ok(answer)
            }),
            Bend::Event(|_, event| {
                if let Event::Window { key: Some(key), .. }
                | Event::Claimed { key: Some(key), .. } = event
                {
                    rename(key);
                }
            }),
        ],
        ..Bug::new("SecondWindow", 6, "a key whose attempts may overlap has two open windows")
    },
    Bug {
        suite: &[
            "r07_joins_move_due_but_never_past_max",
            "r08_max_is_a_timer_and_needs_no_message_to_come_by",
        ],
        checker: &["P7a"],
        alone: true,
        bends: &[Bend::Trigger(|_, trigger| thresholds(trigger, |min, max| (min, max * 1_000)))],
        ..Bug::new("NeverCapped", 7, "joins move the due time without a bound")
    },
    Bug {
        checker: &["P7a"],
        bends: &[
            Bend::Trigger(|_, trigger| thresholds(trigger, |min, max| (min, max * 1_000))),
            Bend::Receipts(notice_caps),
        ],
        ..Bug::new(
            "CapNoticedOnJoin",
            8,
            "the bound takes effect only when a later trigger arrives",
        )
    },
    Bug {
        suite: &["r07_joins_move_due_but_never_past_max"],
        bends: &[Bend::Trigger(|_, trigger| debounce(trigger, |it| it.max_triggers = None))],
        ..Bug::new("ForgetsMaxTriggers", 7, "windows grow past their number of triggers")
    },
    Bug {
        checker: &["P8"],
        bends: &[Bend::Trigger(|_, trigger| debounce(trigger, |it| it.max_bytes = None))],
        ..Bug::new("NeverFull", 10, "windows grow past their byte limit")
    },
    Bug {
        suite: &["r07_a_window_is_flushed_and_cancelled_by_key"],
        bends: &[Bend::Perform(|_, _, operation| {
            matches!(operation, Operation::Flush { .. }).then(|| Ok(Answer::Flush(None)))
        })],
        ..Bug::new("FlushesNothing", 7, "a flush has no effect")
    },
    Bug {
        checker: &["P6"],
        alone: true,
        bends: &[Bend::Trigger(|_, trigger| {
            if trigger.keyed.as_ref().is_some_and(|it| it.debounce.edge == Edge::Trailing) {
                thresholds(trigger, |min, max| (min / 2, max));
            }
        })],
        ..Bug::new("StartsEarly", 6, "a window starts early")
    },
    Bug {
        suite: &["r08_r38_thresholds_are_not_whole_seconds_nor_on_callers_clocks"],
        bends: &[Bend::Trigger(|_, trigger| {
            let whole = |time: Duration| Duration::from_secs(time.as_secs().max(1));
            debounce(trigger, |it| {
                let (min, max) = (whole(it.thresholds.min()), whole(it.thresholds.max()));
                it.thresholds = Thresholds::new(min, max).expect("min is at most max");
            });
        })],
        ..Bug::new("CountsWholeSeconds", 8, "thresholds are whole seconds")
    },
    Bug {
        suite: &[
            "r11_one_attempt_of_a_key_at_a_time",
            "r11_an_overdue_window_still_waits_for_the_running_attempt",
        ],
        checker: &["P9"],
        alone: true,
        bends: &[Bend::Trigger(|_, trigger| debounce(trigger, |it| it.overlap = true))],
        ..Bug::new("NoExclusion", 11, "attempts of one key run together")
    },
    Bug {
        suite: &["r11_overlap_lets_attempts_of_a_key_run_together"],
        bends: &[Bend::Trigger(|_, trigger| debounce(trigger, |it| it.overlap = false))],
        ..Bug::new("ForgetsOverlap", 11, "attempts of a key that may overlap do not")
    },
    Bug {
        suite: &["r13_edges_run_what_they_say"],
        bends: &[Bend::Trigger(|_, trigger| debounce(trigger, |it| it.edge = Edge::Trailing))],
        ..Bug::new("ForgetsEdges", 13, "each key runs at the end of its burst only")
    },
    Bug {
        checker: &["P8b"],
        alone: true,
        bends: &[Bend::Trigger(|_, trigger| {
            debounce(trigger, |it| {
                if it.edge == Edge::Leading {
                    it.edge = Edge::Trailing;
                }
            });
        })],
        ..Bug::new("LeadsLate", 13, "a leading edge runs at the end of the burst")
    },
    Bug {
        suite: &["r14_thresholds_come_from_the_queue"],
        bends: &[Bend::Trigger(|_, trigger| debounce(trigger, |it| it.from_default = false))],
        ..Bug::new("ForgetsTheQueuesThresholds", 14, "thresholds of a queue are ignored")
    },
    Bug {
        suite: &[
            "r02_r11_a_trigger_during_a_run_is_never_marked_done_by_it",
            "r12_a_success_leaves_the_newer_window_as_it_is",
        ],
        checker: &["P2"],
        bends: &[Bend::Settled(|buggy, now, _, settled| {
            let job = at_once(buggy.inner.job(settled.lease.job))?;
            if settled.became == SettledAs::Succeeded
                && let Some(job) = job
                && let Some(key) = &job.key
            {
                buggy.unseen(buggy.inner.cancel_key(now, &job.task, key))?;
            }
            Ok(())
        })],
        ..Bug::new(
            "ClosesNewerWindow",
            2,
            "a successful run closes the window that opened during it",
        )
    },
];

/// Opens a second window of a key, under another name. Attempts of such a key may overlap, so nothing
/// else is wrong with them.
fn open_second(
    buggy: &Buggy,
    _: Option<Timestamp>,
    batch: &mut Batch,
) -> Option<Result<Vec<Receipt>>> {
    let [trigger] = &mut batch.triggers[..] else { return None };
    let keyed = trigger.keyed.as_mut().filter(|keyed| keyed.debounce.overlap)?;
    match buggy.of_key(&trigger.task, &keyed.key, JobState::Scheduled) {
        Ok(Some(_)) if buggy.each_third() => match Key::new(format!("{}~", keyed.key)) {
            Ok(other) => keyed.key = other,
            Err(error) => return Some(Err(error)),
        },
        Ok(_) => {}
        Err(error) => return Some(Err(error)),
    }
    None
}

/// Gives a key of a second window its own name again.
fn rename(key: &mut Key) {
    if let Ok(own) = Key::new(key.as_str().trim_end_matches('~')) {
        *key = own;
    }
}

fn notice_caps(buggy: &Buggy, now: Now, batch: &Batch, receipts: &mut Result<Vec<Receipt>>) {
    for trigger in &batch.triggers {
        if receipts.is_ok()
            && let Err(error) = notice_cap(buggy, now, trigger)
        {
            *receipts = Err(error);
        }
    }
}

/// Makes the window of a trigger due, if it is past the bound that its trigger had before the bug.
fn notice_cap(buggy: &Buggy, now: Now, trigger: &NewTrigger) -> Result<()> {
    let Some(keyed) = &trigger.keyed else { return Ok(()) };
    let Some(window) = buggy.of_key(&trigger.task, &keyed.key, JobState::Scheduled)? else {
        return Ok(());
    };
    let bound = window.window.first_at + keyed.debounce.thresholds.max() / 1_000;
    if now.is_some_and(|now| now >= bound) {
        at_once(buggy.inner.flush(now, &trigger.task, &keyed.key))?;
    }
    Ok(())
}
