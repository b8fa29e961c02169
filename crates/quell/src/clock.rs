//! Time as clients and workers see it; stores keep their own (R38).
//!
//! Production has [`SystemClock`]. Tests have the virtual clock of
//! [`testing`](crate::testing), which also sets the store's time.
//!
//! ```
//! use quell::clock::{Clock, SystemClock};
//!
//! let clock = SystemClock::new();
//! let first = clock.now();
//! assert!(clock.now() >= first && clock.store_time().is_none());
//! ```

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use quell_core::Timestamp;

/// A source of time and of sleep.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The clock's own time. It never goes back.
    fn now(&self) -> Timestamp;

    /// The time that is passed to stores; none lets a store use its own clock.
    fn store_time(&self) -> Option<Timestamp>;

    /// Whether time is a test's: then runs with one seed are the same, also in what is random else.
    fn is_virtual(&self) -> bool {
        false
    }

    /// Sleeps until the clock's own time is `at`. Dropping the future is safe.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()>;
}

/// The machine's clock: wall time at the start, then monotonic.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    started_at: Timestamp,
    sets_store_time: bool,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        let epoch = Timestamp::from_micros(0);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        SystemClock { started: Instant::now(), started_at: epoch + wall, sets_store_time: false }
    }

    /// A clock that also passes stores the time: for a store without one, such as
    /// [`MemoryStore`](crate::store::MemoryStore).
    #[must_use]
    pub fn for_store() -> Self {
        SystemClock { sets_store_time: true, ..SystemClock::new() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.started_at + self.started.elapsed()
    }

    fn store_time(&self) -> Option<Timestamp> {
        self.sets_store_time.then(|| self.now())
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let wait = at.since(self.now());
        Box::pin(tokio::time::sleep(wait))
    }
}
