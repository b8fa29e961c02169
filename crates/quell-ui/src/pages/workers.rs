//! Workers that were seen within the last day; one is drained with a question before (R29).

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, done, page};
use crate::site::Site;
use crate::text::encode;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/workers", get(list))
        .route("/workers/{worker}", get(ask))
        .route("/workers/{worker}/drain", post(drain))
        .route("/workers/{worker}/resume", post(resume))
}

/// `GET /workers`.
async fn list(visit: Visit) -> Answer {
    let found: Value = visit.get("/v1/workers").await?;
    let own = context! { workers => shown(&found["workers"]) };
    page(&visit, "workers", "Workers", "workers", own)
}

/// `GET /workers/{worker}`: what a drain means, with the button.
async fn ask(visit: Visit, Path(name): Path<String>) -> Answer {
    let found: Value = visit.get("/v1/workers").await?;
    let all = found["workers"].as_array().into_iter().flatten();
    let processes: Vec<Value> =
        all.filter(|worker| worker["worker"] == name.as_str()).cloned().collect();
    let is_drained = processes.iter().any(|worker| !worker["drained_since"].is_null());
    let own = context! {
        name => name.as_str(),
        processes => shown(&Value::Array(processes)),
        is_drained,
        here => visit.url(&format!("/workers/{}", encode(&name))),
    };
    page(&visit, "workers", &format!("Worker {name}"), "worker", own)
}

/// `POST /workers/{worker}/drain`.
async fn drain(visit: Visit, Path(name): Path<String>) -> Answer {
    let path = format!("/v1/workers/{}/drain", encode(&name));
    visit.post(&path, visit.by().as_ref()).await?;
    done(&visit, &format!("/workers/{}", encode(&name)), "drained")
}

/// `POST /workers/{worker}/resume`.
async fn resume(visit: Visit, Path(name): Path<String>) -> Answer {
    visit.post(&format!("/v1/workers/{}/resume", encode(&name)), None).await?;
    done(&visit, &format!("/workers/{}", encode(&name)), "resumed")
}
