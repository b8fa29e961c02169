//! A server that was restored to an earlier moment: what workers of the time since then still report,
//! and which ids are given (R21).

use std::sync::Arc;

use quell_conformance::rig::{lease, plain};
use quell_conformance::{Opened, Rig};
use quell_core::checkup::SKIPPED_IDS;
use quell_core::{Claim, Draw, ErrorKind, JobState, Outcome, SettledAs};
use quell_postgres::{PostgresOptions, PostgresStore};
use quell_services::Postgres;

/// More than the server gives ids ahead of its log.
const LOST: usize = 100;

async fn rig(server: &Postgres) -> Rig {
    let store = PostgresStore::open(&server.url()).await.unwrap();
    Rig::new(Opened { store: Arc::new(store), guard: Box::new(()) })
}

#[tokio::test]
async fn r21_after_a_restore_no_worker_of_the_lost_time_touches_a_job() {
    let primary = Postgres::start(&[&["fsync=off"], &Postgres::ARCHIVE[..]].concat()).unwrap();
    let before = rig(&primary).await;
    before.trigger(plain("\"kept\"")).await;
    let mut restored = primary.backup().unwrap();
    primary.mark("here").unwrap();
    for number in 0..LOST {
        before.trigger(plain(&number.to_string())).await;
    }
    let lost = before.claim_with(&Claim { draw: Draw::new(77), ..Rig::claim_of(1_000) }).await;
    assert_eq!(lost.len(), LOST + 1);
    primary.archive().unwrap();
    restored.restore(&primary, "here").unwrap();

    let mut after = rig(&restored).await;
    assert_eq!(after.jobs().await.len(), 1, "what came after the point is lost");
    for _ in 0..LOST {
        after.trigger(plain("\"new\"")).await;
    }
    let given = after.claim().await;
    let again = lost.iter().filter(|old| given.iter().any(|new| new.id == old.id));
    let again: Vec<_> = again.cloned().collect();
    assert!(again.len() > LOST / 3, "ids are given again: {}", again.len());
    for old in &again {
        assert_eq!(after.renew(lease(old)).await, None);
        let (name, key) = ("charge".parse().unwrap(), quell_conformance::rig::key("k"));
        let begun = after.store.begin_effect(Some(after.now()), &lease(old), &name, &key).await;
        assert_eq!(begun.map_err(|error| error.kind()), Err(ErrorKind::IllegalMove));
        let settled = after.settle(lease(old), Outcome::succeeded()).await;
        assert_eq!(settled, SettledAs::Refused);
        assert_eq!(after.job(old.id).await.state, JobState::Running);
    }
    for new in &given {
        after.succeed(new).await;
    }

    let newest = given.iter().chain(&lost).map(|job| job.id.get()).max().unwrap();
    PostgresOptions::from_url(&restored.url()).unwrap().skip_ids().await.unwrap();
    let fresh = after.at(1).trigger(plain("1")).await.job().unwrap();
    assert!(fresh.get() >= newest - LOST as u64 + SKIPPED_IDS, "{fresh} after {newest}");
}
