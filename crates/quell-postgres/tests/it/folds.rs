//! A process that is stopped in the middle of a call: what it holds is not kept from others (R39).

use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::effort::some_of;
use quell_conformance::rig::{keyed, plain, until};
use quell_core::{Batch, Store};
use quell_postgres::{PostgresStore, trigger_in};

use crate::proxy::Cut;
use crate::scene::Scene;
use crate::silent::{proxy_before, through};

/// The usual run stops the fold at one in this number of replies, and at the last ones; a long run at all.
const TRIED: (u64, usize) = (3, 4);
/// Others must start jobs within this time, no matter which process is stopped.
const GOES_ON: Duration = Duration::from_secs(15);

async fn put(scene: &Scene, store: &PostgresStore, payload: &str) {
    let mut db = scene.connect().await;
    let batch = Batch::one(plain(payload));
    trigger_in(&mut db, store.location().unwrap(), &batch).await.unwrap();
}

/// The fold stops after each reply of the server, and others go on.
#[tokio::test]
async fn r02_r04_r39_a_process_stopped_inside_a_fold_keeps_nobody_from_starting_jobs() {
    let server = quell_services::Postgres::start(&["fsync=off"]).unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let proxy = proxy_before(&scene).await;
    let healthy = scene.store().await;
    let stopped = PostgresStore::open(&through(&proxy, &scene, "&connections=1")).await.unwrap();
    // Whatever a fold needs is prepared, so that it is the same replies each time.
    let warm = async || {
        for _ in 0..2 {
            put(&scene, &healthy, "0").await;
            stopped.claim(None, &Rig::claim_of(9)).await.unwrap();
        }
    };
    warm().await;
    put(&scene, &healthy, "0").await;
    proxy.set(None);
    stopped.claim(None, &Rig::claim_of(9)).await.unwrap();
    let (replies, _) = proxy.unset();
    let mut inside = 0;
    // Where the client may speak, a process stops.
    let stops = |cut: &Cut| matches!(cut, Cut::After(_));
    let stops: Vec<Cut> = crate::proxy::cuts_of(&replies).into_iter().filter(stops).collect();
    for cut in some_of(stops, 0, TRIED) {
        let Cut::After(at) = cut else { continue };
        warm().await;
        put(&scene, &healthy, "0").await;
        proxy.set(Some(Cut::Silent(at)));
        let claim = Rig::claim_of(9);
        let hangs = stopped.claim(None, &claim);
        let goes_on = async {
            let waits = "select count(*) from pg_stat_activity where state = 'idle in transaction'";
            let limit = Instant::now() + Duration::from_secs(2);
            while scene.sql(waits) == "0" && Instant::now() < limit {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let stopped_at = Instant::now();
            inside += usize::from(scene.sql(waits) != "0");
            let enqueue = async {
                healthy.enqueue(None, vec![Batch::one(plain("2"))]).await.unwrap();
                let mut started = 0;
                while started < 1 {
                    started += healthy.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.len();
                }
            };
            tokio::time::timeout(GOES_ON, enqueue).await.expect("others start jobs");
            // A trigger of a key must come behind those in the inbox, so it may wait for the fold.
            let key = async {
                while healthy.enqueue(None, vec![Batch::one(keyed("k"))]).await.is_err() {}
            };
            tokio::time::timeout(GOES_ON, key).await.expect("triggers with keys go on");
            // And what the stopped fold had taken is taken in by another.
            let inbox = async {
                while scene.sql("select count(*) from quell.inbox") != "0" {
                    healthy.claim(None, &Rig::claim_of(9)).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let left = GOES_ON.saturating_sub(stopped_at.elapsed());
            tokio::time::timeout(left, inbox).await.expect("the inbox is taken in");
        };
        tokio::select! {
            // It waits for an answer as long as its own limit says.
            () = async { drop(hangs.await); std::future::pending::<()>().await } => {}
            () = goes_on => {}
        }
        proxy.unset();
    }
    assert!(inside >= 2, "it was stopped inside a transaction {inside} times");
}

/// The server has undone its transaction meanwhile, so the call begins again.
#[tokio::test]
async fn r39_a_process_that_was_stopped_inside_a_fold_goes_on_where_nothing_is_half_done() {
    let server = quell_services::Postgres::start(&["fsync=off"]).unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let proxy = proxy_before(&scene).await;
    let healthy = scene.store().await;
    let url = through(&proxy, &scene, "&connections=1&timeout_ms=120000");
    let stopped = PostgresStore::open(&url).await.unwrap();
    for _ in 0..2 {
        put(&scene, &healthy, "0").await;
        stopped.claim(None, &Rig::claim_of(9)).await.unwrap();
    }
    put(&scene, &healthy, "0").await;
    proxy.set(None);
    stopped.claim(None, &Rig::claim_of(9)).await.unwrap();
    let (replies, _) = proxy.unset();
    let all: Vec<Cut> = crate::proxy::cuts_of(&replies);
    let mut may_speak: Vec<usize> = all
        .into_iter()
        .filter_map(|cut| match cut {
            Cut::After(at) if at < replies.len() => Some(at),
            _ => None,
        })
        .collect();
    // Before its commit.
    let at = may_speak.pop().unwrap();
    put(&scene, &healthy, "\"last\"").await;
    proxy.set(Some(Cut::Silent(at)));
    let claim = Rig::claim_of(9);
    let sessions = "select count(*) from pg_stat_activity where application_name = 'quell'
                       and state = 'idle in transaction'";
    let (claimed, ()) = tokio::join!(stopped.claim(None, &claim), async {
        until("it is stopped", async || scene.sql(sessions) == "1").await;
        until("the server undoes it", async || scene.sql(sessions) == "0").await;
        proxy.heal();
    });
    let payloads: Vec<String> =
        claimed.unwrap().jobs.iter().map(|job| job.payload.as_str().to_owned()).collect();
    assert_eq!(payloads, ["\"last\""]);
    assert_eq!(scene.sql("select count(*) from quell.inbox"), "0");
}
