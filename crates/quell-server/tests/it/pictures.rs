//! The overview and the timeline as pages: what they show without a script, and what they give to it.

use reqwest::Method;
use serde_json::Value;

use crate::served::{Served, serve};

const TASKS: &str = r#"
[tasks.bursts]
key = "{{ k }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }
"#;

async fn page(served: &Served, path: &str) -> (u16, String) {
    let request = served.request(Method::GET, path).header("accept", "text/html");
    let response = request.send().await.unwrap();
    let policy = response.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    (response.status().as_u16(), response.text().await.unwrap())
}

/// The text between two others.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{before}: {text}"));
    rest.split_once(after).unwrap_or_else(|| panic!("{after}: {rest}")).0
}

#[tokio::test]
async fn the_overview_says_whether_all_is_well_and_what_each_task_did() {
    let served = serve(TASKS).await;
    let (status, empty) = page(&served, "/").await;
    assert_eq!(status, 200);
    assert!(
        empty.contains("All is well") && empty.contains("No task has had a trigger yet"),
        "{empty}"
    );
    for _ in 0..3 {
        served.trigger("bursts", r#"{"k":"<b>a</b>"}"#).await;
    }
    let paused = served.post("/v1/tasks/bursts/pause", r#"{"by":"<i>ops</i>"}"#).await;
    assert_eq!(paused.0, 200);
    served.post("/v1/marks", r#"{"name":"deploy <u>7</u>"}"#).await;
    // The overview is at most a second old.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let shown = loop {
        let (_, shown) = page(&served, "/").await;
        if shown.contains("task bursts is paused") {
            break shown;
        }
        assert!(std::time::Instant::now() < deadline, "{shown}");
    };
    assert!(shown.contains("1 thing needs a look"), "{shown}");
    assert_eq!(between(&shown, "data-live=\"hour.triggers\">", "<"), "3");
    assert!(shown.contains("deploy &lt;u&gt;7&lt;") && !shown.contains("<u>"), "{shown}");
    let row = between(&shown, "data-task=\"bursts\"", "</tr>");
    assert!(row.contains("class=\"spark-triggers\" d=\"M118 24V0.0h1.6V24z\""), "{row}");

    // Programs get the index, as before.
    let (_, index) = served.get("/").await;
    assert_eq!(index["name"], "quell");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_timeline_page_lists_windows_and_runs_and_gives_its_script_the_data() {
    let served = serve(TASKS).await;
    for _ in 0..37 {
        served.trigger("bursts", r#"{"k":"<b>a</b>"}"#).await;
    }
    let (status, shown) = page(&served, "/timeline?task=bursts").await;
    assert_eq!(status, 200);
    let row = between(&shown, "<table id=\"open\">", "</table>");
    assert!(
        row.contains("&lt;b&gt;a&lt;") && row.contains("37") && row.contains("in 59 min"),
        "{row}"
    );
    assert!(!shown.contains("<b>a"), "{shown}");
    let url = between(&shown, "data-url=\"", "\"").replace("&#x2f;", "/").replace("&amp;", "&");
    let (status, data) = served.get(&format!("{url}&steps=10")).await;
    assert_eq!((status, &data["triggers"]), (200, &Value::from(37)));

    let key = "/timeline?task=bursts&key=%3Cb%3Ea%3C%2Fb%3E";
    let (_, of_key) = page(&served, key).await;
    assert_eq!(between(&of_key, "data-count=\"triggers\">", "<"), "37");
    let (status, refused) = page(&served, "/timeline?task=bursts&from=yesterday").await;
    assert!(status == 422 && refused.contains("is not a time"), "{status}: {refused}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn live_events_come_through_the_pages() {
    let served = serve(TASKS).await;
    let mut events = served.request(Method::GET, "/live").send().await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    while !text.contains("event: overview") {
        text.push_str(std::str::from_utf8(&events.chunk().await.unwrap().unwrap()).unwrap());
    }
    drop(events);
    served.server.stop().await.unwrap();
}

const CHOICE: &str = r#"
[tasks.own]
key = "{{ k }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }

[tasks.inherits]
key = "{{ k }}"
exec = { command = ["true"] }

[tasks.both]
key = "{{ k }}"
debounce = { min = "1h", max = "2h", edge = "both" }
exec = { command = ["true"] }

[tasks.plain]
exec = { command = ["true"] }
"#;

fn pair<'v>(found: &'v Value, what: &str) -> &'v Value {
    let mut pairs = found["pairs"].as_array().into_iter().flatten();
    pairs.find(|pair| pair[what] == true).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn other_thresholds_are_tried_on_what_was_seen_and_used_for_the_task() {
    let served = serve(CHOICE).await;
    let (_, none) = served.get("/v1/tasks/own/what-if").await;
    assert!(
        none["triggers"] == 0 && none["remedies"][0].as_str().unwrap().contains("no trigger"),
        "{none}"
    );
    for number in 0..12 {
        served.trigger("own", r#"{"k":"a"}"#).await;
        served.trigger("inherits", &format!("{{\"k\":{number}}}")).await;
    }
    let (status, found) = served.get("/v1/tasks/own/what-if?min=1m&max=5m").await;
    assert_eq!(
        (status, &found["triggers"], &found["keys"]),
        (200, &Value::from(12), &Value::from(1))
    );
    let (current, asked) = (pair(&found, "current"), pair(&found, "asked"));
    assert_eq!(
        (&current["min"], &current["runs"]),
        (&Value::from("1h"), &Value::from(1)),
        "{found:#}"
    );
    assert_eq!(
        (&asked["min"], &asked["max"]),
        (&Value::from("1m"), &Value::from("5m")),
        "{found:#}"
    );
    assert!(asked["delay_p99_ms"].as_f64() < current["delay_p99_ms"].as_f64(), "{found:#}");
    let better = found["remedies"].to_string();
    assert!(!better.contains("one trigger only"), "{better}");
    let (_, single) = served.get("/v1/tasks/inherits/what-if").await;
    assert!(
        single["remedies"].to_string().contains("12 of 12 keys had one trigger only"),
        "{single:#}"
    );
    let (status, refused) = served.get("/v1/tasks/both/what-if").await;
    assert_eq!((status, &refused["error"]["field"]), (422, &Value::from("task")), "{refused}");
    for (path, field) in [
        ("/v1/tasks/own/what-if?min=1m", "max"),
        ("/v1/tasks/own/what-if?max=1m", "min"),
        ("/v1/tasks/own/what-if?min=2m&max=1m", "debounce"),
        ("/v1/tasks/plain/what-if", "task"),
    ] {
        let (status, refused) = served.get(path).await;
        assert_eq!(status, 422, "{path}: {refused}");
        assert!(refused["error"]["field"] == field || field == "debounce", "{path}: {refused}");
    }

    // What the task declares can be replaced here as well as what its queue has.
    for (task, from) in [("own", "which the task declares"), ("inherits", "the default ones")] {
        let (_, shown) = page(&served, &format!("/what-if?task={task}&min=7s&max=70s")).await;
        assert!(shown.contains(from) && shown.contains("data-do=\"apply\""), "{shown}");
        assert!(shown.contains("1m10s"), "{shown}");
        let set = served.request(Method::PATCH, &format!("/v1/tasks/{task}"));
        let set = set.header("content-type", "application/json");
        let set = set.body(r#"{"debounce":{"min":"7s","max":"70s"}}"#).send().await.unwrap();
        assert_eq!(set.status(), 200);
        let (_, after) = served.get(&format!("/v1/tasks/{task}/what-if")).await;
        let found = (&after["from_setting"], &pair(&after, "current")["min"]);
        assert_eq!(found, (&Value::from("operator"), &Value::from("7s")));
    }
    served.server.stop().await.unwrap();
}
