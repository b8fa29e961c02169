//! Hot paths: what clients and workers do all the time, in fewer trips than the engine's step takes, and
//! lists that know this store's indexes.
//!
//! Invariant: a hot path changes exactly what the engine's step would.

pub(crate) mod accept;
pub(crate) mod claim;
mod due;
pub(crate) mod enqueue;
pub(crate) mod expire;
pub(crate) mod gather;
pub(crate) mod heads;
pub(crate) mod limit;
pub(crate) mod look;
pub(crate) mod opening;
mod prune;
mod renew;
pub(crate) mod settle;
pub(crate) mod straight;
mod taken;
pub(crate) mod trail;
pub(crate) mod warm;
