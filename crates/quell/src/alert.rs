//! Alerts: what is watched, when one is raised or cleared, and which notices are due.
//!
//! `quell serve` evaluates them from its configuration file. These types are for servers of your own
//! and for tools that read the state of alerts from a store.
//!
//! ```
//! use quell::QueueName;
//! use quell::alert::{Alert, AlertName, AlertState, LaneOverview, Measure, Overview};
//!
//! # fn main() -> quell::Result<()> {
//! let mail = QueueName::new("mail")?;
//! let alert = Alert::new(AlertName::new("dead-mails")?, Measure::Dead, 2).queue(mail.clone());
//! alert.validate()?;
//!
//! let now = quell::Timestamp::from_secs(60);
//! let mut lane = LaneOverview::new(mail, quell::TaskName::new("digest")?);
//! lane.dead = 3;
//! let mut state = AlertState::default();
//! let dead = alert.measure(&Overview::new(now, vec![lane], 0), &state);
//! assert!(state.observe(&alert, dead, now) && state.raised);
//! # Ok(())
//! # }
//! ```

pub use quell_core::AlertName;
pub use quell_core::alert::{
    Alert, AlertRow, AlertState, Bucket, LaneOverview, MILLION, Measure, NOTICE_LEASE, Notice,
    Overview,
};
