//! A target that takes no connections: how long it is left alone.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first pause; each further one is twice as long.
const SHORTEST: Duration = Duration::from_secs(1);
/// No pause is longer: the target is called again so soon after it is back.
const LONGEST: Duration = Duration::from_secs(10);

/// Whether a target is away.
#[derive(Debug, Default)]
pub(super) struct Away(Mutex<Pause>);

#[derive(Debug, Default)]
struct Pause {
    until: Option<Instant>,
    /// How long the last one was; none while the target is there.
    last: Option<Duration>,
}

impl Away {
    fn pause(&self) -> MutexGuard<'_, Pause> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the pause still lasts.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.pause().until?.checked_duration_since(Instant::now())?;
        Some(left).filter(|left| !left.is_zero())
    }

    /// Begins a pause, or goes on with one that other calls have begun meanwhile; how long it is.
    pub(super) fn begin(&self) -> Duration {
        if let Some(left) = self.left() {
            return left;
        }
        let mut pause = self.pause();
        let length = pause.last.map_or(SHORTEST, |last| last.saturating_mul(2).min(LONGEST));
        (pause.until, pause.last) = (Instant::now().checked_add(length), Some(length));
        length
    }

    /// The target answers; whether it was away.
    pub(super) fn end(&self) -> bool {
        let was = std::mem::take(&mut *self.pause());
        was.last.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_one_covers_all_calls_that_fail_in_it() {
        let away = Away::default();
        assert!(away.left().is_none() && !away.end());
        let first = away.begin();
        assert!(away.begin() <= first && away.left().is_some_and(|left| left <= first));
        let mut lengths = vec![first];
        for _ in 0..6 {
            away.pause().until = None;
            lengths.push(away.begin());
        }
        assert_eq!(
            lengths.iter().map(Duration::as_secs).collect::<Vec<_>>(),
            [1, 2, 4, 8, 10, 10, 10]
        );
        assert!(away.end() && !away.end() && away.left().is_none());
        assert_eq!(away.begin(), SHORTEST);
    }
}
