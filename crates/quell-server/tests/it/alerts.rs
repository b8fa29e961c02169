//! Alerts of servers (R27): raised once and cleared once by any number of servers, and sent until each
//! sink has received them.

use std::path::Path;
use std::time::Duration;

use quell::{JobState, Timestamp};
use quell_server::config::Config;
use quell_server::serve::Server;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::served::{Served, file_says};

/// A task that fails until there is a file `fine`.
const SICK: &str = r#"
[tasks.sick]
retry = { max_attempts = 1 }
exec = { command = ["test", "-e", "fine"], cwd = "." }
"#;

/// Servers on one store, which evaluate their alerts all the time.
async fn crowd(count: usize, more: &str) -> Vec<Served> {
    let folder = tempfile::tempdir().unwrap();
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(start(folder.path(), more).await);
    }
    let mut folder: Option<TempDir> = Some(folder);
    let client = reqwest::Client::new();
    let served = |server| {
        let folder = folder.take().unwrap_or_else(|| tempfile::tempdir().unwrap());
        Served { server, folder, client: client.clone() }
    };
    servers.into_iter().map(served).collect()
}

async fn start(folder: &Path, more: &str) -> Server {
    let url = format!("sqlite://{}", folder.join("q.db").display());
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nalert_interval = \"10ms\"\n[store]\nurl = \"{url}\"\n\
         synchronous = \"normal\"\n[worker]\ngrace = \"100ms\"\n{more}"
    );
    let config = Config::parse(&text, &folder.join("quell.toml")).unwrap();
    Server::start(config, None).await.unwrap()
}

/// Waits until the alert `x` is as wanted; its JSON.
pub(crate) async fn alert(served: &Served, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let (status, reply) = served.get("/v1/alerts").await;
        assert_eq!(status, 200, "{reply:#}");
        let alert = reply["alerts"][0].clone();
        if wanted(&alert) {
            return alert;
        }
        assert!(std::time::Instant::now() < deadline, "never {what}: {reply:#}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the store's time is later than now by some looks.
async fn looks(served: &Served) {
    let store = served.server.quell().store();
    let begin: Timestamp = store.overview(None).await.unwrap().now;
    while store.overview(None).await.unwrap().now < begin + Duration::from_millis(100) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn stop(crowd: Vec<Served>) {
    for served in crowd {
        served.server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn r27_of_two_servers_one_raises_and_one_clears_and_sinks_hear_it_once() {
    let config = format!(
        "{SICK}\n[alerts.x]\non = \"dead\"\ntask = \"sick\"\nthreshold = 1\n\
         exec = {{ command = [\"sh\", \"-c\", \
         \"echo $QUELL_ALERT $QUELL_ALERT_STATE $QUELL_ALERT_TEXT $(cat) >> notices\"], cwd = \".\" }}\n"
    );
    let crowd = crowd(2, &config).await;
    let (served, notices) = (&crowd[0], crowd[0].folder.path().join("notices"));
    let mut dead = Vec::new();
    for _ in 0..2 {
        let job = served.trigger("sick", "1").await["job"].clone();
        served.ended(&job, JobState::Dead).await;
        dead.push(job);
    }
    let raised = alert(served, "raised", |alert| alert["state"] == "raised").await;
    assert_eq!((&raised["measured"], &raised["changes"]), (&"2 dead jobs".into(), &1.into()));
    let metrics = served.get("/metrics").await.1.to_string();
    assert!(metrics.contains("quell_alert{name=\\\"x\\\"} 1"), "{metrics}");
    let once = |text: &str| text.lines().count() == 1;
    file_says(&notices, once).await;
    std::fs::write(served.folder.path().join("fine"), "").unwrap();
    for job in dead {
        let path = format!("/v1/jobs/{}/redrive", job.as_str().unwrap());
        assert_eq!(served.post(&path, "").await.0, 200);
        served.ended(&job, JobState::Succeeded).await;
    }
    let over = |alert: &Value| alert["changes"] == 2 && alert["notices_waiting"] == 0;
    alert(served, "cleared and notified", over).await;
    looks(served).await;
    let text = std::fs::read_to_string(&notices).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("x raised 2 dead jobs {"), "{text}");
    assert!(lines[0].contains(r#""type":"alert.raised""#), "{text}");
    assert!(lines[1].starts_with("x cleared "), "{text}");
    stop(crowd).await;
}

/// A target that refuses the first request it gets, and takes the others.
async fn reluctant() -> (String, tokio::sync::mpsc::Receiver<String>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, requests) = tokio::sync::mpsc::channel(16);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut answer = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"}") {
                match stream.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(read) => request.extend_from_slice(&chunk[..read]),
                }
            }
            // A connection that the client made ahead and closed unused is no request.
            if request.is_empty() {
                continue;
            }
            let _gone = sender.send(String::from_utf8_lossy(&request).into_owned()).await;
            let _gone = stream.write_all(answer.as_bytes()).await;
            answer = "HTTP/1.1 204 No Content\r\n\r\n";
        }
    });
    (url, requests, task)
}

#[tokio::test]
async fn r27_a_webhook_is_signed_and_tried_again_until_it_is_taken() {
    let (url, mut requests, _target) = reluctant().await;
    let secret = tempfile::NamedTempFile::new().unwrap();
    crate::served::write_secret(secret.path(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let config = format!(
        "{SICK}\n[alerts.x]\non = \"dead\"\nthreshold = 0\n\
         http = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"], secret_file = \"{}\" }}\n",
        secret.path().display()
    );
    let crowd = crowd(2, &config).await;
    let served = &crowd[0];
    served.trigger("sick", "1").await;
    let ids = async |request: String| {
        let request = request.to_lowercase();
        for needle in ["post /hook ", "webhook-id: quell-alert-x-1-", "webhook-signature: v1,"] {
            assert!(request.contains(needle), "{needle:?} is missing in:\n{request}");
        }
        assert!(request.contains(r#""text":"x: raised, 1 dead job""#), "{request}");
    };
    ids(requests.recv().await.unwrap()).await;
    alert(served, "waiting", |alert| alert["notices_waiting"] == 1).await;
    ids(requests.recv().await.unwrap()).await;
    alert(served, "notified", |alert| alert["notices_waiting"] == 0).await;
    looks(served).await;
    assert!(requests.try_recv().is_err(), "it was notified once");
    stop(crowd).await;
}

#[tokio::test]
async fn r27_a_failure_rate_is_counted_across_servers() {
    let config = format!(
        "{SICK}\n[tasks.well]\nexec = {{ command = [\"true\"] }}\n\
         [alerts.x]\non = \"failure_rate\"\nthreshold = 0.4\nmin_attempts = 4\n"
    );
    let crowd = crowd(2, &config).await;
    let served = &crowd[0];
    for task in ["sick", "well", "sick"] {
        let job = served.trigger(task, "1").await["job"].clone();
        let state = if task == "sick" { JobState::Dead } else { JobState::Succeeded };
        served.ended(&job, state).await;
    }
    looks(served).await;
    let few = alert(served, "there", |alert| alert["declared"] == true).await;
    assert_eq!(few["state"], "clear", "three attempts say nothing: {few:#}");
    served.trigger("well", "1").await;
    let raised = alert(served, "raised", |alert| alert["state"] == "raised").await;
    assert_eq!(raised["measured"], "50.00 % of attempts failed", "{raised:#}");
    for _ in 0..2 {
        served.trigger("well", "1").await;
    }
    alert(served, "cleared", |alert| alert["state"] == "clear").await;
    stop(crowd).await;
}

#[tokio::test]
async fn r27_what_is_kept_of_an_alert_can_be_forgotten() {
    let crowd = crowd(1, SICK).await;
    let served = &crowd[0];
    let store = served.server.quell().store();
    let name = quell::alert::AlertName::new("old").unwrap();
    let state = quell::alert::AlertState { raised: true, ..Default::default() };
    assert!(store.set_alert(&name, 0, Some(&state)).await.unwrap());
    let left = alert(served, "there", |alert| alert["name"] == "old").await;
    assert_eq!((&left["declared"], &left["state"]), (&false.into(), &"raised".into()));
    let delete =
        |name: &str| served.request(reqwest::Method::DELETE, &format!("/v1/alerts/{name}")).send();
    assert_eq!(delete("old").await.unwrap().status(), 200);
    assert_eq!(delete("old").await.unwrap().status(), 404);
    assert_eq!(store.alerts().await.unwrap(), []);
    stop(crowd).await;
}

#[test]
fn r27_r40_alerts_that_cannot_be_meant_are_refused_by_field() {
    let table = [
        (
            "on = \"dead\"\nthreshold = 0.5",
            "alerts.x.threshold: threshold of dead jobs is a number",
        ),
        ("on = \"lateness\"\nthreshold = 5", "alerts.x.threshold: threshold of lateness is a time"),
        ("on = \"lateness\"\nthreshold = \"5 parsecs\"", "alerts.x.threshold:"),
        (
            "on = \"failure_rate\"\nthreshold = 1.5",
            "alerts.x.threshold: threshold of a failure rate",
        ),
        (
            "on = \"failure_rate\"\nthreshold = 0.1\nwindow = \"1s\"",
            "alerts.x.window: window of 1s",
        ),
        ("on = \"dead\"\nthreshold = 1\nclear = 2", "alerts.x.clear: clear (2 dead jobs) is above"),
        ("on = \"dead\"\nthreshold = 1\nwindow = \"1m\"", "alerts.x.window: window is for"),
        ("on = \"dead\"\nthreshold = 1\nqueue = \"a b\"", "alerts.x.queue:"),
        ("on = \"dead\"\nthreshold = 1\ntimeout = \"2m\"", "alerts.x.timeout: timeout of 120s"),
        ("on = \"dead\"\nthreshold = 1\nhttp = { url = \"ftp://x\" }", "alerts.x.http.url:"),
        ("on = \"dead\"\nthreshold = 1\nexec = { command = [] }", "alerts.x.exec.command:"),
        ("on = \"sorrow\"\nthreshold = 1", "alerts.x.on:"),
        ("threshold = 1", "alerts.x"),
    ];
    for (lines, needle) in table {
        let text = format!("[alerts.x]\n{lines}\n");
        let error = Config::parse(&text, Path::new("quell.toml")).expect_err(lines).to_string();
        assert!(error.contains(needle), "{lines}\n=> {error}");
    }
    let fine = "[alerts.x]\non = \"lateness\"\nqueue = \"q\"\nthreshold = \"5m\"\nclear = \"1m\"\n";
    let config = Config::parse(fine, Path::new("quell.toml")).unwrap();
    assert_eq!(
        (config.alerts[0].alert.above, config.alerts[0].alert.clear),
        (300_000_000, 60_000_000)
    );
}
