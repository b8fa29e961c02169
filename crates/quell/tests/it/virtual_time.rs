//! Real client and worker code in virtual time: when tasks run, and what their answers lead to.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;

use quell::testing::TestKit;
use quell::{JobState, Result, TaskName};

use crate::tasks::{App, Mail, Reindex, Script, Slow, mail, reindex, script, secs, slow};

/// A kit with every task registered.
fn start() -> Result<(TestKit, App)> {
    let log = App::default();
    let state = Arc::clone(&log);
    let kit = TestKit::start(|quell| {
        let worker = quell.worker(state);
        worker.register(reindex).register(slow).register(script).register(mail)
    })?;
    Ok((kit, log))
}

/// Seconds since the start at which something ran, with what it was.
fn logged(log: &App) -> Vec<(u64, String)> {
    log.runs().into_iter().map(|run| (run.at.since(TestKit::START).as_secs(), run.what)).collect()
}

fn entries(rows: &[(u64, &str)]) -> Vec<(u64, String)> {
    rows.iter().map(|(at, what)| (*at, (*what).to_owned())).collect()
}

/// When runs began, in seconds, and how many triggers each covered.
type Runs<'t> = &'t [(u64, u64)];

/// The published scenarios: when triggers come, when the task runs, what each run covers.
#[tokio::test]
async fn r08_the_published_scenarios_are_exact() -> Result<()> {
    let every_five: Vec<u64> = (0..=300).step_by(5).collect();
    let table: [(&[u64], Runs<'_>); 4] = [
        (&[0], &[(10, 1)]),
        (&[0, 3, 7], &[(17, 3)]),
        (&[0, 25], &[(10, 1), (35, 1)]),
        (&every_five, &[(60, 12), (120, 12), (180, 12), (240, 12), (300, 12), (310, 1)]),
    ];
    for (triggers, expected) in table {
        let (kit, log) = start()?;
        for at in triggers {
            kit.advance(secs(*at).saturating_sub(kit.now().since(TestKit::START))).await;
            kit.quell().trigger(Reindex::page("a")).await?;
        }
        kit.advance(secs(100)).await;
        let runs: Vec<(u64, u64)> = log
            .runs()
            .iter()
            .map(|run| (run.at.since(TestKit::START).as_secs(), run.triggers))
            .collect();
        assert_eq!(runs, expected, "triggers at {triggers:?}");
    }
    Ok(())
}

#[tokio::test]
async fn r11_a_trigger_during_a_run_waits_for_its_end() -> Result<()> {
    let (kit, log) = start()?;
    kit.quell().trigger(Slow { takes_secs: 30 }).await?;
    kit.advance(secs(15)).await;
    kit.quell().trigger(Slow { takes_secs: 1 }).await?;
    kit.advance(secs(60)).await;
    let expected =
        entries(&[(10, "slow begins"), (40, "slow ends"), (40, "slow begins"), (41, "slow ends")]);
    assert_eq!(logged(&log), expected);
    Ok(())
}

#[tokio::test]
async fn r24_backoff_doubles_up_to_its_bound_and_the_last_failure_buries() -> Result<()> {
    let (kit, log) = start()?;
    kit.quell().trigger(Script::new(&["fail", "fail", "fail"])).await?;
    kit.advance(secs(500)).await;
    assert_eq!(logged(&log), entries(&[(0, "fail"), (30, "fail"), (80, "fail")]));
    let dead = kit.jobs("script", JobState::Dead).await?;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].error.as_deref(), Some("scripted failure"));
    let attempts = kit.quell().store().attempts(dead[0].id).await?;
    assert_eq!(attempts.len(), 3, "every attempt is on record: {attempts:?}");
    Ok(())
}

#[tokio::test]
async fn r24_a_handler_shapes_what_follows() -> Result<()> {
    let table: [(&[&str], &[u64], JobState); 5] = [
        (&["later", ""], &[0, 7], JobState::Succeeded),
        (&["snooze", "snooze", "fail", "fail", ""], &[0, 5, 10, 40, 90], JobState::Succeeded),
        (&["permanent"], &[0], JobState::Dead),
        (&["cancel"], &[0], JobState::Cancelled),
        (&["panic", ""], &[0, 30], JobState::Succeeded),
    ];
    for (words, times, state) in table {
        let (kit, log) = start()?;
        kit.quell().trigger(Script::new(words)).await?;
        kit.advance(secs(500)).await;
        let ran: Vec<u64> = logged(&log).into_iter().map(|(at, _)| at).collect();
        assert_eq!(ran, times, "{words:?}");
        assert_eq!(kit.jobs("script", state).await?.len(), 1, "{words:?}");
    }
    Ok(())
}

#[tokio::test]
async fn r24_a_timeout_is_a_transient_failure_that_tells_the_handler() -> Result<()> {
    let (kit, log) = start()?;
    kit.quell().trigger(Script::new(&["hang-in-sleep", ""])).await?;
    kit.quell().trigger(Slow { takes_secs: 1_000 }).await?;
    kit.advance(secs(10 + 100)).await;
    let scheduled = kit.jobs("slow", JobState::Scheduled).await?;
    assert_eq!(scheduled.len(), 1, "timed out after 100 s and waits for its backoff");
    let error = scheduled[0].error.clone().unwrap_or_default();
    assert!(error.contains("timeout of 100s"), "{error}");
    assert_eq!(logged(&log).iter().filter(|(_, what)| what == "slow ends").count(), 0);
    Ok(())
}

#[tokio::test]
async fn r10_collect_hands_over_every_payload_and_is_due_at_its_cap() -> Result<()> {
    let (kit, log) = start()?;
    for to in ["ada", "bob"] {
        kit.quell().trigger(Mail { to: to.into() }).await?;
    }
    kit.advance(secs(4)).await;
    kit.quell().trigger(Mail { to: "cy".into() }).await?;
    kit.settle().await;
    assert_eq!(logged(&log), entries(&[(4, "ada+bob+cy")]));
    Ok(())
}

#[tokio::test]
async fn r07_a_window_can_be_flushed_and_cancelled_by_key() -> Result<()> {
    let (kit, log) = start()?;
    let key = quell::Key::new("a")?;
    kit.quell().trigger(Reindex::page("a")).await?;
    kit.advance(secs(3)).await;
    assert!(kit.quell().flush::<Reindex>(&key).await?.is_some());
    kit.settle().await;
    assert_eq!(logged(&log), entries(&[(3, "a")]));
    kit.quell().trigger(Reindex::page("a")).await?;
    assert!(kit.quell().cancel_key::<Reindex>(&key).await?.is_some());
    assert!(kit.quell().cancel_key::<Reindex>(&key).await?.is_none());
    kit.advance(secs(100)).await;
    assert_eq!(log.runs().len(), 1);
    Ok(())
}

#[tokio::test]
async fn r28_a_task_no_worker_knows_waits_and_shows_up() -> Result<()> {
    let log = App::default();
    let state = Arc::clone(&log);
    let kit = TestKit::start(|quell| quell.worker(state).register(reindex))?;
    kit.quell().trigger(Slow { takes_secs: 1 }).await?;
    kit.quell().trigger(Reindex::page("a")).await?;
    kit.advance(secs(3_600)).await;
    assert_eq!(logged(&log), entries(&[(10, "a")]));
    let counts = kit.quell().store().counts().await?;
    let slow = TaskName::new("slow")?;
    let waiting = counts.iter().find(|count| count.task == slow).map(|count| count.jobs);
    assert_eq!(waiting, Some(1), "{counts:?}");
    Ok(())
}

/// Waits for what virtual time does not bring about.
#[tokio::test]
async fn a_handler_that_never_rests_is_named() -> Result<()> {
    let stuck = |_: quell::Payload, ctx: quell::Ctx<()>| async move {
        let result = ctx.quell().result(ctx.job(), secs(3_600)).await;
        result.map(drop).map_err(quell::TaskError::failed)
    };
    let (task, policy) = (TaskName::new("stuck")?, quell::Policy::default());
    let (of, policy_of) = (task.clone(), policy.clone());
    let kit = TestKit::start(|quell| quell.worker(()).register_raw(of, &policy_of, stuck))?;
    let kit = kit.with_patience(std::time::Duration::from_millis(200));
    let trigger = policy.trigger(task, quell::Payload::from_stored("1"), None)?;
    kit.quell().enqueue(quell::Batch::one(trigger)).await?;
    let panic = AssertUnwindSafe(kit.advance(secs(1))).catch_unwind().await.unwrap_err();
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("waiting for task stuck, job 1. A handler"), "{text}");
    Ok(())
}

#[tokio::test]
async fn weeks_of_bursts_run_in_a_moment() -> Result<()> {
    let (kit, log) = start()?;
    for _ in 0..6 {
        kit.quell().trigger(Reindex::page("a")).await?;
        kit.advance(secs(7 * 86_400)).await;
    }
    assert_eq!(log.runs().len(), 6);
    Ok(())
}
