//! A replica that was promoted without the newest writes: what workers of the lost time still report,
//! and which ids are given (R21).

use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain, until};
use quell_core::checkup::SKIPPED_IDS;
use quell_core::{
    Batch, Claim, ClaimedJob, Draw, ErrorKind, JobId, JobState, Outcome, Settled, SettledAs,
    Settlement, Store, WorkerId,
};
use quell_redis::RedisStore;

use crate::place::{Place, server};

async fn trigger(store: &RedisStore, payload: &str) -> JobId {
    let batches = vec![Batch::one(plain(payload))];
    store.enqueue(None, batches).await.unwrap().remove(0).unwrap().remove(0).job().unwrap()
}

async fn start(store: &RedisStore, worker: &str, draw: u64) -> ClaimedJob {
    let worker = WorkerId::new(worker).unwrap();
    let claim = Claim { worker, draw: Draw::new(draw), ..Rig::claim_of(1) };
    store.claim(None, &claim).await.unwrap().jobs.remove(0)
}

async fn settle(store: &RedisStore, job: &ClaimedJob, outcome: Outcome) -> SettledAs {
    let end = Settlement { lease: lease(job), outcome };
    let Settled { became, .. } = store.settle(None, vec![end]).await.unwrap()[0];
    became
}

#[tokio::test]
async fn r21_after_a_failover_no_worker_of_the_lost_time_touches_a_job() {
    let (master, replica) = (server(&["repl-diskless-sync-delay 0"]), server(&[]));
    let (before, after) = (Place::on(&master), Place::on(&replica));
    let store = before.open().await;
    trigger(&store, "\"kept\"").await;
    let port = master.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    until("the replica has it", async || {
        replica.command(&["DBSIZE"]).unwrap() == master.command(&["DBSIZE"]).unwrap()
    })
    .await;
    // It is promoted, and the master goes on for a while.
    replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let lost = trigger(&store, "\"alice\"").await;
    let first = start(&store, "a", 5).await;
    let alices = start(&store, "a", 6).await;
    assert_eq!(alices.id, lost);

    // One process that held none of them, and one that holds the new job.
    let (other, owner) = (after.open().await, after.open().await);
    let given = trigger(&owner, "\"bob\"").await;
    let kept = start(&owner, "b", 7).await;
    let bobs = start(&owner, "b", 8).await;
    assert_eq!((lost, first.id), (given, kept.id), "the id is given again");
    for store in [&other, &owner] {
        for old in [&first, &alices] {
            let renewed = store.renew(None, &[lease(old)], Rig::LEASE).await.unwrap();
            assert_eq!(renewed[0].until(), None);
            let (name, key) = ("charge".parse().unwrap(), quell_conformance::rig::key("k"));
            let begun = store.begin_effect(None, &lease(old), &name, &key).await;
            assert_eq!(begun.map_err(|error| error.kind()), Err(ErrorKind::IllegalMove));
            for outcome in [Outcome::succeeded(), Outcome::Released] {
                assert_eq!(settle(store, old, outcome).await, SettledAs::Refused);
            }
        }
    }
    let job = owner.job(bobs.id).await.unwrap().unwrap();
    assert_eq!((job.state, job.token), (JobState::Running, bobs.token));
    for new in [&kept, &bobs] {
        let renewed = owner.renew(None, &[lease(new)], Rig::LEASE).await.unwrap();
        assert!(renewed[0].until().is_some());
        assert_eq!(settle(&owner, new, Outcome::succeeded()).await, SettledAs::Succeeded);
    }

    after.options().skip_ids().await.unwrap();
    let fresh = trigger(&owner, "1").await;
    assert!(fresh.get() > given.get() + SKIPPED_IDS, "{fresh} after {given}");
    assert_eq!(start(&owner, "b", 9).await.id, fresh);
}
