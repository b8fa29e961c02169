//! What should follow an error that a handler did not judge itself (R24, R25), and the judgement of
//! HTTP answers, which tasks in code and tasks of the server share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The longest wait that a target can ask for: none can put a job off for years.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// What follows an error.
///
/// ```
/// use std::time::Duration;
/// use quell_core::failure::Class;
///
/// assert_eq!(Class::of_status(404, None), Class::Permanent);
/// assert_eq!(Class::of_status(500, None), Class::Transient);
/// let wait = Duration::from_secs(7);
/// assert_eq!(Class::of_status(429, Some(wait)), Class::RetryAfter(wait));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Tried again after the policy's backoff (R24).
    #[default]
    Transient,
    /// Tried again after this long, or after the policy's backoff where that is longer; it spends an
    /// attempt (R24).
    RetryAfter(Duration),
    /// No retry can help: buried at once (R25).
    Permanent,
    /// Not yet: run again after this long; no attempt is spent (R24).
    Snooze(Duration),
    /// The work is no longer wanted: the job ends cancelled, with the error as the reason.
    Cancel,
}

impl Class {
    /// What follows an HTTP answer that is not a success. 429 and 503 come back when they asked to;
    /// 408, 409, 425 and 429 may go well later; other 3xx and 4xx are permanent, for the same
    /// request gets the same answer; the rest is transient.
    #[must_use]
    pub fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        match (status, retry_after.filter(|wait| !wait.is_zero())) {
            (429 | 503, Some(wait)) => Class::RetryAfter(wait.min(MAX_RETRY_AFTER)),
            (408 | 409 | 425 | 429, _) => Class::Transient,
            (300..=499, _) => Class::Permanent,
            _ => Class::Transient,
        }
    }
}

/// The wait that a `Retry-After` header asks for: seconds, or the time from `now` until an HTTP
/// date, at most [`MAX_RETRY_AFTER`]. None for a header that cannot be read, and for no wait at all,
/// which the task's own backoff knows better.
///
/// ```
/// use std::time::Duration;
/// use quell_core::{Timestamp, failure::retry_after};
///
/// let now = Timestamp::from_secs(784_111_777);
/// assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
/// let date = "Sun, 06 Nov 1994 08:50:00 GMT";
/// assert_eq!(retry_after(date, now), Some(Duration::from_secs(23)));
/// ```
#[must_use]
pub fn retry_after(header: &str, now: Timestamp) -> Option<Duration> {
    let text = header.trim();
    let wait = match text.parse::<u32>() {
        Ok(secs) => Duration::from_secs(secs.into()),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            Timestamp::from_micros(date.as_microsecond()).since(now)
        }
    };
    (!wait.is_zero()).then_some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r25_answers_are_permanent_or_transient_by_their_status() {
        let five = Duration::from_secs(5);
        let table = [
            (302, None, Class::Permanent),
            (400, None, Class::Permanent),
            (404, Some(five), Class::Permanent),
            (408, None, Class::Transient),
            (409, None, Class::Transient),
            (425, Some(five), Class::Transient),
            (429, None, Class::Transient),
            (429, Some(five), Class::RetryAfter(five)),
            (429, Some(Duration::ZERO), Class::Transient),
            (500, Some(five), Class::Transient),
            (503, None, Class::Transient),
            (503, Some(five), Class::RetryAfter(five)),
            (503, Some(Duration::MAX), Class::RetryAfter(MAX_RETRY_AFTER)),
        ];
        for (status, wait, expected) in table {
            assert_eq!(Class::of_status(status, wait), expected, "{status} {wait:?}");
        }
    }

    #[test]
    fn r24_retry_after_is_seconds_or_a_date_within_a_day() {
        let now = Timestamp::from_secs(784_111_777);
        let table = [
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("4294967295", Some(86_400)),
            ("Sun, 06 Nov 1994 08:59:37 GMT", Some(600)),
            ("Sun, 20 Nov 1994 08:49:37 GMT", Some(86_400)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:39:37 GMT", None),
            ("0", None),
            ("-5", None),
            ("soon", None),
            ("", None),
        ];
        for (text, expected) in table {
            let wait = retry_after(text, now).map(|wait| wait.as_secs());
            assert_eq!(wait, expected, "{text:?}");
        }
    }
}
