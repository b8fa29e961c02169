//! How long a step that lost waits before it tries again: somewhere within what the try took, of
//! which it is twice as much after each further one.
//!
//! Steps that lose at the same moment come back at different ones, and the more of them there are,
//! the further apart: so that some get through without meeting another.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often a step is tried before the caller is told of contention (R35).
pub(crate) const TRIES: u32 = 100;
/// The same for a claim: it gives way, because the others start jobs as well as it would.
pub(crate) const TRIES_OF_A_CLAIM: u32 = 12;
/// No try is taken to be shorter: the others' may be longer.
const SHORTEST: Duration = Duration::from_millis(1);
/// No pause is longer.
const LONGEST: Duration = Duration::from_millis(300);

/// The tries of one step.
#[derive(Debug)]
pub(crate) struct Pace {
    tries: u32,
    most: u32,
    began: Instant,
}

impl Pace {
    pub(crate) fn new(most: u32) -> Self {
        Pace { tries: 0, most, began: Instant::now() }
    }

    /// The tries that have failed.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    /// Waits before another try; false where it was tried as often as it may be.
    pub(crate) async fn again(&mut self) -> bool {
        let took = self.began.elapsed();
        self.tries = self.tries.saturating_add(1);
        if self.tries >= self.most {
            return false;
        }
        sleep(longest(took, self.tries).mul_f64(fastrand::f64())).await;
        self.began = Instant::now();
        true
    }
}

/// The longest pause after so many tries, of which the last took so long.
fn longest(took: Duration, tries: u32) -> Duration {
    let times = 1_u32.checked_shl(tries).unwrap_or(u32::MAX);
    took.max(SHORTEST).saturating_mul(times).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r35_pauses_grow_and_have_a_bound() {
        let millis = |took: u64, tries| longest(Duration::from_millis(took), tries).as_millis();
        let table = [((0, 1), 2), ((0, 3), 8), ((5, 1), 10), ((5, 4), 80), ((5, 9), 300)];
        for ((took, tries), expected) in table {
            assert_eq!(millis(took, tries), expected, "{took} ms, {tries}");
        }
        assert_eq!(longest(Duration::MAX, u32::MAX), LONGEST);
    }

    #[tokio::test]
    async fn r35_tries_have_an_end() {
        let mut pace = Pace::new(3);
        assert!(pace.again().await && pace.again().await);
        assert!(!pace.again().await);
    }
}
