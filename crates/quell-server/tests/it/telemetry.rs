//! The exporter: what a collector of OpenTelemetry receives from a server process, and what becomes of the server where
//! it receives nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use reqwest::{Client, Method};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::binary::{Process, quell};

/// The trace of callers.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// What a collector received.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>);

impl Received {
    /// Starts a collector; its address.
    async fn start(tasks: &mut JoinSet<()>) -> (Self, String) {
        let received = Received::default();
        let take = async |State(Received(all)): State<Received>,
                          uri: Uri,
                          headers: HeaderMap,
                          body: Bytes| {
            all.lock().unwrap().push((uri.path().to_owned(), headers, body));
        };
        let app = axum::Router::new().fallback(take).with_state(received.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
        (received, address)
    }

    fn bodies(&self, path: &str) -> Vec<Bytes> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|(to, ..)| to == path).map(|(.., body)| body.clone()).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.bodies("/v1/traces").into_iter();
        let requests = requests.map(|body| ExportTraceServiceRequest::decode(body).unwrap());
        let scopes = requests.flat_map(|request| request.resource_spans);
        scopes.flat_map(|of| of.scope_spans).flat_map(|of| of.spans).collect()
    }

    /// The newest numbers, as lines of a page without their order.
    fn numbers(&self) -> BTreeMap<String, f64> {
        let Some(body) = self.bodies("/v1/metrics").pop() else { return BTreeMap::new() };
        let request = ExportMetricsServiceRequest::decode(body).unwrap();
        let scopes = request.resource_metrics.into_iter().flat_map(|of| of.scope_metrics);
        let mut numbers = BTreeMap::new();
        for metric in scopes.flat_map(|of| of.metrics) {
            let name = metric.name;
            assert!(!metric.description.is_empty(), "{name}");
            match metric.data.unwrap() {
                metric::Data::Sum(sum) => {
                    assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{name}");
                    numbers.extend(
                        sum.data_points.iter().map(|p| line(&name, &p.attributes, p.value)),
                    );
                }
                metric::Data::Gauge(gauge) => {
                    numbers.extend(
                        gauge.data_points.iter().map(|p| line(&name, &p.attributes, p.value)),
                    );
                }
                metric::Data::Histogram(histogram) => {
                    for point in histogram.data_points {
                        let of = labels(&point.attributes);
                        assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count, "{name}");
                        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                        numbers.insert(format!("{name}_count{of}"), point.count as f64);
                        numbers.insert(format!("{name}_sum{of}"), point.sum.unwrap());
                    }
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        numbers
    }
}

fn line(
    name: &str,
    attributes: &[KeyValue],
    value: Option<number_data_point::Value>,
) -> (String, f64) {
    let value = match value.unwrap() {
        number_data_point::Value::AsInt(value) => value as f64,
        number_data_point::Value::AsDouble(value) => value,
    };
    (format!("{name}{}", labels(attributes)), value)
}

fn labels(attributes: &[KeyValue]) -> String {
    let labels = attributes.iter().map(|of| format!("{}=\"{}\"", of.key, text(of)));
    let labels: Vec<_> = labels.collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

fn text(attribute: &KeyValue) -> String {
    match attribute.value.clone().and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("{}: {other:?}", attribute.key),
    }
}

fn of<'s>(spans: &'s [Span], name: &str, key: &str, value: &str) -> Vec<&'s Span> {
    let has = |span: &&Span| span.attributes.iter().any(|of| of.key == key && text(of) == value);
    spans.iter().filter(|span| span.name == name).filter(has).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lines of a page that stay as they are while nothing happens, without buckets.
fn lines(page: &str) -> BTreeMap<String, f64> {
    let moves = ["quell_store_", "quell_poll_", "#"];
    let lines = page.lines().filter(|line| !moves.iter().any(|name| line.starts_with(name)));
    let lines = lines.filter(|line| !line.is_empty() && !line.contains("_bucket{"));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// Waits until there is something.
async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(50), "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A server process that exports to this collector, and calls to it.
struct Exporting {
    folder: TempDir,
    process: Process,
    client: Client,
}

impl Exporting {
    fn start(otel: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (config, store) = (folder.path().join("quell.toml"), folder.path().join("q.db"));
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\ntoken_env = \"CALLERS\"\n\
             [store]\nurl = \"sqlite://{}\"\nsynchronous = \"normal\"\n[otel]\n{otel}\n\
             [tasks.build]\nkey = \"{{{{ repo }}}}\"\ndebounce = {{ min = \"300ms\", max = \"5s\" }}\n\
             exec = {{ command = [\"sh\", \"-c\", \"echo $TRACEPARENT > trace\"], cwd = \"{}\" }}\n\
             [tasks.dies]\nretry = {{ max_attempts = 1 }}\nexec = {{ command = [\"false\"] }}\n\
             [tasks.now]\nexec = {{ command = [\"true\"] }}\n",
            store.display(),
            folder.path().display(),
        );
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = quell(&["serve", "--config", config.to_str().unwrap()]);
        command.env("CALLERS", "CANARY-token").envs(variables.iter().copied()).stderr(log);
        Exporting { process: Process::start(&mut command), folder, client: Client::new() }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> String {
        let request = self.client.request(method, format!("{}{path}", self.process.url));
        let request =
            request.bearer_auth("CANARY-token").header("content-type", "application/json");
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(body.to_owned()).send().await.unwrap().text().await.unwrap()
    }

    async fn trigger(&self, task: &str, headers: &[(&str, &str)], payload: &str) -> Value {
        let (path, body) =
            (format!("/v1/tasks/{task}/triggers"), format!("{{\"payload\":{payload}}}"));
        let answer = self.ask(Method::POST, &path, headers, &body).await;
        serde_json::from_str(&answer).unwrap()
    }

    async fn page(&self) -> String {
        self.ask(Method::GET, "/metrics", &[], "").await
    }

    /// Waits until a job has ended.
    async fn ended(&self, job: &Value, state: &str) {
        let path = format!("/v1/jobs/{}", job.as_str().unwrap());
        until("the job has ended", async || {
            let shown: Value =
                serde_json::from_str(&self.ask(Method::GET, &path, &[], "").await).unwrap();
            (shown["job"]["state"] == state).then_some(())
        })
        .await;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Stops it in order; the time that this takes is less than any timeout of a request.
    async fn stop(&mut self) {
        self.process.signal("-TERM");
        until("the process has ended", async || self.process.child.try_wait().unwrap()).await;
    }
}

/// The fields of spans that `docs/observability.md` names.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../../../docs/observability.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| Some(row.split_once(" |")?.0.to_owned()));
    cells.flat_map(|cell| cell.split('`').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The attempt of a burst of three has links to its triggers, which are below the requests of their callers.
fn expect_linked(spans: &[Span], run: &str) {
    let [attempt] = of(spans, "quell.attempt", "task", "build")[..] else { panic!("{spans:#?}") };
    let triggers = of(spans, "quell.trigger", "task", "build");
    let ids = |of: &Span| (hex(&of.trace_id), hex(&of.span_id));
    let linked: Vec<_> =
        attempt.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect();
    assert_eq!(linked, triggers.iter().map(|span| ids(span)).collect::<Vec<_>>(), "{spans:#?}");
    assert_eq!((linked.len(), attempt.parent_span_id.len()), (3, 0), "{attempt:#?}");
    for (number, trigger) in (1..).zip(triggers) {
        let route = "POST /v1/tasks/{task}/triggers";
        let request = spans.iter().find(|span| span.span_id == trigger.parent_span_id).unwrap();
        assert_eq!((request.name.as_str(), request.kind), (route, 2));
        assert_eq!(hex(&request.trace_id), TRACE);
        assert_eq!(hex(&request.parent_span_id), format!("{number:016x}"));
        let attributes = request.attributes.iter().map(|of| (of.key.as_str(), text(of)));
        let attributes: BTreeMap<_, _> = attributes.collect();
        assert_eq!(attributes["http.response.status_code"], "202");
        assert_eq!(attributes["http.route"], "/v1/tasks/{task}/triggers");
    }
    let (trace, span) = ids(attempt);
    assert_eq!(run, format!("00-{trace}-{span}-01"), "the command goes on with the attempt");
    let [died] = of(spans, "quell.attempt", "task", "dies")[..] else { panic!("{spans:#?}") };
    assert_eq!(died.status.as_ref().unwrap().code, 2);
    assert_eq!(
        died.attributes.iter().find(|of| of.key == "error.type").map(text).unwrap(),
        "failed"
    );

    let documented = documented();
    for span in spans {
        assert!(span.events.is_empty(), "{span:#?}");
        for attribute in &span.attributes {
            assert!(documented.contains(&attribute.key), "{} of {}", attribute.key, span.name);
        }
    }
}

/// The exported numbers are those of the page.
async fn expect_numbers(server: &Exporting, received: &Received) {
    until("the numbers are those of the page", async || {
        let before = lines(&server.page().await);
        let exported = received.numbers();
        let exported = exported.into_iter().filter(|(name, _)| {
            !name.starts_with("quell_store_") && !name.starts_with("quell_poll_")
        });
        let exported: BTreeMap<_, _> = exported.collect();
        (exported == before && before.len() > 20).then_some(())
    })
    .await;
    let numbers = received.numbers();
    let counted = "quell_triggers_total{queue=\"default\",task=\"build\",outcome=\"debounced\"}";
    assert_eq!(numbers[counted], 2.0);
    assert_eq!(numbers["quell_otel_dropped_total{signal=\"spans\"}"], 0.0);
    assert!(numbers["quell_store_file_bytes"] > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r42_a_collector_receives_linked_spans_and_the_numbers_of_the_page_and_no_secret() {
    let mut tasks = JoinSet::new();
    let (received, address) = Received::start(&mut tasks).await;
    let otel = format!(
        "endpoint = \"{address}\"\nheaders_env = \"COLLECTOR\"\nservice_name = \"shop\"\n\
         attributes = {{ zone = \"a\" }}\ninterval = \"1s\""
    );
    let variables = [("COLLECTOR", "api-key=CANARY-collector"), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
    let mut server = Exporting::start(&otel, &variables);
    let payload = r#"{"repo":"CANARY-key","text":"CANARY-payload"}"#;
    let mut job = Value::Null;
    for number in 1..=3 {
        let parent = format!("00-{TRACE}-{number:016x}-01");
        let headers = [("traceparent", parent.as_str()), ("x-canary", "CANARY-header")];
        job = server.trigger("build", &headers, payload).await["job"].clone();
    }
    let dies = server.trigger("dies", &[], "\"CANARY-payload\"").await["job"].clone();
    server.ask(Method::GET, "/v1/tasks/build/windows?key=CANARY-query", &[], "").await;
    server.ended(&job, "succeeded").await;
    server.ended(&dies, "dead").await;

    let spans = until("both attempts are exported", async || {
        let spans = received.spans();
        (spans.iter().filter(|span| span.name == "quell.attempt").count() == 2).then_some(spans)
    })
    .await;
    let run = std::fs::read_to_string(server.folder.path().join("trace")).unwrap();
    expect_linked(&spans, run.trim());
    expect_numbers(&server, &received).await;

    server.stop().await;
    let all = received.0.lock().unwrap().clone();
    assert!(all.len() > 2);
    for (path, headers, body) in all {
        assert_eq!(headers["api-key"], "CANARY-collector");
        assert_eq!(headers["content-type"], "application/x-protobuf");
        assert!(!String::from_utf8_lossy(&body).contains("CANARY"), "{path}: {body:?}");
        assert!(String::from_utf8_lossy(&body).contains("shop"), "{path}");
    }
    assert!(!server.log().contains("CANARY"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_silent_or_unreachable_delays_neither_attempts_nor_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut tasks = JoinSet::new();
    let address = silent.local_addr().unwrap();
    tasks.spawn(async move {
        let mut kept = Vec::new();
        while let Ok((connection, _)) = silent.accept().await {
            kept.push(connection);
        }
    });
    let nowhere = crate::served::free_port();
    for address in [format!("http://{address}"), format!("http://127.0.0.1:{nowhere}")] {
        // Longer than anything here waits.
        let otel = format!("endpoint = \"{address}\"\ninterval = \"1s\"\ntimeout = \"60s\"");
        let variables = [("OTEL_BSP_MAX_QUEUE_SIZE", "8"), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
        let mut server = Exporting::start(&otel, &variables);
        for _ in 0..20 {
            let job = server.trigger("now", &[], "1").await["job"].clone();
            server.ended(&job, "succeeded").await;
        }
        until("what is dropped is counted and logged", async || {
            let page = server.page().await;
            let name = "quell_otel_dropped_total{signal=\"spans\"} ";
            let dropped = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            (dropped.parse::<u64>().unwrap() > 0).then_some(())
        })
        .await;
        server.stop().await;
        let log = server.log();
        let warnings = log.lines().filter(|line| line.contains("telemetry is dropped")).count();
        assert!(warnings <= 2, "one for each signal:\n{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_decides_whether_its_trace_is_exported_and_the_share_decides_for_others() {
    let mut tasks = JoinSet::new();
    let (received, address) = Received::start(&mut tasks).await;
    let otel = format!("endpoint = \"{address}\"\nsample = 0\nmetrics = false");
    let mut server = Exporting::start(&otel, &[("OTEL_BSP_SCHEDULE_DELAY", "50")]);
    for flags in ["00", "01"] {
        let parent = format!("00-{TRACE}-00000000000000{flags}-{flags}");
        let job = server.trigger("now", &[("traceparent", &parent)], "1").await["job"].clone();
        server.ended(&job, "succeeded").await;
    }
    server.trigger("now", &[], "1").await;
    server.stop().await;
    let spans = received.spans();
    let names: BTreeSet<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["POST /v1/tasks/{task}/triggers", "quell.trigger"].into(), "{spans:#?}");
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    assert_eq!(received.bodies("/v1/metrics").len(), 0);
}
