//! Idempotency keys and outputs, as a user of the library meets them (R19, R20).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use quell::store::MemoryStore;
use quell::testing::TestKit;
use quell::{
    Ctx, DerivedKey, ErrorKind, JobId, JobResult, JobState, Policy, Quell, Receipt, Result, Task,
    TaskError, Timestamp,
};
use quell_conformance::{Capability, Lesser};
use serde::{Deserialize, Serialize};

use crate::tasks::secs;

/// Returns the double, or a text of the length asked for.
#[derive(Serialize, Deserialize)]
struct Double {
    n: u64,
    #[serde(default)]
    letters: usize,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Doubled {
    n: u64,
    text: String,
}

impl Task for Double {
    const NAME: &'static str = "double";
    type Output = Doubled;

    fn policy() -> Policy {
        Policy::default().idempotency_retention(secs(3_600))
    }
}

type Calls = Arc<AtomicU32>;

async fn double(task: Double, ctx: Ctx<Calls>) -> Result<Doubled, TaskError> {
    ctx.state().fetch_add(1, Ordering::SeqCst);
    Ok(Doubled { n: task.n * 2, text: "x".repeat(task.letters) })
}

/// One a minute for each user, whatever the note says.
#[derive(Serialize, Deserialize)]
struct Remind {
    user: u64,
    note: String,
}

impl Task for Remind {
    const NAME: &'static str = "remind";
    type Output = ();

    fn policy() -> Policy {
        Policy::default().idempotency(DerivedKey::of_fields(["user"]).within(secs(60)))
    }
}

async fn remind(_: Remind, ctx: Ctx<Calls>) -> Result<(), TaskError> {
    ctx.state().fetch_add(1, Ordering::SeqCst);
    Ok(())
}

fn start() -> Result<(TestKit, Calls)> {
    let calls = Calls::default();
    let state = Arc::clone(&calls);
    let kit = TestKit::start(|quell| quell.worker(state).register(double).register(remind))?;
    Ok((kit, calls))
}

fn two() -> Double {
    Double { n: 2, letters: 0 }
}

#[tokio::test]
async fn r19_a_repeat_gets_the_first_ones_output_and_runs_nothing() -> Result<()> {
    let (kit, calls) = start()?;
    let job = kit.quell().trigger(two()).idempotency_key("a").await?.job().unwrap();
    kit.advance(secs(1)).await;
    let again = kit.quell().trigger(two()).idempotency_key("a").await?;
    let Receipt::Existing { job: same, state, output } = again else { panic!("{again:?}") };
    assert_eq!((same, state), (job, JobState::Succeeded));
    assert_eq!(output.unwrap().decode::<Doubled>()?, Doubled { n: 4, text: String::new() });
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let other = kit.quell().trigger(Double { n: 3, letters: 0 }).idempotency_key("a").await;
    assert_eq!(other.unwrap_err().kind(), ErrorKind::IdempotencyConflict);
    kit.advance(secs(3_600)).await;
    let later = kit.quell().trigger(Double { n: 3, letters: 0 }).idempotency_key("a").await?;
    assert_eq!(later.outcome(), "accepted", "the task keeps keys for an hour");
    Ok(())
}

#[tokio::test]
async fn r19_a_waiter_receives_the_end_or_the_present_state() -> Result<()> {
    let (kit, _) = start()?;
    let quell = kit.quell().clone();
    let job = quell.trigger(two()).delay(secs(10)).await?.job().unwrap();
    let standing = quell.result(job, secs(0)).await?;
    assert_eq!(
        (standing.state, standing.output, standing.error),
        (JobState::Scheduled, None, None)
    );
    let (result, ()) = tokio::join!(quell.result(job, secs(3_600)), kit.advance(secs(11)));
    let JobResult { state, output, .. } = result?;
    assert_eq!(state, JobState::Succeeded);
    assert_eq!(output.unwrap().decode::<Doubled>()?.n, 4);
    let job = quell.trigger(two()).delay(secs(100)).await?.job().unwrap();
    let (result, ()) = tokio::join!(quell.result(job, secs(5)), kit.advance(secs(20)));
    assert_eq!(result?.state, JobState::Scheduled);
    let unknown = quell.result(JobId::new(999), secs(5)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    Ok(())
}

#[tokio::test]
async fn r19_an_output_that_is_too_large_fails_for_good_and_says_so() -> Result<()> {
    let (kit, calls) = start()?;
    let huge = Double { n: 1, letters: JobResult::MAX_OUTPUT_BYTES };
    let job = kit.quell().trigger(huge).await?.job().unwrap();
    kit.advance(secs(100)).await;
    let result = kit.quell().result(job, secs(0)).await?;
    assert_eq!((result.state, result.output), (JobState::Dead, None));
    let error = result.error.unwrap();
    assert!(error.contains("the limit is 262144"), "{error}");
    assert_eq!(calls.load(Ordering::SeqCst), 1, "no retry helps");
    Ok(())
}

#[tokio::test]
async fn r20_a_derived_key_makes_repeats_of_a_window_one_run() -> Result<()> {
    let (kit, calls) = start()?;
    let note = |note: &str| Remind { user: 7, note: note.to_owned() };
    kit.quell().trigger(note("tea")).await?;
    kit.advance(secs(30)).await;
    assert_eq!(kit.quell().trigger(note("tea")).await?.outcome(), "existing");
    let differs = kit.quell().trigger(note("cake")).await.unwrap_err();
    assert_eq!(differs.kind(), ErrorKind::IdempotencyConflict);
    let named = kit.quell().trigger(note("cake")).idempotency_key("own").await?;
    assert_eq!(named.outcome(), "accepted", "a key of the call takes its place");
    let many = kit.quell().trigger_many([note("tea"), Remind { user: 8, note: String::new() }]);
    let outcomes: Vec<_> = many.await?.iter().map(Receipt::outcome).collect();
    assert_eq!(outcomes, ["existing", "accepted"]);
    kit.advance(secs(60)).await;
    assert_eq!(kit.quell().trigger(note("tea")).await?.outcome(), "accepted");
    kit.advance(secs(1)).await;
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    Ok(())
}

#[tokio::test]
async fn r36_a_schedule_of_a_task_with_derived_keys_fires_each_tick() -> Result<()> {
    let (kit, calls) = start()?;
    let every =
        kit.quell().schedule("nag", Remind { user: 7, note: String::new() }).every(secs(10));
    every.await?;
    kit.advance(secs(35)).await;
    assert!(calls.load(Ordering::SeqCst) >= 3, "a schedule has no idempotency key");
    Ok(())
}

#[tokio::test]
async fn r40_a_key_that_does_not_do_is_refused_by_field() -> Result<()> {
    let (kit, _) = start()?;
    for key in [String::new(), "k".repeat(513)] {
        let refused = kit.quell().trigger(two()).idempotency_key(&key).await.unwrap_err();
        assert_eq!(refused.field(), Some("idempotency_key"), "{refused}");
    }
    kit.quell().trigger(two()).idempotency_key("k".repeat(512)).await?;
    Ok(())
}

#[tokio::test]
async fn r18_an_idempotency_key_is_never_left_out() -> Result<()> {
    let store = Lesser::new(MemoryStore::new(Timestamp::from_secs(0)), &[Capability::Dedup]);
    let quell = Quell::with_store(Arc::new(store));
    let quell = quell.dedup_fallback(quell::trigger::DedupFallback::Open).build()?;
    let refused = quell.trigger(two()).idempotency_key("a").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("`dedup`"), "{refused}");
    Ok(())
}
