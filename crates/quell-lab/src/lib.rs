//! Measures what a debounce of Quell would do to recorded events.
//!
//! [`trace`] reads the events. [`simulate`] computes runs and delays from the rules alone, for many
//! thresholds in a moment. [`replay`] sends the same events through a real store and worker, in
//! virtual time or sped up. [`chart`] draws the results. Both measurements fill a [`Summary`], so
//! their results compare field by field.
//!
//! ```
//! use std::time::Duration;
//!
//! use quell_core::Key;
//! use quell_core::window::Thresholds;
//! use quell_lab::replay::Replay;
//! use quell_lab::simulate::Simulation;
//! use quell_lab::trace::{Source, Trace};
//! use quell_lab::Rule;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("webhooks.csv");
//! # std::fs::write(&file, "timestamp,repo\n0,shop\n3,shop\n7,shop\n90,site\n")?;
//! let source = Source::new(&file).key(|row| row["repo"].as_str().map(Key::new).transpose());
//! let trace = Trace::read(&source)?;
//! let thresholds = Thresholds::new(Duration::from_secs(10), Duration::from_secs(60))?;
//! let rule = Rule::new(thresholds);
//!
//! let simulated = Simulation::new(&trace).run(&rule);
//! assert_eq!((simulated.summary.triggers, simulated.summary.runs), (4, 2));
//!
//! let replayed = Replay::in_memory(rule).run(&trace).await?;
//! assert_eq!(replayed.summary, simulated.summary);
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: nothing here reads the command line or prints; the program `quell` does.

pub mod chart;
mod error;
pub mod replay;
mod rule;
pub mod simulate;
mod summary;
pub mod trace;

pub use error::{Error, Result};
pub use rule::Rule;
pub use summary::{Spread, Summary};

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
