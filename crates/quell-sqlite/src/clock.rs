//! The host's clock, and what keeps one that is wrong by years from moving the store's (R38).
//!
//! The store's time never goes back, so one write by such a clock would hold it for years. That a
//! jump of days is wrong cannot be known: a laptop that slept, a machine that was paused, a file
//! that was put away and a board that learns the date late all look the same. So only what none of
//! these explains is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_core::{Error, ErrorKind, Now, Result, Timestamp};

pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// No store rests for longer without being asked about.
pub(crate) const LONGEST_REST: Duration = Duration::from_secs(5 * 366 * DAY.as_secs());
/// 2025-01-01. A time before it was wrong itself: a host without a battery begins there.
const EARLIEST: Timestamp = Timestamp::from_secs(1_735_689_600);

/// Moves the host's clock, for tests: microseconds that are added to it.
pub type ClockOffset = Arc<AtomicI64>;

/// The clock of one process's store.
#[derive(Debug)]
pub(crate) struct HostClock {
    /// The store's time when this process opened it.
    opened_at: Timestamp,
    /// The highest time that this process has seen, in microseconds.
    seen: AtomicI64,
    /// The longest jump that is taken; any, where there is none.
    longest_jump: Option<Duration>,
    offset: Option<ClockOffset>,
}

impl HostClock {
    pub(crate) fn new(
        opened_at: Timestamp,
        longest_jump: Option<Duration>,
        offset: Option<ClockOffset>,
    ) -> Self {
        HostClock { opened_at, seen: AtomicI64::new(i64::MIN), longest_jump, offset }
    }

    /// The time of a call: the host's, or what a test says, but never earlier than before.
    pub(crate) fn time(&self, now: Now) -> Result<Timestamp> {
        let now = match now {
            Some(now) => now,
            None => self.plausible(self.host())?,
        };
        let now = now.as_micros();
        Ok(Timestamp::from_micros(self.seen.fetch_max(now, Ordering::Relaxed).max(now)))
    }

    /// The last time that was seen.
    pub(crate) fn seen(&self) -> Timestamp {
        Timestamp::from_micros(self.seen.load(Ordering::Relaxed))
    }

    pub(crate) fn host(&self) -> Timestamp {
        let offset = self.offset.as_ref().map_or(0, |offset| offset.load(Ordering::Relaxed));
        Timestamp::from_micros(wall_clock().as_micros().saturating_add(offset))
    }

    fn plausible(&self, host: Timestamp) -> Result<Timestamp> {
        let mark = self.opened_at.max(self.seen());
        let jump = host.since(mark);
        let Some(longest) = self.longest_jump.filter(|longest| mark >= EARLIEST && jump > *longest)
        else {
            return Ok(host);
        };
        let days = longest.as_secs() / DAY.as_secs();
        let message = format!(
            "the host's clock ({host}) is more than {days} days past the store's last time ({mark}), \
             and store time never goes back: set the host's clock right, or, if it is right, open \
             the store with `?clock_jump=accept`"
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

/// The machine's clock.
pub(crate) fn wall_clock() -> Timestamp {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_micros(0) + wall
}
