//! How many attempts a job keeps on record (R25): the first ones, which say how its trouble began,
//! and the last ones. So a job that fails for ever does not grow without bound.

use std::ops::RangeInclusive;

use crate::{Attempt, Draw, Job, LeaseToken};

impl Attempt {
    /// How many of a job's attempts are kept from the first on.
    pub const FIRST_KEPT: u64 = 5;
    /// How many of a job's attempts are kept up to the last one.
    pub const LAST_KEPT: u64 = 45;
}

/// The attempts that are removed once the one with this token is on record, by their tokens;
/// none while there is room.
///
/// ```
/// use quell_core::record::no_longer_kept;
/// use quell_core::{Draw, LeaseToken};
///
/// let newest = |start| LeaseToken::of(start, Draw::new(7));
/// let starts = |start| no_longer_kept(newest(start)).map(|t| (t.start().starts(), t.end().starts()));
/// assert_eq!(starts(50), None);
/// assert_eq!(starts(51), Some((6, 6)));
/// assert_eq!(starts(60), Some((6, 15)));
/// ```
#[must_use]
pub fn no_longer_kept(newest: LeaseToken) -> Option<RangeInclusive<LeaseToken>> {
    let last = newest.starts().checked_sub(Attempt::LAST_KEPT);
    let last = last.filter(|last| *last > Attempt::FIRST_KEPT)?;
    let first = LeaseToken::of(Attempt::FIRST_KEPT.saturating_add(1), Draw::MIN);
    Some(first..=LeaseToken::of(last, Draw::MAX))
}

/// How many of a job's attempts are not on record any more: every start was one.
#[must_use]
pub fn dropped(job: &Job, attempts: &[Attempt]) -> u64 {
    job.starts().saturating_sub(u64::try_from(attempts.len()).unwrap_or(u64::MAX))
}
