//! The exporter's life: made before the log starts, running beside the server, ended within a bound.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::collector::Collector;
use super::numbers::metrics_of;
use super::spans::{self, Waiting};
use crate::config::Otel;
use crate::http::Metrics;
use crate::log::SpanLayer;

/// How long the end of the process waits for the last spans and metrics to be sent.
const LAST: Duration = Duration::from_secs(3);
/// What metrics are counted as.
const SIGNAL: &str = "metrics";

/// Exports traces and metrics; nothing without settings.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    settings: Option<Otel>,
    spans: Option<Waiting>,
    running: JoinSet<()>,
    stop: CancellationToken,
}

impl Telemetry {
    /// The exporter of these settings, and the layer that makes its spans.
    pub(crate) fn new(settings: Option<&Otel>) -> anyhow::Result<(Self, Option<SpanLayer>)> {
        let Some(settings) = settings else { return Ok((Telemetry::default(), None)) };
        let mut settings = settings.clone();
        // So that the numbers of two processes are different series.
        let own = format!("{:032x}", fastrand::u128(..));
        settings.attributes.entry("service.instance.id".to_owned()).or_insert(own);
        let made = settings.traces.as_ref().map(|_| spans::layer(&settings));
        let (layer, spans) = made.unzip();
        Ok((Telemetry { settings: Some(settings), spans, ..Telemetry::default() }, layer))
    }

    /// Starts to export, with the numbers of a server.
    pub(crate) fn start(mut self, metrics: &Metrics) -> anyhow::Result<Self> {
        let Some(settings) = &self.settings else { return Ok(self) };
        if let Some((spans, url)) = self.spans.take().zip(settings.traces.as_ref()) {
            let collector = Collector::new(spans::SIGNAL, settings, url)?;
            self.running.spawn(spans.export(collector, self.stop.clone()));
        }
        if let Some(url) = &settings.metrics {
            let collector = Collector::new(SIGNAL, settings, url)?;
            let (metrics, interval) = (metrics.clone(), settings.interval);
            let export = Numbers { metrics, resource: resource(settings), began: now() };
            self.running.spawn(export.run(interval, collector, self.stop.clone()));
        }
        Ok(self)
    }

    /// Sends what is left, within a bound.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        let all = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST, all).await.is_err() {
            warn!(within = ?LAST, "collector did not take the last telemetry");
        }
    }
}

/// The metrics on their way to the collector.
#[derive(Debug)]
struct Numbers {
    metrics: Metrics,
    resource: Resource,
    /// When the counters began, in nanoseconds.
    began: u64,
}

impl Numbers {
    async fn run(self, interval: Duration, mut collector: Collector, stop: CancellationToken) {
        loop {
            let is_last = tokio::select! {
                () = tokio::time::sleep(interval) => false,
                () = stop.cancelled() => true,
            };
            self.export(&mut collector, &stop).await;
            if is_last {
                return;
            }
        }
    }

    async fn export(&self, collector: &mut Collector, stop: &CancellationToken) {
        let page = self.metrics.page_or_own().await;
        let scope = InstrumentationScope { name: "quell".to_owned(), ..Default::default() };
        let of_scope = ScopeMetrics {
            scope: Some(scope),
            metrics: metrics_of(&page, self.began, now()),
            ..Default::default()
        };
        let of_resource = ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![of_scope],
            ..Default::default()
        };
        let request = ExportMetricsServiceRequest { resource_metrics: vec![of_resource] };
        let Some(answer) = collector.deliver(request.encode_to_vec(), 1, stop).await else {
            return;
        };
        let answer = ExportMetricsServiceResponse::decode(answer.as_slice()).unwrap_or_default();
        let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_data_points);
        if rejected > 0 {
            collector.dropped(1, "it rejected some");
        }
    }
}

fn resource(settings: &Otel) -> Resource {
    let attributes = settings.attributes.iter().map(|(name, value)| text(name, value)).collect();
    Resource { attributes, ..Default::default() }
}

/// An attribute.
pub(super) fn text(name: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: name.to_owned(), value: Some(value), ..Default::default() }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
