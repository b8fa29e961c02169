//! What triggers are answered, and what is refused before anything is written.

use std::sync::Arc;
use std::time::Duration;

use quell::store::MemoryStore;
use quell::testing::TestKit;
use quell::trigger::Limits;
use quell::{ErrorKind, HoldUntil, Policy, Quell, Receipt, Result, Task, Timestamp};
use serde::{Deserialize, Serialize};

use crate::tasks::{Mail, Reindex, Script, mail, reindex, script, secs};

fn kit() -> Result<TestKit> {
    TestKit::start(|quell| quell.worker(Arc::default()).register(reindex).register(script))
}

#[tokio::test]
async fn r03_the_receipt_tells_what_became_of_the_trigger() -> Result<()> {
    let kit = kit()?;
    let quell = kit.quell();
    let Receipt::Accepted { job, trigger, due } = quell.trigger(Reindex::page("a")).await? else {
        panic!("the first opens a window")
    };
    assert_eq!((trigger.to_string(), due), (format!("{job}.1"), kit.now() + secs(10)));
    let joined = quell.trigger(Reindex::page("a")).await?;
    let Receipt::Debounced { job: same, triggers: 2, .. } = joined else { panic!("{joined:?}") };
    assert_eq!(same, job);
    let first = quell.trigger(Script::new(&[])).dedup("x").await?;
    let second = quell.trigger(Script::new(&[])).dedup("x").await?;
    assert_eq!(Some(second), first.job().map(|job| Receipt::Duplicate { job }));
    Ok(())
}

#[tokio::test]
async fn r05_a_batch_answers_in_order_and_one_bad_member_refuses_it_whole() -> Result<()> {
    let kit = kit()?;
    let pages = ["a", "b", "a"].map(Reindex::page);
    let receipts = kit.quell().trigger_many(pages).await?;
    let outcomes: Vec<&str> = receipts.iter().map(Receipt::outcome).collect();
    assert_eq!(outcomes, ["accepted", "accepted", "debounced"]);
    assert_eq!(receipts[0].job(), receipts[2].job());

    let before = kit.quell().store().counts().await?;
    let long = "x".repeat(1 << 20);
    let pages = ["c", &long].map(|page| Script(vec![page.to_owned()]));
    let error = kit.quell().trigger_many(pages).await.unwrap_err();
    assert_eq!(error.field(), Some("payload"));
    assert!(error.to_string().starts_with("triggers[1]: "), "{error}");
    assert_eq!(kit.quell().store().counts().await?, before);
    Ok(())
}

#[tokio::test]
async fn r09_no_debounce_is_a_job_of_its_own_at_once() -> Result<()> {
    let kit = kit()?;
    let window = kit.quell().trigger(Reindex::page("a")).await?;
    let own = kit.quell().trigger(Reindex::page("a")).no_debounce().await?;
    assert_ne!(own.job(), window.job());
    kit.settle().await;
    assert_eq!(kit.succeeded("reindex").await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn r07_r40_delays_run_at_and_own_thresholds_move_the_due_time() -> Result<()> {
    let kit = kit()?;
    let quell = kit.quell();
    let due = |receipt: Receipt| match receipt {
        Receipt::Accepted { due, .. } | Receipt::Debounced { due, .. } => {
            due.since(TestKit::START).as_secs()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(due(quell.trigger(Script::new(&[])).delay(secs(90)).await?), 90);
    let at = TestKit::START + secs(77);
    assert_eq!(due(quell.trigger(Script::new(&[])).run_at(at).await?), 77);
    assert_eq!(due(quell.trigger(Reindex::page("d")).delay(secs(45)).await?), 45);
    let beyond_max = quell.trigger(Reindex::page("f")).delay(secs(300)).await.unwrap_err();
    assert_eq!(beyond_max.field(), Some("delay"), "{beyond_max}");
    assert_eq!(due(quell.trigger(Reindex::page("e")).debounce(secs(2)..=secs(9)).await?), 2);
    Ok(())
}

#[tokio::test]
async fn r16_a_dedup_key_is_free_again_when_asked() -> Result<()> {
    let kit = kit()?;
    // The delay keeps the worker from running it before the test has looked.
    let trigger = |until| {
        let quell = kit.quell();
        quell.trigger(Script::new(&[])).delay(secs(1)).dedup("x").dedup_until(until)
    };
    assert_eq!(trigger(HoldUntil::Done).await?.outcome(), "accepted");
    assert_eq!(trigger(HoldUntil::Done).await?.outcome(), "duplicate");
    kit.advance(secs(1)).await;
    assert_eq!(trigger(HoldUntil::Elapsed(secs(5))).await?.outcome(), "accepted");
    kit.advance(secs(5).saturating_sub(Duration::from_micros(1))).await;
    assert_eq!(trigger(HoldUntil::Elapsed(secs(5))).await?.outcome(), "duplicate");
    kit.advance(Duration::from_micros(1)).await;
    assert_eq!(trigger(HoldUntil::Elapsed(secs(5))).await?.outcome(), "accepted");
    Ok(())
}

#[tokio::test]
async fn r14_thresholds_come_from_the_process_when_the_task_names_none() -> Result<()> {
    #[derive(Serialize, Deserialize)]
    struct Plain;
    impl Task for Plain {
        const NAME: &'static str = "plain";
        type Output = ();
        fn debounce_key(&self) -> Option<String> {
            Some("k".to_owned())
        }
    }
    let now = Timestamp::from_secs(50);
    let clock = Arc::new(quell::testing::TestClock::new(now));
    let store = Arc::new(MemoryStore::new(now));
    let quell = Quell::with_store(store).clock(clock).debounce(secs(3)..=secs(4)).build()?;
    let Receipt::Accepted { due, .. } = quell.trigger(Plain).await? else { panic!("not accepted") };
    assert_eq!(due, now + secs(3));
    Ok(())
}

/// A task whose keys are the texts that it carries.
#[derive(Serialize, Deserialize)]
struct Keys {
    debounce: Option<String>,
    partition: Option<String>,
}

impl Task for Keys {
    const NAME: &'static str = "keys";
    type Output = ();
    fn debounce_key(&self) -> Option<String> {
        self.debounce.clone()
    }
    fn partition(&self) -> Option<String> {
        self.partition.clone()
    }
}

#[tokio::test]
async fn r40_a_malformed_key_of_a_task_is_refused_by_field_and_never_taken_for_no_key() -> Result<()>
{
    let kit = kit()?;
    let quell = kit.quell();
    let before = quell.store().counts().await?;
    let by_debounce = |text| Keys { debounce: Some(text), partition: None };
    let by_partition = |text| Keys { debounce: None, partition: Some(text) };
    for text in [String::new(), "k".repeat(513), "a\0b".to_owned()] {
        for (field, task) in
            [("debounce_key", by_debounce(text.clone())), ("partition", by_partition(text.clone()))]
        {
            let error = quell.trigger(task).await.expect_err("a malformed key");
            assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
            assert!(error.to_string().starts_with(field), "{error}");
        }
        let tasks = [by_debounce("fine".to_owned()), by_debounce(text)];
        let error = quell.trigger_many(tasks).await.expect_err("a malformed key in a batch");
        assert!(error.to_string().starts_with("triggers[1]: debounce_key: "), "{error}");
    }
    assert_eq!(quell.store().counts().await?, before, "nothing is written");

    let longest = || Keys { debounce: Some("k".repeat(512)), partition: Some("p".repeat(512)) };
    assert_eq!(quell.trigger(longest()).await?.outcome(), "accepted");
    assert_eq!(quell.trigger(longest()).await?.outcome(), "debounced");
    Ok(())
}

#[tokio::test]
async fn r40_bad_input_names_the_field_and_writes_nothing() -> Result<()> {
    #[derive(Serialize, Deserialize)]
    struct Crossed;
    impl Task for Crossed {
        const NAME: &'static str = "crossed";
        type Output = ();
        fn policy() -> Policy {
            Policy::default().debounce(secs(60)..=secs(10))
        }
    }
    #[derive(Serialize, Deserialize)]
    struct Misnamed;
    impl Task for Misnamed {
        const NAME: &'static str = "a task";
        type Output = ();
    }
    let kit = kit()?;
    let quell = kit.quell();
    let script = || quell.trigger(Script::new(&[]));
    let page = || quell.trigger(Reindex::page("a"));
    let table = [
        ("delay", script().delay(Duration::ZERO).await),
        ("dedup", script().dedup("").await),
        ("dedup", script().dedup("x".repeat(513)).await),
        ("dedup_ttl", script().dedup("x").dedup_until(HoldUntil::Elapsed(Duration::ZERO)).await),
        ("dedup", script().dedup_until(HoldUntil::Done).await),
        ("debounce", script().debounce(secs(1)..=secs(2)).await),
        ("min", page().debounce(secs(2)..=secs(1)).await),
        ("min", page().debounce(Duration::ZERO..=secs(1)).await),
        ("min", quell.trigger(Crossed).await),
        ("task", quell.trigger(Misnamed).await),
    ];
    for (row, (field, refused)) in table.into_iter().enumerate() {
        let error = refused.expect_err("a bad input was accepted");
        assert_eq!(error.kind(), ErrorKind::Invalid, "row {row}: {error}");
        assert_eq!(error.field(), Some(field), "row {row}: {error}");
    }
    assert!(quell.store().counts().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn r40_limits_hold_at_n_and_fail_at_n_plus_one() -> Result<()> {
    let now = Timestamp::from_secs(50);
    let limits = Limits { payload_bytes: 14, batch: 2 };
    let quell = Quell::with_store(Arc::new(MemoryStore::new(now))).limits(limits).build()?;
    let mail = |to: &str| Mail { to: to.to_owned() };
    assert!(quell.trigger(mail("12345")).await.is_ok());
    assert!(quell.trigger(mail("1234567")).await.is_err());
    assert!(quell.trigger_many([mail("1"), mail("2")]).await.is_ok());
    assert!(quell.trigger_many([mail("1"), mail("2"), mail("3")]).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_worker_that_cannot_be_meant_says_why_before_it_runs() -> Result<()> {
    async fn not_collected(_: Mail, _: quell::Ctx<()>) -> Result<(), quell::TaskError> {
        Ok(())
    }
    let quell = Quell::open("memory:").await?;
    let never = std::future::pending::<()>;
    let app = Arc::default;
    let table = [
        ("task", quell.worker(()).run_until(never()).await),
        ("task", quell.worker(app()).register(mail).register(mail).run_until(never()).await),
        ("fold", quell.worker(()).register(not_collected).run_until(never()).await),
        ("concurrency", quell.worker(app()).register(mail).concurrency(0).run_until(never()).await),
        (
            "lease",
            quell.worker(app()).register(mail).lease(Duration::ZERO).run_until(never()).await,
        ),
    ];
    for (field, refused) in table {
        assert_eq!(refused.expect_err("it ran").field(), Some(field));
    }
    assert_eq!(Quell::open("mysql://x").await.unwrap_err().field(), Some("url"));
    Ok(())
}
