//! Calling a URL with the payload, signed, bounded in time and in what is read back.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quell::failure::Class;
use quell::{Error, Payload, Result, TaskError, Timestamp};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::away::{Away, Pause};
use super::completion;
use super::egress::{Allowed, Guard, forbidden, may_connect};
use super::output::{MOST, Printed, output, too_large};
use super::signature::signatures;
use super::{Invocation, MAX_OUTPUT, tail};
use crate::config::engine::sha256;
use crate::https;
use crate::secrets::Secrets;

/// How a target names the end of an attempt, where its status would say otherwise.
const OUTCOME: &str = "quell-outcome";
/// How long a connection may take: a target that does not answer within it is away.
const CONNECT: Duration = Duration::from_secs(10);
/// How much longer than a completion may take its lease lasts, so that a late one is on record as such.
const LATE: Duration = Duration::from_secs(10);

/// The fewest bytes of a secret whose codes prove completions: anyone may call their URLs.
const MIN_COMPLETION_SECRET: usize = 16;

/// The methods that a task may call with.
const METHODS: [Method; 5] =
    [Method::POST, Method::PUT, Method::PATCH, Method::GET, Method::DELETE];

/// What to call, as the configuration says it.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The URL, http or https.
    pub url: String,
    /// The method; POST by default.
    pub method: String,
    /// Headers to send.
    pub headers: BTreeMap<String, String>,
    /// The secrets that sign the body.
    pub secrets: Option<Secrets>,
    /// What may be connected to although it is not public.
    pub allow: Vec<Allowed>,
    /// How long the call may take.
    pub timeout: Duration,
    /// How long work may take that the target answers with 202; none where 202 is a success.
    pub completion: Option<Duration>,
}

/// A URL that is ready to be called.
#[derive(Debug)]
pub struct Http {
    client: Client,
    url: Url,
    method: Method,
    secrets: Option<Secrets>,
    allow: Arc<[Allowed]>,
    timeout: Duration,
    completion: Option<Duration>,
    away: Away,
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
        let method = METHODS.into_iter().find(|method| method.as_str() == settings.method);
        let method = method.ok_or_else(|| {
            let names = METHODS.map(|method| method.to_string()).join(", ");
            Error::invalid("method", format!("method is not known: give one of {names}"))
        })?;
        let allow: Arc<[Allowed]> = settings.allow.into();
        let client = https::client(url.scheme())
            .default_headers(headers(&settings.headers)?)
            .timeout(settings.timeout)
            .connect_timeout(CONNECT.min(settings.timeout))
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(Guard(Arc::clone(&allow))))
            .user_agent(concat!("quell/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| bad_url("has no usable client").with_source(error))?;
        let HttpSettings { secrets, timeout, completion, .. } = settings;
        if completion.is_some() && secrets.is_none() {
            let message = "completion needs a secret, which proves that a report is the target's";
            return Err(Error::invalid("completion", message));
        }
        let away = Away::default();
        Ok(Http { client, url, method, secrets, allow, timeout, completion, away })
    }

    /// Calls the URL once. The body of the answer is the output, where its content type is JSON and it
    /// has at most 256 KiB.
    ///
    /// # Errors
    /// 429 and 503 come back when `Retry-After` says, other 4xx are permanent, the rest is
    /// transient; each with the status and the beginning of the answer. The header `quell-outcome`
    /// says otherwise. While the target is away, a snooze.
    pub async fn run(&self, call: &Invocation) -> Result<Option<Payload>, TaskError> {
        if let Some(pause) = self.away.pause() {
            return Err(waits(call, pause));
        }
        let answer = match self.send(self.request(call)?, &call.cancelled).await {
            Err(Unsent::Away(error)) => {
                let pause = self.away.begin();
                if pause.is_new {
                    let (task, since, next_try) = (&call.task, pause.since(), pause.next_try());
                    warn!(%task, %error, since, next_try, "target is away, claiming no jobs of the task");
                }
                return Err(waits(call, pause));
            }
            Err(Unsent::Failed(error)) => return Err(error),
            Ok(answer) => answer,
        };
        if let Some(away_for) = self.away.end() {
            info!(task = %call.task, ?away_for, "target is back");
        }
        let answer = match answer.headers().get(OUTCOME).cloned() {
            Some(named) => return Err(outcome(&named, answer).await),
            None => judged(answer).await?,
        };
        if let Some(within) = self.completion.filter(|_| answer.status() == StatusCode::ACCEPTED) {
            return Err(TaskError::hand_over(within + LATE));
        }
        let body = tokio::select! {
            body = json_body(answer) => body,
            () = call.cancelled.cancelled() => {
                return Err(TaskError::retry("the call was stopped while its response was read"));
            }
        };
        Ok(output(call, body))
    }

    /// Sends a request and returns its response if that is a success.
    pub(super) async fn exchange(
        &self,
        request: RequestBuilder,
        cancelled: &CancellationToken,
    ) -> Result<Response, TaskError> {
        match self.send(request, cancelled).await {
            Ok(answer) => judged(answer).await,
            Err(Unsent::Away(error)) => Err(TaskError::retry(error)),
            Err(Unsent::Failed(error)) => Err(error),
        }
    }

    /// Sends a request and returns its response, whatever it is.
    async fn send(
        &self,
        request: RequestBuilder,
        cancelled: &CancellationToken,
    ) -> Result<Response, Unsent> {
        self.check_literal_address().map_err(Unsent::Failed)?;
        let answer = tokio::select! {
            answer = request.send() => answer,
            () = cancelled.cancelled() => {
                let stopped = TaskError::retry("the call was stopped before its response");
                return Err(Unsent::Failed(stopped));
            }
        };
        answer.map_err(|error| match is_away(&error) {
            true => {
                Unsent::Away(format!("the target cannot be connected to{}", https::causes(&error)))
            }
            false => Unsent::Failed(failed(&error)),
        })
    }

    /// What is wrong with the settings although they are valid, and with which one: an address that no
    /// call may connect to, or a secret that can be guessed.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        if let Err(error) = self.check_literal_address() {
            return Some(("url", error.describe()));
        }
        // The guard refuses it once it is resolved.
        let host = self.url.host_str().unwrap_or_default();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        if host.eq_ignore_ascii_case("localhost") && !may_connect(host, loopback, &self.allow) {
            return Some(("url", forbidden(host)));
        }
        self.completion?;
        let secret = self.secrets.as_ref()?.first()?;
        let bytes = secret.signing_key().ok()?.len();
        let message = format!(
            "the secret has {bytes} bytes, and can be guessed: give {MIN_COMPLETION_SECRET} or more"
        );
        (bytes < MIN_COMPLETION_SECRET).then_some(("completion", message))
    }

    /// How long the target is taken for away.
    pub(crate) fn away_for(&self) -> Option<Duration> {
        self.away.pause().map(|pause| pause.left)
    }

    /// How long work may take that the target answers with 202.
    pub(crate) fn completion(&self) -> Option<Duration> {
        self.completion
    }

    /// Whether a code proves that a report of this lease is the target's.
    pub(crate) fn proves(&self, lease: &str, code: &str) -> bool {
        let secrets = self.secrets.as_ref().map(Secrets::current);
        secrets.is_some_and(|all| all.iter().any(|one| completion::proves(one, lease, code)))
    }

    /// How long a call may take.
    pub(crate) fn timeout(&self) -> Duration {
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

    fn request(&self, call: &Invocation) -> Result<RequestBuilder, TaskError> {
        let body = call.payload.as_str().as_bytes().to_vec();
        let mut request = self
            .signed(&message_id(call), body)?
            .header("content-type", "application/json")
            .header("quell-task", call.task.as_str())
            .header("quell-queue", call.queue.as_str())
            .header("quell-job", call.job.to_string())
            .header("quell-attempt", call.attempt)
            .header("quell-starts", call.starts)
            .header("quell-fencing-token", call.fencing_token.to_string())
            .header("quell-triggers", call.triggers)
            .header("quell-first-at", call.first_at.to_string())
            .header("quell-due-at", call.due_at.to_string());
        if let Some(key) = &call.key {
            request = request.header("quell-key", ascii(key.as_str()));
        }
        if !call.traces.is_empty() {
            request = request.header("quell-traces", call.trace_parents().join(", "));
        }
        if let Some(secret) = self.completion.and_then(|_| self.secrets.as_ref()?.first()) {
            let url = completion::url(&secret, &call.base_url, &call.lease);
            request = request.header("quell-completion-url", url.map_err(TaskError::retry)?);
        }
        if let Some(context) = call.trace() {
            request = request.header("traceparent", context.traceparent());
            if let Some(state) = context.tracestate() {
                request = request.header("tracestate", state);
            }
        }
        Ok(request)
    }

    /// A request with this body, signed where there is a key.
    pub(super) fn signed(&self, id: &str, body: Vec<u8>) -> Result<RequestBuilder, TaskError> {
        let timestamp = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
        let mut request = self
            .client
            .request(self.method.clone(), self.url.clone())
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp);
        if let Some(secrets) = &self.secrets {
            let signature = signatures(&secrets.current(), id, timestamp, &body);
            let signature = signature.map_err(TaskError::retry)?;
            request = request.header("webhook-signature", signature);
        }
        Ok(request.body(body))
    }
}

/// A job that runs again once its target may be back; no attempt is spent.
fn waits(call: &Invocation, pause: Pause) -> TaskError {
    let (since, next_try) = (pause.since(), pause.next_try());
    debug!(job = %call.job, task = %call.task, since, next_try, "job waits, its target is away");
    TaskError::snooze(pause.left)
}

/// The id of a message: the same for every attempt of the same triggers with the same payload, so that a receiver
/// can deduplicate, and another one for what another store sends.
fn message_id(call: &Invocation) -> String {
    let (job, triggers, first_at) = (call.job, call.triggers, call.first_at);
    let digest = sha256(format!("{first_at} {}", call.payload.as_str()).as_bytes());
    format!("quell-{job}-{triggers}-{}", digest.get(..16).unwrap_or_default())
}

/// A text as a header's value: percent-encoded (RFC 3986) where it is not visible ASCII, and so is `%`.
fn ascii(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

fn headers(wanted: &BTreeMap<String, String>) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in wanted {
        let bad = || Error::invalid("headers", format!("{name:?} is no valid header"));
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(parsed, value);
    }
    Ok(headers)
}

/// Why there is no response.
enum Unsent {
    /// The target takes no connections, or cannot be reached.
    Away(String),
    Failed(TaskError),
}

/// Whether the target took no connection. A name that cannot be resolved or a certificate that is wrong is
/// a mistake, which no wait fixes.
fn is_away(error: &reqwest::Error) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    if !error.is_connect() {
        return false;
    }
    let first = std::error::Error::source(error);
    let mut sources = std::iter::successors(first, |error| error.source());
    error.is_timeout()
        || sources.any(|source| {
            let io = source.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            matches!(io, Some(ConnectionRefused | HostUnreachable | NetworkUnreachable))
        })
}

/// A response that is a success.
async fn judged(answer: Response) -> Result<Response, TaskError> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let retry_after = retry_after(answer.headers());
    let redirect = status.is_redirection().then(|| redirection(answer.headers()));
    let redirect = redirect.unwrap_or_default();
    let error = format!("the target answered {status}{redirect}{}", beginning(answer).await);
    Err(judge(status, retry_after, error))
}

/// What a redirection means here. Its URL may have what is not for logs, so only its beginning is named.
fn redirection(headers: &HeaderMap) -> String {
    let place = headers.get(LOCATION).and_then(|place| place.to_str().ok());
    let place = place.map(|place| place.split(['?', '#']).next().unwrap_or_default());
    match place.filter(|place| !place.is_empty()) {
        Some(place) => {
            let place = place.get(..place.floor_char_boundary(200)).unwrap_or_default();
            format!(
                ", a redirect to {place}, and redirects are not followed: set url to the final one"
            )
        }
        None => ", a redirect without a Location: fix the target or the task's url".to_owned(),
    }
}

/// The end of an attempt that a response names.
async fn outcome(named: &HeaderValue, answer: Response) -> TaskError {
    let wait = retry_after(answer.headers());
    let said = beginning(answer).await;
    match (named.to_str().unwrap_or_default(), wait) {
        ("snooze", Some(delay)) => TaskError::snooze(delay),
        ("snooze", None) => TaskError::retry("the target snoozed without a `Retry-After`"),
        ("bury", _) => TaskError::permanent(format!("the target buried the job{said}")),
        ("cancel", _) => TaskError::cancel(format!("the target cancelled the job{said}")),
        (other, _) => TaskError::retry(format!(
            "the target answered with `{OUTCOME}: {other}`: it is snooze, bury or cancel"
        )),
    }
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
    let text = format!("{what}{}", https::causes(error));
    if error.is_timeout() { TaskError::timed_out(text) } else { TaskError::retry(text) }
}

fn judge(status: StatusCode, retry_after: Option<Duration>, error: String) -> TaskError {
    match Class::of_status(status.as_u16(), retry_after) {
        Class::RetryAfter(delay) => TaskError::retry_not_before(delay, error),
        Class::Permanent => TaskError::permanent(error),
        Class::Snooze(delay) => TaskError::snooze(delay),
        Class::Cancel => TaskError::cancel(error),
        Class::Transient => TaskError::retry(error),
    }
}

/// The wait that the target asks for.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let now = jiff::Timestamp::try_from(SystemTime::now()).ok()?;
    quell::failure::retry_after(text, Timestamp::from_micros(now.as_microsecond()))
}

/// The body of a good answer that says it is JSON, bounded; of any other, nothing is read.
async fn json_body(mut answer: Response) -> Printed {
    let mut body = Vec::new();
    if !is_json(answer.headers()) {
        return Ok(body);
    }
    let broken = |error| format!("response ended early{}", https::causes(&error));
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        body.extend_from_slice(&chunk);
        if body.len() > MOST {
            return Err(too_large());
        }
    }
    Ok(body)
}

fn is_json(headers: &HeaderMap) -> bool {
    let named = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = named.unwrap_or_default().split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
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
    fn r24_a_target_says_when_to_come_back() {
        let headers = |text: &str| HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
        assert_eq!(retry_after(&headers("7")), Some(Duration::from_secs(7)));
        let past = headers("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(retry_after(&past), None, "the machine's clock is later");
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn r25_answers_are_permanent_or_transient_by_their_status() {
        let table = [
            (302, false, "Permanent"),
            (400, false, "Permanent"),
            (404, true, "Permanent"),
            (408, false, "Retry { wait: Backoff"),
            (409, false, "Retry { wait: Backoff"),
            (425, true, "Retry { wait: Backoff"),
            (429, false, "Retry { wait: Backoff"),
            (429, true, "Retry { wait: AtLeast(5s)"),
            (500, true, "Retry { wait: Backoff"),
            (503, true, "Retry { wait: AtLeast(5s)"),
        ];
        for (status, waits, expected) in table {
            let wait = waits.then_some(Duration::from_secs(5));
            let judged = judge(StatusCode::from_u16(status).unwrap(), wait, "e".to_owned());
            assert!(format!("{judged:?}").contains(expected), "{status}: {judged:?}");
        }
    }
}
