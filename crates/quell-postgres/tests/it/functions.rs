//! `quell.trigger` and `quell.trigger_many`, from `psql` and from Python: the same promises as the
//! Rust call, for any language (R4).

use std::process::Output;

use quell_conformance::Rig;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Fold, Job, JobFilter};
use quell_services::python_with_psycopg;

use crate::scene::{Scene, jobs};

/// What a script of SQL left once it was folded, oldest first.
async fn made(scene: &Scene, rig: &Rig, script: &str) -> Vec<Job> {
    scene.sql(script);
    rig.claim_none().await;
    let mut jobs = rig.store.jobs(&JobFilter::default()).await.unwrap();
    jobs.reverse();
    jobs
}

#[tokio::test]
async fn r04_psql_triggers_what_the_rust_call_would() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let script = r#"begin;
        select quell.trigger('mail', '{"to": "a",  "n": 1.10}', key => 'c-7', min => '10 s',
                             max => '1 min', max_triggers => 9, queue => 'mails', priority => -3);
        select quell.trigger('mail', '[1]', key => 'c-7', min => '10 s', max => '1 min',
                             queue => 'mails');
        select quell.trigger('later', payload => jsonb '{"b": 2}', delay => '1.5 s');
        select quell.trigger('at', payload => json '3', run_at => timestamptz 'epoch' + '99 years');
        select quell.trigger('gathers', '1', key => 'k', fold => 'collect', fold_cap => 5);
        select quell.trigger('gathers', '2', fold => 'collect', delay => '20 h');
        select quell.trigger('waits', '3', key => 'k', delay => '1 min');
        commit"#;
    let jobs = made(&scene, &rig, script).await;
    let mail = &jobs[0];
    let (first, window) = (mail.window.first_at, mail.window);
    assert_eq!((mail.task.as_str(), mail.queue.as_str(), mail.priority), ("mail", "mails", 0));
    assert_eq!((window.triggers, mail.payload.as_str()), (2, "[1]"));
    let seconds = |time: quell_core::Timestamp| time.since(first).as_secs_f64();
    assert_eq!((seconds(window.due_at), seconds(window.bound_at.unwrap())), (10.0, 60.0));
    assert_eq!(seconds(jobs[1].window.due_at), 1.5);
    assert_eq!(jobs[1].payload.as_str(), r#"{"b": 2}"#);
    assert_eq!(jobs[2].window.due_at.as_micros(), (99 * 365 + 25) * 86_400_000_000);
    assert_eq!(jobs[3].shape.fold, Fold::Collect { cap: 5 });
    assert_eq!(jobs[3].payload.as_str(), "[1]");
    // R9, R10: a task that collects gets an array without a key, too.
    assert_eq!((jobs[4].payload.as_str(), seconds(jobs[4].window.due_at)), ("[2]", 72_000.0));
    // R7: a delay as long as max is kept.
    let waits = jobs[5].window.due_at.since(jobs[5].window.first_at);
    assert_eq!(waits, Thresholds::DEFAULT.max());
}

#[tokio::test]
async fn a_payload_stays_as_it_was_written() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let text = r#"{"z": 1.00, "a":123456789012345678901234567890, "s": "\u0000 'q'"}"#;
    let script = format!("select quell.trigger('t', $j${text}$j$, delay => '1 h')");
    assert_eq!(made(&scene, &rig, &script).await[0].payload.as_str(), text);
}

#[tokio::test]
async fn r14_without_thresholds_those_of_the_queue_hold() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let jobs = made(&scene, &rig, "select quell.trigger('t', key => 'k')").await;
    let default = Debounce::with_default(Thresholds::DEFAULT);
    let waits = jobs[0].window.due_at.since(jobs[0].window.first_at);
    assert_eq!(waits, default.thresholds.min());
}

#[tokio::test]
async fn r16_dedup_keys_are_taken_by_the_commit() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let once = "select quell.trigger('t', delay => '1 h', dedup => 'd', dedup_ttl => '1 h')";
    assert_eq!(made(&scene, &rig, &format!("begin; {once}; rollback")).await.len(), 0);
    assert_eq!(made(&scene, &rig, once).await.len(), 1);
    assert_eq!(made(&scene, &rig, once).await.len(), 1);
    let until = "select quell.trigger('t', delay => '1 h', dedup => 'e', dedup_until => 'started')";
    assert_eq!(made(&scene, &rig, &format!("{until}; {until}")).await.len(), 2);
}

#[tokio::test]
async fn r05_many_are_taken_together_or_refused_by_index() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let many = r#"select quell.trigger_many('[
        {"task": "t", "payload": {"n": 1.0}, "delay": "1 h", "dedup": "d", "dedup_until": "done"},
        {"task": "t", "delay": "1 h", "dedup": "d"},
        {"task": "u", "payload": 2, "key": "k", "min": "5 s", "max": "9 s", "fold": "accumulate",
         "fold_fields": ["a", "b"], "overlap": true}]', dedup => 'batch')"#;
    let jobs = made(&scene, &rig, many).await;
    assert_eq!(jobs.len(), 2, "one member is a duplicate");
    assert_eq!(jobs[0].payload.as_str(), r#"{"n": 1.0}"#);
    assert!(jobs[1].shape.overlap);
    // R17: the batch's own key.
    assert_eq!(made(&scene, &rig, many).await.len(), 2);
    for (bad, reported) in [
        (r#"[{"task": "t"}, {"task": ""}]"#, "triggers[1]: task name has 0 bytes"),
        (r#"[{"task": "t", "kee": "k"}]"#, "triggers[0]: kee is not known"),
        (r#"[{"task": "t", "min": "soon"}]"#, "triggers[0]: invalid input syntax"),
        (r#"[1]"#, "triggers[0]: it is not an object"),
        (r#"{"task": "t"}"#, "triggers is not an array"),
    ] {
        refused(&scene.psql(&format!("select quell.trigger_many('{bad}')")), reported);
    }
    assert_eq!(jobs.len(), 2);
}

fn refused(output: &Output, reported: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.contains(reported),
        "{reported:?} is not in {error:?}"
    );
}

#[tokio::test]
async fn r40_bad_input_is_refused_by_name_and_nothing_is_written() {
    let scene = Scene::new();
    let store = scene.store().await;
    let long = "k".repeat(513);
    let table = [
        ("'<t>'", "task name '<t>' does not do"),
        ("repeat('t', 129)", "task name has 129 bytes"),
        ("'t', queue => ''", "queue name has 0 bytes"),
        ("'t', '{'", "payload is not JSON"),
        ("'t', null::text", "payload is null"),
        ("'t', to_json(repeat('x', 1048576))", "payload has 1048578 bytes"),
        ("'t', key => ''", "key is empty"),
        (&format!("'t', key => '{long}'"), "key has 513 bytes"),
        ("'t', min => '1 s'", "key is missing"),
        ("'t', key => 'k', min => '1 s'", "max is missing"),
        ("'t', key => 'k', min => '2 s', max => '1 s'", "min 00:00:02 is longer than max"),
        ("'t', key => 'k', min => '0 s', max => '1 s'", "min is 00:00:00"),
        ("'t', key => 'k', max_triggers => 0", "max_triggers is 0"),
        ("'t', key => 'k', max_bytes => 16777217", "max_bytes is 16777217"),
        ("'t', max_bytes => 9", "key is missing"),
        ("'t', key => 'k', edge => 'sharp'", "edge is 'sharp'"),
        ("'t', key => 'k', fold => 'paper'", "fold is 'paper'"),
        ("'t', key => 'k', fold => 'collect', fold_cap => 0", "fold_cap is 0"),
        ("'t', key => 'k', fold => 'accumulate'", "fold_fields is missing"),
        ("'t', priority => 40000", "priority is 40000"),
        ("'t', delay => '-1 s'", "delay is -00:00:01"),
        ("'t', delay => '1 s', run_at => now()", "run_at and delay were both given"),
        ("'t', run_at => 'infinity'", "run_at is infinity"),
        ("'t', run_at => '294276-12-31 23:59:59+00'", "22023: run_at is 294276-12-31"),
        ("'t', key => 'k', run_at => '294247-02-01'", "22023: run_at is 294247-02-01"),
        ("'t', delay => '170000000 years'", "22023: delay is 170000000 years"),
        ("'t', key => 'k', delay => '170000000 years'", "22023: delay is 170000000 years"),
        (
            "'t', dedup => 'd', dedup_ttl => '170000000 years'",
            "22023: dedup_ttl is 170000000 years",
        ),
        (
            "'t', key => 'k', min => '1 s', max => '170000000 years'",
            "22023: max is 170000000 years",
        ),
        (
            "'t', key => 'k', min => '1 s', max => '10 s', delay => '20 h'",
            "delay is 20:00:00 away, longer than max (00:00:10): raise max, or trigger without a key",
        ),
        ("'t', key => 'k', delay => '61 s'", "delay is 00:01:01 away, longer than max (00:01:00)"),
        ("'t', key => 'k', run_at => now() + interval '1 day'", "run_at is 23:59:5"),
        (
            "'t', key => 'k', edge => 'throttle', min => '5 s', delay => '6 s'",
            "delay is 00:00:06 away, longer than max (00:00:05)",
        ),
        ("'t', dedup => ''", "dedup is empty"),
        ("'t', dedup_ttl => '1 s'", "dedup is missing"),
        ("'t', dedup => 'd', dedup_ttl => '0 s'", "dedup_ttl is 00:00:00"),
        ("'t', dedup => 'd', dedup_until => 'soon'", "dedup_until is 'soon'"),
    ];
    for (arguments, reported) in table {
        let call = format!("select quell.trigger({arguments})");
        refused(&scene.psql_verbose(&call), reported);
    }
    assert_eq!(scene.sql("select count(*) from quell.inbox"), "0");
    assert_eq!(jobs(&*store).await, 0);
}

/// Notifications cannot be prepared, so neither can what sends them.
#[tokio::test]
async fn r04_a_transaction_that_triggers_cannot_be_prepared() {
    let server = quell_services::Postgres::start(&["fsync=off", "max_prepared_transactions=1"]);
    let server = server.unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let store = scene.store().await;
    let script = "begin; select quell.trigger('t'); prepare transaction 'p'";
    refused(&scene.psql(script), "cannot PREPARE a transaction that has executed");
    assert_eq!(scene.sql("select count(*) from quell.inbox"), "0");
    assert_eq!(jobs(&*store).await, 0);
}

/// The script that any Python service would write.
const PYTHON: &str = r#"
import json, sys
import psycopg
from psycopg.types.json import Json, Jsonb

url, schema = sys.argv[1:]
with psycopg.connect(url) as db:
    trigger = f"select {schema}.trigger(%s, %s, key => %s, min => '10 s', max => '60 s')"
    db.execute(trigger, ("mail", Jsonb({"to": "a"}), "c-7"))
    db.execute(trigger, ("mail", Json({"to": "b"}), "c-7"))
    db.execute(trigger, ("mail", json.dumps({"to": "ü"}), "c-8"))
    db.execute(f"select {schema}.trigger_many(%s)",
               (Json([{"task": "mail", "payload": n, "delay": "1 h"} for n in range(3)]),))
    db.commit()
    try:
        db.execute(f"select {schema}.trigger(%s, queue => %s)", ("mail", "no queue"))
    except psycopg.errors.InvalidParameterValue as error:
        print(error.diag.message_primary)
    db.rollback()
    db.execute(f"select {schema}.trigger(%s)", ("never",))
    db.rollback()
"#;

#[tokio::test]
async fn r04_python_triggers_inside_its_own_transactions() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut python = python_with_psycopg().unwrap();
    python.args(["-c", PYTHON, scene.plain_url(), scene.schema()]);
    let output = python.output().unwrap();
    let (said, error) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{error}");
    assert_eq!(
        String::from_utf8(said).unwrap().trim(),
        "queue name 'no queue' does not do: use letters, digits and _ - . : /"
    );
    let jobs = made(&scene, &rig, "select 1").await;
    let reported: Vec<(u64, &str)> =
        jobs.iter().map(|job| (job.window.triggers, job.payload.as_str())).collect();
    let expected =
        [(2, r#"{"to": "b"}"#), (1, r#"{"to": "\u00fc"}"#), (1, "0"), (1, "1"), (1, "2")];
    assert_eq!(reported, expected);
}

#[tokio::test]
async fn r04_r19_keys_are_met_at_the_fold_and_a_conflict_is_set_aside_with_its_reason() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let one = |key: &str, n: u8| {
        format!(
            r#"select quell.trigger_many($j$[{{"task": "t", "queue": "q", "payload": {n},
                "idempotency_key": "{key}", "idempotency_retention": "2 days"}}]$j$);"#
        )
    };
    scene.sql(&format!("begin; {} rollback", one("i", 1)));
    scene.sql(&[one("i", 2), one("i", 2), one("i", 3), one("j", 4)].concat());
    let jobs = rig.claim().await;
    let payloads: Vec<_> = jobs.iter().map(|job| job.payload.as_str()).collect();
    assert_eq!(payloads, ["2", "4"], "a rollback burns no key");
    let refused = scene.sql("select triggers || refused from quell.inbox");
    for part in ["\"payload\":3", "idempotency key \"i\"", &format!("job {}", jobs[0].id)] {
        assert!(refused.contains(part), "{part} is not in {refused}");
    }
    let span = "select (expires_at - e.due_at) / 3600000000 from quell.idempotency i
                  join quell.job e on e.id = i.job_id where i.key = 'i'";
    assert_eq!(scene.sql(span), "48");
    let long = one(&"k".repeat(513), 1).replace("select ", "do $d$ begin perform ");
    let refused = scene.sql(&format!(
        "{} exception when invalid_parameter_value then raise notice '%', sqlerrm; end $d$",
        long
    ));
    assert_eq!(refused, "");
    assert_eq!(scene.sql("select count(*) from quell.inbox where refused is null"), "0");
}
