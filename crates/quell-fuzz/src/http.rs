//! HTTP requests: the whole API behind its guard, on a store in memory.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use quell::store::{MemoryStore, Store};
use quell::worker::pull::PullTasks;
use quell::{Quell, TaskName, Timestamp};
use quell_server::config::Config;
use quell_server::http::{Api, router};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::parts;

const CONFIG: &str = "[tasks.build]\nkey = \"{{ repo }}\"\ndebounce = { min = \"1s\", max = \"9s\" }\n\
                      exec = { command = [\"true\"] }\n[tasks.now]\nexec = { command = [\"true\"] }\n\
                      [tasks.far]\npull = true\n\
                      [sources.hook]\nverify = \"token\"\nsecret_file = \"secret\"\ntask = \"build\"\n\
                      filter = \"body.n > 1\"\nkey = \"{{ body.repo }}\"\npayload = \"body\"\n\
                      [sources.raw]\nverify = \"token\"\nsecret_file = \"secret\"\ntask = \"now\"\n";

/// The folder of the configuration, with the sources' secret, `s`.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let secret = folder.path().join("secret");
            std::fs::write(&secret, "s").unwrap();
            std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
            folder
        })
        .path()
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().enable_all().build().unwrap())
}

/// A server's routes on a fresh store.
fn served() -> (Router, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new(Timestamp::from_secs(1)));
    let shared: Arc<dyn Store> = Arc::<MemoryStore>::clone(&store);
    let config = Config::parse(CONFIG, &folder().join("quell.toml")).unwrap();
    let quell = Quell::with_store(shared).build().unwrap();
    let far = TaskName::new("far").unwrap();
    let pull = PullTasks::new(quell.clone()).task(far.clone(), &config.tasks[&far].policy).unwrap();
    // No claim waits.
    pull.close();
    let stopping = CancellationToken::new();
    let completed = PullTasks::new(quell.clone());
    let api = Api::alone(quell, config, pull, completed, stopping).unwrap();
    // No server does it here, and what is measured would pile up from input to input.
    api.metrics.fold();
    (router(api), store)
}

/// A method, a path, a header and a body: never the server's fault, never half done.
///
/// A refusal is JSON that says what was wrong, and nothing was written.
pub fn http_body(data: &[u8]) {
    let Some([method, path, header, body]) = parts(data) else { return };
    let (name, value) = header.split_once(':').unwrap_or(("x-nothing", header));
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header(name, value.trim())
        .body(Body::from(body.to_owned()));
    let Ok(request) = request else { return };
    let reads = request.method() == "GET" || request.method() == "HEAD";
    runtime().block_on(async {
        let (router, store) = served();
        let before = store.snapshot();
        let answer = router.oneshot(request).await.unwrap();
        let status = answer.status();
        // A stream of events has no end.
        let kind = answer.headers().get("content-type");
        if kind.is_some_and(|kind| kind == "text/event-stream") {
            assert!(reads, "a stream that answers a change");
            return;
        }
        let shown = to_bytes(answer.into_body(), 16 << 20).await.unwrap();
        let shown = String::from_utf8(shown.to_vec()).unwrap();
        assert!(!status.is_server_error(), "{status}: {shown}");
        if status.is_success() && !reads {
            return;
        }
        assert_eq!(store.snapshot(), before, "{status}: {shown}");
        if status.is_client_error() && status != StatusCode::NOT_FOUND && !reads {
            let reported: Value = serde_json::from_str(&shown).unwrap();
            assert!(reported["error"].is_object() || reported["error"].is_string(), "{shown}");
        }
    });
}
