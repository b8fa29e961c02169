//! The simulation as tests of a store: seeds that hold, and the same seed twice.

use std::fmt::Write;

use super::place::Place;
use super::plan::Plan;
use super::run::{Ran, run_on};
use crate::check::{Report, check};
use crate::effort;

/// How many seeds the tests of a store run, where [`SEEDS`] does not say so.
const USUAL_SEEDS: u64 = 8;
/// The same in a [long run](crate::effort).
const LONG_SEEDS: u64 = 400;
/// The environment variable that says how many seeds to run.
pub const SEEDS: &str = "QUELL_SIM_SEEDS";

/// How many errors of one run are shown.
const SHOWN: usize = 20;

/// One run of a seed on a store, and what the checker says of it.
#[derive(Debug)]
pub struct Judged {
    /// Its plan.
    pub plan: Plan,
    /// The run.
    pub ran: Ran,
    /// The verdict.
    pub report: Report,
}

impl Judged {
    /// Runs a plan on a fresh place and judges its history.
    #[must_use]
    pub fn new(plan: Plan, place: &Place) -> Self {
        let ran = run_on(&plan, place);
        let report = check(&ran.lines);
        Judged { plan, ran, report }
    }

    /// Whether every property holds and the store never failed without a reason.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.report.violations.is_empty() && self.ran.errors.is_empty()
    }

    /// What is wrong, the plan, and the command that runs it again.
    #[must_use]
    pub fn text(&self, store: &str) -> String {
        let Judged { plan, ran, report } = self;
        let mut text = format!("seed {} on {store}\n{}", plan.seed, report.text(&ran.lines));
        // Writing to a string cannot fail.
        for error in ran.errors.iter().take(SHOWN) {
            let _infallible = writeln!(text, "the store failed without a reason: {error}");
        }
        let _infallible = write!(
            text,
            "plan: {plan:#?}\nagain: cargo xtask sim --store {store} --seed {} --history FILE",
            plan.seed
        );
        text
    }
}

/// Runs every second seed, from `from` on, each on a fresh place: what [`simulation!`] calls.
///
/// [`simulation!`]: crate::simulation
pub fn seeds(store: &str, place: impl Fn() -> Place, from: u64) {
    let count = effort::cases_by(SEEDS, USUAL_SEEDS, LONG_SEEDS);
    run(store, place, (from..count).step_by(2));
}

/// Runs a number of seeds, for a store whose calls take long; `QUELL_SIM_SEEDS` overrides it.
pub fn some_seeds(store: &str, place: impl Fn() -> Place, usual: u64) {
    let count = effort::cases_by(SEEDS, usual, usual.saturating_mul(20));
    run(store, place, 0..count);
}

fn run(store: &str, place: impl Fn() -> Place, seeds: impl Iterator<Item = u64>) {
    let (mut attempts, mut accepted) = (0, 0);
    for seed in seeds {
        let judged = Judged::new(Plan::draw(seed), &place());
        assert!(judged.holds(), "{}", judged.text(store));
        attempts += judged.report.attempts;
        accepted += judged.report.accepted;
    }
    assert!(attempts > 0 && accepted > 0, "the seeds do nothing: {accepted} triggers");
}

/// Runs some seeds twice, each time on a fresh place: both runs must record the same history.
pub fn twice(store: &str, place: impl Fn() -> Place) {
    for seed in 0..effort::cases(2, 8) {
        let [one, other] = [(); 2].map(|()| Judged::new(Plan::draw(seed), &place()));
        assert!(one.holds(), "{}", one.text(store));
        let lines = one.ran.lines.iter().zip(&other.ran.lines);
        if let Some((one, other)) = lines.clone().find(|(one, other)| one != other) {
            panic!("seed {seed} on {store} differs:\n{one}\n{other}");
        }
        assert_eq!(one.ran.lines.len(), other.ran.lines.len(), "seed {seed} on {store}");
    }
}

/// Simulates clients and workers on a store (see [`sim`](crate::sim)): `simulation!("sqlite", place)`,
/// where `fn place() -> sim::Place` makes a fresh place each time.
///
/// Each seed is one test run of many simulated processes that open the store for themselves.
/// `QUELL_SIM_SEEDS` says how many there are.
#[macro_export]
macro_rules! simulation {
    ($store:literal, $place:path) => {
        /// If this fails, nothing else that the simulation says is worth anything.
        #[test]
        fn the_same_seed_tells_the_same_story() {
            $crate::sim::twice($store, $place);
        }

        #[test]
        fn r39_even_seeds_hold() {
            $crate::sim::seeds($store, $place, 0);
        }

        #[test]
        fn r39_odd_seeds_hold() {
            $crate::sim::seeds($store, $place, 1);
        }
    };
}
