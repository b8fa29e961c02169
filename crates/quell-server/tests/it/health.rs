//! What supervisors and load balancers see: a full disk, a file that is gone, a store that hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use quell::Quell;
use quell::clock::SystemClock;
use quell::store::{
    Answer, Capabilities, EndNotification, MemoryStore, Now, Operation, Store, Wakeups,
};
use quell::worker::pull::PullTasks;
use quell_core::JobId;
use quell_server::config::Config;
use quell_server::http::{self, Api};
use quell_server::serve::Server;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::binary::Process;
use crate::served::{Served, TASKS, serve};

const DEADLINE: Duration = Duration::from_secs(30);

/// Repeats a request until its status is this one; returns the answer.
async fn until(served: &Served, path: &str, status: u16) -> Value {
    let begun = Instant::now();
    loop {
        let (got, answer) = served.get(path).await;
        if got == status {
            return answer;
        }
        assert!(begun.elapsed() < DEADLINE, "{path} is {got}, never {status}: {answer}");
    }
}

#[tokio::test]
async fn r01_health_reports_a_full_disk_until_a_write_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\n\
         url = \"sqlite://{}?max_bytes=1048576\"\n{TASKS}",
        folder.path().join("q.db").display()
    );
    let config = Config::parse(&text, &folder.path().join("quell.toml")).unwrap();
    let server = Server::start(config, None).await.unwrap();
    let served = Served { server, folder, client: reqwest::Client::new() };
    assert_eq!(served.get("/v1/healthz").await.0, 200);
    let large = format!(r#"{{"payload":{{"repo":"{}"}}}}"#, "x".repeat(400));
    let large =
        large.replace("\"repo\"", &format!("\"more\":\"{}\",\"repo\"", "y".repeat(600_000)));
    let begun = Instant::now();
    // A heartbeat of the worker that finds space comes every 10 s at most.
    let (answer, ready) = loop {
        let (status, answer) = served.post("/v1/tasks/build/triggers", &large).await;
        assert!([202, 503].contains(&status), "{answer}");
        let (health, said) = served.get("/v1/healthz").await;
        if status == 503 && health == 503 {
            break (said, served.get("/v1/readyz").await.0);
        }
        assert!(begun.elapsed() < DEADLINE, "{health}: {said}");
    };
    assert!(answer.to_string().contains("disk of the store is full"), "{answer}");
    assert!(!answer.to_string().contains("q.db"), "it is open to all: {answer}");
    assert_eq!(ready, 503);
    served.trigger("now", "1").await;
    assert_eq!(until(&served, "/v1/healthz", 200).await["status"], "ok");
    until(&served, "/v1/readyz", 200).await;
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r01_a_server_whose_file_was_deleted_accepts_nothing_and_fails() {
    let mut served = serve(TASKS).await;
    served.trigger("build", r#"{"repo":"a"}"#).await;
    std::fs::remove_file(served.folder.path().join("q.db")).unwrap();
    let (status, answer) =
        served.post("/v1/tasks/build/triggers", r#"{"payload":{"repo":"a"}}"#).await;
    assert_eq!(status, 503, "{answer}");
    let answer = until(&served, "/v1/healthz", 503).await;
    assert!(answer.to_string().contains("deleted or replaced"), "{answer}");
    until(&served, "/v1/readyz", 503).await;
    let failed = tokio::time::timeout(DEADLINE, served.server.failed()).await.unwrap();
    let text = format!("{failed:#}");
    assert!(text.contains("q.db was deleted or moved") && text.contains("backup"), "{text}");
}

#[test]
fn r01_a_server_process_whose_file_was_replaced_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (config, store) = (folder.path().join("quell.toml"), folder.path().join("q.db"));
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n{TASKS}",
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut process = Process::serve(&config, &[]);
    let trigger = ["trigger", "build", r#"{"repo":"a"}"#];
    assert!(process.ask(&trigger).status.success());
    let other = folder.path().join("other.db");
    std::fs::write(&other, "").unwrap();
    std::fs::rename(&other, &store).unwrap();
    assert!(!process.ask(&trigger).status.success(), "nothing is acknowledged from here on");
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::metadata(&store).unwrap().len(), 0, "the new file is as it was");
}

#[tokio::test]
async fn checks_need_neither_a_token_nor_a_host_that_is_allowed() {
    let served = serve(TASKS).await;
    for (path, status) in [("/v1/healthz", "ok"), ("/v1/readyz", "ready")] {
        let request = served.request(reqwest::Method::GET, path).header("host", "10.0.0.9:7777");
        let (code, answer) = crate::served::answer(request.send().await.unwrap()).await;
        assert_eq!((code, answer["status"].as_str()), (200, Some(status)), "{answer}");
    }
    served.server.stop().await.unwrap();
}

/// A store that answers nothing while it hangs.
#[derive(Debug)]
struct Hanging {
    inner: MemoryStore,
    hangs: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Store for Hanging {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> quell::Result<Answer> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.inner.call(now, operation).await
    }

    fn wakeups(&self) -> Wakeups {
        self.inner.wakeups()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.inner.ended(job)
    }
}

fn router(quell: Quell, stopping: CancellationToken) -> axum::Router {
    let tasks = PullTasks::new(quell.clone());
    let path = std::path::Path::new("quell.toml");
    let config = Config::parse("[tasks.echo]\npull = true\n", path).unwrap();
    http::router(Api::alone(quell, config, tasks.clone(), tasks, stopping).unwrap())
}

async fn ask(app: &axum::Router, path: &str) -> u16 {
    let request = axum::http::Request::get(path).body(Body::empty()).unwrap();
    let answer = tokio::time::timeout(DEADLINE, app.clone().oneshot(request)).await;
    answer.expect("a check answers though the store hangs").unwrap().status().as_u16()
}

#[tokio::test]
async fn a_store_that_hangs_is_not_ready_and_the_server_is_healthy() {
    let clock = SystemClock::for_store();
    let hangs = Arc::new(AtomicBool::new(true));
    let inner = MemoryStore::new(quell::clock::Clock::now(&clock));
    let store = Arc::new(Hanging { inner, hangs: Arc::clone(&hangs) });
    let quell = Quell::with_store(store).clock(Arc::new(clock)).build().unwrap();
    let stopping = CancellationToken::new();
    let app = router(quell, stopping.clone());
    let both = futures_util::future::join_all((0..20).map(|_| ask(&app, "/v1/readyz"))).await;
    assert_eq!(both, [503; 20], "one look for all of them");
    assert_eq!(ask(&app, "/v1/healthz").await, 200);
    hangs.store(false, Ordering::Relaxed);
    let begun = Instant::now();
    while ask(&app, "/v1/readyz").await != 200 {
        assert!(begun.elapsed() < DEADLINE, "it never gets ready");
    }
    // An answer counts for some seconds: a slow one changes nothing.
    hangs.store(true, Ordering::Relaxed);
    assert_eq!(ask(&app, "/v1/readyz").await, 200);
    hangs.store(false, Ordering::Relaxed);
    stopping.cancel();
    for path in ["/v1/healthz", "/v1/readyz"] {
        assert_eq!(ask(&app, path).await, 503, "{path} of a server that stops");
    }
}
