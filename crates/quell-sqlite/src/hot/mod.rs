//! Hot paths: what clients and workers do all the time, in fewer trips than the engine's step takes.
//!
//! Invariant: a hot path changes exactly what the engine's step would.

pub(crate) mod claim;
pub(crate) mod enqueue;
mod heads;
mod limit;
pub(crate) mod look;
pub(crate) mod prune;
pub(crate) mod renew;
pub(crate) mod settle;
