//! A target that takes no connections: since when, and how long it is left alone.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first pause; each further one is twice as long.
const SHORTEST: Duration = Duration::from_secs(1);
/// No pause is longer: the target is called again so soon after it is back.
const LONGEST: Duration = Duration::from_secs(10);

/// Whether a target is away.
#[derive(Debug, Default)]
pub(super) struct Away(Mutex<Option<Absence>>);

/// The time since a target took no connection.
#[derive(Clone, Copy, Debug)]
struct Absence {
    since: Instant,
    until: Instant,
    /// How long the last pause was.
    last: Duration,
}

/// A pause, as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// How long it still lasts.
    pub(super) left: Duration,
    /// How long the target has been away.
    pub(super) lasted: Duration,
    /// Whether this call has begun it.
    pub(super) is_new: bool,
}

impl Pause {
    /// Since when the target is away, by this host's clock.
    pub(super) fn since(&self) -> String {
        shown(jiff::Timestamp::now().checked_sub(signed(self.lasted)))
    }

    /// When it is called again, by this host's clock.
    pub(super) fn next_try(&self) -> String {
        shown(jiff::Timestamp::now().checked_add(signed(self.left)))
    }
}

fn signed(time: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX)
}

fn shown(time: Result<jiff::Timestamp, jiff::Error>) -> String {
    time.map_or_else(|_| "unknown".to_owned(), |time| format!("{time:.0}"))
}

impl Away {
    fn absence(&self) -> MutexGuard<'_, Option<Absence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pause that still lasts.
    pub(super) fn pause(&self) -> Option<Pause> {
        let absence = (*self.absence())?;
        let now = Instant::now();
        let left = absence.until.checked_duration_since(now).filter(|left| !left.is_zero())?;
        Some(Pause { left, lasted: now.saturating_duration_since(absence.since), is_new: false })
    }

    /// Begins a pause, or goes on with one that other calls have begun meanwhile.
    pub(super) fn begin(&self) -> Pause {
        if let Some(pause) = self.pause() {
            return pause;
        }
        let mut absence = self.absence();
        let now = Instant::now();
        let since = absence.map_or(now, |absence| absence.since);
        let double = |absence: Absence| absence.last.saturating_mul(2).min(LONGEST);
        let last = absence.map_or(SHORTEST, double);
        *absence = Some(Absence { since, until: now.checked_add(last).unwrap_or(now), last });
        Pause { left: last, lasted: now.saturating_duration_since(since), is_new: true }
    }

    /// The target answers; how long it was away, if it was.
    pub(super) fn end(&self) -> Option<Duration> {
        Some(self.absence().take()?.since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_one_covers_all_calls_that_fail_in_it() {
        let away = Away::default();
        assert!(away.pause().is_none() && away.end().is_none());
        let first = away.begin();
        let other = away.begin();
        assert!(first.is_new && !other.is_new && other.left <= first.left);
        let mut lengths = vec![first.left];
        for _ in 0..6 {
            if let Some(absence) = &mut *away.absence() {
                absence.until = absence.since;
            }
            let next = away.begin();
            assert!(next.is_new && next.lasted >= other.lasted, "since the first one");
            lengths.push(next.left);
        }
        assert_eq!(
            lengths.iter().map(Duration::as_secs).collect::<Vec<_>>(),
            [1, 2, 4, 8, 10, 10, 10]
        );
        assert!(away.end().is_some() && away.end().is_none() && away.pause().is_none());
        assert_eq!(away.begin().left, SHORTEST);
    }

    #[test]
    fn a_pause_is_shown_in_seconds_of_the_wall_clock() {
        let (left, lasted) = (Duration::from_secs(3_600), Duration::from_secs(3_600));
        let pause = Pause { left, lasted, is_new: false };
        let [since, next]: [jiff::Timestamp; 2] =
            [pause.since(), pause.next_try()].map(|text| text.parse().unwrap());
        let apart = next.duration_since(since).as_secs();
        assert!((7_199..=7_201).contains(&apart), "{since} {next}");
    }
}
