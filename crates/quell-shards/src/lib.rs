//! A store of several shards, each a store of its own: which of them a call goes to, and one answer made
//! of theirs.
//!
//! A queue is one shard, or several. A key of a task is always on the same shard, so what is promised of
//! keys is kept by that shard alone; limits of a queue hold on one shard only, so a queue with several
//! refuses them. [`Shards`] knows which shards there are, [`Sharded`] is the store (`dead`, `renew`,
//! `upkeep`, `workers` are parts of it), and `visits` asks all shards at the same time. A store author
//! writes a [`Directory`]; its shards are stores with a method for each operation.
//!
//! Invariant: a shard that is away delays and fails only what is on it (R39).

mod backlog;
mod dead;
mod directory;
mod door;
mod explained;
mod layout;
mod renew;
mod shards;
mod upkeep;
mod visits;
mod workers;

pub use directory::{Directory, MOST_SHARDS};
pub use door::Sharded;
pub use layout::{Layout, MOST_SHARDS_OF_QUEUE, Spread, check_spread};
pub use shards::Shards;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
