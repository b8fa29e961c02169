//! Checks of a store: its size, its clock and problems that an operator can fix.
//!
//! [`Quell::checkup`](crate::Quell::checkup) asks the store; [`reset_clock`] and [`skip_ids`] repair
//! one after its database was restored or its clock was ahead.
//!
//! ```
//! use quell::Timestamp;
//! use quell::checkup::{Checkup, ClockReading, Fact};
//!
//! let clock = ClockReading::new(Timestamp::from_secs(0), Timestamp::from_secs(7_200));
//! let checkup = Checkup::new(None, clock, vec![Fact::plain("jobs", 12)]);
//! assert_eq!(checkup.problems().count(), 1, "the clock is two hours ahead");
//! ```

pub use quell_core::checkup::{
    Checkup, ClockReading, ClockReset, Fact, Gauge, Measure, SKIPPED_IDS,
};

pub use crate::client::open::{reset_clock, skip_ids};
