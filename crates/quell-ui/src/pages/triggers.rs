//! Triggers: any id or debounce key leads to the job that has it.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, Refusal, go, with_status};
use crate::api::Call;
use crate::form::Fields;
use crate::site::Site;
use crate::text::encode;
use crate::visit::{Visit, shown};
use crate::{text, view};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/triggers", get(find)).route("/triggers/{id}", get(one))
}

/// `GET /triggers?id=`, or a key and its task: goes to the job, or shows the form again.
async fn find(visit: Visit) -> Answer {
    let query = visit.query();
    if let Some(id) = query.get("id") {
        return look_up(&visit, &Fields::default().with("id", id)).await;
    }
    if query.get("key").is_none() {
        return form(&visit, StatusCode::OK, None).await;
    }
    look_up(&visit, &query.only(&["key", "task"])).await
}

/// `GET /triggers/{id}`: a trigger such as `123.4`, or a job.
async fn one(visit: Visit, Path(id): Path<String>) -> Answer {
    look_up(&visit, &Fields::default().with("id", &id)).await
}

async fn look_up(visit: &Visit, asked: &Fields) -> Answer {
    let reply = visit.ask(Call::get(&format!("/v1/explain?{}", asked.encode()))).await?;
    let is_wrong = matches!(
        reply.status,
        StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST
    );
    if is_wrong {
        let problem = text::sentence(&reply.problem().message);
        return form(visit, reply.status, Some(problem)).await;
    }
    let job = visit.read::<Found>(&reply)?.job.id;
    go(&visit.url(&format!("/jobs/{}", encode(&job))))
}

/// The number of the job: its payload is not read.
#[derive(serde::Deserialize)]
struct Found {
    job: Numbered,
}

#[derive(serde::Deserialize)]
struct Numbered {
    id: String,
}

async fn form(
    visit: &Visit,
    status: StatusCode,
    problem: Option<String>,
) -> Result<axum::response::Response, Refusal> {
    let tasks: Value = visit.get("/v1/tasks").await?;
    let fields = ["id", "task", "key"];
    let own = context! {
        tasks => shown(&tasks["tasks"]),
        given => view::map(fields.map(|name| (name, visit.query().get(name).unwrap_or_default()))),
        problem,
    };
    with_status(visit, status, "triggers", "Find a trigger", "triggers", own)
}
