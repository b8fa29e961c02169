//! The workers that the store knows (R25).

use axum::Json;
use axum::extract::State;

use super::Api;
use super::error::{ApiError, Refused};
use crate::view;

/// `GET /v1/workers`.
#[utoipa::path(
    get,
    path = "/v1/workers",
    tag = "workers",
    operation_id = "workers_list",
    summary = "List the workers that were seen within the last day.",
    description = "",
    responses((status = 200, body = view::Workers, description = "Done."), Refused),
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<view::Workers>, ApiError> {
    let workers = api.quell.workers().await?;
    Ok(Json(view::Workers::from(&workers)))
}
