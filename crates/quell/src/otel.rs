//! The trace contexts of OpenTelemetry: that of the span that triggers, and the links of the span of an
//! attempt (R42).

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use quell_core::trace::{TraceContext, Traces};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The context of a call's span; where no subscriber wants that span, of the span around it.
pub(crate) fn context_of(span: &Span) -> Option<TraceContext> {
    let span = if span.is_disabled() { Span::current() } else { span.clone() };
    // A caller may use OpenTelemetry's own interface instead of tracing.
    of(&span.context()).or_else(|| of(&Context::current()))
}

fn of(context: &Context) -> Option<TraceContext> {
    let span = context.span();
    let known = span.span_context();
    if !known.is_valid() {
        return None;
    }
    let (trace, span, flags) = (known.trace_id(), known.span_id(), known.trace_flags().to_u8());
    let state = known.trace_state().header();
    TraceContext::new(&format!("00-{trace}-{span}-{flags:02x}"), Some(&state)).ok()
}

/// Links the span of an attempt to the spans that triggered.
pub(crate) fn link(span: &Span, traces: &Traces) {
    if span.is_disabled() {
        return;
    }
    traces.iter().filter_map(|context| linked(&context)).for_each(|context| span.add_link(context));
}

fn linked(context: &TraceContext) -> Option<SpanContext> {
    let trace = TraceId::from_hex(context.trace_id()).ok()?;
    let span = SpanId::from_hex(context.span_id()).ok()?;
    let flags = context.traceparent().get(53..)?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let state = context.tracestate().and_then(|state| state.parse::<TraceState>().ok());
    Some(SpanContext::new(trace, span, flags, true, state.unwrap_or_default()))
}
