//! The store on real servers.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod away;
mod backfill;
mod bounded;
mod budget;
mod checkup;
mod closed;
mod cluster;
mod conformance;
mod cost;
mod cuts;
mod damage;
mod expiry;
mod faults;
mod limits;
mod place;
mod power;
mod published;
mod refused;
mod releases;
mod replicas;
mod rights;
mod scripts;
mod silent;
mod sim;
mod spread;
mod ticks;
mod timelines;
mod tls;
mod wake;
