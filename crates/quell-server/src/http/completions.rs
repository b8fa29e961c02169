//! `POST /v1/completions/{lease}/{code}`: the target of a call reports the end of work that it answered
//! with 202. The code is the proof, so no token is needed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use quell::store::{Lease, SettledAs};
use quell::worker::pull::{MAX_JOBS, PullLease, PullOutcome, PullTasks};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::settle::{AskedSettlement, count, redacted};
use crate::alerts::Tally;
use crate::handlers::{Handler, completion};
use crate::progress::Reports;
use crate::view;

/// The most completions that are watched: 16 MiB of them. More end by their leases.
const MOST: usize = 50_000;
/// How long the end of overdue attempts waits after the store has failed.
const RETRY: Duration = Duration::from_secs(1);

/// The attempts that go on at the targets of their calls.
#[derive(Clone, Debug)]
pub struct Completions {
    tasks: PullTasks,
    tally: Arc<Tally>,
    watched: Arc<Watched>,
}

/// Those whose targets may take too long.
#[derive(Debug, Default)]
struct Watched {
    expected: Mutex<Expected>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Expected {
    by_time: BTreeMap<(Instant, Lease), (PullLease, Duration)>,
    times: BTreeMap<Lease, Instant>,
}

impl Expected {
    fn add(&mut self, at: Instant, lease: PullLease, within: Duration) {
        self.times.insert(lease.lease, at);
        self.by_time.insert((at, lease.lease), (lease, within));
    }

    fn remove(&mut self, lease: Lease) {
        if let Some(at) = self.times.remove(&lease) {
            self.by_time.remove(&(at, lease));
        }
    }
}

impl Watched {
    fn expected(&self) -> MutexGuard<'_, Expected> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Completions {
    /// Of these tasks; the tally counts how their attempts end.
    #[must_use]
    pub fn new(tasks: PullTasks, tally: Arc<Tally>) -> Self {
        Completions { tasks, tally, watched: Arc::default() }
    }

    /// The same for other tasks; those that are expected stay so.
    #[must_use]
    pub(crate) fn after(&self, tasks: PullTasks) -> Self {
        Completions { tasks, ..self.clone() }
    }

    /// The tasks.
    pub(crate) fn tasks(&self) -> &PullTasks {
        &self.tasks
    }

    /// Ends an attempt as timed out unless it is completed within this time. Where that is not noted, its
    /// lease expires instead.
    pub fn expect(&self, lease: PullLease, within: Duration) {
        let mut expected = self.watched.expected();
        if expected.times.len() >= MOST {
            debug!(most = MOST, "too many completions at once: this one ends by its lease");
            return;
        }
        expected.add(Instant::now() + within, lease, within);
        drop(expected);
        self.watched.changed.notify_one();
    }

    /// Ends attempts that are overdue, until the server stops.
    pub async fn watch(self, stop: CancellationToken) {
        let mut pause = None;
        loop {
            let first = self.watched.expected().by_time.keys().next().map(|(at, _)| *at);
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.watched.changed.notified() => {}
                () = sleep_until(first.max(pause)) => pause = self.end_overdue().await,
            }
        }
    }

    /// Ends those that are overdue now; when to go on, where the store failed.
    async fn end_overdue(&self) -> Option<Instant> {
        let now = Instant::now();
        let overdue: Vec<(PullLease, PullOutcome)> = {
            let expected = self.watched.expected();
            let due = expected.by_time.iter().take_while(|((at, _), _)| *at <= now);
            let end =
                |(_, (lease, within)): (_, &(PullLease, Duration))| (lease.clone(), late(*within));
            due.take(MAX_JOBS).map(end).collect()
        };
        if overdue.is_empty() {
            return None;
        }
        match self.tasks.settle(overdue.clone()).await {
            Ok(settled) => {
                for ((lease, outcome), settled) in overdue.iter().zip(settled) {
                    // One that the store can never take ends by its lease.
                    self.watched.expected().remove(lease.lease);
                    match settled {
                        Ok(settled) => count(&self.tally, &self.tasks, lease, outcome, &settled),
                        Err(error) => warn!(%error, "an overdue attempt could not be ended"),
                    }
                }
                None
            }
            Err(error) => {
                warn!(%error, attempts = overdue.len(), "overdue attempts could not be ended, trying again");
                Some(Instant::now() + RETRY)
            }
        }
    }
}

/// The end of an attempt whose target took too long.
fn late(within: Duration) -> PullOutcome {
    PullOutcome::Failed {
        error: format!("the target answered 202 and did not report the end within {within:?}"),
        permanent: false,
        retry_in: None,
        timed_out: true,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(complete))
}

/// The end of an attempt that its target reports.
#[utoipa::path(
    post,
    path = "/v1/completions/{lease}/{code}",
    tag = "completions",
    operation_id = "completions_complete",
    summary = "Report the end of work that a call was answered with 202 for.",
    description = "",
    params(
        ("lease" = String, Path, description = "The lease, as the completion URL has it."),
        ("code" = String, Path, description = "The proof, as the completion URL has it."),
    ),
    request_body(content = Option<AskedSettlement>, description = "How it ended, without a lease. No body is a success without output."),
    responses((status = 200, body = view::SettledJob, description = "Done."), Refused),
)]
async fn complete(
    State(api): State<Api>,
    Path((encoded, code)): Path<(String, String)>,
    request: Request,
) -> Result<Json<view::SettledJob>, ApiError> {
    let forbidden = || {
        let message = "the code is not one of this lease: call the URL as it was sent";
        ApiError::new(StatusCode::FORBIDDEN, "code", message)
    };
    // Before the body is read: anyone may call this.
    let name = completion::lease(&encoded).ok_or_else(forbidden)?;
    let lease: PullLease = name.parse().map_err(|_| forbidden())?;
    let handler = api.tasks.get(&lease.task).and_then(|task| task.handler.as_ref());
    if !handler.is_some_and(|handler: &Handler| handler.proves(&name, &code)) {
        return Err(forbidden());
    }
    let Ok(body) = JsonBody::from_request(request, &api).await;
    let outcome = match body.read_if_any()? {
        None => PullOutcome::succeeded(),
        Some(body) => {
            let asked: AskedSettlement = parse(&body)?;
            asked.outcome("", lease.lease, &Reports::default())?
        }
    };
    let outcome = redacted(&api, &lease, outcome).await?;
    let tasks = &api.completions.tasks;
    let settled = tasks.settle(vec![(lease.clone(), outcome.clone())]).await?;
    api.completions.watched.expected().remove(lease.lease);
    match settled.into_iter().next().transpose()? {
        Some(settled) if settled.became != SettledAs::Refused => {
            count(&api.completions.tally, tasks, &lease, &outcome, &settled);
            Ok(Json(view::SettledJob::new(name, &settled.became)))
        }
        _ => {
            let message = "the attempt is over: it was completed, cancelled, or took too long";
            Err(ApiError::new(StatusCode::CONFLICT, "lease", message))
        }
    }
}
