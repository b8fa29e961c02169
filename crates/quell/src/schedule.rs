//! Schedules: tasks that are triggered by a cron expression or at a fixed interval.
//!
//! [`Quell::schedule`](crate::Quell::schedule) sets one for a task with a type;
//! [`Quell::set_schedule`](crate::Quell::set_schedule) takes a [`Schedule`] whose task is data.
//!
//! ```
//! use quell::schedule::{CatchUp, ScheduleState};
//!
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct Report;
//! # impl quell::Task for Report { const NAME: &'static str = "report"; type Output = (); }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = quell::Quell::open("memory:").await?;
//! quell.schedule("nightly", Report).cron("0 3 * * *").zone("Europe/Berlin").await?;
//! let schedules = quell.schedules().await?;
//! assert_eq!(schedules[0].state, ScheduleState::Active);
//! assert_eq!(schedules[0].schedule.catch_up, CatchUp::default());
//! # Ok(())
//! # }
//! ```

pub use quell_core::ScheduleName;
pub use quell_core::schedule::{
    CatchUp, Cron, Every, MAX_BACKFILL, RecordedTick, Schedule, ScheduleInfo, ScheduleState, Spec,
    SpecParts, Tick, TickedBy,
};

pub use crate::operator::schedule::ScheduleTask;
