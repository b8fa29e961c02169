//! The exporter: traces and metrics by OTLP (HTTP with protobuf), to a collector of OpenTelemetry.
//!
//! `spans` takes spans as they end, `numbers` reads the metrics page, `collector` sends both, and `requests` makes the
//! spans of HTTP requests. The exporters of the crate `opentelemetry-otlp` do not say how much they drop, and need a
//! thread of their own, so they are not used.
//!
//! Invariants: a collector that is unreachable, slow or silent delays nothing else, neither an attempt nor the end of
//! the process. What waits for it is bounded, and what is dropped is counted. Only spans of the targets in
//! [`TARGETS`] are exported, without events, and none of them has a payload, a key or a secret.

#[cfg(feature = "otel")]
mod collector;
#[cfg(feature = "otel")]
mod numbers;
#[cfg(feature = "otel")]
mod requests;
#[cfg(feature = "otel")]
mod spans;
#[cfg(feature = "otel")]
mod telemetry;

use quell::trigger::TraceContext;

#[cfg(feature = "otel")]
pub(crate) use requests::request_span;
#[cfg(feature = "otel")]
pub(crate) use telemetry::Telemetry;

#[cfg(not(feature = "otel"))]
pub(crate) use without::Telemetry;

/// Whether this process makes spans for an exporter.
pub(crate) fn is_tracing() -> bool {
    #[cfg(feature = "otel")]
    return spans::are_made();
    #[cfg(not(feature = "otel"))]
    false
}

/// The trace context of the attempt whose handler runs here, where its span is made for an exporter.
pub(crate) fn context_of_attempt() -> Option<TraceContext> {
    #[cfg(feature = "otel")]
    return is_tracing().then(spans::current_context).flatten();
    #[cfg(not(feature = "otel"))]
    None
}

/// A build without an exporter.
#[cfg(not(feature = "otel"))]
mod without {
    use crate::config::Otel;
    use crate::http::Metrics;
    use crate::log::SpanLayer;

    /// Exports nothing.
    #[derive(Debug)]
    pub(crate) struct Telemetry;

    impl Telemetry {
        pub(crate) fn new(_: Option<&Otel>) -> anyhow::Result<(Self, Option<SpanLayer>)> {
            Ok((Telemetry, None))
        }

        pub(crate) fn start(self, _: &Metrics) -> anyhow::Result<Self> {
            Ok(self)
        }

        pub(crate) async fn end(self) {
            std::future::ready(()).await;
        }
    }
}
