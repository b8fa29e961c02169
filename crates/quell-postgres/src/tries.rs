//! How often a call retries after a write conflict before it reports the contention (R35).

use std::time::{Duration, Instant};

/// The number of retries that a call has in any case.
const LEAST: u32 = 10;
/// How long a call has further retries.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of first retries that come at once.
const AT_ONCE: u32 = 2;
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// The tries of one call.
///
/// Calls that open windows of one key, again and again, may each come a moment after another one any
/// number of times. Pauses of random length let one of them have its turn.
#[derive(Debug)]
pub(crate) struct Tries {
    began: Instant,
    done: u32,
}

impl Tries {
    pub(crate) fn new() -> Self {
        Tries { began: Instant::now(), done: 0 }
    }

    /// Waits for a moment, and says whether there is another try.
    pub(crate) async fn again(&mut self) -> bool {
        self.done = self.done.saturating_add(1);
        if self.done > LEAST && self.began.elapsed() >= PATIENCE {
            return false;
        }
        if let Some(doublings) = self.done.checked_sub(AT_ONCE + 1) {
            let pause = Duration::from_millis(2_u64.saturating_pow(doublings.min(16)));
            tokio::time::sleep(pause.min(LONGEST_PAUSE).mul_f64(fastrand::f64())).await;
        }
        true
    }
}
