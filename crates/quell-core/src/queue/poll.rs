//! Adaptive polling: how long a poller sleeps when nothing wakes it (R35).
//!
//! Contention doubles the interval at once, a clean poll shrinks it by a tenth, and time alone
//! brings it back: the safety net gets wider while the store is fought over, never for minutes.

use std::time::Duration;

use crate::setters::setters;
use crate::{Error, Result, Timestamp};

/// How often a queue is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollSettings {
    /// The interval without contention; above zero.
    pub base: Duration,
    /// Contention never raises it past the larger of this and the base.
    pub ceiling: Duration,
}

setters!(PollSettings { base: Duration, ceiling: Duration });

impl Default for PollSettings {
    fn default() -> Self {
        PollSettings { base: Duration::from_secs(1), ceiling: Duration::from_secs(120) }
    }
}

impl PollSettings {
    /// Polls every `base`, and up to every `ceiling` under contention.
    #[must_use]
    pub const fn new(base: Duration, ceiling: Duration) -> Self {
        PollSettings { base, ceiling }
    }

    /// Refuses a base of zero (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        if self.base.as_micros() == 0 {
            return Err(Error::invalid("poll_base", "poll interval is zero: give a duration"));
        }
        Ok(())
    }
}

/// What one poll met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// It went through.
    Clean,
    /// Another process held a row that it needed.
    Contended,
    /// Another error, which says nothing about contention.
    Failed,
}

impl Polled {
    /// What an answer of the store says of contention.
    pub fn of<T>(answer: &Result<T>) -> Polled {
        match answer {
            Ok(_) => Polled::Clean,
            Err(error) if error.kind() == crate::ErrorKind::Contention => Polled::Contended,
            Err(_) => Polled::Failed,
        }
    }
}

/// The interval of one poller.
///
/// ```
/// use quell_core::Timestamp;
/// use quell_core::poll::{PollInterval, PollSettings, Polled};
///
/// let now = Timestamp::from_secs(0);
/// let mut interval = PollInterval::new(PollSettings::default());
/// interval.on(Polled::Contended, now);
/// assert_eq!(interval.current(now).as_secs_f64(), 2.0);
/// interval.on(Polled::Clean, now);
/// assert_eq!(interval.current(now).as_secs_f64(), 1.8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollInterval {
    settings: PollSettings,
    interval: Duration,
    contended_at: Option<Timestamp>,
}

/// Without contention for this long the interval is at its base again.
const CALM: Duration = Duration::from_secs(60);

impl PollInterval {
    /// Starts at the base.
    #[must_use]
    pub fn new(settings: PollSettings) -> Self {
        PollInterval { settings, interval: settings.base, contended_at: None }
    }

    /// Takes note of a poll; returns whether the interval changed.
    pub fn on(&mut self, polled: Polled, now: Timestamp) -> bool {
        let before = self.interval;
        self.interval = self.current(now);
        match polled {
            Polled::Contended => {
                let ceiling = self.settings.ceiling.max(self.settings.base);
                self.interval = self.interval.saturating_mul(2).min(ceiling);
                self.contended_at = Some(now);
            }
            Polled::Clean => {
                self.interval = self.interval.mul_f64(0.9).max(self.settings.base);
            }
            Polled::Failed => {}
        }
        self.interval != before
    }

    /// The interval at `now`: at its base once no contention was met for 60 s.
    #[must_use]
    pub fn current(&self, now: Timestamp) -> Duration {
        match self.contended_at {
            Some(at) if now.since(at) < CALM => self.interval,
            Some(_) | None => self.settings.base,
        }
    }

    /// Whether nothing keeps the interval above its base at `now`.
    #[must_use]
    pub fn is_at_base(&self, now: Timestamp) -> bool {
        self.current(now) <= self.settings.base
    }

    /// How long to sleep: the interval scaled into [0.95, 1.05], but not past the moment at which
    /// time alone brings it back to its base. `random` is uniform in [0, 1).
    #[must_use]
    pub fn sleep(&self, now: Timestamp, random: f64) -> Duration {
        let sleep = self.current(now).mul_f64(random.clamp(0.0, 1.0).mul_add(0.1, 0.95));
        match self.contended_at.filter(|_| !self.is_at_base(now)) {
            Some(at) => sleep.min(CALM.saturating_sub(now.since(at)).max(self.settings.base)),
            None => sleep,
        }
    }

    /// Takes new settings at once (R32).
    pub fn set(&mut self, settings: PollSettings) {
        let ceiling = settings.ceiling.max(settings.base);
        self.interval = self.interval.clamp(settings.base, ceiling);
        self.settings = settings;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(interval: &PollInterval, now: Timestamp) -> f64 {
        (interval.current(now).as_secs_f64() * 1000.0).round() / 1000.0
    }

    #[test]
    fn r35_contention_doubles_and_clean_polls_shrink_by_a_tenth() {
        let now = Timestamp::from_secs(0);
        let mut interval = PollInterval::new(PollSettings::default());
        assert!(interval.on(Polled::Contended, now));
        assert_eq!(secs(&interval, now), 2.0);
        assert!(!interval.on(Polled::Failed, now));
        let shrinking: Vec<f64> = (0..8)
            .map(|_| {
                interval.on(Polled::Clean, now);
                secs(&interval, now)
            })
            .collect();
        assert_eq!(shrinking, [1.8, 1.62, 1.458, 1.312, 1.181, 1.063, 1.0, 1.0]);
    }

    #[test]
    fn r35_the_ceiling_holds_and_a_calm_minute_ends_it() {
        let start = Timestamp::from_secs(0);
        let mut interval = PollInterval::new(PollSettings::default());
        for _ in 0..20 {
            interval.on(Polled::Contended, start);
        }
        assert_eq!(secs(&interval, start), 120.0);
        assert_eq!(secs(&interval, start + Duration::from_secs(59)), 120.0);
        assert_eq!(secs(&interval, start + Duration::from_secs(60)), 1.0);
    }

    #[test]
    fn r35_no_sleep_outlasts_the_minute_without_contention() {
        let start = Timestamp::from_secs(0);
        let mut interval = PollInterval::new(PollSettings::default());
        // Wake-ups make seven polls within seven seconds.
        for second in 0..7 {
            interval.on(Polled::Contended, start + Duration::from_secs(second));
        }
        let last = start + Duration::from_secs(6);
        assert_eq!(secs(&interval, last), 120.0);
        for random in [0.0, 0.5, 1.0] {
            assert_eq!(interval.sleep(last, random), Duration::from_secs(60));
            let later = last + Duration::from_secs(45);
            assert_eq!(interval.sleep(later, random), Duration::from_secs(15));
            let almost = last + Duration::from_millis(59_900);
            assert_eq!(
                interval.sleep(almost, random),
                Duration::from_secs(1),
                "never below the base"
            );
        }
        interval.on(Polled::Clean, last);
        assert_eq!(interval.sleep(last, 0.5), Duration::from_secs(60));
    }

    #[test]
    fn r35_a_base_above_the_ceiling_wins_and_sleep_is_spread() {
        let now = Timestamp::from_secs(0);
        let settings =
            PollSettings { base: Duration::from_secs(200), ceiling: Duration::from_secs(120) };
        let mut interval = PollInterval::new(settings);
        interval.on(Polled::Contended, now);
        assert_eq!(secs(&interval, now), 200.0);
        assert_eq!(interval.sleep(now, 0.0).as_secs_f64(), 190.0);
        assert!((interval.sleep(now, 1.0).as_secs_f64() - 210.0).abs() < 1e-6);
        assert!(PollSettings { base: Duration::ZERO, ..settings }.validate().is_err());
    }

    #[test]
    fn r32_r35_new_settings_hold_at_once_in_both_directions() {
        let now = Timestamp::from_secs(0);
        let seconds = Duration::from_secs;
        let mut interval = PollInterval::new(PollSettings::default());
        interval.on(Polled::Contended, now);
        interval.set(PollSettings { base: seconds(5), ceiling: seconds(9) });
        assert_eq!(secs(&interval, now), 5.0);
        interval.on(Polled::Contended, now);
        interval.set(PollSettings { base: seconds(1), ceiling: seconds(3) });
        assert_eq!(secs(&interval, now), 3.0);
        interval.set(PollSettings { base: seconds(4), ceiling: seconds(3) });
        assert_eq!(secs(&interval, now), 4.0);
    }
}
