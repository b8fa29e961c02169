//! Dedup: at most one accepted trigger per (task, key) for a time (R16, R17).
//!
//! A store keeps one [`Hold`] per key, written in the same step as the job it names, so a failed
//! enqueue never burns a key and no hold ever names a job that is not there.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Error, JobId, JobState, Key, Result, Timestamp};

/// How long a dedup key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HoldUntil {
    /// For this long from acceptance; duplicates do not extend it.
    Elapsed(Duration),
    /// Until the job started for the first time, or ended without.
    Started,
    /// Until the job ended.
    Done,
}

impl Default for HoldUntil {
    /// One hour.
    fn default() -> Self {
        HoldUntil::Elapsed(Duration::from_secs(3_600))
    }
}

/// A dedup key and how long it is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dedup {
    /// The key; it is the task's own.
    pub key: Key,
    /// When it is free again.
    pub until: HoldUntil,
}

impl Dedup {
    /// The key, taken for the default hour.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Dedup { key, until: HoldUntil::default() }
    }

    /// Refuses a TTL of zero (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        match self.until {
            HoldUntil::Elapsed(ttl) if ttl.as_micros() == 0 => {
                Err(Error::invalid("dedup_ttl", "dedup ttl is zero: give a duration"))
            }
            HoldUntil::Elapsed(_) | HoldUntil::Started | HoldUntil::Done => Ok(()),
        }
    }

    /// The hold that a trigger accepted at `now` as part of `job` takes.
    #[must_use]
    pub fn hold(&self, job: JobId, now: Timestamp) -> Hold {
        let expires_at = match self.until {
            HoldUntil::Elapsed(ttl) => now + ttl,
            HoldUntil::Started | HoldUntil::Done => Timestamp::MAX,
        };
        Hold { job, until: self.until, expires_at }
    }
}

/// A taken dedup key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hold {
    /// The job of the trigger that took it, or its successor.
    pub job: JobId,
    /// What frees it.
    pub until: HoldUntil,
    /// When it is free at the latest.
    pub expires_at: Timestamp,
}

impl Hold {
    /// Whether a trigger at `now` is a duplicate. `job` is the holder's state and whether it ever
    /// started; none when its row is gone, which only an ended job's can be.
    #[must_use]
    pub fn holds(&self, now: Timestamp, job: Option<(JobState, bool)>) -> bool {
        match self.until {
            HoldUntil::Elapsed(_) => now < self.expires_at,
            HoldUntil::Started => job == Some((JobState::Scheduled, false)),
            HoldUntil::Done => job.is_some_and(|(state, _)| !state.is_ended()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r16_a_key_is_free_when_its_hold_ends_and_not_a_microsecond_earlier() {
        let now = Timestamp::from_secs(100);
        let made = |until| Dedup { key: Key::new("k").unwrap(), until }.hold(JobId::new(1), now);
        let ttl = made(HoldUntil::default());
        let end = now + Duration::from_secs(3_600);
        assert!(ttl.holds(end.before(Duration::from_micros(1)), None));
        assert!(!ttl.holds(end, None));

        let scheduled = Some((JobState::Scheduled, false));
        let retried = Some((JobState::Scheduled, true));
        let running = Some((JobState::Running, true));
        let dead = Some((JobState::Dead, true));
        let table = [
            (HoldUntil::Started, [true, false, false, false, false]),
            (HoldUntil::Done, [true, true, true, false, false]),
        ];
        for (until, expected) in table {
            let seen =
                [scheduled, retried, running, dead, None].map(|job| made(until).holds(end, job));
            assert_eq!(seen, expected, "{until:?}");
        }
    }

    #[test]
    fn r40_a_ttl_of_zero_is_refused_by_field() {
        let asked = |ttl| Dedup { key: Key::new("k").unwrap(), until: HoldUntil::Elapsed(ttl) };
        let refused = asked(Duration::from_nanos(999)).validate().unwrap_err();
        assert_eq!(refused.field(), Some("dedup_ttl"));
        assert!(asked(Duration::from_micros(1)).validate().is_ok());
    }
}
