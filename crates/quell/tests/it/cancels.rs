//! The cancellation of a running job reaches its handler at once, in whichever process it was asked
//! for (R21). The next renewal, which would notice it too, is 20 minutes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell::store::Store;
use quell::{Batch, Ctx, Payload, Policy, Quell, Result, TaskError, TaskName};
use quell_conformance::rig::{secs, until};

/// How many handlers run, and how many were cancelled.
#[derive(Default)]
struct Seen {
    running: AtomicUsize,
    cancelled: AtomicUsize,
}

async fn waits(_: Payload, ctx: Ctx<Arc<Seen>>) -> std::result::Result<(), TaskError> {
    ctx.state().running.fetch_add(1, Ordering::SeqCst);
    ctx.cancelled().cancelled().await;
    ctx.state().cancelled.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

/// Jobs run at `runs`; `cancels` may be another process's store.
async fn a_cancel_reaches_the_handler(runs: Quell, cancels: Arc<dyn Store>) -> Result<()> {
    let (task, policy) = (TaskName::new("t")?, Policy::default());
    let seen = Arc::new(Seen::default());
    let worker = runs.worker(Arc::clone(&seen)).lease(secs(3_600));
    let worker = worker.register_raw(task.clone(), &policy, waits);
    let asked = async {
        for round in 1..=3 {
            let trigger = policy.trigger(task.clone(), Payload::from_stored("1"), None).unwrap();
            let receipts = runs.enqueue(Batch::one(trigger)).await.unwrap();
            let job = receipts[0].job().unwrap();
            until("the handler runs", || async { seen.running.load(Ordering::SeqCst) == round })
                .await;
            cancels.cancel(runs.clock().store_time(), job, "not wanted").await.unwrap();
            until("the handler knows", || async { seen.cancelled.load(Ordering::SeqCst) == round })
                .await;
        }
    };
    worker.run_until(asked).await
}

#[tokio::test]
async fn r21_a_cancel_reaches_the_handler_in_one_process() -> Result<()> {
    let quell = Quell::open("memory:").await?;
    let store = Arc::clone(quell.store());
    a_cancel_reaches_the_handler(quell, store).await
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r21_a_cancel_in_another_process_reaches_the_handler_on_sqlite() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("app.db").display());
    let (one, other) = (Quell::open(&url).await?, Quell::open(&url).await?);
    a_cancel_reaches_the_handler(one, Arc::clone(other.store())).await
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn r21_a_cancel_in_another_process_reaches_the_handler_on_postgres() -> Result<()> {
    let url = quell_services::url_for_tests();
    let (one, other) = (Quell::open(&url).await?, Quell::open(&url).await?);
    a_cancel_reaches_the_handler(one, Arc::clone(other.store())).await
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn r21_a_cancel_in_another_process_reaches_the_handler_on_redis() -> Result<()> {
    let url = crate::redis::url();
    let (one, other) = (Quell::open(&url).await?, Quell::open(&url).await?);
    a_cancel_reaches_the_handler(one, Arc::clone(other.store())).await
}
