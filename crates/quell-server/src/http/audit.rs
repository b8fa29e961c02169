//! Records what operators do, and shows the newest of it.

use std::time::Instant;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use quell::queue::{QueueInfo, TaskInfo};
use quell::{QueueName, TaskName};
use serde_json::Value;

use super::Api;
use super::auth::{Access, name_of};
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use super::objects::param;
use super::peer::Client;
use super::rules::{self, Needs};
use crate::access::Right;
use crate::actions::now;
use crate::view::{self, AuditEntry, Caller};

/// The most entries of an answer.
const MOST: usize = 200;

/// The most characters of a refused request's path that are kept.
const MAX_REFUSED_PATH: usize = 256;

/// How many jobs a request has changed, as its handler says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count(pub(super) u64);

/// Records each request that changes something, once it is answered.
pub(super) async fn record(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let by = request.extensions().get::<Caller>().cloned().unwrap_or_default();
    let operation = request.extensions().get::<Access>().map_or("", |access| access.operation);
    let of = Of::request(operation, &mut request).await;
    let before = of.shown(&api).await;
    let answer = next.run(request).await;
    let after = if answer.status().is_success() { of.shown(&api).await } else { None };
    api.audit.record(AuditEntry {
        at: now(),
        by,
        operation: operation.to_owned(),
        method,
        path,
        status: answer.status().as_u16(),
        count: answer.extensions().get::<Count>().map(|Count(count)| *count),
        before: before.filter(|_| answer.status().is_success()),
        after,
        suppressed: None,
    });
    answer
}

/// Records a refused request, if it is for operators or administrators.
pub(super) fn refused(api: &Api, client: &Client, request: &Request, refusal: &ApiError) {
    let status = refusal.status();
    if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return;
    }
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let Some((operation, rule)) = rules::of_request(path, request.method()) else { return };
    if !matches!(rule.needs, Needs::Right(Right::Operate | Right::Admin)) {
        return;
    }
    let name = name_of(api, request.headers());
    let by = Caller { peer: client.shown.clone(), token: name.is_some(), name };
    let path: String = request.uri().path().chars().take(MAX_REFUSED_PATH).collect();
    let (method, entry) = (request.method().as_str(), entry(by, operation, status));
    api.audit.refuse(AuditEntry { method: method.to_owned(), path, ..entry }, Instant::now());
}

/// Records a login that failed.
pub(super) fn failed_login(api: &Api, client: &Client) {
    let by = Caller { peer: client.shown.clone(), token: false, name: None };
    api.audit.refuse(entry(by, "session_begin", StatusCode::UNAUTHORIZED), Instant::now());
}

/// Records the begin or the end of a session.
pub(super) fn session(api: &Api, by: Caller, operation: &str) {
    api.audit.record(entry(by, operation, StatusCode::OK));
}

/// An entry about sessions.
fn entry(by: Caller, operation: &str, status: StatusCode) -> AuditEntry {
    AuditEntry {
        at: now(),
        by,
        operation: operation.to_owned(),
        method: if operation == "session_end" { "DELETE" } else { "POST" }.to_owned(),
        path: "/v1/session".to_owned(),
        status: status.as_u16(),
        count: None,
        before: None,
        after: None,
        suppressed: None,
    }
}

/// What a request changes: its settings are recorded.
enum Of {
    Queue(String),
    Task(String),
    Schedule(String),
    Other,
}

impl Of {
    async fn request(operation: &str, request: &mut Request) -> Of {
        let kind = operation.split_once('_').map(|(kind, _)| kind);
        match (kind, param(request, "task").await, param(request, "name").await) {
            (Some("queues" | "tasks"), Some(task), _) => Of::Task(task),
            (Some("queues"), None, Some(name)) => Of::Queue(name),
            (Some("schedules"), None, Some(name)) => Of::Schedule(name),
            _ => Of::Other,
        }
    }

    /// Its settings; nothing where they cannot be read.
    async fn shown(&self, api: &Api) -> Option<Value> {
        match self {
            Of::Queue(name) => {
                let name = QueueName::new(name).ok()?;
                let settings = api.quell.queue(name.as_str()).settings().await.ok()??;
                serde_json::to_value(view::Queue::from(&QueueInfo::new(name, settings))).ok()
            }
            Of::Task(name) => {
                let name = TaskName::new(name).ok()?;
                let settings = api.quell.task_settings(&name).await.ok()?;
                serde_json::to_value(view::Task::from(&TaskInfo::new(name, settings))).ok()
            }
            Of::Schedule(name) => {
                let known = api.quell.schedules().await.ok()?;
                let info = known.iter().find(|info| info.schedule.name.as_str() == name)?;
                let mut shown = serde_json::to_value(view::Schedule::from(info)).ok()?;
                // It may hold what the audit must not.
                for member in ["payload", "key"] {
                    shown.as_object_mut()?.remove(member);
                }
                Some(shown)
            }
            Of::Other => None,
        }
    }
}

/// `GET /v1/audit?limit=`.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "operation",
    operation_id = "audit_list",
    summary = "List what operators did through this server since it started, the newest first.",
    description = "The file of `server.audit_file` has all of it.",
    params(("limit" = Option<u32>, Query, description = "At most this many, up to 200.")),
    responses((status = 200, body = view::AuditEntries, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::AuditEntries>, ApiError> {
    let mut query = Parameters::read(query)?;
    let limit = query.take_limit(MOST)?;
    query.end()?;
    Ok(Json(view::AuditEntries { entries: api.audit.newest(limit.unwrap_or(50)) }))
}
