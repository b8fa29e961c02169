//! The store on real servers.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

mod conformance;
mod place;
mod published;
