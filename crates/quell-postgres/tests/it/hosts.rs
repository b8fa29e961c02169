//! Several hosts in a URL, a failover from one to the other, and an address that leads elsewhere
//! (R39).

use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{keyed, plain, until};
use quell_core::{Batch, ErrorKind, NewTrigger, Result, Store};
use quell_postgres::{PostgresOptions, PostgresStore};
use quell_services::Postgres;

use crate::proxy::Proxy;
use crate::scene::jobs;

async fn take(store: &PostgresStore, trigger: NewTrigger) -> Result<()> {
    store.enqueue(None, vec![Batch::one(trigger)]).await.map(drop)
}

fn url(ports: &[u16], more: &str) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("postgres://quell@{}/postgres?sslmode=disable{more}", hosts.join(","))
}

/// A primary and a standby that has what the primary has.
fn pair() -> (Postgres, Postgres) {
    let primary = Postgres::start(&["fsync=off", "synchronous_commit=on"]).unwrap();
    let standby = primary.standby().unwrap();
    (primary, standby)
}

fn has_all(primary: &Postgres, standby: &Postgres) -> bool {
    let ask = |server: &Postgres, question: &str| {
        let output = server.psql().args(["--command", question]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let written = ask(primary, "select pg_current_wal_lsn()");
    ask(standby, &format!("select pg_last_wal_replay_lsn() >= '{written}'")) == "t"
}

#[tokio::test]
async fn r39_of_several_hosts_the_one_that_takes_writes_is_used() {
    let (primary, standby) = pair();
    let store = PostgresStore::open(&url(&[1, standby.port(), primary.port()], "")).await.unwrap();
    take(&store, plain("1")).await.unwrap();
    assert!(store.capabilities().push, "it listens where it may");
    drop(store);
    until("the standby has it", async || has_all(&primary, &standby)).await;
    // What is asked for is used; a standby takes no schema and no writes.
    let hosts = url(&[primary.port(), standby.port()], "&target_session_attrs=standby");
    let refused = PostgresStore::open(&hosts).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    for (hosts, about) in [
        (url(&[standby.port()], "&target_session_attrs=primary"), "`target_session_attrs`"),
        (url(&[standby.port(), 1], ""), "`target_session_attrs`"),
    ] {
        let options = PostgresOptions::from_url(&hosts).unwrap();
        let refused = options.acquire_timeout(Duration::from_millis(300)).open().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains(about), "{refused}");
    }
}

#[tokio::test]
async fn r39_a_failover_to_another_host_of_the_url_only_delays() {
    let (mut primary, standby) = pair();
    let hosts = url(&[primary.port(), standby.port()], "");
    let (store, other) =
        (PostgresStore::open(&hosts).await.unwrap(), PostgresStore::open(&hosts).await.unwrap());
    take(&store, plain("1")).await.unwrap();
    take(&store, keyed("k")).await.unwrap();
    until("the standby has it", async || has_all(&primary, &standby)).await;
    primary.kill().unwrap();
    let refused = take(&store, plain("2")).await.unwrap_err();
    assert!(refused.is_retryable() || refused.is_unknown_outcome(), "{refused}");
    standby.promote().unwrap();
    until("triggers are accepted", async || take(&store, plain("3")).await.is_ok()).await;
    assert_eq!(jobs(&store).await, 3);
    // Notifications go on at the new primary, too.
    let mut wakeups = other.wakeups();
    let received = async {
        loop {
            // The other process may be about to listen again.
            take(&store, plain("4")).await.unwrap();
            let next = tokio::time::timeout(Duration::from_secs(1), wakeups.next()).await;
            if next.is_ok_and(|wakeup| wakeup.is_some_and(|wakeup| wakeup.queue.is_some())) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), received).await.expect("others are woken");
    assert!(!other.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.is_empty());
}

/// The address leads to a new primary, while the old server lives on as a standby and closes nothing.
#[tokio::test]
async fn r39_an_address_that_leads_to_another_server_is_followed() {
    let (primary, standby) = pair();
    let proxy = Proxy::start(standby.port()).await;
    // The address leads to a server that has become a standby: what is connected there is refused.
    let direct = PostgresStore::open(&primary.url()).await.unwrap();
    take(&direct, plain("1")).await.unwrap();
    until("the standby has it", async || has_all(&primary, &standby)).await;
    proxy.lead_to(primary.port());
    let store = PostgresStore::open(&url(&[proxy.port()], "")).await.unwrap();
    take(&store, plain("2")).await.unwrap();
    until("the standby has it", async || has_all(&primary, &standby)).await;
    proxy.lead_to(standby.port());
    proxy.close_all();
    for trigger in [plain("3"), keyed("k")] {
        let refused = take(&store, trigger).await.unwrap_err();
        assert!(refused.is_retryable() || refused.is_unknown_outcome(), "{refused}");
    }
    let refused = take(&store, plain("3")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("standby"), "{refused}");
    // The connections to the standby stay open and healthy, and the address leads back.
    proxy.lead_to(primary.port());
    until("triggers are accepted", async || take(&store, plain("4")).await.is_ok()).await;
    take(&store, keyed("k")).await.unwrap();
    assert_eq!(jobs(&store).await, jobs(&direct).await);
}
