//! Deterministic simulation: real clients and workers on a simulated network, store and clock.
//!
//! One thread and one seed decide everything: which process runs next and for how many steps, how
//! long each message takes and whether it arrives, who is killed, paused or given a wrong clock,
//! and when. The [`Plan`] is drawn first, so that it can be printed and made smaller; [`run`]
//! performs it and answers with the event history, which the [checker](crate::check) judges.
//!
//! A run has two phases. In the first anything may happen; then the world *heals*, and everything
//! that was accepted must come to its end within a bound.
//!
//! The parts that are real: client, batcher, worker, handler calls, retries, and a store's answers.
//! Each process has a runtime of its own that is stepped one poll at a time, so a kill can come at
//! every await point and a paused process stands still in all its tasks.
//!
//! ```
//! use quell_conformance::{check, sim};
//!
//! let plan = sim::Plan::draw(7);
//! let lines = sim::run(&plan, sim::memory);
//! let report = check::check(&lines);
//! assert!(report.violations.is_empty(), "{}", report.text(&lines));
//! ```
//!
//! Invariant: nothing in here reads a clock or a random source but the plan's seed.

mod draw;
mod load;
mod minimise;
mod operate;
mod place;
mod plan;
mod process;
mod prove;
mod remote;
mod run;
mod world;

pub use minimise::minimise;
pub use place::Place;
pub use plan::{BrokenCall, Call, Harm, Network, Plan, Planned, Step, Stranger};
pub use prove::{Judged, SEEDS, seeds, some_seeds, twice};
pub use run::{Ran, START, memory, run, run_on};
