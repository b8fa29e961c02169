//! The library on Redis: virtual time on a real store, a worker in real time that is woken, and
//! callers' transactions, which Redis has no part in.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quell::redis::{RedisOptions, RedisStore};
use quell::worker::PollSettings;
use quell::{ErrorKind, Quell, Result};
use quell_conformance::rig::until;

use crate::anywhere::{a_url_is_all_it_needs, bursts_run_in_virtual_time};
use crate::tasks::{App, Script, script, secs};

pub(crate) fn url() -> String {
    let (server, prefix) = quell_services::redis_url_for_tests();
    format!("{server}?prefix={prefix}")
}

async fn store() -> Result<Arc<RedisStore>> {
    Ok(Arc::new(RedisOptions::from_url(&url())?.open().await?))
}

#[tokio::test]
async fn r08_virtual_time_runs_on_redis_too() -> Result<()> {
    bursts_run_in_virtual_time(store().await?).await
}

#[tokio::test]
async fn r34_a_url_is_all_that_a_client_and_a_worker_need() -> Result<()> {
    a_url_is_all_it_needs(&url(), secs(20)).await
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r04_r22_callers_transactions_are_refused() -> Result<()> {
    let quell = Quell::with_store(store().await?).build()?;
    crate::anywhere::callers_transactions_are_refused(quell, secs(20)).await
}

#[tokio::test]
async fn r40_a_refused_url_is_answered_with_the_reason() {
    for (url, reason) in [
        ("rediz://h", "store url begins with \"rediz\", which this build does not know: use"),
        ("redis://", "store url: "),
        ("redis://h?prefx=a", "store url: \"prefx=a\" is not known"),
        ("redis://h?prefix=a%20b", "prefix"),
    ] {
        let refused = Quell::open(url).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{url}: {refused}");
        assert!(refused.to_string().contains(reason), "{url}: {refused}");
    }
}

/// Polling alone would take an hour.
const HARDLY_EVER: PollSettings = PollSettings { base: secs(3_600), ceiling: secs(3_600) };

#[tokio::test]
async fn r34_a_trigger_of_another_process_wakes_the_worker() -> Result<()> {
    let url = url();
    let (other, quell) = (Quell::open(&url).await?, Quell::open(&url).await?);
    let log = App::default();
    let worker = quell.worker(Arc::clone(&log)).register(script).poll(HARDLY_EVER);
    let asked = async {
        for n in 1..=3 {
            other.trigger(Script::new(&[])).await.unwrap();
            until("the other's trigger ran", || async { log.runs().len() == n }).await;
        }
    };
    worker.run_until(asked).await
}

/// A client that may not subscribe any longer polls for work every second or so.
#[tokio::test]
async fn r34_r39_a_worker_that_lost_its_hints_polls() -> Result<()> {
    let server = quell_services::Redis::start(&[]).unwrap();
    let url = server.url();
    let (other, quell) = (Quell::open(&url).await?, Quell::open(&url).await?);
    let log = App::default();
    let poll = PollSettings { base: Duration::from_millis(20), ceiling: secs(1) };
    let worker = quell.worker(Arc::clone(&log)).register(script).poll(poll);
    let asked = async {
        other.trigger(Script::new(&[])).await.unwrap();
        until("the first one ran", || async { log.runs().len() == 1 }).await;
        server.command(&["ACL", "SETUSER", "default", "-subscribe"]).unwrap();
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        for n in 2..=4 {
            other.trigger(Script::new(&[])).await.unwrap();
            until("it is found", || async { log.runs().len() == n }).await;
        }
        assert_eq!(server.command(&["CLIENT", "LIST", "TYPE", "PUBSUB"]).unwrap(), "");
    };
    worker.run_until(asked).await
}

/// Callers of one process share calls, and a worker claims meanwhile: both go on by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_a_process_goes_on_within_15_s_after_its_connections_fell_silent() -> Result<()> {
    let server = quell_services::Redis::start(&[]).unwrap();
    let proxy = quell_services::Proxy::start(server.port()).unwrap();
    let quell = Quell::open(&format!("redis://127.0.0.1:{}/", proxy.port())).await?;
    let log = App::default();
    let poll = PollSettings { base: Duration::from_millis(20), ceiling: secs(1) };
    let worker = quell.worker(Arc::clone(&log)).register(script).poll(poll);
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (quell, accepted) = (quell.clone(), Arc::clone(&accepted));
        callers.spawn(async move {
            loop {
                match quell.trigger(Script::new(&[])).await {
                    Ok(_) => drop(accepted.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => assert!(error.is_retryable() || error.is_unknown_outcome()),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let goes_on = async || {
        let counts = || (accepted.load(Ordering::Relaxed), log.runs().len());
        let (before, began) = (counts(), Instant::now());
        loop {
            let now = counts();
            if now.0 > before.0 + 20 && now.1 > before.1 + 20 {
                return;
            }
            assert!(began.elapsed() < secs(15), "{before:?} accepted and run, now {now:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let asked = async {
        goes_on().await;
        assert!(proxy.silence(quell_services::proxy::Way::Both) >= 2);
        goes_on().await;
    };
    worker.run_until(asked).await
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r43_the_store_has_ciphertext() -> Result<()> {
    let store = store().await?;
    crate::encryption::the_store_has_ciphertext_and_clients_see_plain_text(store).await
}
