//! Entries of jobs that have started before (R41) that an earlier build left behind, which knows no such
//! index.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use quell_conformance::rig::{fails, key, keyed, lease, plain, secs};
use quell_conformance::{Opened, Rig};
use quell_core::checkup::Checkup;
use quell_core::part::{Ids, Notifications};
use quell_core::{
    Capabilities, Job, JobId, NewTrigger, PartitionOrder, QueueSettings, Result, SettledAs,
};
use quell_engine::{
    Access, Backend, Beginning, Changes, Committed, Engine, Index, Maps, Row, RowName, Scan, Seen,
    Tally, Time,
};

use crate::over_maps::over_maps;

/// Maps whose commits leave that index as it is, as long as the flag says so.
#[derive(Debug)]
struct Earlier {
    maps: Maps,
    is_earlier: Arc<AtomicBool>,
}

over_maps!(Earlier {
    async fn commit(
        &self,
        tx: Self::Tx,
        mut changes: Changes,
        news: &Notifications,
    ) -> Result<Committed> {
        if self.is_earlier.load(Ordering::SeqCst) {
            changes.enter.retain(|(index, _)| !matches!(index, Index::Begun(_)));
            changes.leave.retain(|(index, ..)| !matches!(index, Index::Begun(_)));
        }
        self.maps.commit(tx, changes, news).await
    }
});

fn rig() -> (Rig, Arc<AtomicBool>) {
    let is_earlier = Arc::<AtomicBool>::default();
    let backend = Earlier { maps: Maps::new(Rig::START), is_earlier: Arc::clone(&is_earlier) };
    let store = Arc::new(Engine::new(backend));
    (Rig::new(Opened { store, guard: Box::new(()) }), is_earlier)
}

fn strict() -> QueueSettings {
    QueueSettings::default().partition_order(PartitionOrder::Strict)
}

fn within(trigger: NewTrigger) -> NewTrigger {
    NewTrigger { partition: Some(key("a")), ..trigger }
}

#[tokio::test]
async fn r41_an_entry_of_a_job_that_has_ended_holds_up_nobody() {
    for is_removed in [false, true] {
        let (mut rig, is_earlier) = rig();
        rig.trigger(within(plain("1"))).await;
        let job = rig.claim_one().await;
        rig.fail(&job, secs(5)).await;
        is_earlier.store(true, Ordering::SeqCst);
        let again = rig.at(5).claim_one().await;
        rig.succeed(&again).await;
        if is_removed {
            let now = quell_core::Retention::new(Some(secs(0)), Some(secs(0)));
            assert_eq!(rig.prune(9, &now, 9).await, 1);
        }
        is_earlier.store(false, Ordering::SeqCst);
        rig.at(10).set_queue(strict()).await;
        rig.trigger(within(plain("2"))).await;
        assert_eq!(rig.claim_one().await.payload.as_str(), "2", "removed: {is_removed}");
    }
}

#[tokio::test]
async fn r41_an_entry_of_a_window_that_has_moved_follows_it() {
    let (mut rig, is_earlier) = rig();
    rig.trigger(within(keyed("k"))).await;
    let job = rig.at(10).claim_one().await;
    rig.fail(&job, secs(20)).await;
    is_earlier.store(true, Ordering::SeqCst);
    // It joins, and is due at another time.
    rig.at(11).trigger(within(keyed("k"))).await;
    is_earlier.store(false, Ordering::SeqCst);
    rig.set_queue(strict()).await;
    rig.at(12).trigger(within(plain("2"))).await;
    for second in 13..29 {
        rig.at(second).claim_none().await;
    }
    let due = rig.job(job.id).await.window.due_at;
    let again = rig.at_time(due).claim_one().await;
    assert_eq!(again.id, job.id);
    let became = rig.settle(lease(&again), fails(secs(1), true)).await;
    assert_eq!(became, SettledAs::Dead);
    assert_eq!(rig.claim_one().await.payload.as_str(), "2");
}
