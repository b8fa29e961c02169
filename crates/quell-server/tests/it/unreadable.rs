//! Jobs whose rows cannot be decoded, as an operator meets them: over HTTP and on the command line.

use quell::JobState;
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};

use crate::alerts::alert;
use crate::binary::quell;
use crate::served::{Served, serve, serve_with};

const TASKS: &str = r#"
[tasks.index]
key = "{{ repo }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }
"#;

/// Two jobs whose rows cannot be decoded, and set aside, the older one first.
async fn two_unreadable(served: &Served) -> [Value; 2] {
    let mut jobs = Vec::new();
    for repo in ["a", "b"] {
        let payload = json!({ "repo": repo }).to_string();
        let job = served.trigger("index", &payload).await["job"].clone();
        execute(
            served,
            "update quell_job set reason = reason + 70 where state = 0 and reason < 70",
        )
        .await;
        // The next trigger of the key meets the row.
        served.trigger("index", &payload).await;
        jobs.push(job);
    }
    [jobs.remove(0), jobs.remove(0)]
}

async fn execute(served: &Served, sql: &'static str) {
    let url = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let mut db = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut db).await.unwrap();
}

fn path(job: &Value, verb: &str) -> String {
    format!("/v1/jobs/{}{verb}", job.as_str().unwrap())
}

#[tokio::test]
async fn r25_unreadable_jobs_are_listed_restored_and_discarded_over_http() {
    let served = serve(TASKS).await;
    let [old, new] = two_unreadable(&served).await;
    let (status, first) = served.get("/v1/dead/unreadable?limit=1").await;
    assert_eq!((status, &first["jobs"][0]["id"], &first["next_before"]), (200, &new, &new));
    assert_eq!(first["jobs"][0]["was"], "scheduled");
    let before = new.as_str().unwrap();
    let (_, second) = served.get(&format!("/v1/dead/unreadable?before={before}")).await;
    assert_eq!((&second["jobs"][0]["id"], &second["next_before"]), (&old, &Value::Null));

    let (status, reply) = served.post(&path(&old, "/restore"), "").await;
    assert_eq!((status, &reply["error"]["kind"]), (409, &json!("unreadable")), "{reply}");
    execute(&served, "update quell_job set reason = reason - 70 where reason >= 70").await;
    let (status, reply) = served.post(&path(&old, "/restore"), "").await;
    assert_eq!((status, &reply["restored"]), (200, &json!(true)), "{reply}");
    let (_, shown) = served.get(&path(&old, "")).await;
    assert_eq!(shown["job"]["state"], JobState::Absorbed.name(), "its key has a newer window");
    let (status, _) = served.post(&path(&old, "/restore"), "").await;
    assert_eq!(status, 404);

    let (status, reply) = served.post(&path(&new, "/discard"), r#"{"reason":"damaged"}"#).await;
    assert_eq!((status, &reply["discarded"]), (200, &json!(true)), "{reply}");
    assert_eq!(served.get("/v1/dead/unreadable").await.1["jobs"], json!([]));
    for query in ["limit=0", "limit=201", "before=x", "limits=1"] {
        assert_eq!(served.get(&format!("/v1/dead/unreadable?{query}")).await.0, 422, "{query}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r25_the_command_lists_and_restores_unreadable_jobs() {
    let served = serve(TASKS).await;
    let [old, _] = two_unreadable(&served).await;
    let url = format!("http://{}", served.server.address());
    let run = async |args: &[&str]| {
        let mut command = quell(&[args, &["--server", &url]].concat());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.success(), text.concat())
    };
    let (ok, text) = run(&["dead", "unreadable"]).await;
    assert!(ok && text.contains("2 set aside") && text.contains("cannot decode the row"), "{text}");
    let id = old.as_str().unwrap();
    let (ok, text) = run(&["dead", "restore", id]).await;
    assert!(!ok && text.contains("cannot decode the row"), "{text}");
    execute(&served, "update quell_job set reason = reason - 70 where reason >= 70").await;
    let (ok, text) = run(&["dead", "restore", id]).await;
    assert!(ok && text.contains(&format!("job {id} is back")), "{text}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r25_r27_an_alert_is_raised_for_unreadable_jobs_and_cleared_once_they_are_gone() {
    let alerts = "[alerts.x]\non = \"unreadable\"\nthreshold = 0\n";
    let served = serve_with("alert_interval = \"10ms\"", &format!("{TASKS}{alerts}")).await;
    two_unreadable(&served).await;
    let raised = alert(&served, "raised", |alert| alert["state"] == "raised").await;
    assert_eq!(raised["on"], "unreadable");
    let jobs = served.get("/v1/dead/unreadable").await.1["jobs"].clone();
    for job in jobs.as_array().unwrap() {
        let (status, _) = served.post(&path(&job["id"], "/discard"), r#"{"reason":"x"}"#).await;
        assert_eq!(status, 200);
    }
    alert(&served, "cleared", |alert| alert["state"] == "clear").await;
    served.server.stop().await.unwrap();
}
