//! A store that was restored to an earlier state: what workers of the time since then still report (R21).

use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain};
use quell_core::checkup::SKIPPED_IDS;
use quell_core::effect::EffectStart;
use quell_core::{
    Claim, ClaimedJob, Draw, EffectName, ErrorKind, JobState, Key, Outcome, Result, SettledAs,
    WorkerId,
};

use crate::scene::Scene;

/// The one job, as this worker is given it.
async fn start(rig: &Rig, worker: &str, draw: u64) -> ClaimedJob {
    let worker = WorkerId::new(worker).unwrap();
    let claim = Claim { worker, draw: Draw::new(draw), ..Rig::claim_of(1) };
    rig.claim_with(&claim).await.remove(0)
}

async fn begin(rig: &Rig, job: &ClaimedJob) -> Result<EffectStart> {
    let (name, key) = (EffectName::new("charge").unwrap(), Key::new("k").unwrap());
    rig.store.begin_effect(Some(rig.now()), &lease(job), &name, &key).await
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_a_worker_of_a_lost_time_line_ends_renews_and_records_nothing() {
    let (scene, restored) = (Scene::new(), Scene::new());
    let before = scene.rig().await;
    let back_up = format!("vacuum into '{}'", restored.path().display());
    sqlx::raw_sql(sqlx::AssertSqlSafe(back_up)).execute(&mut scene.connect().await).await.unwrap();
    // What the backup does not know of.
    before.trigger(plain("\"alice\"")).await;
    let alices = start(&before, "a", 0x12_3456_789a).await;

    let mut after = restored.rig().await;
    after.trigger(plain("\"bob\"")).await;
    let bobs = start(&after, "b", 0x6a_0000_0001).await;
    assert_eq!((alices.id, alices.attempt), (bobs.id, bobs.attempt), "the id is given again");

    assert_eq!(after.renew(lease(&alices)).await, None);
    let begun = begin(&after, &alices).await.map_err(|error| error.kind());
    assert_eq!(begun, Err(ErrorKind::IllegalMove));
    for outcome in [Outcome::succeeded(), Outcome::Released] {
        assert_eq!(after.settle(lease(&alices), outcome).await, SettledAs::Refused);
    }
    let job = after.job(bobs.id).await;
    assert_eq!((job.state, job.token), (JobState::Running, bobs.token));

    assert_eq!(after.renew(lease(&bobs)).await, Some(after.now() + Rig::LEASE));
    assert!(begin(&after, &bobs).await.is_ok());
    after.at(1).succeed(&bobs).await;

    restored.options().skip_ids().await.unwrap();
    let fresh = after.trigger(plain("1")).await.job().unwrap();
    assert_eq!(fresh.get(), bobs.id.get() + 1 + SKIPPED_IDS);
}
