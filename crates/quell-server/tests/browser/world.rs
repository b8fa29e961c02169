//! A store with something of everything, so that each page has something to show.

use quell_services::await_that;
use reqwest::Method;
use serde_json::{Value, json};

use crate::page::PATIENCE;
use crate::scene::Scene;

/// Tasks whose jobs wait, succeed, fail, and are for workers elsewhere; queues, and a schedule. A failed command
/// leaves its input in the error.
pub(crate) const TABLES: &str = r#"
[queues.builds]
concurrency = 4
rate = { limit = 100, period = "1m" }
[queues.imports]
partition_concurrency = 2
[queues.remote]
[tasks.build]
queue = "builds"
key = "{{ repo }}"
debounce = { min = "30m", max = "2h" }
exec = { command = ["true"] }
[tasks.mail]
exec = { command = ["cat"] }
[tasks.import]
queue = "imports"
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "cat >&2; exit 1"] }
[tasks.resize]
queue = "remote"
pull = true
[sources.github]
verify = "github"
secret_file = "secret"
task = "build"
[schedules.nightly]
task = "mail"
cron = "0 3 * * 1-5"
zone = "Europe/Berlin"
payload = { report = "daily" }
"#;

/// Each scope by a token of its name, and one for readers without payloads.
pub(crate) const TOKENS: [(&str, &str); 3] =
    [("admin", "admin payload"), ("operator", "operate payload trigger"), ("reader", "read")];

/// Jobs in each state.
pub(crate) struct World {
    pub(crate) scene: Scene,
    /// A job that waits for the end of its burst.
    pub(crate) waiting: String,
    pub(crate) succeeded: String,
    pub(crate) dead: String,
    /// At a worker elsewhere.
    pub(crate) running: String,
    /// The trigger that opened the window of `waiting`.
    pub(crate) trigger: String,
}

impl World {
    /// Fills a store. `text` is in each field that takes any text.
    pub(crate) fn new(text: &str) -> World {
        let scene = Scene::guarded(TABLES, &TOKENS);
        let trigger = |task: &str, body: Value| {
            let path = format!("/v1/tasks/{task}/triggers");
            scene.call("admin", Method::POST, &path, &body)
        };
        let id = |receipt: &Value| receipt["job"].as_str().unwrap().to_owned();
        let payload = json!({ "repo": text, "text": text });
        let opened = trigger("build", json!({ "payload": payload, "partition": text }));
        for number in 0..5 {
            let payload = json!({ "repo": text, "text": text, "number": number });
            trigger("build", json!({ "payload": payload, "partition": text }));
            trigger("build", json!({ "payload": { "repo": format!("repo-{number}") } }));
        }
        let mail = json!({ "payload": { "text": text }, "idempotency_key": text, "dedup": text });
        let succeeded = id(&trigger("mail", mail));
        let imports: Vec<String> = (0..12)
            .map(|number| {
                id(&trigger("import", json!({ "payload": { "text": text, "n": number } })))
            })
            .collect();
        let running = id(&trigger("resize", json!({ "payload": { "text": text } })));
        let world = World {
            waiting: id(&opened),
            trigger: opened["trigger"].as_str().unwrap_or_default().to_owned(),
            dead: imports[0].clone(),
            succeeded,
            running,
            scene,
        };
        world.work(text);
        world.operate(text);
        world.reach(&world.succeeded, "succeeded");
        imports.iter().for_each(|job| world.reach(job, "dead"));
        world
    }

    /// A worker elsewhere takes the job and reports how far it is.
    fn work(&self, text: &str) {
        let process = json!({
            "incarnation": 5, "host": text, "pid": 9, "slots": 4, "busy": 1, "version": text,
        });
        let claim = json!({ "tasks": ["resize"], "limit": 1, "wait": "20s", "process": process });
        let claimed = self.call("admin", Method::POST, "/v1/workers/far/claim", &claim);
        let lease = &claimed["jobs"][0]["lease"];
        let report =
            json!({ "lease": lease, "progress": { "done": 3, "at": text }, "log": [text] });
        let renewal = json!({ "leases": [report], "process": process });
        self.call("admin", Method::POST, "/v1/workers/far/renew", &renewal);
    }

    /// What operators did.
    fn operate(&self, text: &str) {
        let pause = json!({ "by": text });
        self.call("operator", Method::POST, "/v1/queues/remote/pause", &pause);
        self.call("operator", Method::POST, "/v1/tasks/resize/pause", &pause);
        let action = json!({
            "name": "count", "action": "cancel", "reason": text, "dry_run": true,
            "filter": { "state": "scheduled" },
        });
        self.call("operator", Method::POST, "/v1/actions", &action);
    }

    pub(crate) fn call(&self, by: &str, method: Method, path: &str, body: &Value) -> Value {
        self.scene.call(by, method, path, body)
    }

    /// Waits until a job is in a state.
    pub(crate) fn reach(&self, job: &str, state: &str) {
        let path = format!("/v1/jobs/{job}");
        let mut shown = Value::Null;
        let is_there = await_that(PATIENCE, || {
            shown = self.call("admin", Method::GET, &path, &Value::Null);
            shown["job"]["state"] == state
        });
        assert!(is_there, "never {state}: {shown:#}");
    }

    /// Waits until a job has had this number of attempts and is dead.
    pub(crate) fn attempts(&self, job: &str, attempts: usize) {
        let path = format!("/v1/jobs/{job}");
        let mut shown = Value::Null;
        let has_had = await_that(PATIENCE, || {
            shown = self.call("admin", Method::GET, &path, &Value::Null);
            shown["job"]["state"] == "dead"
                && shown["attempts"].as_array().is_some_and(|had| had.len() == attempts)
        });
        assert!(has_had, "never {attempts} attempts: {shown:#}");
    }

    /// A page whose reader has logged in by this token.
    pub(crate) fn login(&self, name: &str) -> crate::page::Page {
        let page = self.scene.page();
        page.goto(&self.scene.url("/login"));
        page.css("#token").fill(self.scene.token(name));
        page.follow(|| page.press("Enter"));
        page
    }

    /// Goes to a path.
    pub(crate) fn visit(&self, page: &crate::page::Page, path: &str) {
        page.goto(&self.scene.url(path));
    }
}
