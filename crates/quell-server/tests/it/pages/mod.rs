//! The pages for people, through HTTP: rights, forms, links, hostile texts.

mod crawl;
mod forms;
mod html;
mod operate;
mod rights;
mod thresholds;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell::JobState;
use quell_server::access::{Limits, NewToken, Tokens};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::served::{Served, answer, serve_with};
use html::Page;

/// A text that breaks out of an attribute, a text and a template, where one is not escaped.
const HOSTILE: &str =
    r#""'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}</textarea>&amp;"#;

/// Where traces are shown.
const TRACES: &str = r#"trace_url = "https://traces.test/trace/{trace_id}?a=b""#;

/// Tasks of all kinds.
const TASKS: &str = r#"
[tasks.build]
key = "{{ repo }}"
partition = "{{ repo }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }
[tasks.dies]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "printf '%s' \"$H\" >&2; exit 1"], env = { H = "HOSTILE" } }
[tasks.breaks]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "echo other cause >&2; exit 2"] }
[tasks.puts]
exec = { command = ["sh", "-c", "printf '%s' \"$H\""], env = { H = "JSON" } }
[tasks.pulled]
pull = true
[tasks."odd/name:1"]
exec = { command = ["true"] }
[queues.default]
concurrency = 4
rate = { limit = 100, period = "1m" }
[schedules.nightly]
task = "puts"
cron = "0 6 * * *"
zone = "Europe/Berlin"
payload = { text = "HOSTILE" }
[alerts.lag]
on = "dead"
threshold = 1000
exec = { command = ["true"] }
[sources.hooks]
verify = "github"
secret_file = "SECRET"
task = "{{ headers['x-<b>'] }}"
"#;

/// A server with a file of tokens, and a client that follows nothing.
struct Scene {
    served: Served,
    tokens: Tokens,
    shown: BTreeMap<String, String>,
    client: Client,
    _folder: TempDir,
}

/// What a page answered.
struct Shown {
    status: u16,
    headers: HeaderMap,
    page: Page,
}

impl Shown {
    fn location(&self) -> &str {
        self.headers["location"].to_str().unwrap()
    }
}

impl Scene {
    async fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.json");
        Tokens::make(&file).unwrap();
        let secret = folder.path().join("secret");
        crate::served::write_secret(&secret, "the secret of webhooks");
        let quoted = |text: &str| {
            let quoted = format!("{text:?}");
            quoted[1..quoted.len() - 1].to_owned()
        };
        let tables = TASKS
            .replace("JSON", &quoted(&format!("{HOSTILE:?}")))
            .replace("HOSTILE", &quoted(HOSTILE))
            .replace("SECRET", secret.to_str().unwrap());
        let served = serve_with(&format!("tokens = {file:?}\n{TRACES}"), &tables).await;
        let tokens = Tokens::open(&file).unwrap();
        let client = Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let mut scene = Scene { served, tokens, shown: BTreeMap::new(), client, _folder: folder };
        for name in ["read", "payload", "operate", "admin", "trigger"] {
            let scopes: &[&str] = if name == "payload" { &["read", "payload"] } else { &[name] };
            scene.add(name, scopes, &[]).await;
        }
        scene
    }

    /// Adds a token, and waits until the server knows it.
    async fn add(&mut self, name: &str, scopes: &[&str], tasks: &[&str]) {
        let new = NewToken {
            name: name.to_owned(),
            scopes: scopes.iter().map(|scope| scope.parse().unwrap()).collect(),
            limits: Limits {
                tasks: tasks.iter().map(|task| task.parse().unwrap()).collect(),
                queues: vec![],
            },
            expires_at: None,
        };
        let token = self.tokens.add(new).unwrap().token;
        self.shown.insert(name.to_owned(), token);
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.api(name, Method::GET, "/v1/session", None).await.0 != 200 {
            assert!(Instant::now() < deadline, "the token is never known");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn request(&self, name: &str, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.served.server.address());
        let request = self.client.request(method, url).header("accept", "text/html");
        match self.shown.get(name) {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn page(&self, name: &str, path: &str) -> Shown {
        shown(self.request(name, Method::GET, path)).await
    }

    /// Sends a form.
    async fn send(&self, name: &str, path: &str, fields: &[(&str, &str)]) -> Shown {
        let mut body = form_urlencoded::Serializer::new(String::new());
        let body = body.extend_pairs(fields).finish();
        let request = self.request(name, Method::POST, path);
        let kind = "application/x-www-form-urlencoded";
        shown(request.header("content-type", kind).body(body)).await
    }

    /// The same, which has to succeed; where it leads.
    async fn done(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let shown = self.send("admin", path, fields).await;
        assert_eq!(shown.status, 303, "{path}: {}", shown.page.text());
        shown.location().to_owned()
    }

    async fn api(
        &self,
        name: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let request = self.request(name, method, path);
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None => request,
        };
        answer(request.send().await.unwrap()).await
    }

    async fn get(&self, path: &str) -> Value {
        let (status, reply) = self.api("admin", Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {reply}");
        reply
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, reply) = self.api("admin", Method::POST, path, Some(body)).await;
        assert!(status < 300, "{path}: {reply}");
        reply
    }

    /// Triggers a task; the job.
    async fn trigger(&self, task: &str, payload: &Value) -> String {
        let body = json!({ "payload": payload });
        let reply = self.post(&format!("/v1/tasks/{task}/triggers"), body).await;
        reply["job"].as_str().unwrap().to_owned()
    }

    async fn ended(&self, task: &str, payload: &Value, state: JobState) -> String {
        let id = self.trigger(task, payload).await;
        self.served.ended_by_number(&id, state).await;
        id
    }

    async fn state(&self, job: &str) -> String {
        let shown = self.get(&format!("/v1/jobs/{job}")).await;
        shown["job"]["state"].as_str().unwrap().to_owned()
    }

    async fn stop(self) {
        self.served.server.stop().await.unwrap();
    }
}

async fn shown(request: RequestBuilder) -> Shown {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Shown { status, headers, page: Page::read(&response.text().await.unwrap()) }
}
