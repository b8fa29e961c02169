//! Quell's store on Redis 6.2 and later, and on Valkey.
//!
//! `options` opens it, and `store` is the public type. A shard is an engine of `quell-engine` on a
//! `backend`: a step (`open`) reads rows (`load`) and indexes (`scan`, `line`, `listing`, `ticks`), and
//! writes what changed by one script (`commit`, `entries`, `lua/`), if what was read is still so. Most
//! calls are one script of `hot`. `busy` is which window of a key comes next, and `fired` which ticks have
//! fired. `recorded` is the order of a history. `keys`, `row` and `known` say what is where in Redis. Calls go out by a `link`: to one server by
//! a `wire`, which keeps its connection alive and finds the server by a `source`, or to the nodes of a
//! `cluster` by a wire each. `directory` lists the shards, and `quell-shards` makes one store of them.
//!
//! Invariant: whatever is written is written by one script, and nothing that a time to live removes
//! is needed.

mod backend;
mod busy;
mod check;
mod checkup;
mod cluster;
mod commit;
mod counts;
mod directory;
mod ends;
mod entries;
mod error;
mod fired;
mod hot;
mod keys;
mod known;
mod line;
mod link;
mod listing;
mod load;
mod look;
mod merge;
mod open;
mod options;
mod pack;
mod portions;
mod push;
mod recorded;
mod reset;
mod restored;
mod row;
mod scan;
mod sentinel;
mod shard;
mod slots;
mod source;
mod store;
mod tags;
mod ticks;
mod trust;
mod turns;
mod unreadable;
mod wire;
mod writes;

pub use options::RedisOptions;
pub use quell_shards::Layout;
pub use store::RedisStore;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
