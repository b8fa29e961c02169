//! How many attempts a job keeps on record (R25): the first ones, which say how its trouble began,
//! and the last ones. So a job that fails for ever does not grow without bound.

use std::ops::RangeInclusive;

use crate::{Attempt, Job};

impl Attempt {
    /// How many of a job's attempts are kept from the first on.
    pub const FIRST_KEPT: u64 = 5;
    /// How many of a job's attempts are kept up to the last one.
    pub const LAST_KEPT: u64 = 45;
}

/// The attempts that a job gives up once the one with this token is on record, by their tokens;
/// none while there is room.
///
/// ```
/// use quell_core::record::given_up;
///
/// assert_eq!(given_up(50), None);
/// assert_eq!(given_up(51), Some(6..=6));
/// assert_eq!(given_up(60), Some(6..=15));
/// ```
#[must_use]
pub fn given_up(newest: u64) -> Option<RangeInclusive<u64>> {
    let last = newest.checked_sub(Attempt::LAST_KEPT).filter(|last| *last > Attempt::FIRST_KEPT)?;
    Some(Attempt::FIRST_KEPT.saturating_add(1)..=last)
}

/// How many of a job's attempts are not on record any more: every start was one.
#[must_use]
pub fn dropped(job: &Job, attempts: &[Attempt]) -> u64 {
    job.starts.saturating_sub(u64::try_from(attempts.len()).unwrap_or(u64::MAX))
}
