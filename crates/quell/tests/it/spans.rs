//! What tracing shows: a span around each attempt and each trigger, and one event at the end of an
//! attempt. Never a key or a payload.

use std::sync::Arc;

use quell::store::MemoryStore;
use quell::testing::TestKit;
use quell::worker::PollSettings;
use quell::{Batch, Ctx, Jitter, Key, Payload, Policy, Result, TaskError, TaskName, Timestamp};
use quell_conformance::faulty::{Faulty, NthCall};
use tracing::Level;

use crate::seen::{One, Seen};
use crate::tasks::secs;

fn task() -> TaskName {
    TaskName::new("billing.charge").unwrap()
}

fn policy() -> Policy {
    Policy::queue("billing").attempts(2).min_backoff(secs(5)).jitter(Jitter::None).timeout(secs(50))
}

/// Does what its payload says.
async fn acts(payload: Payload, ctx: Ctx<()>) -> std::result::Result<(), TaskError> {
    ctx.sleep(secs(1)).await;
    tracing::info!("inside");
    match payload.as_str().trim_matches('"') {
        "fails once" if ctx.attempt() == 2 => Ok(()),
        "fails once" => Err(TaskError::retry("no answer\nat a server")),
        "permanent" => Err(TaskError::permanent("no such customer")),
        "panics" => panic!("out of range"),
        "hangs" => {
            ctx.sleep(secs(1_000)).await;
            Ok(())
        }
        "snoozes" if ctx.attempt() == 1 && ctx.started_at() < TestKit::START + secs(3) => {
            Err(TaskError::snooze(secs(7)))
        }
        "cancels" => Err(TaskError::cancel("not wanted")),
        _ => Ok(()),
    }
}

/// Runs one job with this payload for this number of seconds.
async fn seen(what: &str, seconds: u64) -> Result<Seen> {
    let (seen, _guard) = Seen::start();
    let kit = TestKit::start(|quell| quell.worker(()).register_raw(task(), &policy(), acts))?;
    let trigger = policy().trigger(task(), Payload::encode(&what)?, None)?;
    kit.quell().enqueue(Batch::one(trigger)).await?;
    kit.advance(secs(seconds)).await;
    Ok(seen)
}

#[tokio::test]
async fn a_log_line_of_a_handler_is_in_the_span_of_its_attempt() -> Result<()> {
    let (seen, _guard) = Seen::start();
    let kit = TestKit::start(|quell| quell.worker(()).register_raw(task(), &policy(), acts))?;
    let debounced = policy().debounce(secs(10)..=secs(60));
    for _ in 0..3 {
        let key = Some(Key::new("secret-key")?);
        let trigger = debounced.trigger(task(), Payload::encode(&"secret-payload")?, key)?;
        kit.quell().enqueue(Batch::one(trigger)).await?;
    }
    kit.advance(secs(20)).await;
    let inside = |one: &One| one.field("message") == "inside";
    let line = seen.all().into_iter().find(inside).unwrap();
    let span = seen.span(line.within.unwrap());
    let expected = [
        ("job", "1"),
        ("task", "billing.charge"),
        ("attempt", "1"),
        ("triggers", "3"),
        ("otel.kind", "consumer"),
        ("messaging.system", "quell"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "billing"),
        ("messaging.message.id", "1"),
        ("outcome", "succeeded"),
        ("otel.status_code", "(none)"),
    ];
    for (name, value) in expected {
        assert_eq!(span.field(name), value, "{name} of {span:?}");
    }
    assert_eq!((span.name, span.level, span.within), ("quell.attempt", Level::INFO, None));
    assert_eq!(span.field("key_hash").len(), 16, "{span:?}");
    let shown = format!("{:?}", seen.all());
    assert!(!shown.contains("secret"), "{shown}");
    Ok(())
}

#[tokio::test]
async fn a_worker_that_runs_in_a_span_gives_each_attempt_a_trace_of_its_own() -> Result<()> {
    use tracing::Instrument;
    let (seen, _guard) = Seen::start();
    let quell = quell::Quell::open("memory:").await?;
    let (sender, mut done) = tokio::sync::mpsc::channel(1);
    let sends = |_: Payload, ctx: Ctx<tokio::sync::mpsc::Sender<()>>| async move {
        Ok::<_, TaskError>(ctx.state().send(()).await?)
    };
    let trigger = policy().trigger(task(), Payload::encode(&1)?, None)?;
    quell.enqueue(Batch::one(trigger)).await?;
    let worker = quell.worker(sender).register_raw(task(), &policy(), sends);
    let until = async { done.recv().await.unwrap() };
    worker.run_until(until).instrument(tracing::info_span!("the worker")).await?;
    let spans = seen.spans("quell.attempt");
    assert_eq!((spans.len(), spans[0].within), (1, None), "{spans:?}");
    Ok(())
}

/// Each end: what the attempts' spans show, and the events.
#[tokio::test]
async fn each_attempt_ends_with_one_event() -> Result<()> {
    let first = "2026-01-01T00:0";
    let table: [(&str, &[&str], &[&str]); 7] = [
        ("works", &["succeeded (none)"], &["DEBUG attempt succeeded: succeeded (none)"]),
        (
            "fails once",
            &["failed failed", "succeeded (none)"],
            &[
                "INFO attempt failed, trying again: failed no answer",
                "DEBUG attempt succeeded: succeeded (none)",
            ],
        ),
        ("permanent", &["failed failed"], &["WARN job is dead: failed no such customer"]),
        (
            "panics",
            &["panicked panicked", "panicked panicked"],
            &[
                "INFO attempt failed, trying again: panicked the handler panicked: out of range",
                "WARN job is dead: panicked the handler panicked: out of range",
            ],
        ),
        (
            "hangs",
            &["timed_out timed_out", "timed_out timed_out"],
            &[
                "INFO attempt failed, trying again: timed_out the attempt took longer than its \
                 timeout of 50s",
                "WARN job is dead: timed_out the attempt took longer than its timeout of 50s",
            ],
        ),
        (
            "snoozes",
            &["snoozed (none)", "succeeded (none)"],
            &[
                "DEBUG attempt ended, job waits: snoozed (none)",
                "DEBUG attempt succeeded: succeeded (none)",
            ],
        ),
        (
            "cancels",
            &["cancelled (none)"],
            &["INFO handler cancelled the job: cancelled not wanted"],
        ),
    ];
    for (what, spans, events) in table {
        let seen = seen(what, 200).await?;
        let shown = |one: &One| format!("{} {}", one.field("outcome"), one.field("error.type"));
        let found: Vec<_> = seen.spans("quell.attempt").iter().map(shown).collect();
        assert_eq!(found, spans, "{what}");
        let ends = seen.ends();
        let shown = |one: &One| {
            let (text, outcome, error) = (one.field("message"), one.field("outcome"), "error");
            format!("{} {text}: {outcome} {}", one.level, one.field(error))
        };
        assert_eq!(ends.iter().map(shown).collect::<Vec<_>>(), events, "{what}");
        for (number, end) in (1_u64..).zip(&ends) {
            let attempt = if what == "snoozes" { 1 } else { number }.to_string();
            let names = ["job", "task", "queue", "attempt"].map(|name| end.field(name));
            assert_eq!(names, ["1", "billing.charge", "billing", attempt.as_str()], "{what}");
            let waits = ["attempt failed, trying again", "attempt ended, job waits"];
            let is_dated = end.field("due").starts_with(first);
            assert_eq!(is_dated, waits.contains(&end.field("message")), "{what}: {end:?}");
        }
    }
    Ok(())
}

/// Each store call fails once, in a run of its own; a settlement that is sent twice has one event.
#[tokio::test]
async fn an_end_that_is_sent_twice_has_one_event() -> Result<()> {
    for number in 0.. {
        let (seen, _guard) = Seen::start();
        let store = Faulty::new(MemoryStore::new(TestKit::START), NthCall::Before(number));
        let store = Arc::new(store);
        let kit = TestKit::start_on(Arc::<Faulty<_>>::clone(&store), |quell| {
            let poll = PollSettings { base: secs(15), ceiling: secs(15) };
            quell.worker(()).register_raw(task(), &policy(), acts).lease(secs(20)).poll(poll)
        })?;
        let trigger = || policy().trigger(task(), Payload::encode(&"works")?, None);
        if kit.quell().enqueue(Batch::one(trigger()?)).await.is_err() {
            kit.quell().enqueue(Batch::one(trigger()?)).await?;
        }
        kit.advance(secs(90)).await;
        let ends = seen.ends();
        assert_eq!(ends.len(), 1, "call {number}: {ends:?}");
        if !store.was_reached() {
            assert!(number > 5, "only {number} calls");
            return Ok(());
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_trigger_has_a_span_with_its_task_and_job() -> Result<()> {
    let (seen, _guard) = Seen::start();
    let store = Faulty::new(MemoryStore::new(Timestamp::from_secs(1)), NthCall::Before(2));
    let quell = quell::Quell::with_store(Arc::new(store)).build()?;
    let trigger = |name: &str| {
        policy().trigger(TaskName::new(name)?, Payload::encode(&"secret-payload")?, None)
    };
    quell.enqueue(Batch::one(trigger("one")?)).await?;
    let triggers = vec![trigger("one")?, trigger("two")?];
    quell.enqueue(Batch { triggers, dedup: None }).await?;
    quell.enqueue(Batch::one(trigger("one")?)).await.unwrap_err();
    let spans = seen.spans("quell.trigger");
    let names = [
        "task",
        "messaging.destination.name",
        "messaging.operation.type",
        "messaging.batch.message_count",
        "messaging.message.id",
        "outcome",
    ];
    let shown: Vec<_> = spans.iter().map(|one| names.map(|name| one.field(name))).collect();
    let none = "(none)";
    let one = ["one", "billing", "send", none, "1", "accepted"];
    let (many, lost) = (["(none)", "billing", "send", "2", none, none], "Unavailable");
    assert_eq!(shown, [one, many, ["one", "billing", "send", none, none, none]]);
    assert_eq!((spans[2].field("error.type"), spans[2].field("otel.status_code")), (lost, "ERROR"));
    assert!(!format!("{:?}", seen.all()).contains("secret"));
    Ok(())
}
