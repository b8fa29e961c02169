//! Each tick of a schedule fires once, and missed ones as the schedule says (P25).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_core::history::Event;
use quell_core::schedule::{CatchUp, ON_TIME, ScheduleState, Spec, TickedBy};
use quell_core::{ScheduleName, Timestamp};

use super::{Act, Book, Found, Line, Property};

/// How late a tick may fire in a world without harm: some hints arrive after 100 ms only.
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
    /// The time of the newest event about it.
    newest_at: Timestamp,
}

impl Property for Ticks {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        match &line.event {
            Event::Schedule { t, schedule, spec, catch_up, state, handled, .. } => {
                let fired = self.schedules.remove(schedule).map(|before| {
                    before.up_to(book, schedule, (*t, at), found);
                    before.fired
                });
                let fired = fired.unwrap_or_default();
                let (spec, catch_up, state) = (spec.clone(), *catch_up, *state);
                let (handled, newest_at) = (*handled, *t);
                let view = View { spec, catch_up, state, handled, fired, at, newest_at };
                self.schedules.insert(schedule.clone(), view);
            }
            Event::Unscheduled { schedule, .. } => drop(self.schedules.remove(schedule)),
            Event::Ticked { t, schedule, tick, by, .. } => {
                let Some(view) = self.schedules.get_mut(schedule) else {
                    let unknown = format!("unknown schedule {schedule} ticked");
                    let excuse = book.excuse(Act::Operate, Timestamp::MIN, *t);
                    found.unless(excuse, "P25", [at], unknown);
                    return;
                };
                let excuse = book.excuse(Act::Any, view.newest_at, *t);
                let why = match view.fired.get(tick) {
                    Some((before, by_plan)) => {
                        // The plan only goes forward, whatever else is missing from the record.
                        let sure = (*by_plan, *by) == (TickedBy::Plan, TickedBy::Plan);
                        let excuse = excuse.filter(|_| !sure);
                        Some((*before, "fired twice".to_owned(), excuse))
                    }
                    None => view.wrong(*tick, *t, *by).map(|why| (view.at, why, excuse)),
                };
                match why {
                    None => found.holds("P25"),
                    Some((shown, why, excuse)) => {
                        let message = format!("tick {tick} of {schedule} {why}");
                        found.unless(excuse, "P25", [shown, at], message);
                    }
                }
                view.newest_at = *t;
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
        found: &mut Found,
    ) {
        let calm = book.healed.is_some_and(|healed| healed + SETTLED < t);
        let active = self.state == ScheduleState::Active;
        if !calm || !active || self.catch_up == CatchUp::None {
            return;
        }
        let Some(late) = self.expected().filter(|tick| *tick + LATE < t) else {
            return found.holds("P25");
        };
        let waits = format!("tick {late} of {name} had not fired {:?} later", t.since(late));
        found.unless(book.excuse(Act::Any, self.newest_at, t), "P25", [self.at, at], waits);
    }
}
