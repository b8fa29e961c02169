//! What targets and commands answer besides success and failure: snooze, bury, cancel, 202 with a report
//! later; and targets that are away (R21, R24, R25, R29).

use std::time::{Duration, Instant};

use quell::JobState;
use quell_server::config::Config;
use quell_server::serve::Server;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::handlers::target;
use crate::served::{Served, answer, free_port, serve};

impl Served {
    /// Waits until this can be said of a job.
    async fn job_until(&self, id: &Value, done: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/v1/jobs/{}", id.as_str().unwrap());
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (_, shown) = self.get(&path).await;
            if done(&shown["job"]) {
                return shown;
            }
            assert!(Instant::now() < deadline, "{shown:#}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn task(name: &str, url: &str, more: &str) -> String {
    format!("[tasks.{name}]\nhttp = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"]{more} }}\n")
}

#[tokio::test]
async fn r24_r25_a_target_names_the_end_of_an_attempt() {
    let response = |outcome: &str, more: &str| -> &'static str {
        let text = format!(
            "HTTP/1.1 200 OK\r\nquell-outcome: {outcome}\r\n{more}content-length: 3\r\n\r\nwhy"
        );
        text.leak()
    };
    let (snoozes, _requests, _one) = target(response("snooze", "retry-after: 3600\r\n")).await;
    let (buries, _requests, _two) = target(response("bury", "")).await;
    let (cancels, _requests, _three) = target(response("cancel", "")).await;
    let (errs, _requests, _four) = target(response("explode", "")).await;
    let tasks = [
        task("snoozes", &snoozes, ""),
        task("buries", &buries, ""),
        task("cancels", &cancels, ""),
        task("errs", &errs, "") + "retry = { max_attempts = 1 }\n",
    ];
    let served = serve(&tasks.concat()).await;
    for (task, state, attempts, error) in [
        ("buries", JobState::Dead, 1, "the target buried the job: why"),
        ("cancels", JobState::Cancelled, 1, "the target cancelled the job: why"),
        ("errs", JobState::Dead, 1, "`quell-outcome: explode`"),
    ] {
        let job = served.trigger(task, r#"{"a":1}"#).await["job"].clone();
        let shown = served.ended(&job, state).await;
        assert_eq!(shown["job"]["attempt"], attempts, "{shown:#}");
        assert!(shown.to_string().contains(error), "{shown:#}");
    }
    let job = served.trigger("snoozes", r#"{"a":1}"#).await["job"].clone();
    let shown =
        served.job_until(&job, |job| job["starts"] == 1 && job["state"] == "scheduled").await;
    assert_eq!(shown["job"]["attempt"], 0, "a snooze spends no attempt: {shown:#}");
    assert_eq!(shown["attempts"][0]["outcome"], "snoozed");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r24_r25_a_command_names_the_end_of_an_attempt_by_its_exit_code() {
    let exec = |code: u32| {
        format!(
            "exec = {{ command = [\"sh\", \"-c\", \"exit {code}\"], permanent_exit_codes = [65], \
             snooze_exit_codes = {{ 75 = \"1h\" }}, cancel_exit_codes = [77] }}\n"
        )
    };
    let tasks = [("buries", 65), ("snoozes", 75), ("cancels", 77)]
        .map(|(name, code)| format!("[tasks.{name}]\n{}", exec(code)));
    let served = serve(&tasks.concat()).await;
    for (task, state) in [("buries", JobState::Dead), ("cancels", JobState::Cancelled)] {
        let job = served.trigger(task, "1").await["job"].clone();
        served.ended(&job, state).await;
    }
    let job = served.trigger("snoozes", "1").await["job"].clone();
    let shown =
        served.job_until(&job, |job| job["starts"] == 1 && job["state"] == "scheduled").await;
    assert_eq!(shown["job"]["attempt"], 0, "{shown:#}");
    served.server.stop().await.unwrap();
}

const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";

/// A server whose target answers 202 and reports later, and the completion URL of a first job.
async fn accepted(within: &str) -> (Served, Value, String, tokio::task::JoinSet<()>) {
    accepted_by("", within).await
}

/// The same with more settings in its `[server]` table.
async fn accepted_by(
    server: &str,
    within: &str,
) -> (Served, Value, String, tokio::task::JoinSet<()>) {
    let (url, mut requests, target) = target(ACCEPTED).await;
    let more = format!(", secret_file = \"secret\", completion = \"{within}\"");
    let folder = tempfile::tempdir().unwrap();
    crate::served::write_secret(folder.path().join("secret"), "shared");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n{server}[store]\nurl = \"sqlite://{}\"\n[worker]\nconcurrency = 1\n\
         grace = \"100ms\"\n{}retry = {{ max_attempts = 1 }}\n[tasks.now]\nexec = {{ command = [\"true\"] }}\n",
        folder.path().join("q.db").display(),
        task("long", &url, &more),
    );
    let config = Config::parse(&text, &folder.path().join("quell.toml")).unwrap();
    std::fs::write(folder.path().join("quell.toml"), text).unwrap();
    let started = Server::start(config, None).await.unwrap();
    // All but completions need the token, where there is one.
    let mut headers = reqwest::header::HeaderMap::new();
    headers.insert("authorization", "Bearer shared".parse().unwrap());
    let client = reqwest::Client::builder().default_headers(headers).build().unwrap();
    let served = Served { server: started, folder, client };
    let job = served.trigger("long", r#"{"a":1}"#).await["job"].clone();
    let request = requests.recv().await.unwrap();
    let named = request.lines().find_map(|line| line.strip_prefix("quell-completion-url: "));
    let url = named.unwrap_or_else(|| panic!("{request}")).to_owned();
    (served, job, url, target)
}

async fn report(url: &str, body: &str) -> (u16, Value) {
    let request = reqwest::Client::new().post(url).header("content-type", "application/json");
    answer(request.body(body.to_owned()).send().await.unwrap()).await
}

#[tokio::test]
async fn r21_work_that_was_answered_with_202_ends_by_its_completion_url() {
    let (served, job, url, _target) = accepted("1h").await;
    // Its slot, the only one, is free meanwhile.
    let other = served.trigger("now", "1").await["job"].clone();
    served.ended(&other, JobState::Succeeded).await;
    let shown = served.job_until(&job, |job| job["state"] == "running").await;
    assert_eq!(shown["job"]["attempt"], 1);
    let other_lease = url.replacen("/v1/completions/", "/v1/completions/x", 1);
    for (url, status, field) in [
        (format!("{url}x"), 403, "code"),
        (other_lease, 403, "code"),
        (url.rsplit_once('/').unwrap().0.to_owned() + "/AAAA", 403, "code"),
    ] {
        let (got, reply) = report(&url, "").await;
        assert_eq!((got, &reply["error"]["field"]), (status, &json!(field)), "{url}: {reply}");
    }
    let (status, reply) = report(&url, r#"{"outcome":"snoozed"}"#).await;
    assert_eq!((status, &reply["error"]["field"]), (422, &json!("delay")), "{reply}");
    let done = r#"{"outcome":"succeeded","output":{"pages":7}}"#;
    for _ in 0..2 {
        let (status, reply) = report(&url, done).await;
        assert_eq!((status, &reply["became"]), (200, &json!("succeeded")), "{reply}");
    }
    served.ended(&job, JobState::Succeeded).await;
    let (_, result) = served.get(&format!("/v1/jobs/{}/result", job.as_str().unwrap())).await;
    assert_eq!(result["output"], json!({"pages": 7}));
    let (status, reply) = report(&url, r#"{"outcome":"failed","error":"late"}"#).await;
    assert_eq!((status, &reply["error"]["field"]), (409, &json!("lease")), "{reply}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r29_work_that_goes_on_at_its_target_outlives_the_server() {
    let (served, job, url, _target) = accepted("1h").await;
    // The worker has handed the lease over once it lasts longer than its own.
    let id: quell::JobId = job.as_str().unwrap().parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let row = served.server.quell().job(id).await.unwrap().unwrap();
        let lasts = row.lease_until.zip(row.started_at).map(|(until, from)| until.since(from));
        if lasts.is_some_and(|lasts| lasts > Duration::from_secs(3_000)) {
            break;
        }
        assert!(Instant::now() < deadline, "the lease is not handed over: {row:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let Served { server, folder, client } = served;
    let began = Instant::now();
    server.stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "the shutdown waited for the target");
    let path = folder.path().join("quell.toml");
    let config = Config::parse(&std::fs::read_to_string(&path).unwrap(), &path).unwrap();
    let served = Served { server: Server::start(config, None).await.unwrap(), folder, client };
    let (_, shown) = served.get(&format!("/v1/jobs/{}", job.as_str().unwrap())).await;
    assert_eq!((&shown["job"]["state"], &shown["job"]["starts"]), (&json!("running"), &json!(1)));
    let path = url.split_once("/v1/").unwrap().1;
    let url = format!("http://{}/v1/{path}", served.server.address());
    let (status, reply) = report(&url, "").await;
    assert_eq!((status, &reply["became"]), (200, &json!("succeeded")), "{reply}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r24_work_that_is_not_reported_in_time_has_timed_out() {
    let (served, job, url, _target) = accepted("1s").await;
    let shown = served.ended(&job, JobState::Dead).await;
    assert_eq!(shown["attempts"][0]["outcome"], "timed_out", "{shown:#}");
    let (status, _) = report(&url, "").await;
    assert_eq!(status, 409);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_a_completion_needs_a_secret_and_an_address() {
    let check = |text: &str| {
        Config::parse(text, std::path::Path::new("quell.toml")).map(drop).map_err(|e| e.to_string())
    };
    let url = "http = { url = \"https://example.com/x\", completion = \"1h\"";
    let error = check(&format!("[tasks.a]\n{url} }}\n")).unwrap_err();
    assert!(
        error.contains("tasks.a.http.completion") && error.contains("needs a secret"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    crate::served::write_secret(&secret, "s");
    let with_secret = format!("[tasks.a]\n{url}, secret_file = \"{}\" }}\n", secret.display());
    check(&with_secret).unwrap();
    let open = format!("listen = \"0.0.0.0:7777\"\ntoken_file = \"{}\"\n", secret.display());
    let error = check(&format!("[server]\n{open}{with_secret}")).unwrap_err();
    assert!(error.contains("server.url"), "{error}");
    check(&format!("[server]\n{open}url = \"https://q.example.com/\"\n{with_secret}")).unwrap();
    for wrong in ["q.example.com", "ftp://q", "https://q/?a=b", "https://me:it@q"] {
        let error = check(&format!("[server]\nurl = \"{wrong}\"\n")).unwrap_err();
        assert!(error.contains("server.url"), "{wrong}: {error}");
    }
}

#[tokio::test]
async fn r39_a_target_that_is_away_costs_no_attempts() {
    // A port without a listener.
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/");
    let more = "retry = { max_attempts = 1 }\n[tasks.now]\nexec = { command = [\"true\"] }\n";
    let served = serve(&(task("away", &url, "") + more)).await;
    let began = Instant::now();
    let mut jobs = Vec::new();
    for n in 0..20 {
        jobs.push(served.trigger("away", &format!(r#"{{"n":{n}}}"#)).await["job"].clone());
    }
    // The first pauses are 1, 2 and 4 seconds long.
    for job in &jobs {
        served.job_until(job, |job| job["starts"].as_u64().unwrap() >= 2).await;
    }
    for job in &jobs {
        let shown = served.job_until(job, |job| job["state"] == "scheduled").await;
        let starts = shown["job"]["starts"].as_u64().unwrap();
        assert_eq!((&shown["job"]["attempt"], &shown["job"]["failures"]), (&json!(0), &json!(0)));
        assert!(starts <= 1 + began.elapsed().as_secs(), "{starts} starts: {shown:#}");
    }
    let now = served.trigger("now", "1").await["job"].clone();
    served.ended(&now, JobState::Succeeded).await;
    // It comes back.
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let mut back = tokio::task::JoinSet::new();
    back.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 65_536];
            let _read = stream.read(&mut request).await;
            let done = "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            let _gone = stream.write_all(done.as_bytes()).await;
        }
    });
    for job in &jobs {
        let shown = served.ended(job, JobState::Succeeded).await;
        assert_eq!(shown["job"]["attempt"], 1, "{shown:#}");
    }
    let (_, metrics) = (0, served.text("/metrics").await);
    assert!(metrics.contains(r#"outcome="snoozed""#), "{metrics}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_route_that_takes_completions_needs_no_token() {
    let (served, job, url, _target) = accepted_by("token_file = \"secret\"\n", "1h").await;
    let job_url =
        url.split("/v1/").next().unwrap().to_owned() + "/v1/jobs/" + job.as_str().unwrap();
    let bare = reqwest::Client::new();
    assert_eq!(bare.get(job_url).send().await.unwrap().status(), 401);
    let foreign = bare.request(Method::POST, &url).header("host", "another.example");
    let (status, reply) = answer(foreign.send().await.unwrap()).await;
    assert_eq!((status, &reply["became"]), (200, &json!("succeeded")), "{reply}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r39_the_log_says_that_a_target_is_away_since_when_and_when_it_is_called_again() {
    let (logged, _guard) = crate::logged::Logged::start(tracing::Level::DEBUG);
    let url = format!("http://127.0.0.1:{}/", free_port());
    let served = serve(&task("away", &url, "")).await;
    let job = served.trigger("away", r#"{"n":1}"#).await["job"].clone();
    served.job_until(&job, |job| job["starts"].as_u64().unwrap() >= 2).await;
    served.job_until(&job, |job| job["state"] == "scheduled").await;
    let time = |line: &str, field: &str| {
        let text = line.split(&format!("{field}=\"")).nth(1).unwrap_or_else(|| panic!("{line}"));
        text.split('"').next().unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    let lines = logged.with("target is away");
    let warned: Vec<&String> = lines.iter().filter(|line| line.contains("WARN")).collect();
    let (first, second) = (warned[0], warned[1]);
    for line in [first, second] {
        assert!(line.contains("task=away") && line.contains("Connection refused"), "{line}");
        assert!(time(line, "next_try") > time(line, "since"), "{line}");
    }
    // Seconds are rounded.
    let apart = time(second, "since").duration_since(time(first, "since")).as_secs();
    assert!(apart.abs() <= 1, "since the first failure: {first}\n{second}");
    let of_job = logged.with("job waits, its target is away");
    assert!(of_job[0].contains(&format!("job={}", job.as_str().unwrap())), "{of_job:?}");
    served.server.stop().await.unwrap();
}
