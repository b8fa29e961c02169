//! The exported spans, and the page that shows them.

use std::process::Command;

use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
use quell::JobState;
use quell_example_opentelemetry::{install, story};

fn named<'s>(spans: &'s [SpanData], name: &str) -> Vec<&'s SpanData> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|field| field.key.as_str() == name);
    found.map(|field| field.value.to_string())
}

#[tokio::test]
async fn r42_each_attempt_is_a_trace_that_links_to_the_triggers_of_its_burst() {
    let exporter = InMemorySpanExporter::default();
    let provider = install(exporter.clone()).unwrap();
    let result = story().await.unwrap();
    assert_eq!(result.state, JobState::Succeeded);
    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();

    let requests = named(&spans, "PUT /pages");
    let triggers = named(&spans, "quell.trigger");
    assert_eq!((requests.len(), triggers.len()), (3, 3), "{spans:#?}");
    for (request, trigger) in requests.iter().zip(&triggers) {
        assert_eq!(trigger.parent_span_id, request.span_context.span_id());
        assert_eq!(trigger.span_kind, SpanKind::Producer);
        assert_eq!(attribute(trigger, "messaging.system").as_deref(), Some("quell"));
    }

    let attempts = named(&spans, "quell.attempt");
    assert_eq!(attempts.len(), 2);
    for attempt in &attempts {
        assert_eq!(attempt.parent_span_id, SpanId::INVALID, "an attempt is the root of a trace");
        assert_eq!(attempt.span_kind, SpanKind::Consumer);
        let linked: Vec<_> = attempt.links.iter().map(|link| &link.span_context).collect();
        let expected: Vec<_> = triggers.iter().map(|trigger| &trigger.span_context).collect();
        // What came over the wire is marked as remote; the ids are the same.
        let ids = |of: &[&opentelemetry::trace::SpanContext]| {
            of.iter().map(|it| (it.trace_id(), it.span_id())).collect::<Vec<_>>()
        };
        assert_eq!(ids(&linked), ids(&expected));
        assert!(linked.iter().all(|context| context.is_remote()));
    }
    let outcomes = [0, 1].map(|index| attribute(attempts[index], "outcome").unwrap());
    assert_eq!(outcomes, ["failed", "succeeded"]);
    assert_eq!(attempts[0].status, Status::error("index does not answer"));
    assert_eq!(attempts[1].status, Status::Unset);

    for (call, attempt) in named(&spans, "index.put").iter().zip(&attempts) {
        assert_eq!(call.parent_span_id, attempt.span_context.span_id());
    }
}

#[test]
fn the_program_prints_what_the_readme_shows() {
    let output = Command::new(env!("CARGO_BIN_EXE_quell-example-opentelemetry")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let readme = include_str!("../README.md");
    assert!(readme.contains(&format!("opentelemetry\n{printed}```")), "it prints:\n{printed}");
}
