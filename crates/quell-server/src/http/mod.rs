//! The HTTP API.
//!
//! Every request passes `bounds` (time, panics), `auth` (host, origin, token, its right by `rules`) and `objects` (the
//! tasks and queues that a token is limited to), then a route; `audit` records the changes of operators. The
//! modules of routes have the names of their paths; `results` is `/v1/jobs/{id}/result`. `error`
//! makes a response of each failure.

mod actions;
mod alerts;
mod audit;
mod auth;
mod body;
mod bounds;
mod completions;
mod dead;
mod deliveries;
mod error;
mod etag;
mod explain;
mod habits;
mod health;
mod jobs;
mod metrics;
mod names;
mod objects;
mod openapi;
mod overview;
mod peer;
mod policy;
mod proof;
mod pull;
mod queues;
mod quiet;
mod results;
mod rules;
mod schedules;
mod session;
mod settle;
mod sources;
mod tasks;
mod timeline;
mod tokens;
mod triggers;
mod unreadable;
mod what_if;
mod workers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use axum::{Json, Router};
use quell::worker::pull::PullTasks;
use quell::{Quell, TaskName};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{Attempts, Sessions, Tokens};
use crate::actions::Actions;
use crate::alerts::DeclaredAlert;
use crate::audit::Audit;
use crate::config::{Config, DeclaredTask, SessionTimes, TrustedProxies};
use crate::recent::Recent;
use crate::redact::Rules;
use crate::secrets::Secrets;
pub(crate) use body::{MAX_DEPTH, depth, outside_texts};
pub use completions::Completions;
pub use dead::EXPORTED;
use error::ApiError;
pub use health::{Health, lost};
pub use metrics::{Lane, Metrics};
pub use overview::Overviews;
pub use peer::Peer;
pub use proof::Proofs;
pub use pull::Pull;
pub use sources::Sources;

/// How long a request may take, its body included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest body of an import, unless larger ones are allowed everywhere.
pub(crate) const MAX_IMPORT_BYTES: usize = 8 << 20;

/// The state that routes share.
#[derive(Clone, Debug)]
pub struct Api {
    /// The client.
    pub quell: Quell,
    /// The declared tasks.
    pub tasks: Arc<BTreeMap<TaskName, DeclaredTask>>,
    /// What people do not see of the tasks' documents.
    pub rules: Rules,
    /// Jobs for workers elsewhere.
    pub pull: Pull,
    /// Work that targets of calls report later.
    pub completions: Completions,
    /// The webhook sources.
    pub sources: Arc<Sources>,
    /// The declared alerts.
    pub alerts: Arc<[DeclaredAlert]>,
    /// Bulk actions.
    pub actions: Actions,
    /// The metrics page.
    pub metrics: Metrics,
    /// What was seen lately.
    pub overviews: Overviews,
    /// The history that the server records.
    pub proofs: Proofs,
    /// The configuration's own token, which permits everything.
    pub token: Option<Secrets>,
    /// The tokens of a file, each with its scopes.
    pub tokens: Option<Tokens>,
    /// What operators did.
    pub audit: Audit,
    /// Host names that requests may name.
    pub hosts: Arc<[String]>,
    /// The proxies whose headers about their callers are trusted.
    pub proxies: TrustedProxies,
    /// Whether browsers are to use HTTPS only from now on.
    pub strict_transport: bool,
    /// The sessions of browsers.
    pub sessions: Sessions,
    /// How long they last.
    pub session_times: SessionTimes,
    /// Where a trace is shown, with `{trace_id}` in it.
    pub trace_url: Option<String>,
    /// Failed logins.
    pub(crate) attempts: Attempts,
    /// The largest body, in bytes.
    pub max_body: usize,
    /// Looks at the store for health checks.
    pub health: Health,
    /// Fires when the server begins to stop.
    pub stopping: CancellationToken,
}

impl Api {
    /// What there is of a configuration without a server around it: it asks for no token, and an action ends as
    /// it begins, as nothing owns it.
    ///
    /// # Errors
    /// As for [`Metrics::new`].
    pub fn alone(
        quell: Quell,
        config: Config,
        pull: PullTasks,
        completed: PullTasks,
        stopping: CancellationToken,
    ) -> anyhow::Result<Self> {
        let (audit, actions) = (Audit::default(), stopping.clone());
        let metrics = Metrics::new(quell.clone())?;
        metrics.declare(declared(&config.tasks));
        Ok(Api {
            actions: Actions::start(quell.clone(), audit.clone(), actions, &mut JoinSet::new()),
            audit,
            rules: Rules::after(&Rules::default(), &config.tasks),
            tasks: Arc::new(config.tasks),
            pull: Pull::new(pull, Arc::default(), config.lease),
            completions: Completions::new(completed, Arc::default()),
            sources: Arc::new(Sources::new(config.sources)),
            alerts: config.alerts.into(),
            metrics,
            overviews: Overviews::new(quell.clone(), Recent::default()),
            proofs: Proofs::default(),
            token: None,
            tokens: None,
            hosts: hosts(config.listen.addresses(), Vec::new()),
            proxies: TrustedProxies::default(),
            strict_transport: false,
            sessions: Sessions::default(),
            session_times: config.session,
            trace_url: config.trace_url,
            attempts: Attempts::default(),
            max_body: config.max_body,
            health: Health::new(quell.clone()),
            stopping,
            quell,
        })
    }

    /// Whether callers need a token.
    pub(crate) fn asks_for_tokens(&self) -> bool {
        self.token.is_some() || self.tokens.is_some()
    }
}

/// The declared tasks with their queues, as [`Metrics::declare`] takes them.
pub fn declared(tasks: &BTreeMap<TaskName, DeclaredTask>) -> impl Iterator<Item = Lane> {
    tasks.iter().map(|(name, task)| (task.checked.queue().clone(), name.clone()))
}

/// The host names that stand for this server.
#[must_use]
pub fn hosts(addresses: impl Iterator<Item = SocketAddr>, more: Vec<String>) -> Arc<[String]> {
    let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
    let ips = addresses.map(|address| match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    });
    own.into_iter().chain(ips).chain(more).collect()
}

/// The pages for people, and below them the API for all that no page answers.
pub fn router(api: Api) -> Router {
    let routes = api_router(api.clone());
    let page = quell_ui::Page::new(routes.clone()).carry::<Peer>();
    let page = page.login(session::PAGE).logout(session::LOGOUT);
    let page = match &api.trace_url {
        Some(url) => page.traces(url),
        None => page,
    };
    page.into_router()
        .layer(from_fn(bounds::bounds))
        .layer(from_fn_with_state(api, auth::strict))
        .fallback_service(routes)
}

/// All routes of the API behind the checks.
fn api_router(api: Api) -> Router {
    let max_body = api.max_body;
    // They have proofs of their own, or need none.
    let open_routes =
        Router::from(sources::routes().merge(completions::routes()).merge(health::routes()));
    let routes = Router::from(routes(&api, max_body))
        .route("/", get(index))
        .merge(openapi::routes())
        .merge(session::pages())
        .fallback(|| async { ApiError::not_found("path", "no such path") })
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(max_body))
        .layer(from_fn_with_state(api.clone(), auth::admit))
        .merge(open_routes.method_not_allowed_fallback(wrong_method))
        .layer(from_fn(bounds::bounds))
        .layer(from_fn(auth::private))
        .layer(from_fn_with_state(api.clone(), auth::strict));
    #[cfg(feature = "otel")]
    let routes = routes.layer(from_fn(crate::otel::request_span));
    routes.with_state(api)
}

async fn wrong_method() -> ApiError {
    let message = "the path does not support this method";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", message)
}

/// The API's description, as `quell openapi` prints it.
#[must_use]
pub fn description() -> utoipa::openapi::OpenApi {
    let open = sources::routes().merge(completions::routes()).merge(health::routes());
    let mut document = described(0).merge(open).into_openapi();
    rules::describe(&mut document);
    document
}

/// The routes with a description. What operators do is recorded.
fn routes(api: &Api, max_body: usize) -> OpenApiRouter<Api> {
    let record = from_fn_with_state(api.clone(), audit::record);
    callers().merge(operators(max_body).layer(record))
}

/// The same without records, for the description.
fn described(max_body: usize) -> OpenApiRouter<Api> {
    callers().merge(operators(max_body))
}

/// What callers and workers do.
fn callers() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(openapi::head())
        .routes(routes!(triggers::trigger))
        .routes(routes!(pull::claim))
        .routes(routes!(pull::renew))
        .routes(routes!(settle::settle))
        .routes(routes!(pull::leave))
        .routes(routes!(metrics::metrics_page))
        .merge(session::routes())
}

/// What operators read and do; changes are logged with their callers.
fn operators(max_body: usize) -> OpenApiRouter<Api> {
    // Imports and edits have bodies of their own size: a dead job may be larger than any trigger.
    let large = DefaultBodyLimit::max(max_body.max(MAX_IMPORT_BYTES));
    let of_large = OpenApiRouter::new()
        .routes(routes!(dead::redrive_one))
        .routes(routes!(dead::import))
        .layer(large);
    OpenApiRouter::new()
        .routes(routes!(triggers::flush))
        .routes(routes!(triggers::cancel))
        .routes(routes!(jobs::windows))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::counts))
        .routes(routes!(jobs::show, jobs::patch))
        .routes(routes!(jobs::run))
        .routes(routes!(results::result))
        .routes(routes!(jobs::cancel))
        .routes(routes!(explain::explain))
        .routes(routes!(actions::list, actions::begin))
        .routes(routes!(actions::show, actions::stop))
        .routes(routes!(dead::list))
        .routes(routes!(dead::causes))
        .routes(routes!(dead::export))
        .routes(routes!(dead::redrive))
        .routes(routes!(dead::discard))
        .routes(routes!(dead::discard_one))
        .routes(routes!(unreadable::list))
        .routes(routes!(unreadable::restore))
        .merge(of_large)
        .routes(routes!(queues::list))
        .routes(routes!(queues::show, queues::put, queues::patch, queues::delete))
        .routes(routes!(queues::partitions))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(tasks::list))
        .routes(routes!(tasks::show, tasks::put, tasks::patch))
        .routes(routes!(policy::show))
        .routes(routes!(tasks::pause))
        .routes(routes!(tasks::resume))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::show, schedules::set, schedules::delete))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::run))
        .routes(routes!(schedules::backfill))
        .routes(routes!(schedules::ticks))
        .routes(routes!(workers::list))
        .routes(routes!(workers::drain))
        .routes(routes!(workers::resume))
        .routes(routes!(deliveries::list))
        .routes(routes!(overview::show))
        .routes(routes!(overview::events::events))
        .routes(routes!(overview::marks::list, overview::marks::add))
        .routes(routes!(timeline::timeline))
        .routes(routes!(what_if::show))
        .routes(routes!(habits::show))
        .routes(routes!(proof::show))
        .routes(routes!(alerts::list))
        .routes(routes!(alerts::forget))
        .routes(routes!(audit::list))
        .routes(routes!(tokens::list, tokens::add))
        .routes(routes!(tokens::rotate))
        .routes(routes!(tokens::revoke))
}

/// What this is, and where to go on, for people who open the address.
async fn index() -> Json<serde_json::Value> {
    Json(serde_json::json!({
        "name": "quell",
        "version": env!("CARGO_PKG_VERSION"),
        "reference": openapi::PAGE,
        "openapi": openapi::JSON,
        "health": "/v1/healthz",
        "ready": "/v1/readyz",
        "metrics": "/metrics",
    }))
}
