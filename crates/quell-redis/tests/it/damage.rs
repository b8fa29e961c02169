//! Rows that cannot be decoded are set aside, and harm no other job.

use async_trait::async_trait;
use quell_conformance::unreadable::Damage;
use quell_conformance::{Opened, Rig};
use quell_core::{JobId, JobState, UnreadablePage};
use redis::AsyncCommands;
use serde_json::Value;
use std::sync::Arc;

use crate::place::Place;

/// Where the reason of the due time is in a job's row, and what no build has written there.
const REASON: usize = 6;
const UNKNOWN: i64 = 70;

/// Rows of which the reason is one that this build does not know.
struct Reasons(Place);

#[async_trait]
impl Damage for Reasons {
    async fn damage(&self, job: JobId) {
        self.add(job, UNKNOWN).await;
    }

    async fn repair(&self, job: JobId) {
        self.add(job, -UNKNOWN).await;
    }
}

impl Reasons {
    async fn add(&self, job: JobId, by: i64) {
        let mut db = self.0.connect().await;
        for hash in ["jobs", "unreadable-rows"] {
            for key in self.keys(hash).await {
                let row: Option<Vec<u8>> = db.hget(&key, job.to_string()).await.unwrap();
                let Some(row) = row else { continue };
                let mut fields: Vec<Value> = rmp_serde::from_slice(&row).unwrap();
                let reason = fields[REASON].as_i64().unwrap() + by;
                fields[REASON] = reason.into();
                let row = rmp_serde::to_vec(&fields).unwrap();
                let _: () = db.hset(&key, job.to_string(), row).await.unwrap();
            }
        }
    }

    async fn keys(&self, hash: &str) -> Vec<String> {
        let mut db = self.0.connect().await;
        db.keys(format!("{}:*:{hash}", self.0.prefix)).await.unwrap()
    }
}

async fn damageable() -> (Rig, Reasons) {
    let place = Place::shared();
    let store = Arc::new(place.open().await);
    (Rig::new(Opened { store, guard: Box::new(()) }), Reasons(place))
}

quell_conformance::unreadable_scenes!(damageable());

/// A row that is no MessagePack at all says nothing of its job: it leaves every index.
#[tokio::test]
async fn r25_rubbish_leaves_every_index_and_can_be_discarded() {
    let (mut rig, damage) = damageable().await;
    let bad = rig.trigger(quell_conformance::rig::keyed("bad")).await.job().unwrap();
    let good = rig.trigger(quell_conformance::rig::keyed("good")).await.job().unwrap();
    for key in damage.keys("jobs").await {
        let mut db = damage.0.connect().await;
        let _: () = db.hset(&key, bad.to_string(), b"\xc1rubbish").await.unwrap();
    }
    assert_eq!(rig.at(10).claim_one().await.id, good);
    let aside = rig.store.unreadable(&UnreadablePage::default()).await.unwrap();
    assert_eq!((aside.len(), aside[0].id, aside[0].was), (1, bad, None));
    assert_eq!(rig.next_due().await.due, None);
    assert_eq!(rig.store.restore(Some(rig.now()), &[bad]).await.unwrap(), []);
    let gone = rig.store.discard(Some(rig.now()), &[bad], "rubbish").await.unwrap();
    assert_eq!(gone, [bad]);
    assert_eq!(rig.job(good).await.state, JobState::Running);
    assert_eq!(rig.store.unreadable(&UnreadablePage::default()).await.unwrap(), []);
}
