//! The service's time, estimated from below: its last timestamp and the time that passed since.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quell_core::Timestamp;

/// How old a timestamp may be. Older ones are replaced, so that drift between the two clocks stays
/// below `MAX_AGE / DRIFT`, 60 ms.
const MAX_AGE: Duration = Duration::from_secs(60);
/// The estimate advances by 1/1000 less than the local clock: NTP slews a clock by 1/2000 at most, and
/// crystals err by less than 1/10000.
const DRIFT: u32 = 1_000;

/// A clock that never goes back: the time since some moment.
#[derive(Clone)]
pub struct Monotonic(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Monotonic {
    /// The clock that `read` reads.
    pub fn new(read: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Monotonic(Arc::new(read))
    }

    fn read(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Monotonic {
    fn default() -> Self {
        let start = Instant::now();
        Monotonic::new(move || start.elapsed())
    }
}

impl fmt::Debug for Monotonic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monotonic")
    }
}

/// A lower bound of the service's time.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    monotonic: Monotonic,
    base: Mutex<Option<Base>>,
}

/// A timestamp that the service gave, and when it arrived.
#[derive(Clone, Copy, Debug)]
struct Base {
    service: Timestamp,
    arrived: Duration,
}

impl Base {
    /// The service's time is at least this, because the timestamp is older than its arrival.
    fn estimate(self, now: Duration) -> Option<Timestamp> {
        let age = now.saturating_sub(self.arrived);
        (age <= MAX_AGE).then(|| self.service + (age - age / DRIFT))
    }
}

impl Clock {
    pub(crate) fn new(monotonic: Monotonic) -> Self {
        Clock { monotonic, base: Mutex::default() }
    }

    /// Takes a timestamp that has just arrived.
    pub(crate) fn raise(&self, service: Timestamp) {
        let arrived = self.monotonic.read();
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let estimate = base.and_then(|base| base.estimate(arrived));
        if estimate.is_none_or(|estimate| estimate < service) {
            *base = Some(Base { service, arrived });
        }
    }

    /// The estimate; none where no timestamp is recent enough.
    pub(crate) fn read(&self) -> Option<Timestamp> {
        let base = *self.base.lock().unwrap_or_else(PoisonError::into_inner);
        base.and_then(|base| base.estimate(self.monotonic.read()))
    }
}

/// The time in an ETag of Azure Table Storage: `W/"datetime'2026-01-31T12%3A00%3A00.1234567Z'"`.
///
/// Rounded down to a millisecond: Azurite's further digits do not come from its clock, they only
/// make versions differ.
pub(crate) fn time_of(etag: &str) -> Option<Timestamp> {
    let (_, time) = etag.split_once("datetime'")?;
    let (time, _) = time.split_once('\'')?;
    let time: jiff::Timestamp = time.replace("%3A", ":").replace("%3a", ":").parse().ok()?;
    Some(Timestamp::from_micros(time.as_millisecond().saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn at(secs: i64, millis: u64) -> Timestamp {
        Timestamp::from_secs(secs) + Duration::from_millis(millis)
    }

    #[test]
    fn r38_the_estimate_follows_the_local_clock_slowly_and_only_for_a_minute() {
        let local = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&local);
        let read = move || Duration::from_millis(shared.load(Ordering::Relaxed));
        let clock = Clock::new(Monotonic::new(read));
        assert_eq!(clock.read(), None);
        clock.raise(at(1_000, 0));
        for (millis, expected) in [
            (0, Some(at(1_000, 0))),
            (10_000, Some(at(1_009, 990))),
            (60_000, Some(at(1_059, 940))),
            (60_001, None),
        ] {
            local.store(millis, Ordering::Relaxed);
            assert_eq!(clock.read(), expected, "after {millis} ms");
        }
        // A clock of the service that was set back counts once the last timestamp is too old.
        clock.raise(at(500, 0));
        assert_eq!(clock.read(), Some(at(500, 0)));
        clock.raise(at(499, 0));
        assert_eq!(clock.read(), Some(at(500, 0)), "an answer that was late lowers nothing");
        clock.raise(at(501, 0));
        assert_eq!(clock.read(), Some(at(501, 0)));
    }

    #[test]
    fn an_etag_tells_the_time_rounded_down() {
        let etag = "W/\"datetime'2026-11-23T12%3A48%3A12.1234567Z'\"";
        let expected = "2026-11-23T12:48:12.123Z".parse::<jiff::Timestamp>().unwrap();
        assert_eq!(time_of(etag).map(Timestamp::as_micros), Some(expected.as_microsecond()));
        assert_eq!(time_of("W/\"opaque\""), None);
    }
}
