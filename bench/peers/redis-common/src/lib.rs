//! What the programs in Rust on Redis share: the workloads and the command line. A program
//! implements [`Peer`] and [`RedisPeer`] and calls [`main`]; none of it knows Quell.
//!
//! Each call is one round on a server that the caller made for it: rounds, medians and the server's
//! counters are the business of `bench/src/redis.rs`. Programs in other languages take the same
//! arguments and print the same line.

mod command;
mod workload;

pub use command::main;
pub use peer_common::{Peer, Starts, join, version_in};

/// Which set-up of a peer is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Settings {
    /// What its documentation starts with.
    Defaults,
    /// The fastest that its documentation and source offer, with nothing less durable.
    Best,
}

/// A queue on Redis.
pub trait RedisPeer: Peer<Settings = Settings> {
    /// Of `count` jobs, how many are not completed by what the server says.
    fn unfinished(&self, count: usize) -> impl Future<Output = anyhow::Result<usize>> + Send;
}
