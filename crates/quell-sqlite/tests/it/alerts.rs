//! What alerts look at (R27), in files with many dead jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_conformance::rig::{fails, key, lease, plain, queue, secs};
use quell_conformance::{Opened, Rig};
use quell_core::alert::Overview;
use quell_core::{NewTrigger, QueueName};
use quell_sqlite::StepCounter;

use crate::scene::Scene;

/// Three jobs die, one of them in a partition, and then a number of another queue. What an overview
/// says, and how many steps it takes.
async fn overview_beside(loud: u64) -> (Overview, u64) {
    let (scene, steps) = (Scene::new(), StepCounter::default());
    let store = scene.options().count_steps(Arc::clone(&steps)).open().await.unwrap();
    let mut rig = Rig::new(Opened { store: Arc::new(store), guard: Box::new(()) });
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    rig.trigger(NewTrigger { partition: Some(key("p")), ..plain("3") }).await;
    for job in rig.claim().await {
        rig.settle(lease(&job), fails(secs(1), true)).await;
    }
    let other = QueueName::new("loud").unwrap();
    rig.trigger(NewTrigger { queue: other.clone(), ..plain("1") }).await;
    let mut db = scene.connect().await;
    sqlx::query(
        "with recursive n (n) as (select 1 union all select n + 1 from n where n < ?1)
         insert into quell_job (lane_id, task_id, state, due_at, first_at, ended_at, payload)
         select j.lane_id, j.task_id, 3, 0, 0, j.due_at + n, '1'
           from n, quell_job j where j.state = 0",
    )
    .bind(i64::try_from(loud).unwrap())
    .execute(&mut db)
    .await
    .unwrap();
    scene.execute("update quell_recount set wrong = 0").await;
    let now = Some(rig.at(1_000_000).now());
    rig.store.overview(now).await.unwrap();
    let before = steps.load(Ordering::Relaxed);
    let overview = rig.store.overview(now).await.unwrap();
    (overview, steps.load(Ordering::Relaxed) - before)
}

#[tokio::test]
async fn r27_a_loud_queue_hides_no_quiet_one() {
    let (small, few) = overview_beside(Overview::MOST + 2_000).await;
    let (large, more) = overview_beside(4 * Overview::MOST).await;
    assert!(more < few + few / 10, "{few} steps, and {more} with four times as many dead jobs");
    for overview in [small, large] {
        let dead = |name: &QueueName| {
            let lane = overview.lanes.iter().find(|lane| lane.queue == *name).unwrap();
            lane.dead
        };
        assert_eq!(dead(&queue()), 3, "{overview:?}");
        assert!(dead(&QueueName::new("loud").unwrap()) >= Overview::MOST, "{overview:?}");
    }
}
