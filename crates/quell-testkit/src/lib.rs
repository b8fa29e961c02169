//! What integration tests of several crates share and no published crate has: a table that counts its
//! requests, and timers that misbehave.
//!
//! A test implements [`Around`] for its timer, and overrides the calls that it changes.
//!
//! Invariant: only tests depend on it.

mod table;
mod timer;

pub use table::{Counted, WriteFails};
pub use timer::{Around, Bent, Sending};
