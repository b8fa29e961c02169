//! What integration tests of several crates share and no published crate has: a table that counts its
//! requests, timers that misbehave, and files that vanish.
//!
//! A test implements [`Around`] for its timer, and overrides the calls that it changes.
//!
//! Invariant: only tests depend on it.

mod files;
mod table;
mod timer;

pub use files::Files;
pub use table::{Counted, WriteFails};
pub use timer::{Around, Bent, Sending};
