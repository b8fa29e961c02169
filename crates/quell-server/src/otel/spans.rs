//! Spans on their way to the collector: a bounded queue, and batches of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, Span, SpanData, SpanProcessor};
use prost::Message;
use quell::trigger::TraceContext;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_util::sync::CancellationToken;
use tracing::Level;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};

use super::collector::{Collector, count_dropped};
use super::requests;
use crate::config::{Otel, Sampling};
use crate::log::SpanLayer;

/// What spans are counted as.
pub(super) const SIGNAL: &str = "spans";

/// The targets whose spans are exported.
const TARGETS: [(&str, Level); 3] = [
    ("quell::attempt", Level::INFO),
    ("quell::trigger", Level::DEBUG),
    (requests::TARGET, Level::TRACE),
];

/// Whether spans are made in this process.
static MADE: AtomicBool = AtomicBool::new(false);

/// Whether spans are made in this process.
pub(super) fn are_made() -> bool {
    MADE.load(Ordering::Relaxed)
}

/// The context of the current span.
pub(super) fn current_context() -> Option<TraceContext> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let known = Some(span.span_context()).filter(|known| known.is_valid())?;
    let (trace, id, flags) = (known.trace_id(), known.span_id(), known.trace_flags().to_u8());
    let state = known.trace_state().header();
    TraceContext::new(&format!("00-{trace}-{id}-{flags:02x}"), Some(&state)).ok()
}

/// Spans that wait.
#[derive(Debug)]
pub(super) struct Waiting {
    queue: Receiver<SpanData>,
    /// Those that found no place since the last look.
    lost: Arc<AtomicU64>,
    resource: Resource,
    max_batch: usize,
    delay: Duration,
    /// It ends with the queue.
    _provider: SdkTracerProvider,
}

/// The layer that makes spans, and where they arrive.
pub(super) fn layer(settings: &Otel) -> (SpanLayer, Waiting) {
    let (sender, queue) = channel(settings.max_queue);
    let lost = Arc::<AtomicU64>::default();
    let attributes = settings.attributes.iter();
    let attributes = attributes.map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    let resource = Resource::builder_empty().with_attributes(attributes).build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(Enqueue { sender, lost: Arc::clone(&lost) })
        .with_sampler(sampler(settings.sampling))
        .with_resource(resource.clone())
        .build();
    let targets = Targets::new().with_targets(TARGETS);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("quell"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(targets.and(filter_fn(|metadata| metadata.is_span())));
    MADE.store(true, Ordering::Relaxed);
    let (max_batch, delay) = (settings.max_batch, settings.delay);
    (layer.boxed(), Waiting { queue, lost, resource, max_batch, delay, _provider: provider })
}

fn sampler(Sampling { parent_based, ratio }: Sampling) -> Sampler {
    let ratio = Sampler::TraceIdRatioBased(ratio);
    if parent_based { Sampler::ParentBased(Box::new(ratio)) } else { ratio }
}

/// Puts spans into the queue; where that is full, drops them.
#[derive(Debug)]
struct Enqueue {
    sender: Sender<SpanData>,
    lost: Arc<AtomicU64>,
}

impl SpanProcessor for Enqueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.sender.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            count_dropped(SIGNAL, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Waiting {
    /// Sends spans until `stop`, then those that still wait.
    pub(super) async fn export(mut self, mut collector: Collector, stop: CancellationToken) {
        loop {
            let (batch, is_last) = self.batch(&stop).await;
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                collector.warn(lost, "more spans end than the collector takes");
            }
            if !batch.is_empty() {
                self.send(batch, &mut collector, &stop).await;
            } else if is_last {
                return;
            }
        }
    }

    /// The next spans; without any after a stop, there are no more.
    async fn batch(&mut self, stop: &CancellationToken) -> (Vec<SpanData>, bool) {
        let mut batch = Vec::new();
        let mut over = std::pin::pin!(tokio::time::sleep(self.delay));
        while batch.len() < self.max_batch {
            let left = self.max_batch.saturating_sub(batch.len());
            tokio::select! {
                biased;
                _ = self.queue.recv_many(&mut batch, left) => {}
                () = stop.cancelled() => return (batch, true),
                () = &mut over => break,
            }
        }
        (batch, false)
    }

    async fn send(
        &self,
        spans: Vec<SpanData>,
        collector: &mut Collector,
        stop: &CancellationToken,
    ) {
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let resource = ResourceAttributesWithSchema::from(&self.resource);
        let resource_spans = group_spans_by_resource_and_scope(spans, &resource);
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let Some(answer) = collector.deliver(body, count, stop).await else { return };
        let answer = ExportTraceServiceResponse::decode(answer.as_slice()).unwrap_or_default();
        let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
        collector.dropped(u64::try_from(rejected).unwrap_or_default(), "it rejected some");
    }
}
