//! The Prometheus page: counters as the library counted them, jobs as the store has them.
//!
//! `bounded` limits how many label values there may be, and `page` writes the text.
//!
//! Invariant: at most one look at the store is in flight, whatever the number of scrapers. Requests that wait for it
//! share the next one, which began after each of them had arrived: no page is older than its request.

mod bounded;
mod page;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context as _;
use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use metrics::{describe_counter, describe_gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use quell::job::Counts;
use quell::{Error, ErrorKind, Quell, QueueName, TaskName};
use tokio_util::sync::CancellationToken;

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use bounded::Bounded;

/// Upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 16] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0,
    3_600.0,
];

/// How often measurements are folded.
const UPKEEP: Duration = Duration::from_secs(5);

/// How many queues with their tasks have lines of their own; the others share one.
const MOST_NAMED: usize = 1_000;

/// What the labels of a shared line are: no name may have parentheses.
const OTHER: &str = "(other)";

/// The process's recorder: installed once, shared by every server in the process.
///
/// # Errors
/// When another recorder was installed before.
fn recorder() -> anyhow::Result<PrometheusHandle> {
    static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*recorder {
        return Ok(handle.clone());
    }
    let own = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .build_recorder();
    let handle = own.handle();
    metrics::set_global_recorder(Bounded::new(own, MOST_NAMED))
        .ok()
        .context("cannot install the metrics recorder: the process has another")?;
    describe_counter!(
        "quell_source_deliveries_total",
        "Deliveries of webhooks by what became of each."
    );
    describe_gauge!("quell_alert", "Whether an alert is raised.");
    describe_counter!("quell_audit_failures_total", "Audit entries that the file could not take.");
    describe_counter!("quell_audit_suppressed_total", "Refused requests that were counted only.");
    // From zero, so that an alert sees the first one.
    metrics::counter!("quell_audit_failures_total").increment(0);
    metrics::counter!("quell_audit_suppressed_total").increment(0);
    describe_counter!(
        "quell_otel_dropped_total",
        "Spans, and exports of metrics, that the collector did not take."
    );
    *recorder = Some(handle.clone());
    Ok(handle)
}

/// A task with its queue.
pub type Lane = (QueueName, TaskName);

/// What the page is made of.
#[derive(Clone, Debug)]
pub struct Metrics {
    recorder: PrometheusHandle,
    quell: Quell,
    /// The declared tasks.
    declared: Arc<RwLock<Arc<[Lane]>>>,
    looks: Arc<Looks>,
}

/// Looks at the store, one at a time.
#[derive(Debug, Default)]
struct Looks {
    one: tokio::sync::Mutex<()>,
    state: Mutex<Order>,
}

#[derive(Debug, Default)]
struct Order {
    /// How many began.
    begun: u64,
    /// The number of the last that ended, and what it found.
    last: Option<(u64, Found<Seen>)>,
}

/// What a look found, to be shared by all who wait for it.
pub(super) type Found<T> = Result<Arc<T>, (ErrorKind, String)>;

/// The whole page, and the counts behind it.
#[derive(Debug)]
struct Seen {
    page: String,
    counts: Vec<Counts>,
}

impl Metrics {
    /// The metrics of this process and of the client's store.
    ///
    /// # Errors
    /// When the process has another recorder.
    pub fn new(quell: Quell) -> anyhow::Result<Self> {
        let (declared, looks) = (Arc::new(RwLock::new(Arc::from([]))), Arc::default());
        Ok(Metrics { recorder: recorder()?, quell, declared, looks })
    }

    /// Sets the declared tasks. They are named first, and show as zero where they have no dead job, so that an
    /// alert on them has something to compare.
    pub fn declare(&self, tasks: impl Iterator<Item = Lane>) {
        *self.declared.write().unwrap_or_else(PoisonError::into_inner) = tasks.collect();
    }

    /// The whole page, no older than the call.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn page(&self) -> quell::Result<String> {
        self.look().await.map(|seen| seen.page.clone())
    }

    /// The whole page, or where the store does not answer the part of this process.
    pub async fn page_or_own(&self) -> String {
        self.page().await.unwrap_or_else(|_| self.recorder.render())
    }

    /// Folds the measurements since the last time.
    pub fn fold(&self) {
        self.recorder.run_upkeep();
    }

    /// Folds now and then, so that a server does not grow while no one scrapes it.
    pub async fn upkeep(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.fold(),
                () = stop.cancelled() => return,
            }
        }
    }

    /// A look that began after this call did.
    async fn look(&self) -> quell::Result<Arc<Seen>> {
        let state = || self.looks.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state().begun;
        let _alone = self.looks.one.lock().await;
        let number = {
            let mut state = state();
            if let Some((_, found)) = state.last.as_ref().filter(|(number, _)| *number > before) {
                return shared(found);
            }
            state.begun = state.begun.saturating_add(1);
            state.begun
        };
        let found = found(self.read().await);
        let answer = shared(&found);
        state().last = Some((number, found));
        answer
    }

    async fn read(&self) -> quell::Result<Seen> {
        let counts = self.quell.store().counts().await?;
        // A store without checks has no such metrics.
        let checkup = match self.quell.checkup().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            checkup => Some(checkup?),
        };
        let of_store = checkup.as_ref().map(page::of_store).unwrap_or_default();
        let of_jobs = page::of_jobs(&counts, &self.declared(), MOST_NAMED);
        Ok(Seen { page: self.recorder.render() + &of_jobs + &of_store, counts })
    }

    fn declared(&self) -> Arc<[Lane]> {
        Arc::clone(&self.declared.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An answer as it is shared.
pub(super) fn found<T>(answer: quell::Result<T>) -> Found<T> {
    answer.map(Arc::new).map_err(|error| (error.kind(), error.to_string()))
}

/// The answer of one who waits.
pub(super) fn shared<T>(found: &Found<T>) -> quell::Result<Arc<T>> {
    match found {
        Ok(seen) => Ok(Arc::clone(seen)),
        Err((kind, message)) => Err(Error::new(*kind, message.clone())),
    }
}

/// The Prometheus page.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operation",
    operation_id = "server_metrics",
    summary = "Metrics in the text format of Prometheus.",
    description = "A token that is limited to tasks or queues sees the numbers of their jobs only.",
    responses((status = 200, body = String, content_type = "text/plain", description = "Done."), Refused),
)]
pub(super) async fn metrics_page(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Result<Response, ApiError> {
    let (grant, seen) = (access.grant(), api.metrics.look().await?);
    let text = if grant.is_limited() {
        let sees = |queue: &QueueName, task: &TaskName| grant.sees(queue, task);
        let counts = seen.counts.iter().filter(|count| sees(&count.queue, &count.task));
        let declared = api.metrics.declared();
        let declared = declared.iter().filter(|(queue, task)| sees(queue, task));
        let (counts, declared): (Vec<_>, Vec<_>) =
            (counts.cloned().collect(), declared.cloned().collect());
        page::of_jobs(&counts, &declared, MOST_NAMED)
    } else {
        seen.page.clone()
    };
    Ok(([("content-type", "text/plain; version=0.0.4")], text).into_response())
}
