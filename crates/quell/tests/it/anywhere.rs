//! What a client and a worker do on a store of any kind.
#![cfg(any(feature = "sqlite", feature = "redis", feature = "azure"))]

use std::sync::Arc;

use quell::Result;
use quell::store::Store;
use quell::testing::TestKit;

use crate::tasks::{App, Reindex, reindex, secs};

/// R8: two bursts, and what runs when.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) async fn bursts_run_in_virtual_time(store: Arc<dyn Store>) -> Result<()> {
    let log = App::default();
    let state = Arc::clone(&log);
    let kit = TestKit::start_on(store, |quell| quell.worker(state).register(reindex))?;
    for second in [0, 20, 40, 55] {
        kit.advance(secs(second).saturating_sub(kit.now().since(TestKit::START))).await;
        kit.quell().trigger(Reindex::page(if second < 40 { "a" } else { "b" })).await?;
    }
    kit.advance(secs(100)).await;
    let runs: Vec<(u64, String)> =
        log.runs().into_iter().map(|r| (r.at.since(TestKit::START).as_secs(), r.what)).collect();
    let expected = [(10, "a"), (30, "a"), (50, "b"), (65, "b")];
    assert_eq!(runs, expected.map(|(at, page)| (at, page.to_owned())));
    Ok(())
}

/// R34: one client triggers, and the worker of another runs it; what it waits for takes `patience` at most.
#[cfg(any(feature = "redis", feature = "azure"))]
pub(crate) async fn a_url_is_all_it_needs(url: &str, patience: std::time::Duration) -> Result<()> {
    use quell::{JobState, Key, Quell};

    let (client, quell) = (Quell::open(url).await?, Quell::open(url).await?);
    let worker = quell.worker(App::default()).register(reindex);
    let asked = async {
        let job = client.trigger(Reindex::page("a")).await.unwrap().job();
        let flushed = client.flush::<Reindex>(&Key::new("a").unwrap()).await.unwrap();
        assert_eq!(flushed, job);
        let result = client.result(job.unwrap(), patience).await.unwrap();
        assert_eq!(result.state, JobState::Succeeded, "{result:?}");
    };
    worker.run_until(asked).await
}

/// R4, R22: triggers and ends inside a caller's transaction are refused, and nothing is written.
#[cfg(all(feature = "sqlite", any(feature = "redis", feature = "azure")))]
pub(crate) async fn callers_transactions_are_refused(
    quell: quell::Quell,
    patience: std::time::Duration,
) -> Result<()> {
    use quell::{Ctx, ErrorKind, JobState, TaskError};
    use sqlx::SqlitePool;

    use crate::tasks::Script;

    async fn settle(_: Script, ctx: Ctx<SqlitePool>) -> std::result::Result<u32, TaskError> {
        let mut tx = ctx.state().begin().await?;
        let refused = ctx.settle_in(&mut tx).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        Ok(ctx.attempt())
    }

    let pool = SqlitePool::connect("sqlite::memory:").await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let refused = quell.trigger(Reindex::page("a")).within(&mut tx).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("`transactions`"), "{refused}");
    let pages = ["a", "b"].map(Reindex::page);
    let refused = quell.trigger_many(pages).within(&mut tx).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    tx.rollback().await.unwrap();
    assert_eq!(quell.store().counts().await?, [], "nothing was written");

    let worker = quell.worker(pool).register(settle);
    let asked = async {
        let receipt = quell.trigger(Script::new(&[])).await.unwrap();
        let result = quell.result(receipt.job().unwrap(), patience).await.unwrap();
        assert_eq!(result.state, JobState::Succeeded, "{result:?}");
    };
    worker.run_until(asked).await
}
