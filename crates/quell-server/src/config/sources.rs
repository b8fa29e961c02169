//! One webhook source's settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use axum::http::HeaderName;
use quell::TaskName;
use serde::Deserialize;
use utoipa::ToSchema;

use super::DeclaredTask;
use super::engine::{TemplateError, quoted};
use super::parse::{Bytes, secrets};
use super::queues::Length;
use crate::sources::{
    Algorithm, DedupBy, Encoding, Expression, HmacScheme, MAX_BODY, Scheme, Source, Template,
    TokenPlace,
};

/// The largest body of a source without a setting.
const DEFAULT_BODY: usize = 1 << 20;
/// How far the sender's clock may be from this one without a setting.
const DEFAULT_TOLERANCE: Duration = Duration::from_secs(300);
/// A longer tolerance would let a recorded request be sent again for too long.
const MAX_TOLERANCE: Duration = Duration::from_secs(3_600);
/// How long the id of a delivery is kept without a setting: Stripe sends again for three days.
const DEDUP_TTL: Duration = Duration::from_secs(72 * 3_600);

/// The longest name of a source, in bytes.
const MAX_NAME: usize = 100;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSource {
    /// [the provider](webhooks.md#providers)
    ///
    /// Default: required
    #[schema(value_type = String)]
    verify: RawVerify,
    /// the variable with the [secrets](#secrets)
    ///
    /// Default: one of both is required
    #[schema(value_type = String)]
    secret_env: Option<String>,
    /// the file with the secrets
    #[schema(value_type = String)]
    secret_file: Option<String>,
    /// a table of its own
    #[schema(value_type = String)]
    hmac: Option<RawHmac>,
    /// a table of its own
    #[schema(value_type = String)]
    token: Option<RawToken>,
    /// how far the sender's clock may be from the server's, up to 1 h
    ///
    /// Default: `5m`
    #[schema(value_type = String)]
    tolerance: Option<Length>,
    /// the largest body, up to `25MiB`
    ///
    /// Default: `1MiB`
    #[schema(value_type = String)]
    max_body: Option<Bytes>,
    /// the task, or a template of its name
    ///
    /// Default: required
    #[schema(value_type = String)]
    task: String,
    /// an expression; what it is false for is answered with 200 and triggers nothing
    ///
    /// Default: everything passes
    #[schema(value_type = String)]
    filter: Option<String>,
    /// an expression that makes the payload
    ///
    /// Default: the body, byte for byte
    #[schema(value_type = String)]
    payload: Option<String>,
    /// a template of the debounce key
    ///
    /// Default: that of the task, from the payload
    #[schema(value_type = String)]
    key: Option<String>,
    /// a template of the partition
    ///
    /// Default: that of the task, from the payload
    #[schema(value_type = String)]
    partition: Option<String>,
    /// a template of the dedup key, or `false`
    ///
    /// Default: the id of the delivery
    #[schema(value_type = String)]
    dedup: Option<RawDedup>,
    /// how long that key is kept; where a time is signed, at least twice the `tolerance`
    ///
    /// Default: `72h`
    #[schema(value_type = String)]
    dedup_ttl: Option<Length>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawVerify {
    Github,
    Gitlab,
    Stripe,
    Slack,
    Shopify,
    Standard,
    Hmac,
    Token,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHmac {
    /// for `verify = "hmac"`: the header with the code
    ///
    /// Default: required
    #[schema(value_type = String)]
    header: String,
    /// `sha256` or `sha512`
    ///
    /// Default: `sha256`
    #[schema(value_type = String)]
    #[serde(default)]
    algorithm: RawAlgorithm,
    /// `hex` or `base64`
    ///
    /// Default: `hex`
    #[schema(value_type = String)]
    #[serde(default)]
    encoding: RawEncoding,
    /// what stands before the code, such as `sha256=`
    #[schema(value_type = String)]
    #[serde(default)]
    prefix: String,
    /// the header with the seconds since 1970; `SECONDS.BODY` is signed then
    ///
    /// Default: none: the body is signed
    #[schema(value_type = String)]
    timestamp_header: Option<String>,
    /// the header with the id of the delivery
    #[schema(value_type = String)]
    id_header: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawAlgorithm {
    #[default]
    Sha256,
    Sha512,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawEncoding {
    #[default]
    Hex,
    Base64,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawToken {
    /// for `verify = "token"`: the header with the token
    ///
    /// Default: `Authorization`
    #[schema(value_type = String)]
    header: Option<String>,
    /// or the parameter of the URL
    #[schema(value_type = String)]
    query: Option<String>,
}

/// A template, or `false`.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a template, or false")]
enum RawDedup {
    On(bool),
    Template(String),
}

/// The valid sources. `tasks` has the valid tasks; mistakes in others are reported already.
pub(super) fn sources(
    raw: BTreeMap<String, RawSource>,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
    folder: &Path,
    broken: &dyn Fn(&str) -> bool,
    note: &mut impl FnMut(&str, String),
) -> BTreeMap<String, Source> {
    let mut sources = BTreeMap::new();
    for (name, raw) in raw {
        let path = format!("sources.{name}");
        if broken(&path) {
            continue;
        }
        // One segment of a URL, and the first part of dedup keys.
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(allowed) {
            let message =
                format!("{name:?} is no source name: give `a` to `z`, digits, `-`, `_` and `.`");
            note(&path, message);
            continue;
        }
        let mut declare = Declare { path: &path, folder, tasks, broken, note };
        if let Some(source) = declare.source(&name, raw) {
            sources.insert(name, source);
        }
    }
    sources
}

/// What the parts of one source share.
struct Declare<'d, N> {
    path: &'d str,
    folder: &'d Path,
    tasks: &'d BTreeMap<TaskName, DeclaredTask>,
    broken: &'d dyn Fn(&str) -> bool,
    note: &'d mut N,
}

impl<N: FnMut(&str, String)> Declare<'_, N> {
    fn note(&mut self, field: &str, message: impl Into<String>) {
        (self.note)(&format!("{}.{field}", self.path), message.into());
    }

    /// The source, or notes of all that is wrong with it.
    fn source(&mut self, name: &str, raw: RawSource) -> Option<Source> {
        let scheme = self.scheme(raw.verify, raw.hmac, raw.token);
        let fields = [format!("{}.secret_env", self.path), format!("{}.secret_file", self.path)];
        if raw.secret_env.is_none() && raw.secret_file.is_none() {
            self.note("secret_env", "a source needs a secret: set secret_env or secret_file");
        }
        let [env, file] = &fields;
        let secrets =
            secrets(&raw.secret_env, &raw.secret_file, self.folder, [env, file], self.note);
        let secrets = match (raw.verify, secrets) {
            (RawVerify::Standard, Some(secrets)) => {
                let field = if raw.secret_env.is_some() { "secret_env" } else { "secret_file" };
                let keys = secrets.for_signing();
                keys.map_err(|error| self.note(field, error.to_string())).ok()
            }
            (_, secrets) => secrets,
        };
        let task = self.task(&raw.task);
        let dedup = match raw.dedup {
            None | Some(RawDedup::On(true)) => Some(DedupBy::Delivery),
            Some(RawDedup::On(false)) => Some(DedupBy::Nothing),
            Some(RawDedup::Template(text)) => {
                let template = self.checked("dedup", &text, Template::new(&text));
                template.map(Box::new).map(DedupBy::Template)
            }
        };
        let filter = self.optional("filter", raw.filter, Expression::new);
        let payload = self.optional("payload", raw.payload, Expression::new);
        let key = self.optional("key", raw.key, Template::new);
        let partition = self.optional("partition", raw.partition, Template::new);
        let max_body = raw.max_body.map_or(DEFAULT_BODY, |bytes| bytes.0);
        if max_body > MAX_BODY {
            let limit = MAX_BODY >> 20;
            self.note("max_body", format!("max_body of {max_body} bytes: give {limit}MiB or less"));
        }
        let tolerance = raw.tolerance.map_or(DEFAULT_TOLERANCE, |length| length.0);
        if tolerance.is_zero() || tolerance > MAX_TOLERANCE {
            let message = format!("tolerance of {tolerance:?}: give 1s to {MAX_TOLERANCE:?}");
            self.note("tolerance", message);
        }
        let scheme = scheme?;
        let dedup_ttl = raw.dedup_ttl.map_or(DEDUP_TTL, |length| length.0);
        if scheme.has_time() && dedup_ttl < tolerance.saturating_mul(2) {
            let message =
                "dedup_ttl is less than twice the tolerance, so an old request could come again";
            self.note("dedup_ttl", message);
        }
        Some(Source {
            name: name.to_owned(),
            scheme,
            secrets: secrets?,
            tolerance,
            max_body,
            task: task?,
            filter: filter?,
            payload: payload?,
            key: key?,
            partition: partition?,
            dedup: dedup?,
            dedup_ttl,
        })
    }

    fn scheme(
        &mut self,
        verify: RawVerify,
        hmac: Option<RawHmac>,
        token: Option<RawToken>,
    ) -> Option<Scheme> {
        for (field, is_there, wanted) in [
            ("hmac", hmac.is_some(), RawVerify::Hmac),
            ("token", token.is_some(), RawVerify::Token),
        ] {
            if is_there && verify != wanted {
                self.note(field, format!("this is for verify = \"{field}\" only: leave it out"));
                return None;
            }
        }
        Some(match verify {
            RawVerify::Github => Scheme::GitHub,
            RawVerify::Gitlab => Scheme::GitLab,
            RawVerify::Stripe => Scheme::Stripe,
            RawVerify::Slack => Scheme::Slack,
            RawVerify::Shopify => Scheme::Shopify,
            RawVerify::Standard => Scheme::Standard,
            RawVerify::Hmac => Scheme::Hmac(self.hmac(hmac)?),
            RawVerify::Token => Scheme::Token(self.token(token)?),
        })
    }

    fn hmac(&mut self, raw: Option<RawHmac>) -> Option<HmacScheme> {
        let Some(raw) = raw else {
            self.note("hmac", "say where the code is: hmac = { header = \"x-signature\" }");
            return None;
        };
        Some(HmacScheme {
            header: self.header("hmac.header", &raw.header)?,
            algorithm: match raw.algorithm {
                RawAlgorithm::Sha256 => Algorithm::Sha256,
                RawAlgorithm::Sha512 => Algorithm::Sha512,
            },
            encoding: match raw.encoding {
                RawEncoding::Hex => Encoding::Hex,
                RawEncoding::Base64 => Encoding::Base64,
            },
            prefix: raw.prefix,
            timestamp_header: match raw.timestamp_header {
                Some(name) => Some(self.header("hmac.timestamp_header", &name)?),
                None => None,
            },
            id_header: match raw.id_header {
                Some(name) => Some(self.header("hmac.id_header", &name)?),
                None => None,
            },
        })
    }

    fn token(&mut self, raw: Option<RawToken>) -> Option<TokenPlace> {
        match raw {
            None | Some(RawToken { header: None, query: None }) => Some(TokenPlace::Authorization),
            Some(RawToken { header: Some(name), query: None }) => {
                self.header("token.header", &name).map(TokenPlace::Header)
            }
            Some(RawToken { header: None, query: Some(name) }) => Some(TokenPlace::Query(name)),
            Some(RawToken { header: Some(_), query: Some(_) }) => {
                self.note("token", "give a header or a query parameter, not both");
                None
            }
        }
    }

    fn header(&mut self, field: &str, name: &str) -> Option<HeaderName> {
        let header = HeaderName::from_bytes(name.as_bytes());
        let header = header.map_err(|_| self.note(field, format!("{name:?} is no header name")));
        header.ok()
    }

    /// The task, by a template or by a name that is declared.
    fn task(&mut self, text: &str) -> Option<Template> {
        let template = self.checked("task", text, Template::new(text))?;
        let Some(name) = template.fixed() else { return Some(template) };
        let declared = TaskName::new(name).is_ok_and(|name| self.tasks.contains_key(&name));
        if !declared && !(self.broken)(&format!("tasks.{name}")) {
            self.note("task", format!("no task {name:?} is declared: add [tasks.{name}]"));
            return None;
        }
        Some(template)
    }

    fn optional<T>(
        &mut self,
        field: &str,
        text: Option<String>,
        new: impl FnOnce(&str) -> Result<T, TemplateError>,
    ) -> Option<Option<T>> {
        match text {
            None => Some(None),
            Some(text) => self.checked(field, &text, new(&text)).map(Some),
        }
    }

    fn checked<T>(&mut self, field: &str, text: &str, made: Result<T, TemplateError>) -> Option<T> {
        made.map_err(|error| self.note(field, format!("{error} in {}", quoted(text)))).ok()
    }
}
