//! The calls that do not go by steps of the engine: most of the work is made of them.

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
