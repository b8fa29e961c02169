//! Calling a URL with the payload, signed, bounded in time and in what is read back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quell::{Error, Result, TaskError, Timestamp};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode, Url};

use super::address::{Allowed, Guard, forbidden, may_connect};
use super::{Invocation, MAX_OUTPUT, Secret, tail};

/// The longest wait that a target can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// What to call, as the configuration says it.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The URL, http or https.
    pub url: String,
    /// The method; POST by default.
    pub method: String,
    /// Headers to send.
    pub headers: BTreeMap<String, String>,
    /// The key that signs the body.
    pub secret: Option<Secret>,
    /// What may be connected to although it is not public.
    pub allow: Vec<Allowed>,
    /// How long the call may take.
    pub timeout: Duration,
}

/// A URL that is ready to be called.
#[derive(Debug)]
pub struct Http {
    client: Client,
    url: Url,
    method: Method,
    secret: Option<Secret>,
    allow: Arc<[Allowed]>,
    timeout: Duration,
}

impl Http {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names the setting.
    pub fn new(settings: HttpSettings) -> Result<Self> {
        let bad_url = |why: &str| Error::invalid("url", format!("url {why}"));
        let url =
            Url::parse(&settings.url).map_err(|e| bad_url(&format!("cannot be read: {e}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad_url("must begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad_url("must not hold a user or password: use a header"));
        }
        let method = Method::from_bytes(settings.method.as_bytes())
            .map_err(|_| Error::invalid("method", "method is not an HTTP method"))?;
        let allow: Arc<[Allowed]> = settings.allow.into();
        let client = Client::builder()
            .default_headers(headers(&settings.headers)?)
            .timeout(settings.timeout)
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(Guard(Arc::clone(&allow))))
            .user_agent(concat!("quell/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| bad_url("has no usable client").with_source(error))?;
        let HttpSettings { secret, timeout, .. } = settings;
        Ok(Http { client, url, method, secret, allow, timeout })
    }

    /// Calls the URL once.
    ///
    /// # Errors
    /// 429 and 503 come back when `Retry-After` says, other 4xx are permanent, the rest is
    /// transient; each with the status and the beginning of the answer.
    pub async fn run(&self, call: &Invocation) -> Result<(), TaskError> {
        self.check_literal_address()?;
        let request = self.request(call)?;
        let answer = tokio::select! {
            answer = request.send() => answer.map_err(|error| failed(&error))?,
            () = call.cancelled.cancelled() => {
                return Err(TaskError::retry("the call was stopped before it was answered"));
            }
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let retry_after = retry_after(answer.headers());
        let error = format!("the target answered {status}{}", beginning(answer).await);
        Err(judge(status, retry_after, error))
    }

    /// How long a call may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Addresses in a URL are not resolved, so the guard never sees them.
    fn check_literal_address(&self) -> Result<(), TaskError> {
        let host = self.url.host_str().unwrap_or_default();
        let literal = host.trim_matches(['[', ']']).parse();
        match literal {
            Ok(address) if !may_connect(host, address, &self.allow) => {
                Err(TaskError::permanent(forbidden(host)))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn request(&self, call: &Invocation) -> Result<reqwest::RequestBuilder, TaskError> {
        let body = call.payload.as_str().as_bytes().to_vec();
        // The same for every attempt of the same triggers, so that a receiver can deduplicate.
        let id = format!("quell-{}-{}", call.job, call.triggers);
        let timestamp = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        let mut request = self
            .client
            .request(self.method.clone(), self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp)
            .header("quell-task", call.task.as_str())
            .header("quell-job", call.job.to_string())
            .header("quell-attempt", call.attempt)
            .header("quell-triggers", call.triggers);
        if let Some(key) = &call.key
            && let Ok(value) = HeaderValue::from_bytes(key.as_str().as_bytes())
        {
            request = request.header("quell-key", value);
        }
        if let Some(secret) = &self.secret {
            let signature = secret.sign(&id, timestamp, &body).map_err(TaskError::permanent)?;
            request = request.header("webhook-signature", signature);
        }
        Ok(request.body(body))
    }
}

fn headers(wanted: &BTreeMap<String, String>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in wanted {
        let bad = || Error::invalid("headers", format!("header {name:?} cannot be sent"));
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(parsed, value);
    }
    Ok(headers)
}

/// What the driver says, without the URL, which may hold what is not for logs.
fn failed(error: &reqwest::Error) -> TaskError {
    let what = if error.is_timeout() {
        "the target did not answer in time"
    } else if error.is_connect() {
        "the target cannot be connected to"
    } else {
        "the call failed"
    };
    let mut text = what.to_owned();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    if error.is_timeout() { TaskError::timed_out(text) } else { TaskError::retry(text) }
}

fn judge(status: StatusCode, retry_after: Option<Duration>, error: String) -> TaskError {
    let waits = matches!(status.as_u16(), 429 | 503);
    match (status.as_u16(), retry_after) {
        (_, Some(delay)) if waits => TaskError::retry_after(delay, error),
        (408 | 409 | 425 | 429, _) => TaskError::retry(error),
        (300..=499, _) => TaskError::permanent(error),
        _ => TaskError::retry(error),
    }
}

/// Seconds, or the time until a date, within a bound: a target cannot put a job off for years. None
/// for no wait at all, which the task's own backoff knows better.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u32>() {
        Ok(secs) => Duration::from_secs(secs.into()),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
            let now = jiff::Timestamp::try_from(SystemTime::now()).ok()?;
            let until = Timestamp::from_micros(date.as_microsecond());
            until.since(Timestamp::from_micros(now.as_microsecond()))
        }
    };
    (!wait.is_zero()).then_some(wait.min(MAX_RETRY_AFTER))
}

/// The beginning of an answer's body, bounded.
async fn beginning(mut answer: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = answer.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() >= MAX_OUTPUT {
            body.truncate(MAX_OUTPUT);
            break;
        }
    }
    if body.is_empty() { String::new() } else { format!(": {}", tail(&body)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r24_retry_after_is_seconds_or_a_date_within_a_day() {
        let now = jiff::Timestamp::now();
        let date = |secs: i64| {
            let at = now.saturating_add(jiff::SignedDuration::from_secs(secs)).unwrap();
            jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap()
        };
        let table = [
            ("120".to_owned(), Some(120)),
            (" 7 ".to_owned(), Some(7)),
            ("4294967295".to_owned(), Some(86_400)),
            (date(600), Some(600)),
            (date(900_000), Some(86_400)),
            ("0".to_owned(), None),
            (date(-600), None),
            ("-5".to_owned(), None),
            ("soon".to_owned(), None),
        ];
        for (text, expected) in table {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            let wait = retry_after(&headers).map(|wait| wait.as_secs());
            // A date has whole seconds and the clock goes on.
            let near = wait.zip(expected).is_some_and(|(got, want)| got.abs_diff(want) <= 2);
            assert!(near || wait == expected, "{text}: {wait:?}");
        }
    }

    #[test]
    fn r25_answers_are_permanent_or_transient_by_their_status() {
        let table = [
            (302, false, "Permanent"),
            (400, false, "Permanent"),
            (404, true, "Permanent"),
            (408, false, "Retry { delay: None"),
            (409, false, "Retry { delay: None"),
            (425, true, "Retry { delay: None"),
            (429, false, "Retry { delay: None"),
            (429, true, "Retry { delay: Some(5s)"),
            (500, true, "Retry { delay: None"),
            (503, true, "Retry { delay: Some(5s)"),
        ];
        for (status, waits, expected) in table {
            let wait = waits.then_some(Duration::from_secs(5));
            let judged = judge(StatusCode::from_u16(status).unwrap(), wait, "e".to_owned());
            assert!(format!("{judged:?}").contains(expected), "{status}: {judged:?}");
        }
    }
}
