//! Quell's store on Redis 6.2 and later, and on Valkey.
//!
//! `options` opens it, `store` is the door, `tx` takes one step: it reads the rows (`look`, `load`),
//! lets the core decide ([`quell_core::part`]), and writes what changed by one script (`write`,
//! `lua/`), if what was read is still so; most calls are one script, which `fast` knows. `claim`
//! knows who comes next, `busy` which window of a key, and `fired` which ticks have fired; `read`, `dead`, `alerts`, `schedules` and
//! `upkeep` are what operators and workers ask for besides. `keys`, `row` and `known` say what stands
//! where in Redis. Calls go out by a `link`: to one server by a `wire`, which keeps its connection
//! alive and finds the server by a `source`, or to the nodes of a `cluster` by a wire each. `directory`
//! lists the shards, of which `quell-shards` makes one store.
//!
//! Invariant: whatever is written is written by one script, and nothing that a time to live removes
//! is needed.

mod alerts;
mod busy;
mod check;
mod claim;
mod cluster;
mod dead;
mod directory;
mod door;
mod ends;
mod error;
mod fast;
mod fired;
mod forgotten;
mod keys;
mod known;
mod link;
mod list;
mod load;
mod look;
mod options;
mod overview;
mod pace;
mod pack;
mod portions;
mod push;
mod read;
mod reset;
mod restored;
mod row;
mod schedules;
mod sentinel;
mod shard;
mod slots;
mod source;
mod store;
mod tags;
mod trust;
mod tx;
mod unreadable;
mod upkeep;
mod wire;
mod workers;
mod write;
mod writes;

pub use door::RedisStore;
pub use options::RedisOptions;
pub use quell_shards::Layout;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
