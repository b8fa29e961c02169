//! The ends that workers elsewhere report: each by itself, with its log, counted once.

use std::time::Duration;

use quell::JobState;
use serde_json::{Value, json};

use crate::alerts::alert;
use crate::pull::TASKS;
use crate::served::{Served, serve, serve_with};

/// Jobs of `echo` that are claimed.
async fn claimed(served: &Served, count: usize) -> Vec<Value> {
    for number in 0..count {
        served.trigger("echo", &number.to_string()).await;
    }
    let jobs = served.claim("echo", "0s").await;
    assert_eq!(jobs.len(), count);
    jobs
}

async fn shown(served: &Served, job: &Value) -> Value {
    served.get(&format!("/v1/jobs/{}", job["id"].as_str().unwrap())).await.1
}

#[tokio::test]
async fn r40_a_settlement_that_cannot_be_taken_fails_no_other() {
    let served = serve(TASKS).await;
    let jobs = claimed(&served, 8).await;
    let lease = |place: usize| jobs[place]["lease"].clone();
    let deep = format!("{}{}", "[".repeat(80), "]".repeat(80));
    let deep: Box<serde_json::value::RawValue> = serde_json::from_str(&deep).unwrap();
    let settlements = [
        json!({"lease": lease(0), "outcome": "succeeded"}).to_string(),
        json!({"lease": lease(1), "outcome": "snoozed", "delay": "soon"}).to_string(),
        json!({"lease": lease(2), "outcome": "done"}).to_string(),
        json!({"lease": "x", "outcome": "released"}).to_string(),
        format!(r#"{{"lease":{},"outcome":"succeeded","output":{deep}}}"#, lease(4)),
        json!({"lease": lease(5), "outcome": "failed"}).to_string(),
        "7".to_owned(),
        json!({"lease": lease(7), "outcome": "failed", "error": "e", "permanent": true})
            .to_string(),
    ];
    let body = format!(r#"{{"settlements":[{}]}}"#, settlements.join(","));
    let (status, answer) = served.post("/v1/workers/w/settle", &body).await;
    assert_eq!(status, 200, "{answer}");
    let settled = answer["settled"].as_array().unwrap();
    let fields: Vec<_> = settled
        .iter()
        .map(|one| (one["became"].as_str().unwrap(), one["error"]["field"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(
        fields,
        [
            ("succeeded", ""),
            ("invalid", "settlements[1].delay"),
            ("invalid", "body"),
            ("invalid", "settlements[3].lease"),
            ("invalid", "settlements[4]"),
            ("invalid", "settlements[5].error"),
            ("invalid", "body"),
            ("dead", ""),
        ],
        "{answer:#}"
    );
    assert_eq!((&settled[1]["lease"], &settled[6]["lease"]), (&lease(1), &json!("")));
    assert!(settled[2]["error"]["message"].as_str().unwrap().contains("settlements[2].outcome"));
    // The attempts of the wrong ones go on.
    for place in [1, 2, 3, 4, 5, 6] {
        assert_eq!(shown(&served, &jobs[place]).await["job"]["state"], "running", "{place}");
    }
    let settled = served.settle(json!({"lease": lease(1), "outcome": "released"})).await;
    assert_eq!(settled["became"], "scheduled", "{settled}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn the_log_of_an_attempt_that_did_not_fail_is_shown_with_it() {
    let served = serve(TASKS).await;
    let jobs = claimed(&served, 2).await;
    let report = json!({"lease": jobs[0]["lease"], "progress": 1, "log": ["read"]});
    let renew = json!({"leases": [report], "process": {"incarnation": 5}});
    assert_eq!(served.work("renew", &renew).await.0, 200);
    for (job, outcome) in jobs.iter().zip(["succeeded", "released"]) {
        let end = json!({"lease": job["lease"], "outcome": outcome, "log": ["wrote", "closed"]});
        served.settle(end).await;
    }
    let first = shown(&served, &jobs[0]).await;
    assert_eq!(first["attempts"][0]["log"], json!(["read", "wrote", "closed"]), "{first:#}");
    assert_eq!(first.get("running"), None, "it runs no more");
    let text = first["text"].as_str().unwrap();
    assert!(
        text.ends_with("  log        read\n             wrote\n             closed\n"),
        "{text}"
    );
    let second = shown(&served, &jobs[1]).await;
    assert_eq!(second["attempts"][0]["log"], json!(["wrote", "closed"]), "{second:#}");
    // A repeat adds nothing, and neither does an attempt whose lease is lost.
    served.settle(json!({"lease": jobs[1]["lease"], "outcome": "released", "log": ["no"]})).await;
    let again = shown(&served, &jobs[1]).await;
    assert_eq!(again["attempts"][0]["log"], json!(["wrote", "closed"]), "{again:#}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r19_a_job_that_succeeded_after_a_failure_shows_no_error() {
    let served = serve(TASKS).await;
    let job = claimed(&served, 1).await.remove(0);
    let failed =
        json!({"lease": job["lease"], "outcome": "failed", "error": "no luck", "retry_in": "1ms"});
    assert_eq!(served.settle(failed).await["became"], "scheduled");
    assert_eq!(shown(&served, &job).await["job"]["error"], "no luck");
    let again = served.claim("echo", "20s").await.remove(0);
    served.settle(json!({"lease": again["lease"], "outcome": "succeeded"})).await;
    let whole = shown(&served, &job).await;
    assert_eq!(
        (&whole["job"]["state"], &whole["job"]["error"]),
        (&json!("succeeded"), &json!(null))
    );
    assert_eq!(whole["attempts"][0]["error"], "no luck", "{whole:#}");
    let path = format!("/v1/jobs/{}/result", job["id"].as_str().unwrap());
    let (_, result) = served.get(&path).await;
    assert_eq!((&result["state"], &result["error"]), (&json!("succeeded"), &json!(null)));
    let (_, listed) = served.get("/v1/jobs").await;
    assert_eq!(listed["jobs"][0]["error"], json!(null), "{listed:#}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r27_a_settlement_that_is_sent_again_counts_once() {
    let watched = "[alerts.x]\non = \"failure_rate\"\ntask = \"echo\"\nthreshold = 0.4\n\
                   window = \"5m\"\nmin_attempts = 2\n";
    let served = serve_with("alert_interval = \"10ms\"", &(TASKS.to_owned() + watched)).await;
    let jobs = claimed(&served, 2).await;
    let dead =
        json!({"lease": jobs[0]["lease"], "outcome": "failed", "error": "e", "permanent": true});
    for _ in 0..4 {
        assert_eq!(served.settle(dead.clone()).await["became"], "dead");
    }
    let fine = json!({"lease": jobs[1]["lease"], "outcome": "succeeded"});
    assert_eq!(served.settle(fine).await["became"], "succeeded");
    let raised = alert(&served, "raised", |alert| alert["state"] == "raised").await;
    assert!(raised["measured"].as_str().unwrap().contains("50"), "one of two failed: {raised:#}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r39_a_settlement_that_the_store_fails_for_is_unknown_and_the_others_are_taken() {
    let (api, quell, tasks) = in_process::failing();
    let leases = in_process::claim_all(&quell, &tasks, 5).await;
    let end = |lease: &quell::worker::pull::PullLease| json!({"lease": lease.to_string(), "outcome": "succeeded"});
    let body = json!({"settlements": leases.iter().map(end).collect::<Vec<_>>()});
    let (status, answer) = in_process::ask(&api, "/v1/workers/w/settle", &body).await;
    assert_eq!(status, 200, "{answer}");
    for (lease, settled) in leases.iter().zip(answer["settled"].as_array().unwrap()) {
        let is_bad = lease.lease.job == in_process::BAD;
        let expected = if is_bad { "unknown" } else { "succeeded" };
        assert_eq!(settled["became"], expected, "{answer:#}");
        assert_eq!(settled["error"]["kind"] == "internal", is_bad, "{answer:#}");
        assert_eq!(settled["error"]["id"].is_string(), is_bad, "{answer:#}");
    }
    // Alone it fails the request, which a worker repeats.
    let bad = leases.iter().find(|lease| lease.lease.job == in_process::BAD).unwrap();
    let alone = json!({"settlements": [end(bad)]});
    assert_eq!(in_process::ask(&api, "/v1/workers/w/settle", &alone).await.0, 500);
}

/// Claims that wait have a bound of their own: the server still answers other requests.
#[tokio::test]
async fn at_most_768_claims_wait_at_a_server() {
    crate::served::raise_open_files();
    let (api, tasks) = in_process::api().await;
    let mut claims = tokio::task::JoinSet::new();
    for number in 0..800 {
        let api = api.clone();
        claims.spawn(async move { in_process::claim(api, number, "25s").await });
    }
    for _ in 0..32 {
        let (status, body) = claims.join_next().await.unwrap().unwrap();
        assert_eq!((status, body["error"]["field"].as_str()), (429, Some("wait")), "{body}");
    }
    let more = tokio::time::timeout(Duration::from_millis(200), claims.join_next()).await;
    assert!(more.is_err(), "the others wait: {more:?}");
    let (status, _) = in_process::claim(api, 10_000, "0s").await;
    assert_eq!(status, 200, "one that does not wait needs no place");
    tasks.close();
    while let Some(ended) = claims.join_next().await {
        let (status, body) = ended.unwrap();
        assert_eq!((status, &body["jobs"]), (200, &json!([])));
    }
}

#[tokio::test]
async fn more_completions_than_one_call_settles_may_be_overdue_at_once() {
    let (completions, quell, tasks) = in_process::completions().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let mut watch = tokio::task::JoinSet::new();
    let leases = in_process::claim_all(&quell, &tasks, 2_300).await;
    for lease in &leases {
        completions.expect(lease.clone(), Duration::from_millis(1));
    }
    watch.spawn(completions.watch(stop.clone()));
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    for lease in leases {
        loop {
            let job = quell.store().job(lease.lease.job).await.unwrap().unwrap();
            if job.state == JobState::Dead {
                assert!(job.error.unwrap().contains("did not report the end within 1ms"));
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{:?}", job.state);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    stop.cancel();
    watch.join_next().await.unwrap().unwrap();
}

/// Parts of a server without connections.
mod in_process {
    use std::sync::Arc;

    use async_trait::async_trait;
    use axum::body::Body;
    use quell::store::{
        Answer, Capabilities, EndNotification, MemoryStore, Now, Operation, Store, Wakeups,
    };
    use quell::worker::WorkerId;
    use quell::worker::pull::{PullClaim, PullLease, PullProcess, PullTasks};
    use quell::{Batch, ErrorKind, JobId, Payload, Policy, Quell, TaskName, Timestamp};
    use quell_server::http::{self, Api, Completions};
    use tokio_util::sync::CancellationToken;
    use tower::ServiceExt;

    use super::*;

    /// The job that [`Failing`] cannot settle.
    pub(super) const BAD: JobId = JobId::new(3);

    /// A store that fails for good where a call settles one job.
    #[derive(Debug)]
    struct Failing(MemoryStore);

    #[async_trait]
    impl Store for Failing {
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        async fn call(&self, now: Now, operation: Operation) -> quell::Result<Answer> {
            if let Operation::Settle { settlements } = &operation
                && settlements.iter().any(|one| one.lease.job == BAD)
            {
                return Err(quell::Error::new(ErrorKind::Corrupt, "made up"));
            }
            self.0.call(now, operation).await
        }

        fn wakeups(&self) -> Wakeups {
            self.0.wakeups()
        }

        fn ended(&self, job: JobId) -> EndNotification {
            self.0.ended(job)
        }
    }

    fn pulled(quell: Quell, policy: &Policy) -> (Quell, PullTasks) {
        let tasks = PullTasks::new(quell.clone());
        let tasks = tasks.task(TaskName::new("echo").unwrap(), policy).unwrap();
        (quell, tasks)
    }

    /// The API of a server whose workers pull the task `echo`.
    pub(super) async fn api() -> (axum::Router, PullTasks) {
        let quell = Quell::open("memory:").await.unwrap();
        let (quell, tasks) = pulled(quell, &Policy::default());
        (router(quell, &tasks), tasks)
    }

    /// The same on a store that fails for a job.
    pub(super) fn failing() -> (axum::Router, Quell, PullTasks) {
        let store = Arc::new(Failing(MemoryStore::new(Timestamp::from_secs(1_000))));
        let quell = Quell::with_store(store).build().unwrap();
        let (quell, tasks) = pulled(quell, &Policy::default());
        (router(quell.clone(), &tasks), quell, tasks)
    }

    fn router(quell: Quell, tasks: &PullTasks) -> axum::Router {
        let text = "[tasks.echo]\npull = true\n";
        let path = std::path::Path::new("quell.toml");
        let config = quell_server::config::Config::parse(text, path).unwrap();
        let (pull, stopping) = (tasks.clone(), CancellationToken::new());
        http::router(Api::alone(quell, config, pull.clone(), pull, stopping).unwrap())
    }

    /// The answer to a claim of worker `wNUMBER`.
    pub(super) async fn claim(api: axum::Router, number: u32, wait: &str) -> (u16, Value) {
        let body = json!({"tasks": ["echo"], "wait": wait, "process": {"incarnation": 5}});
        ask(&api, &format!("/v1/workers/w{number}/claim"), &body).await
    }

    pub(super) async fn ask(api: &axum::Router, path: &str, body: &Value) -> (u16, Value) {
        let request = axum::http::Request::post(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()))
            .unwrap();
        let answer = api.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    pub(super) async fn completions() -> (Completions, Quell, PullTasks) {
        let quell = Quell::open("memory:").await.unwrap();
        let (quell, tasks) = pulled(quell, &Policy::default().attempts(1));
        (Completions::new(tasks.clone(), Arc::default()), quell, tasks)
    }

    /// The leases of this number of jobs that run.
    pub(super) async fn claim_all(
        quell: &Quell,
        tasks: &PullTasks,
        count: usize,
    ) -> Vec<PullLease> {
        let task = TaskName::new("echo").unwrap();
        let payload = || Payload::from_stored("1");
        let trigger = |_| Policy::default().trigger(task.clone(), payload(), None).unwrap();
        let triggers: Vec<_> = (0..count).map(trigger).collect();
        for some in triggers.chunks(500) {
            quell.enqueue(Batch { triggers: some.to_vec(), dedup: None }).await.unwrap();
        }
        let process = PullProcess::new(WorkerId::new("w").unwrap(), 5);
        let mut leases = Vec::new();
        while leases.len() < count {
            let claim = PullClaim::new(process.clone(), vec![task.clone()]).limit(1_000);
            let jobs = tasks.claim(claim).await.unwrap().delivered().jobs;
            assert!(!jobs.is_empty());
            leases.extend(jobs.into_iter().map(|job| job.lease));
        }
        leases
    }
}
