//! Workers elsewhere: they claim jobs by long poll, renew their leases, and leave. `settle` takes the
//! ends of their attempts.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use quell::store::Lease;
use quell::worker::WorkerId;
use quell::worker::pull::{MAX_LEASE, MIN_LEASE, PullClaim, PullLease, PullProcess, PullTasks};
use quell::{JobState, Payload, TaskName};
use serde::Deserialize;
use tokio::sync::{Semaphore, SemaphorePermit};
use utoipa::ToSchema;

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::objects;
use super::triggers::{length, listed, shortened};
use crate::alerts::Tally;
use crate::progress::{MAX_PROGRESS, Reports};
use crate::redact::Texts;
use crate::serve::most_connections;
use crate::view;

/// How long a claim waits that does not say so.
const WAIT: Duration = Duration::from_secs(20);

/// The most claims that wait at once, of 1,024 connections: other requests need connections, too.
fn most_waiting() -> usize {
    most_connections() / 4 * 3
}

/// What the routes of pull workers share.
#[derive(Clone, Debug)]
pub struct Pull {
    pub(super) tasks: PullTasks,
    pub(super) tally: Arc<Tally>,
    pub(super) reports: Arc<Reports>,
    /// The term of leases that do not name one.
    lease: Duration,
    /// Places for claims that wait.
    places: Arc<Semaphore>,
}

impl Pull {
    /// For these tasks; the tally counts how their attempts end.
    #[must_use]
    pub fn new(tasks: PullTasks, tally: Arc<Tally>, lease: Duration) -> Self {
        let lease = lease.clamp(MIN_LEASE, MAX_LEASE);
        let places = Arc::new(Semaphore::new(most_waiting()));
        Pull { tasks, tally, reports: Arc::default(), lease, places }
    }

    /// The same for other tasks.
    #[must_use]
    pub(crate) fn after(&self, tasks: PullTasks, lease: Duration) -> Self {
        let lease = lease.clamp(MIN_LEASE, MAX_LEASE);
        Pull { tasks, lease, ..self.clone() }
    }

    /// The tasks.
    pub(crate) fn tasks(&self) -> &PullTasks {
        &self.tasks
    }

    /// Whether a task is one that workers pull, and none of them has called this server of late.
    pub(super) fn lacks_workers(&self, task: &TaskName) -> bool {
        self.tasks.queue_of(task).is_some() && !self.tasks.is_run(task)
    }

    /// Adds what workers have reported of a job's attempts.
    pub(super) fn add_reports(&self, shown: &mut view::Explanation, texts: &Texts) {
        let job = shown.job.id;
        let tokens: Vec<_> =
            shown.attempts.iter().map(|one| (one.token, one.ended_at.is_some())).collect();
        for (token, has_ended) in tokens {
            let lease = Lease { job, token };
            if has_ended && let Some(log) = self.reports.log_of(lease) {
                shown.log_of_attempt(token, texts.hide_all(log));
            } else if !has_ended && shown.job.state == JobState::Running {
                shown.running = self.progress(lease, texts);
            }
        }
    }

    /// A place for a request that waits; none where it does not. Requests that wait leave connections to others.
    pub(super) fn place(&self, wait: Duration) -> Result<Option<SemaphorePermit<'_>>, ApiError> {
        if wait.is_zero() {
            return Ok(None);
        }
        self.places.try_acquire().map(Some).map_err(|_| {
            let most = most_waiting();
            let message =
                format!("{most} claims and results are waited for at this server, the limit");
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "wait", message)
        })
    }

    /// What a worker has reported of an attempt that runs.
    fn progress(&self, lease: Lease, texts: &Texts) -> Option<view::Progress> {
        let reported = self.reports.of_attempt(lease)?;
        let progress = reported.progress.map(|progress| texts.document(progress.as_str()));
        let progress = progress.map(Payload::from_stored).as_ref().map(view::Document::from);
        Some(view::Progress { progress, log: texts.hide_all(reported.log) })
    }

    /// A declared task, as a worker names it.
    fn known(&self, api: &Api, name: &str) -> Result<TaskName, ApiError> {
        let task = TaskName::new(name).ok().filter(|task| api.tasks.contains_key(task));
        task.ok_or_else(|| {
            let pulled = api.tasks.keys().filter(|task| self.tasks.queue_of(task).is_some());
            let names: Vec<&str> = pulled.map(TaskName::as_str).collect();
            let message = format!(
                "no task {:?} is declared in this server's configuration: {}",
                shortened(name),
                listed(&names, "with pull = true")
            );
            ApiError::not_found("task", message)
        })
    }

    fn lease(&self, asked: Option<&str>) -> Result<Duration, ApiError> {
        asked.map_or(Ok(self.lease), |text| length("lease", text))
    }
}

/// A worker's process.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WorkerProcess)]
struct AskedProcess {
    /// A random number that the process chose at its start.
    incarnation: u32,
    /// Its host.
    #[serde(default)]
    host: String,
    /// Its process id.
    #[serde(default)]
    pid: u32,
    /// Its client, and that one's version.
    #[serde(default)]
    version: String,
    /// How many attempts it runs at once at most.
    #[serde(default)]
    slots: u32,
    /// How many attempts it runs now.
    #[serde(default)]
    busy: u32,
    /// How long it has been running, such as `90s`.
    age: Option<String>,
}

impl AskedProcess {
    fn of(self, worker: WorkerId) -> Result<PullProcess, ApiError> {
        let mut process = PullProcess::new(worker, self.incarnation);
        (process.host, process.pid, process.version) = (self.host, self.pid, self.version);
        (process.slots, process.busy) = (self.slots, self.busy);
        process.age = time("process.age", self.age.as_deref().unwrap_or("0s"))?;
        Ok(process)
    }
}

/// A duration that may be zero.
pub(super) fn time(field: &str, text: &str) -> Result<Duration, ApiError> {
    match text.trim() {
        "0" | "0s" | "0ms" => Ok(Duration::ZERO),
        text => length(field, text),
    }
}

pub(super) fn worker(name: &str) -> Result<WorkerId, ApiError> {
    WorkerId::new(name).map_err(|error| ApiError::invalid("worker", error.to_string()))
}

/// A claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Claim)]
struct AskedClaim {
    /// The tasks that the worker runs, up to 100.
    tasks: Vec<String>,
    /// At most this many jobs, up to 1,000: the worker's free slots. 1 by default.
    limit: Option<usize>,
    /// How long to wait where nothing is due, up to `25s`. `20s` by default.
    wait: Option<String>,
    /// The term of the leases, `1s` to `1h`. That of the server's own worker by default.
    lease: Option<String>,
    /// The worker's process.
    process: AskedProcess,
}

/// `POST /v1/workers/{worker}/claim`.
#[utoipa::path(
    post,
    path = "/v1/workers/{worker}/claim",
    tag = "workers",
    operation_id = "workers_claim",
    summary = "Claim due jobs, and wait for some where none are due.",
    description = "",
    params(("worker" = String, Path, description = "The worker's name.")),
    request_body = AskedClaim,
    responses((status = 200, body = view::PulledJobs, description = "Done."), Refused),
)]
pub(super) async fn claim(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::PulledJobs>, ApiError> {
    let worker = worker(&name)?;
    let body = body.read()?;
    let AskedClaim { tasks: names, limit, wait, lease, process } = parse(&body)?;
    let mut tasks = Vec::with_capacity(names.len());
    for name in names {
        let task = api.pull.known(&api, &name)?;
        if !access.grant().works_everywhere() {
            objects::works(access.grant(), api.pull.tasks.queue_of(&task), &task)?;
        }
        if api.pull.tasks.queue_of(&task).is_none() {
            let message =
                format!("this server runs task {task} itself: declare it with pull = true");
            return Err(ApiError::invalid("tasks", message));
        }
        tasks.push(task);
    }
    let mut claim = PullClaim::new(process.of(worker)?, tasks);
    claim.limit = limit.unwrap_or(1);
    claim.wait = wait.map_or(Ok(WAIT), |text| time("wait", &text))?;
    claim.lease = api.pull.lease(lease.as_deref())?;
    let _place = api.pull.place(claim.wait)?;
    let handed = api.pull.tasks.claim(claim).await?;
    Ok(Json(view::PulledJobs::from(&handed.delivered())))
}

/// A lease to renew, and what the worker reports of its attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HeldLease)]
struct AskedLease {
    /// The lease, as the claim returned it.
    lease: String,
    /// How far the attempt is: any JSON, up to 4 KiB.
    #[schema(value_type = view::Document, required = false)]
    progress: Option<Payload>,
    /// New log lines of the attempt. The last 8 KiB are kept.
    #[serde(default)]
    log: Vec<String>,
}

/// A renewal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Renewal)]
struct AskedRenewal {
    /// The term of the leases from now on, `1s` to `1h`.
    lease: Option<String>,
    /// The leases, up to 1,000. None is a heartbeat.
    leases: Vec<AskedLease>,
    /// The worker's process.
    process: AskedProcess,
}

pub(super) fn lease_of(text: &str, list: &str, place: usize) -> Result<PullLease, ApiError> {
    let read = text.parse::<PullLease>();
    read.map_err(|error| ApiError::invalid(&format!("{list}[{place}].lease"), error.to_string()))
}

/// `POST /v1/workers/{worker}/renew`.
#[utoipa::path(
    post,
    path = "/v1/workers/{worker}/renew",
    tag = "workers",
    operation_id = "workers_renew",
    summary = "Extend leases, and report on their attempts.",
    description = "",
    params(("worker" = String, Path, description = "The worker's name.")),
    request_body = AskedRenewal,
    responses((status = 200, body = view::RenewedLeases, description = "Done."), Refused),
)]
pub(super) async fn renew(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::RenewedLeases>, ApiError> {
    let worker = worker(&name)?;
    let body = body.read()?;
    let AskedRenewal { lease: term, leases: asked, process } = parse(&body)?;
    let mut leases = Vec::with_capacity(asked.len());
    for (place, asked) in asked.iter().enumerate() {
        leases.push(lease_of(&asked.lease, "leases", place)?);
        if asked.progress.as_ref().is_some_and(|progress| progress.as_str().len() > MAX_PROGRESS) {
            let message = format!("progress has more than {MAX_PROGRESS} bytes, the limit");
            return Err(ApiError::invalid(&format!("leases[{place}].progress"), message));
        }
    }
    if !access.grant().works_everywhere() {
        for lease in &leases {
            objects::works_on(&api, access.grant(), lease.lease.job).await?;
        }
    }
    let term = api.pull.lease(term.as_deref())?;
    let renewals = api.pull.tasks.renew(&process.of(worker)?, &leases, term).await?;
    let mut shown = Vec::with_capacity(asked.len());
    for ((asked, lease), renewal) in asked.into_iter().zip(&leases).zip(renewals) {
        if renewal.until().is_some() {
            api.pull.reports.add(lease.lease, asked.progress, asked.log);
        }
        shown.push(view::RenewedLease::new(asked.lease, renewal));
    }
    Ok(Json(view::RenewedLeases { leases: shown }))
}

/// A worker that leaves.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Leave)]
struct AskedLeave {
    /// The number of its process.
    incarnation: u32,
}

/// `POST /v1/workers/{worker}/leave`.
#[utoipa::path(
    post,
    path = "/v1/workers/{worker}/leave",
    tag = "workers",
    operation_id = "workers_leave",
    summary = "End the claims of a worker that wait, and remove it from the list.",
    description = "",
    params(("worker" = String, Path, description = "The worker's name.")),
    request_body = AskedLeave,
    responses((status = 200, body = view::LeftWorker, description = "Done."), Refused),
)]
pub(super) async fn leave(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::LeftWorker>, ApiError> {
    let worker = worker(&name)?;
    let body = body.read()?;
    let AskedLeave { incarnation } = parse(&body)?;
    api.pull.tasks.leave(&worker, incarnation).await?;
    Ok(Json(view::LeftWorker {}))
}
