//! Health checks: whether the server works (`/v1/healthz`), and whether to send it requests
//! (`/v1/readyz`).
//!
//! They need neither a token nor an allowed host name, as supervisors have none, so they name no file
//! and no error of the store: the log does. A look at the store is shared by all requests of some time,
//! and none waits for longer than a second.
//!
//! Invariant: a check changes nothing, and at most one is in flight.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use quell::Quell;
use quell::store::Trouble;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{info, warn};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::error::{ApiError, Refused};
use crate::view;

/// How long what was found is reported.
const FRESH: Duration = Duration::from_millis(300);
/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_millis(900);
/// How long ago a store that is ready has answered, at most.
const ANSWERED: Duration = Duration::from_secs(5);
/// Between two looks for a store that is lost.
const LOST: Duration = Duration::from_millis(250);

/// The health routes, behind no check of callers.
pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Looks at the store for health checks.
#[derive(Clone, Debug)]
pub struct Health {
    quell: Quell,
    disk: Arc<Mutex<Disk>>,
    answers: Arc<Mutex<Answers>>,
    /// What is in the log.
    logged: Arc<std::sync::Mutex<Option<Trouble>>>,
}

/// What the store knows of its own trouble.
#[derive(Debug, Default)]
struct Disk {
    found: Option<(Instant, Option<Trouble>)>,
    /// A look that has not ended, as at a disk that hangs.
    hangs: Option<JoinHandle<Option<Trouble>>>,
}

/// Whether the store answers.
#[derive(Debug, Default)]
struct Answers {
    asked: Option<Instant>,
    answered: Option<Instant>,
}

/// Why a check fails.
enum Unhealthy {
    Trouble(Trouble),
    Hangs,
    Silent,
}

impl Health {
    /// Looks at the store of a client.
    #[must_use]
    pub fn new(quell: Quell) -> Self {
        Health { quell, disk: Arc::default(), answers: Arc::default(), logged: Arc::default() }
    }

    /// Whether the store may accept, as far as it knows without a call.
    async fn check_disk(&self) -> Result<(), Unhealthy> {
        let Ok(mut disk) = timeout(PATIENCE, self.disk.lock()).await else {
            return Err(Unhealthy::Hangs);
        };
        if let Some((_, found)) = disk.found.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return found.clone().map_or(Ok(()), |trouble| Err(Unhealthy::Trouble(trouble)));
        }
        // By a thread that may wait for the disk.
        let store = Arc::clone(self.quell.store());
        let mut look = disk
            .hangs
            .take()
            .unwrap_or_else(|| tokio::task::spawn_blocking(move || store.trouble()));
        let Ok(found) = timeout(PATIENCE, &mut look).await else {
            disk.hangs = Some(look);
            return Err(Unhealthy::Hangs);
        };
        let found = found.ok().flatten();
        self.log(found.as_ref());
        disk.found = Some((Instant::now(), found.clone()));
        found.map_or(Ok(()), |trouble| Err(Unhealthy::Trouble(trouble)))
    }

    /// Whether the store has answered of late.
    async fn check_answers(&self) -> Result<(), Unhealthy> {
        let Ok(mut answers) = timeout(PATIENCE, self.answers.lock()).await else {
            return Err(Unhealthy::Silent);
        };
        if answers.asked.is_none_or(|at| at.elapsed() >= FRESH) {
            let answer = timeout(PATIENCE, self.quell.store().queues()).await;
            answers.asked = Some(Instant::now());
            match answer {
                Ok(Ok(_)) => answers.answered = answers.asked,
                Ok(Err(error)) => warn!(%error, "store did not answer a health check"),
                Err(_) => warn!(after = ?PATIENCE, "store did not answer a health check"),
            }
        }
        let is_ready = answers.answered.is_some_and(|at| at.elapsed() < ANSWERED);
        if is_ready { Ok(()) } else { Err(Unhealthy::Silent) }
    }

    /// Logs a change.
    fn log(&self, found: Option<&Trouble>) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_some() == found.is_some() {
            return;
        }
        match found {
            Some(why) => warn!(%why, "store accepts nothing, health checks fail"),
            None => info!("store accepts again"),
        }
        *logged = found.cloned();
    }
}

/// Completes once no call of the store can succeed any more.
pub async fn lost(quell: &Quell) -> anyhow::Error {
    loop {
        tokio::time::sleep(LOST).await;
        let store = Arc::clone(quell.store());
        let found = tokio::task::spawn_blocking(move || store.trouble()).await;
        if let Ok(Some(trouble)) = found
            && trouble.is_final()
        {
            return anyhow::anyhow!("the store is lost: {trouble}");
        }
    }
}

impl From<Unhealthy> for ApiError {
    fn from(why: Unhealthy) -> Self {
        let message = match why {
            Unhealthy::Trouble(Trouble::Full(_)) => {
                "the disk of the store is full: free some space, nothing was lost"
            }
            Unhealthy::Trouble(Trouble::Lost(_)) => {
                "the store's file was deleted or replaced: the server ends"
            }
            Unhealthy::Trouble(_) => "the store accepts nothing: the log says why",
            Unhealthy::Hangs => "the disk of the store does not answer",
            Unhealthy::Silent => "the store does not answer: the log says why",
        };
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store", message)
    }
}

fn check_stopping(api: &Api) -> Result<(), ApiError> {
    if !api.stopping.is_cancelled() {
        return Ok(());
    }
    let message = "the server stops: it still answers, and takes no more jobs";
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server", message))
}

/// Whether the server works, for a supervisor.
#[utoipa::path(
    get,
    path = "/v1/healthz",
    tag = "operation",
    operation_id = "server_health",
    summary = "Whether the server works: it does not stop, and its store's disk is not full.",
    description = "It does not ask the store: see `/v1/readyz`. No token is needed.",
    responses((status = 200, body = view::Health, description = "It works."), Refused),
)]
async fn healthz(State(api): State<Api>) -> Result<Json<view::Health>, ApiError> {
    check_stopping(&api)?;
    api.health.check_disk().await?;
    Ok(Json(view::Health { status: "ok".to_owned() }))
}

/// Whether to send the server requests, for a load balancer.
#[utoipa::path(
    get,
    path = "/v1/readyz",
    tag = "operation",
    operation_id = "server_readiness",
    summary = "Whether to send the server requests: it works, and its store answers.",
    description = "A store counts as answering for 5 s after an answer. No token is needed.",
    responses((status = 200, body = view::Health, description = "It is ready."), Refused),
)]
async fn readyz(State(api): State<Api>) -> Result<Json<view::Health>, ApiError> {
    check_stopping(&api)?;
    let (disk, answers) = tokio::join!(api.health.check_disk(), api.health.check_answers());
    disk?;
    answers?;
    Ok(Json(view::Health { status: "ready".to_owned() }))
}
