//! `GET /v1/events`: the overview each second, as server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::http::Api;
use crate::http::auth::Access;
use crate::http::error::{ApiError, Refused};

/// The most viewers at once.
const MOST_VIEWERS: usize = 1_000;
/// Between two events.
const INTERVAL: Duration = Duration::from_secs(1);

/// The places of viewers.
#[derive(Clone, Debug)]
pub(super) struct Viewers(Arc<Semaphore>);

impl Default for Viewers {
    fn default() -> Self {
        Viewers(Arc::new(Semaphore::new(MOST_VIEWERS)))
    }
}

/// A viewer.
struct Viewer {
    api: Api,
    access: Access,
    next: Instant,
    /// Whether its first event is to come, which has all minutes.
    is_first: bool,
    /// Completes when the stream ends: the server stops, or its token or session has ended.
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: OwnedSemaphorePermit,
}

async fn ended(api: Api, access: Access) {
    tokio::select! {
        () = api.stopping.cancelled() => {}
        () = access.ended(&api) => {}
    }
}

impl Viewer {
    /// The next event; none where the stream ends.
    async fn event(&mut self) -> Option<Event> {
        tokio::select! {
            () = sleep_until(self.next) => {}
            () = &mut self.ended => return None,
        }
        self.next = Instant::now() + INTERVAL;
        let overviews = &self.api.overviews;
        match overviews.moment().await {
            Ok(moment) => {
                let json = moment.event(self.access.grant(), self.is_first).ok()?;
                self.is_first = false;
                Some(Event::default().event("overview").data(json))
            }
            Err(error) => {
                let text = serde_json::json!({ "message": error.to_string() });
                Event::default().event("trouble").json_data(&text).ok()
            }
        }
    }
}

/// `GET /v1/events`.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "operation",
    operation_id = "overview_events",
    summary = "Follow the overview as server-sent events.",
    description = "An event `overview` each second, as `GET /v1/overview` answers, with all minutes of each task in the first event and two in the next ones; \
                   an event `trouble` with a `message` where the store does not answer. The stream ends with the \
                   server, the token or the session. At most 1,000 callers at once follow it.",
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "The stream."),
        Refused
    ),
)]
pub(in crate::http) async fn events(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Result<Response, ApiError> {
    let places = Arc::clone(&api.overviews.viewers.0);
    let Ok(place) = places.try_acquire_owned() else {
        let message =
            format!("{MOST_VIEWERS} callers follow already: ask GET /v1/overview instead");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "events", message));
    };
    let ended = Box::pin(ended(api.clone(), access.clone()));
    let viewer = Viewer { api, access, next: Instant::now(), is_first: true, ended, _place: place };
    let events = unfold(viewer, |mut viewer| async move {
        let event = viewer.event().await?;
        Some((Ok::<_, Infallible>(event), viewer))
    });
    let headers = [("cache-control", "no-store"), ("x-accel-buffering", "no")];
    Ok((headers, Sse::new(events).keep_alive(KeepAlive::default())).into_response())
}
