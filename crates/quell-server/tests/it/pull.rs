//! Workers elsewhere over HTTP: claim, renew, settle, leave.

use std::time::{Duration, Instant};

use quell::JobState;
use serde_json::{Value, json};

use crate::served::{Served, serve};

pub(crate) const TASKS: &str = r#"
[tasks.resize]
pull = true
key = "{{ id }}"
debounce = { min = "100ms", max = "10s" }
timeout = "5m"

[tasks.echo]
pull = true
retry = { min_backoff = "1h", max_attempts = 3 }

[tasks.now]
exec = { command = ["true"] }
"#;

impl Served {
    /// Calls a route of worker `w`.
    pub(crate) async fn work(&self, route: &str, body: &Value) -> (u16, Value) {
        self.post(&format!("/v1/workers/w/{route}"), &body.to_string()).await
    }

    pub(crate) async fn claim(&self, task: &str, wait: &str) -> Vec<Value> {
        let process = json!({"incarnation": 5, "host": "h", "pid": 9, "slots": 4});
        let body = json!({"tasks": [task], "limit": 10, "wait": wait, "process": process});
        let (status, answer) = self.work("claim", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer["jobs"].as_array().unwrap().clone()
    }

    pub(crate) async fn settle(&self, settlement: Value) -> Value {
        let (status, answer) = self.work("settle", &json!({"settlements": [settlement]})).await;
        assert_eq!(status, 200, "{answer}");
        answer["settled"][0].clone()
    }
}

#[tokio::test]
async fn r06_r10_a_burst_is_one_job_for_a_worker_that_waits() {
    let served = serve(TASKS).await;
    let burst = async {
        let trigger = |n: u32| format!(r#"{{"payload":{{"id":7,"n":{n}}}}}"#);
        let all: Vec<String> = (0..40).map(trigger).collect();
        served.post("/v1/tasks/resize/triggers", &format!("[{}]", all.join(","))).await
    };
    let (jobs, _) = tokio::join!(served.claim("resize", "20s"), burst);
    assert_eq!(jobs.len(), 1);
    let job = &jobs[0];
    assert_eq!((&job["triggers"], &job["payload"]["n"]), (&json!(40), &json!(39)));
    assert_eq!(
        (&job["task"], &job["key"], &job["timeout"]),
        (&json!("resize"), &json!("7"), &json!("5m"))
    );
    let lease = &job["lease"];
    let settled = served
        .settle(json!({"lease": lease, "outcome": "succeeded", "output": {"ok": true}}))
        .await;
    assert_eq!(settled["became"], "succeeded", "{settled}");
    let shown = served.ended(&job["id"], JobState::Succeeded).await;
    assert_eq!(shown["job"]["worker"], "w", "{shown}");
    let (_, result) = served.get(&format!("/v1/jobs/{}/result", job["id"].as_str().unwrap())).await;
    assert_eq!(result["output"], json!({"ok": true}));
    let (_, workers) = served.get("/v1/workers").await;
    let row =
        workers["workers"].as_array().unwrap().iter().find(|row| row["worker"] == "w").unwrap();
    assert_eq!(
        (&row["pid"], &row["slots"], &row["queues"], &row["tasks"]),
        (&json!(9), &json!(4), &json!(["default"]), &json!(["resize"]))
    );
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r10_payloads_and_outputs_pass_byte_for_byte() {
    let served = serve(TASKS).await;
    let exact = r#"{"z":12345678901234567890123,"a":1e400,"s":"\ud800","a":2}"#;
    let triggered = served.trigger("echo", exact).await;
    let body = r#"{"tasks":["echo"],"process":{"incarnation":1}}"#;
    let request = served.request(reqwest::Method::POST, "/v1/workers/w/claim");
    let request = request.header("content-type", "application/json").body(body);
    let text = request.send().await.unwrap().text().await.unwrap();
    assert!(text.contains(&format!(r#""payload":{exact},"#)), "{text}");
    let lease = text.split(r#""lease":""#).nth(1).unwrap().split('"').next().unwrap();
    let settle = format!(
        r#"{{"settlements":[{{"lease":"{lease}","outcome":"succeeded","output":{exact}}}]}}"#
    );
    let (status, answer) = served.post("/v1/workers/w/settle", &settle).await;
    assert_eq!(status, 200, "{answer}");
    let path = format!("/v1/jobs/{}/result", triggered["job"].as_str().unwrap());
    assert!(served.text(&path).await.contains(&format!(r#""output":{exact}"#)));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r21_progress_and_log_of_a_running_job_are_shown_and_a_failure_keeps_the_log() {
    let served = serve(TASKS).await;
    served.trigger("echo", "1").await;
    let job = served.claim("echo", "0s").await.remove(0);
    let (lease, path) = (&job["lease"], format!("/v1/jobs/{}", job["id"].as_str().unwrap()));
    let report = json!({"lease": lease, "progress": {"done": 40}, "log": ["one", "two"]});
    let renew = json!({"leases": [report], "process": {"incarnation": 5}});
    let (status, renewed) = served.work("renew", &renew).await;
    assert_eq!((status, &renewed["leases"][0]["state"]), (200, &json!("held")), "{renewed}");
    let (_, shown) = served.get(&path).await;
    assert_eq!(shown["running"], json!({"progress": {"done": 40}, "log": ["one", "two"]}));
    let failed = json!({"lease": lease, "outcome": "failed", "error": "no luck", "retry_in": "5s", "log": ["three"]});
    let settled = served.settle(failed).await;
    assert_eq!(settled["became"], "scheduled", "{settled}");
    let (_, shown) = served.get(&path).await;
    assert_eq!(shown["attempts"][0]["error"], "no luck\nlog: one\n     two\n     three");
    assert_eq!(shown.get("running"), None, "it runs no more");
    let again = served.settle(json!({"lease": lease, "outcome": "released"})).await;
    assert_eq!(again["became"], "refused", "{again}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r21_a_cancelled_job_is_lost_to_its_worker() {
    let served = serve(TASKS).await;
    served.trigger("echo", "1").await;
    let job = served.claim("echo", "0s").await.remove(0);
    let id = job["id"].as_str().unwrap();
    served.post(&format!("/v1/jobs/{id}/cancel"), "").await;
    let renew = json!({"leases": [{"lease": job["lease"]}], "process": {"incarnation": 5}});
    let (_, renewed) = served.work("renew", &renew).await;
    assert_eq!(renewed["leases"][0]["state"], "lost", "{renewed}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r29_a_claim_that_waits_ends_when_the_worker_or_the_server_goes() {
    let served = serve(TASKS).await;
    let began = Instant::now();
    let leaves = async {
        // The claim has a heartbeat on record once it waits.
        let is_there = async || {
            let (_, workers) = served.get("/v1/workers").await;
            workers["workers"].as_array().unwrap().iter().any(|row| row["worker"] == "w")
        };
        while !is_there().await {
            assert!(began.elapsed() < Duration::from_secs(15), "the worker is not listed");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        served.work("leave", &json!({"incarnation": 5})).await
    };
    let (jobs, (status, _)) = tokio::join!(served.claim("echo", "25s"), leaves);
    assert_eq!((jobs.len(), status), (0, 200));
    assert!(began.elapsed() < Duration::from_secs(24), "{:?}", began.elapsed());
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_what_a_worker_cannot_mean_is_refused_by_field() {
    let served = serve(TASKS).await;
    served.trigger("echo", "1").await;
    let job = served.claim("echo", "0s").await.remove(0);
    let lease = &job["lease"];
    let process = json!({"incarnation": 5});
    let claim = |body: Value| ("claim", body);
    let settle = |body: Value| ("settle", json!({"settlements": [body]}));
    let table = [
        (claim(json!({"tasks": ["nope"], "process": process})), 404, "task"),
        (claim(json!({"tasks": ["now"], "process": process})), 422, "tasks"),
        (claim(json!({"tasks": [], "process": process})), 422, "tasks"),
        (claim(json!({"tasks": ["echo"], "wait": "26s", "process": process})), 422, "wait"),
        (claim(json!({"tasks": ["echo"], "wait": "soon", "process": process})), 422, "wait"),
        (claim(json!({"tasks": ["echo"], "limit": 1001, "process": process})), 422, "limit"),
        (claim(json!({"tasks": ["echo"], "lease": "2h", "process": process})), 422, "lease"),
        (claim(json!({"tasks": ["echo"]})), 422, "body"),
        (
            ("renew", json!({"leases": [{"lease": "x"}], "process": process})),
            422,
            "leases[0].lease",
        ),
        (
            (
                "renew",
                json!({"leases": [{"lease": lease, "progress": "x".repeat(5_000)}], "process": process}),
            ),
            422,
            "leases[0].progress",
        ),
        (settle(json!({"lease": "x", "outcome": "released"})), 422, "settlements[0].lease"),
        (settle(json!({"lease": lease, "outcome": "failed"})), 422, "settlements[0].error"),
        (settle(json!({"lease": lease, "outcome": "snoozed"})), 422, "settlements[0].delay"),
        (
            settle(json!({"lease": lease, "outcome": "snoozed", "delay": "99999999999h"})),
            422,
            "settlements[0].delay",
        ),
        (settle(json!({"lease": lease, "outcome": "cancelled"})), 422, "settlements[0].reason"),
        (
            settle(json!({"lease": lease, "outcome": "succeeded", "reason": "r"})),
            422,
            "settlements[0].reason",
        ),
        (settle(json!({"lease": lease, "outcome": "done"})), 422, "body"),
        (("settle", json!({"settlements": []})), 422, "settlements"),
        (("leave", json!({})), 422, "body"),
    ];
    for ((route, body), status, field) in table {
        let (got, answer) = served.work(route, &body).await;
        assert_eq!(
            (got, answer["error"]["field"].as_str()),
            (status, Some(field)),
            "{body}: {answer}"
        );
    }
    // Nothing of it touched the job.
    let settled = served.settle(json!({"lease": lease, "outcome": "snoozed", "delay": "1h"})).await;
    assert_eq!(settled["became"], "scheduled", "{settled}");
    served.server.stop().await.unwrap();
}

#[test]
fn a_task_has_one_handler() {
    let check = |text: &str| {
        let config = quell_server::config::Config::parse(text, std::path::Path::new("quell.toml"));
        config.map(|config| config.tasks.len()).map_err(|error| error.to_string())
    };
    assert_eq!(check("[tasks.a]\npull = true\n"), Ok(1));
    for (text, message) in [
        ("[tasks.a]\npull = false\n", "a task needs a handler: exec, http or pull"),
        ("[tasks.a]\npull = true\nexec = { command = [\"true\"] }\n", "a task has one handler"),
    ] {
        let error = check(text).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}

#[tokio::test]
async fn r15_a_job_that_no_worker_of_this_server_runs_says_so() {
    let served = serve(TASKS).await;
    let trigger = |task: &str, queue: &str| {
        let task = quell::TaskName::new(task).unwrap();
        let payload = quell::Payload::from_stored("1");
        let trigger = quell::Policy::queue(queue).trigger(task, payload, None).unwrap();
        served.server.quell().enqueue(quell::Batch::one(trigger))
    };
    for (task, queue, kind) in
        [("nosuch", "default", "task_undeclared"), ("now", "elsewhere", "other_queue")]
    {
        let job = trigger(task, queue).await.unwrap()[0].job().unwrap();
        let (_, shown) = served.get(&format!("/v1/jobs/{job}")).await;
        let reasons = shown["waiting"]["reasons"].as_array().unwrap();
        let kinds: Vec<_> = reasons.iter().map(|one| one["kind"].as_str().unwrap()).collect();
        assert!(kinds.contains(&kind) && !kinds.contains(&"next_claim"), "{shown:#}");
        assert!(shown["text"].as_str().unwrap().contains("  waiting    this server"), "{shown:#}");
    }
    let (_, receipt) =
        served.post("/v1/tasks/echo/triggers", r#"{"payload":1,"delay":"1h"}"#).await;
    let (_, shown) = served.get(&format!("/v1/jobs/{}", receipt["job"].as_str().unwrap())).await;
    let kinds = |shown: &Value| -> Vec<String> {
        let reasons = shown["waiting"]["reasons"].as_array().unwrap();
        reasons.iter().map(|one| one["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&shown), ["not_due", "no_worker_knows_task"], "no one pulls it: {shown:#}");
    assert!(served.claim("echo", "0s").await.is_empty());
    let (_, shown) = served.get(&format!("/v1/jobs/{}", receipt["job"].as_str().unwrap())).await;
    assert_eq!(kinds(&shown), ["not_due"], "{shown:#}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r28_a_claim_of_an_unknown_task_names_it_and_the_tasks_there_are() {
    let more: String = (0..30).map(|n| format!("[tasks.more-{n:02}]\npull = true\n")).collect();
    let served = serve(&(TASKS.to_owned() + &more)).await;
    let claim = |task: &str| json!({"tasks": ["echo", task], "process": {"incarnation": 5}});
    let (status, answer) = served.work("claim", &claim("nope")).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!((status, &answer["error"]["field"]), (404, &json!("task")), "{answer}");
    assert!(message.contains("no task \"nope\"") && message.contains("echo, more-00"), "{message}");
    assert!(message.ends_with("and 12 more with pull = true"), "{message}");
    assert!(!message.contains("now"), "the server runs it itself: {message}");
    let (_, answer) = served.work("claim", &claim(&"x".repeat(5_000))).await;
    assert!(answer["error"]["message"].as_str().unwrap().len() < 600, "{answer}");
    served.server.stop().await.unwrap();
}
