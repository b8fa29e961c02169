//! What follows an error by the task's classifier, what is kept of a panic, and jobs that kill
//! their worker.

use std::sync::Arc;

use quell::failure::{Class, HttpError, http_class};
use quell::job::{Attempt, AttemptOutcome};
use quell::store::{Claim, Failure, MemoryStore, Store};
use quell::testing::TestKit;
use quell::worker::WorkerId;
use quell::{
    Batch, Ctx, Job, JobState, Payload, Policy, Quell, Result, TaskError, TaskName, Timestamp,
};

use crate::tasks::secs;
use quell_conformance::rig::heartbeat;

fn task() -> TaskName {
    TaskName::new("t").unwrap()
}

/// Fails as its payload says.
async fn fails(payload: Payload, _: Ctx<()>) -> std::result::Result<(), TaskError> {
    let how: String = payload.decode()?;
    match how.as_str() {
        "missing" => Err(HttpError::new(404, "no such page"))?,
        "busy" => Err(HttpError::new(429, "slow down").retry_after(Some("77")))?,
        "busy-soon" => Err(HttpError::new(503, "slow down").retry_after(Some("1")))?,
        "asks" => Err(TaskError::retry_after(secs(1), "soon")),
        "asks-at-least" => Err(TaskError::retry_not_before(secs(1), "soon")),
        "down" => Err(HttpError::new(502, "bad gateway"))?,
        "later" => Err(std::fmt::Error)?,
        "judged" => Err(TaskError::retry(HttpError::new(404, "not there yet"))),
        "anyhow" => Err(TaskError::failed(
            anyhow::Error::new(HttpError::new(410, "gone")).context("the page is read"),
        )),
        "panic" => panic!("no page {}", 7),
        _ => Ok(()),
    }
}

fn classify(error: &(dyn std::error::Error + 'static)) -> Class {
    match error.is::<std::fmt::Error>() {
        true => Class::Snooze(secs(33)),
        false => http_class(error),
    }
}

/// A job that fails so, after its first attempt, and that attempt.
async fn failed(how: &str, policy: &Policy) -> Result<(Job, Attempt)> {
    let kit = TestKit::start(|quell| {
        quell.worker(()).register_raw(task(), policy, fails).with_panic_hook()
    })
    .unwrap();
    let trigger = policy.trigger(task(), Payload::encode(&how)?, None)?;
    let receipts = kit.quell().enqueue(Batch::one(trigger)).await?;
    kit.advance(secs(0)).await;
    let store = kit.quell().store();
    let id = receipts.iter().find_map(quell::Receipt::job).unwrap();
    let job = store.job(id).await?.unwrap();
    Ok((job, store.attempts(id).await?.remove(0)))
}

#[tokio::test]
async fn r24_r25_the_classifier_judges_what_the_handler_did_not() -> Result<()> {
    let policy = Policy::default().min_backoff(secs(5)).jitter(quell::Jitter::None);
    let judged = policy.clone().classify(classify);
    let scheduled = |due| (JobState::Scheduled, due);
    let table = [
        ("missing", &judged, (JobState::Dead, 0)),
        ("anyhow", &judged, (JobState::Dead, 0)),
        ("busy", &judged, scheduled(77)),
        ("busy-soon", &judged, scheduled(5)),
        ("asks", &judged, scheduled(1)),
        ("asks-at-least", &judged, scheduled(5)),
        ("down", &judged, scheduled(5)),
        ("later", &judged, scheduled(33)),
        ("judged", &judged, scheduled(5)),
        ("missing", &policy, scheduled(5)),
    ];
    for (how, policy, expected) in table {
        let (job, _) = failed(how, policy).await?;
        let due = job.window.due_at.since(TestKit::START).as_secs();
        assert_eq!((job.state, due), expected, "{how}: {job:?}");
    }
    Ok(())
}

#[tokio::test]
async fn r25_the_whole_chain_of_sources_is_kept() -> Result<()> {
    let (job, attempt) = failed("anyhow", &Policy::default()).await?;
    let chain = "the page is read\ncaused by: the target answered 410: gone";
    assert_eq!(job.error.as_deref(), Some(chain));
    assert_eq!(attempt.error.as_deref(), Some(chain));
    Ok(())
}

#[tokio::test]
async fn r25_a_panic_is_kept_with_its_place_and_backtrace() -> Result<()> {
    let (_, attempt) = failed("panic", &Policy::default()).await?;
    assert_eq!(attempt.outcome, Some(AttemptOutcome::Panicked));
    let error = attempt.error.unwrap();
    let begin = "the handler panicked: no page 7\nat crates/quell/tests/it/failures.rs:";
    assert!(error.starts_with(begin), "{error}");
    let (_, trace) = error.split_once("\nbacktrace:\n").unwrap();
    assert!(trace.lines().next().unwrap().contains("failures::fails"), "{trace}");
    assert!(!trace.contains("tokio::runtime"), "what runs the handler is no part of it: {trace}");
    assert!(error.len() <= Failure::MAX_ERROR_BYTES);
    Ok(())
}

/// A job whose worker was gone this number of times in a row while another one worked on.
async fn crashed(store: &MemoryStore, times: u32) -> Result<()> {
    let claim = Claim {
        queue: quell::QueueName::new(quell::DEFAULT_QUEUE)?,
        tasks: Arc::from([task()]),
        worker: WorkerId::new("killed")?,
        limit: 1,
        lease: secs(30),
        draw: quell::store::Draw::MAX,
    };
    let trigger = Policy::default().trigger(task(), Payload::encode(&"fine")?, None)?;
    store.enqueue(None, vec![Batch::one(trigger)]).await?;
    let other = heartbeat(&WorkerId::new("other")?, 1);
    for hour in 1..=times {
        let at = |second| Some(Timestamp::from_secs(i64::from(hour) * 3_600 + second));
        store.heartbeat(at(0), &heartbeat(&claim.worker, 1)).await?;
        assert_eq!(store.claim(at(0), &claim).await?.jobs.len(), 1);
        store.heartbeat(at(20), &other).await?;
        store.reap(at(30), 9).await?;
    }
    // Past every pause.
    store.reap(Some(Timestamp::from_secs(i64::from(times + 1) * 3_600)), 9).await?;
    Ok(())
}

#[tokio::test]
async fn r25_a_job_that_kills_its_worker_is_buried_and_not_run_again() -> Result<()> {
    for (times, max_crashes, expected) in [
        (4, 5, JobState::Succeeded),
        (5, 5, JobState::Dead),
        (1, 1, JobState::Dead),
        (9, u32::MAX, JobState::Succeeded),
    ] {
        let store = Arc::new(MemoryStore::new(Timestamp::from_secs(0)));
        crashed(&store, times).await?;
        let quell = Quell::with_store(store.clone()).build()?;
        let policy = Policy::default().max_crashes(max_crashes);
        let ended = quell_conformance::rig::until("the job ends", || async {
            store.job(quell::JobId::new(1)).await.unwrap().unwrap().state.is_ended()
        });
        quell.worker(()).register_raw(task(), &policy, fails).run_until(ended).await?;
        let job = store.job(quell::JobId::new(1)).await?.unwrap();
        assert_eq!(job.state, expected, "{times} of {max_crashes}: {job:?}");
        let attempts = store.attempts(job.id).await?;
        assert_eq!(attempts.len(), times as usize + 1, "{attempts:?}");
        if expected == JobState::Dead {
            let error = attempts.last().unwrap().error.clone().unwrap();
            let begin = format!("not run again: its worker died or hung {times} times in a row");
            assert!(error.starts_with(&begin), "{error}");
        }
    }
    Ok(())
}

#[test]
fn r40_max_crashes_of_zero_is_refused() {
    let error = Policy::default().max_crashes(0).validate().unwrap_err();
    assert_eq!(error.field(), Some("max_crashes"));
}
