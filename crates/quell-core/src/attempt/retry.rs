//! Retry and backoff: when a failed job runs again (R24).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{Error, Result};

/// How a backoff is spread, so that jobs that failed together do not return together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Uniform in [d/2, d].
    #[default]
    Equal,
    /// Uniform in [0, d].
    Full,
    /// Exactly d.
    None,
}

/// How often and how far apart a job is tried.
///
/// The n-th retry comes after min(max_backoff, min_backoff · 2^(n−1)), spread by [`Jitter`]; see
/// <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/> for why.
///
/// ```
/// use std::time::Duration;
/// use quell_core::retry::{Jitter, Retry};
///
/// let retry = Retry::default().min_backoff(Duration::from_secs(30)).jitter(Jitter::None);
/// assert_eq!(retry.backoff(1, 0.5), Duration::from_secs(30));
/// assert_eq!(retry.backoff(3, 0.5), Duration::from_secs(120));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Attempts in all, the first among them.
    pub max_attempts: u32,
    /// The first backoff.
    pub min_backoff: Duration,
    /// No backoff is longer.
    pub max_backoff: Duration,
    /// How it is spread.
    pub jitter: Jitter,
    /// How many attempts in a row may end by an expired lease, without a report, before the job is
    /// dead (R25).
    #[serde(default = "default_max_crashes")]
    pub max_crashes: u32,
}

setters!(Retry {
    max_attempts: u32,
    min_backoff: Duration,
    max_backoff: Duration,
    jitter: Jitter,
    max_crashes: u32,
});

fn default_max_crashes() -> u32 {
    Retry::default().max_crashes
}

impl Default for Retry {
    /// 20 attempts, from 1 s to 1 h apart, and 5 crashes in a row.
    fn default() -> Self {
        Retry {
            max_attempts: 20,
            min_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(3_600),
            jitter: Jitter::default(),
            max_crashes: 5,
        }
    }
}

impl Retry {
    /// Refuses what cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        if self.max_attempts == 0 {
            return Err(Error::invalid("max_attempts", "max_attempts is 0: the first run is one"));
        }
        if self.max_crashes == 0 {
            let message = "max_crashes is 0: give 1 or more, the first crash is one";
            return Err(Error::invalid("max_crashes", message));
        }
        if self.min_backoff.as_micros() == 0 {
            return Err(Error::invalid("min_backoff", "min_backoff is zero: give a duration"));
        }
        if self.min_backoff > self.max_backoff {
            return Err(Error::invalid(
                "min_backoff",
                format!(
                    "min_backoff ({:?}) is longer than max_backoff ({:?})",
                    self.min_backoff, self.max_backoff
                ),
            ));
        }
        Ok(())
    }

    /// The wait after the `failures`-th failure in a row, from 1. `random` is uniform in [0, 1).
    #[must_use]
    pub fn backoff(&self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(63);
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let micros = u64::try_from(self.min_backoff.as_micros()).unwrap_or(u64::MAX);
        let full = Duration::from_micros(micros.saturating_mul(factor)).min(self.max_backoff);
        let random = random.clamp(0.0, 1.0);
        match self.jitter {
            Jitter::None => full,
            Jitter::Full => full.mul_f64(random),
            Jitter::Equal => full.mul_f64(random.mul_add(0.5, 0.5)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r24_backoff_doubles_up_to_its_bound() {
        let retry = Retry {
            min_backoff: Duration::from_secs(30),
            max_backoff: Duration::from_secs(100),
            jitter: Jitter::None,
            max_attempts: 9,
            ..Retry::default()
        };
        let seconds: Vec<u64> =
            [1, 2, 3, 4, 64, 65, u32::MAX].map(|n| retry.backoff(n, 0.0).as_secs()).to_vec();
        assert_eq!(seconds, [30, 60, 100, 100, 100, 100, 100]);
    }

    #[test]
    fn r24_jitter_stays_in_its_range() {
        let base = Retry { min_backoff: Duration::from_secs(10), ..Retry::default() };
        let table =
            [(Jitter::None, 10.0, 10.0), (Jitter::Equal, 5.0, 10.0), (Jitter::Full, 0.0, 10.0)];
        for (jitter, low, high) in table {
            let retry = Retry { jitter, ..base };
            assert_eq!(retry.backoff(1, 0.0).as_secs_f64(), low, "{jitter:?}");
            assert_eq!(retry.backoff(1, 1.0).as_secs_f64(), high, "{jitter:?}");
        }
    }

    #[test]
    fn r40_a_retry_policy_names_the_field_it_is_refused_for() {
        let zero = Retry { max_attempts: 0, ..Retry::default() };
        assert_eq!(zero.validate().unwrap_err().field(), Some("max_attempts"));
        let zero = Retry { max_crashes: 0, ..Retry::default() };
        assert_eq!(zero.validate().unwrap_err().field(), Some("max_crashes"));
        let crossed = Retry { min_backoff: Duration::from_secs(9_999), ..Retry::default() };
        assert_eq!(crossed.validate().unwrap_err().field(), Some("min_backoff"));
        assert!(Retry::default().validate().is_ok());
    }

    #[test]
    fn r40_a_first_backoff_may_be_the_longest_and_no_longer() {
        let least = Retry { max_backoff: Duration::from_secs(1), ..Retry::default() };
        assert!(least.validate().is_ok());
        let below = Retry { max_backoff: Duration::from_millis(999), ..least };
        assert_eq!(below.validate().unwrap_err().field(), Some("min_backoff"));
    }
}
