//! Workers elsewhere: they claim jobs by long poll, renew their leases and settle them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use quell::store::{Lease, SettledAs};
use quell::worker::WorkerId;
use quell::worker::pull::{
    MAX_LEASE, MIN_LEASE, PullClaim, PullLease, PullOutcome, PullProcess, PullSettled, PullTasks,
};
use quell::{Payload, TaskName};
use serde::Deserialize;
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use super::Api;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::triggers::{known_task, length};
use crate::alerts::Tally;
use crate::progress::{MAX_PROGRESS, Reports, with_log};
use crate::view;

/// How long a claim waits that does not say so.
const WAIT: Duration = Duration::from_secs(20);

/// The most claims that wait at once: other requests need connections, too.
const MOST_WAITING: usize = 768;

/// What the routes of pull workers share.
#[derive(Clone, Debug)]
pub struct Pull {
    tasks: PullTasks,
    tally: Arc<Tally>,
    reports: Arc<Reports>,
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
        let places = Arc::new(Semaphore::new(MOST_WAITING));
        Pull { tasks, tally, reports: Arc::default(), lease, places }
    }

    /// Whether a task is one that workers pull, and none of them has called this server of late.
    pub(super) fn lacks_workers(&self, task: &TaskName) -> bool {
        self.tasks.queue_of(task).is_some() && !self.tasks.is_run(task)
    }

    /// What a worker has reported of an attempt that runs.
    pub(super) fn progress(&self, lease: Lease) -> Option<view::Progress> {
        let reported = self.reports.of_attempt(lease)?;
        let progress = reported.progress.as_ref().map(view::Document::from);
        Some(view::Progress { progress, log: reported.log.into() })
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
fn time(field: &str, text: &str) -> Result<Duration, ApiError> {
    match text.trim() {
        "0" | "0s" | "0ms" => Ok(Duration::ZERO),
        text => length(field, text),
    }
}

fn worker(name: &str) -> Result<WorkerId, ApiError> {
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
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::PulledJobs>, ApiError> {
    let worker = worker(&name)?;
    let body = body.read()?;
    let AskedClaim { tasks: names, limit, wait, lease, process } = parse(&body)?;
    let mut tasks = Vec::with_capacity(names.len());
    for name in names {
        let (task, _) = known_task(&api, &name)?;
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
    let place = if claim.wait.is_zero() { None } else { Some(api.pull.places.try_acquire()) };
    if let Some(Err(_)) = place {
        let message = format!("{MOST_WAITING} claims wait at this server already, the limit");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "wait", message));
    }
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

fn lease_of(text: &str, list: &str, place: usize) -> Result<PullLease, ApiError> {
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

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PulledOutcome)]
enum AskedOutcome {
    /// Well.
    Succeeded,
    /// With an error.
    Failed,
    /// It is to run again after a delay; no attempt is spent.
    Snoozed,
    /// The worker gives the job back unfinished; no attempt is spent.
    Released,
    /// The handler ended the job without success.
    Cancelled,
}

/// The end of an attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlement)]
pub(super) struct AskedSettlement {
    /// The lease, as the claim returned it. A completion has none.
    lease: Option<String>,
    /// How it ended.
    outcome: AskedOutcome,
    /// Of a success: what the handler returned, up to 256 KiB.
    #[schema(value_type = view::Document, required = false)]
    output: Option<Payload>,
    /// Of a failure: what went wrong.
    error: Option<String>,
    /// Of a failure: whether a retry cannot help.
    permanent: Option<bool>,
    /// Of a failure: retry after this long, such as `30s`, in place of the task's backoff.
    retry_in: Option<String>,
    /// Of a failure: whether it took too long.
    timed_out: Option<bool>,
    /// Of a failure: log lines that came after the last renewal.
    log: Option<Vec<String>>,
    /// Of a snooze: how long to wait, such as `10s`.
    delay: Option<String>,
    /// Of a cancellation: why.
    reason: Option<String>,
}

impl AskedSettlement {
    /// The first member that does not belong to the outcome.
    fn misplaced(&self) -> Option<&'static str> {
        use AskedOutcome::{Cancelled, Failed, Snoozed, Succeeded};
        let members = [
            ("output", self.output.is_some(), Succeeded),
            ("error", self.error.is_some(), Failed),
            ("permanent", self.permanent.is_some(), Failed),
            ("retry_in", self.retry_in.is_some(), Failed),
            ("timed_out", self.timed_out.is_some(), Failed),
            ("log", self.log.is_some(), Failed),
            ("delay", self.delay.is_some(), Snoozed),
            ("reason", self.reason.is_some(), Cancelled),
        ];
        let wrong = members.into_iter().find(|(_, there, of)| *there && *of != self.outcome);
        wrong.map(|(name, _, _)| name)
    }

    /// The settlement; `reports` has the log of the attempt.
    fn read(
        mut self,
        place: usize,
        reports: &Reports,
    ) -> Result<(String, PullLease, PullOutcome), ApiError> {
        let at = format!("settlements[{place}].");
        let name = self.lease.take().ok_or_else(|| missing(&at, "lease"))?;
        let lease = lease_of(&name, "settlements", place)?;
        let outcome = self.outcome(&at, lease.lease, reports)?;
        Ok((name, lease, outcome))
    }

    /// The outcome, of a settlement that does not name a lease itself; `within` is the place of its
    /// members.
    pub(super) fn outcome(
        self,
        within: &str,
        lease: Lease,
        reports: &Reports,
    ) -> Result<PullOutcome, ApiError> {
        let at = |name: &str| format!("{within}{name}");
        if self.lease.is_some() {
            return Err(ApiError::invalid(&at("lease"), "the lease is that of the URL"));
        }
        if let Some(name) = self.misplaced() {
            let message = format!("{name} does not belong to this outcome");
            return Err(ApiError::invalid(&at(name), message));
        }
        let missing = |name: &str| missing(within, name);
        Ok(match self.outcome {
            AskedOutcome::Succeeded => PullOutcome::Succeeded { output: self.output },
            AskedOutcome::Failed => {
                let retry_in =
                    self.retry_in.map(|text| time(&at("retry_in"), &text)).transpose()?;
                let error = self.error.ok_or_else(|| missing("error"))?;
                let before = reports.of_attempt(lease);
                PullOutcome::Failed {
                    error: with_log(error, before, self.log.unwrap_or_default()),
                    permanent: self.permanent.unwrap_or_default(),
                    retry_in,
                    timed_out: self.timed_out.unwrap_or_default(),
                }
            }
            AskedOutcome::Snoozed => {
                let delay = self.delay.ok_or_else(|| missing("delay"))?;
                PullOutcome::Snoozed { delay: time(&at("delay"), &delay)? }
            }
            AskedOutcome::Released => PullOutcome::Released,
            AskedOutcome::Cancelled => {
                PullOutcome::Cancelled { reason: self.reason.ok_or_else(|| missing("reason"))? }
            }
        })
    }
}

fn missing(within: &str, name: &str) -> ApiError {
    ApiError::invalid(&format!("{within}{name}"), format!("{name} is missing"))
}

/// Settlements.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlements)]
struct AskedSettlements {
    /// Up to 1,000.
    settlements: Vec<AskedSettlement>,
}

/// `POST /v1/workers/{worker}/settle`.
#[utoipa::path(
    post,
    path = "/v1/workers/{worker}/settle",
    tag = "workers",
    operation_id = "workers_settle",
    summary = "Report how attempts ended.",
    description = "",
    params(("worker" = String, Path, description = "The worker's name.")),
    request_body = AskedSettlements,
    responses((status = 200, body = view::SettledJobs, description = "Done."), Refused),
)]
pub(super) async fn settle(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::SettledJobs>, ApiError> {
    worker(&name)?;
    let body = body.read()?;
    let AskedSettlements { settlements: asked } = parse(&body)?;
    let mut names = Vec::with_capacity(asked.len());
    let mut ended = Vec::with_capacity(asked.len());
    for (place, settlement) in asked.into_iter().enumerate() {
        let (name, lease, outcome) = settlement.read(place, &api.pull.reports)?;
        names.push(name);
        ended.push((lease, outcome));
    }
    let settled = api.pull.tasks.settle(ended.clone()).await?;
    let mut shown = Vec::with_capacity(names.len());
    for ((name, (lease, outcome)), settled) in names.into_iter().zip(&ended).zip(&settled) {
        api.pull.reports.end(lease.lease);
        count(&api.pull.tally, &api.pull.tasks, lease, outcome, settled);
        shown.push(view::SettledJob::new(name, &settled.became));
    }
    Ok(Json(view::SettledJobs { settled: shown }))
}

/// Counts the end of an attempt, for alerts. A repeat counted before.
pub(super) fn count(
    tally: &Tally,
    tasks: &PullTasks,
    lease: &PullLease,
    outcome: &PullOutcome,
    settled: &PullSettled,
) {
    let is_taken = !settled.is_repeat && settled.became != SettledAs::Refused;
    let counts = outcome.is_success() || outcome.is_failure();
    if let Some(queue) = tasks.queue_of(&lease.task).filter(|_| is_taken && counts) {
        tally.add(queue, &lease.task, outcome.is_failure());
    }
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
