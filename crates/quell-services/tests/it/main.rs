//! Servers of this crate, judged from outside.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod servicebus;
