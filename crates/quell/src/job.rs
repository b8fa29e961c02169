//! Jobs as operators see them: states, attempts, counts, and why a job ran when it did.
//!
//! [`Job`](crate::Job), [`JobId`](crate::JobId), [`JobState`](crate::JobState) and
//! [`JobResult`](crate::JobResult) are at the root.
//!
//! ```
//! use quell::JobState;
//! use quell::job::{ExplainTarget, JobFilter};
//!
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct Hello;
//! # impl quell::Task for Hello { const NAME: &'static str = "hello"; type Output = (); }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = quell::Quell::open("memory:").await?;
//! quell.trigger(Hello).await?;
//! let jobs = quell.jobs(&JobFilter::default().state(JobState::Scheduled).limit(10)).await?;
//! let explanation = quell.explain(&ExplainTarget::Job(jobs[0].id)).await?;
//! assert!(explanation.is_some_and(|explanation| explanation.attempts.is_empty()));
//! # Ok(())
//! # }
//! ```

pub use crate::operator::search::{JobPage, JobSearch};
pub use crate::operator::waiting::{Late, WaitReason, Waiting};
pub use quell_core::job::{Adjusted, Adjustment, Shape};
pub use quell_core::window::{DueReason, Window};
pub use quell_core::{
    Attempt, AttemptOutcome, Counts, ExplainTarget, Explanation, JobFilter, KeyAdvice, SettledAs,
    describe_reason,
};
