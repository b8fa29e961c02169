//! What two servers of different builds do for each other on one store: each is given work while
//! only the other may run it.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::server::Server;

/// What callers ask of `asked` is run by `runs`, and each reads what the other wrote.
pub(super) async fn runs_what_the_other_is_asked(runs: &Server, asked: &Server) {
    let slot = asked.take_slot().await;
    let job = asked.job("plain", json!({ "n": 1 })).await;
    assert_eq!(asked.ran_by(&job, runs.build).await, json!({ "n": 1 }));
    delays(runs, asked).await;
    windows(runs, asked).await;
    keys(runs, asked).await;
    deaths(runs, asked).await;
    pauses(runs, asked).await;
    slot.free().await;
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn time(value: &Value) -> Timestamp {
    text(value).parse().unwrap()
}

/// A key that no other step uses.
fn key() -> String {
    format!("k{:08x}", fastrand::u32(..))
}

async fn delays(runs: &Server, asked: &Server) {
    let receipt = asked.trigger("plain", json!({ "payload": 2, "delay": "1s" })).await;
    let job = text(&receipt["job"]);
    asked.ran_by(job, runs.build).await;
    let job = &runs.is(job, "succeeded").await["job"];
    let waited = time(&job["started_at"]).duration_since(time(&job["first_at"]));
    assert!(waited >= SignedDuration::from_secs(1), "it waited {waited:?}: {job:#}");

    let receipt = asked.trigger("plain", json!({ "payload": 2, "delay": "1h" })).await;
    let job = text(&receipt["job"]);
    runs.post(&format!("/v1/jobs/{job}/cancel"), &Value::Null).await;
    asked.is(job, "cancelled").await;
}

/// Both join one window.
async fn windows(runs: &Server, asked: &Server) {
    let key = key();
    let mut receipts = Vec::new();
    for (server, n) in [(asked, 1), (runs, 2), (asked, 3)] {
        let body = json!({ "payload": { "k": key, "n": n } });
        receipts.push(server.trigger("gather", body).await);
    }
    let outcomes: Vec<&str> = receipts.iter().map(|receipt| text(&receipt["receipt"])).collect();
    assert_eq!(outcomes, ["accepted", "debounced", "debounced"], "{receipts:?}");
    let job = text(&receipts[0]["job"]);
    assert_eq!(receipts[2]["trigger"], format!("{job}.3"));
    for server in [runs, asked] {
        let reply = server.get(&format!("/v1/explain?task=gather&key={key}")).await;
        assert_eq!((&reply["job"]["id"], &reply["job"]["triggers"]), (&json!(job), &json!(3)));
    }
    runs.post("/v1/tasks/gather/windows/flush", &json!({ "key": key })).await;
    let got = asked.ran_by(job, runs.build).await;
    assert_eq!(got, json!([{ "k": key, "n": 1 }, { "k": key, "n": 2 }, { "k": key, "n": 3 }]));

    // The same with a window that becomes due by itself, perhaps between two triggers.
    let (mut jobs, mut expected, mut covered) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..6 {
        let server = if n % 2 == 0 { asked } else { runs };
        let payload = json!({ "k": key, "n": n });
        jobs.push(server.job("burst", payload.clone()).await);
        expected.push(payload);
    }
    jobs.dedup();
    for job in jobs {
        let got = asked.ran_by(&job, runs.build).await;
        covered.extend(got.as_array().unwrap().iter().cloned());
    }
    assert_eq!(covered, expected);
}

/// Dedup and idempotency keys that one took hold at the other.
async fn keys(runs: &Server, asked: &Server) {
    let (dedup, idempotency) = (key(), key());
    let body = json!({ "payload": 4, "dedup": dedup });
    let taken = asked.trigger("plain", body.clone()).await;
    let refused = runs.trigger("plain", body).await;
    assert_eq!((&refused["receipt"], &refused["job"]), (&json!("duplicate"), &taken["job"]));

    let body = json!({ "payload": { "n": 5 }, "idempotency_key": idempotency });
    let first = asked.trigger("plain", body.clone()).await;
    let again = runs.trigger("plain", body.clone()).await;
    assert_eq!((&again["receipt"], &again["job"]), (&json!("existing"), &first["job"]));
    asked.ran_by(text(&first["job"]), runs.build).await;
    for server in [asked, runs] {
        let again = server.trigger("plain", body.clone()).await;
        let output = json!({ "by": runs.build.name(), "got": { "n": 5 } });
        assert_eq!((&again["state"], &again["output"]), (&json!("succeeded"), &output));
        let other = json!({ "payload": { "n": 6 }, "idempotency_key": idempotency });
        let path = "/v1/tasks/plain/triggers";
        let (status, reply) = server.ask(reqwest::Method::POST, path, &other).await;
        assert_eq!((status, &reply["error"]["kind"]), (422, &json!("idempotency_conflict")));
    }
    asked.ran_by(text(&taken["job"]), runs.build).await;
}

/// A job that died at one is shown and redriven by the other.
async fn deaths(runs: &Server, asked: &Server) {
    let job = asked.job("picky", json!("bad")).await;
    runs.is(&job, "dead").await;
    let dead = asked.get("/v1/dead?task=picky&limit=1").await;
    assert_eq!(dead["jobs"][0]["id"], json!(job), "{dead:#}");
    let error = text(&dead["jobs"][0]["error"]);
    assert!(error.contains(&format!("not good for {}", runs.build.name())), "{error}");
    asked.command(asked.build, &["dead", "redrive", &job, "--payload", "\"good\""]);
    assert_eq!(asked.ran_by(&job, runs.build).await, json!("good"));
    let reply = asked.get(&format!("/v1/jobs/{job}")).await;
    assert_eq!(
        (&reply["original_payload"], reply["attempts"].as_array().unwrap().len()),
        (&json!("bad"), 2)
    );
}

/// A queue that one pauses starts nothing at the other, which resumes it.
async fn pauses(runs: &Server, asked: &Server) {
    asked.command(asked.build, &["queue", "pause", "narrow"]);
    let waits = runs.job("limited", json!(7)).await;
    let runs_meanwhile = runs.job("plain", json!(8)).await;
    runs.ran_by(&runs_meanwhile, runs.build).await;
    let reply = runs.get(&format!("/v1/jobs/{waits}")).await;
    assert_eq!((&reply["job"]["state"], &reply["job"]["starts"]), (&json!("scheduled"), &json!(0)));
    runs.command(runs.build, &["queue", "resume", "narrow"]);
    asked.ran_by(&waits, runs.build).await;
}

/// A lease that `holds` renews past its first end is respected by `waits`, and so is its key (R11).
pub(super) async fn respects_the_lease_of_the_other(waits: &Server, holds: &Server) {
    let (key, file) = (key(), holds.file());
    let slot = waits.take_slot().await;
    let payload = json!({ "k": key, "at": holds.build.name(), "file": file });
    let first = holds.job("stuck", payload.clone()).await;
    holds.is(&first, "running").await;
    slot.free().await;
    let payload = json!({ "k": key, "at": "none", "file": "" });
    let second = waits.job("stuck", payload).await;
    holds
        .until_recorded("a renewal after the first end of the lease", |lines| {
            let of = |line: &&Value, event| line["event"] == event && line["job"] == json!(first);
            let until = lines.iter().find(|line| of(line, "claimed")).map(|line| &line["until"]);
            let renewed = lines.iter().rfind(|line| of(line, "renew")).map(|line| &line["t"]);
            until.zip(renewed).is_some_and(|(until, renewed)| renewed.as_i64() > until.as_i64())
        })
        .await;
    let meanwhile = waits.job("plain", json!(9)).await;
    waits.ran_by(&meanwhile, waits.build).await;
    let reply = waits.get(&format!("/v1/jobs/{second}")).await;
    assert_eq!((&reply["job"]["state"], &reply["job"]["starts"]), (&json!("scheduled"), &json!(0)));
    std::fs::write(&file, "").unwrap();
    holds.ran_by(&first, holds.build).await;
    let ended = &waits.get(&format!("/v1/jobs/{first}")).await;
    // A slow worker may release what it has claimed ahead of its slots.
    let attempts = ended["attempts"].as_array().unwrap().iter();
    assert_eq!(attempts.filter(|one| one["outcome"] != "released").count(), 1, "{ended:#}");
    let started = &holds.is(&second, "succeeded").await["job"]["started_at"];
    assert!(time(started) >= time(&ended["job"]["ended_at"]), "{started} {ended:#}");
}

/// Both run what a queue with a limit has, and fire the ticks of one schedule.
pub(super) async fn share_limits_and_schedules(one: &Server, two: &Server) {
    let mut jobs = Vec::new();
    for n in 0..12 {
        jobs.push(if n % 2 == 0 { one } else { two }.job("limited", json!(n)).await);
    }
    for job in jobs {
        one.is(&job, "succeeded").await;
    }
    let dies = one.job("picky", json!("bad")).await;
    two.is(&dies, "dead").await;
    let beats = "/v1/jobs?task=beat&state=succeeded&limit=4";
    one.until(beats, |reply| reply["jobs"].as_array().unwrap().len() >= 4).await;
    one.command(two.build, &["schedule", "pause", "beat"]);
    let reply = two.get("/v1/schedules/beat").await;
    assert_eq!(reply["state"], "paused", "{reply:#}");
    two.post("/v1/schedules/beat/run", &Value::Null).await;
    two.until("/v1/jobs?task=beat&state=scheduled", |reply| reply["jobs"] == json!([])).await;
    two.until("/v1/jobs?task=beat&state=running", |reply| reply["jobs"] == json!([])).await;
}

/// What a server leaves behind when it is killed or stopped.
pub(super) struct Left {
    flaky: String,
    stuck: String,
    window: (String, String),
    delayed: String,
    died: String,
}

/// Leaves work of each kind at `server`: nothing else may run it.
pub(super) async fn leave_work(server: &Server) -> Left {
    let at = server.build.name();
    let died = server.job("picky", json!("bad")).await;
    server.is(&died, "dead").await;
    let flaky = server.job("flaky", json!({ "at": at })).await;
    let path = format!("/v1/jobs/{flaky}");
    server.until(&path, |reply| reply["job"]["failures"].as_u64() >= Some(1)).await;
    let key = key();
    let window = server.job("gather", json!({ "k": key, "n": 1 })).await;
    let payload = json!({ "k": key, "at": at, "file": server.file() });
    let stuck = server.job("stuck", payload).await;
    server.is(&stuck, "running").await;
    // Its slot is taken, however late this is due.
    let receipt = server.trigger("plain", json!({ "payload": 10, "delay": "2s" })).await;
    let delayed = text(&receipt["job"]).to_owned();
    Left { flaky, stuck, window: (window, key), delayed, died }
}

/// Does what another server has left; how the attempt ended that ran there.
pub(super) async fn does_what_was_left(server: &Server, left: &Left) -> Value {
    let own = server.build;
    server.ran_by(&left.delayed, own).await;
    server.ran_by(&left.stuck, own).await;
    server.ran_by(&left.flaky, own).await;
    let reply = server.get(&format!("/v1/jobs/{}", left.flaky)).await;
    let attempts = reply["attempts"].as_array().unwrap();
    let mut errors = attempts.iter().filter_map(|attempt| attempt["error"].as_str());
    assert!(errors.any(|error| error.contains("fails at ")), "{reply:#}");
    let (window, key) = &left.window;
    let joined = server.trigger("gather", json!({ "payload": { "k": key, "n": 2 } })).await;
    assert_eq!((&joined["job"], &joined["triggers"]), (&json!(window), &json!(2)));
    server.post("/v1/tasks/gather/windows/flush", &json!({ "key": key })).await;
    let got = server.ran_by(window, own).await;
    assert_eq!(got, json!([{ "k": key, "n": 1 }, { "k": key, "n": 2 }]));
    server.command(own, &["dead", "redrive", &left.died, "--payload", "\"good\""]);
    server.ran_by(&left.died, own).await;
    let reply = server.get(&format!("/v1/jobs/{}", left.stuck)).await;
    // The other may have started it behind another job and released it before, where the machine is busy.
    let [.., left, _own] = &reply["attempts"].as_array().unwrap()[..] else { panic!("{reply:#}") };
    left["outcome"].clone()
}
