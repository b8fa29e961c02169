//! Requests to one service of a storage account: signed, retried as the service asks, and within a
//! deadline.
//!
//! [`Transport::attempt`] sends a request once and returns whether it may have been executed;
//! [`Transport::answer`] and [`Transport::repeat`] repeat one that may be executed twice.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use quell_core::{Error, ErrorKind, Result};
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, DATE, ETAG, HeaderMap, HeaderValue, RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Url};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::credentials::{Credentials, Service};
use crate::error::{error_code, unavailable};

/// The version of the REST API.
const API_VERSION: &str = "2019-02-02";
/// The first pause before a retry is between zero and this; each further one may be twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause that the service did not ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A connection that is idle for longer is not used again: the service may be closing it, and a write
/// on it would have an unknown outcome.
const IDLE: Duration = Duration::from_secs(20);
/// The service rejects a signature whose date is 15 minutes off.
const TOLERATED_SKEW_SECS: u64 = 60;

/// A request to the service.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Completes "cannot …" in errors.
    pub(crate) what: &'static str,
    pub(crate) method: Method,
    /// Below the endpoint, percent-encoded.
    pub(crate) path: String,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

/// An answer of the service.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The service's time of this answer, rounded down to a second.
    pub(crate) fn date(&self) -> Option<Timestamp> {
        read_date(self.header(DATE.as_str())?)
    }

    pub(crate) fn etag(&self) -> Option<&str> {
        self.header(ETAG.as_str())
    }

    /// This answer, unless it says that the request failed for a reason that may pass.
    pub(crate) fn sorted(self, what: &str) -> Sent {
        let code = error_code(&self);
        let is_busy = self.status == 429 || code == "ServerBusy";
        if !is_busy && self.status != 408 && self.status < 500 && code != "OperationTimedOut" {
            return Sent::Answered(self);
        }
        Sent::Failed(Failure {
            error: unavailable(what, &format!("the service answers {} {code}", self.status)),
            retry_after: self.retry_after(),
            is_lost: !is_busy,
        })
    }

    /// How long the service asks the client to wait, in seconds or until a date of its own clock.
    fn retry_after(&self) -> Option<Duration> {
        let value = self.header(RETRY_AFTER.as_str())?;
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let until = read_date(value)?;
        until.duration_since(self.date().unwrap_or_else(Timestamp::now)).try_into().ok()
    }
}

/// Reads a date as HTTP writes it, such as `Tue, 24 Nov 2026 12:00:00 GMT`.
fn read_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// The outcome of sending a request once.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The service executed or rejected it.
    Answered(Answer),
    /// A later attempt may succeed.
    Failed(Failure),
}

/// A request that failed for a reason that may pass.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) retry_after: Option<Duration>,
    /// Whether the service may have executed the request.
    pub(crate) is_lost: bool,
}

impl Failure {
    fn new(what: &str, reason: &str, is_lost: bool) -> Self {
        Failure { error: unavailable(what, reason), retry_after: None, is_lost }
    }
}

/// When a call ends, whatever the service does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    ends: Instant,
    total: Duration,
    pauses: u32,
}

impl Deadline {
    pub(crate) fn after(total: Duration) -> Self {
        Deadline { ends: Instant::now() + total, total, pauses: 0 }
    }

    pub(crate) fn ends(&self) -> Instant {
        self.ends
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }

    /// When one attempt ends: in half of the time that is left, so that some is left to retry, or to
    /// find out whether a lost request was executed.
    fn attempt_ends(&self) -> Instant {
        let left = self.ends.saturating_duration_since(Instant::now());
        (Instant::now() + (left / 2).max(self.total / 10)).min(self.ends)
    }

    /// Pauses before a retry: exponential backoff with full jitter, after what the service asks for.
    /// False at once where the deadline comes first or soon after: what is cut off has an unknown outcome.
    pub(crate) async fn back_off(&mut self, retry_after: Option<Duration>) -> bool {
        let longest = (FIRST_PAUSE * 2_u32.saturating_pow(self.pauses.min(10))).min(LONGEST_PAUSE);
        let jitter = longest.mul_f64(fastrand::f64());
        self.pauses += 1;
        let pause = retry_after.unwrap_or_default().saturating_add(jitter);
        if pause.saturating_add(self.total / 10)
            >= self.ends.saturating_duration_since(Instant::now())
        {
            return false;
        }
        sleep(pause).await;
        true
    }
}

/// The way to one service of an account.
#[derive(Debug)]
pub(crate) struct Transport {
    client: Client,
    service: Service,
    endpoint: Url,
    pub(crate) credentials: Credentials,
    /// Seconds from the local wall clock to the service's, for dates in signatures.
    skew: AtomicI64,
}

impl Transport {
    /// `timeout` is that of a whole call; connecting may take a quarter of it.
    pub(crate) fn new(
        service: Service,
        endpoint: Url,
        credentials: Credentials,
        limit: Duration,
    ) -> Result<Self> {
        let is_loopback = matches!(endpoint.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"));
        let is_signed = matches!(credentials, Credentials::SharedKey(_));
        if endpoint.scheme() == "http" && !is_loopback && !is_signed {
            let message = "tokens are not sent in the clear: give an endpoint of https://";
            return Err(Error::invalid("endpoint", message));
        }
        let client = Client::builder().redirect(Policy::none()).connect_timeout(limit / 4);
        let client = client.pool_idle_timeout(IDLE);
        let client = if is_loopback { client.no_proxy() } else { client }.build();
        let failed = |error| {
            Error::new(ErrorKind::Internal, "cannot make an HTTP client").with_source(error)
        };
        let client = client.map_err(failed)?;
        Ok(Transport { client, service, endpoint, credentials, skew: AtomicI64::new(0) })
    }

    pub(crate) fn service(&self) -> Service {
        self.service
    }

    /// What an operator checks when the account rejects the credentials.
    pub(crate) fn remedy(&self) -> String {
        self.credentials.remedy(self.service)
    }

    /// The URL of a resource, without credentials.
    pub(crate) fn url(&self, path: &str) -> Url {
        let mut url = self.endpoint.clone();
        url.set_path(&format!("{}/{path}", self.endpoint.path().trim_end_matches('/')));
        url
    }

    /// As [`Transport::answer`], for a request that the service must not reject; `name` is that of the
    /// table or the queue.
    pub(crate) async fn send(
        &self,
        request: &Request,
        name: &str,
        deadline: Deadline,
    ) -> Result<Answer> {
        let answer = self.answer(request, deadline).await?;
        match answer.is_success() {
            true => Ok(answer),
            false => Err(self.rejected(request.what, name, &answer)),
        }
    }

    /// Sends a request that changes nothing, or the same if it is executed twice, until it is
    /// answered or the deadline comes.
    pub(crate) async fn answer(&self, request: &Request, deadline: Deadline) -> Result<Answer> {
        match self.repeat(request, deadline).await {
            (Sent::Answered(answer), _) => Ok(answer),
            (Sent::Failed(failure), _) => Err(failure.error),
        }
    }

    /// Sends a request that may be executed twice, until it is answered or the deadline comes.
    /// Returns also whether an attempt that was not answered may have been executed.
    pub(crate) async fn repeat(&self, request: &Request, mut deadline: Deadline) -> (Sent, bool) {
        let mut is_lost = false;
        loop {
            let sent = self.attempt(request, &deadline).await;
            let Sent::Failed(failure) = &sent else { return (sent, is_lost) };
            is_lost |= failure.is_lost;
            if !deadline.back_off(failure.retry_after).await {
                return (sent, is_lost);
            }
        }
    }

    /// Creates a table or a queue of this name, unless it exists.
    pub(crate) async fn create(
        &self,
        request: &Request,
        name: &str,
        mut deadline: Deadline,
    ) -> Result<()> {
        loop {
            let answer = self.answer(request, deadline).await?;
            match error_code(&answer).as_str() {
                _ if answer.is_success() => return Ok(()),
                "TableAlreadyExists" | "QueueAlreadyExists" => return Ok(()),
                // The name is free again after some 40 seconds.
                "TableBeingDeleted" | "QueueBeingDeleted" if deadline.back_off(None).await => {}
                _ => return Err(self.rejected(request.what, name, &answer)),
            }
        }
    }

    /// Sends a request once.
    pub(crate) async fn attempt(&self, request: &Request, deadline: &Deadline) -> Sent {
        let ends = deadline.attempt_ends();
        let token = match &self.credentials {
            Credentials::Token(source) => match timeout_at(ends, source.token()).await {
                Ok(Ok(token)) => Some(token),
                Ok(Err(error)) => {
                    return Sent::Failed(Failure { error, retry_after: None, is_lost: false });
                }
                Err(_) => {
                    let reason = "no token came in time";
                    return Sent::Failed(Failure::new(request.what, reason, false));
                }
            },
            Credentials::SharedKey(_) | Credentials::Sas(_) => None,
        };
        let token = token.map(|token| format!("Bearer {}", token.expose()));
        let exchanged = async {
            let answer = self.exchange(request, token.as_deref()).await?;
            match answer.status == 403 && self.learn_skew(&answer) {
                true => self.exchange(request, token.as_deref()).await,
                false => Ok(answer),
            }
        };
        match timeout(ends.saturating_duration_since(Instant::now()), exchanged).await {
            Ok(Ok(answer)) => answer.sorted(request.what),
            Ok(Err(error)) => {
                let is_lost = !error.is_connect() && !error.is_builder();
                let host = self.endpoint.host_str().unwrap_or_default();
                let reason = if is_lost { "a broken connection" } else { "no connection" };
                let reason = format!("{reason} to {host}");
                let failure = Failure::new(request.what, &reason, is_lost);
                // The URL may have a SAS token.
                let error = failure.error.with_source(error.without_url());
                Sent::Failed(Failure { error, ..failure })
            }
            Err(_) => Sent::Failed(Failure::new(request.what, "no answer came in time", true)),
        }
    }

    async fn exchange(&self, request: &Request, token: Option<&str>) -> reqwest::Result<Answer> {
        let mut url = self.url(&request.path);
        let encoded = |(name, value): &(&str, String)| {
            format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))
        };
        let mut query: Vec<String> = request.query.iter().map(encoded).collect();
        if let Credentials::Sas(sas) = &self.credentials {
            query.push(sas.expose().to_owned());
        }
        if !query.is_empty() {
            url.set_query(Some(&query.join("&")));
        }
        let date = self.date();
        let key = self.authorization(request, &date, url.path());
        let mut sent = self.client.request(request.method.clone(), url);
        sent = sent.header("x-ms-version", API_VERSION).header("x-ms-date", date);
        for (name, value) in &request.headers {
            sent = sent.header(*name, value);
        }
        if request.method == Method::PUT && request.body.is_empty() {
            // The client leaves it out, and the service refuses a PUT without it.
            sent = sent.header(CONTENT_LENGTH, 0);
        }
        if let Some(secret) = token.or(key.as_deref())
            && let Ok(mut value) = HeaderValue::from_str(secret)
        {
            value.set_sensitive(true);
            sent = sent.header(AUTHORIZATION, value);
        }
        let answer = sent.body(request.body.clone()).send().await?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        Ok(Answer { status, headers, body: answer.bytes().await?.to_vec() })
    }

    /// The signature of a request by the account's key. No request has the parameter `comp`, which
    /// that of a queue would include.
    fn authorization(&self, request: &Request, date: &str, path: &str) -> Option<String> {
        let Credentials::SharedKey(key) = &self.credentials else { return None };
        if self.service == Service::Table {
            return Some(key.authorize(date, path));
        }
        let kind = request.headers.iter().find(|(name, _)| *name == "Content-Type");
        let (verb, kind) = (&request.method, kind.map_or("", |(_, kind)| kind));
        let head = format!("{verb}\n\n{kind}\n\nx-ms-date:{date}\nx-ms-version:{API_VERSION}");
        Some(key.authorize(&head, path))
    }

    /// The service's date, for a signature, as far as it is known.
    fn date(&self) -> String {
        let skew = SignedDuration::from_secs(self.skew.load(Ordering::Relaxed));
        let (local, printer) = (Timestamp::now(), rfc2822::DateTimePrinter::new());
        let date = local.checked_add(skew).unwrap_or(local);
        // It fails for years that no clock has; the service rejects the signature then.
        printer.timestamp_to_rfc9110_string(&date).unwrap_or_default()
    }

    /// Measures how far the local wall clock is off; returns whether the last date was wrong.
    fn learn_skew(&self, answer: &Answer) -> bool {
        let Some(date) = answer.date() else { return false };
        let skew = date.duration_since(Timestamp::now()).as_secs();
        self.skew.swap(skew, Ordering::Relaxed).abs_diff(skew) > TOLERATED_SKEW_SECS
    }
}
