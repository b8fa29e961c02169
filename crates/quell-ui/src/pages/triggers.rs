//! Triggers: any id or key leads to the job that covered it.
//!
//! One text may be a job, a trigger and a key of three kinds: the API is asked for each. What leads to one
//! job goes there; several jobs are a choice.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;
use minijinja::context;
use serde::Deserialize;
use serde_json::Value;

use crate::answer::{Answer, Refusal, go, with_status};
use crate::api::{Call, Reply};
use crate::form::Fields;
use crate::site::Site;
use crate::text::{encode, sentence};
use crate::visit::{Visit, shown};

/// What a text may be: the API's name of it, and how the page calls it.
const KINDS: [(&str, &str); 4] = [
    ("id", "Job or trigger"),
    ("key", "Debounce key, its newest job"),
    ("idempotency_key", "Idempotency key"),
    ("dedup_key", "Dedup key"),
];

/// Those that a job's page does not show otherwise.
const KEYS: [&str; 2] = ["idempotency_key", "dedup_key"];

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/triggers", get(find)).route("/triggers/{id}", get(one))
}

/// `GET /triggers?find=`, or one of `id`, `key`, `idempotency_key` and `dedup_key`: goes to the job, shows
/// which jobs it may be, or shows the form again.
async fn find(visit: Visit) -> Answer {
    let query = visit.query();
    let task = query.only(&["task"]);
    if query.get("find").is_some() {
        let (mut asked, whole) = (Vec::new(), query.whole("find"));
        for (name, _) in KINDS {
            // Spaces at the ends of a key count.
            let value = if name == "id" { whole.trim() } else { whole };
            asked.push((name, Fields::default().with(name, value)));
        }
        return look_up(&visit, &task, asked).await;
    }
    let named = KINDS.iter().find(|(name, _)| query.get(name).is_some());
    match named {
        Some((name, _)) => look_up(&visit, &task, vec![(*name, query.only(&[*name]))]).await,
        None => form(&visit, StatusCode::OK, Found::default()).await,
    }
}

/// `GET /triggers/{id}`: a trigger such as `123.4`, or a job.
async fn one(visit: Visit, Path(id): Path<String>) -> Answer {
    look_up(&visit, &Fields::default(), vec![("id", Fields::default().with("id", &id))]).await
}

/// What was found, or why nothing was.
#[derive(Default)]
struct Found {
    choices: Vec<(&'static str, Covering)>,
    /// The key of a kind that a job's page does not have.
    by: Option<Fields>,
    problem: Option<(StatusCode, String)>,
    /// How much the problem says.
    rank: u8,
}

/// The numbers and names of a job: its payload is not read.
#[derive(Deserialize)]
struct Explained {
    job: Covering,
}

#[derive(Deserialize)]
struct Covering {
    id: String,
    task: String,
    queue: String,
    state: String,
    triggers: u64,
    first_at: Option<String>,
}

async fn look_up(visit: &Visit, task: &Fields, asked: Vec<(&'static str, Fields)>) -> Answer {
    let mut found = Found::default();
    for (name, fields) in asked {
        // An id has its task.
        let fields = if name == "id" { fields } else { fields.and(task) };
        let reply = visit.ask(Call::get(&format!("/v1/explain?{}", fields.encode()))).await?;
        if found.add(visit, name, &reply)? && KEYS.contains(&name) {
            found.by = Some(fields.only(&[name]));
        }
    }
    let jobs: std::collections::BTreeSet<&str> =
        found.choices.iter().map(|(_, job)| job.id.as_str()).collect();
    match (jobs.len(), jobs.first()) {
        (1, Some(job)) => {
            let by = found.by.as_ref().map_or_else(String::new, |by| format!("?{}", by.encode()));
            go(&visit.url(&format!("/jobs/{}{by}", encode(job))))
        }
        (0, _) => {
            let status =
                found.problem.as_ref().map_or(StatusCode::NOT_FOUND, |(status, _)| *status);
            form(visit, status, found).await
        }
        (_, _) => form(visit, StatusCode::OK, found).await,
    }
}

impl Found {
    /// Takes an answer; whether it leads to a job.
    fn add(&mut self, visit: &Visit, name: &'static str, reply: &Reply) -> Result<bool, Refusal> {
        let is_wrong = matches!(
            reply.status,
            StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST
        );
        if !is_wrong {
            let Explained { job } = visit.read(reply)?;
            self.choices.push((label(name), job));
            return Ok(true);
        }
        let problem = reply.problem();
        // What is known of a job that is gone says more than that there is none, and that says more than
        // that a text is no id.
        let rank = match (reply.status, problem.field.as_deref()) {
            (StatusCode::NOT_FOUND, Some("job")) => 2,
            (StatusCode::NOT_FOUND, _) => 1,
            (_, _) => 0,
        };
        if self.problem.is_none() || rank > self.rank {
            self.rank = rank;
            self.problem = Some((reply.status, sentence(&problem.message)));
        }
        Ok(false)
    }
}

/// The key that led to a job's page, with its kind, if it does lead there.
pub(super) async fn led_by(
    visit: &Visit,
    job: &str,
    task: &str,
) -> Result<Option<(&'static str, String)>, Refusal> {
    let query = visit.query();
    let Some(name) = KEYS.into_iter().find(|name| query.get(name).is_some()) else {
        return Ok(None);
    };
    let asked = query.only(&[name]).with("task", task).encode();
    let reply = visit.ask(Call::get(&format!("/v1/explain?{asked}"))).await?;
    if !reply.status.is_success() {
        return Ok(None);
    }
    let found: Explained = visit.read(&reply)?;
    Ok((found.job.id == job).then(|| (label(name), query.whole(name).to_owned())))
}

fn label(name: &str) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == name).map_or("", |(_, label)| *label)
}

async fn form(
    visit: &Visit,
    status: StatusCode,
    found: Found,
) -> Result<axum::response::Response, Refusal> {
    let tasks: Value = visit.get("/v1/tasks?limit=200").await?;
    let query = visit.query();
    let names = ["find", "id", "key", "idempotency_key", "dedup_key"];
    let given = names.into_iter().find(|name| query.get(name).is_some());
    let partition = query.get("find").filter(|_| found.choices.is_empty());
    let partition = of_partition(visit, partition).await?;
    let choices = found.choices.iter().map(|(kind, job)| {
        let Covering { id, task, queue, state, triggers, first_at } = job;
        context! { kind => *kind, id, task, queue, state, triggers, first_at }
    });
    let own = context! {
        tasks => shown(&tasks["tasks"]),
        find => given.map_or("", |name| query.whole(name)),
        task => query.get("task").unwrap_or_default(),
        problem => found.problem.map(|(_, problem)| problem).filter(|_| found.choices.is_empty()),
        choices => choices.collect::<Vec<_>>(),
        partition,
    };
    with_status(visit, status, "triggers", "Find a trigger", "triggers", own)
}

/// The list of jobs of a partition, such as a customer, where there is one of this name.
async fn of_partition(visit: &Visit, name: Option<&str>) -> Result<Option<String>, Refusal> {
    let Some(name) = name else { return Ok(None) };
    let jobs = format!("/jobs?partition={}", encode(name));
    let reply = visit.ask(Call::get(&format!("/v1{jobs}&limit=1"))).await?;
    if !reply.status.is_success() {
        return Ok(None);
    }
    let page: Value = visit.read(&reply)?;
    let is_any = page["jobs"].as_array().is_some_and(|jobs| !jobs.is_empty());
    Ok(is_any.then(|| visit.url(&jobs)))
}
