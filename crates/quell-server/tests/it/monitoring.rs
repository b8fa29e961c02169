//! What Prometheus reads: the metrics page, the alerts, the dashboard, and the page that documents them.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use quell_services::promtool;
use reqwest::{Client, Method};
use serde_json::Value;

use crate::binary::{Process, quell};

const CONFIG: &str = r#"
[tasks.build]
key = "{{ repo }}"
debounce = { min = "50ms", max = "5s" }
exec = { command = ["true"] }
[tasks.dies]
retry = { max_attempts = 2, min_backoff = "10ms" }
exec = { command = ["false"] }
[tasks.elsewhere]
pull = true
[schedules.often]
task = "build"
every = "1s"
payload = { repo = "scheduled" }
[alerts.dead]
on = "dead"
threshold = 1
[sources.hook]
verify = "token"
secret_env = "HOOK"
task = "dies"
[otel]
endpoint = "http://127.0.0.1:9"
"#;

fn file(path: &str) -> String {
    format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap()
}

/// Names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("quell_"));
    words.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
}

/// The page of a server that has done all kinds of work.
async fn page() -> String {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let store = folder.path().join("q.db");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nalert_interval = \"100ms\"\naudit_file = \"audit\"\n\
         [store]\nurl = \"sqlite://{}\"\nsynchronous = \"normal\"\n{CONFIG}",
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = quell(&["serve", "--config", config.to_str().unwrap()]);
    let process = Process::start(command.env("HOOK", "secret").stderr(Stdio::null()));
    let client = Client::new();
    let ask = async |method: Method, path: &str, body: &str| {
        let request = client.request(method, format!("{}{path}", process.url));
        let request = request.header("content-type", "application/json").bearer_auth("secret");
        request.body(body.to_owned()).send().await.unwrap().text().await.unwrap()
    };
    for (task, payload) in [("build", r#"{"repo":"a"}"#), ("dies", "1"), ("elsewhere", "1")] {
        let body = format!("{{\"payload\":{payload}}}");
        ask(Method::POST, &format!("/v1/tasks/{task}/triggers"), &body).await;
        ask(Method::POST, &format!("/v1/tasks/{task}/triggers"), &body).await;
    }
    let hooked = ask(Method::POST, "/in/hook", "1").await;
    let needed = [
        "quell_attempts_total{queue=\"default\",task=\"dies\",outcome=\"failed\"} 6",
        "quell_task_debounced_total{",
        "quell_alert{name=\"dead\"} 1",
        "quell_source_deliveries_total{source=\"hook\"",
        "quell_task_debounce_delay_seconds_bucket{",
        "quell_poll_contention_total{",
    ];
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let page = ask(Method::GET, "/metrics", "").await;
        if needed.iter().all(|line| page.contains(line)) {
            return page;
        }
        assert!(Instant::now() < deadline, "{hooked}\n{page}");
        // Triggers that came too far apart have opened a window each.
        if !page.contains("quell_task_debounced_total{") {
            let both = r#"[{"payload":{"repo":"b"}},{"payload":{"repo":"b"}}]"#;
            ask(Method::POST, "/v1/tasks/build/triggers", both).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// promtool with this input.
fn check(arguments: &[&str], input: &str) -> Output {
    let mut command: Command = promtool().unwrap();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn expect_fine(output: &Output, of: &str) {
    let shown = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{}\n{of}", String::from_utf8_lossy(&shown));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promtool_accepts_the_page_and_each_metric_is_documented() {
    let page = page().await;
    let checked = check(&["check", "metrics"], &page);
    expect_fine(&checked, &page);
    assert!(checked.stderr.is_empty() && checked.stdout.is_empty(), "{checked:?}");

    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let shown: BTreeSet<String> =
        types.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    let docs = read("docs/api.md");
    let (_, table) = docs.split_once("## Metrics").unwrap();
    let first_cells = table.lines().filter_map(|row| row.strip_prefix("| `")?.split(" |").next());
    let documented: BTreeSet<String> = first_cells.flat_map(names).collect();
    for name in &shown {
        assert!(page.contains(&format!("# HELP {name} ")), "{name} has no help text");
        assert!(documented.contains(name), "{name} is not in docs/api.md");
    }
    let of_postgres = names(&read("crates/quell-postgres/src/checkup.rs"));
    for name in &documented {
        assert!(shown.contains(name) || of_postgres.contains(name), "there is no {name}:\n{page}");
    }
    let help = read("crates/quell-core/src/store/checkup.rs");
    let of_stores = of_postgres.iter().filter(|name| name.starts_with("quell_store_"));
    for name in of_stores {
        assert!(documented.contains(name), "{name} is not in docs/api.md");
        assert!(help.contains(&format!("\"{name}\"")), "{name} has no help text");
    }
}

#[test]
fn promtool_accepts_the_alerts_and_each_fires_when_it_should() {
    let alerts = file("packages/monitoring/alerts.yaml");
    let tests = file("packages/monitoring/alerts.test.yaml");
    expect_fine(&check(&["check", "rules", &alerts], ""), "alerts.yaml");
    expect_fine(&check(&["test", "rules", &tests], ""), "alerts.test.yaml");
    let (alerts, tests) =
        (read("packages/monitoring/alerts.yaml"), read("packages/monitoring/alerts.test.yaml"));
    let named = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let named: Vec<_> = named.collect();
    assert!(named.len() > 9, "{named:?}");
    for name in named {
        assert!(tests.contains(&format!("- name: {name}\n")), "{name} has no test");
    }
}

/// A renamed metric would leave a panel or an alert without data, and nothing would say so.
#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_exist() {
    let code = [
        "crates/quell/src/metrics.rs",
        "crates/quell-core/src/store/checkup.rs",
        "crates/quell-server/src/http/metrics/mod.rs",
        "crates/quell-server/src/http/metrics/page.rs",
    ];
    let code: String = code.into_iter().map(read).collect();
    let dashboard = read("packages/monitoring/grafana.json");
    let panels: Value = serde_json::from_str(&dashboard).unwrap();
    assert!(panels["panels"].as_array().unwrap().len() > 10);
    for text in [dashboard, read("packages/monitoring/alerts.yaml")] {
        let names = names(&text);
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            assert!(
                code.contains(&format!("\"{name}\"")) || code.contains(&format!("# HELP {name} ")),
                "{name}"
            );
        }
    }
}
