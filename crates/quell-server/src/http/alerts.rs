//! Alerts over HTTP: what is watched, what is raised, and forgetting one (R27).

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use quell::alert::{AlertName, AlertRow};

use super::Api;
use super::error::{ApiError, Refused};
use crate::view;

/// `GET /v1/alerts`: those that this server declares, and those that others left in the store.
#[utoipa::path(
    get,
    path = "/v1/alerts",
    tag = "alerts",
    operation_id = "alerts_list",
    summary = "List alerts with their values and states.",
    description = "",
    responses((status = 200, body = view::Alerts, description = "Done."), Refused),
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<view::Alerts>, ApiError> {
    let rows = api.quell.store().alerts().await?.into_iter();
    let mut rows: BTreeMap<AlertName, AlertRow> = rows.map(|row| (row.name.clone(), row)).collect();
    let mut shown = Vec::new();
    for declared in &*api.alerts {
        let row = rows.remove(&declared.alert.name);
        shown.push(view::Alert::new(Some(&declared.alert), row.as_ref()));
    }
    shown.extend(rows.values().map(|row| view::Alert::new(None, Some(row))));
    Ok(Json(view::Alerts { alerts: shown }))
}

/// `DELETE /v1/alerts/{name}`: removes its state and the notices that wait for a sink. A declared
/// alert begins again.
#[utoipa::path(
    delete,
    path = "/v1/alerts/{name}",
    tag = "alerts",
    operation_id = "alerts_forget",
    summary = "Remove the record of an alert. A declared one begins again.",
    description = "",
    params(
        ("name" = String, Path, description = "The alert."),
    ),
    responses((status = 200, body = view::ForgottenAlert, description = "Done."), Refused),
)]
pub(super) async fn forget(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::ForgottenAlert>, ApiError> {
    let name = AlertName::new(name)?;
    loop {
        let rows = api.quell.store().alerts().await?;
        let Some(row) = rows.into_iter().find(|row| row.name == name) else {
            return Err(ApiError::not_found(
                "name",
                "the store has no state of an alert of this name",
            ));
        };
        if api.quell.store().set_alert(&name, row.version, None).await? {
            return Ok(Json(view::ForgottenAlert { alert: name, forgotten: true }));
        }
    }
}
