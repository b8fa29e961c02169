//! Each tick of a schedule fires once, and missed ones as the schedule says (P25).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_core::history::Event;
use quell_core::schedule::{CatchUp, ON_TIME, ScheduleState, Spec, TickedBy};
use quell_core::{ScheduleName, Timestamp};

use super::{Book, Line, Property, Violation, broken};

/// How late a tick may fire in a world without harm: some hints are heard after 100 ms only.
const LATE: Duration = Duration::from_millis(200);
/// How long after the last harm everyone knows of every schedule: calls that were slow have ended.
const SETTLED: Duration = Duration::from_secs(4);

/// P25: what the ticks of schedules owe to their plans.
#[derive(Debug, Default)]
pub(super) struct Ticks {
    schedules: BTreeMap<ScheduleName, View>,
}

/// A schedule so far.
#[derive(Debug)]
struct View {
    spec: Spec,
    catch_up: CatchUp,
    state: ScheduleState,
    handled: Timestamp,
    fired: BTreeMap<Timestamp, (usize, TickedBy)>,
    /// The line that set it.
    at: usize,
}

impl Property for Ticks {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Vec<Violation>) {
        match &line.event {
            Event::Schedule { t, schedule, spec, catch_up, state, handled, .. } => {
                let fired = self.schedules.remove(schedule).map(|before| {
                    before.up_to(book, schedule, (*t, at), found);
                    before.fired
                });
                let fired = fired.unwrap_or_default();
                let (spec, catch_up, state) = (spec.clone(), *catch_up, *state);
                let view = View { spec, catch_up, state, handled: *handled, fired, at };
                self.schedules.insert(schedule.clone(), view);
            }
            Event::Unscheduled { schedule, .. } => drop(self.schedules.remove(schedule)),
            Event::Ticked { t, schedule, tick, by, .. } => {
                let Some(view) = self.schedules.get_mut(schedule) else {
                    if book.complete {
                        let unknown = format!("unknown schedule {schedule} ticked");
                        broken(found, "P25", [at], unknown);
                    }
                    return;
                };
                let why = match view.fired.get(tick) {
                    // The plan only goes forward, whatever else is missing from the record.
                    Some((before, TickedBy::Plan)) if *by == TickedBy::Plan => {
                        Some((*before, "fired twice".to_owned()))
                    }
                    Some((before, _)) if book.complete => Some((*before, "fired twice".to_owned())),
                    None if book.complete => view.wrong(*tick, *t, *by).map(|why| (view.at, why)),
                    Some(_) | None => None,
                };
                if let Some((shown, why)) = why {
                    let message = format!("tick {tick} of {schedule} {why}");
                    broken(found, "P25", [shown, at], message);
                }
                view.take(*tick, *by, at);
            }
            _ => {}
        }
    }
}

impl View {
    /// What is wrong with this tick, if anything.
    fn wrong(&self, tick: Timestamp, t: Timestamp, by: TickedBy) -> Option<String> {
        let spec = &self.spec;
        if spec.next(tick.before(Duration::from_micros(1))) != Some(tick) {
            return Some("is none of its plan".to_owned());
        }
        if tick > t {
            return Some(format!("fired {:?} early", tick.since(t)));
        }
        if by == TickedBy::Backfill {
            return None;
        }
        if self.state == ScheduleState::Paused {
            return Some("fired while it was paused".to_owned());
        }
        match self.catch_up {
            _ if tick <= self.handled => Some("fired after a later one".to_owned()),
            CatchUp::All => {
                let missed = self.expected().filter(|expected| *expected < tick);
                missed.map(|missed| format!("fired, and the one of {missed} did not"))
            }
            CatchUp::Latest | CatchUp::None if spec.latest(t) != Some(tick) => {
                Some("fired though a later one had come".to_owned())
            }
            CatchUp::None if t.since(tick) > ON_TIME => {
                Some(format!("fired {:?} late", t.since(tick)))
            }
            CatchUp::Latest | CatchUp::None => None,
        }
    }

    fn take(&mut self, tick: Timestamp, by: TickedBy, at: usize) {
        self.fired.insert(tick, (at, by));
        if by == TickedBy::Plan {
            self.handled = self.handled.max(tick);
        }
    }

    /// The next tick that is to fire by plan.
    fn expected(&self) -> Option<Timestamp> {
        let fired: BTreeSet<&Timestamp> = self.fired.keys().collect();
        self.spec.ticks(self.handled).find(|tick| !fired.contains(tick))
    }

    /// In a world without harm, no tick that came before `t` is still to fire.
    fn up_to(
        &self,
        book: &Book,
        name: &ScheduleName,
        (t, at): (Timestamp, usize),
        found: &mut Vec<Violation>,
    ) {
        let calm = book.healed.is_some_and(|healed| healed + SETTLED < t) && book.complete;
        let active = self.state == ScheduleState::Active;
        if !calm || !active || self.catch_up == CatchUp::None {
            return;
        }
        if let Some(late) = self.expected().filter(|tick| *tick + LATE < t) {
            let waits = format!("tick {late} of {name} had not fired {:?} later", t.since(late));
            broken(found, "P25", [self.at, at], waits);
        }
    }
}
