//! The workers that the store knows (R25).

use axum::Json;
use axum::extract::State;

use super::Api;
use super::error::ApiError;
use crate::view;

/// `GET /v1/workers`.
pub(super) async fn list(State(api): State<Api>) -> Result<Json<view::Workers>, ApiError> {
    let workers = api.quell.workers().await?;
    Ok(Json(view::Workers::from(&workers)))
}
