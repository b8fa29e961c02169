//! The result by the rules alone: every window of a trace, opened and joined in virtual time.
//!
//! Workers are free without limit and runs take no time, so windows of different keys never meet:
//! each key is simulated on its own. Invariant: a window that is due is taken before a trigger of
//! the same instant joins, as the model store and the replay do it.

use std::collections::HashMap;
use std::hash::Hash;

use quell_core::Timestamp;
use quell_core::edge::{Landing, land};
use quell_core::window::Window;

use crate::rule::Rule;
use crate::summary::{Spread, Summary};
use crate::trace::Trace;

/// The result of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Runs, coverage, and the delay from each window's first trigger.
    pub summary: Summary,
    /// From every trigger to the start of the run that covers it.
    pub trigger_delay: Spread,
}

/// A trace sorted by key, so that many rules run on it in a moment.
///
/// ```
/// use std::time::Duration;
///
/// use quell_core::Key;
/// use quell_core::window::Thresholds;
/// use quell_lab::Rule;
/// use quell_lab::simulate::Simulation;
/// use quell_lab::trace::{Source, Trace};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("events.csv");
/// # std::fs::write(&file, "timestamp,key\n0,k\n25,k\n")?;
/// let source = Source::new(&file).key(|row| row["key"].as_str().map(Key::new).transpose());
/// let trace = Trace::read(&source)?;
/// let simulation = Simulation::new(&trace);
/// let runs = [10, 30].map(|seconds| {
///     let quiet = Duration::from_secs(seconds);
///     Thresholds::new(quiet, quiet * 6).map(|it| simulation.run(&Rule::new(it)).summary.runs)
/// });
/// assert_eq!((runs[0].as_ref().ok(), runs[1].as_ref().ok()), (Some(&2), Some(&1)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Simulation {
    /// The times of all keyed events, key by key, and in order within each.
    times: Vec<Timestamp>,
    /// Where each key's times begin; one more than there are keys.
    begins: Vec<usize>,
    /// The number of events without a key: each is a run of its own, at once (R9).
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

    /// The same of events that are at hand, in the order of time: the key of each, and when it happened.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use quell_core::Timestamp;
    /// use quell_core::window::Thresholds;
    /// use quell_lab::Rule;
    /// use quell_lab::simulate::Simulation;
    ///
    /// # fn main() -> quell_core::Result<()> {
    /// let events = [(Some("k"), 0), (Some("k"), 5), (None, 6), (Some("k"), 90)];
    /// let simulation = Simulation::of(events.map(|(key, at)| (key, Timestamp::from_secs(at))));
    /// let rule = Rule::new(Thresholds::new(Duration::from_secs(10), Duration::from_secs(60))?);
    /// assert_eq!(simulation.run(&rule).summary.runs, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn of<K: Eq + Hash>(
        events: impl IntoIterator<Item = (Option<K>, Timestamp)>,
    ) -> Simulation {
        let (mut keys, mut unkeyed) = (Vec::<Vec<Timestamp>>::new(), 0);
        let mut known: HashMap<K, usize> = HashMap::new();
        for (key, at) in events {
            let Some(key) = key else {
                unkeyed += 1;
                continue;
            };
            let place = *known.entry(key).or_insert(keys.len());
            if place == keys.len() {
                keys.push(Vec::new());
            }
            if let Some(times) = keys.get_mut(place) {
                times.push(at);
            }
        }
        let mut begins = vec![0];
        begins.extend(keys.iter().scan(0, |sum, times| {
            *sum += times.len();
            Some(*sum)
        }));
        Simulation { times: keys.into_iter().flatten().collect(), begins, unkeyed }
    }

    /// How many keys there are, and how many of them have one event only.
    #[must_use]
    pub fn keys(&self) -> (usize, usize) {
        let sizes = self.begins.windows(2).map(|bounds| match bounds {
            [begin, end] => end - begin,
            _ => 0,
        });
        (self.begins.len().saturating_sub(1), sizes.filter(|size| *size == 1).count())
    }

    /// The result of the trace under this rule.
    #[must_use]
    pub fn run(&self, rule: &Rule) -> Simulated {
        let mut runs = Runs {
            delays: vec![0; self.unkeyed],
            trigger_delays: vec![0; self.unkeyed],
            covered: self.unkeyed as u64,
        };
        for bounds in self.begins.windows(2) {
            if let [begin, end] = bounds
                && let Some(times) = self.times.get(*begin..*end)
            {
                runs.add_key(times, rule);
            }
        }
        let summary = Summary {
            thresholds: rule.thresholds,
            triggers: (self.times.len() + self.unkeyed) as u64,
            runs: runs.delays.len() as u64,
            covered: runs.covered,
            delay: Spread::of(runs.delays),
        };
        Simulated { summary, trigger_delay: Spread::of(runs.trigger_delays) }
    }
}

/// The runs so far; delays in microseconds.
struct Runs {
    delays: Vec<u64>,
    trigger_delays: Vec<u64>,
    covered: u64,
}

impl Runs {
    /// Adds the runs of one key's triggers.
    fn add_key(&mut self, times: &[Timestamp], rule: &Rule) {
        let debounce = rule.debounce();
        let (mut open, mut first) = (None::<Window>, 0);
        for (place, at) in times.iter().enumerate() {
            if let Some(window) = open.take_if(|window| window.due_at <= *at) {
                self.take(&window, times.get(first..place));
                first = place;
            }
            match land(&rule.step(*at), &debounce, open.as_ref(), None) {
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
