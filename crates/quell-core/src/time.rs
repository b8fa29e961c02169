//! Store time: microseconds since the Unix epoch, with sums that saturate.
//!
//! Every due time, lease and TTL is a [`Timestamp`] of the store's clock (R38). The type exists so
//! that a caller's or worker's own clock cannot slip into a comparison unnoticed.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment of store time, in microseconds since the Unix epoch.
///
/// ```
/// use std::time::Duration;
/// use quell_core::Timestamp;
///
/// let start = Timestamp::from_secs(10);
/// assert_eq!(start + Duration::from_millis(1), Timestamp::from_micros(10_001_000));
/// assert_eq!(start.since(Timestamp::from_secs(4)), Duration::from_secs(6));
/// assert_eq!(start.since(Timestamp::from_secs(40)), Duration::ZERO);
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

/// When a call of a store happens: at this time, or where it is `None` by the store's own clock.
///
/// ```
/// use quell_core::{Now, Timestamp};
///
/// let by_the_clock_of_a_test: Now = Some(Timestamp::from_secs(10));
/// let by_the_clock_of_the_store: Now = None;
/// # assert!(by_the_clock_of_a_test > by_the_clock_of_the_store);
/// ```
pub type Now = Option<Timestamp>;

impl Timestamp {
    /// The earliest moment; as a lower bound it means "no bound".
    pub const MIN: Timestamp = Timestamp(i64::MIN);
    /// The latest moment; as an upper bound it means "no bound".
    pub const MAX: Timestamp = Timestamp(i64::MAX);

    /// The moment `micros` microseconds after the epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    /// The moment `secs` seconds after the epoch.
    #[must_use]
    pub const fn from_secs(secs: i64) -> Self {
        Timestamp(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        u64::try_from(self.0.saturating_sub(earlier.0))
            .map_or(Duration::ZERO, Duration::from_micros)
    }

    /// `self` moved back by `by`, saturating.
    #[must_use]
    pub fn before(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros(by)))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, by: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(micros(by)))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC where the moment has a calendar date, else the bare microseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(moment) => write!(f, "{moment:.6}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

/// Whole microseconds of a duration, saturating: the resolution of every promise (R8).
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_at_both_ends() {
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::MIN.before(Duration::MAX), Timestamp::MIN);
        assert_eq!(Timestamp::from_secs(1) + Duration::MAX, Timestamp::MAX);
    }

    #[test]
    fn shows_as_rfc_3339_with_microseconds() {
        assert_eq!(Timestamp::from_micros(1_500_000).to_string(), "1970-01-01T00:00:01.500000Z");
        assert_eq!(Timestamp::MAX.to_string(), format!("{}us", i64::MAX));
    }

    #[test]
    fn a_time_gives_back_its_microseconds() {
        for micros in [i64::MIN, -7, 0, 1_767_225_600_000_001, i64::MAX] {
            assert_eq!(Timestamp::from_micros(micros).as_micros(), micros);
        }
    }
}
