//! The virtual answer: every window of a trace, opened and joined by the rules themselves.
//!
//! Workers are free without limit and runs take no time, so windows of different keys never meet:
//! each key is walked through on its own. Invariant: a window that is due is taken before a trigger
//! of the same instant joins, as the model store and the replay do it.

use quell_core::Timestamp;
use quell_core::edge::{Landing, land};
use quell_core::window::{Thresholds, Window};

use crate::rule::RuleArgs;
use crate::summary::{Spread, Summary};
use crate::trace::Trace;

/// What one pair of thresholds came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Runs, coverage, delay from each window's first trigger.
    pub summary: Summary,
    /// From every trigger to the start of the run that covers it.
    pub trigger_delay: Spread,
}

/// A trace made ready to be asked about many pairs.
#[derive(Debug)]
pub struct Simulation {
    /// The times of all keyed events, key by key, and in order within each.
    times: Vec<Timestamp>,
    /// Where each key's times begin; one more than there are keys.
    begins: Vec<usize>,
    /// Events without a key: each is its own run, at once (R9).
    unkeyed: usize,
}

impl Simulation {
    /// Sorts the events by key; those of one key keep their order.
    #[must_use]
    pub fn new(trace: &Trace) -> Simulation {
        let mut begins = vec![0; trace.keys().len() + 1];
        for position in trace.events().iter().filter_map(|event| event.key) {
            if let Some(count) = begins.get_mut(position.position() + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for begin in &mut begins {
            sum += *begin;
            *begin = sum;
        }
        let mut times = vec![Timestamp::MIN; sum];
        let mut next = begins.clone();
        for event in trace.events() {
            let Some(slot) = event.key.and_then(|key| next.get_mut(key.position())) else {
                continue;
            };
            if let Some(time) = times.get_mut(*slot) {
                *time = event.at;
            }
            *slot += 1;
        }
        Simulation { times, begins, unkeyed: trace.events().len() - sum }
    }

    /// What the trace comes to with these thresholds.
    #[must_use]
    pub fn run(&self, rule: &RuleArgs, thresholds: Thresholds) -> Simulated {
        let mut ran = Ran {
            delays: vec![0; self.unkeyed],
            trigger_delays: vec![0; self.unkeyed],
            covered: self.unkeyed as u64,
        };
        for bounds in self.begins.windows(2) {
            if let [begin, end] = bounds
                && let Some(times) = self.times.get(*begin..*end)
            {
                ran.walk(times, rule, thresholds);
            }
        }
        let summary = Summary {
            thresholds,
            triggers: (self.times.len() + self.unkeyed) as u64,
            runs: ran.delays.len() as u64,
            covered: ran.covered,
            delay: Spread::of(ran.delays),
        };
        Simulated { summary, trigger_delay: Spread::of(ran.trigger_delays) }
    }
}

/// What ran so far; delays in microseconds.
struct Ran {
    delays: Vec<u64>,
    trigger_delays: Vec<u64>,
    covered: u64,
}

impl Ran {
    /// Walks through the triggers of one key.
    fn walk(&mut self, times: &[Timestamp], rule: &RuleArgs, thresholds: Thresholds) {
        let debounce = rule.debounce(thresholds);
        let (mut open, mut first) = (None::<Window>, 0);
        for (place, at) in times.iter().enumerate() {
            if let Some(window) = open.take_if(|window| window.due_at <= *at) {
                self.take(&window, times.get(first..place));
                first = place;
            }
            match land(&rule.step(thresholds, *at), &debounce, open.as_ref(), None) {
                Landing::Opens(window) | Landing::Joins(window) => open = Some(window),
                Landing::Suppressed(_) => {}
            }
        }
        if let Some(window) = open {
            self.take(&window, times.get(first..));
        }
    }

    /// A free worker takes the window when it is due.
    fn take(&mut self, window: &Window, triggers: Option<&[Timestamp]>) {
        let micros =
            |at: Timestamp| u64::try_from(window.due_at.since(at).as_micros()).unwrap_or(u64::MAX);
        self.delays.push(micros(window.first_at));
        self.trigger_delays.extend(triggers.unwrap_or_default().iter().map(|at| micros(*at)));
        self.covered += window.triggers;
    }
}
