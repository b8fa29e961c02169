//! `GET /v1/overview`, `GET /v1/events` and `/v1/marks`: a server at one glance, once and live.
//!
//! Invariant: however many look, the store is read at most once a second, and its windows every five seconds.

pub(super) mod events;
pub(super) mod marks;
mod moment;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::{Extension, Json};
use quell::job::JobFilter;
use quell::{JobState, Quell};
use tokio::sync::Mutex;

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use crate::recent::Recent;
use crate::view;
use marks::Marks;
use moment::Moment;

/// How old a moment may be that is shown.
const FRESH: Duration = Duration::from_millis(900);
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
}

#[derive(Debug, Default)]
struct Last {
    moment: Option<(Instant, Arc<Moment>)>,
    windows: Option<(Instant, (u64, bool))>,
}

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
        }
    }

    /// The record behind them.
    pub(super) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// A moment that is at most a second old. All who ask meanwhile share it.
    async fn moment(&self) -> quell::Result<Arc<Moment>> {
        let mut last = self.last.lock().await;
        let is_fresh = |(at, _): &&(Instant, Arc<Moment>)| at.elapsed() < FRESH;
        if let Some((_, moment)) = last.moment.as_ref().filter(is_fresh) {
            return Ok(Arc::clone(moment));
        }
        let begun = Instant::now();
        let windows = match last.windows {
            Some((at, windows)) if at.elapsed() < WINDOWS_FRESH => windows,
            _ => self.windows().await?,
        };
        if last.windows.is_none_or(|(at, _)| at.elapsed() >= WINDOWS_FRESH) {
            last.windows = Some((begun, windows));
        }
        let store = self.quell.store();
        let moment = Moment {
            lanes: store.overview(None).await?,
            counts: store.counts().await?,
            queues: store.queues().await?,
            tasks: store.tasks().await?,
            workers: self.quell.workers().await?,
            alerts: store.alerts().await?,
            trouble: store.trouble(),
            activities: self.recent.activities(),
            since: self.recent.since(),
            windows,
        };
        let moment = Arc::new(moment);
        last.moment = Some((begun, Arc::clone(&moment)));
        Ok(moment)
    }

    async fn windows(&self) -> quell::Result<(u64, bool)> {
        let most = JobFilter::MAX_PAGE;
        let filter = JobFilter::default().state(JobState::Scheduled).limit(most);
        let jobs = self.quell.jobs(&filter).await?;
        let open = jobs.iter().filter(|job| job.key.is_some()).count();
        Ok((open as u64, jobs.len() < most))
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
    Ok(Json(moment.shown(access.grant(), api.overviews.marks.shown())))
}

/// The number of each state's jobs, by queue and task.
type ByState = BTreeMap<JobState, u64>;
