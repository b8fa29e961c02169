//! Ends of attempts that workers elsewhere report, each by itself: one that cannot be taken fails no
//! other.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use quell::store::{Lease, SettledAs};
use quell::worker::pull::{MAX_JOBS, PullLease, PullOutcome, PullSettled, PullTasks};
use quell::{ErrorKind, Payload};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, MAX_DEPTH, depth, malformed, parse};
use super::error::{ApiError, Refused};
use super::objects;
use super::pull::{lease_of, time, worker};
use super::triggers::delay;
use crate::alerts::Tally;
use crate::progress::{Reports, with_log};
use crate::view;

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
    /// Log lines that came after the last renewal. The last 8 KiB are kept.
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
            ("delay", self.delay.is_some(), Snoozed),
            ("reason", self.reason.is_some(), Cancelled),
        ];
        let wrong = members.into_iter().find(|(_, there, of)| *there && *of != self.outcome);
        wrong.map(|(name, _, _)| name)
    }

    /// The settlement; `reports` has the log of the attempt.
    fn read(mut self, place: usize, reports: &Reports) -> Result<Ended, ApiError> {
        let at = format!("settlements[{place}].");
        let name = self.lease.take().ok_or_else(|| missing(&at, "lease"))?;
        let lease = lease_of(&name, "settlements", place)?;
        let log = self.log.clone().unwrap_or_default();
        let outcome = self.outcome(&at, lease.lease, reports)?;
        Ok(Ended { place, name, lease, outcome, log })
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
                let retry_in = self.retry_in.map(|text| later(&at("retry_in"), &text));
                let retry_in = retry_in.transpose()?;
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
                PullOutcome::Snoozed { delay: later(&at("delay"), &delay)? }
            }
            AskedOutcome::Released => PullOutcome::Released,
            AskedOutcome::Cancelled => {
                PullOutcome::Cancelled { reason: self.reason.ok_or_else(|| missing("reason"))? }
            }
        })
    }
}

/// How long a job waits, which may be no time.
fn later(field: &str, text: &str) -> Result<Duration, ApiError> {
    delay(field, time(field, text)?)
}

fn missing(within: &str, name: &str) -> ApiError {
    ApiError::invalid(&format!("{within}{name}"), format!("{name} is missing"))
}

/// One settlement of a call that can be sent to the store.
struct Ended {
    /// Its place in the call.
    place: usize,
    /// Its lease as the worker wrote it.
    name: String,
    lease: PullLease,
    outcome: PullOutcome,
    log: Vec<String>,
}

/// Settlements.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Settlements)]
struct AskedSettlements {
    /// Up to 1,000.
    #[schema(value_type = Vec<AskedSettlement>)]
    settlements: Vec<Box<RawValue>>,
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
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::SettledJobs>, ApiError> {
    worker(&name)?;
    let body = body.read_of_any_depth()?;
    let AskedSettlements { settlements: asked } = parse(&body)?;
    if !(1..=MAX_JOBS).contains(&asked.len()) {
        let message = format!("settlements has {} settlements: give 1 to {MAX_JOBS}", asked.len());
        return Err(ApiError::invalid("settlements", message));
    }
    let (mut ended, mut shown) = (Vec::with_capacity(asked.len()), Vec::new());
    let mut first_refusal = None;
    for (place, text) in asked.iter().enumerate() {
        match read(text, place, &api.pull.reports) {
            Ok(settlement) => ended.push(settlement),
            Err(error) => {
                shown.push((place, view::SettledJob::refused(lease_in(text), (&error).into())));
                first_refusal.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first_refusal.filter(|_| ended.is_empty()) {
        return Err(error);
    }
    if !access.grant().works_everywhere() {
        for one in &ended {
            objects::works_on(&api, access.grant(), one.lease.lease.job).await?;
        }
    }
    for one in &mut ended {
        one.outcome = redacted(&api, &one.lease, one.outcome.clone()).await?;
    }
    let sent = ended.iter().map(|one| (one.lease.clone(), one.outcome.clone())).collect();
    let settled = api.pull.tasks.settle(sent).await?;
    shown.extend(ended.into_iter().zip(settled).map(|(one, settled)| taken(&api, one, settled)));
    shown.sort_by_key(|(place, _)| *place);
    Ok(Json(view::SettledJobs { settled: shown.into_iter().map(|(_, one)| one).collect() }))
}

/// An outcome whose text does not repeat what the rules of its task hide.
pub(super) async fn redacted(
    api: &Api,
    lease: &PullLease,
    outcome: PullOutcome,
) -> Result<PullOutcome, ApiError> {
    let Some(redact) = api.rules.of(&lease.task) else { return Ok(outcome) };
    if !matches!(outcome, PullOutcome::Failed { .. } | PullOutcome::Cancelled { .. }) {
        return Ok(outcome);
    }
    let Some(job) = api.quell.job(lease.lease.job).await? else { return Ok(outcome) };
    let texts = redact.texts(&job.payload);
    Ok(match outcome {
        PullOutcome::Failed { error, permanent, retry_in, timed_out } => {
            PullOutcome::Failed { error: texts.hide(error), permanent, retry_in, timed_out }
        }
        PullOutcome::Cancelled { reason } => PullOutcome::Cancelled { reason: texts.hide(reason) },
        other => other,
    })
}

/// One settlement, or what is wrong with it.
fn read(text: &RawValue, place: usize, reports: &Reports) -> Result<Ended, ApiError> {
    let at = format!("settlements[{place}]");
    if depth(text.get().as_bytes()) > MAX_DEPTH {
        let message = format!("{at} has more than {MAX_DEPTH} nested levels, the limit");
        return Err(ApiError::invalid(&at, message));
    }
    let mut source = serde_json::Deserializer::from_str(text.get());
    let asked: AskedSettlement =
        serde_path_to_error::deserialize(&mut source).map_err(|error| {
            let within = error.path().to_string();
            let path = if within == "." { at } else { format!("{at}.{within}") };
            malformed(&path, error.inner())
        })?;
    asked.read(place, reports)
}

/// The lease that a settlement names, where it is wrong in another way.
fn lease_in(text: &RawValue) -> String {
    #[derive(Deserialize)]
    struct Named {
        lease: String,
    }
    serde_json::from_str(text.get()).map(|Named { lease }| lease).unwrap_or_default()
}

/// The answer to a settlement, once the store has taken it or failed for it alone.
fn taken(
    api: &Api,
    ended: Ended,
    settled: quell::Result<PullSettled>,
) -> (usize, view::SettledJob) {
    let Ended { place, name, lease, outcome, log } = ended;
    let shown = match settled {
        Ok(settled) => {
            // A failure has its log in its error.
            let kept = settled.became != SettledAs::Refused && !outcome.is_failure();
            api.pull.reports.end(lease.lease, kept.then_some(log));
            count(&api.pull.tally, &api.pull.tasks, &lease, &outcome, &settled);
            view::SettledJob::new(name, &settled.became)
        }
        Err(error) => {
            let is_invalid = error.kind() == ErrorKind::Invalid;
            let error = view::SettlementError::from(&ApiError::from(error));
            if is_invalid {
                view::SettledJob::refused(name, error)
            } else {
                view::SettledJob::unknown(name, error)
            }
        }
    };
    (place, shown)
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
