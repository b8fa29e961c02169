//! Dead jobs as an operator finds them: over HTTP and on the command line.

use quell::dead::{DeadExport, exports};
use quell::{Job, JobId, JobState};
use quell_server::http::EXPORTED;
use serde_json::{Value, json};

use crate::binary::quell;
use crate::served::{Served, serve};

const TASKS: &str = r#"
[tasks.refused]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "echo connection refused >&2; exit 1"] }

[tasks.slow]
queue = "other"
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "echo it took too long >&2; exit 1"] }

[tasks.picky]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "grep -q good"] }
"#;

async fn dead(served: &Served, task: &str, payload: &str) -> Value {
    let job = served.trigger(task, payload).await["job"].clone();
    served.ended(&job, JobState::Dead).await;
    job
}

fn path(job: &Value, verb: &str) -> String {
    format!("/v1/jobs/{}{verb}", job.as_str().unwrap())
}

/// What the command printed to both outputs, and whether it went well.
async fn run(args: &[&str]) -> (bool, String) {
    let mut command = quell(args);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), text.concat())
}

/// An export of one dead job with `copies` of it, as if from another store; their causes take turns.
async fn many(served: &Served, copies: u64) -> String {
    let job = dead(served, "refused", "{\"n\":1}").await;
    let (_, reply) = served.get(&format!("/v1/dead/{EXPORTED}")).await;
    let mut found: Vec<DeadExport> = serde_json::from_value(reply[EXPORTED].clone()).unwrap();
    let export = found.remove(0);
    assert_eq!(json!(export.job.id), job);
    let causes = ["connection refused by db-1", "disk full", "bad input: no field `to`"];
    let mut file = exports::head();
    for (n, cause) in (0..copies).zip(causes.iter().cycle()) {
        let id = JobId::new(1_000_000 + n);
        let error = Some((*cause).to_owned());
        let copy = DeadExport { job: Job { id, error, ..export.job.clone() }, ..export.clone() };
        file.push('\n');
        file.push_str(&exports::line(&copy).unwrap());
    }
    file
}

#[tokio::test]
async fn r25_the_dead_are_listed_filtered_shown_and_discarded_over_http() {
    let served = serve(TASKS).await;
    let refused = dead(&served, "refused", "1").await;
    let slow = dead(&served, "slow", "2").await;
    let (status, all) = served.get("/v1/dead").await;
    assert_eq!((status, &all["matching"]), (200, &json!(2)));
    assert_eq!([&all["jobs"][0]["id"], &all["jobs"][1]["id"]], [&slow, &refused]);
    let filters = [
        ("task=refused", &refused),
        ("queue=other", &slow),
        ("error=CONNECTION%20Refused", &refused),
        ("limit=1", &slow),
    ];
    for (query, expected) in filters {
        let (_, reply) = served.get(&format!("/v1/dead?{query}")).await;
        assert_eq!(
            (&reply["jobs"][0]["id"], reply["jobs"].as_array().unwrap().len()),
            (expected, 1)
        );
    }
    let (_, first) = served.get("/v1/dead?limit=1").await;
    let next = first["next_before"].as_str().unwrap();
    let (_, second) = served.get(&format!("/v1/dead?limit=1&before={next}")).await;
    assert_eq!((&second["jobs"][0]["id"], &second["matching"]), (&refused, &json!(2)));
    let (_, none) = served.get("/v1/dead?died_before=2020-01-01T00:00:00Z").await;
    assert_eq!(none["matching"], 0);
    assert_eq!(none["next_before"], Value::Null);

    let reason = r#"{"reason":"the customer left"}"#;
    let (status, reply) = served.post(&path(&slow, "/discard"), reason).await;
    assert_eq!((status, &reply["discarded"]), (200, &json!(true)));
    let (status, reply) = served.post(&path(&slow, "/discard"), reason).await;
    assert_eq!((status, &reply["error"]["kind"]), (404, &json!("not_found")));
    let all = r#"{"error":"refused","reason":"a known outage"}"#;
    let (status, reply) = served.post("/v1/dead/discard", all).await;
    assert_eq!(
        (status, &reply["discarded"], &reply["next_before"]),
        (200, &json!(1), &Value::Null)
    );
    assert_eq!(served.get("/v1/dead").await.1["matching"], 0);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r26_a_redrive_over_http_may_bring_another_payload() {
    let served = serve(TASKS).await;
    let job = dead(&served, "picky", r#"{"is":"bad"}"#).await;
    let (status, reply) =
        served.post(&path(&job, "/redrive"), r#"{"payload":{"is":"good"}}"#).await;
    assert_eq!((status, &reply["job"]), (200, &job));
    let reply = served.ended(&job, JobState::Succeeded).await;
    assert_eq!(reply["original_payload"], json!({ "is": "bad" }));
    assert_eq!(reply["job"]["payload"], json!({ "is": "good" }));
    assert_eq!(reply["attempts"].as_array().unwrap().len(), 2, "{reply:#}");

    let other = dead(&served, "picky", r#"{"is":"bad"}"#).await;
    let request = served.request(reqwest::Method::POST, &path(&other, "/redrive"));
    assert_eq!(request.send().await.unwrap().status(), 200, "a body is not needed");
    served.ended(&other, JobState::Dead).await;
    let (status, reply) = served.post("/v1/dead/redrive", r#"{"task":"picky","limit":5}"#).await;
    assert_eq!((status, &reply["redriven"], &reply["failed"]), (200, &json!(1), &json!(0)));
    served.ended(&other, JobState::Dead).await;
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_what_cannot_be_meant_changes_nothing() {
    let served = serve(TASKS).await;
    let dead = dead(&served, "refused", "1").await;
    let done = served.trigger("picky", "\"good\"").await["job"].clone();
    served.ended(&done, JobState::Succeeded).await;
    let before = served.get("/v1/jobs").await.1;
    let export = served.get(&format!("/v1/dead/{EXPORTED}")).await.1[EXPORTED][0].clone();
    let mut lives = export.clone();
    lives["job"]["state"] = json!("running");
    let import = json!({ EXPORTED: [export, lives] }).to_string();
    let empty = json!({ EXPORTED: [{}] }).to_string();
    let large = format!(r#"{{"payload":"{}"}}"#, "x".repeat(1 << 20));
    let (redrive, discard) = (path(&dead, "/redrive"), path(&dead, "/discard"));
    let (done_back, done_gone) = (path(&done, "/redrive"), path(&done, "/discard"));
    let table = [
        (done_back.as_str(), "", 409, "job"),
        ("/v1/jobs/777/redrive", "", 404, "job"),
        (&redrive, r#"{"payload":{"#, 400, "body"),
        (&redrive, r#"{"paylod":1}"#, 422, "body"),
        (&redrive, large.as_str(), 413, "payload"),
        (&done_gone, r#"{"reason":"no"}"#, 409, "job"),
        (&discard, "{}", 422, "reason"),
        (&discard, r#"{"reason":" "}"#, 422, "reason"),
        ("/v1/dead/discard", "{}", 422, "reason"),
        ("/v1/dead/redrive", r#"{"limit":201}"#, 422, "limit"),
        ("/v1/dead/redrive", r#"{"eror":"x"}"#, 422, "body"),
        ("/v1/dead/redrive", r#"{"before":"x"}"#, 422, "before"),
        ("/v1/dead/import", &empty, 422, "body"),
        ("/v1/dead/import", import.as_str(), 422, "state"),
    ];
    for (path, body, status, field) in table {
        let (got, reply) = served.post(path, body).await;
        let shown = body.get(..40).unwrap_or(body);
        assert_eq!(
            (got, &reply["error"]["field"]),
            (status, &json!(field)),
            "{path} {shown}: {reply}"
        );
    }
    for (query, field) in
        [("eror=x", "eror"), ("died_after=now", "died_after"), ("error=", "error")]
    {
        let (status, reply) = served.get(&format!("/v1/dead?{query}")).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{reply}");
    }
    assert_eq!(served.get("/v1/jobs").await.1, before);
    served.server.stop().await.unwrap();
}

/// An operator sees what a thousand died of, over HTTP and on the command line.
#[tokio::test]
async fn r25_the_dead_are_counted_by_cause() {
    let served = serve(TASKS).await;
    let server = format!("http://{}", served.server.address());
    let store = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let file = served.folder.path().join("came.jsonl");
    std::fs::write(&file, many(&served, 1_000).await).unwrap();
    let (fine, reply) = run(&["dead", "import", file.to_str().unwrap(), "--store", &store]).await;
    assert!(fine, "{reply}");
    let slow = dead(&served, "slow", "1").await;

    let (status, reply) = served.get("/v1/dead/causes").await;
    assert_eq!((status, &reply["jobs"], &reply["distinct"]), (200, &json!(1_002), &json!(5)));
    assert_eq!(reply["next_before"], Value::Null);
    let causes: Vec<_> = reply["causes"].as_array().unwrap().iter().collect();
    let counted: Vec<_> = causes.iter().map(|one| (&one["cause"], &one["jobs"])).collect();
    assert!(
        counted.contains(&(&json!("connection refused by db-N"), &json!(334)))
            && counted.contains(&(&json!("disk full"), &json!(333)))
            && counted.contains(&(&json!("bad input: no field `…`"), &json!(333))),
        "{reply:#}"
    );
    let took = "the command ended with exit status: 1: it took too long";
    let alone = causes.iter().find(|one| one["cause"] == took).unwrap();
    assert_eq!(
        (&alone["task"], &alone["queue"], &alone["example"]),
        (&json!("slow"), &json!("other"), &slow)
    );
    assert_eq!(alone["first_died_at"], alone["last_died_at"]);
    let (_, reply) = served.get("/v1/dead/causes?task=refused&error=FULL&limit=1").await;
    assert_eq!((&reply["jobs"], &reply["distinct"]), (&json!(333), &json!(1)));
    for among in ["0", "10001", "x"] {
        let (status, reply) = served.get(&format!("/v1/dead/causes?among={among}")).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!("among")), "{reply}");
    }
    let (_, reply) = served.get("/v1/dead/causes?among=1").await;
    assert_eq!(reply["jobs"], 200, "a page at least: {reply:#}");
    assert!(reply["next_before"].is_string(), "and there are more: {reply:#}");
    let (status, reply) = served.get("/v1/dead/causes?limit=0").await;
    assert_eq!((status, &reply["error"]["field"]), (422, &json!("limit")));

    for place in [["--store", &store], ["--server", &server]] {
        let args = [&["dead", "causes", "--task", "refused", "--limit", "3"][..], &place].concat();
        let (fine, reply) = run(&args).await;
        let lines: Vec<_> = reply.lines().collect();
        assert!(fine && lines.len() == 5, "{reply}");
        assert!(lines[0].starts_with("JOBS") && lines[0].ends_with("CAUSE"), "{reply}");
        assert!(lines[1].starts_with("334") && lines[1].ends_with("refused by db-N"), "{reply}");
        assert_eq!(lines[4], "3 of 4 causes, of 1,001 dead jobs");
        let (fine, reply) = run(&[&args[..], &["--json"]].concat()).await;
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert!(fine && reply["distinct"] == 4, "{reply:#}");
    }
    served.server.stop().await.unwrap();
}

/// A thousand dead jobs of three causes, as an operator meets them.
#[tokio::test]
async fn r26_an_operator_mends_a_thousand_of_three_causes() {
    let served = serve(TASKS).await;
    let server = format!("http://{}", served.server.address());
    let store = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let file = served.folder.path().join("came.jsonl");
    std::fs::write(&file, many(&served, 999).await).unwrap();
    let file = file.to_str().unwrap();
    let ask = async |args: &[&str]| {
        let (fine, reply) = run(&[args, &["--server", &server]].concat()).await;
        assert!(fine, "{args:?}: {reply}");
        reply
    };
    assert!(ask(&["dead", "import", file, "--dry-run"]).await.contains("999 dead jobs"));
    assert_eq!(ask(&["dead", "import", file]).await, "999 imported\n");
    assert_eq!(ask(&["dead", "import", file]).await, "0 imported, 999 were here already\n");
    let listed = ask(&["dead", "list", "--limit", "2"]).await;
    assert!(listed.contains("2 of 1,000; the next page: --before "), "{listed}");
    let full = ["--error", "disk full", "--died-after", "1h"];
    let reply = ask(&[&["dead", "redrive", "--all", "--dry-run"][..], &full].concat()).await;
    assert!(reply.contains("333 would be redriven; nothing was changed"), "{reply}");

    ask(&["task", "pause", "refused"]).await;
    let reply = ask(&[&["dead", "redrive", "--all", "--rate", "5000"][..], &full].concat()).await;
    assert!(reply.ends_with("333 redriven\n"), "{reply}");
    let waits = served.get("/v1/jobs?state=scheduled&limit=200").await.1;
    assert_eq!(waits["jobs"].as_array().unwrap().len(), 200);

    let bad = ["dead", "discard", "--all", "--error", "BAD INPUT", "--reason", "cannot be fixed"];
    let (fine, reply) = run(&[&bad[..], &["--store", &store]].concat()).await;
    assert!(!fine && reply.contains("333 dead jobs would be discarded for good"), "{reply}");
    let (fine, reply) = run(&[&bad[..], &["--yes", "--store", &store]].concat()).await;
    assert!(fine && reply.ends_with("333 discarded\n"), "{reply}");

    let kept = served.folder.path().join("kept.jsonl");
    let kept = kept.to_str().unwrap();
    let reply = ask(&["dead", "export", "--out", kept]).await;
    assert!(reply.starts_with("334 dead jobs are in "), "{reply}");
    let (fine, reply) = run(&["dead", "export", "--out", kept, "--store", &store]).await;
    assert!(!fine && reply.contains("cannot write"), "an export overwrites nothing: {reply}");
    // Where it takes long, other lines show how far it is.
    let reply = ask(&["dead", "discard", "--all", "--reason", "kept elsewhere", "--yes"]).await;
    assert!(reply.starts_with("334 discarded\n"), "{reply}");
    let (fine, reply) = run(&["dead", "import", kept, "--store", &store]).await;
    assert!(fine && reply.contains("334 imported\n"), "{reply}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r26_one_job_is_shown_edited_and_discarded_on_the_command_line() {
    let served = serve(TASKS).await;
    let store = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let job = dead(&served, "picky", r#"{"is":"bad"}"#).await;
    let job = job.as_str().unwrap();
    let ask = async |args: &[&str]| run(&[args, &["--store", &store]].concat()).await;
    let (fine, reply) = ask(&["dead", "show", job]).await;
    assert!(
        fine && reply.contains("attempt 1") && reply.contains(r#"payload    {"is":"bad"}"#),
        "{reply}"
    );
    let (fine, reply) = ask(&["dead", "redrive", job, "--payload", "{oops"]).await;
    assert!(!fine && reply.contains("payload is not JSON"), "{reply}");
    let (fine, reply) = ask(&["dead", "redrive", job, "--payload", r#"{"is":"good"}"#]).await;
    assert!(fine && reply == format!("job {job} is redriven with fresh attempts\n"), "{reply}");
    let reply = served.ended(&json!(job), JobState::Succeeded).await;
    assert!(reply["text"].as_str().unwrap().contains(r#"before it was {"is":"bad"}"#), "{reply:#}");

    for args in [&["dead", "show", job][..], &["dead", "redrive", job]] {
        let (fine, reply) = ask(args).await;
        assert!(!fine && reply.contains("is succeeded"), "{args:?}: {reply}");
    }
    let (fine, reply) = ask(&["dead", "discard", job, "--reason", "no use"]).await;
    assert!(!fine && reply.contains("is succeeded, not dead"), "{reply}");
    let edited = dead(&served, "picky", "1").await;
    let (status, _) = served.post(&path(&edited, "/redrive"), r#"{"payload":2}"#).await;
    assert_eq!(status, 200);
    served.ended(&edited, JobState::Dead).await;
    let server = format!("http://{}", served.server.address());
    for place in [["--store", &store], ["--server", &server]] {
        let (fine, reply) = run(&[&["dead", "export"][..], &place].concat()).await;
        let kept = exports::read(&reply, &quell::trigger::Limits::default());
        let kept = kept.unwrap_or_else(|error| panic!("{error}: {reply}"));
        let original = kept[0].past.original.as_ref().map(quell::Payload::as_str);
        assert!(fine && original == Some("1"), "{reply}");
    }
    let gone = dead(&served, "refused", "1").await;
    let gone = gone.as_str().unwrap();
    for args in [&["dead", "redrive", gone][..], &["dead", "discard", gone, "--reason", "no use"]] {
        let (fine, reply) = ask(&[args, &["--dry-run"]].concat()).await;
        assert!(!fine && reply.contains("--dry-run goes with --all"), "{args:?}: {reply}");
    }
    let all = ["dead", "discard", "--all", "--error", "refused", "--dry-run"];
    let (fine, reply) = ask(&all).await;
    assert!(fine && reply.contains("would be discarded; nothing was changed"), "{reply}");
    assert!(ask(&["dead", "show", gone]).await.0, "it is dead as before");
    assert!(ask(&["dead", "discard", gone, "--reason", "no use"]).await.0);
    let (fine, reply) = ask(&["job", gone]).await;
    assert!(!fine && reply.contains("discarded"), "{reply}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_a_foreign_file_is_refused_by_its_line_and_nothing_is_imported() {
    let served = serve(TASKS).await;
    let store = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let good = many(&served, 3).await;
    let before = served.get("/v1/jobs").await.1;
    let file = served.folder.path().join("came.jsonl");
    let table = [
        ("id,task\n1,t\n".to_owned(), "line 1: this is not a dead-job export"),
        (good.replacen("\"version\":1", "\"version\":9", 1), "line 1: the file has version 9"),
        (format!("{good}\n{{\"job\":{{}}}}"), "line 5: not a dead job"),
        (good.replacen("\"dead\"", "\"succeeded\"", 1), "line 2: state is not that of a dead job"),
    ];
    for (text, expected) in table {
        std::fs::write(&file, text).unwrap();
        let (fine, reply) =
            run(&["dead", "import", file.to_str().unwrap(), "--store", &store]).await;
        assert!(!fine && reply.contains(expected), "{reply}, not {expected}");
        assert_eq!(served.get("/v1/jobs").await.1, before);
    }
    for args in [
        &["dead", "redrive"][..],
        &["dead", "redrive", "1", "--all"],
        &["dead", "redrive", "1", "--error", "x"],
        &["dead", "redrive", "--all", "--rate", "0"],
        &["dead", "redrive", "--all", "--payload", "1"],
        &["dead", "discard", "1"],
        &["dead", "list", "--died-after", "yesterday"],
    ] {
        let (fine, reply) = run(&[args, &["--store", &store]].concat()).await;
        assert!(!fine, "{args:?}: {reply}");
    }
    served.server.stop().await.unwrap();
}
