//! Processes that lose what they hold: another one takes the job over, or the same one comes back.

use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{keyed, lease, secs};
use quell_core::{AttemptOutcome, ClaimedJob, JobState, Outcome, SettledAs};
use quell_portable::{Range, Row, Table};
use tokio::time::sleep;

use crate::timed::{Process, Scene};

/// All rows, with their versions.
async fn rows(scene: &Scene) -> Vec<Row> {
    scene.table.table.range("p", &Range::of(""), usize::MAX).await.unwrap().rows
}

/// What a worker starts once the message and the job have come to it.
async fn takes_over(process: &mut Process, from: &ClaimedJob) -> ClaimedJob {
    loop {
        if let Some(job) = process.woken().await.pop() {
            assert_eq!(job.id, from.id);
            assert_ne!(job.token, from.token);
            return job;
        }
    }
}

/// It ended once, in its second attempt.
async fn ended_once(rig: &Rig, job: &ClaimedJob) {
    assert_eq!(rig.job(job.id).await.state, JobState::Succeeded);
    let attempts = rig.store.attempts(job.id).await.unwrap();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(AttemptOutcome::LeaseExpired), Some(AttemptOutcome::Succeeded)]);
}

/// Published: the lock and the row are lost in mid-run; the run is cancelled and can delete nothing.
#[tokio::test(start_paused = true)]
async fn r21_a_run_that_lost_its_lock_and_its_lease_stops_and_changes_nothing() {
    let scene = Scene::new();
    let (mut client, mut first) = (scene.client(), scene.worker());
    client.trigger(keyed("k")).await;
    scene.at(10, &mut [&mut client, &mut first.rig]);
    let run = first.woken_one().await;
    // It runs on without its messages and renewals, as where its network is cut.
    let Process { rig: mut first, wakeups } = first;
    drop(wakeups);
    sleep(secs(30)).await;
    scene.timer.lose_locks();
    let mut other = scene.worker();
    scene.at(41, &mut [&mut client, &mut first, &mut other.rig]);
    let second = takes_over(&mut other, &run).await;

    // The other holds a message.
    scene.settles_at(1).await;
    let (before, waiting) = (rows(&scene).await, scene.timer.waiting());
    assert_eq!(first.renew(lease(&run)).await, None, "its worker cancels the run's token");
    for outcome in [Outcome::succeeded(), Outcome::Released] {
        assert_eq!(first.settle(lease(&run), outcome).await, SettledAs::Refused);
    }
    assert_eq!(rows(&scene).await, before);
    sleep(secs(20)).await;
    assert_eq!(scene.timer.waiting(), waiting);
    assert!(other.rig.renew(lease(&second)).await.is_some());

    other.rig.succeed(&second).await;
    ended_once(&other.rig, &run).await;
    scene.at(120, &mut [&mut client, &mut other.rig]);
    other.works_until(&scene, 0).await;
}

/// Published: a holder that is restarted finds its row.
#[tokio::test(start_paused = true)]
async fn r21_a_worker_that_is_restarted_under_its_name_finds_its_job() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    client.trigger(keyed("k")).await;
    scene.at(10, &mut [&mut client, &mut worker.rig]);
    let run = worker.woken_one().await;
    let was = worker.rig.store.attempts(run.id).await.unwrap().remove(0).worker;
    drop(worker);
    // What it had spawned ends with it.
    sleep(Duration::from_millis(10)).await;
    scene.at(41, &mut [&mut client]);
    let mut again = scene.worker();
    again.rig.at(41);
    let second = takes_over(&mut again, &run).await;
    let is = again.rig.store.attempts(run.id).await.unwrap().remove(1).worker;
    assert_eq!(is, was, "it has the same name");
    again.rig.succeed(&second).await;
    ended_once(&again.rig, &run).await;
    scene.at(120, &mut [&mut client, &mut again.rig]);
    again.works_until(&scene, 0).await;
}
