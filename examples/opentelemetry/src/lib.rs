//! Traces with OpenTelemetry: the spans of triggers and attempts, and links from a run to what triggered
//! it.
//!
//! A service copies [`install`], with an exporter of its own, and enables Quell's feature
//! `opentelemetry`. [`story`] is what the program shows.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter};
use quell::{Ctx, Jitter, JobResult, Policy, Quell, Task, TaskError};
use serde::{Deserialize, Serialize};
use tracing::{Instrument, Level, info_span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, registry};

/// Sends all spans of this process to an exporter. Spans of triggers have the level debug, so they
/// need a filter that lets them pass.
///
/// A service gives the exporter of `opentelemetry-otlp`, by `with_batch_exporter`.
///
/// # Errors
/// Fails when the process has a subscriber already.
pub fn install(exporter: impl SpanExporter + 'static) -> anyhow::Result<SdkTracerProvider> {
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    let levels =
        Targets::new().with_default(Level::INFO).with_target("quell::trigger", Level::DEBUG);
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("pages"));
    registry().with(layer.with_filter(levels)).try_init()?;
    Ok(provider)
}

/// Puts a page into the search index: once per burst of edits.
#[derive(Debug, Serialize, Deserialize)]
pub struct IndexPage {
    page: String,
}

impl Task for IndexPage {
    const NAME: &'static str = "page.index";
    type Output = ();

    fn policy() -> Policy {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(5));
        Policy::queue("search")
            .debounce(min..=max)
            .min_backoff(Duration::from_millis(50))
            .jitter(Jitter::None)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(self.page.clone())
    }
}

/// A request of the service: its span is the root of a trace, as a web framework makes it.
async fn edit(quell: &Quell, page: &str) -> quell::Result<()> {
    let request = info_span!("PUT /pages", otel.kind = "server", page);
    let task = IndexPage { page: page.to_owned() };
    async { quell.trigger(task).await.map(drop) }.instrument(request).await
}

async fn index_page(_: IndexPage, ctx: Ctx<()>) -> Result<(), TaskError> {
    let call = info_span!("index.put", otel.kind = "client");
    call.in_scope(|| match ctx.attempt() {
        1 => Err(TaskError::retry("index does not answer")),
        _ => Ok(()),
    })
}

/// Three edits of a page in a burst, one job, and two attempts: the first fails.
///
/// # Errors
/// Fails when the store in memory refuses a call, which it has no reason to.
pub async fn story() -> anyhow::Result<JobResult> {
    let quell = Quell::open("memory:").await?;
    for _ in 0..3 {
        edit(&quell, "home").await?;
    }
    let jobs = quell.jobs(&Default::default()).await?;
    let job = jobs.first().map(|job| job.id).ok_or_else(|| anyhow::anyhow!("there is no job"))?;
    let result = std::sync::OnceLock::new();
    let ended = async {
        let _ = result.set(quell.result(job, Duration::from_secs(60)).await);
    };
    quell.worker(()).register(index_page).run_until(ended).await?;
    Ok(result.into_inner().ok_or_else(|| anyhow::anyhow!("the worker ended first"))??)
}
