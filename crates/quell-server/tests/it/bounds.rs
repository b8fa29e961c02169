//! The bounds of the HTTP API that one request can meet, and what refusals name.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::served::{Served, serve};

const TASKS: &str = r#"
[tasks.build]
key = "{{ repo }}"
debounce = { min = "10s", max = "60s" }
exec = { command = ["true"] }

[tasks.limited]
key = "{{ repo }}"
throttle = "10s"
exec = { command = ["true"] }

[tasks.plain]
exec = { command = ["true"] }
"#;

/// Sends bytes and returns what comes back before the connection ends or a while passes.
async fn raw(served: &Served, request: &str) -> String {
    let mut stream = TcpStream::connect(served.server.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    // The answer's end is the connection's end: requests ask for that.
    tokio::time::timeout(Duration::from_secs(20), read).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_request_has_at_most_64_headers() {
    let served = serve(TASKS).await;
    let request = |headers: usize| {
        // Host and Connection are two of them.
        let more: String = (2..headers).map(|n| format!("x-{n}: y\r\n")).collect();
        format!("GET /v1/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n")
    };
    assert!(raw(&served, &request(64)).await.starts_with("HTTP/1.1 200"));
    assert!(raw(&served, &request(65)).await.starts_with("HTTP/1.1 431"));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_head_has_at_most_64_kib() {
    let served = serve(TASKS).await;
    let request = |bytes: usize| {
        let begin = "GET /v1/healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: ";
        let rest = bytes - begin.len() - 4;
        format!("{begin}{}\r\n\r\n", "y".repeat(rest))
    };
    let fits = raw(&served, &request(64 << 10)).await;
    assert!(fits.starts_with("HTTP/1.1 200"), "{fits}");
    let large = raw(&served, &request((64 << 10) + 1)).await;
    assert!(large.starts_with("HTTP/1.1 431"), "{large}");
    served.server.stop().await.unwrap();
}

/// Each bound of a request at its most and at one more.
#[tokio::test]
async fn bounds_hold_at_their_most_and_refuse_one_more() {
    let served = serve(&format!("{TASKS}[tasks.pulled]\npull = true\n")).await;
    let nested = |levels: usize| {
        // The body itself is the first level.
        let inner = levels - 1;
        format!("{{\"payload\":{}{}}}", "[".repeat(inner), "]".repeat(inner))
    };
    let sized = |bytes: usize| {
        let empty = r#"{"payload":""}"#.len();
        format!("{{\"payload\":\"{}\"}}", "x".repeat(bytes - empty))
    };
    let claim = |limit: usize| {
        let process = json!({ "incarnation": 1 });
        json!({ "tasks": ["pulled"], "limit": limit, "wait": "0s", "process": process }).to_string()
    };
    let renewal = |n: usize| {
        let leases = vec![json!({ "lease": "1:1:1" }); n];
        json!({ "leases": leases, "process": { "incarnation": 1 } }).to_string()
    };
    let triggers = "/v1/tasks/plain/triggers";
    let many = "[".repeat(100_000);
    for (what, path, fits, one_more) in [
        ("nested levels", triggers, nested(64), nested(65)),
        ("a body", triggers, sized(1 << 20), sized((1 << 20) + 1)),
        ("a claim", "/v1/workers/w/claim", claim(1_000), claim(1_001)),
        ("brackets", triggers, nested(2), many),
    ] {
        let (status, reply) = served.post(path, &fits).await;
        let is_bound = |reply: &Value| {
            let text = reply["error"]["message"].as_str().unwrap_or_default();
            ["limit", "up to", "at most", "too large", "length"]
                .iter()
                .any(|word| text.contains(word))
        };
        assert!(status < 300 || !is_bound(&reply), "{what}: {status} {reply}");
        let (status, reply) = served.post(path, &one_more).await;
        assert!(matches!(status, 400 | 413 | 422) && is_bound(&reply), "{what}: {status} {reply}");
    }
    let (status, reply) = served.post("/v1/workers/w/renew", &renewal(1_001)).await;
    assert!(matches!(status, 400 | 422), "{status} {reply}");
    assert_eq!(served.get("/v1/jobs?limit=200").await.0, 200);
    assert_eq!(served.get("/v1/jobs?limit=201").await.0, 422);
    served.server.stop().await.unwrap();
}

/// Requirement 18: what is served is part of the program, whatever a path asks for.
#[tokio::test]
async fn no_path_leads_to_a_file() {
    let served = serve(TASKS).await;
    for path in [
        "/../Cargo.toml",
        "/login/../../etc/passwd",
        "/login.css/../x",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/login.css%00.html",
        "/..%2f..%2fetc%2fpasswd",
        "/static/../../etc/passwd",
        "/.git/config",
        "//etc/passwd",
        "/v1/jobs/..%2f..%2fetc%2fpasswd",
        "/v1/queues/%2e%2e%2fx",
        "/\\etc\\passwd",
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let shown = raw(&served, &request).await;
        let status = shown.split(' ').nth(1).unwrap_or_default();
        assert!(matches!(status, "400" | "404" | "422"), "{path}: {shown}");
        assert!(!shown.contains("root:") && !shown.contains("[package]"), "{path}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_body_is_cut_at_its_limit_even_without_a_length() {
    let served = serve(TASKS).await;
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
    let head = "POST /v1/tasks/plain/triggers HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut stream = TcpStream::connect(served.server.address()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    // 17 of these are more than 1 MiB; the body's end never comes.
    for _ in 0..17 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let mut answer = [0; 12];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut answer)).await;
    read.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn slow_callers_delay_no_other_caller() {
    let served = serve(TASKS).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(served.server.address()).await.unwrap();
        stream.write_all(b"GET /v1/jobs HTTP/1.1\r\nhost: loc").await.unwrap();
        slow.push(stream);
    }
    let began = Instant::now();
    assert_eq!(served.get("/v1/healthz").await.0, 200);
    assert!(began.elapsed() < Duration::from_secs(5));
    // The head's time is over after 10 s, and so is the connection.
    let mut rest = Vec::new();
    let ended = slow[0].read_to_end(&mut rest);
    tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap().unwrap();
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_refusals_name_the_parameter_or_the_place_in_the_body() {
    let served = serve(TASKS).await;
    let queries = [
        ("/v1/jobs?limit=201", "limit"),
        ("/v1/jobs?limit=-1", "limit"),
        ("/v1/jobs?stat=dead", "stat"),
        ("/v1/jobs?state=deaf", "state"),
        ("/v1/jobs?state=dead&state=running", "state"),
        ("/v1/jobs?before=x", "before"),
        ("/v1/jobs?task=a%20b", "task"),
        ("/v1/explain?id=x", "id"),
        ("/v1/explain?id=1&key=a", "id"),
        ("/v1/explain?key=a&tsk=b", "tsk"),
    ];
    for (path, field) in queries {
        let (status, reply) = served.get(path).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{path}: {reply}");
    }
    let long = format!("/v1/jobs?key={}", "k".repeat(513));
    assert_eq!(served.get(&long).await.1["error"]["field"], "key");
    assert_eq!(served.get(&long[..long.len() - 1]).await.0, 200);

    let bodies = [
        ("plain", r#"{"payload":1,"run_at":"tomorrow"}"#, "run_at \"tomorrow\""),
        ("plain", r#"{"payload":1,"priority":40000}"#, "at priority"),
        ("plain", r#"{"payload":1,"debounce":{"min":"1s"}}"#, "at debounce"),
        ("plain", r#"{"payload":1,"debounce":{"min":"1s","max":"2s","mox":1}}"#, "at debounce"),
        ("plain", r#"[{"payload":1},{"payload":2,"dlay":"1s"}]"#, "at [1].dlay"),
        ("plain", r#"{"payload":1} x"#, "trailing"),
        ("plain", r#"{"payload":1,"dedup_ttl":"1h"}"#, "needs `dedup`"),
        ("plain", r#"{"payload":1,"dedup_until":"done"}"#, "needs `dedup`"),
        ("limited", r#"{"payload":{"repo":"a"},"debounce":{"min":"1s","max":"2s"}}"#, "throttled"),
    ];
    for (task, body, needle) in bodies {
        let (status, reply) = served.post(&format!("/v1/tasks/{task}/triggers"), body).await;
        let message = reply["error"]["message"].as_str().unwrap_or_default();
        assert!(matches!(status, 400 | 422) && message.contains(needle), "{body}: {reply}");
    }
    let none: Value = served.get("/v1/jobs").await.1;
    assert_eq!(none["jobs"], json!([]), "something was written");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r05_a_batch_holds_10_000_triggers_and_not_one_more() {
    let served = serve(TASKS).await;
    let batch = |n: usize| format!("[{}]", vec![r#"{"payload":{"repo":"a"}}"#; n].join(","));
    let (status, reply) = served.post("/v1/tasks/build/triggers", &batch(10_001)).await;
    assert_eq!((status, &reply["error"]["field"]), (422, &json!("triggers")), "{reply}");
    assert_eq!(served.get("/v1/jobs").await.1["jobs"], json!([]));
    let (status, reply) = served.post("/v1/tasks/build/triggers", &batch(10_000)).await;
    assert_eq!(status, 202);
    assert_eq!(reply[9_999]["triggers"], 10_000);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn an_import_holds_200_jobs_and_a_renewal_1_000_leases_and_not_one_more() {
    let tasks = "[tasks.dies]\nretry = { max_attempts = 1 }\nexec = { command = [\"false\"] }\n\
                 [tasks.pulled]\npull = true\n";
    let served = serve(tasks).await;
    let dead = served.trigger("dies", "{}").await["job"].clone();
    served.ended(&dead, quell::JobState::Dead).await;
    let export = served.get("/v1/dead/exports").await.1["exports"][0].clone();
    let import = |count: usize| json!({ "exports": vec![export.clone(); count] }).to_string();
    let (status, refused) = served.post("/v1/dead/import", &import(201)).await;
    assert_eq!((status, &refused["error"]["field"]), (422, &json!("exports")), "{refused}");
    let (status, imported) = served.post("/v1/dead/import", &import(200)).await;
    assert_eq!((status, imported["jobs"].as_array().map(Vec::len)), (200, Some(200)), "{imported}");

    served.trigger("pulled", "{}").await;
    let claim = r#"{"tasks":["pulled"],"process":{"incarnation":1}}"#;
    let (status, claimed) = served.post("/v1/workers/w/claim", claim).await;
    assert_eq!(status, 200, "{claimed}");
    let lease = json!({ "lease": claimed["jobs"][0]["lease"] });
    let renew = |count: usize| {
        json!({ "leases": vec![lease.clone(); count], "process": { "incarnation": 1 } }).to_string()
    };
    let (status, refused) = served.post("/v1/workers/w/renew", &renew(1_001)).await;
    assert_eq!((status, &refused["error"]["field"]), (422, &json!("leases")), "{refused}");
    let (status, renewed) = served.post("/v1/workers/w/renew", &renew(1_000)).await;
    assert_eq!(
        (status, renewed["leases"].as_array().map(Vec::len)),
        (200, Some(1_000)),
        "{renewed}"
    );
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn dead_jobs_of_known_tasks_are_counted_from_zero() {
    let served = serve(TASKS).await;
    let (_, page) = served.get("/metrics").await;
    let page = page.as_str().unwrap();
    assert!(page.contains("quell_dead_jobs{queue=\"default\",task=\"build\"} 0\n"), "{page}");
    served.server.stop().await.unwrap();
}
