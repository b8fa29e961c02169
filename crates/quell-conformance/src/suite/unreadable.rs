//! Rows that cannot be decoded (R25): one such row harms itself only.
//!
//! Damage is a store's own, so these scenes are no part of the suite's list: a store's tests call
//! each with a [`Damage`] that knows how its rows look.

use async_trait::async_trait;
use quell_core::{
    Batch, Fold, JobFilter, JobId, JobState, NewTrigger, QueueSettings, Receipt, SettledAs,
    Settlement, UnreadablePage,
};

use crate::rig::{Rig, debounce, fails, key, keyed_with, lease, plain, queue, secs};

/// What makes a row undecodable for this build, and what a newer build would read again.
#[async_trait]
pub trait Damage: Send + Sync {
    /// Makes a job's row undecodable; nothing that it holds is lost.
    async fn damage(&self, job: JobId);
    /// Undoes [`Damage::damage`].
    async fn repair(&self, job: JobId);
}

/// Every scene, by the name of its test.
#[macro_export]
macro_rules! unreadable_scenes {
    ($rig:expr) => {
        $crate::unreadable_scenes!($rig;
            r25_an_unreadable_job_stops_no_claim,
            r25_an_unreadable_window_stops_no_trigger,
            r25_an_unreadable_successor_stops_no_settlement,
            r25_an_unreadable_running_job_stops_no_reaping,
            r25_a_settlement_of_an_unreadable_job_is_refused_and_no_other,
            r25_an_unreadable_job_is_in_no_list_of_jobs_and_in_its_own,
            r25_an_unreadable_job_can_be_discarded,
            r25_r27_unreadable_jobs_are_counted_for_alerts,
            r25_an_unreadable_window_is_restored_into_the_newer_one,
            r25_what_cannot_be_decoded_stays_aside,
            r19_the_key_of_an_unreadable_job_answers_with_its_state,
            r31_an_unreadable_running_job_gives_its_slot_back,
        );
    };
    ($rig:expr; $($scene:ident,)*) => {
        $(
            #[tokio::test]
            async fn $scene() {
                let (rig, damage) = $rig.await;
                $crate::suite::unreadable::$scene(rig, &damage).await;
            }
        )*
    };
}

/// The ids that are set aside.
async fn set_aside(rig: &Rig) -> Vec<JobId> {
    let page = UnreadablePage::default();
    let jobs = rig.store.unreadable(&page).await.expect("the store lists unreadable jobs");
    jobs.into_iter().map(|job| job.id).collect()
}

/// A trigger that a store cannot take without decoding its key's window.
fn merged(k: &str) -> NewTrigger {
    keyed_with(k, debounce(), Fold::Merge, "{}")
}

/// Triggers once; returns the job.
async fn trigger(rig: &Rig, k: &str) -> JobId {
    rig.trigger(merged(k)).await.job().expect("accepted")
}

async fn restore(rig: &Rig, ids: &[JobId]) -> Vec<JobId> {
    rig.store.restore(Some(rig.now()), ids).await.expect("the store restores")
}

/// The rest of the lane is handed out.
pub async fn r25_an_unreadable_job_stops_no_claim(mut rig: Rig, damage: &dyn Damage) {
    let bad = trigger(&rig, "bad").await;
    let others = [trigger(&rig, "a").await, trigger(&rig, "b").await];
    damage.damage(bad).await;
    rig.at(10);
    let claimed: Vec<JobId> = rig.claim().await.iter().map(|job| job.id).collect();
    assert!(others.iter().all(|job| claimed.contains(job)), "{claimed:?}");
    if claimed.contains(&bad) {
        // A claim that needs nothing that is damaged may start it.
        assert_eq!(set_aside(&rig).await, []);
        return;
    }
    assert_eq!(set_aside(&rig).await, [bad]);
    damage.repair(bad).await;
    assert_eq!(restore(&rig, &[bad]).await, [bad]);
    assert_eq!(set_aside(&rig).await, []);
    assert_eq!(rig.claim_one().await.id, bad);
}

/// A trigger of its key opens another window, and other callers of the same call are not harmed.
pub async fn r25_an_unreadable_window_stops_no_trigger(rig: Rig, damage: &dyn Damage) {
    let bad = trigger(&rig, "bad").await;
    damage.damage(bad).await;
    let batches = vec![Batch::one(merged("a")), Batch::one(merged("bad")), Batch::one(plain("1"))];
    let answers = rig.store.enqueue(Some(rig.now()), batches).await.expect("the store accepts");
    for answer in answers {
        let receipts = answer.expect("every batch is accepted");
        assert!(matches!(receipts[..], [Receipt::Accepted { .. }]), "{receipts:?}");
    }
    assert_eq!(set_aside(&rig).await, [bad]);
}

/// A job that fails beside an unreadable window of its key goes back by itself; the settlements that
/// came in the same call count.
pub async fn r25_an_unreadable_successor_stops_no_settlement(mut rig: Rig, damage: &dyn Damage) {
    trigger(&rig, "bad").await;
    trigger(&rig, "a").await;
    let jobs = rig.at(10).claim().await;
    let successor = trigger(&rig, "bad").await;
    damage.damage(successor).await;
    let settlements: Vec<Settlement> = jobs
        .iter()
        .map(|job| Settlement { lease: lease(job), outcome: fails(secs(5), false) })
        .collect();
    let settled = rig.store.settle(Some(rig.now()), settlements).await.expect("the store settles");
    let back = |one: &quell_core::Settled| matches!(one.became, SettledAs::Scheduled { .. });
    assert!(settled.len() == 2 && settled.iter().all(back), "{settled:?}");
    assert_eq!(set_aside(&rig).await, [successor]);
    assert_eq!(rig.at(15).claim().await.len(), 2);
}

/// Leases that expired beside its own are taken back.
pub async fn r25_an_unreadable_running_job_stops_no_reaping(mut rig: Rig, damage: &dyn Damage) {
    let (bad, good) = (trigger(&rig, "bad").await, trigger(&rig, "a").await);
    rig.at(10).claim().await;
    damage.damage(bad).await;
    let reaped: Vec<JobId> = rig.at(100).reap().await.iter().map(|one| one.lease.job).collect();
    assert_eq!(reaped, [good]);
    assert_eq!(set_aside(&rig).await, [bad]);
    damage.repair(bad).await;
    assert_eq!(restore(&rig, &[bad]).await, [bad]);
    let job = rig.job(bad).await;
    assert_eq!((job.state, job.attempt), (JobState::Scheduled, 0), "no attempt was spent");
    assert_eq!(rig.claim().await.len(), 2);
}

/// Its failure cannot be written; that of another job in the same call is.
pub async fn r25_a_settlement_of_an_unreadable_job_is_refused_and_no_other(
    mut rig: Rig,
    damage: &dyn Damage,
) {
    let bad = trigger(&rig, "bad").await;
    trigger(&rig, "a").await;
    let jobs = rig.at(10).claim().await;
    damage.damage(bad).await;
    let settlements: Vec<Settlement> = jobs
        .iter()
        .map(|job| Settlement { lease: lease(job), outcome: fails(secs(5), false) })
        .collect();
    let settled = rig.store.settle(Some(rig.now()), settlements).await.expect("the store settles");
    for one in settled {
        assert_eq!(one.became == SettledAs::Refused, one.lease.job == bad, "{one:?}");
    }
    assert_eq!(set_aside(&rig).await, [bad]);
}

/// It does not hide the others, and counts under a state of its own.
pub async fn r25_an_unreadable_job_is_in_no_list_of_jobs_and_in_its_own(
    rig: Rig,
    damage: &dyn Damage,
) {
    let (bad, good) = (trigger(&rig, "bad").await, trigger(&rig, "a").await);
    damage.damage(bad).await;
    assert_eq!(rig.list(&JobFilter::default()).await, [good]);
    let read = rig.store.job(bad).await.expect_err("its row cannot be decoded");
    assert_eq!(read.unreadable_job(), Some(bad), "{read}");
    trigger(&rig, "bad").await;
    let aside = rig.store.unreadable(&UnreadablePage::default()).await.expect("listed").remove(0);
    assert_eq!((aside.id, aside.queue, aside.was), (bad, Some(queue()), Some(JobState::Scheduled)));
    assert!(aside.reason.contains(&format!("job {bad}")), "{}", aside.reason);
    let older = UnreadablePage { before: Some(bad), limit: 1 };
    assert_eq!(rig.store.unreadable(&older).await.expect("listed"), []);
    let counts = rig.store.counts().await.expect("counted");
    let counted = counts.iter().find(|counts| counts.state == JobState::Unreadable);
    assert_eq!(counted.map(|counts| counts.jobs), Some(1), "{counts:?}");
}

/// Alerts count such jobs by queue and task, apart from the dead ones, until they are restored.
pub async fn r25_r27_unreadable_jobs_are_counted_for_alerts(rig: Rig, damage: &dyn Damage) {
    let counts = async |rig: &Rig| {
        let seen = rig.store.overview(Some(rig.now())).await.expect("looks");
        let lanes: Vec<_> = seen.lanes.iter().map(|lane| (lane.dead, lane.unreadable)).collect();
        (seen.unreadable, lanes)
    };
    let dead = rig.trigger(plain("1")).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    assert_eq!(run.id, dead);
    let broken = trigger(&rig, "bad").await;
    assert_eq!(counts(&rig).await, (0, vec![(1, 0)]));
    damage.damage(broken).await;
    trigger(&rig, "bad").await;
    assert_eq!(counts(&rig).await, (1, vec![(1, 1)]));
    damage.repair(broken).await;
    assert_eq!(restore(&rig, &[broken]).await, [broken]);
    assert_eq!(counts(&rig).await, (0, vec![(1, 0)]));
}

/// An operator who gives it up removes it with all that belongs to it.
pub async fn r25_an_unreadable_job_can_be_discarded(rig: Rig, damage: &dyn Damage) {
    let bad = trigger(&rig, "bad").await;
    damage.damage(bad).await;
    trigger(&rig, "bad").await;
    let gone = rig.store.discard(Some(rig.now()), &[bad], "damaged").await.expect("discards");
    assert_eq!(gone, [bad]);
    assert_eq!(set_aside(&rig).await, []);
    assert_eq!(rig.store.job(bad).await.expect("the store reads"), None);
}

/// A key has one open window, also when an older one comes back.
pub async fn r25_an_unreadable_window_is_restored_into_the_newer_one(
    mut rig: Rig,
    damage: &dyn Damage,
) {
    let bad = trigger(&rig, "bad").await;
    damage.damage(bad).await;
    let newer = trigger(&rig, "bad").await;
    damage.repair(bad).await;
    assert_eq!(restore(&rig, &[bad]).await, [bad]);
    assert_eq!(rig.job(bad).await.state, JobState::Absorbed);
    let run = rig.at(10).claim_one().await;
    assert_eq!((run.id, run.triggers), (newer, 2));
}

/// Trying to restore what is still unreadable changes nothing.
pub async fn r25_what_cannot_be_decoded_stays_aside(rig: Rig, damage: &dyn Damage) {
    let bad = trigger(&rig, "bad").await;
    damage.damage(bad).await;
    let good = trigger(&rig, "bad").await;
    assert_eq!(restore(&rig, &[bad, good]).await, []);
    assert_eq!(set_aside(&rig).await, [bad]);
}

/// A caller who asks again learns how the job stands.
pub async fn r19_the_key_of_an_unreadable_job_answers_with_its_state(
    rig: Rig,
    damage: &dyn Damage,
) {
    let asked = || {
        let mut trigger = merged("bad");
        trigger.idempotency = Some(quell_core::idempotency::Idempotency::new(key("order-7")));
        trigger
    };
    let bad = rig.trigger(asked()).await.job().expect("accepted");
    damage.damage(bad).await;
    let again = rig.trigger(asked()).await;
    let Receipt::Existing { job, state, .. } = again else { panic!("{again:?}") };
    assert_eq!((job, state), (bad, JobState::Unreadable));
    let result = rig.store.result(bad).await.expect("the store reads").expect("known");
    assert_eq!(result.state, JobState::Unreadable);
}

/// What it held of its queue's limit is free.
pub async fn r31_an_unreadable_running_job_gives_its_slot_back(mut rig: Rig, damage: &dyn Damage) {
    rig.set_queue(QueueSettings { concurrency: Some(1), ..QueueSettings::default() }).await;
    let bad = trigger(&rig, "bad").await;
    rig.at(10).claim().await;
    let good = trigger(&rig, "a").await;
    damage.damage(bad).await;
    rig.at(100).reap().await;
    assert_eq!(set_aside(&rig).await, [bad]);
    assert_eq!(rig.claim_one().await.id, good);
}
