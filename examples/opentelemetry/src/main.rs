//! `cargo run -p quell-example-opentelemetry`: runs the story and prints its spans, trace by trace.
#![expect(clippy::print_stdout, reason = "the example prints spans")]

use opentelemetry::trace::{SpanId, Status};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
use quell_example_opentelemetry::{install, story};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let exporter = InMemorySpanExporter::default();
    let provider = install(exporter.clone())?;
    let result = story().await?;
    provider.force_flush()?;
    let mut spans = exporter.get_finished_spans()?;
    spans.sort_by_key(|span| span.start_time);
    let roots: Vec<&SpanData> = spans.iter().filter(|it| is_root(it)).collect();
    for (number, root) in (1..).zip(&roots) {
        println!("trace {number}");
        print_below(root, 1, &spans, &roots);
    }
    println!("job {}: {}", result.job, result.state);
    Ok(())
}

fn is_root(span: &SpanData) -> bool {
    span.parent_span_id == SpanId::INVALID
}

fn print_below(span: &SpanData, depth: usize, spans: &[SpanData], roots: &[&SpanData]) {
    print_span(span, depth, roots);
    for below in spans.iter().filter(|it| it.parent_span_id == span.span_context.span_id()) {
        print_below(below, depth + 1, spans, roots);
    }
}

fn print_span(span: &SpanData, depth: usize, roots: &[&SpanData]) {
    let mut line = format!("{:indent$}{} {:?}", "", span.name, span.span_kind, indent = depth * 2);
    let shown = ["attempt", "triggers", "outcome"];
    for field in span.attributes.iter().filter(|it| shown.contains(&it.key.as_str())) {
        line.push_str(&format!(" {}={}", field.key, field.value));
    }
    if let Status::Error { description } = &span.status {
        line.push_str(&format!(" error=\"{description}\""));
    }
    let trace_of = |link: &opentelemetry::trace::Link| {
        let trace = link.span_context.trace_id();
        let place = roots.iter().position(|it| it.span_context.trace_id() == trace);
        place.map_or_else(|| "another".to_owned(), |index| (index + 1).to_string())
    };
    let links: Vec<String> = span.links.iter().map(trace_of).collect();
    if !links.is_empty() {
        line.push_str(&format!(" links to traces {}", links.join(", ")));
    }
    println!("{line}");
}
