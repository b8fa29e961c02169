//! A server in this process, and short words for what tests ask of it.

use std::path::Path;
use std::time::{Duration, Instant};

use quell::JobState;
use quell_server::config::Config;
use quell_server::serve::Server;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::Value;
use tempfile::TempDir;

/// A task that is debounced by a key, and one that runs at once.
pub(crate) const TASKS: &str = r#"
[tasks.build]
key = "{{ repo }}"
debounce = { min = "10s", max = "60s" }
exec = { command = ["true"] }

[tasks.now]
priority = 3
exec = { command = ["true"] }
"#;

/// A server with a folder of its own, in which its configuration stands.
pub(crate) struct Served {
    pub(crate) server: Server,
    pub(crate) folder: TempDir,
    pub(crate) client: Client,
}

/// Starts a server with these tasks, on any free port.
pub(crate) async fn serve(tasks: &str) -> Served {
    serve_with("", tasks).await
}

/// Starts a server with more settings in its `[server]` table.
pub(crate) async fn serve_with(server: &str, tasks: &str) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("q.db").display());
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n{server}\n[store]\nurl = \"{url}\"\n\
         synchronous = \"normal\"\n[worker]\ngrace = \"100ms\"\n{tasks}"
    );
    let config = Config::parse(&text, &folder.path().join("quell.toml")).unwrap();
    let server = Server::start(config, None).await.unwrap();
    Served { server, folder, client: Client::new() }
}

impl Served {
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.server.address()))
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::GET, path).send().await.unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        answer(request.body(body.to_owned()).send().await.unwrap()).await
    }

    /// Triggers once with this payload and expects it to be accepted.
    pub(crate) async fn trigger(&self, task: &str, payload: &str) -> Value {
        let body = format!("{{\"payload\":{payload}}}");
        let (status, answer) = self.post(&format!("/v1/tasks/{task}/triggers"), &body).await;
        assert_eq!(status, 202, "{answer}");
        answer
    }

    /// What is answered there, as it is.
    pub(crate) async fn text(&self, path: &str) -> String {
        self.request(Method::GET, path).send().await.unwrap().text().await.unwrap()
    }

    /// Waits until a job has ended in this state. Its payload need not be one that this test can decode.
    pub(crate) async fn ended_by_number(&self, id: &str, state: JobState) {
        let id: quell::JobId = id.parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let job = self.server.quell().job(id).await.unwrap().unwrap();
            if job.state == state {
                return;
            }
            assert!(Instant::now() < deadline, "never {state}: {job:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a job has ended in this state; its JSON with attempts.
    pub(crate) async fn ended(&self, job: &Value, state: JobState) -> Value {
        let path = format!("/v1/jobs/{}", job.as_str().unwrap());
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (_, reply) = self.get(&path).await;
            if reply["job"]["state"] == state.name() {
                return reply;
            }
            assert!(Instant::now() < deadline, "never {state}: {reply:#}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn answer(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    // A stream of events has no end.
    let kind = response.headers().get("content-type");
    if kind.is_some_and(|kind| kind == "text/event-stream") {
        return (status, Value::Null);
    }
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Waits until a file has this text.
pub(crate) async fn file_says(path: &Path, done: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if done(&text) {
            return text;
        }
        assert!(Instant::now() < deadline, "{} says {text:?}", path.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Writes a secret for its owner alone.
pub(crate) fn write_secret(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.unwrap().write_all(text.as_ref()).unwrap();
}

/// Raises this process's limit of open files, for tests with many connections.
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// A port that no other program gets by chance: the system hands out higher ones.
pub(crate) fn free_port() -> u16 {
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).find(free).unwrap()
}
