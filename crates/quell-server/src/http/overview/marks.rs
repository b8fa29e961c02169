//! Marks: moments such as deploys, which the overview lists.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::access::Grant;
use crate::actions::now;
use crate::http::Api;
use crate::http::auth::Access;
use crate::http::body::{JsonBody, parse};
use crate::http::error::{ApiError, Refused};
use crate::view::{self, Caller};

/// How many are kept.
const MOST: usize = 100;
/// The longest name, in bytes.
const LONGEST: usize = 200;

/// The marks of a server. Clones share them; they end with the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(Arc<Mutex<VecDeque<view::Mark>>>);

impl Marks {
    fn add(&self, mark: view::Mark) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.push_front(mark);
        marks.truncate(MOST);
    }

    /// The newest first.
    pub(super) fn shown(&self) -> Vec<view::Mark> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Marks as a caller sees them: who made them is not for one that is limited to tasks or queues.
pub(super) fn seen_by(grant: &Grant, mut marks: Vec<view::Mark>) -> Vec<view::Mark> {
    if grant.is_limited() {
        marks.iter_mut().for_each(|mark| mark.by = Caller::default());
    }
    marks
}

/// A mark to be made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMark {
    /// Such as `deploy 1.4.2`, at most 200 bytes.
    name: String,
}

/// `POST /v1/marks`.
#[utoipa::path(
    post,
    path = "/v1/marks",
    tag = "operation",
    operation_id = "marks_add",
    summary = "Mark this moment, such as a deploy.",
    description = "The overview lists them. The server keeps the last 100 until it ends.",
    request_body = NewMark,
    responses((status = 201, body = view::Mark, description = "Done."), Refused),
)]
pub(in crate::http) async fn add(
    State(api): State<Api>,
    Extension(by): Extension<Caller>,
    body: JsonBody,
) -> Result<(StatusCode, Json<view::Mark>), ApiError> {
    let NewMark { name } = parse(&body.read()?)?;
    let name = name.trim();
    if name.is_empty() || name.len() > LONGEST {
        let length = name.len();
        let message = format!("a name of {length} bytes: give one of 1 to {LONGEST}");
        return Err(ApiError::invalid("name", message));
    }
    let mark = view::Mark { name: name.to_owned(), at: now(), by };
    api.overviews.marks.add(mark.clone());
    Ok((StatusCode::CREATED, Json(mark)))
}

/// `GET /v1/marks`.
#[utoipa::path(
    get,
    path = "/v1/marks",
    tag = "operation",
    operation_id = "marks_list",
    summary = "List the marks, the newest first.",
    description = "",
    responses((status = 200, body = view::Marks, description = "Done."), Refused),
)]
pub(in crate::http) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Json<view::Marks> {
    Json(view::Marks { marks: seen_by(access.grant(), api.overviews.marks.shown()) })
}
