//! `GET /v1/overview`, `GET /v1/events` and `/v1/marks`: a server at one glance, once and live.
//!
//! Invariant: however many look, the store is read at most once a second, and its windows every five seconds.

pub(super) mod events;
pub(super) mod marks;
mod moment;
pub(super) mod waiting;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use quell::job::JobFilter;
use quell::{JobState, Quell, QueueName, TaskName};
use tokio::sync::{Mutex, Semaphore};

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::metrics::{Found, found, shared};
use crate::recent::Recent;
use crate::view;
use marks::Marks;
use moment::Moment;

/// How old a moment may be that is shown.
const FRESH: Duration = Duration::from_millis(900);
/// How many read the whole record at a time; others wait.
const READERS: usize = 2;
/// How old the number of open windows may be.
const WINDOWS_FRESH: Duration = Duration::from_secs(5);

/// What overviews are made of.
#[derive(Clone, Debug)]
pub struct Overviews {
    quell: Quell,
    recent: Recent,
    marks: Marks,
    last: Arc<Mutex<Last>>,
    viewers: events::Viewers,
    readers: Arc<Semaphore>,
    waiting: waiting::Waiting,
}

#[derive(Debug, Default)]
struct Last {
    /// A failure is shown as long as a moment, so that many who look do not press a store that is in trouble.
    moment: Option<(Instant, Found<Moment>)>,
    windows: Option<(Instant, Windows)>,
}

/// Windows that are open among the newest jobs that wait: the queue and task of each, and whether those are all
/// jobs that wait.
type Windows = Arc<(Vec<(QueueName, TaskName)>, bool)>;

impl Overviews {
    /// Those of a client whose calls are recorded.
    #[must_use]
    pub fn new(quell: Quell, recent: Recent) -> Self {
        Overviews {
            quell,
            recent,
            marks: Marks::default(),
            last: Arc::default(),
            viewers: events::Viewers::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            waiting: waiting::Waiting::default(),
        }
    }

    /// The marks of this server.
    pub(super) fn marks(&self) -> Vec<view::Mark> {
        self.marks.shown()
    }

    /// The windows that were read lately.
    pub(super) fn waiting(&self) -> &waiting::Waiting {
        &self.waiting
    }

    /// The record behind them.
    pub(super) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Reads the whole record apart from other requests; a few callers do so at a time, and others wait.
    ///
    /// # Errors
    /// None that are known, unless what reads panics.
    pub(super) async fn read_record<R: Send + 'static>(
        &self,
        read: impl FnOnce(&Recent) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        let failed = |error: &dyn Display| {
            ApiError::internal(StatusCode::INTERNAL_SERVER_ERROR, "internal", error)
        };
        let permit = Arc::clone(&self.readers).acquire_owned().await;
        let permit = permit.map_err(|error| failed(&error))?;
        let recent = self.recent.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read(&recent)
        });
        reading.await.map_err(|error| failed(&error))
    }

    /// A moment that is at most a second old. All who ask meanwhile share it, or the failure.
    async fn moment(&self) -> quell::Result<Arc<Moment>> {
        let mut last = self.last.lock().await;
        let is_fresh = |(at, _): &&(Instant, Found<Moment>)| at.elapsed() < FRESH;
        if let Some((_, found)) = last.moment.as_ref().filter(is_fresh) {
            return shared(found);
        }
        let found = found(self.read(&mut last).await);
        let answer = shared(&found);
        last.moment = Some((Instant::now(), found));
        answer
    }

    async fn read(&self, last: &mut Last) -> quell::Result<Moment> {
        let windows = match &last.windows {
            Some((at, windows)) if at.elapsed() < WINDOWS_FRESH => Arc::clone(windows),
            _ => {
                let windows = self.windows().await?;
                last.windows = Some((Instant::now(), Arc::clone(&windows)));
                windows
            }
        };
        let store = self.quell.store();
        Ok(Moment {
            lanes: store.overview(None).await?,
            counts: store.counts().await?,
            queues: store.queues().await?,
            tasks: store.tasks().await?,
            workers: self.quell.workers().await?,
            alerts: store.alerts().await?,
            trouble: store.trouble(),
            activities: self.recent.activities(),
            since: self.recent.since(),
            left_out: self.recent.left_out(),
            marks: self.marks.shown(),
            windows,
            whole: OnceLock::new(),
            events: Default::default(),
        })
    }

    async fn windows(&self) -> quell::Result<Windows> {
        let most = JobFilter::MAX_PAGE;
        let filter = JobFilter::default().state(JobState::Scheduled).limit(most);
        let jobs = self.quell.jobs(&filter).await?;
        let open = jobs.iter().filter(|job| job.is_open_window());
        let open = open.map(|job| (job.queue.clone(), job.task.clone())).collect();
        Ok(Arc::new((open, jobs.len() < most)))
    }
}

/// `GET /v1/overview`.
#[utoipa::path(
    get,
    path = "/v1/overview",
    tag = "operation",
    operation_id = "overview_show",
    summary = "Show a server at one glance.",
    description = "What the store has now, and what this server has seen within the last hour and week. It is at \
                   most a second old. A token that is limited to tasks or queues sees the numbers of their jobs \
                   only.",
    responses((status = 200, body = view::Overview, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Result<Json<view::Overview>, ApiError> {
    let moment = api.overviews.moment().await?;
    Ok(Json(moment.shown(access.grant()).into_owned()))
}

/// The number of each state's jobs, by queue and task.
type ByState = BTreeMap<JobState, u64>;
