//! Every store call of a run may fail, before it is done or after: nothing is lost, nothing runs
//! beside itself, and a retried trigger with a dedup key counts once (R1).

use std::sync::{Arc, Mutex};

use quell::history::{Event, Sink};
use quell::sqlite::{SqliteOptions, Synchronous};
use quell::testing::TestKit;
use quell::worker::PollSettings;
use quell::{ErrorKind, JobState, Receipt, Result, Task};
use quell_conformance::check::{Line, check};
use quell_conformance::faulty::{Faulty, NthCall};

use crate::tasks::{App, Reindex, Script, reindex, script, secs};

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl quell::history::History for Recorder {
    fn record(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

/// Triggers until it receives the outcome, as a caller with a dedup key may.
async fn insist<T: Task + Send>(kit: &TestKit, task: impl Fn() -> T, dedup: &str) -> Receipt {
    for _ in 0..3 {
        match kit.quell().trigger(task()).dedup(dedup).await {
            Ok(receipt) => return receipt,
            Err(error) => {
                let again = error.is_retryable() || error.is_unknown_outcome();
                assert!(again, "{error}");
            }
        }
    }
    panic!("one fault is not three")
}

/// A run with one fault; false where the fault was never reached.
async fn run(fails: NthCall) -> Result<bool> {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    let sink: Sink = Arc::<Recorder>::clone(&recorder);
    let options = SqliteOptions::new(folder.path().join("app.db"));
    let inner = options.synchronous(Synchronous::Normal).history(sink).open().await?;
    let store = Arc::new(Faulty::new(inner, fails));
    let log = App::default();
    let state = Arc::clone(&log);
    let kit = TestKit::start_on(Arc::<Faulty<_>>::clone(&store), |quell| {
        let poll = PollSettings { base: secs(15), ceiling: secs(15) };
        quell.worker(state).register(reindex).register(script).lease(secs(20)).poll(poll)
    })?;
    let first = insist(&kit, || Script::new(&["fail", "snooze", "done"]), "script").await;
    kit.advance(secs(2)).await;
    let page = insist(&kit, || Reindex::page("a"), "page 1").await;
    insist(&kit, || Reindex::page("a"), "page 2").await;
    kit.advance(secs(12)).await;
    insist(&kit, || Reindex::page("a"), "page 3").await;
    kit.advance(secs(120)).await;

    let mut rows = Vec::new();
    for id in 1.. {
        // The fault may meet this one: then ask again.
        let through = kit.quell().store();
        let found = match through.job(quell::JobId::new(id)).await {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                through.job(quell::JobId::new(id)).await?
            }
            found => found?,
        };
        let Some(job) = found else { break };
        // The lease of a claim whose answer was lost expires; a newer window may take it in.
        let ended = match job.state {
            JobState::Succeeded => job.started_at >= Some(job.window.last_at),
            JobState::Absorbed => job.starts() > 0,
            _ => false,
        };
        assert!(ended, "{fails:?}: {job:?}");
        rows.push(Event::row(&job));
    }
    assert_ne!(first.job(), page.job());
    let events = recorder.0.lock().unwrap().clone().into_iter().chain(rows);
    let lines: Vec<Line> = events.map(|event| Line::new("it", event)).collect();
    let report = check(&lines);
    assert!(report.violations.is_empty(), "{fails:?}: {}", report.text(&lines));
    let triggers: u64 = log.runs().iter().filter(|run| run.what == "a").map(|r| r.triggers).sum();
    assert!(triggers >= 3, "{fails:?}: {:?}", log.runs());
    Ok(store.was_reached())
}

#[tokio::test]
async fn r01_r02_every_call_to_a_real_store_may_fail_before_it_is_done() -> Result<()> {
    let mut number = 0;
    while run(NthCall::Before(number)).await? {
        number += 1;
    }
    assert!(number > 20, "only {number} calls");
    Ok(())
}

#[tokio::test]
async fn r01_r02_every_call_to_a_real_store_may_fail_after_it_is_done() -> Result<()> {
    let mut number = 0;
    while run(NthCall::AfterDone(number)).await? {
        number += 1;
    }
    assert!(number > 20, "only {number} calls");
    Ok(())
}

#[tokio::test]
async fn r01_r02_r39_every_call_to_a_real_store_may_panic_before_it_is_done() -> Result<()> {
    let mut number = 0;
    while run(NthCall::Panics(number)).await? {
        number += 1;
    }
    assert!(number > 20, "only {number} calls");
    Ok(())
}

#[tokio::test]
async fn r01_r02_r39_every_call_to_a_real_store_may_panic_after_it_is_done() -> Result<()> {
    let mut number = 0;
    while run(NthCall::PanicsDone(number)).await? {
        number += 1;
    }
    assert!(number > 20, "only {number} calls");
    Ok(())
}
