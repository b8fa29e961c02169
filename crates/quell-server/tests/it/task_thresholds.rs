//! Thresholds that an operator sets for a task: over HTTP and on the command line (R14).

use quell_server::access::{Limits, NewToken, Tokens};
use reqwest::Method;
use serde_json::{Value, json};

use crate::binary::{Process, text};
use crate::served::{Served, answer, serve, serve_with};

const TASKS: &str = r#"
[tasks.own]
key = "{{ k }}"
debounce = { min = "1h", max = "2h" }
pull = true

[tasks.spread]
key = "{{ k }}"
throttle = "9s"
pull = true

[tasks."acme.own"]
key = "{{ k }}"
pull = true
"#;

const PATH: &str = "/v1/tasks/own";

async fn send(served: &Served, method: Method, path: &str, body: &str) -> (u16, Value) {
    let request = served.request(method, path).header("content-type", "application/json");
    answer(request.body(body.to_owned()).send().await.unwrap()).await
}

async fn patch(served: &Served, body: &str) -> Value {
    let (status, reply) = send(served, Method::PATCH, PATH, body).await;
    assert_eq!(status, 200, "{reply}");
    reply
}

/// The seconds from a new window's first trigger to when it is due.
async fn due(served: &Served, key: &str, more: &str) -> u64 {
    let body = format!(r#"{{"payload":{{"k":"{key}"}}{more}}}"#);
    let (status, receipt) = served.post("/v1/tasks/own/triggers", &body).await;
    assert_eq!(status, 202, "{receipt}");
    let id = receipt["job"].as_str().unwrap().parse().unwrap();
    let window = served.server.quell().job(id).await.unwrap().unwrap().window;
    window.due_at.since(window.first_at).as_secs()
}

#[tokio::test]
async fn r14_thresholds_of_a_task_count_at_the_server_until_they_are_cleared() {
    let served = serve(TASKS).await;
    assert_eq!(due(&served, "declared", "").await, 3_600);
    let set = json!({ "min": "1m", "max": "5m" });
    let reply = patch(&served, r#"{"debounce":{"min":"60s","max":"5m"}}"#).await;
    assert_eq!(reply, json!({ "name": "own", "paused": false, "debounce": set }));
    assert_eq!(served.get(PATH).await.1, reply);
    assert_eq!(due(&served, "set", "").await, 60);
    let own = r#","debounce":{"min":"7s","max":"9s"}"#;
    assert_eq!(due(&served, "brings its own", own).await, 7);

    // In force, and where it comes from.
    let policy = served.get("/v1/tasks/own/policy").await.1;
    let settings = policy["settings"].as_array().unwrap();
    let min = settings.iter().find(|setting| setting["name"] == "debounce.min").unwrap();
    assert_eq!((&min["value"], &min["from"]), (&json!("1m"), &json!("operator")));
    let what_if = served.get("/v1/tasks/own/what-if").await.1;
    let pairs = what_if["pairs"].as_array().unwrap();
    let current = pairs.iter().find(|pair| pair["current"] == true).unwrap();
    assert_eq!((&what_if["from_setting"], &current["max"]), (&json!("operator"), &json!("5m")));

    // A pause and thresholds are apart.
    let paused = served.post("/v1/tasks/own/pause", r#"{"by":"ann"}"#).await.1;
    assert_eq!((&paused["paused_by"], &paused["debounce"]), (&json!("ann"), &set));
    let changed = patch(&served, r#"{"debounce":{"min":"2m","max":"5m"}}"#).await;
    assert_eq!((&changed["paused_by"], &changed["debounce"]["min"]), (&json!("ann"), &json!("2m")));
    let resumed = served.post("/v1/tasks/own/resume", "").await.1;
    assert_eq!((&resumed["paused"], &resumed["debounce"]["min"]), (&json!(false), &json!("2m")));
    assert_eq!(patch(&served, "{}").await, resumed, "nothing is named");

    assert_eq!(
        patch(&served, r#"{"debounce":null}"#).await,
        json!({ "name": "own", "paused": false })
    );
    assert_eq!(due(&served, "cleared", "").await, 3_600);
    let body = r#"{"paused":true,"debounce":{"min":"3m","max":"5m"}}"#;
    assert_eq!(send(&served, Method::PUT, PATH, body).await.0, 200);
    assert_eq!(due(&served, "replaced", "").await, 180);
    let (_, replaced) = send(&served, Method::PUT, PATH, r#"{"paused":true}"#).await;
    assert_eq!((&replaced["paused"], &replaced["debounce"]), (&json!(true), &Value::Null));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r14_r40_thresholds_of_a_task_that_cannot_be_meant_are_refused() {
    let served = serve(TASKS).await;
    for (path, body, field) in [
        (PATH, r#"{"debounce":{"min":"2m","max":"1m"}}"#, "min"),
        (PATH, r#"{"debounce":{"min":"0s","max":"1m"}}"#, "body"),
        (PATH, r#"{"debounce":{"min":"1m"}}"#, "body"),
        (PATH, r#"{"debounce":"1m"}"#, "body"),
        (PATH, r#"{"min":"1m"}"#, "body"),
        ("/v1/tasks/spread", r#"{"debounce":{"min":"1m","max":"5m"}}"#, "debounce"),
        ("/v1/tasks/nosuch", r#"{"debounce":{"min":"1m","max":"5m"}}"#, "task"),
    ] {
        for method in [Method::PUT, Method::PATCH] {
            let (status, refused) = send(&served, method, path, body).await;
            let expected = if field == "task" { 404 } else { 422 };
            let found = (status, &refused["error"]["field"]);
            assert_eq!(found, (expected, &json!(field)), "{body}: {refused}");
        }
    }
    let (_, refused) =
        send(&served, Method::PATCH, "/v1/tasks/spread", r#"{"debounce":{"min":"1m","max":"5m"}}"#)
            .await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("throttled"), "{refused}");
    assert_eq!(send(&served, Method::PATCH, "/v1/tasks/spread", r#"{"paused":true}"#).await.0, 200);
    assert_eq!(served.get(PATH).await.1, json!({ "name": "own", "paused": false }));
    served.server.stop().await.unwrap();
}

/// Rights, the tag, and the audit, as of a queue's settings.
#[tokio::test]
async fn r14_thresholds_of_a_task_need_admin_and_are_on_record() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.json");
    Tokens::make(&file).unwrap();
    let tokens = Tokens::open(&file).unwrap();
    let add = |name: &str, scopes: &[&str], tasks: &[&str]| {
        let limits = Limits {
            tasks: tasks.iter().map(|task| task.parse().unwrap()).collect(),
            queues: vec![],
        };
        let scopes = scopes.iter().map(|scope| scope.parse().unwrap()).collect();
        let new = NewToken { name: name.to_owned(), scopes, limits, expires_at: None };
        tokens.add(new).unwrap().token
    };
    let [operate, admin, limited] = [
        add("operate", &["operate"], &[]),
        add("admin", &["admin"], &[]),
        add("acme", &["admin"], &["acme.*"]),
    ];
    let served = serve_with(&format!("tokens = {file:?}"), TASKS).await;
    let body = r#"{"debounce":{"min":"1m","max":"5m"}}"#;
    let ask = async |token: &str, path: &str, tag: Option<&str>| {
        let request = served.request(Method::PATCH, path).bearer_auth(token);
        let request = request.header("content-type", "application/json").body(body);
        let request = tag.into_iter().fold(request, |request, tag| request.header("if-match", tag));
        answer(request.send().await.unwrap()).await
    };
    assert_eq!(ask(&operate, PATH, None).await.0, 403);
    assert_eq!(ask(&limited, PATH, None).await.0, 404, "it sees no such task");
    assert_eq!(ask(&limited, "/v1/tasks/acme.own", None).await.0, 200);
    let shown = served.request(Method::GET, PATH).bearer_auth(&admin).send().await.unwrap();
    let tag = shown.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(ask(&admin, PATH, Some(&tag)).await.0, 200);
    let (status, refused) = ask(&admin, PATH, Some(&tag)).await;
    assert_eq!((status, &refused["error"]["field"]), (412, &json!("if-match")));

    let audit = served.request(Method::GET, "/v1/audit").bearer_auth(&admin).send().await.unwrap();
    let audit = answer(audit).await.1;
    let entries = audit["entries"].as_array().unwrap();
    let entry =
        entries.iter().find(|entry| entry["path"] == PATH && entry["status"] == 200).unwrap();
    assert_eq!(entry["operation"], "tasks_patch", "{entry}");
    assert_eq!(entry["before"]["debounce"], Value::Null, "{entry}");
    assert_eq!(entry["after"]["debounce"], json!({ "min": "1m", "max": "5m" }), "{entry}");
    served.server.stop().await.unwrap();
}

#[test]
fn r14_thresholds_of_a_task_are_set_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    let server = format!("[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n{TASKS}");
    std::fs::write(&config, server).unwrap();
    let process = Process::serve(&config, &[]);
    let ask = |args: &[&str]| text(&process.ask(args));
    assert!(ask(&["trigger", "own", r#"{"k":"a"}"#]).0);
    for source in [vec![], vec!["--store", store.as_str()]] {
        let run = |args: &[&str]| ask(&[args, &source].concat());
        let set = run(&["task", "set", "own", "--debounce", "1m/5m"]);
        assert_eq!(set, (true, "task own is set\n".to_owned()));
        assert!(run(&["task", "pause", "own"]).0);
        let listed = run(&["task", "list"]).1;
        let row = listed.lines().find(|line| line.starts_with("own ")).unwrap_or(&listed);
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["own", "true", "1m/5m"]);
        assert!(run(&["task", "resume", "own"]).0);
        assert!(run(&["task", "set", "own", "--debounce", "none"]).0);
        assert!(!run(&["task", "list"]).1.contains("1m/5m"));
        for wrong in ["7", "1m/7", "5m/1m"] {
            let (fine, refused) = run(&["task", "set", "own", "--debounce", wrong]);
            assert!(!fine && refused.contains('m'), "{wrong}: {refused}");
        }
        assert!(!run(&["task", "set", "nosuch", "--debounce", "1m/5m"]).0);
    }
}
