//! What alerts look at (R27), in schemas with many dead jobs.

use quell_conformance::Rig;
use quell_conformance::rig::{fails, lease, plain, queue, secs};
use quell_core::alert::Overview;
use quell_core::{NewTrigger, QueueName};

use crate::scene::Scene;

const CALLS: u64 = 5;

/// Three jobs die, and then `loud` jobs of another queue. Returns an overview, and how many rows of
/// ended jobs one reads. Its plan is made while there are none.
async fn overview_beside(loud: u64) -> (Overview, u64) {
    let scene = Scene::new();
    let rig: Rig = scene.rig().await;
    scene.sql("analyze quell.ended; analyze quell.lane");
    for _ in 0..9 {
        rig.store.overview(None).await.unwrap();
    }
    for n in 0..3 {
        rig.trigger(plain(&n.to_string())).await;
    }
    for job in rig.claim().await {
        rig.settle(lease(&job), fails(secs(1), true)).await;
    }
    rig.trigger(NewTrigger { queue: QueueName::new("loud").unwrap(), ..plain("1") }).await;
    scene.sql(&format!(
        "insert into quell.ended (id, due_at, first_at, ended_at, state, lane_id, task_id, payload)
         select -n, 0, 0, due_at + n, 3, lane_id, task_id, '1'
           from quell.job, generate_series(1, {loud}) n"
    ));
    let mut overview = rig.store.overview(None).await.unwrap();
    for _ in 1..CALLS {
        overview = rig.store.overview(None).await.unwrap();
    }
    scene.close(rig).await;
    (overview, scene.rows_read("ended") / CALLS)
}

#[tokio::test]
async fn r27_a_loud_queue_hides_no_quiet_one() {
    let (small, few) = overview_beside(Overview::MOST + 2_000).await;
    let (large, more) = overview_beside(4 * Overview::MOST).await;
    for overview in [small, large] {
        let dead = |name: &QueueName| {
            let lane = overview.lanes.iter().find(|lane| lane.queue == *name).unwrap();
            lane.dead
        };
        assert_eq!(dead(&queue()), 3, "{overview:?}");
        assert_eq!(dead(&QueueName::new("loud").unwrap()), Overview::MOST, "{overview:?}");
    }
    assert!(more < few + few / 10, "{few} rows, and {more} with four times as many dead jobs");
    assert!(more < 2 * Overview::MOST, "{more} rows");
}
