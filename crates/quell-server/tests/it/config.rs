//! What `quell.toml` may contain, and how mistakes are reported: file, line, field, remedy.

use std::path::Path;
use std::time::Duration;

use quell::Fold;
use quell::worker::Retention;
use quell_server::config::Config;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("quell.toml")).map_err(|error| error.to_string())
}

/// Every wrong text beside what is said of it.
fn refusals(table: &[&str]) -> String {
    let reply = table.iter().map(|text| {
        let error = parse(text).expect_err(text);
        format!("{}\n  => {}\n", text.trim(), error.replace('\n', "\n     "))
    });
    reply.collect::<Vec<_>>().join("\n")
}

/// The smallest task that is fine, with more lines in its table.
fn task(lines: &str) -> String {
    format!("[tasks.build]\nexec = {{ command = [\"true\"] }}\n{lines}")
}

#[test]
fn an_empty_file_has_the_documented_defaults() {
    let config = parse("").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:7777");
    assert_eq!((config.max_body, config.store.as_str()), (1 << 20, "sqlite://quell.db"));
    assert_eq!(config.grace, Duration::from_secs(30));
    assert!(config.token.is_none() && config.tasks.is_empty() && config.queues.is_empty());
}

#[test]
fn the_example_in_the_repository_is_fine() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quell.toml");
    let config = Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
    assert!(!config.tasks.is_empty());
}

#[test]
fn every_setting_is_read() {
    let text = r#"
        [server]
        listen = "127.0.0.1:0"
        allowed_hosts = ["quell.internal", "[fd00::1]"]
        max_body = "64KiB"
        [store]
        url = "sqlite://jobs.db"
        synchronous = "normal"
        dedup_fallback = "open"
        [worker]
        concurrency = 4
        grace = "5s"
        lease = "15s"
        [queues.builds]
        concurrency = 2
        paused = true
        debounce = { min = "1s", max = "2s" }
        [tasks."build.docs"]
        queue = "builds"
        priority = -3
        key = "{{ repository.full_name }}"
        overlap = true
        payload = "collect:7"
        timeout = "2m"
        retry = { max_attempts = 3, min_backoff = "2s", max_backoff = "1m", jitter = "none" }
        exec = { command = ["./build.sh", "docs"], cwd = "work", env = { A = "b" }, pass_env = ["USER"], permanent_exit_codes = [65] }
        [tasks."build.docs".debounce]
        min = "10s"
        max = "60s"
        max_triggers = 100
        max_bytes = 4096
        edge = "both"
        [tasks.notify]
        key = "{{ user }}"
        throttle = "10s"
        http = { url = "https://example.com/hook", method = "PUT", headers = { X-A = "b" }, allow = ["10.0.0.0/8", "localhost"] }
    "#;
    let config = parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.store, "sqlite://jobs.db?synchronous=normal");
    assert_eq!(config.dedup_fallback, quell::trigger::DedupFallback::Open);
    let build = &config.tasks[&quell::TaskName::new("build.docs").unwrap()];
    assert_eq!(build.checked.retry().max_attempts, 3);
    assert_eq!(build.checked.timeout(), Duration::from_secs(120));
    assert_eq!(build.checked.debounce().max_triggers, Some(100));
    assert_eq!(build.checked.debounce().max_bytes, Some(4_096));
    assert_eq!(build.checked.fold(), &Fold::Collect { cap: 7 });
    let Some(quell_server::handlers::Handler::Exec(exec)) = &build.handler else {
        panic!("not exec")
    };
    assert!(exec.command[0].ends_with("/build.sh") && exec.command[0].starts_with('/'));
    assert_eq!(exec.timeout, Duration::from_secs(120));
    assert_eq!(exec.permanent_exit_codes, [65]);
    assert!(config.queues[&quell::QueueName::new("builds").unwrap()].settings.paused);
}

#[test]
fn r40_typos_are_reported_with_the_name_that_was_meant() {
    let tasks = [
        "[sever]\nlisten = \"127.0.0.1:1\"",
        "[server]\nlissten = \"127.0.0.1:1\"",
        "[worker]\nconcurency = 3",
        &task("debonce = { min = \"1s\", max = \"2s\" }"),
        &task("key = \"k\"\ndebounce = { min = \"1s\", max = \"2s\", egde = \"both\" }"),
        &task("key = \"k\"\ndebounce = { min = \"1s\", max = \"2s\", edge = \"traling\" }"),
        &task("key = \"k\"\n[tasks.build.debounce]\nmin = \"1s\"\nmaxx = \"2s\""),
        "[tasks.build.exec]\ncomand = [\"true\"]",
        "[store]\nsynchronous = \"fulll\"",
        &task("retry = { attempts = 3 }"),
    ];
    insta::assert_snapshot!(refusals(&tasks));
}

#[test]
fn r40_bad_values_are_reported_with_file_line_and_field() {
    let http = |rest: &str| format!("[tasks.h.http]\nurl = \"http://example.com\"\n{rest}");
    let tasks = [
        "[server]\nlisten = 7",
        "[server]\nlisten = \"localhost\"",
        "[server]\nlisten = \"0.0.0.0:7777\"",
        "[server]\nallowed_hosts = [\"http://x\"]",
        "[server]\nmax_body = \"0\"",
        "[server]\nmax_body = \"1 GB\"",
        "[server]\ntoken_env = \"QUELL_TEST_IS_NOT_SET\"",
        "[server]\ntoken_file = \"no/such/file\"",
        "[server]\ntoken_env = \"A\"\ntoken_file = \"b\"",
        "[store]\nurl = \"postgres://h/d\"\nsynchronous = \"full\"",
        "[worker]\nconcurrency = 0",
        "[worker]\nconcurrency = -1",
        "[worker]\ngrace = \"-5s\"",
        "[worker]\nlease = \"1ms\"",
        "[worker]\nlease = 30",
        "[queues.q]\nworker_concurrency = 0",
        "[queues.q]\nconcurrency = 1\npartition_concurrency = 2",
        "[queues.q]\nrate = { limit = 0, period = \"1s\" }",
        "[queues.q]\ndebounce = { min = \"2s\", max = \"1s\" }",
        "[queues.q]\ndebounce = { min = \"2s\" }",
        "[queues.\"a b\"]\npaused = true",
        &task("key = \"k\"\ndebounce = { min = \"60s\", max = \"10s\" }"),
        &task("key = \"k\"\ndebounce = { min = \"0s\", max = \"10s\" }"),
        &task("key = \"k\"\ndebounce = { min = \"-1s\", max = \"10s\" }"),
        &task("key = \"k\"\ndebounce = { min = \"soon\", max = \"10s\" }"),
        &task("key = \"k\"\ndebounce = { min = \"1s\" }"),
        &task("key = \"k\"\ndebounce = { min = \"1s\", max = \"2s\", max_triggers = 0 }"),
        &task("key = \"k\"\ndebounce = { min = \"1s\", max = \"2s\", max_bytes = 16777217 }"),
        &task("payload = \"collect:0\""),
        &task("payload = \"accumulate\""),
        &task("payload = \"newest\""),
        &task("debounce = { min = \"1s\", max = \"2s\" }"),
        &task("key = \"k\"\nthrottle = \"1s\"\ndebounce = { min = \"1s\", max = \"2s\" }"),
        &task("key = \"k\"\nthrottle = \"0s\""),
        &task("key = \"{{ repo\""),
        &task("key = \"{{ repo | nosuch }}\""),
        &task("queue = \"\""),
        &task("timeout = \"0s\""),
        &task("priority = 99999"),
        &task("retry = { max_attempts = 0 }"),
        &task("retry = { min_backoff = \"2h\" }"),
        "[tasks.\"a b\"]\nexec = { command = [\"true\"] }",
        "[tasks.build]",
        "[tasks.build.exec]\ncommand = []",
        "[tasks.build.exec]\ncwd = \"x\"",
        "[tasks.build.exec]\ncommand = \"./build.sh\"",
        "[tasks.build.exec]\ncommand = [\"a\", 7]",
        "[tasks.build.exec]\ncommand = [\"true\"]\nenv = { \"A=B\" = \"x\" }",
        "[tasks.build.exec]\ncommand = [\"true\"]\n[tasks.build.http]\nurl = \"http://example.com\"",
        "[tasks.h.http]\nurl = \"ftp://example.com\"",
        "[tasks.h.http]\nurl = \"nonsense\"",
        "[tasks.h.http]\nurl = \"http://user:pass@example.com\"",
        &http("method = \"NO WAY\""),
        &http("headers = { \"a b\" = \"c\" }"),
        &http("secret_env = \"QUELL_TEST_IS_NOT_SET\""),
        &http("allow = [\"10.0.0.0/99\"]"),
        "[tasks.build",
        "[server]\nlisten = \"a\"\nlisten = \"b\"",
    ];
    insta::assert_snapshot!(refusals(&tasks));
}

#[test]
fn r40_all_mistakes_of_a_file_are_reported_at_once_in_order() {
    let text = r#"
[server]
lissten = "127.0.0.1:0"

[tasks.a]
key = "{{ x"
debounce = { min = "1s", max = "never" }
exec = { command = 5 }

[tasks.b]
timeout = "0s"
retry = { max_attempts = 0 }

[tasks.c]
key = "{{ x | nosuch }}"
debounce = { min = "5s", max = "1s" }
exec = { command = ["true"] }

[worker]
concurrency = 0
"#;
    insta::assert_snapshot!(parse(text).unwrap_err());
}

#[test]
fn a_secret_is_read_from_a_file_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    crate::served::write_secret(folder.path().join("token"), "canary-in-the-file\n");
    let path = folder.path().join("quell.toml");
    let text = "[server]\nlisten = \"0.0.0.0:0\"\ntoken_file = \"token\"";
    let config = Config::parse(text, &path).unwrap();
    assert!(!format!("{config:?}").contains("canary"));
    assert!(config.token.is_some());
    crate::served::write_secret(folder.path().join("token"), "");
    let refused = Config::parse(text, &path).unwrap_err().to_string();
    assert!(refused.contains("server.token_file") && refused.contains("empty"), "{refused}");
}

#[test]
fn r37_the_file_says_how_long_ended_jobs_are_kept() {
    let kept = |worker: &str| {
        let text = format!("[worker]\n{worker}");
        Config::parse(&text, Path::new("quell.toml")).map(|config| config.retention)
    };
    let hours = |hours: u64| Some(Duration::from_secs(hours * 3_600));
    assert_eq!(kept("").unwrap(), Retention::new(hours(1), None));
    let days = "keep_succeeded = \"48h\"\nkeep_dead = \"720h\"";
    assert_eq!(kept(days).unwrap(), Retention::new(hours(48), hours(720)));
    let ever = "keep_succeeded = \"forever\"\nkeep_dead = \"forever\"";
    assert_eq!(kept(ever).unwrap(), Retention::new(None, None));
    let refused = kept("keep_dead = \"soon\"").unwrap_err().to_string();
    assert!(refused.contains("worker.keep_dead") && refused.contains("forever"), "{refused}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let refused = Config::load(Path::new("no/such/quell.toml")).unwrap_err().to_string();
    assert!(refused.starts_with("no/such/quell.toml: cannot be read: "), "{refused}");
}

#[test]
fn r40_what_can_never_work_is_refused_before_it_runs() {
    for (text, why) in [
        (
            "[store]\nurl = \"mysql://x\"",
            "store.url: the URL of a store begins with one of sqlite://",
        ),
        ("[store]\nurl = \"quell.db\"", "store.url: "),
        (
            "[tasks.h.http]\nurl = \"https://example.com\"\nmethod = \"GTE\"",
            "tasks.h.http.method: method is not known: give one of POST, PUT, PATCH, GET, DELETE",
        ),
    ] {
        let refused = parse(text).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}
