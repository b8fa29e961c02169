//! The library on Azure Table Storage, whose place Azurite takes: a URL, polling, and callers'
//! transactions, which Table Storage has no part in.

use std::sync::Arc;
use std::time::Duration;

use quell::worker::PollSettings;
use quell::{ErrorKind, Quell, Result};
use quell_conformance::rig::until;

use crate::anywhere::a_url_is_all_it_needs;
use crate::tasks::{App, Script, script, secs};

/// A table that no other test has. On a busy machine Azurite is slow.
fn url() -> String {
    let (_, name) = quell_services::azurite_for_tests();
    let variable = quell_services::AZURITE;
    format!("azure://devstoreaccount1/{name}?connection={variable}&timeout_ms=60000")
}

#[tokio::test]
async fn r34_a_url_is_all_that_a_client_and_a_worker_need() -> Result<()> {
    a_url_is_all_it_needs(&url(), secs(60)).await
}

/// The other process pushes nothing.
#[tokio::test]
async fn r35_a_worker_polls_for_triggers_of_other_processes() -> Result<()> {
    let url = url();
    let (other, quell) = (Quell::open(&url).await?, Quell::open(&url).await?);
    assert!(!quell.store().capabilities().push);
    let log = App::default();
    let poll = PollSettings { base: Duration::from_millis(50), ceiling: secs(1) };
    let worker = quell.worker(Arc::clone(&log)).register(script).poll(poll);
    let asked = async {
        for n in 1..=3 {
            other.trigger(Script::new(&[])).await.unwrap();
            until("the other's trigger ran", || async { log.runs().len() == n }).await;
        }
    };
    worker.run_until(asked).await
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r04_r22_callers_transactions_are_refused() -> Result<()> {
    let quell = Quell::open(&url()).await?;
    crate::anywhere::callers_transactions_are_refused(quell, secs(60)).await
}

#[tokio::test]
async fn r40_a_refused_url_is_answered_with_the_reason() {
    for (url, said) in [
        ("azure://devstoreaccount1", "give azure://ACCOUNT/TABLE"),
        (
            "azure://devstoreaccount1/quell?tabel=a",
            "\"tabel\" is not known: use connection, credential, endpoint",
        ),
        (
            "azure://devstoreaccount1/quell?timer=servicebus",
            "`timer`: give servicebus://HOST/QUEUE",
        ),
    ] {
        let refused = Quell::open(url).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{url}: {refused}");
        assert_eq!(refused.field(), Some("url"), "{url}: {refused}");
        assert!(refused.to_string().contains(said), "{url}: {refused}");
    }
}

#[tokio::test]
async fn r21_ids_are_left_out_and_the_clock_is_not_reset() -> Result<()> {
    let url = url();
    let missing = quell::checkup::skip_ids(&format!("{url}&create=false")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    let before = Quell::open(&url).await?.trigger(Script::new(&[])).await?.job().unwrap();
    quell::checkup::skip_ids(&url).await?;
    let after = Quell::open(&url).await?.trigger(Script::new(&[])).await?.job().unwrap();
    assert!(after.get() > before.get() + quell::checkup::SKIPPED_IDS, "{after} after {before}");
    let refused = quell::checkup::reset_clock(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("`reset_clock`"), "{refused}");
    Ok(())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r43_the_store_has_ciphertext() -> Result<()> {
    let store = Quell::open(&url()).await?.store().clone();
    crate::encryption::the_store_has_ciphertext_and_clients_see_plain_text(store).await
}
