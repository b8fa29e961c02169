//! Schedules of the server: declared in its configuration, over HTTP, and on the command line (R36).

use std::path::Path;
use std::time::{Duration, Instant};

use quell::JobState;
use quell::schedule::{ScheduleState, Spec};
use quell_server::config::Config;
use reqwest::Method;
use serde_json::{Value, json};

use crate::binary::quell;
use crate::served::{Served, TASKS, answer, serve};

/// Tasks that no other test of this process counts.
const COUNTED: &str = r#"
[tasks.alone]
queue = "counted"
exec = { command = ["true"] }

[tasks.together]
queue = "counted"
key = "one"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }

[schedules.alone]
task = "alone"
every = "50ms"

[schedules.together]
task = "together"
every = "50ms"
"#;

async fn put(served: &Served, name: &str, body: &str) -> (u16, Value) {
    let path = format!("/v1/schedules/{name}");
    let request = served.request(Method::PUT, &path).header("content-type", "application/json");
    answer(request.body(body.to_owned()).send().await.unwrap()).await
}

fn parse(schedules: &str) -> Result<Config, String> {
    let text = format!("{TASKS}\n{schedules}");
    Config::parse(&text, Path::new("quell.toml")).map_err(|error| error.to_string())
}

#[test]
fn r36_schedules_are_read_from_the_configuration() {
    let config = parse(
        "[schedules.a]\ntask = \"build\"\ncron = \"0 3 * * *\"\nzone = \"Europe/Berlin\"\n\
         catch_up = \"all\"\npayload = { repo = \"r\" }\ndelay = \"50s\"\n\
         [schedules.b]\ntask = \"now\"\nevery = \"10m\"\nanchor = \"2026-01-01T00:00:00Z\"\n\
         priority = -1\n",
    )
    .unwrap();
    let [a, b] = &config.schedules[..] else { panic!("{:?}", config.schedules) };
    assert_eq!(a.spec, Spec::cron("0 3 * * *", "Europe/Berlin").unwrap());
    assert_eq!(a.trigger.payload.as_str(), r#"{"repo":"r"}"#);
    assert_eq!(a.trigger.keyed.as_ref().unwrap().key.as_str(), "r");
    assert_eq!((b.trigger.payload.as_str(), b.trigger.priority), ("null", -1));
    assert_eq!(b.catch_up, quell::schedule::CatchUp::Latest);
}

#[test]
fn r40_a_wrong_schedule_is_reported_with_its_line_and_field() {
    let table = [
        ("task = \"nosuch\"\nevery = \"1m\"", "schedules.s.task: no task \"nosuch\""),
        ("task = \"now\"", "schedules.s.cron: no plan"),
        ("task = \"now\"\nevery = \"0s\"", "schedules.s.every: "),
        ("task = \"now\"\ncron = \"every day\"", "schedules.s.cron: "),
        ("task = \"now\"\ncron = \"* * * * *\"\nzone = \"Berlin\"", "schedules.s.zone: "),
        ("task = \"now\"\nevery = \"1m\"\nzone = \"UTC\"", "schedules.s.zone: "),
        ("task = \"now\"\nevery = \"1m\"\ncatch_up = \"some\"", "schedules.s.catch_up: "),
        ("task = \"build\"\nevery = \"1m\"\npayload = { ropo = 1 }", "schedules.s.payload: "),
        ("task = \"now\"\nevery = \"1m\"\ncorn = 1", "schedules.s.corn: "),
    ];
    for (lines, needle) in table {
        let error = parse(&format!("[schedules.s]\n{lines}\n")).unwrap_err();
        assert!(error.contains(needle) && error.lines().count() == 1, "{lines}\n{error}");
    }
    let error = parse("[schedules.\"a b\"]\ntask = \"now\"\nevery = \"1m\"\n").unwrap_err();
    assert!(error.contains("digits and _ - . : /"), "{error}");
}

#[tokio::test]
async fn r36_a_declared_schedule_runs_and_is_shown() {
    let schedule = "[schedules.often]\ntask = \"now\"\nevery = \"50ms\"\npayload = [1]\n";
    let served = serve(&format!("{TASKS}\n{schedule}")).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    let jobs = loop {
        let (_, reply) = served.get("/v1/jobs?task=now&state=succeeded&payload=true").await;
        let jobs = reply["jobs"].as_array().unwrap().clone();
        if jobs.len() > 3 {
            break jobs;
        }
        assert!(Instant::now() < deadline, "{reply:#}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(jobs[0]["payload"], json!([1]));
    let (_, reply) = served.get(&format!("/v1/jobs/{}", jobs[0]["id"].as_str().unwrap())).await;
    assert_eq!(reply["ticks"][0]["schedule"], "often", "{reply:#}");
    let (status, shown) = served.get("/v1/schedules").await;
    let shown = &shown["schedules"][0];
    assert_eq!(
        (status, &shown["plan"], &shown["state"]),
        (200, &json!("every 50ms"), &json!("active"))
    );
    assert!(shown["last"].is_string() && shown["next"].is_string(), "{shown}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r36_ticks_are_counted_with_all_other_triggers() {
    let (served, deadline) = (serve(COUNTED).await, Instant::now() + Duration::from_secs(20));
    let counter = |task: &str, outcome: &str| {
        let labels = format!("queue=\"counted\",task=\"{task}\",outcome=\"{outcome}\"");
        format!("quell_triggers_total{{{labels}}} ")
    };
    // One window takes all ticks but the first; without a key each is a job.
    let expected = [counter("alone", "accepted"), counter("together", "debounced")];
    loop {
        let (_, page) = served.get("/metrics").await;
        let page = page.as_str().unwrap().to_owned();
        let count = |line: &String| {
            let reply = page.lines().find_map(|reply| reply.strip_prefix(line.as_str()));
            reply.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        if expected.iter().all(|line| count(line) > 2) {
            assert_eq!(count(&counter("together", "accepted")), 1, "{page}");
            break;
        }
        assert!(Instant::now() < deadline, "{page}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r36_a_schedule_is_set_paused_run_backfilled_and_removed_over_http() {
    let served = serve(TASKS).await;
    let body = r#"{"task":"now","cron":"0 3 * * *","zone":"America/New_York","payload":{"n":1}}"#;
    let (status, set) = put(&served, "nightly", body).await;
    assert_eq!((status, &set["catch_up"], &set["priority"]), (200, &json!("latest"), &json!(3)));
    assert_eq!((&set["plan"], &set["last"]), (&json!("0 3 * * * America/New_York"), &Value::Null));
    let (_, again) = put(&served, "nightly", body).await;
    assert_eq!(again, set);
    let path = "/v1/schedules/nightly";
    let (_, paused) = served.post(&format!("{path}/pause"), "").await;
    assert_eq!((&paused["state"], &paused["next"]), (&json!("paused"), &Value::Null));
    let (status, receipt) = served.post(&format!("{path}/run"), "").await;
    assert_eq!((status, &receipt["receipt"]), (200, &json!("accepted")), "{receipt}");
    served.ended(&receipt["job"], JobState::Succeeded).await;
    let (_, resumed) = served.post(&format!("{path}/resume"), "").await;
    assert_eq!((&resumed["state"], &resumed["next"]), (&json!("active"), &set["next"]));
    let now = jiff::Timestamp::now();
    let ago = |days: i64| (now - jiff::SignedDuration::from_hours(24 * days)).to_string();
    let range = json!({ "from": ago(3), "to": ago(0) }).to_string();
    let (status, filled) = served.post(&format!("{path}/backfill"), &range).await;
    assert_eq!((status, &filled["fired"]), (200, &json!(3)), "{filled}");
    assert_eq!(served.post(&format!("{path}/backfill"), &range).await.1["fired"], 0);
    assert!(served.get(path).await.1["last"].is_string());
    let (status, fired) = served.get(&format!("{path}/ticks")).await;
    let ticks = fired["ticks"].as_array().unwrap();
    assert_eq!((status, ticks.len()), (200, 3), "a run by hand is no tick: {fired:#}");
    assert!(ticks[0]["tick"].as_str() > ticks[2]["tick"].as_str(), "the newest first");
    assert_eq!(ticks[0]["by"], "backfill");
    served.ended(&ticks[0]["job"], JobState::Succeeded).await;
    let (_, newest) = served.get(&format!("{path}/ticks?limit=1")).await;
    let expected = json!({ "tick": ticks[0]["tick"], "by": "backfill", "job": ticks[0]["job"], "state": "succeeded" });
    assert_eq!(newest["ticks"], json!([expected]));
    for query in ["limit=0", "limit=201", "limit=x", "limt=2"] {
        assert_eq!(served.get(&format!("{path}/ticks?{query}")).await.0, 422, "{query}");
    }
    assert_eq!(served.get("/v1/schedules/none/ticks").await.0, 404);
    let request = served.request(Method::DELETE, path);
    let (status, deleted) = answer(request.send().await.unwrap()).await;
    assert_eq!((status, &deleted["deleted"]), (200, &json!(true)));
    let (status, gone) = served.get(path).await;
    assert_eq!((status, &gone["error"]["field"]), (404, &json!("schedule")), "{gone}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_bad_requests_about_schedules_name_the_field_and_write_nothing() {
    let served = serve(TASKS).await;
    let table = [
        ("a%20b", r#"{"task":"now","every":"1m"}"#, 422, "schedule"),
        ("s", r#"{"task":"nosuch","every":"1m"}"#, 404, "task"),
        ("s", r#"{"task":"now"}"#, 422, "cron"),
        ("s", r#"{"task":"now","every":"1m","typo":1}"#, 422, "body"),
        ("s", r#"{"task":"now","every":"soon"}"#, 422, "every"),
        ("s", r#"{"task":"now","cron":"61 * * * *"}"#, 422, "cron"),
        ("s", r#"{"task":"now","cron":"0 0 30 2 *"}"#, 422, "cron"),
        ("s", r#"{"task":"now","cron":"* * * * *","zone":"Mars"}"#, 422, "zone"),
        ("s", r#"{"task":"now","every":"1m","delay":"0s"}"#, 422, "delay"),
        ("s", r#"{"task":"build","every":"1m","payload":{}}"#, 422, "key"),
        ("s", "{", 400, "body"),
    ];
    for (name, body, status, field) in table {
        let (got, reply) = put(&served, name, body).await;
        assert_eq!((got, &reply["error"]["field"]), (status, &json!(field)), "{body}: {reply}");
    }
    assert_eq!(served.get("/v1/schedules").await.1["schedules"], json!([]));
    put(&served, "s", r#"{"task":"now","every":"1s"}"#).await;
    let backfills = [
        (r#"{"from":"2026-01-02T00:00:00Z","to":"2026-01-01T00:00:00Z"}"#, "from"),
        (r#"{"from":"2026-01-01T00:00:00Z","to":"2226-01-01T00:00:00Z"}"#, "to"),
        (r#"{"from":"1999-01-01T00:00:00Z","to":"2026-01-01T00:00:00Z"}"#, "from"),
        (r#"{"from":"yesterday","to":"today"}"#, "body"),
    ];
    for (body, field) in backfills {
        let (status, reply) = served.post("/v1/schedules/s/backfill", body).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{body}: {reply}");
    }
    for action in ["pause", "resume", "run"] {
        let (status, reply) = served.post(&format!("/v1/schedules/nosuch/{action}"), "").await;
        assert_eq!((status, &reply["error"]["field"]), (404, &json!("schedule")), "{reply}");
    }
    served.server.stop().await.unwrap();
}

/// Each command, of a server and on a store.
#[tokio::test]
async fn r36_the_command_line_does_the_same() {
    let served = serve(TASKS).await;
    put(&served, "nightly", r#"{"task":"now","cron":"0 3 * * *","payload":{"n":1}}"#).await;
    let url = format!("http://{}", served.server.address());
    let store = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let now = jiff::Timestamp::now();
    let from = (now - jiff::SignedDuration::from_hours(48)).to_string();
    let (from, to) = (from.as_str(), now.to_string());
    let range = ["schedule", "backfill", "nightly", "--from", from, "--to", &to];
    let table: [(&[&str], bool, [&str; 2]); 13] = [
        (&["schedule", "list"], true, ["0 3 * * * UTC", "0 3 * * * UTC"]),
        (&["schedule", "show", "nightly"], true, [r#"payload    {"n":1}"#, "catch_up   latest"]),
        (&["schedule", "show", "nosuch"], false, ["schedule nosuch is unknown"; 2]),
        (&["schedule", "pause", "nightly"], true, ["nightly is paused, next tick -"; 2]),
        (&["schedule", "resume", "nightly"], true, ["nightly is active, next tick 20"; 2]),
        (&["schedule", "run", "nightly"], true, ["accepted as job "; 2]),
        (&range, true, ["2 ticks fired", "0 ticks fired"]),
        (&["schedule", "ticks", "nightly"], true, ["backfill", "backfill"]),
        (&["schedule", "ticks", "nosuch"], false, ["is unknown"; 2]),
        (&["schedule", "list", "--json"], true, [r#""catch_up":"latest""#; 2]),
        (&["schedule", "backfill", "nightly"], false, ["--from"; 2]),
        (&["schedule", "delete", "nosuch"], false, ["is unknown"; 2]),
        (&["schedule", "list"], true, ["active", "active"]),
    ];
    for (args, succeeds, needles) in table {
        let sources = [["--server", &url], ["--store", &store]];
        for (source, needle) in sources.iter().zip(needles) {
            let mut command = quell(&[args, &source[..]].concat());
            let output = tokio::task::spawn_blocking(move || command.output().unwrap());
            let output = output.await.unwrap();
            let shown = [&output.stdout[..], &output.stderr[..]].concat();
            let shown = String::from_utf8(shown).unwrap();
            let as_expected = output.status.success() == succeeds && shown.contains(needle);
            assert!(as_expected, "{args:?} {source:?}: {shown}");
        }
    }
    let state = served.server.quell().store().schedules().await.unwrap()[0].state;
    assert_eq!(state, ScheduleState::Active);
    let args = ["schedule", "delete", "nightly", "--store", &store];
    assert!(quell(&args).output().unwrap().status.success());
    assert!(served.server.quell().store().schedules().await.unwrap().is_empty());
    served.server.stop().await.unwrap();
}
