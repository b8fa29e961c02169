//! How each provider signs what it sends, and where it puts the id of a delivery.
//!
//! Sources: [GitHub](https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries),
//! [GitLab](https://docs.gitlab.com/user/project/integrations/webhooks/),
//! [Stripe](https://docs.stripe.com/webhooks#verify-manually),
//! [Slack](https://docs.slack.dev/authentication/verifying-requests-from-slack/),
//! [Shopify](https://shopify.dev/docs/apps/build/webhooks/subscribe/https),
//! [Standard Webhooks](https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
//!
//! Invariant: every comparison with a secret or a code takes the same time wherever they differ.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha512};

use super::template::Scope;
use super::{Refusal, Request};
use crate::handlers::signature;
use crate::secrets::Secret;

/// The most signatures of one header that are compared: a sender that rotates its secret has two.
const MAX_SIGNATURES: usize = 16;

/// How a source's requests are verified.
#[derive(Clone, Debug)]
pub(crate) enum Scheme {
    GitHub,
    GitLab,
    Stripe,
    Slack,
    Shopify,
    Standard,
    Hmac(HmacScheme),
    Token(TokenPlace),
}

/// A code over the body in a header.
#[derive(Clone, Debug)]
pub(crate) struct HmacScheme {
    pub(crate) header: HeaderName,
    pub(crate) algorithm: Algorithm,
    pub(crate) encoding: Encoding,
    /// What stands before the code, such as `sha256=`.
    pub(crate) prefix: String,
    /// The header with the seconds since 1970, which are signed as `SECONDS.BODY`.
    pub(crate) timestamp_header: Option<HeaderName>,
    /// The header with the id of the delivery.
    pub(crate) id_header: Option<HeaderName>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Algorithm {
    Sha256,
    Sha512,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Encoding {
    Hex,
    Base64,
}

/// Where a shared token stands.
#[derive(Clone, Debug)]
pub(crate) enum TokenPlace {
    /// `Authorization`: `Bearer TOKEN`, or `Basic` with the token as the password.
    Authorization,
    Header(HeaderName),
    /// A parameter of the URL's query.
    Query(String),
}

impl Scheme {
    /// Its name in the configuration.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Scheme::GitHub => "github",
            Scheme::GitLab => "gitlab",
            Scheme::Stripe => "stripe",
            Scheme::Slack => "slack",
            Scheme::Shopify => "shopify",
            Scheme::Standard => "standard",
            Scheme::Hmac(_) => "hmac",
            Scheme::Token(_) => "token",
        }
    }

    /// What a request offers as its proof, or why it has none.
    pub(super) fn claim(&self, headers: &HeaderMap, query: &str) -> Result<String, Refusal> {
        match self {
            Scheme::GitHub => one(headers, "x-hub-signature-256"),
            Scheme::GitLab => one(headers, "x-gitlab-token"),
            Scheme::Stripe => one(headers, "stripe-signature"),
            Scheme::Slack => one(headers, "x-slack-signature"),
            Scheme::Shopify => one(headers, "x-shopify-hmac-sha256"),
            Scheme::Standard => one(headers, "webhook-signature"),
            Scheme::Hmac(scheme) => one(headers, scheme.header.as_str()),
            Scheme::Token(TokenPlace::Header(header)) => one(headers, header.as_str()),
            Scheme::Token(TokenPlace::Authorization) => {
                let shown = one(headers, "authorization")?;
                credentials(&shown).ok_or_else(|| {
                    unsigned("authorization", "is neither Bearer nor Basic with the token")
                })
            }
            Scheme::Token(TokenPlace::Query(name)) => {
                let mut values = form_urlencoded::parse(query.as_bytes())
                    .filter(|(parameter, _)| parameter == name.as_str());
                let value = values.next().filter(|_| values.next().is_none());
                let value = value.map(|(_, value)| value.into_owned());
                value
                    .ok_or_else(|| unsigned(name, "is missing in the URL, or there more than once"))
            }
        }
    }

    /// Whether one of the secrets has signed the request, within the tolerance where it has a time.
    pub(super) fn verify(
        &self,
        secrets: &[Secret],
        request: Request<'_>,
        tolerance: Duration,
    ) -> Result<(), Refusal> {
        let claim = self.claim(request.headers, request.query)?;
        let (headers, body) = (request.headers, request.body);
        let in_time = |header: &str, seconds: &str| in_time(header, seconds, request, tolerance);
        let signed = match self {
            Scheme::GitLab | Scheme::Token(_) => any(secrets, |secret| secret.is(claim.as_bytes())),
            Scheme::GitHub => {
                let code = claim.strip_prefix("sha256=").and_then(unhex);
                any(secrets, |secret| sha256(secret, &[body], code.as_deref()))
            }
            Scheme::Shopify => {
                let code = BASE64_STANDARD.decode(&claim).ok();
                any(secrets, |secret| sha256(secret, &[body], code.as_deref()))
            }
            Scheme::Slack => {
                let header = "x-slack-request-timestamp";
                let time = one(headers, header)?;
                in_time(header, &time)?;
                let code = claim.strip_prefix("v0=").and_then(unhex);
                let parts = [b"v0:", time.as_bytes(), b":", body];
                any(secrets, |secret| sha256(secret, &parts, code.as_deref()))
            }
            Scheme::Stripe => {
                let parts: Vec<(&str, &str)> =
                    claim.split(',').filter_map(|part| part.trim().split_once('=')).collect();
                let mut times = parts.iter().filter(|(name, _)| *name == "t");
                let time = times.next().map_or("", |(_, time)| *time);
                in_time("stripe-signature", time)?;
                let codes = parts.iter().filter(|(name, _)| *name == "v1").take(MAX_SIGNATURES);
                let codes: Vec<_> = codes.filter_map(|(_, code)| unhex(code)).collect();
                any(secrets, |secret| {
                    let Ok(own) = Hmac::<Sha256>::new_from_slice(secret.bytes()) else {
                        return false;
                    };
                    let own = own.chain_update(time).chain_update(b".").chain_update(body);
                    fits_any(&own, &codes)
                })
            }
            Scheme::Standard => {
                let id = one(headers, "webhook-id")?;
                let time = one(headers, "webhook-timestamp")?;
                in_time("webhook-timestamp", &time)?;
                let codes =
                    claim.split(' ').filter_map(|code| code.strip_prefix(signature::VERSION));
                let codes = codes.take(MAX_SIGNATURES);
                let codes: Vec<_> =
                    codes.filter_map(|code| BASE64_STANDARD.decode(code).ok()).collect();
                let seconds = time.parse().unwrap_or_default();
                any(secrets, |secret| {
                    let Ok(own) = signature::code(secret, &id, seconds, body) else { return false };
                    fits_any(&own, &codes)
                })
            }
            Scheme::Hmac(scheme) => scheme.verify(&claim, secrets, request, tolerance)?,
        };
        if signed { Ok(()) } else { Err(unsigned(self.place(), "fits none of the secrets")) }
    }

    /// Whether the proof is in the head alone, so that it can be verified before the body is read.
    pub(super) fn is_token(&self) -> bool {
        matches!(self, Scheme::GitLab | Scheme::Token(_))
    }

    /// Whether requests have a time that is signed.
    pub(crate) fn has_time(&self) -> bool {
        match self {
            Scheme::Stripe | Scheme::Slack | Scheme::Standard => true,
            Scheme::Hmac(scheme) => scheme.timestamp_header.is_some(),
            Scheme::GitHub | Scheme::GitLab | Scheme::Shopify | Scheme::Token(_) => false,
        }
    }

    /// The header or parameter that carries the proof.
    pub(super) fn place(&self) -> &str {
        match self {
            Scheme::GitHub => "x-hub-signature-256",
            Scheme::GitLab => "x-gitlab-token",
            Scheme::Stripe => "stripe-signature",
            Scheme::Slack => "x-slack-signature",
            Scheme::Shopify => "x-shopify-hmac-sha256",
            Scheme::Standard => "webhook-signature",
            Scheme::Hmac(scheme) => scheme.header.as_str(),
            Scheme::Token(TokenPlace::Authorization) => "authorization",
            Scheme::Token(TokenPlace::Header(header)) => header.as_str(),
            Scheme::Token(TokenPlace::Query(name)) => name,
        }
    }

    /// Why a verified request asks for nothing.
    pub(super) fn ignores(&self, headers: &HeaderMap) -> Option<&'static str> {
        let event = headers.get("x-github-event");
        let ping = matches!(self, Scheme::GitHub) && event.is_some_and(|event| event == "ping");
        ping.then_some("GitHub's ping asks for nothing")
    }

    /// The text that the sender wants back instead of a trigger.
    pub(super) fn challenge(&self, scope: &Scope<'_>) -> Result<Option<String>, Refusal> {
        if !matches!(self, Scheme::Slack)
            || member(scope, "type")?.as_deref() != Some("url_verification")
        {
            return Ok(None);
        }
        member(scope, "challenge")
    }

    /// The id of a delivery, the same when it is sent again; none where the provider has none.
    pub(super) fn delivery(
        &self,
        scope: &Scope<'_>,
        request: Request<'_>,
    ) -> Result<Option<String>, Refusal> {
        let header = |name: &str| one(request.headers, name).ok().filter(|id| !id.is_empty());
        // Where the sender leaves the id out, the same signed bytes are the same delivery.
        let body = || super::sha256(request.body);
        let timed = |name: &str| Some(format!("{}.{}", header(name).unwrap_or_default(), body()));
        Ok(match self {
            Scheme::GitHub => header("x-github-delivery").or_else(|| Some(body())),
            Scheme::Shopify => header("x-shopify-webhook-id").or_else(|| Some(body())),
            Scheme::GitLab => header("idempotency-key"),
            Scheme::Stripe => member(scope, "id")?.or_else(|| Some(body())),
            // An interaction has no id but that of its trigger.
            Scheme::Slack => match (member(scope, "event_id")?, member(scope, "trigger_id")?) {
                (None, None) => timed("x-slack-request-timestamp"),
                (event, trigger) => event.or(trigger),
            },
            Scheme::Standard => header("webhook-id"),
            Scheme::Hmac(HmacScheme { id_header, timestamp_header, .. }) => {
                let id = id_header.as_ref().and_then(|name| header(name.as_str()));
                id.or_else(|| timed(timestamp_header.as_ref()?.as_str()))
            }
            Scheme::Token(_) => None,
        })
    }
}

impl HmacScheme {
    fn verify(
        &self,
        claim: &str,
        secrets: &[Secret],
        request: Request<'_>,
        tolerance: Duration,
    ) -> Result<bool, Refusal> {
        let time = match &self.timestamp_header {
            None => None,
            Some(header) => {
                let time = one(request.headers, header.as_str())?;
                in_time(header.as_str(), &time, request, tolerance)?;
                Some(time)
            }
        };
        let code = claim.strip_prefix(self.prefix.as_str()).and_then(|code| match self.encoding {
            Encoding::Hex => unhex(code),
            Encoding::Base64 => BASE64_STANDARD.decode(code).ok(),
        });
        let parts: &[&[u8]] = match &time {
            None => &[request.body],
            Some(time) => &[time.as_bytes(), b".", request.body],
        };
        Ok(any(secrets, |secret| match self.algorithm {
            Algorithm::Sha256 => sha256(secret, parts, code.as_deref()),
            Algorithm::Sha512 => {
                fits(Hmac::<Sha512>::new_from_slice(secret.bytes()).ok(), parts, code.as_deref())
            }
        }))
    }
}

/// A text member of the body, which is an object.
fn member(scope: &Scope<'_>, name: &str) -> Result<Option<String>, Refusal> {
    let value = scope.document().value().map_err(Refusal::Unreadable)?;
    Ok(value.get_attr(name).ok().and_then(|value| value.as_str().map(str::to_owned)))
}

/// The only value of a header, as text.
fn one(headers: &HeaderMap, name: &str) -> Result<String, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Err(unsigned(name, "is missing")) };
    if values.next().is_some() {
        return Err(unsigned(name, "is there more than once"));
    }
    let text = value.to_str().map_err(|_| unsigned(name, "is not ASCII"))?;
    Ok(text.trim().to_owned())
}

fn unsigned(header: &str, why: &str) -> Refusal {
    Refusal::Unsigned { header: header.to_owned(), why: why.to_owned() }
}

/// The token of `Bearer TOKEN`, or of `Basic` with it as the password.
fn credentials(shown: &str) -> Option<String> {
    let (scheme, rest) = shown.split_once(' ')?;
    let rest = rest.trim();
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(rest.to_owned()),
        "basic" => {
            let decoded = String::from_utf8(BASE64_STANDARD.decode(rest).ok()?).ok()?;
            decoded.split_once(':').map(|(_, password)| password.to_owned())
        }
        _ => None,
    }
}

/// Refuses a time that is further from the host's than the tolerance.
fn in_time(
    header: &str,
    seconds: &str,
    request: Request<'_>,
    tolerance: Duration,
) -> Result<(), Refusal> {
    let seconds: i64 =
        seconds.parse().map_err(|_| unsigned(header, "has no time in seconds since 1970"))?;
    let now = request.at.as_micros().div_euclid(1_000_000);
    let apart = now.abs_diff(seconds);
    if apart > tolerance.as_secs() {
        let relation = if seconds < now { "old" } else { "ahead" };
        let limit = tolerance.as_secs();
        let why = format!(
            "is {apart} s {relation}, the limit is {limit} s: compare the clocks, or raise `tolerance`"
        );
        return Err(unsigned(header, &why));
    }
    Ok(())
}

/// Whether any secret fits; each is tried.
fn any(secrets: &[Secret], fits: impl Fn(&Secret) -> bool) -> bool {
    secrets.iter().fold(false, |found, secret| found | fits(secret))
}

/// Whether a code that was computed once is any of these.
fn fits_any(own: &Hmac<Sha256>, codes: &[Vec<u8>]) -> bool {
    codes.iter().any(|code| own.clone().verify_slice(code).is_ok())
}

fn sha256(secret: &Secret, parts: &[&[u8]], code: Option<&[u8]>) -> bool {
    fits(Hmac::<Sha256>::new_from_slice(secret.bytes()).ok(), parts, code)
}

fn fits<M: Mac>(mac: Option<M>, parts: &[&[u8]], code: Option<&[u8]>) -> bool {
    let (Some(mut mac), Some(code)) = (mac, code) else { return false };
    for part in parts {
        mac.update(part);
    }
    mac.verify_slice(code).is_ok()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let digits = text.as_bytes().chunks_exact(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.contains('+'))?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}
