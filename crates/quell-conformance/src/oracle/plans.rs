//! What a script does to schedules: few names and short intervals, so that ticks meet pauses,
//! changed plans and backfills.

use proptest::prelude::*;
use quell_core::schedule::{CatchUp, Schedule, ScheduleState, Spec};
use quell_core::{NewTrigger, ScheduleName, Timestamp};

use super::script::{Call, call};
use crate::rig::{Rig, secs};

/// One operation on a schedule.
#[derive(Clone, Debug)]
pub(super) enum PlanOp {
    Set { name: u8, spec: u8, catch_up: CatchUp, call: Call },
    Switch { name: u8, state: ScheduleState },
    Delete { name: u8 },
    Tick { limit: usize },
    Run { name: u8 },
    Backfill { name: u8, from: i64, seconds: u64 },
}

pub(super) fn plan_op() -> impl Strategy<Value = PlanOp> {
    let state = prop::sample::select(&[ScheduleState::Active, ScheduleState::Paused][..]);
    prop_oneof![
        4 => (name(), 0_u8..5, prop::sample::select(&CatchUp::ALL[..]), call())
            .prop_map(|(name, spec, catch_up, call)| PlanOp::Set { name, spec, catch_up, call }),
        2 => (name(), state).prop_map(|(name, state)| PlanOp::Switch { name, state }),
        1 => name().prop_map(|name| PlanOp::Delete { name }),
        10 => (0_usize..6).prop_map(|limit| PlanOp::Tick { limit }),
        1 => name().prop_map(|name| PlanOp::Run { name }),
        3 => (name(), -5_i64..120, 0_u64..60)
            .prop_map(|(name, from, seconds)| PlanOp::Backfill { name, from, seconds }),
    ]
}

fn name() -> impl Strategy<Value = u8> {
    0_u8..3
}

pub(super) fn schedule_name(number: u8) -> ScheduleName {
    ScheduleName::new(format!("s{number}")).expect("a valid name")
}

pub(super) fn schedule(name: u8, spec: u8, catch_up: CatchUp, call: &Call) -> Schedule {
    let anchor = Rig::START + secs(3);
    let spec = match spec {
        0 => Spec::every(secs(5), Rig::START),
        1 => Spec::every(secs(7), anchor),
        2 => Spec::every(secs(3_600), anchor),
        3 => Spec::cron("*/10 * * * * *", "Europe/Berlin"),
        _ => Spec::cron("0 * * * *", "UTC"),
    };
    let spec = spec.expect("a valid plan");
    // A schedule with one of these is refused before a store sees it.
    let trigger = NewTrigger { idempotency: None, trace: None, ..call.trigger() };
    Schedule { name: schedule_name(name), spec, catch_up, trigger, declared: None }
}

/// From this number of seconds after the start, perhaps before it.
pub(super) fn moment(from: i64) -> Timestamp {
    let time = secs(from.unsigned_abs());
    if from < 0 { Rig::START.before(time) } else { Rig::START + time }
}
