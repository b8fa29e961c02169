//! Tokens, scopes and limits: every operation with every scope, two tenants, and what is recorded of operators.

use std::collections::BTreeMap;
use std::path::PathBuf;

use quell::JobState;
use quell_server::access::{Limits, NewToken, Right, Tokens};
use quell_server::http::description;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::served::{Served, answer, serve_with};

const TASKS: &str = r#"
[tasks."acme.mail"]
queue = "acme"
key = "{{ user }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }
[tasks."acme.dies"]
queue = "acme"
retry = { max_attempts = 1 }
exec = { command = ["false"] }
[tasks."acme.secret"]
queue = "acme"
redact = ["/user"]
retry = { max_attempts = 1 }
exec = { command = ["false"] }
[tasks."umbrella.mail"]
queue = "umbrella"
key = "{{ user }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }
[tasks."umbrella.dies"]
queue = "umbrella"
retry = { max_attempts = 1 }
exec = { command = ["false"] }
[tasks."acme.pulled"]
queue = "acme"
pull = true
[queues.acme]
concurrency = 3
[queues.umbrella]
concurrency = 4
[schedules.acme]
task = "acme.mail"
every = "24h"
payload = { user = "s" }
[schedules.umbrella]
task = "umbrella.mail"
every = "24h"
payload = { user = "s" }
"#;

/// A server with a file of tokens, and the tokens by name.
struct Scene {
    served: Served,
    tokens: Tokens,
    shown: BTreeMap<String, String>,
    folder: TempDir,
}

impl Scene {
    async fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.json");
        Tokens::make(&file).unwrap();
        let audit = folder.path().join("audit.jsonl");
        let secret = folder.path().join("secret");
        crate::served::write_secret(&secret, "the secret of webhooks");
        let source = |name: &str, task: &str| {
            let how = "verify = \"github\"";
            format!("[sources.{name}]\n{how}\nsecret_file = {secret:?}\ntask = \"{task}\"\n")
        };
        let sources = source("acme", "acme.mail")
            + &source("umbrella", "umbrella.dies")
            + &source("any", "{{ headers['x-task'] }}");
        let tables = format!("{TASKS}{sources}");
        let server = format!("tokens = {file:?}\naudit_file = {audit:?}");
        let served = serve_with(&server, &tables).await;
        let tokens = Tokens::open(&file).unwrap();
        let mut scene = Scene { served, tokens, shown: BTreeMap::new(), folder };
        for right in Right::ALL {
            scene.add(right.name(), &[right.name()], &[], &[]);
        }
        scene
    }

    fn add(&mut self, name: &str, scopes: &[&str], tasks: &[&str], queues: &[&str]) {
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let new = NewToken {
            name: name.to_owned(),
            scopes: scopes.iter().map(|text| text.parse().unwrap()).collect(),
            limits: Limits { tasks: all(tasks), queues: all(queues) },
            expires_at: None,
        };
        let made = self.tokens.add(new).unwrap();
        self.shown.insert(name.to_owned(), made.token);
    }

    /// Waits until the server has read the file as it is now.
    async fn known(&self, name: &str) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while self.ask(name, Method::GET, "/v1/reference?x", "").await.0 == 401
            || self.ask(name, Method::GET, "/nosuch", "").await.0 == 401
        {
            assert!(std::time::Instant::now() < deadline, "{name} is never known");
            tokio::task::yield_now().await;
        }
    }

    async fn ask(&self, name: &str, method: Method, path: &str, body: &str) -> (u16, Value) {
        let mut request = self.served.request(method, path);
        if let Some(token) = self.shown.get(name) {
            request = request.bearer_auth(token);
        }
        if !body.is_empty() {
            request = request.header("content-type", "application/json").body(body.to_owned());
        }
        answer(request.send().await.unwrap()).await
    }

    async fn triggered(&self, task: &str, payload: &Value) -> String {
        let body = json!({ "payload": payload }).to_string();
        let path = format!("/v1/tasks/{task}/triggers");
        let (status, reply) = self.ask("admin", Method::POST, &path, &body).await;
        assert_eq!(status, 202, "{reply}");
        reply["job"].as_str().unwrap().to_owned()
    }

    async fn died(&self, task: &str, payload: &Value) -> String {
        let id = self.triggered(task, payload).await;
        self.served.ended_by_number(&id, JobState::Dead).await;
        id
    }

    /// The snapshot of `quell top` with a token.
    async fn top(&self, name: &str) -> Value {
        let url = format!("http://{}", self.served.server.address());
        let mut command = crate::binary::quell(&["top", "--json", "--server", &url]);
        command.env("QUELL_TOKEN", &self.shown[name]);
        let printed = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(printed.status.success(), "{printed:?}");
        serde_json::from_slice(&printed.stdout).unwrap()
    }

    fn audit(&self) -> PathBuf {
        self.folder.path().join("audit.jsonl")
    }

    async fn stop(self) {
        self.served.server.stop().await.unwrap();
    }
}

/// The operations of the description: id, method, path, and the scope that each names.
fn operations() -> Vec<(String, Method, String, Option<String>)> {
    let document = serde_json::to_value(description()).unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let id = operation["operationId"].as_str().unwrap().to_owned();
            let security = operation["security"].as_array().unwrap();
            let scope = security.iter().find_map(|one| one["token"][0].as_str());
            all.push((id, method, path.clone(), scope.map(str::to_owned)));
        }
    }
    all
}

/// A path that names nothing that exists, so that no call changes what another one meets.
fn of_nothing(path: &str) -> String {
    let parts = ["{task}", "{name}", "{id}", "{source}", "{worker}", "{lease}", "{code}"];
    let values = ["nosuch", "nosuch", "77777", "nosuch", "w", "l", "c"];
    parts.iter().zip(values).fold(path.to_owned(), |path, (part, value)| path.replace(part, value))
}

/// Which scopes permit what a scope is asked for.
fn permits(scope: &str, asked: &str, operation: &str) -> bool {
    scope == asked
        || scope == "admin"
        || (scope == "operate" && asked == "read")
        // A token of both may read results; neither alone does.
        || (operation == "results_result" && scope == "trigger")
}

/// Requirement 3: each cell of the matrix of scopes and operations, as the description has them.
#[tokio::test]
async fn every_operation_answers_the_scopes_that_permit_it_and_refuses_the_others() {
    let scene = Scene::new().await;
    scene.known("admin").await;
    let (mut cells, mut open) = (0, Vec::new());
    for (id, method, path, asked) in operations() {
        let path = of_nothing(&path);
        let body = if method == Method::GET { "" } else { "{}" };
        let (without, reply) = scene.ask("none", method.clone(), &path, body).await;
        let Some(asked) = asked else {
            assert!(reply["error"]["field"] != "authorization", "{id}: {reply}");
            open.push(id);
            continue;
        };
        assert_eq!(without, 401, "{id} without a token: {reply}");
        for right in Right::ALL {
            let scope = right.name();
            let (status, reply) = scene.ask(scope, method.clone(), &path, body).await;
            let is_refused = status == 403;
            assert_eq!(
                !is_refused,
                permits(scope, &asked, &id),
                "{scope} at {id}: {status} {reply}"
            );
            assert!(status != 401 && status != 500, "{scope} at {id}: {reply}");
            if is_refused {
                let message = reply["error"]["message"].as_str().unwrap();
                assert!(message.contains(&asked) && message.contains(scope), "{id}: {message}");
            }
            cells += 1;
        }
    }
    assert!(cells > 300, "{cells}");
    open.sort();
    let expected = [
        "completions_complete",
        "server_health",
        "session_begin",
        "session_end",
        "session_show",
        "sources_deliver",
    ];
    assert_eq!(open.iter().filter(|id| *id != "server_readiness").collect::<Vec<_>>(), expected);
    scene.stop().await;
}

/// Requirement 3: a token that is revoked fails, and so does one that expired or was replaced.
#[tokio::test]
async fn a_revoked_token_fails_at_once_and_tokens_are_changed_over_http() {
    let scene = Scene::new().await;
    scene.known("admin").await;
    let asked = json!({ "name": "ci", "scopes": ["read"], "tasks": ["acme.*"] }).to_string();
    let (status, made) = scene.ask("admin", Method::POST, "/v1/tokens", &asked).await;
    assert_eq!((status, &made["info"]["tasks"]), (201, &json!(["acme.*"])), "{made}");
    let token = made["token"].as_str().unwrap().to_owned();
    let with = async |token: &str| {
        let request = scene.served.request(Method::GET, "/v1/tasks").bearer_auth(token);
        answer(request.send().await.unwrap()).await.0
    };
    assert_eq!(with(&token).await, 200);
    let path = "/v1/tokens/ci/rotate";
    let (status, rotated) = scene.ask("admin", Method::POST, path, r#"{"keep":"1h"}"#).await;
    assert_eq!(status, 200, "{rotated}");
    let new = rotated["token"].as_str().unwrap().to_owned();
    assert_eq!((with(&token).await, with(&new).await), (200, 200));
    let (_, listed) = scene.ask("admin", Method::GET, "/v1/tokens", "").await;
    let ci = listed["tokens"].as_array().unwrap().iter().find(|one| one["name"] == "ci").unwrap();
    assert!(ci["last_used_at"].is_string() && ci["replaced_until"].is_string(), "{ci}");
    assert!(!listed.to_string().contains("qll_"), "{listed}");
    assert_eq!(scene.ask("admin", Method::DELETE, "/v1/tokens/ci", "").await.0, 200);
    assert_eq!((with(&token).await, with(&new).await), (401, 401));
    assert_eq!(scene.ask("admin", Method::DELETE, "/v1/tokens/ci", "").await.0, 404);
    for (body, field) in [
        (json!({ "name": "a b", "scopes": ["read"] }), "name"),
        (json!({ "name": "x", "scopes": [] }), "scopes"),
        (json!({ "name": "x", "scopes": ["reed"] }), "scopes"),
    ] {
        let (status, reply) =
            scene.ask("admin", Method::POST, "/v1/tokens", &body.to_string()).await;
        assert!(matches!(status, 400 | 422), "{reply}");
        assert!(reply["error"].to_string().contains(field), "{reply}");
    }
    scene.stop().await;
}

/// What a tenant may ask for, of all, of its own and of another's.
const READS: [&str; 34] = [
    "/v1/jobs",
    "/v1/jobs?payload=true",
    "/v1/jobs?task=umbrella.mail",
    "/v1/jobs?task=acme.*",
    "/v1/jobs/{waits}",
    "/v1/jobs/{dead}/result",
    "/v1/explain?id={dead}",
    "/v1/explain?key=canary-of-umbrella",
    "/v1/explain?key=canary-of-umbrella&task=umbrella.mail",
    "/v1/explain?idempotency_key=canary-of-umbrella",
    "/v1/explain?dedup_key=canary-of-umbrella",
    "/v1/counts",
    "/v1/dead",
    "/v1/dead?task=umbrella.dies",
    "/v1/dead/causes",
    "/v1/dead/exports",
    "/v1/dead/exports?queue=umbrella",
    "/v1/dead/unreadable",
    "/v1/queues",
    "/v1/queues/umbrella",
    "/v1/queues/umbrella/partitions",
    "/v1/queues/acme/partitions",
    "/v1/tasks",
    "/v1/tasks/umbrella.mail",
    "/v1/tasks/umbrella.mail/windows",
    "/v1/schedules",
    "/v1/schedules/umbrella",
    "/v1/workers",
    "/v1/alerts",
    "/v1/actions",
    "/v1/sources",
    "/v1/audit",
    "/v1/tokens",
    "/metrics",
];

/// What a tenant must not do: to another's objects, and to what both share.
const WRITES: [(&str, &str, &str); 14] = [
    ("POST", "/v1/jobs/{waits}/cancel", "{}"),
    ("POST", "/v1/jobs/{waits}/run", "{}"),
    ("PATCH", "/v1/jobs/{waits}", r#"{"priority":5}"#),
    ("POST", "/v1/jobs/{dead}/redrive", ""),
    ("POST", "/v1/jobs/{dead}/discard", r#"{"reason":"x"}"#),
    ("POST", "/v1/dead/redrive", r#"{"task":"umbrella.dies"}"#),
    ("POST", "/v1/dead/discard", r#"{"reason":"x"}"#),
    ("POST", "/v1/tasks/umbrella.mail/windows/flush", r#"{"key":"canary-of-umbrella"}"#),
    ("POST", "/v1/tasks/umbrella.mail/triggers", r#"{"payload":{"user":"x"}}"#),
    ("POST", "/v1/tasks/umbrella.mail/pause", ""),
    ("POST", "/v1/queues/umbrella/pause", ""),
    ("POST", "/v1/queues/acme/pause", ""),
    ("POST", "/v1/schedules/umbrella/run", ""),
    (
        "POST",
        "/v1/actions",
        r#"{"name":"a","action":"discard","reason":"x","filter":{"state":"dead"}}"#,
    ),
];

/// Requirement 17: of two tenants, none sees anything of the other, whatever it asks.
#[tokio::test]
async fn a_token_limited_to_tasks_and_queues_sees_nothing_of_the_others() {
    let mut scene = Scene::new().await;
    let scopes = ["trigger", "work", "operate", "payload"];
    scene.add("acme", &scopes, &["acme.*"], &["acme"]);
    scene.known("acme").await;
    let (mine, theirs) = (json!({ "user": "mine" }), json!({ "user": "canary-of-umbrella" }));
    let waits = scene.triggered("umbrella.mail", &theirs).await;
    let dead = scene.died("umbrella.dies", &theirs).await;
    let own = scene.triggered("acme.mail", &mine).await;
    let own_dead = scene.died("acme.dies", &mine).await;
    let hidden = |reply: &Value| {
        let text = reply.to_string();
        !text.contains("canary-of-umbrella")
            && !text.contains("umbrella.dies")
            && !text.contains(&format!("\"{waits}\""))
    };
    let named = |path: &str| path.replace("{waits}", &waits).replace("{dead}", &dead);
    for path in READS.map(named) {
        let (status, reply) = scene.ask("acme", Method::GET, &path, "").await;
        assert!(status < 500 && hidden(&reply), "{path}: {status} {reply}");
    }
    for (method, path, body) in WRITES {
        let (path, method) = (named(path), Method::from_bytes(method.as_bytes()).unwrap());
        let (status, reply) = scene.ask("acme", method, &path, body).await;
        assert!(matches!(status, 403 | 404) && hidden(&reply), "{path}: {status} {reply}");
    }
    for (id, state) in [(&waits, "scheduled"), (&dead, "dead")] {
        let (_, reply) = scene.ask("admin", Method::GET, &format!("/v1/jobs/{id}"), "").await;
        assert_eq!(reply["job"]["state"], state, "{reply}");
        assert_eq!(reply["job"]["priority"], 0);
    }
    // Its own it sees and changes.
    let (status, reply) =
        scene.ask("acme", Method::GET, "/v1/jobs?task=acme.mail&payload=true", "").await;
    assert_eq!((status, reply["jobs"].as_array().map(Vec::len)), (200, Some(1)), "{reply}");
    let (_, reply) = scene.ask("acme", Method::GET, "/v1/counts", "").await;
    assert!(
        reply["counts"].as_array().unwrap().iter().all(|one| one["queue"] == "acme"),
        "{reply}"
    );
    let (_, reply) = scene.ask("acme", Method::GET, "/v1/sources", "").await;
    let names = |reply: &Value| {
        let sources = reply["sources"].as_array().unwrap().iter();
        sources.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&reply), ["acme"]);
    let (_, reply) = scene.ask("admin", Method::GET, "/v1/sources", "").await;
    assert_eq!(names(&reply), ["acme", "any", "umbrella"]);
    let shown = scene.top("acme").await;
    assert!(hidden(&shown), "{shown}");
    assert_eq!((&shown["running"]["total"], &shown["dead"]["total"]), (&json!(0), &json!(1)));
    assert_eq!((&shown["workers"], &shown["windows"]), (&Value::Null, &Value::Null), "{shown}");
    for (path, body) in [
        (format!("/v1/jobs/{own}/cancel"), "{}"),
        (format!("/v1/jobs/{own_dead}/redrive"), ""),
        ("/v1/tasks/acme.mail/triggers".to_owned(), r#"{"payload":{"user":"x"}}"#),
        ("/v1/schedules/acme/run".to_owned(), ""),
    ] {
        let (status, reply) = scene.ask("acme", Method::POST, &path, body).await;
        assert!(status < 300, "{path}: {reply}");
    }
    scene.stop().await;
}

/// What a token with limits learns of a key that others have: as much as of one that is not there.
#[tokio::test]
async fn r15_a_key_outside_a_tokens_limits_looks_as_one_that_does_not_exist() {
    let mut scene = Scene::new().await;
    scene.add("tasks", &["read"], &["acme.*"], &[]);
    scene.add("queues", &["read"], &[], &["acme"]);
    scene.known("tasks").await;
    scene.known("queues").await;
    for task in ["acme.mail", "umbrella.mail"] {
        for name in ["theirs", "both"] {
            if (task, name) == ("acme.mail", "theirs") {
                continue;
            }
            let user = format!("{name}-{task}");
            let body = json!({
                "payload": { "user": user }, "idempotency_key": name, "dedup": name,
            });
            let path = format!("/v1/tasks/{task}/triggers");
            let (status, reply) = scene.ask("admin", Method::POST, &path, &body.to_string()).await;
            assert_eq!(status, 202, "{reply}");
        }
    }
    for kind in ["idempotency_key", "dedup_key"] {
        let explained = async |who: &str, query: &str| {
            scene.ask(who, Method::GET, &format!("/v1/explain?{kind}={query}"), "").await
        };
        assert_eq!(explained("admin", "theirs").await.0, 200);
        for who in ["tasks", "queues"] {
            for task in ["", "&task=umbrella.mail", "&task=acme.mail", "&task=none"] {
                let hidden = explained(who, &format!("theirs{task}")).await;
                let unknown = explained(who, &format!("nobodys{task}")).await;
                assert_eq!(hidden, unknown, "{who}, {kind}, {task}");
                assert_eq!(hidden.0, 404, "{hidden:?}");
            }
            // The newest job of the key is another tenant's: its own is found all the same.
            let (status, reply) = explained(who, "both").await;
            assert_eq!((status, &reply["job"]["task"]), (200, &json!("acme.mail")), "{reply}");
        }
    }
    scene.stop().await;
}

/// Requirement 13: payloads, outputs and results of effects are for those who have the scope.
#[tokio::test]
async fn payloads_are_hidden_from_tokens_without_the_scope() {
    let scene = Scene::new().await;
    scene.known("read").await;
    let secret = json!({ "user": "canary-of-the-payload" });
    let id = scene.died("acme.dies", &secret).await;
    let edited = json!({ "payload": { "user": "edited" } }).to_string();
    let redrive = format!("/v1/jobs/{id}/redrive");
    let (status, reply) = scene.ask("operate", Method::POST, &redrive, &edited).await;
    assert_eq!((status, &reply["error"]["field"]), (403, &json!("payload")), "{reply}");
    assert_eq!(scene.ask("admin", Method::POST, &redrive, &edited).await.0, 200);
    scene.served.ended_by_number(&id, JobState::Dead).await;
    for path in [
        format!("/v1/jobs/{id}"),
        format!("/v1/explain?id={id}"),
        "/v1/jobs".to_owned(),
        "/v1/dead".to_owned(),
    ] {
        let (status, reply) = scene.ask("read", Method::GET, &path, "").await;
        assert_eq!(status, 200, "{path}: {reply}");
        let text = reply.to_string();
        assert!(
            !text.contains("canary-of-the-payload") && !text.contains("\"edited\""),
            "{path}: {text}"
        );
        let (_, reply) = scene.ask("admin", Method::GET, &path, "").await;
        let shows = path.ends_with(&id);
        assert_eq!(reply.to_string().contains("canary-of-the-payload"), shows, "{path}: {reply}");
    }
    for path in ["/v1/jobs?payload=true", "/v1/dead?payload=true", "/v1/dead/exports"] {
        assert_eq!(scene.ask("read", Method::GET, path, "").await.0, 403, "{path}");
    }
    scene.stop().await;
}

/// An export has whole payloads, redacted members included: an import needs them.
#[tokio::test]
async fn an_export_of_redacted_jobs_is_for_admins() {
    let mut scene = Scene::new().await;
    scene.add("sees", &["read", "payload"], &[], &[]);
    scene.known("sees").await;
    scene.died("acme.dies", &json!({ "user": "plain" })).await;
    scene.died("acme.secret", &json!({ "user": "canary-of-the-rule" })).await;
    let (status, reply) = scene.ask("sees", Method::GET, "/v1/dead/exports", "").await;
    assert_eq!(status, 403, "{reply}");
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(message.contains("acme.secret") && message.contains("admin"), "{message}");
    let others = "/v1/dead/exports?task=acme.dies";
    let (status, reply) = scene.ask("sees", Method::GET, others, "").await;
    assert_eq!((status, reply["exports"].as_array().map(Vec::len)), (200, Some(1)), "{reply}");
    let (status, reply) = scene.ask("admin", Method::GET, "/v1/dead/exports", "").await;
    assert!(status == 200 && reply.to_string().contains("canary-of-the-rule"), "{reply}");
    scene.stop().await;
}

/// A scope may name a task or a queue.
#[tokio::test]
async fn a_scope_of_a_task_or_a_queue_permits_that_one() {
    let mut scene = Scene::new().await;
    scene.add("one", &["trigger:acme.mail"], &[], &[]);
    scene.add("puller", &["work:acme"], &[], &[]);
    scene.add("other", &["work:umbrella"], &[], &[]);
    scene.known("other").await;
    let body = r#"{"payload":{"user":"x"}}"#;
    let (status, reply) =
        scene.ask("one", Method::POST, "/v1/tasks/acme.mail/triggers", body).await;
    assert_eq!(status, 202, "{reply}");
    let result = format!("/v1/jobs/{}/result", reply["job"].as_str().unwrap());
    assert_eq!(scene.ask("one", Method::GET, &result, "").await.0, 200);
    for task in ["acme.dies", "nosuch"] {
        let path = format!("/v1/tasks/{task}/triggers");
        let (status, reply) = scene.ask("one", Method::POST, &path, body).await;
        assert_eq!(status, 403, "{task}: {reply}");
    }
    let dead = scene.died("acme.dies", &json!(1)).await;
    assert_eq!(scene.ask("one", Method::GET, &format!("/v1/jobs/{dead}/result"), "").await.0, 404);

    let id = scene.triggered("acme.pulled", &json!(1)).await;
    let process = json!({ "incarnation": 1 });
    let claim = json!({ "tasks": ["acme.pulled"], "wait": "0s", "process": process }).to_string();
    assert_eq!(scene.ask("other", Method::POST, "/v1/workers/w/claim", &claim).await.0, 403);
    let (status, reply) = scene.ask("puller", Method::POST, "/v1/workers/w/claim", &claim).await;
    assert_eq!((status, &reply["jobs"][0]["id"]), (200, &json!(id)), "{reply}");
    let lease = &reply["jobs"][0]["lease"];
    let renew = json!({ "leases": [{ "lease": lease }], "process": process }).to_string();
    let settle = json!({ "settlements": [{ "lease": lease, "outcome": "succeeded" }] }).to_string();
    for (path, body) in [("/v1/workers/w/renew", &renew), ("/v1/workers/w/settle", &settle)] {
        assert_eq!(scene.ask("other", Method::POST, path, body).await.0, 403, "{path}");
        assert_eq!(scene.ask("puller", Method::POST, path, body).await.0, 200, "{path}");
    }
    scene.served.ended_by_number(&id, JobState::Succeeded).await;
    scene.stop().await;
}

/// Requirement 16: who, what, when, from where, before and after; never a secret.
#[tokio::test]
async fn every_operator_call_is_recorded_with_who_and_what_was_before_and_after() {
    let scene = Scene::new().await;
    scene.known("operate").await;
    let secret = json!({ "user": "canary-of-the-payload" });
    for _ in 0..3 {
        scene.died("acme.dies", &secret).await;
    }
    assert_eq!(scene.ask("operate", Method::POST, "/v1/queues/acme/pause", "").await.0, 200);
    assert_eq!(scene.ask("read", Method::POST, "/v1/queues/acme/resume", "").await.0, 403);
    let patch = r#"{"concurrency":9}"#;
    assert_eq!(scene.ask("admin", Method::PATCH, "/v1/queues/acme", patch).await.0, 200);
    let redrive = r#"{"task":"acme.dies"}"#;
    assert_eq!(scene.ask("operate", Method::POST, "/v1/dead/redrive", redrive).await.0, 200);
    let asked = json!({ "name": "ci", "scopes": ["read"] }).to_string();
    let (_, made) = scene.ask("admin", Method::POST, "/v1/tokens", &asked).await;
    let (status, shown) = scene.ask("admin", Method::GET, "/v1/audit?limit=10", "").await;
    assert_eq!(status, 200);
    let entries: Vec<&Value> = shown["entries"].as_array().unwrap().iter().rev().collect();
    let named: Vec<_> = entries
        .iter()
        .map(|one| (one["operation"].as_str().unwrap(), one["by"]["name"].as_str().unwrap()))
        .collect();
    let expected = [
        ("queues_pause", "operate"),
        ("queues_resume", "read"),
        ("queues_patch", "admin"),
        ("dead_redrive", "operate"),
        ("tokens_add", "admin"),
    ];
    assert_eq!(named, expected, "{shown:#}");
    assert_eq!((&entries[1]["status"], &entries[0]["status"]), (&json!(403), &json!(200)));
    let (pause, patched) = (entries[0], entries[2]);
    assert_eq!(
        (&pause["before"]["paused"], &pause["after"]["paused"]),
        (&json!(false), &json!(true))
    );
    let limits = (&patched["before"]["concurrency"], &patched["after"]["concurrency"]);
    assert_eq!(limits, (&json!(3), &json!(9)));
    assert_eq!(entries[3]["count"], 3, "a bulk call is one entry with its number");
    assert!(pause["by"]["peer"] == "127.0.0.1" && pause["at"].is_string());
    let text = std::fs::read_to_string(scene.audit()).unwrap();
    assert_eq!(text.lines().count(), 5);
    for secret in ["canary-of-the-payload", made["token"].as_str().unwrap(), &scene.shown["admin"]]
    {
        assert!(!text.contains(secret) && !shown.to_string().contains(secret), "{text}");
    }
    scene.stop().await;
}
