//! Jobs whose attempts end without a word: when they run again (R21, R25).
//!
//! A job that kills its worker takes down what else that worker held, so nobody can tell which of
//! them did it. Each comes back at a moment that its id spreads, further apart with every lapse in
//! a row: soon they run apart from each other, and those that are sound end well.

use std::time::Duration;

use crate::JobId;

/// After so many lapses more than two in a row, pauses grow no further.
const MOST_ROUNDS: u32 = 2;
/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(600);

/// How long a job waits after its lease has lapsed so often in a row; `ran` is how long after the
/// attempt's start it was taken back. None after the first, which says nothing about the job:
/// workers are stopped, and machines fail. After that within once what it ran, then 4
/// times, then 16 times, at most 10 minutes.
///
/// ```
/// use std::time::Duration;
/// use quell_core::{JobId, crash::pause};
///
/// let ran = Duration::from_secs(30);
/// assert_eq!(pause(1, JobId::new(7), ran), Duration::ZERO);
/// assert!(pause(2, JobId::new(7), ran) < ran);
/// assert_ne!(pause(2, JobId::new(7), ran), pause(2, JobId::new(8), ran));
/// ```
#[must_use]
pub fn pause(lapses: u32, id: JobId, ran: Duration) -> Duration {
    let Some(rounds) = lapses.checked_sub(2) else { return Duration::ZERO };
    let longest = ran.saturating_mul(4_u32.saturating_pow(rounds.min(MOST_ROUNDS))).min(LONGEST);
    let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
    // The upper half of the product is the fraction's share.
    let fraction = u128::from(scattered(id.get() ^ u64::from(lapses).rotate_right(8)));
    let micros = fraction.saturating_mul(u128::from(longest)) >> 64;
    Duration::from_micros(u64::try_from(micros).unwrap_or(longest))
}

/// A number that looks like chance and is the same each time: the finaliser of SplitMix64.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAN: Duration = Duration::from_secs(10);

    /// Which hundredth of the longest pause it is.
    fn share(lapses: u32, id: u64, longest: u64) -> usize {
        let hundredths = pause(lapses, JobId::new(id), RAN).as_millis() / 10 / u128::from(longest);
        usize::try_from(hundredths).unwrap()
    }

    #[test]
    fn r25_jobs_that_lapsed_together_come_back_apart() {
        for (lapses, longest) in [(2, 10), (3, 40), (4, 160), (5, 160), (u32::MAX, 160)] {
            let mut tenths = [0_u32; 10];
            (1..=1_000).for_each(|id| tenths[share(lapses, id, longest) / 10] += 1);
            assert!(tenths.iter().all(|jobs| (60..=140).contains(jobs)), "{lapses}: {tenths:?}");
        }
    }

    #[test]
    fn r25_no_pause_is_longer_than_ten_minutes() {
        let hours = Duration::from_secs(9_999);
        let longest = (1..=1_000).map(|id| pause(4, JobId::new(id), hours)).max().unwrap();
        assert!(longest < LONGEST && longest > Duration::from_secs(590), "{longest:?}");
    }

    #[test]
    fn r21_a_first_lapse_waits_for_nothing() {
        assert_eq!(pause(0, JobId::new(3), RAN), Duration::ZERO);
        assert_eq!(pause(1, JobId::new(3), RAN), Duration::ZERO);
    }

    #[test]
    fn r25_neighbours_of_one_lapse_are_others_after_the_next() {
        let near = |lapses, longest| -> Vec<u64> {
            let own = share(lapses, 1_001, longest);
            (1..=1_000).filter(|id| share(lapses, *id, longest).abs_diff(own) <= 2).collect()
        };
        let (first, then) = (near(2, 10), near(3, 40));
        let both = first.iter().filter(|id| then.contains(id)).count();
        assert!(both * 4 <= first.len(), "{first:?} {then:?}");
    }
}
