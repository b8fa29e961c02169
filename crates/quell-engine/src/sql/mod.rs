//! What stores on SQL databases share: the values of columns, whatever the driver that reads them.
//!
//! [`Columns`] is a row as a driver has it. The functions beside it decode the rows of jobs and of what
//! hangs on them, and [`Inbox`] what callers' transactions have left.
//!
//! Invariant: it knows no driver, and each function states the order of the columns that it reads.

mod clock;
mod columns;
mod hanging;
mod inbox;
mod job;
mod worker;

pub use clock::{JOB_TIMES, TIMES, set_times_back};
pub use columns::{Columns, Get, corrupt, signed, unreadable_row, unsigned};
pub use hanging::{
    Value, decode_attempt, decode_effect, decode_past, decode_schedule, effect_values,
};
pub use inbox::{Inbox, Refused};
pub use job::{Lane, Places, decode_job, decode_window};
pub use worker::decode_names;
