//! Quell on any table of partitions, and on any timer.
//!
//! A [`Table`] keeps rows in the order of their names, in partitions, and changes several rows of one
//! partition at once if no other process has changed them meanwhile. That is enough for every promise. A
//! [`Timer`] delivers a small message at a time: with it, workers wake up exactly when something is
//! due, and need not ask.
//!
//! Invariant: nothing here knows which service keeps the rows or the messages.

mod announce;
mod below;
mod beside;
mod carried;
mod counted;
mod damaged;
mod held;
mod ids;
mod keep;
mod listing;
mod long;
mod memory;
mod memory_timer;
mod messages;
mod names;
mod native;
mod notice;
mod pages;
mod partition;
mod partitions;
pub mod table;
mod timed;
pub mod timer;

pub use memory::MemoryTable;
pub use memory_timer::MemoryTimer;
pub use partition::Partition;
pub use partitions::Partitions;
pub use quell_shards::{Layout, Spread};
pub use table::{Bounds, Change, Committed, Condition, Page, Range, Row, Table, Version};
pub use timed::Timed;
pub use timer::{Delivery, Message, Received, ScheduleResult, Scheduled, Timer};

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
