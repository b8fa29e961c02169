//! The settings of the exporter: where traces and metrics go by OTLP.
//!
//! A setting of the file counts before the variable of OpenTelemetry that means the same. Invariant: no error and no
//! `Debug` output has the value of a header.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use utoipa::ToSchema;

use super::parse::secrets;
use super::queues::Length;
use crate::secrets::Secrets;

/// The only protocol.
const PROTOCOL: &str = "http/protobuf";
/// The longest timeout of a request.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// The shortest interval of metrics.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOtel {
    /// the collector, such as `http://127.0.0.1:4318`: traces go to `/v1/traces` below it, metrics to `/v1/metrics`
    ///
    /// Default: `OTEL_EXPORTER_OTLP_ENDPOINT`
    #[schema(value_type = String)]
    endpoint: Option<String>,
    /// only `http/protobuf`
    ///
    /// Default: `http/protobuf`
    #[schema(value_type = String)]
    protocol: Option<String>,
    /// the variable with headers, such as an API key ([secrets](#secrets)): `NAME=VALUE`, separated by commas or lines,
    /// with percent-encoded values
    ///
    /// Default: `OTEL_EXPORTER_OTLP_HEADERS`
    #[schema(value_type = String)]
    headers_env: Option<String>,
    /// the file with these headers
    #[schema(value_type = String)]
    headers_file: Option<String>,
    /// the attribute `service.name`
    ///
    /// Default: `OTEL_SERVICE_NAME`, or `quell`
    #[schema(value_type = String)]
    service_name: Option<String>,
    /// more attributes of the resource
    ///
    /// Default: `OTEL_RESOURCE_ATTRIBUTES`
    #[schema(value_type = String)]
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    /// whether traces are exported
    ///
    /// Default: `true`
    #[schema(value_type = String)]
    traces: Option<bool>,
    /// whether metrics are exported
    ///
    /// Default: `true`
    #[schema(value_type = String)]
    metrics: Option<bool>,
    /// the share of traces that are exported, 0 to 1. A caller's own decision, in `traceparent`, counts before it
    ///
    /// Default: `OTEL_TRACES_SAMPLER`, or 1
    #[schema(value_type = String)]
    sample: Option<f64>,
    /// how often metrics are exported
    ///
    /// Default: `60s`
    #[schema(value_type = String)]
    interval: Option<Length>,
    /// how long a request to the collector may take
    ///
    /// Default: `10s`
    #[schema(value_type = String)]
    timeout: Option<Length>,
}

/// Where traces and metrics go, and how.
#[derive(Clone, Debug)]
pub struct Otel {
    /// Where traces go; nowhere without.
    pub traces: Option<Url>,
    /// Where metrics go; nowhere without.
    pub metrics: Option<Url>,
    /// The headers of each request.
    pub headers: Option<Secrets>,
    /// The attributes of the resource, `service.name` among them.
    pub attributes: BTreeMap<String, String>,
    /// Which traces are exported.
    pub sampling: Sampling,
    /// How often metrics are exported.
    pub interval: Duration,
    /// How long a request may take.
    pub timeout: Duration,
    /// The most spans that wait.
    pub max_queue: usize,
    /// The most spans of a request.
    pub max_batch: usize,
    /// How long spans wait for others.
    pub delay: Duration,
    /// What the file says, to notice a change.
    pub(crate) declared: String,
}

/// Which traces are exported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Whether the decision of a caller counts.
    pub parent_based: bool,
    /// The share of the others, or of all.
    pub ratio: f64,
}

/// The headers of a text; none of its values is in an error.
///
/// # Errors
/// Which entry is wrong.
pub(crate) fn headers(secrets: &Secrets) -> quell::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let current = secrets.current();
    let texts = current.iter().map(|secret| String::from_utf8_lossy(secret.bytes()).into_owned());
    let texts: Vec<String> = texts.collect();
    let entries = texts.iter().flat_map(|text| text.split(','));
    for (index, entry) in entries.filter(|entry| !entry.trim().is_empty()).enumerate() {
        let wrong = || {
            let message = format!(
                "entry {} of the headers is not NAME=VALUE in ASCII",
                index.saturating_add(1)
            );
            quell::Error::invalid("headers", message)
        };
        let (name, value) = entry.split_once('=').ok_or_else(wrong)?;
        let name = HeaderName::from_str(name.trim()).map_err(|_| wrong())?;
        let value = decoded(value.trim()).ok_or_else(wrong)?;
        let mut value = HeaderValue::from_str(&value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// A text without its percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|two| two.chars().all(|c| c.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(part.get(2..)?.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Reads the settings, and notes what is wrong with them; none where nothing is to be exported.
pub(super) fn otel(
    raw: Option<RawOtel>,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<Otel> {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    if variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return None;
    }
    if !cfg!(feature = "otel") {
        if raw.is_some() {
            note("otel", "this build has no exporter: build it with the feature `otel`".to_owned());
        }
        return None;
    }
    read(raw, folder, &variable, note)
}

/// The value of a variable of OpenTelemetry.
type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

fn read(
    raw: Option<RawOtel>,
    folder: &Path,
    variable: Variable<'_>,
    note: &mut impl FnMut(&str, String),
) -> Option<Otel> {
    let (is_declared, raw) = (raw.is_some(), raw.unwrap_or_default());
    let declared = format!("{raw:?}");
    let [traces, metrics] = endpoints(&raw, variable, note);
    if traces.is_none() && metrics.is_none() {
        let is_wanted = raw.traces != Some(false) || raw.metrics != Some(false);
        if is_declared && raw.endpoint.is_none() && is_wanted {
            let message = "is missing: name the collector, such as http://127.0.0.1:4318";
            note("otel.endpoint", message.to_owned());
        }
        return None;
    }
    let protocol = raw.protocol.clone().or_else(|| variable("OTEL_EXPORTER_OTLP_PROTOCOL"));
    if let Some(other) = protocol.filter(|protocol| protocol != PROTOCOL) {
        let message = format!("protocol {other:?} is not supported: write {PROTOCOL:?}");
        note("otel.protocol", message);
    }
    let interval = raw.interval.as_ref().map(|length| length.0);
    let interval = interval.or_else(|| millis(variable, "OTEL_METRIC_EXPORT_INTERVAL", note));
    let interval = interval.unwrap_or(Duration::from_secs(60));
    if interval < MIN_INTERVAL {
        let message =
            format!("interval of {interval:?} is too short: give {MIN_INTERVAL:?} or more");
        note("otel.interval", message);
    }
    let timeout = raw.timeout.as_ref().map(|length| length.0);
    let timeout = timeout.or_else(|| millis(variable, "OTEL_EXPORTER_OTLP_TIMEOUT", note));
    let timeout = timeout.unwrap_or(Duration::from_secs(10));
    if timeout.is_zero() || timeout > MAX_TIMEOUT {
        let message = format!("timeout of {timeout:?} is not between 0 and {MAX_TIMEOUT:?}");
        note("otel.timeout", message);
    }
    let delay = millis(variable, "OTEL_BSP_SCHEDULE_DELAY", note);
    let max_queue = number(variable, "OTEL_BSP_MAX_QUEUE_SIZE", note).unwrap_or(2_048).max(1);
    let max_batch = number(variable, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", note).unwrap_or(512);
    Some(Otel {
        traces,
        metrics,
        headers: headers_of(&raw, folder, variable, note),
        attributes: attributes(&raw, variable, note),
        sampling: sampling(raw.sample, variable, note),
        interval,
        timeout,
        max_queue,
        max_batch: max_batch.clamp(1, max_queue),
        delay: delay.unwrap_or(Duration::from_secs(5)).max(Duration::from_millis(1)),
        declared,
    })
}

/// Where traces and metrics go.
fn endpoints(
    raw: &RawOtel,
    variable: Variable<'_>,
    note: &mut impl FnMut(&str, String),
) -> [Option<Url>; 2] {
    let signals = [("traces", "TRACES", raw.traces), ("metrics", "METRICS", raw.metrics)];
    signals.map(|(path, name, wanted)| {
        let exporter = variable(&format!("OTEL_{name}_EXPORTER"));
        let by_variable =
            exporter.is_none_or(|text| text.split(',').any(|one| one.trim() == "otlp"));
        if !wanted.unwrap_or(by_variable) {
            return None;
        }
        let below = |base: String| format!("{}/v1/{path}", base.trim_end_matches('/'));
        let own = || variable(&format!("OTEL_EXPORTER_OTLP_{name}_ENDPOINT"));
        let general = || variable("OTEL_EXPORTER_OTLP_ENDPOINT").map(below);
        let text = raw.endpoint.clone().map(below).or_else(own).or_else(general)?;
        let url = Url::parse(&text).ok().filter(is_collector);
        if url.is_none() {
            let message = "is not the address of a collector: write http://127.0.0.1:4318, and put \
                           what is secret into otel.headers_env or otel.headers_file";
            note("otel.endpoint", message.to_owned());
        }
        url
    })
}

fn is_collector(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
}

fn headers_of(
    raw: &RawOtel,
    folder: &Path,
    variable: Variable<'_>,
    note: &mut impl FnMut(&str, String),
) -> Option<Secrets> {
    let fields = ["otel.headers_env", "otel.headers_file"];
    let secrets = match (&raw.headers_env, &raw.headers_file) {
        (None, None) => {
            let text = variable("OTEL_EXPORTER_OTLP_HEADERS")?;
            Secrets::of_text(&text).map_err(|error| note("otel", error.to_string())).ok()
        }
        (env, file) => secrets(env, file, folder, fields, note),
    }?;
    let field = if raw.headers_file.is_some() { fields[1] } else { fields[0] };
    headers(&secrets).map_err(|error| note(field, error.to_string())).ok()?;
    Some(secrets)
}

fn attributes(
    raw: &RawOtel,
    variable: Variable<'_>,
    note: &mut impl FnMut(&str, String),
) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::from([
        ("service.name".to_owned(), "quell".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    let text = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    for entry in text.split(',').filter(|entry| !entry.trim().is_empty()) {
        let pair = entry.split_once('=').and_then(|(name, value)| {
            let name = Some(name.trim().to_owned()).filter(|name| !name.is_empty());
            name.zip(decoded(value.trim()))
        });
        match pair {
            Some((name, value)) => drop(attributes.insert(name, value)),
            None => note("otel", format!("OTEL_RESOURCE_ATTRIBUTES: {entry:?} is not NAME=VALUE")),
        }
    }
    attributes.extend(variable("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
    if raw.attributes.contains_key("") {
        note("otel.attributes", "an attribute has no name: write NAME = \"VALUE\"".to_owned());
    }
    attributes.extend(raw.attributes.clone());
    attributes.extend(raw.service_name.clone().map(|name| ("service.name".to_owned(), name)));
    attributes
}

fn sampling(
    sample: Option<f64>,
    variable: Variable<'_>,
    note: &mut impl FnMut(&str, String),
) -> Sampling {
    let mut check = |ratio: f64| {
        if !(0.0..=1.0).contains(&ratio) {
            note("otel.sample", format!("sample {ratio} is not a share: give 0 to 1"));
        }
        ratio
    };
    if let Some(ratio) = sample {
        return Sampling { parent_based: true, ratio: check(ratio) };
    }
    let name =
        variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
    let (parent_based, kind) = match name.strip_prefix("parentbased_") {
        Some(kind) => (true, kind),
        None => (false, name.as_str()),
    };
    let ratio = match kind {
        "always_on" => Some(1.0),
        "always_off" => Some(0.0),
        "traceidratio" => {
            let text = variable("OTEL_TRACES_SAMPLER_ARG").unwrap_or_else(|| "1".to_owned());
            text.trim().parse().ok().map(check)
        }
        _ => None,
    };
    let ratio = ratio.unwrap_or_else(|| {
        let message = format!(
            "OTEL_TRACES_SAMPLER {name:?} or its argument is not supported: set otel.sample, 0 to 1"
        );
        note("otel", message);
        1.0
    });
    Sampling { parent_based, ratio }
}

fn number(
    variable: Variable<'_>,
    name: &str,
    note: &mut impl FnMut(&str, String),
) -> Option<usize> {
    let text = variable(name)?;
    let number = text.trim().parse().ok();
    if number.is_none() {
        note("otel", format!("{name}: {text:?} is not a number"));
    }
    number
}

fn millis(
    variable: Variable<'_>,
    name: &str,
    note: &mut impl FnMut(&str, String),
) -> Option<Duration> {
    let millis = number(variable, name, note)?;
    Some(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a table and variables amount to, and what is wrong with them.
    fn of(table: Option<&str>, variables: &[(&str, &str)]) -> (Option<Otel>, Vec<String>) {
        let raw = table.map(|table| toml::from_str(table).unwrap());
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let mut notes = Vec::new();
        let read = read(raw, Path::new("."), &variable, &mut |field: &str, message: String| {
            notes.push(format!("{field}: {message}"));
        });
        (read, notes)
    }

    #[test]
    fn nothing_is_exported_unless_a_collector_is_named() {
        assert!(of(None, &[]).0.is_none() && of(None, &[]).1.is_empty());
        let (read, notes) = of(Some(""), &[]);
        assert!(read.is_none() && notes[0].starts_with("otel.endpoint: is missing"), "{notes:?}");
        let (read, notes) = of(Some("endpoint = \"http://c:4318/\"\nmetrics = false"), &[]);
        let read = read.unwrap();
        assert_eq!(read.traces.unwrap().as_str(), "http://c:4318/v1/traces");
        assert_eq!((read.metrics, notes.len()), (None, 0));
    }

    #[test]
    fn variables_of_opentelemetry_count_where_the_file_says_nothing() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m/x"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b,x=y"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,zone=a%2Cb"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
        ];
        let (read, notes) = of(None, &variables);
        let read = read.unwrap();
        assert_eq!(notes, Vec::<String>::new());
        assert_eq!(read.traces.unwrap().as_str(), "http://c:4318/v1/traces");
        assert_eq!(read.metrics.unwrap().as_str(), "http://m/x");
        let headers = headers(&read.headers.unwrap()).unwrap();
        assert!(headers["api-key"] == "a b" && headers["x"] == "y", "{headers:?}");
        assert_eq!((&*read.attributes["service.name"], &*read.attributes["zone"]), ("mine", "a,b"));
        assert_eq!(read.sampling, Sampling { parent_based: false, ratio: 0.25 });
        assert_eq!(read.interval, Duration::from_secs(5));

        let file = "endpoint = \"https://d\"\nservice_name = \"file\"\nsample = 0.5\n\
                    attributes = { zone = \"c\" }\ninterval = \"2s\"";
        let (read, notes) = of(Some(file), &variables);
        let read = read.unwrap();
        assert_eq!(notes, Vec::<String>::new());
        assert_eq!(read.metrics.unwrap().as_str(), "https://d/v1/metrics");
        assert_eq!((&*read.attributes["service.name"], &*read.attributes["zone"]), ("file", "c"));
        assert_eq!(read.sampling, Sampling { parent_based: true, ratio: 0.5 });
        let (read, _) = of(None, &[variables[0], ("OTEL_TRACES_EXPORTER", "none")]);
        let read = read.unwrap();
        assert!(read.traces.is_none() && read.metrics.is_some());
    }

    #[test]
    fn r40_what_cannot_be_meant_is_refused_and_no_secret_is_shown() {
        type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);
        const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
        let table: [Case; 8] = [
            ("endpoint = \"http://me:CANARY@c\"", &[], "otel.endpoint"),
            ("endpoint = \"c:4317\"", &[], "otel.endpoint"),
            ("protocol = \"grpc\"", &[ENDPOINT], "otel.protocol"),
            ("sample = 1.5", &[ENDPOINT], "otel.sample"),
            ("interval = \"10ms\"", &[ENDPOINT], "otel.interval"),
            ("timeout = \"2m\"", &[ENDPOINT], "otel.timeout"),
            ("", &[ENDPOINT, ("OTEL_EXPORTER_OTLP_HEADERS", "CANARY")], "otel.headers_env"),
            ("", &[ENDPOINT, ("OTEL_TRACES_SAMPLER", "jaeger_remote")], "otel:"),
        ];
        for (text, variables, field) in table {
            let (_, notes) = of(Some(text), variables);
            assert!(notes.iter().any(|note| note.starts_with(field)), "{text}: {notes:?}");
            assert!(!format!("{notes:?}").contains("CANARY"), "{notes:?}");
        }
        let variables = [ENDPOINT, ("OTEL_EXPORTER_OTLP_HEADERS", "a=CANARY")];
        let (read, _) = of(None, &variables);
        assert!(!format!("{read:?}").contains("CANARY"), "{read:?}");
    }
}
