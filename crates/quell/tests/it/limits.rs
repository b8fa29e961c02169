//! Queues, partitions and tasks as an application sets them, with a real worker in virtual time.

use std::sync::Arc;

use quell::queue::{QueueSettings, Rate};
use quell::testing::TestKit;
use quell::{Error, ErrorKind, JobState, Receipt, Result};

use crate::tasks::{App, Reindex, Script, reindex, script, secs};

fn start() -> Result<(TestKit, App)> {
    let log = App::default();
    let state = Arc::clone(&log);
    let kit = TestKit::start(|quell| quell.worker(state).register(reindex).register(script))?;
    Ok((kit, log))
}

/// The queue of the task `Script`.
const SCRIPTS: &str = "scripts";

/// The seconds at which something ran.
fn seconds(log: &App) -> Vec<u64> {
    log.runs().iter().map(|run| run.at.since(TestKit::START).as_secs()).collect()
}

#[tokio::test]
async fn r31_r34_a_worker_sleeps_until_the_rate_lets_it_start() -> Result<()> {
    let (kit, log) = start()?;
    let rate = Some(Rate { limit: 2, period: secs(300) });
    let settings = QueueSettings { rate, ..QueueSettings::default() };
    kit.quell().queue(SCRIPTS).set(&settings).await?;
    kit.quell().trigger_many((0..5).map(|_| Script::new(&[]))).await?;
    kit.advance(secs(1_000)).await;
    assert_eq!(seconds(&log), [0, 0, 300, 300, 600]);
    Ok(())
}

#[tokio::test]
async fn r31_a_trigger_names_its_partition() -> Result<()> {
    let (kit, _) = start()?;
    let quell = kit.quell();
    let job = quell.trigger(Reindex::page("a")).partition("acme").await?.job().unwrap();
    let kept = quell.store().job(job).await?.unwrap();
    assert_eq!(kept.partition.as_ref().map(quell::Key::as_str), Some("acme"));
    let error = quell.trigger(Reindex::page("a")).partition("").await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("partition")));
    Ok(())
}

#[tokio::test]
async fn r32_r33_queues_and_tasks_are_paused_resumed_and_deleted() -> Result<()> {
    let (kit, log) = start()?;
    let quell = kit.quell();
    let queue = quell.queue(SCRIPTS);
    let unknown = |error: Error| assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    unknown(queue.pause().await.unwrap_err());
    queue.set(&QueueSettings { concurrency: Some(3), ..QueueSettings::default() }).await?;
    queue.pause().await?;
    let settings = queue.settings().await?.unwrap();
    assert_eq!((settings.paused, settings.concurrency), (true, Some(3)));
    quell.trigger(Script::new(&[])).await?;
    kit.advance(secs(5)).await;
    assert_eq!(seconds(&log), [0_u64; 0]);
    queue.resume().await?;
    kit.advance(secs(1)).await;
    assert_eq!(seconds(&log), [5]);

    quell.pause::<Script>().await?;
    quell.trigger(Script::new(&[])).await?;
    quell.trigger(Reindex::page("a")).no_debounce().await?;
    kit.advance(secs(4)).await;
    assert_eq!(seconds(&log), [5, 6], "the other task went on");
    let paused: Vec<bool> = quell.tasks().await?.iter().map(|task| task.settings.paused).collect();
    assert_eq!(paused, [false, true]);
    quell.resume::<Script>().await?;
    kit.advance(secs(1)).await;
    assert_eq!(seconds(&log), [5, 6, 10]);

    assert!(queue.delete().await? && !queue.delete().await?);
    let Receipt::Accepted { job, .. } = quell.trigger(Script::new(&[])).await? else {
        panic!("it is accepted")
    };
    kit.advance(secs(9)).await;
    assert_eq!(quell.store().job(job).await?.unwrap().state, JobState::Scheduled);
    unknown(queue.resume().await.unwrap_err());
    assert!(quell.queue("no name").set(&settings).await.unwrap_err().field() == Some("queue"));
    queue.set(&settings).await?;
    queue.resume().await?;
    kit.advance(secs(1)).await;
    assert_eq!(quell.store().job(job).await?.unwrap().state, JobState::Succeeded);
    Ok(())
}
