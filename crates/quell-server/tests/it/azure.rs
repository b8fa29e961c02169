//! The program on Azure Table Storage, whose place Azurite takes: served, restarted, examined,
//! refused.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use quell_services::{AZURITE, azurite_for_tests};
use reqwest::{Client, Method};
use serde_json::Value;
use sha2::Sha256;
use tempfile::TempDir;

use crate::binary::{Process, quell, text};
use crate::served::file_says;

const ACCOUNT: &str = "devstoreaccount1";
/// Stands for a secret in places where none belongs.
const CANARY: &str = "CANARY";

/// A table that no other test has, and a folder for a server.
struct Place {
    connection: String,
    name: String,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let (connection, name) = azurite_for_tests();
        Place { connection, name, folder: tempfile::tempdir().unwrap() }
    }

    /// Its URL with these parameters. On a busy machine Azurite is slow.
    fn url(&self, more: &str) -> String {
        let name = &self.name;
        format!("azure://{ACCOUNT}/{name}?connection={AZURITE}&timeout_ms=60000{more}")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A configuration with this store.
    fn config(&self, url: &str, tasks: &str) -> PathBuf {
        let config = self.path("quell.toml");
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n\
             [worker]\ngrace = \"100ms\"\n{tasks}"
        );
        std::fs::write(&config, text).unwrap();
        config
    }

    /// A part of the connection string.
    fn part(&self, name: &str) -> &str {
        let start = format!("{name}=");
        self.connection.split(';').find_map(|part| part.strip_prefix(&start)).unwrap()
    }

    /// Sends a request that Quell would not; what is answered.
    async fn send(&self, method: Method, path: &str, body: &str) -> (u16, Value) {
        let date = jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let key = STANDARD.decode(self.part("AccountKey")).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{date}\n/{ACCOUNT}/{ACCOUNT}/{path}").as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let client = Client::builder().no_proxy().build().unwrap();
        let request = client
            .request(method, format!("{}/{path}", self.part("TableEndpoint")))
            .header("x-ms-date", date)
            .header("x-ms-version", "2019-02-02")
            .header("authorization", format!("SharedKeyLite {ACCOUNT}:{signature}"))
            .header("content-type", "application/json")
            .header("accept", "application/json;odata=nometadata");
        crate::served::answer(request.body(body.to_owned()).send().await.unwrap()).await
    }

    /// A command that ends, with its success and what it printed.
    fn run(&self, args: &[&str]) -> (bool, String) {
        self.shown(&quell(args).output().unwrap())
    }

    fn shown(&self, output: &Output) -> (bool, String) {
        let (succeeded, shown) = text(output);
        for secret in [CANARY, self.part("AccountKey")] {
            assert!(!shown.contains(secret), "a secret is printed: {shown}");
        }
        (succeeded, shown)
    }

    /// `quell serve` and `quell doctor` with this connection string, which both must refuse.
    fn refused(&self, url: &str, connection: &str) -> String {
        let config = self.config(url, "");
        let config = config.to_str().unwrap();
        let mut all = String::new();
        for args in [&["serve", "--config", config][..], &["doctor", "--store", url]] {
            // What libraries log is searched for secrets, too.
            let mut command = quell(args);
            command.env("CONNECTION", connection).env("QUELL_LOG", "trace");
            let output = command.output().unwrap();
            let (succeeded, shown) = self.shown(&output);
            assert!(!succeeded, "{args:?}: {shown}");
            all.push_str(&shown);
        }
        all
    }
}

/// A task that writes its payload and the number of its triggers to `runs`, with a window that only
/// a flush closes in time, and one with a short window.
const TASKS: &str = r#"
[tasks.index]
key = "{{ page }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["sh", "-c", "echo $QUELL_TRIGGERS $(cat) >> runs"], cwd = "." }
[tasks.soon]
key = "{{ page }}"
debounce = { min = "300ms", max = "1h" }
exec = { command = ["sh", "-c", "echo $QUELL_TRIGGERS $(cat) >> soon"], cwd = "." }
[schedules.nightly]
task = "soon"
payload = { page = "nightly" }
cron = "0 3 * * *"
[alerts.dead]
on = "dead"
threshold = 0
"#;

async fn post(process: &Process, path: &str, body: &str) -> (u16, Value) {
    let request = Client::new().post(format!("{}{path}", process.url));
    let request = request.header("content-type", "application/json").body(body.to_owned());
    crate::served::answer(request.send().await.unwrap()).await
}

fn ends_well(mut process: Process) {
    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success());
}

#[tokio::test]
async fn r01_r07_a_burst_over_http_is_one_run_across_a_restart() {
    let place = Place::new();
    let config = place.config(&place.url(""), TASKS);
    let history = place.path("history");
    let record = ["--history", history.to_str().unwrap()];
    let process = Process::serve(&config, &record);
    let path = "/v1/tasks/index/triggers";
    let burst = (0..20).map(|_| post(&process, path, r#"{"payload": {"page": "a"}}"#));
    for (status, answer) in futures_util::future::join_all(burst).await {
        assert_eq!(status, 202, "{answer}");
    }
    ends_well(process);

    // Its table is the only thing that outlives it.
    let process = Process::serve(&config, &record);
    let (status, answer) = post(&process, path, r#"{"payload": {"page": "a", "last": 1}}"#).await;
    assert_eq!(status, 202, "{answer}");
    let flushed = post(&process, "/v1/tasks/index/windows/flush", r#"{"key": "a"}"#).await;
    assert_eq!(flushed.0, 200, "{}", flushed.1);
    let line = "21 {\"page\": \"a\", \"last\": 1}\n";
    file_says(&place.path("runs"), |runs| runs == line).await;

    // One request is one atomic batch, so its triggers cannot meet two windows.
    let several = r#"[{"payload": {"page": "b"}}, {"payload": {"page": "b"}}]"#;
    let (status, answer) = post(&process, "/v1/tasks/soon/triggers", several).await;
    assert_eq!(status, 202, "{answer}");
    file_says(&place.path("soon"), |runs| runs == "2 {\"page\": \"b\"}\n").await;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, shown) = place.shown(&process.ask(&["jobs", "--json"]));
        if shown.matches("succeeded").count() >= 2 {
            break;
        }
        assert!(Instant::now() < deadline, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for page in ["/v1/healthz", "/metrics"] {
        let answer = Client::new().get(format!("{}{page}", process.url)).send().await.unwrap();
        let (status, answer) = crate::served::answer(answer).await;
        assert_eq!(status, 200, "{page}: {answer}");
    }
    ends_well(process);

    let runs = std::fs::read_to_string(place.path("runs")).unwrap();
    assert_eq!(runs, line, "one run");
    let (succeeded, shown) = place.run(&["check", history.to_str().unwrap()]);
    assert!(succeeded, "{shown}");
}

#[tokio::test]
async fn r01_r07_servers_that_share_a_table_run_a_burst_once_though_one_was_killed() {
    let place = Place::new();
    let config = place.config(&place.url(""), TASKS);
    let (mut killed, path) = (Process::serve(&config, &[]), "/v1/tasks/index/triggers");
    let trigger = r#"{"payload": {"page": "a"}}"#;
    for _ in 0..3 {
        assert_eq!(post(&killed, path, trigger).await.0, 202);
    }
    killed.signal("-KILL");
    killed.child.wait().unwrap();

    let (first, second) = (Process::serve(&config, &[]), Process::serve(&config, &[]));
    let burst = (0..20).map(|n| post(if n % 2 == 0 { &first } else { &second }, path, trigger));
    for (status, answer) in futures_util::future::join_all(burst).await {
        assert_eq!(status, 202, "{answer}");
    }
    let flushed = post(&first, "/v1/tasks/index/windows/flush", r#"{"key": "a"}"#).await;
    assert_eq!(flushed.0, 200, "{}", flushed.1);
    file_says(&place.path("runs"), |runs| !runs.is_empty()).await;
    ends_well(first);
    ends_well(second);
    let runs = std::fs::read_to_string(place.path("runs")).unwrap();
    assert_eq!(runs, "23 {\"page\": \"a\"}\n", "one run");
}

#[test]
fn commands_that_name_a_store_take_its_url() {
    let place = Place::new();
    let url = place.url("");
    let missing: [&[&str]; 5] =
        [&["doctor"], &["doctor", "--skip-ids"], &["jobs"], &["dead", "list"], &["workers"]];
    for args in missing {
        let (succeeded, shown) = place.run(&[args, &["--store", &url]].concat());
        assert!(!succeeded && shown.contains("does not exist"), "{args:?}: {shown}");
    }
    let process = Process::serve(&place.config(&url, TASKS), &[]);
    let (succeeded, shown) = place.shown(&process.ask(&["trigger", "index", r#"{"page":"a"}"#]));
    assert!(succeeded, "{shown}");
    let key_of_account = format!("key of account \"{ACCOUNT}\"");
    let cases: [(&[&str], bool, &str); 10] = [
        (&["doctor"], true, "ahead by"),
        (&["doctor"], true, &place.name),
        (&["doctor"], true, &key_of_account),
        (&["doctor", "--reset-clock"], false, "lacks the capability `reset_clock`"),
        (&["jobs"], true, "scheduled"),
        (&["explain", "a"], true, "task index in queue default"),
        (&["workers"], true, "seen"),
        (&["schedule", "list"], true, "nightly"),
        (&["alerts"], true, ""),
        (&["dead", "list"], true, ""),
    ];
    for (args, succeeds, needle) in cases {
        let (succeeded, shown) = place.run(&[args, &["--store", &url]].concat());
        assert!(succeeded == succeeds && shown.contains(needle), "{args:?}: {shown}");
    }
    ends_well(process);
    let (succeeded, shown) = place.run(&["doctor", "--store", &url, "--skip-ids"]);
    assert!(succeeded && shown.contains("left out 100000000 ids"), "{shown}");

    let trace = place.path("trace.csv");
    std::fs::write(&trace, "at,page\n2026-01-01T00:00:00Z,a\n2026-01-01T00:00:01Z,a\n").unwrap();
    let (trace, empty) = (trace.to_str().unwrap(), Place::new().url(""));
    let replay = ["replay", trace, "--key", "{{ page }}", "--time", "at", "--speed", "max"];
    let more = ["--min", "10s", "--max", "60s", "--store", &empty];
    let (succeeded, shown) = place.run(&[&replay[..], &more].concat());
    assert!(succeeded && shown.contains("the same: 1 runs"), "{shown}");
    assert!(!shown.contains("connection="), "its parameters are not shown: {shown}");
}

#[test]
fn r18_a_batch_that_is_too_large_is_refused_by_the_name_of_the_capability() {
    let place = Place::new();
    let tasks = format!("{TASKS}[tasks.plain]\nexec = {{ command = [\"true\"] }}\n");
    let process = Process::serve(&place.config(&place.url(""), &tasks), &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let trigger = |task: &str, count: usize, payload: fn(usize) -> String| {
        let triggers: Vec<String> = (0..count).map(payload).collect();
        let body = format!("[{}]", triggers.join(","));
        runtime.block_on(post(&process, &format!("/v1/tasks/{task}/triggers"), &body))
    };
    let own: fn(usize) -> String = |n| format!(r#"{{"payload": {{"page": {n}}}}}"#);
    let same: fn(usize) -> String = |_| r#"{"payload": {"page": "same"}}"#.to_owned();
    for (task, count, payload) in [("plain", 51, own), ("index", 34, own)] {
        let (status, answer) = trigger(task, count, payload);
        assert_eq!((status, &answer["error"]["kind"]), (422, &"unsupported".into()), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("`large_batches`"), "{message}");
        let (_, shown) = place.shown(&process.ask(&["jobs", "--json"]));
        assert!(!shown.contains(task), "nothing was written: {shown}");
    }
    for (task, count, payload) in [("plain", 48, own), ("index", 32, own), ("index", 1_000, same)] {
        let (status, answer) = trigger(task, count, payload);
        assert_eq!(status, 202, "{task}, {count} triggers: {answer}");
    }
    ends_well(process);
}

#[test]
fn what_is_wrong_with_a_url_or_an_account_is_said_without_its_secrets() {
    let place = Place::new();
    let (endpoint, name) = (place.part("TableEndpoint"), &place.name);
    let with = |account: &str, key: &str, endpoint: &str| {
        format!("AccountName={account};AccountKey={key};TableEndpoint={endpoint}")
    };
    let good = with(ACCOUNT, place.part("AccountKey"), endpoint);
    let wrong = with(ACCOUNT, &STANDARD.encode(CANARY), endpoint);
    let other = endpoint.replace(ACCOUNT, "nosuchaccount");
    let absent = with("nosuchaccount", &STANDARD.encode(CANARY), &other);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = with(ACCOUNT, place.part("AccountKey"), &format!("http://{free}/{ACCOUNT}"));
    let sas = format!("TableEndpoint={endpoint};SharedAccessSignature=sv=2019-02-02&sig={CANARY}");
    let url = |account: &str, more: &str| {
        format!("azure://{account}/{name}?connection=CONNECTION&timeout_ms=5000{more}")
    };
    let cases: [(String, &str, &str); 12] = [
        (url(ACCOUNT, ""), &wrong, "check AccountKey of account"),
        (url("nosuchaccount", ""), &absent, "nosuchaccount"),
        (url("nosuchaccount", ""), &good, "is not of the URL's account \"nosuchaccount\""),
        (url(ACCOUNT, ""), &away, "no connection to 127.0.0.1"),
        (url(ACCOUNT, ""), &sas, "check the SAS token"),
        (url(ACCOUNT, ""), CANARY, "cannot read the connection string"),
        (format!("azure://{ACCOUNT}/{name}?connection={CANARY}"), "", "no connection string"),
        (
            format!("azure://{ACCOUNT}/{name}?AccountKey={CANARY}"),
            "",
            "\"AccountKey\" is not known",
        ),
        (format!("azure://me:{CANARY}@{ACCOUNT}/{name}"), "", "give azure://ACCOUNT/TABLE"),
        (url(ACCOUNT, "&timer=servicebus"), &good, "`timer`: give servicebus://HOST/QUEUE"),
        (url(ACCOUNT, "&create=perhaps"), &good, "`create`: give true or false"),
        (url(ACCOUNT, "&create=false"), &good, "does not exist"),
    ];
    for (url, connection, needle) in cases {
        let shown = place.refused(&url, connection);
        assert!(shown.contains(needle), "{url}: {shown}");
    }
}

/// One server triggers, the worker of another process runs: both kinds of timers, by URLs.
#[tokio::test]
async fn r34_a_timer_wakes_the_server_for_triggers_of_other_processes() {
    let stand_in = quell_services::ServiceBus::start().unwrap();
    stand_in.create_queue("timers", quell_services::servicebus::QueueOptions::default()).unwrap();
    let bus = stand_in.connection_string();
    let host = format!("127.0.0.1:{}", stand_in.port());
    for timer in [
        format!("servicebus://{host}/timers&timer_connection=BUS"),
        format!("storage-queue://{}", azurite_for_tests().1),
    ] {
        let place = Place::new();
        let url = place.url(&format!("&timer={timer}"));
        let config = place.config(&url, TASKS);
        let serve = || {
            let config = config.to_str().unwrap();
            Process::start(quell(&["serve", "--config", config]).env("BUS", &bus))
        };
        let (one, other) = (serve(), serve());
        for n in 1..=3 {
            let payload = format!(r#"{{"payload": {{"page": "p{n}"}}}}"#);
            let to = if n == 2 { &one } else { &other };
            let (status, answer) = post(to, "/v1/tasks/soon/triggers", &payload).await;
            assert_eq!(status, 202, "{answer}");
            file_says(&place.path("soon"), |runs| runs.lines().count() == n).await;
        }
        let without =
            place.refused(&place.url("").replace(AZURITE, "CONNECTION"), &place.connection);
        assert!(without.contains("give timer="), "{without}");
        ends_well(one);
        ends_well(other);
    }
}

#[tokio::test]
async fn a_table_of_others_is_refused_and_not_written() {
    let place = Place::new();
    let body = format!(r#"{{"TableName":"{}"}}"#, place.name);
    let (status, answer) = place.send(Method::POST, "Tables", &body).await;
    assert_eq!(status, 201, "{answer}");
    let theirs = r#"{"PartitionKey":"theirs","RowKey":"r"}"#;
    let (status, answer) = place.send(Method::POST, &place.name, theirs).await;
    assert_eq!(status, 201, "{answer}");
    let url = format!("azure://{ACCOUNT}/{}?connection=CONNECTION", place.name);
    let shown = place.refused(&url, &place.connection);
    assert!(shown.contains("is not Quell's") && shown.contains(&place.name), "{shown}");
    let (_, rows) = place.send(Method::GET, &format!("{}()", place.name), "").await;
    let rows = rows["value"].as_array().unwrap();
    assert!(rows.len() == 1 && rows[0]["PartitionKey"] == "theirs", "{rows:?}");
}

/// What stands in the blocks of a language on a page, by section.
fn blocks<'p>(page: &'p str, section: &str, language: &str) -> Vec<&'p str> {
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    let fence = format!("```{language}\n");
    section.split(&fence).skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// Runs a block of commands as a reader would who has `quell` on the path.
fn shell(place: &Place, server: &str, commands: &str) -> (bool, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_quell")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let output = std::process::Command::new("sh")
        .args(["-euc", commands])
        .current_dir(place.folder.path())
        .env("PATH", path)
        .env("QUELL_SERVER", server)
        .env("AZURE_STORAGE_CONNECTION_STRING", &place.connection)
        .output()
        .unwrap();
    place.shown(&output)
}

#[tokio::test]
async fn the_commands_on_the_page_work_as_they_stand() {
    let page = include_str!("../../../../docs/azure.md");
    let place = Place::new();
    let config = blocks(page, "On your own machine", "toml")[0];
    let commands = blocks(page, "On your own machine", "sh");
    let [_, start, trigger, look] = commands[..] else { panic!("{commands:#?}") };
    // Tests share an Azurite, on a port that is not its own: only the table and the ports differ.
    assert!(start.contains("AZURE_STORAGE_CONNECTION_STRING='UseDevelopmentStorage=true'"));
    assert!(start.contains("quell serve --config quell.toml"));
    let table = format!("/{}\"", place.name);
    let config = config.replace("/quell\"", &table);
    assert!(config.contains(&table), "{config}");
    let config = format!("[server]\nlisten = \"127.0.0.1:0\"\n{config}");
    std::fs::write(place.path("quell.toml"), config).unwrap();
    let mut serve = quell(&["serve", "--config", "quell.toml"]);
    serve.current_dir(place.folder.path());
    serve.env("AZURE_STORAGE_CONNECTION_STRING", &place.connection);
    let process = Process::start(&mut serve);
    let (succeeded, shown) = shell(&place, &process.url, trigger);
    assert!(succeeded && shown.matches(" as trigger ").count() == 3, "{shown}");
    let runs = |text: &str| text.lines().filter(|line| !line.is_empty()).count();
    let runs = runs(&file_says(&place.path("runs.jsonl"), |text| runs(text) > 0).await);
    assert!(runs <= 3);
    let look = look.replace("/quell\n", &format!("/{}\n", place.name));
    let look = look.replace("UseDevelopmentStorage=true", &place.connection);
    let (succeeded, shown) = shell(&place, &process.url, &look);
    assert!(succeeded && shown.contains(&place.name), "{look}: {shown}");
    assert!(shown.contains("of task build in queue default"), "{shown}");
    ends_well(process);
}
