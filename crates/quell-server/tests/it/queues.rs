//! Queues and tasks as operators set them: over HTTP, on the command line, in the configuration.

use std::path::Path;
use std::time::Duration;

use quell::queue::QueueSettings;
use quell::schedule::{Schedule, Spec};
use quell::{JobState, Timestamp};
use quell_server::config::Config;
use quell_server::declare::Apply;
use quell_server::serve::Server;
use reqwest::Method;
use serde_json::{Value, json};

use crate::binary::{Process, quell, text};
use crate::served::{Served, answer, serve};

const TASKS: &str = r#"
[queues.default]
concurrency = 4
partition_concurrency = 1
rate = { limit = 100, period = "1m" }

[tasks.now]
partition = "{{ customer }}"
exec = { command = ["true"] }
"#;

async fn send(served: &Served, method: Method, path: &str, body: &str) -> (u16, Value) {
    let request = served.request(method, path).header("content-type", "application/json");
    answer(request.body(body.to_owned()).send().await.unwrap()).await
}

#[tokio::test]
async fn r31_partitions_of_a_queue_are_listed_by_what_waits_in_them() {
    let served = serve(TASKS).await;
    assert_eq!(served.post("/v1/queues/default/pause", "").await.0, 200);
    for customer in ["a", "b/c", "b/c"] {
        served.trigger("now", &json!({ "customer": customer }).to_string()).await;
    }
    let later = r#"{"payload":{"customer":"a"},"delay":"1h"}"#;
    for _ in 0..2 {
        assert_eq!(served.post("/v1/tasks/now/triggers", later).await.0, 202);
    }
    let (status, listed) = served.get("/v1/queues/default/partitions").await;
    assert_eq!((status, &listed["whole"]), (200, &json!(true)), "{listed}");
    let partitions = listed["partitions"].as_array().unwrap();
    let shown = partitions.iter().map(|one| {
        let waits = (one["due"].as_u64().unwrap(), one["later"].as_u64().unwrap());
        (one["partition"].as_str().unwrap(), waits, one["running"].as_u64().unwrap())
    });
    assert_eq!(shown.collect::<Vec<_>>(), [("a", (1, 2), 0), ("b/c", (2, 0), 0)]);
    let first = partitions[0]["first_due"].as_str().unwrap().parse::<jiff::Timestamp>();
    let now = listed["now"].as_str().unwrap().parse::<jiff::Timestamp>();
    assert!(first.unwrap() <= now.unwrap(), "{listed}");
    assert_eq!(served.get("/v1/queues/none/partitions").await.0, 404);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r32_r33_queues_are_listed_set_paused_and_deleted() {
    let served = serve(TASKS).await;
    let (_, listed) = served.get("/v1/queues").await;
    let expected = json!({
        "name": "default", "concurrency": 4, "worker_concurrency": null,
        "partition_concurrency": 1, "rate": { "limit": 100, "period": "1m" },
        "partition_rate": null, "paused": false, "debounce": null,
    });
    assert_eq!(listed["queues"], json!([expected]));
    let path = "/v1/queues/default";
    let (status, reply) = served.post("/v1/queues/default/pause", r#"{"by":"ann"}"#).await;
    assert_eq!((status, &reply["paused"], &reply["concurrency"]), (200, &json!(true), &json!(4)));
    let shown = served.get(path).await.1;
    assert_eq!((&shown, &shown["paused_by"]), (&reply, &json!("ann")));
    let since = shown["paused_since"].as_str().unwrap().to_owned();
    let (status, reply) = served.post("/v1/queues/default/pause", "").await;
    assert_eq!((status, &reply), (200, &shown), "it stays paused");
    let job = served.trigger("now", r#"{"customer":"acme"}"#).await["job"].clone();
    let shown = served.get(&format!("/v1/jobs/{}", job.as_str().unwrap())).await.1;
    assert_eq!(
        (&shown["job"]["state"], &shown["job"]["partition"]),
        (&json!("scheduled"), &json!("acme"))
    );
    let reason = &shown["waiting"]["reasons"][0];
    assert_eq!(
        (&reason["kind"], &reason["since"], &reason["by"]),
        (&json!("queue_paused"), &json!(since), &json!("ann")),
        "{shown}"
    );

    let patch = r#"{"rate":null,"paused":false}"#;
    let (status, reply) = send(&served, Method::PATCH, path, patch).await;
    assert_eq!((status, &reply["rate"], &reply["concurrency"]), (200, &Value::Null, &json!(4)));
    assert_eq!((reply.get("paused_since"), reply.get("paused_by")), (None, None), "{reply}");
    served.ended(&job, JobState::Succeeded).await;
    let (status, reply) = send(&served, Method::PUT, path, r#"{"worker_concurrency":2}"#).await;
    assert_eq!((status, &reply["concurrency"]), (200, &Value::Null));

    assert_eq!(send(&served, Method::DELETE, path, "").await.0, 200);
    assert_eq!(send(&served, Method::DELETE, path, "").await.0, 404);
    assert_eq!(served.get("/v1/queues").await.1["queues"], json!([]));
    let named = r#"{"payload":{},"partition":"b"}"#;
    let (status, waits) = served.post("/v1/tasks/now/triggers", named).await;
    assert_eq!(status, 202, "{waits}");
    assert_eq!(send(&served, Method::PUT, path, "{}").await.0, 200);
    served.ended(&waits["job"], JobState::Succeeded).await;
    served.server.stop().await.unwrap();
}

/// Of two operators who read the same settings, the second one learns of the first.
#[tokio::test]
async fn r32_settings_are_replaced_by_who_has_seen_them() {
    let served = serve(TASKS).await;
    let tag = async |path: &str| {
        let response = served.request(Method::GET, path).send().await.unwrap();
        response.headers()["etag"].to_str().unwrap().to_owned()
    };
    let send = async |method: Method, path: &str, tag: &str, body: &str| {
        let request = served.request(method, path).header("content-type", "application/json");
        let request = request.header("if-match", tag).body(body.to_owned());
        answer(request.send().await.unwrap()).await
    };
    let path = "/v1/queues/default";
    let read = tag(path).await;
    assert_eq!(tag(path).await, read, "it is stable");
    let (status, reply) = send(Method::PUT, path, &read, r#"{"concurrency":2}"#).await;
    assert_eq!((status, &reply["concurrency"]), (200, &json!(2)));
    for method in [Method::PUT, Method::PATCH] {
        let (status, reply) = send(method, path, &read, r#"{"concurrency":3}"#).await;
        let expected = (412, &json!("changed"), &json!("if-match"));
        assert_eq!((status, &reply["error"]["kind"], &reply["error"]["field"]), expected);
    }
    assert_eq!(send(Method::POST, "/v1/queues/default/pause", &read, "").await.0, 412);
    assert_eq!(send(Method::DELETE, path, &read, "").await.0, 412);
    assert_eq!(served.get(path).await.1["concurrency"], 2);
    let (status, _) = send(Method::PATCH, path, &tag(path).await, r#"{"paused":true}"#).await;
    assert_eq!((status, &served.get(path).await.1["concurrency"]), (200, &json!(2)));
    assert_eq!(send(Method::PUT, "/v1/queues/new", "*", "{}").await.0, 412, "there is none");
    let (paused, open) = (r#"{"paused":true}"#, "{}");
    for (method, body) in [(Method::PUT, open), (Method::PUT, paused), (Method::PATCH, paused)] {
        let request = served.request(method, path).header("content-type", "application/json");
        let response = request.body(body).send().await.unwrap();
        let answered = response.headers()["etag"].to_str().unwrap().to_owned();
        assert_eq!(answered, tag(path).await, "the answer has the tag of what is there: {body}");
    }

    let path = "/v1/tasks/now";
    let read = tag(path).await;
    assert_eq!(send(Method::PUT, path, &read, r#"{"paused":true}"#).await.1["paused"], true);
    assert_eq!(send(Method::PUT, path, &read, r#"{"paused":true}"#).await.0, 412);
    let shown = served.get(path).await.1;
    assert_eq!((&shown["name"], &shown["paused"]), (&json!("now"), &json!(true)), "{shown}");
    assert_eq!(served.get("/v1/tasks/nosuch").await.0, 404);
    served.server.stop().await.unwrap();
}

/// Each changes a field of its own, and no change is lost.
#[tokio::test]
async fn r32_patches_that_race_keep_each_others_fields() {
    let served = serve(TASKS).await;
    let path = "/v1/queues/default";
    let patches = [r#"{"concurrency":7}"#, r#"{"worker_concurrency":3}"#, r#"{"rate":null}"#];
    let sent = patches.map(|body| send(&served, Method::PATCH, path, body));
    for (status, reply) in futures_util::future::join_all(sent).await {
        assert_eq!(status, 200, "{reply}");
    }
    let shown = served.get(path).await.1;
    let fields = ["concurrency", "worker_concurrency", "rate"].map(|field| shown[field].clone());
    assert_eq!(fields, [json!(7), json!(3), Value::Null], "{shown}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r33_tasks_are_listed_paused_and_resumed() {
    let served = serve(TASKS).await;
    let paused = served.post("/v1/tasks/now/pause", r#"{"by":"ann"}"#).await.1;
    assert_eq!((&paused["paused"], &paused["paused_by"]), (&json!(true), &json!("ann")));
    assert!(paused["paused_since"].is_string(), "{paused}");
    let job = served.trigger("now", r#"{"customer":"a"}"#).await["job"].clone();
    let tasks = served.get("/v1/tasks").await.1;
    assert_eq!(tasks["tasks"], json!([paused]));
    let shown = served.get(&format!("/v1/jobs/{}", job.as_str().unwrap())).await.1;
    assert_eq!(shown["job"]["state"], "scheduled");
    let resumed = served.post("/v1/tasks/now/resume", "").await.1;
    assert_eq!(resumed, json!({ "name": "now", "paused": false }));
    served.ended(&job, JobState::Succeeded).await;
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_settings_that_cannot_be_meant_name_the_field_and_change_nothing() {
    let served = serve(TASKS).await;
    let before = served.get("/v1/queues").await.1;
    let path = "/v1/queues/default";
    let long = json!({ "by": "x".repeat(256) }).to_string();
    let table: [(Method, &str, &str, u16, &str); 16] = [
        (Method::POST, "/v1/queues/default/pause", &long, 422, "paused_by"),
        (Method::POST, "/v1/tasks/now/pause", &long, 422, "paused_by"),
        (Method::POST, "/v1/queues/default/pause", r#"{"typo":1}"#, 422, "body"),
        (Method::PUT, path, r#"{"typo":1}"#, 422, "body"),
        (Method::PUT, path, "[]", 422, "body"),
        (Method::PUT, path, r#"{"rate":{"limit":0,"period":"1s"}}"#, 422, "rate"),
        (Method::PUT, path, r#"{"rate":{"limit":1,"period":"0s"}}"#, 422, "body"),
        (Method::PATCH, path, r#"{"worker_concurrency":5}"#, 422, "worker_concurrency"),
        (Method::PATCH, path, r#"{"partition_concurrency":5}"#, 422, "partition_concurrency"),
        (Method::PATCH, path, r#"{"worker_concurrency":0}"#, 422, "worker_concurrency"),
        (Method::PATCH, path, r#"{"concurrency":-1}"#, 422, "body"),
        (Method::PUT, path, r#"{"concurrency":1.5}"#, 422, "body"),
        (Method::PATCH, path, r#"{"typo":1}"#, 422, "body"),
        (Method::PATCH, "/v1/queues/nosuch", "{}", 404, "queue"),
        (Method::POST, "/v1/queues/nosuch/pause", "", 404, "queue"),
        (Method::POST, "/v1/tasks/nosuch/pause", "", 404, "task"),
    ];
    for (method, path, body, status, field) in table {
        let (got, reply) = send(&served, method, path, body).await;
        assert_eq!(
            (got, &reply["error"]["field"]),
            (status, &json!(field)),
            "{path} {body}: {reply}"
        );
    }
    let (status, reply) =
        served.post("/v1/tasks/now/triggers", r#"{"payload":{},"partition":""}"#).await;
    assert_eq!((status, &reply["error"]["field"]), (422, &json!("partition")));
    assert_eq!(served.get("/v1/queues").await.1, before);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r31_a_concurrency_of_0_starts_nothing_until_it_is_raised() {
    let other = "[tasks.other]\nqueue = \"other\"\nexec = { command = [\"true\"] }\n";
    let served = serve(&format!("{TASKS}{other}")).await;
    let path = "/v1/queues/default";
    let (status, reply) = send(&served, Method::PATCH, path, r#"{"concurrency":0}"#).await;
    assert_eq!((status, &reply["concurrency"], &reply["paused"]), (200, &json!(0), &json!(false)));
    let held = served.trigger("now", r#"{"customer":"a"}"#).await["job"].clone();
    // What came later to another queue has run, so the worker was there.
    let free = served.trigger("other", "{}").await["job"].clone();
    served.ended(&free, JobState::Succeeded).await;
    let shown = served.get(&format!("/v1/jobs/{}", held.as_str().unwrap())).await.1;
    assert_eq!(shown["job"]["state"], "scheduled");
    let (status, _) = send(&served, Method::PATCH, path, r#"{"concurrency":1}"#).await;
    assert_eq!(status, 200);
    served.ended(&held, JobState::Succeeded).await;
    served.server.stop().await.unwrap();
}

/// What the command printed.
async fn run(args: &[&str]) -> (bool, String) {
    let output = tokio::task::spawn_blocking({
        let mut command = quell(args);
        move || command.output().unwrap()
    });
    let output = output.await.unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), text.concat())
}

#[tokio::test]
async fn r32_r33_the_command_line_sets_queues_of_a_server_and_of_a_store() {
    let served = serve(TASKS).await;
    let server = format!("http://{}", served.server.address());
    let store = format!("sqlite://{}", served.folder.path().join("q.db").display());
    for place in [["--server", &server], ["--store", &store]] {
        let with = |args: &[&'static str]| [args, &place].concat().join("\u{1}");
        let run = async |args: &[&'static str]| {
            let args = with(args);
            run(&args.split('\u{1}').collect::<Vec<_>>()).await
        };
        let set = ["queue", "set", "default", "--rate", "7/1m30s", "--concurrency", "none"];
        assert_eq!(run(&set).await, (true, "queue default is set\n".to_owned()));
        assert!(run(&["queue", "pause", "default", "--by", "ann"]).await.1.contains("is paused"));
        let (_, listed) = run(&["queue", "list", "--json"]).await;
        assert!(listed.contains(r#""paused_by":"ann""#), "{listed}");
        let (_, listed) = run(&["queue", "list"]).await;
        assert!(listed.contains("default  true    -") && listed.contains("7/1m30s"), "{listed}");
        assert!(run(&["queue", "resume", "default"]).await.0);
        let wrong = ["queue", "set", "default", "--rate", "0/1s"];
        let (fine, reply) = run(&wrong).await;
        assert!(!fine && reply.contains("rate"), "{reply}");
        assert!(!run(&["queue", "set", "default", "--rate", "7"]).await.0);
        assert!(run(&["queue", "delete", "default"]).await.0);
        let (fine, reply) = run(&["queue", "resume", "default"]).await;
        assert!(!fine && reply.contains("no") && reply.contains("queue"), "{reply}");
        assert!(run(&["queue", "set", "default", "--partition-concurrency", "2"]).await.0);
        served.trigger("now", r#"{"customer":"a"}"#).await;
        assert!(run(&["task", "pause", "now"]).await.1.contains("task now is paused"));
        let (_, listed) = run(&["task", "list"]).await;
        assert!(listed.contains("now   true"), "{listed}");
        let (_, listed) = run(&["task", "list", "--json"]).await;
        assert!(listed.contains(r#""paused_since":"20"#), "{listed}");
        assert!(run(&["task", "resume", "now"]).await.0);
        assert!(!run(&["task", "pause", "nosuch"]).await.0);
    }
    served.server.stop().await.unwrap();
}

#[test]
fn r40_limits_of_the_configuration_name_their_field() {
    let parse = |text: &str| Config::parse(text, Path::new("quell.toml")).unwrap_err().to_string();
    let reply = parse("[queues.q]\nconcurrency = 1\nworker_concurrency = 2\n");
    assert!(reply.contains("queues.q.worker_concurrency: "), "{reply}");
    let reply = parse("[queues.q]\nrate = { limit = 0, period = \"1s\" }\n");
    assert!(reply.contains("queues.q.rate: "), "{reply}");
    let reply = parse("[tasks.t]\npartition = \"{{\"\nexec = { command = [\"true\"] }\n");
    assert!(reply.contains("tasks.t.partition: "), "{reply}");
}

/// A server on the store of this folder, with these settings.
async fn start(folder: &Path, settings: &str, apply: Apply) -> Server {
    let url = folder.join("q.db");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n{settings}\n",
        url.display()
    );
    let config = Config::parse(&text, &folder.join("quell.toml")).unwrap();
    Server::start(Config { apply, ..config }, None).await.unwrap()
}

/// An edit of the file is applied once; what operators change after that is theirs.
#[tokio::test]
async fn r32_what_an_operator_changed_survives_a_restart_until_its_declaration_changes() {
    const FIRST: &str = "[queues.q]\nconcurrency = 2\n[tasks.t]\nexec = { command = [\"true\"] }\n\
                         [schedules.s]\ntask = \"t\"\nevery = \"1h\"";
    let folder = tempfile::tempdir().unwrap();
    let shown = async |server: &Server| {
        let queue = server.quell().queue("q").settings().await.unwrap().unwrap();
        let schedule = server.quell().schedules().await.unwrap().remove(0).schedule;
        (
            queue.concurrency,
            schedule.spec.next(Timestamp::from_secs(0)).unwrap().as_micros() / 1_000_000,
        )
    };
    let restarted = async |settings: &str, apply: Apply| {
        let server = start(folder.path(), settings, apply).await;
        let shown = shown(&server).await;
        server.stop().await.unwrap();
        shown
    };
    let server = start(folder.path(), FIRST, Apply::Changed).await;
    assert_eq!(shown(&server).await, (Some(2), 3_600));
    let quell = server.quell();
    quell.queue("q").set(&QueueSettings::default().concurrency(7)).await.unwrap();
    let known = quell.schedules().await.unwrap().remove(0).schedule;
    let spec = Spec::every(Duration::from_secs(60), Timestamp::from_secs(0)).unwrap();
    quell.set_schedule(Schedule { spec, declared: None, ..known }).await.unwrap();
    server.stop().await.unwrap();
    assert_eq!(restarted(FIRST, Apply::Changed).await, (Some(7), 60), "not declared again");
    let edited = FIRST.replace("concurrency = 2", "concurrency = 3");
    assert_eq!(restarted(&edited, Apply::Changed).await, (Some(3), 60), "only what changed");
    let edited = edited.replace("1h", "2h");
    assert_eq!(restarted(&edited, Apply::Changed).await, (Some(3), 7_200));

    let server = start(folder.path(), &edited, Apply::Changed).await;
    server.quell().queue("q").set(&QueueSettings::default().concurrency(9)).await.unwrap();
    server.stop().await.unwrap();
    assert_eq!(restarted(&edited, Apply::All).await, (Some(3), 7_200), "--apply-declared");
}

/// A restart of any server undid the pause of an incident.
#[tokio::test]
async fn r33_a_pause_survives_a_restart_unless_the_file_says_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let start = async |queue: &str| {
        start(folder.path(), &format!("[queues.billing]\n{queue}"), Apply::Changed).await
    };
    let server = start("concurrency = 2").await;
    let billing = server.quell().queue("billing");
    let settings = billing.settings().await.unwrap().unwrap();
    assert!(!settings.paused);
    billing.set(&QueueSettings { paused: true, concurrency: Some(7), ..settings }).await.unwrap();
    server.stop().await.unwrap();
    for (queue, paused) in
        [("concurrency = 3", true), ("paused = false", false), ("paused = true", true), ("", true)]
    {
        let server = start(queue).await;
        let settings = server.quell().queue("billing").settings().await.unwrap().unwrap();
        assert_eq!(settings.paused, paused, "{queue}");
        let by = ["paused = true", ""].contains(&queue).then_some("the configuration");
        assert_eq!(settings.paused_by.as_deref(), by, "{queue}");
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn r07_windows_and_jobs_are_flushed_and_cancelled_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    let server = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n{}",
        crate::served::TASKS
    );
    std::fs::write(&config, server).unwrap();
    let process = Process::serve(&config, &[]);
    let ask = |args: &[&str]| text(&process.ask(args));
    for source in [vec![], vec!["--store", store.as_str()]] {
        let run = |args: &[&str]| ask(&[args, &source].concat());
        let trigger = |repo: &str| {
            let (succeeded, shown) =
                ask(&["trigger", "build", &json!({ "repo": repo }).to_string()]);
            assert!(succeeded, "{shown}");
        };
        trigger("a");
        assert!(run(&["flush", "build", "a"]).1.contains("is due now"));
        trigger("b");
        assert!(run(&["cancel", "--task", "build", "--key", "b"]).1.contains("is cancelled"));
        let (succeeded, shown) = run(&["flush", "build", "b"]);
        assert!(!succeeded && shown.contains("no window of this key is open"), "{shown}");
        trigger("c");
        let (_, listed) = ask(&["jobs", "--key", "c", "--state", "scheduled", "--json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let id = listed["jobs"][0]["id"].as_str().unwrap();
        assert_eq!(run(&["cancel", id]), (true, format!("job {id} is cancelled\n")));
        let (succeeded, shown) = run(&["cancel", id]);
        assert!(!succeeded, "it has ended: {shown}");
    }
}

/// Which value counts, and what says so: the declaration, the live settings of the queue, or the default.
#[tokio::test]
async fn r14_a_policy_shows_where_each_value_comes_from() {
    let tasks = r#"
[queues.slow]
[tasks.own]
queue = "slow"
key = "{{ id }}"
debounce = { min = "2s", max = "20s" }
priority = 3
timeout = "7s"
exec = { command = ["true"] }
[tasks.plain]
queue = "slow"
key = "{{ id }}"
http = { url = "https://example.com/" }
[tasks.spread]
key = "{{ id }}"
throttle = "9s"
pull = true
"#;
    let served = serve(tasks).await;
    let of = async |task: &str, name: &str| {
        let (status, policy) = served.get(&format!("/v1/tasks/{task}/policy")).await;
        assert_eq!(status, 200, "{policy}");
        let settings = policy["settings"].as_array().unwrap().clone();
        let found = settings.into_iter().find(|setting| setting["name"] == name);
        let setting = found.unwrap_or_else(|| panic!("no {name}: {policy}"));
        (setting["value"].clone(), setting["from"].clone())
    };
    let is = |value: &str, from: &str| (json!(value), json!(from));
    assert_eq!(of("own", "debounce.min").await, is("2s", "task"));
    assert_eq!(of("own", "priority").await, is("3", "task"));
    assert_eq!(of("own", "timeout").await, is("7s", "task"));
    assert_eq!(of("own", "retry.max_attempts").await, is("20", "default"));
    assert_eq!(of("own", "key").await, is("{{ id }}", "task"));
    assert_eq!(of("plain", "timeout").await, is("30s", "default"));
    assert_eq!(of("plain", "debounce.min").await.1, "default");
    assert_eq!(of("spread", "throttle").await, is("9s", "task"));
    let body = r#"{"debounce":{"min":"3s","max":"30s"}}"#;
    assert_eq!(send(&served, Method::PATCH, "/v1/queues/slow", body).await.0, 200);
    assert_eq!(of("plain", "debounce.max").await, is("30s", "queue"));
    assert_eq!(of("own", "debounce.max").await, is("20s", "task"));
    assert_eq!(served.get("/v1/tasks/nosuch/policy").await.0, 404);
    served.server.stop().await.unwrap();
}
