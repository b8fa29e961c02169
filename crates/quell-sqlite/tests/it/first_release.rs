//! A file that the first release wrote opens, and each promise that it holds is kept.
//!
//! Invariant: the fixture never changes. It is the dump of a file in which jobs wait, run, have failed,
//! died and succeeded.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_conformance::Rig;
use quell_conformance::rig::{key, keyed_with, plain, secs, task};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::Idempotency;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    Claim, Fold, JobId, JobState, NewTrigger, Payload, QueueName, Receipt, Timestamp, WorkerId,
};

use crate::scene::Scene;

const FILE: &str = include_str!("first_release.sql");

/// Two minutes after the server was killed.
const NOW: i64 = 1_795_699_400_000_000;
const HOUR: i64 = 3_600_000_000;

fn of(task_name: &str, trigger: NewTrigger) -> NewTrigger {
    NewTrigger { task: task(task_name), queue: QueueName::new("default").unwrap(), ..trigger }
}

async fn opened() -> (Scene, Rig) {
    let scene = Scene::new();
    scene.execute(FILE).await;
    let mut rig = scene.rig().await;
    rig.at_time(Timestamp::from_micros(NOW));
    (scene, rig)
}

fn claim_of(tasks: &[&str]) -> Claim {
    let tasks: Vec<_> = tasks.iter().copied().map(task).collect();
    let (queue, worker) = (QueueName::new("default").unwrap(), WorkerId::new("w").unwrap());
    Claim { queue, tasks: Arc::from(tasks), worker, ..Rig::claim_of(10) }
}

#[tokio::test]
async fn a_file_of_the_first_release_opens_with_all_its_jobs() {
    let (_scene, rig) = opened().await;
    let mut states = BTreeMap::new();
    for job in rig.jobs().await {
        states.entry(job.state.name()).or_insert_with(Vec::new).push(job.id.get());
    }
    let expected = [
        ("dead", vec![6]),
        ("running", vec![9]),
        ("scheduled", vec![3, 4, 5, 7, 10]),
        ("succeeded", vec![1, 2, 8]),
    ];
    assert_eq!(states, BTreeMap::from(expected));
    let counts = rig.store.counts().await.unwrap();
    assert_eq!(counts.iter().map(|count| count.jobs).sum::<u64>(), 10);
    let dead = rig.job(JobId::new(6)).await;
    assert!(dead.error.unwrap().contains("the address does not exist"));
    let queues = rig.store.queues().await.unwrap();
    let bills = queues.iter().find(|queue| queue.name.as_str() == "bills").unwrap();
    assert_eq!(bills.settings.partition_concurrency, Some(2));
    assert_eq!(bills.settings.rate.map(|rate| rate.limit), Some(100));
}

#[tokio::test]
async fn r16_r19_keys_of_the_first_release_hold() {
    let (_scene, rig) = opened().await;
    let idempotency = Some(Idempotency { key: key("order-7"), retention: secs(86_400) });
    let again = rig.trigger(of("plain", NewTrigger { idempotency, ..plain("2") })).await;
    let Receipt::Existing { job, output, .. } = again else { panic!("{again:?}") };
    assert_eq!((job, output.unwrap().as_str()), (JobId::new(2), r#"{"got":2}"#));
    let dedup = Some(Dedup { key: key("daily"), until: HoldUntil::Elapsed(secs(3_600)) });
    let again = rig.trigger(of("plain", NewTrigger { dedup, ..plain("4") })).await;
    assert_eq!(again, Receipt::Duplicate { job: JobId::new(4) });
}

#[tokio::test]
async fn r07_r10_r12_windows_and_retries_of_the_first_release_run() {
    let (_scene, mut rig) = opened().await;
    let debounce = Debounce::new(Thresholds::new(secs(3_600), secs(7_200)).unwrap());
    let join = keyed_with("a", debounce, Fold::Collect { cap: 1_000 }, r#"{"k":"a","n":3}"#);
    let joined = rig.trigger(of("gather", join)).await;
    assert!(matches!(joined, Receipt::Debounced { job, triggers: 3, .. } if job.get() == 5));
    // R11: the key of the job that runs holds its next window back.
    rig.at_time(Timestamp::from_micros(NOW + HOUR / 2));
    assert!(rig.claim_with(&claim_of(&["gather", "flaky", "stuck"])).await.is_empty());
    rig.at_time(Timestamp::from_micros(NOW + HOUR));
    let started = rig.claim_with(&claim_of(&["gather", "flaky"])).await;
    let mut got: Vec<_> =
        started.iter().map(|job| (job.id.get(), job.attempt, job.payload.as_str())).collect();
    got.sort_unstable();
    let all = r#"[{"k":"a","n":1},{"k":"a","n":2},{"k":"a","n":3}]"#;
    assert_eq!(got, [(5, 1, all), (7, 2, r#""later""#)]);
}

#[tokio::test]
async fn r21_r26_leases_and_dead_jobs_of_the_first_release_are_kept() {
    let (_scene, mut rig) = opened().await;
    rig.redrive(JobId::new(6)).await.unwrap();
    let started = rig.claim_with(&claim_of(&["picky", "stuck"])).await;
    assert_eq!(started.iter().map(|job| job.id.get()).collect::<Vec<_>>(), [6]);
    rig.succeed(&started[0]).await;
    // The worker was killed: its lease expires, and the window that waited absorbs the job (R24).
    rig.at_time(Timestamp::from_micros(NOW + 2 * HOUR));
    let expired = rig.reap().await;
    assert_eq!(expired.len(), 1, "{expired:?}");
    assert_ne!(rig.job(JobId::new(9)).await.state, JobState::Running);
    assert_eq!(rig.job(JobId::new(10)).await.state, JobState::Scheduled);
}

#[tokio::test]
async fn r36_a_schedule_of_the_first_release_fires_its_next_tick() {
    let (_scene, rig) = opened().await;
    // 03:00 in Berlin, as the file says.
    let tick = Timestamp::from_micros(1_795_744_800_000_000);
    let ticked = rig.store.tick(Some(tick), 9).await.unwrap();
    assert_eq!(ticked.fired.len(), 1);
    let job = rig.jobs().await.into_iter().max_by_key(|job| job.id).unwrap();
    assert_eq!(job.payload, Payload::from_text("8").unwrap());
}
