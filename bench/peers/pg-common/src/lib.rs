//! What the peers and the floor on PostgreSQL share: the workloads, the counters beside their
//! times, and the command line. A program implements [`Peer`] and [`PostgresPeer`] and calls [`main`],
//! so all of them are measured by the same code; none of it knows Quell. The rest is for measurements
//! of one's own.

mod command;
mod counters;
mod database;
mod failover;
mod process;
mod report;
mod workload;

use std::time::Duration;

pub use command::main;
pub use counters::Counters;
pub use database::Database;
pub use peer_common::{Peer, Starts, join, version_in};
pub use report::{median, quantile};

/// Which set-up of a peer is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Settings {
    /// What its documentation starts with.
    Defaults,
    /// The fastest that its documentation and source offer, with nothing less durable.
    Best,
    /// `Best`, and a worker that is silent for [`SILENCE`] counts as dead: for the workload that
    /// kills one, where it stands in the place of `Best`.
    Failover,
}

/// After how long a silent worker counts as dead with [`Settings::Failover`]. Its signs of life
/// come three times as often.
pub const SILENCE: Duration = Duration::from_secs(6);

/// A queue on PostgreSQL.
///
/// Opening it creates its tables where they are missing; the caller gives it a database of its own.
pub trait PostgresPeer: Peer<Settings = Settings> {
    /// Of `$1` jobs, how many are not durably completed: SQL that answers one `bigint`.
    const UNFINISHED: &'static str;

    /// Closes every connection.
    fn close(self) -> impl Future<Output = anyhow::Result<()>> + Send;
}
