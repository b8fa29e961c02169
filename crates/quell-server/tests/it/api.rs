//! The HTTP API: what is accepted, what is refused, who is let in.

use quell::JobState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::served::{TASKS, answer, serve, serve_with};

#[tokio::test]
async fn r03_one_trigger_and_a_batch_are_answered_with_receipts() {
    let served = serve(TASKS).await;
    let first = served.trigger("build", r#"{"repo":"a"}"#).await;
    assert_eq!((&first["receipt"], &first["trigger"]), (&json!("accepted"), &json!("1.1")));
    let batch = r#"[{"payload":{"repo":"a"}},{"payload":{"repo":"b"}},
                    {"payload":{"repo":"c"},"debounce":false}]"#;
    let (status, answers) = served.post("/v1/tasks/build/triggers", batch).await;
    assert_eq!(status, 202, "{answers}");
    let receipts: Vec<&str> =
        answers.as_array().unwrap().iter().map(|a| a["receipt"].as_str().unwrap()).collect();
    assert_eq!(receipts, ["debounced", "accepted", "accepted"]);
    assert_eq!(answers[0]["triggers"], 2);
    served.ended(&answers[2]["job"], JobState::Succeeded).await;

    let dedup = r#"{"payload":1,"dedup":"x","dedup_ttl":"1h"}"#;
    let (_, one) = served.post("/v1/tasks/now/triggers", dedup).await;
    let (_, two) = served.post("/v1/tasks/now/triggers", dedup).await;
    assert_eq!((&two["receipt"], &two["job"]), (&json!("duplicate"), &one["job"]));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_bad_requests_name_the_field_and_write_nothing() {
    let served = serve(TASKS).await;
    let build = "/v1/tasks/build/triggers";
    let now = "/v1/tasks/now/triggers";
    let long_key = format!(r#"{{"payload":{{"repo":"{}"}}}}"#, "k".repeat(513));
    let full_key = format!(r#"{{"payload":{{"repo":"{}"}}}}"#, "k".repeat(512));
    let deep = format!("{{\"payload\":{}{}}}", "[".repeat(64), "]".repeat(64));
    let deepest = format!("{{\"payload\":{}{}}}", "[".repeat(63), "]".repeat(63));
    let deeper = "[".repeat(100_000);
    let table: Vec<(&str, &str, u16, &str)> = vec![
        ("/v1/tasks/nosuch/triggers", "{}", 404, "task"),
        ("/v1/tasks/%3Cimg%3E/triggers", "{}", 404, "task"),
        (now, "{", 400, "body"),
        (now, "{}", 422, "body"),
        (now, r#"{"payload":1,"typo":2}"#, 422, "body"),
        (now, r#"{"payload":1,"delay":"0s"}"#, 422, "delay"),
        (now, r#"{"payload":1,"delay":"-5s"}"#, 422, "delay"),
        (now, r#"{"payload":1,"delay":"soon"}"#, 422, "delay"),
        (now, r#"{"payload":1,"delay":"1s","run_at":"2030-01-01T00:00:00Z"}"#, 422, "delay"),
        (now, r#"{"payload":1,"run_at":"tomorrow"}"#, 422, "run_at"),
        (now, r#"{"payload":1,"dedup":""}"#, 422, "dedup"),
        (now, r#"{"payload":1,"dedup":"x","dedup_ttl":"0s"}"#, 422, "dedup_ttl"),
        (now, r#"{"payload":1,"debounce":{"min":"1s","max":"2s"}}"#, 422, "debounce"),
        (build, r#"{"payload":{"repo":"a"},"debounce":{"min":"2s","max":"1s"}}"#, 422, "min"),
        (build, r#"{"payload":{}}"#, 422, "key"),
        (build, r#"[{"payload":{"repo":"a"}},{"payload":{}}]"#, 422, "triggers[1].key"),
        (build, &long_key, 422, "key"),
        (now, &deep, 400, "body"),
        (now, &deeper, 400, "body"),
    ];
    for (path, body, status, field) in table {
        let (got, reply) = served.post(path, body).await;
        let shown = &body[..body.len().min(80)];
        assert_eq!((got, &reply["error"]["field"]), (status, &json!(field)), "{shown}: {reply}");
    }
    let none: Value = served.get("/v1/jobs").await.1;
    assert_eq!(none["jobs"], json!([]), "something was written");
    for body in [full_key.as_str(), deepest.as_str()] {
        let path = if body == full_key { build } else { now };
        assert_eq!(served.post(path, body).await.0, 202);
    }
    let text = served.request(Method::POST, now).body("{}").send().await.unwrap();
    assert_eq!(answer(text).await.0, 415);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_body_and_payload_hold_their_limits() {
    let served = serve_with("max_body = \"4KiB\"", TASKS).await;
    let body = |bytes: usize| {
        let frame = r#"{"payload":""}"#.len();
        format!(r#"{{"payload":"{}"}}"#, "x".repeat(bytes - frame))
    };
    assert_eq!(served.post("/v1/tasks/now/triggers", &body(4_096)).await.0, 202);
    let (status, reply) = served.post("/v1/tasks/now/triggers", &body(4_097)).await;
    assert_eq!((status, &reply["error"]["field"]), (413, &json!("body")), "{reply}");
    served.server.stop().await.unwrap();

    let served = serve_with("max_body = \"2MiB\"", TASKS).await;
    let (status, reply) = served.post("/v1/tasks/now/triggers", &body((1 << 20) + 100)).await;
    assert_eq!((status, &reply["error"]["field"]), (413, &json!("payload")), "{reply}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r15_jobs_are_listed_shown_and_explained() {
    let served = serve(TASKS).await;
    for repo in ["a", "b", "a"] {
        served.trigger("build", &format!(r#"{{"repo":"{repo}"}}"#)).await;
    }
    let (_, listed) = served.get("/v1/jobs?task=build&state=scheduled&limit=1").await;
    assert_eq!(listed["jobs"][0]["key"], "b");
    let next = listed["next_before"].as_str().unwrap();
    let (_, rest) = served.get(&format!("/v1/jobs?before={next}")).await;
    assert_eq!((&rest["jobs"][0]["key"], &rest["jobs"][0]["triggers"]), (&json!("a"), &json!(2)));

    let (_, reply) = served.get("/v1/explain?key=a&task=build").await;
    assert!(reply["text"].as_str().unwrap().contains("the quiet period"), "{reply}");
    assert_eq!(served.get("/v1/explain?id=1.2").await.1["trigger"], "1.2");
    let refused = [
        ("/v1/jobs?limit=0", 422),
        ("/v1/jobs?limit=201", 422),
        ("/v1/jobs?limit=x", 422),
        ("/v1/jobs?nosuch=1", 422),
        ("/v1/jobs?state=%3Cscript%3E", 422),
        ("/v1/jobs/0", 422),
        ("/v1/jobs/99", 404),
        ("/v1/explain", 422),
        ("/v1/explain?key=zzz", 404),
        ("/v1/nosuch", 404),
    ];
    for (path, status) in refused {
        let (got, reply) = served.get(path).await;
        assert_eq!(got, status, "{path}: {reply}");
        assert!(reply["error"]["message"].is_string(), "{path}: {reply}");
    }
    assert_eq!(served.get("/v1/jobs?limit=200").await.0, 200);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r15_an_idempotency_key_and_a_dedup_key_lead_to_their_job() {
    let served = serve(TASKS).await;
    let body =
        r#"{"payload":{"repo":"a"},"idempotency_key":"i 1","dedup":"d/1","dedup_until":"done"}"#;
    let (status, made) = served.post("/v1/tasks/build/triggers", body).await;
    assert_eq!(status, 202, "{made}");
    served.trigger("build", r#"{"repo":"b"}"#).await;
    for query in [
        "idempotency_key=i%201&task=build",
        "idempotency_key=i%201",
        "dedup_key=d%2F1&task=build",
        "dedup_key=d%2F1",
    ] {
        let (status, found) = served.get(&format!("/v1/explain?{query}")).await;
        assert_eq!((status, &found["job"]["id"]), (200, &made["job"]), "{query}: {found}");
    }
    let refused = [
        ("idempotency_key=d%2F1", 404, "id"),
        ("dedup_key=d%2F1&task=now", 404, "id"),
        ("idempotency_key=&task=build", 422, "idempotency_key"),
        ("idempotency_key=a&dedup_key=b", 422, "id"),
        ("id=1&dedup_key=b", 422, "id"),
        ("task=build", 422, "id"),
    ];
    for (query, status, field) in refused {
        let (got, reply) = served.get(&format!("/v1/explain?{query}")).await;
        assert_eq!((got, &reply["error"]["field"]), (status, &json!(field)), "{query}: {reply}");
    }
    let path = format!("/v1/jobs/{}/cancel", made["job"].as_str().unwrap());
    assert_eq!(served.post(&path, "{}").await.0, 200);
    let (status, reply) = served.get("/v1/explain?dedup_key=d%2F1").await;
    assert_eq!(status, 404, "the end of the job freed the key: {reply}");
    assert_eq!(served.get("/v1/explain?idempotency_key=i%201").await.0, 200, "this one is kept");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r07_windows_are_flushed_and_cancelled_over_http() {
    let served = serve(TASKS).await;
    let a = served.trigger("build", r#"{"repo":"a"}"#).await;
    let (status, _) = served.post("/v1/tasks/build/windows/flush", r#"{"key":"a"}"#).await;
    assert_eq!(status, 200);
    served.ended(&a["job"], JobState::Succeeded).await;
    let b = served.trigger("build", r#"{"repo":"b"}"#).await;
    assert_eq!(served.post("/v1/tasks/build/windows/cancel", r#"{"key":"b"}"#).await.0, 200);
    served.ended(&b["job"], JobState::Cancelled).await;
    assert_eq!(served.post("/v1/tasks/build/windows/flush", r#"{"key":"b"}"#).await.0, 404);
    let path = format!("/v1/jobs/{}/cancel", b["job"].as_str().unwrap());
    let (status, reply) = served.post(&path, "").await;
    assert_eq!((status, &reply["error"]["kind"]), (409, &json!("illegal_move")), "{reply}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn strangers_are_kept_out() {
    let served = serve(TASKS).await;
    let get = |host: &'static str| {
        let request = served.request(Method::GET, "/v1/jobs").header("host", host);
        async move { answer(request.send().await.unwrap()).await.0 }
    };
    let table = [
        ("localhost", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:9", 200),
        ("evil.test", 421),
        ("evil.test:7777", 421),
        ("localhost.evil.test", 421),
        ("", 421),
    ];
    for (host, status) in table {
        assert_eq!(get(host).await, status, "{host:?}");
    }
    let foreign = [("sec-fetch-site", "cross-site"), ("origin", "https://evil.test")];
    for (name, value) in foreign {
        let request = served
            .request(Method::POST, "/v1/tasks/now/triggers")
            .header("content-type", "application/json")
            .header(name, value)
            .body(r#"{"payload":1}"#);
        assert_eq!(answer(request.send().await.unwrap()).await.0, 403, "{name}");
    }
    // Browsers say the origin alone over HTTP to a host that is not this one.
    let own = format!("http://{}", served.server.address());
    let request = served
        .request(Method::POST, "/v1/tasks/now/triggers")
        .header("content-type", "application/json")
        .header("origin", own)
        .body(r#"{"payload":1}"#);
    assert_eq!(answer(request.send().await.unwrap()).await.0, 202);
    let response = served.request(Method::GET, "/v1/healthz").send().await.unwrap();
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert!(!response.headers().contains_key("access-control-allow-origin"));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_token_is_asked_for_where_one_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    crate::served::write_secret(&token, "qll_canary_of_the_token\n");
    let served = serve_with(&format!("token_file = \"{}\"", token.display()), TASKS).await;
    for (shown, status) in [("qll_canary_of_the_token", 200), ("wrong", 401), ("", 401)] {
        let request = served.request(Method::GET, "/v1/jobs").bearer_auth(shown);
        let (got, reply) = answer(request.send().await.unwrap()).await;
        assert_eq!(got, status, "{shown}");
        assert!(!reply.to_string().contains("canary"), "{reply}");
    }
    assert_eq!(served.get("/v1/jobs").await.0, 401);
    assert_eq!(served.get("/v1/healthz").await.0, 200);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn metrics_have_the_names_of_the_contract() {
    let served = serve(TASKS).await;
    let job = served.trigger("now", "1").await["job"].clone();
    served.trigger("build", r#"{"repo":"a"}"#).await;
    served.trigger("build", r#"{"repo":"a"}"#).await;
    served.ended(&job, JobState::Succeeded).await;
    let (_, page) = served.get("/metrics").await;
    let page = page.as_str().unwrap();
    let names = [
        "quell_triggers_total{",
        "quell_task_debounced_total{",
        "quell_task_debounce_delay_seconds_bucket{",
        "quell_attempts_total{",
        "quell_attempt_duration_seconds_bucket{",
        "quell_start_lateness_seconds_bucket{",
        "quell_jobs{",
        "quell_poll_interval_seconds{",
        "quell_poll_claimed_total{",
    ];
    for name in names {
        assert!(page.contains(name), "{name} is missing in:\n{page}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn windows_queues_and_counts_are_read_one_by_one() {
    let served = serve(TASKS).await;
    for repo in ["a", "b", "a"] {
        served.trigger("build", &format!(r#"{{"repo":"{repo}"}}"#)).await;
    }
    let (_, windows) = served.get("/v1/tasks/build/windows").await;
    let shown: Vec<_> = windows["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| (&job["key"], &job["triggers"]))
        .collect();
    assert_eq!(shown, [(&json!("b"), &json!(1)), (&json!("a"), &json!(2))], "{windows}");
    assert!(windows["jobs"][0].get("payload").is_none());
    let (_, page) = served.get("/v1/tasks/build/windows?limit=1&payload=true").await;
    assert_eq!(
        (&page["jobs"][0]["payload"], &page["next_before"]),
        (&json!({"repo": "b"}), &json!("2"))
    );
    assert_eq!(served.get("/v1/tasks/nosuch/windows").await.0, 404);
    let (_, counts) = served.get("/v1/counts").await;
    let expected = json!([{"queue": "default", "task": "build", "state": "scheduled", "jobs": 2}]);
    assert_eq!(counts["counts"], expected);
    let (status, queue) = served.get("/v1/queues/default").await;
    assert_eq!((status, &queue["name"], &queue["paused"]), (200, &json!("default"), &json!(false)));
    assert_eq!(served.get("/v1/queues/nosuch").await.0, 404);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_times_that_cannot_be_meant_name_the_field_the_form_and_the_limit() {
    let served = serve(TASKS).await;
    let table = [
        (r#"{"payload":1,"delay":"99999999999h"}"#, "delay", "the limit is 87600h"),
        (r#"{"payload":1,"delay":"87601h"}"#, "delay", "delay of 87601h is too long"),
        (r#"{"payload":1,"run_at":"tomorrow"}"#, "run_at", "such as 2026-03-01T00:00:00Z"),
        (r#"{"payload":1,"run_at":"2026-03-01"}"#, "run_at", "RFC 3339 with a zone"),
        (r#"{"payload":1,"run_at":"2026-03-01T00:00:00"}"#, "run_at", "RFC 3339 with a zone"),
    ];
    for (body, field, needle) in table {
        let (status, reply) = served.post("/v1/tasks/now/triggers", body).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{body}: {reply}");
        assert!(reply["error"]["message"].as_str().unwrap().contains(needle), "{body}: {reply}");
    }
    let longest = r#"{"payload":1,"delay":"87600h"}"#;
    assert_eq!(served.post("/v1/tasks/now/triggers", longest).await.0, 202);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn the_root_says_what_this_is_and_where_to_go_on() {
    let served = serve_with("token_env = \"PATH\"", TASKS).await;
    let (status, root) = served.get("/").await;
    assert_eq!((status, &root["name"]), (200, &json!("quell")), "{root}");
    assert_eq!(root["version"], env!("CARGO_PKG_VERSION"));
    for link in ["reference", "openapi", "health"] {
        let path = root[link].as_str().unwrap();
        assert_eq!(served.get(path).await.0, 200, "{path}");
    }
    assert_eq!(served.get("/nosuch").await.0, 401, "other paths need the token");
    served.server.stop().await.unwrap();
}
