//! Requests to the collector: bounded in time, size and number.
//!
//! Invariant: no log line has a header or the body of an answer.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Otel, otel};
use crate::https;
use crate::secrets::Secrets;

/// Requests for one delivery.
const TRIES: u32 = 3;
/// The pause before the second; the next is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that a collector may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How much of an answer is read.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Between two warnings about one signal.
const QUIET: Duration = Duration::from_secs(60);

/// Where one signal goes.
#[derive(Debug)]
pub(super) struct Collector {
    signal: &'static str,
    client: Client,
    url: Url,
    headers: Option<Secrets>,
    warned: Option<Instant>,
    /// What was dropped since the last warning.
    dropped: u64,
}

/// Why a request failed.
struct Failed {
    why: String,
    /// When to try again, where that is of use.
    retry: Option<Duration>,
}

impl Collector {
    /// A collector of one signal, such as `spans`.
    pub(super) fn new(signal: &'static str, settings: &Otel, url: &Url) -> anyhow::Result<Self> {
        let client = https::client(url.scheme()).timeout(settings.timeout);
        let client = client.redirect(Policy::none()).build();
        let client = client.context("cannot make a client for the collector of OpenTelemetry")?;
        let headers = settings.headers.clone();
        // Shown as zero until then.
        metrics::counter!("quell_otel_dropped_total", "signal" => signal).increment(0);
        Ok(Collector { signal, client, url: url.clone(), headers, warned: None, dropped: 0 })
    }

    /// Sends `items` things as one body, with retries until `stop`; returns the answer.
    pub(super) async fn deliver(
        &mut self,
        body: Vec<u8>,
        items: u64,
        stop: &CancellationToken,
    ) -> Option<Vec<u8>> {
        let body = axum::body::Bytes::from(body);
        let mut pause = PAUSE;
        for attempt in 1..=TRIES {
            match self.send(body.clone()).await {
                Ok(answer) => {
                    self.recovered();
                    return Some(answer);
                }
                Err(Failed { why, retry }) => {
                    let again = retry.filter(|_| attempt < TRIES && !stop.is_cancelled());
                    let Some(after) = again else {
                        self.dropped(items, &why);
                        return None;
                    };
                    tokio::select! {
                        () = tokio::time::sleep(after.max(pause).min(LONGEST_PAUSE)) => {}
                        () = stop.cancelled() => {}
                    }
                    pause = pause.saturating_mul(2);
                }
            }
        }
        None
    }

    async fn send(&self, body: axum::body::Bytes) -> Result<Vec<u8>, Failed> {
        let headers = self.headers.as_ref().map(otel::headers).transpose();
        let headers = headers.map_err(|error| Failed { why: error.to_string(), retry: None })?;
        let request = self.client.post(self.url.clone()).headers(headers.unwrap_or_default());
        let sent = request.header(CONTENT_TYPE, "application/x-protobuf").body(body).send().await;
        let failed = |error: reqwest::Error| {
            let what = if error.is_timeout() { "no answer in time" } else { "cannot be reached" };
            Failed { why: format!("{what}{}", https::causes(&error)), retry: Some(PAUSE) }
        };
        let mut answer = sent.map_err(failed)?;
        let status = answer.status();
        if !status.is_success() {
            let after = answer.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok());
            let after =
                after.and_then(|after| after.parse().ok()).map_or(PAUSE, Duration::from_secs);
            let retry = may_retry(status).then_some(after);
            return Err(Failed { why: format!("it answered {status}"), retry });
        }
        let mut read = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if read.len().saturating_add(chunk.len()) > MAX_ANSWER_BYTES {
                // It took the data; the answer only says more of them.
                return Ok(Vec::new());
            }
            read.extend_from_slice(&chunk);
        }
        Ok(read)
    }

    /// Counts what the collector did not take, with one warning now and then.
    pub(super) fn dropped(&mut self, items: u64, why: &str) {
        if items == 0 {
            return;
        }
        count_dropped(self.signal, items);
        self.warn(items, why);
    }

    /// Reports what was dropped and is counted already.
    pub(super) fn warn(&mut self, items: u64, why: &str) {
        self.dropped = self.dropped.saturating_add(items);
        if self.warned.is_some_and(|at| at.elapsed() < QUIET) {
            return;
        }
        self.warned = Some(Instant::now());
        let (signal, dropped) = (self.signal, std::mem::take(&mut self.dropped));
        warn!(signal, dropped, collector = %self.url, why, "telemetry is dropped");
    }

    fn recovered(&mut self) {
        if self.warned.take().is_some() {
            let (signal, dropped) = (self.signal, std::mem::take(&mut self.dropped));
            info!(signal, dropped, collector = %self.url, "telemetry is delivered again");
        }
    }
}

/// Counts what is dropped.
pub(super) fn count_dropped(signal: &'static str, items: u64) {
    metrics::counter!("quell_otel_dropped_total", "signal" => signal).increment(items);
}

/// As the specification of OTLP has it.
fn may_retry(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}
