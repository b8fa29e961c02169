//! The store on real servers.
#![expect(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

#[cfg(test)]
mod cluster;
#[cfg(test)]
mod conformance;
mod cuts;
mod expiry;
mod faults;
mod place;
mod published;
mod refused;
mod wake;
