//! What operators did.

use axum::Router;
use axum::routing::get;
use minijinja::context;
use minijinja::value::Value as Shown;
use serde_json::Value;

use super::PAGE;
use crate::answer::{Answer, page};
use crate::site::Site;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/audit", get(list))
}

/// `GET /audit`.
async fn list(visit: Visit) -> Answer {
    let found: Value = visit.get(&format!("/v1/audit?limit={PAGE}")).await?;
    let entries = found["entries"].as_array().into_iter().flatten();
    let rows: Vec<Shown> = entries.map(row).collect();
    page(&visit, "audit", "Audit", "audit", context! { rows })
}

/// An entry, with the members that it changed.
fn row(entry: &Value) -> Shown {
    let (empty, text) = (serde_json::Map::new(), |value: Option<&Value>| match value {
        None | Some(Value::Null) => "not set".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    });
    let before = entry["before"].as_object().unwrap_or(&empty);
    let after = entry["after"].as_object().unwrap_or(&empty);
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let changed = names.into_iter().filter(|name| before.get(*name) != after.get(*name));
    let changes = changed.map(|name| {
        context! { name, before => text(before.get(name)), after => text(after.get(name)) }
    });
    context! { entry => shown(entry), changes => changes.collect::<Vec<_>>() }
}
