//! Failure classes (R24, R25): the consequences of an error that a handler did not classify itself.
//!
//! A handler answers with `?` and the task's [`Policy::classify`](crate::Policy::classify) says
//! what each kind of error means, in one place for all of the handler's calls.

use std::error::Error as StdError;
use std::fmt;
use std::time::{Duration, SystemTime};

pub use quell_core::failure::{Class, MAX_RETRY_AFTER, retry_after};

use crate::Timestamp;
use crate::handler::task::sources;

/// Judges an error; given to [`Policy::classify`](crate::Policy::classify).
pub type Classifier = fn(&(dyn StdError + 'static)) -> Class;

/// An HTTP answer that was not a success, for [`http_class`].
///
/// ```
/// use std::time::Duration;
/// use quell::failure::{Class, HttpError, http_class};
///
/// let busy = HttpError::new(503, "try later").retry_after(Some("30"));
/// assert_eq!(http_class(&busy), Class::RetryAfter(Duration::from_secs(30)));
/// assert_eq!(http_class(&HttpError::new(404, "no such page")), Class::Permanent);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpError {
    status: u16,
    retry_after: Option<Duration>,
    message: String,
}

impl HttpError {
    /// An answer with this status; the message has the text of the target.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        HttpError { status, retry_after: None, message: message.into() }
    }

    /// Takes the answer's `Retry-After` header: seconds, or an HTTP date, which is measured with
    /// this machine's clock.
    #[must_use]
    pub fn retry_after(mut self, header: Option<&str>) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp::from_secs(0) + since;
        self.retry_after = header.and_then(|header| retry_after(header, now));
        self
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// What follows it.
    #[must_use]
    pub fn class(&self) -> Class {
        Class::of_status(self.status, self.retry_after)
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the target answered {}: {}", self.status, self.message)
    }
}

impl StdError for HttpError {}

/// Judges by the [`HttpError`] that the error is, or has among its sources; without one it is
/// transient. For errors of an HTTP client, write one that asks for their status and
/// [`Class::of_status`].
#[must_use]
pub fn http_class(error: &(dyn StdError + 'static)) -> Class {
    let http = std::iter::once(error).chain(sources(error));
    let mut found = http.filter_map(|error| error.downcast_ref::<HttpError>());
    found.next().map_or(Class::Transient, HttpError::class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Wrapped(HttpError);

    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the customer could not be updated")
        }
    }

    impl StdError for Wrapped {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn r25_an_http_error_is_found_among_the_sources() {
        assert_eq!(http_class(&Wrapped(HttpError::new(404, "no"))), Class::Permanent);
        let busy = HttpError::new(429, "slow down").retry_after(Some("9"));
        assert_eq!(http_class(&Wrapped(busy)), Class::RetryAfter(Duration::from_secs(9)));
        assert_eq!(http_class(&fmt::Error), Class::Transient);
    }

    #[test]
    fn r24_a_date_to_come_back_at_is_measured_with_the_machines_clock() {
        let distant = HttpError::new(503, "").retry_after(Some("Tue, 31 Dec 2999 23:59:59 GMT"));
        assert_eq!(distant.class(), Class::RetryAfter(MAX_RETRY_AFTER));
        let past = HttpError::new(503, "").retry_after(Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(past.class(), Class::Transient);
    }
}
