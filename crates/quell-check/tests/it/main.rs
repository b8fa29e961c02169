//! The checker on histories that are written out line by line. `quell-conformance` judges its own
//! simulated runs with it, and has the stores with a bug that it must catch.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod absorbed;
mod processes;
mod settle_in;
