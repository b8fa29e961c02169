//! Random changes by callers, workers and operators, for tests of what a store derives from its jobs, such
//! as their counts.
//!
//! They draw from the thread's generator.

use std::sync::Arc;
use std::time::Duration;

use quell_core::{
    Batch, Claim, Draw, ErrorKind, JobFilter, Key, Lease, NewTrigger, Outcome, Priority, QueueName,
    QueueSettings, Redrive, Retention, Settlement, Store,
};

use crate::rig::{Rig, fails, keyed, lease, plain, queue, task};
use crate::suite::transactions::{Connection, Success};

/// A trigger of one of two tasks, with or without a key and a partition.
#[must_use]
pub fn some_trigger() -> NewTrigger {
    let mut trigger =
        if fastrand::bool() { keyed(&format!("k{}", fastrand::u8(..4))) } else { plain("1") };
    trigger.task = task(&format!("t{}", fastrand::u8(..2)));
    trigger.priority = Priority::from(fastrand::u8(..2));
    if fastrand::u8(..4) == 0 {
        trigger.queue = QueueName::new("other").expect("a valid name");
    }
    if fastrand::u8(..4) == 0 {
        trigger.partition = Key::new(format!("p{}", fastrand::u8(..2))).ok();
    }
    trigger
}

/// A claim of both tasks.
fn some_claim() -> Claim {
    let draw = Draw::new(fastrand::u64(..));
    Claim {
        draw,
        tasks: Arc::from([task("t0"), task("t1")]),
        ..Rig::claim_of(fastrand::usize(1..9))
    }
}

/// Any change that a caller, a worker or an operator makes.
pub async fn act(store: &dyn Store, db: &mut dyn Connection) {
    match fastrand::u8(..13) {
        0..=2 => {
            let triggers = (0..fastrand::usize(1..5)).map(|_| some_trigger()).collect();
            let batch = Batch { triggers, dedup: None };
            let accepted = store.enqueue(None, vec![batch]).await.expect("the store answers");
            accepted.into_iter().for_each(|receipts| drop(receipts.expect("it is accepted")));
        }
        3 => {
            let one = || Batch::one(NewTrigger { task: task("t0"), ..plain("1") });
            store.enqueue(None, vec![one(), one()]).await.expect("the store answers");
        }
        4..=8 => settle_some(store, db).await,
        9 | 10 => {
            let filter = JobFilter::default().limit(20);
            let jobs = store.jobs(&filter).await.expect("the store lists");
            let Some(job) = fastrand::choice(jobs) else { return };
            // Another call may have moved it.
            if fastrand::bool() {
                let _moved = store.cancel(None, job.id, "test").await;
            } else {
                let _moved = store.redrive(None, &Redrive::from(job.id)).await;
            }
        }
        11 => {
            let retention = Retention::new(Some(Duration::ZERO), Some(Duration::ZERO));
            store.prune(None, &retention, 5).await.expect("the store prunes");
        }
        _ => {
            let concurrency = fastrand::bool().then_some(50);
            let partition_concurrency = fastrand::bool().then_some(2);
            let settings =
                QueueSettings { concurrency, partition_concurrency, ..QueueSettings::default() };
            store.set_queue(None, &queue(), &settings).await.expect("the store sets queues");
        }
    }
}

async fn settle_some(store: &dyn Store, db: &mut dyn Connection) {
    let claimed = match store.claim(None, &some_claim()).await {
        Ok(claimed) => claimed,
        Err(error) if db.excuses(&error) => return,
        Err(error) => panic!("{error}"),
    };
    let mut ends = Vec::new();
    for job in &claimed.jobs {
        let outcome = match fastrand::u8(..8) {
            0 => fails(Duration::ZERO, false),
            1 => fails(Duration::ZERO, true),
            2 => Outcome::Released,
            3 | 4 if has_ended(store, db, lease(job)).await => continue,
            _ => Outcome::succeeded(),
        };
        ends.push(Settlement { lease: lease(job), outcome });
    }
    // Sometimes apart: stores have a faster way for several that succeeded.
    if fastrand::bool() {
        store.settle(None, ends).await.expect("the store settles");
    } else {
        for end in ends {
            store.settle(None, vec![end]).await.expect("the store settles");
        }
    }
}

/// Settles and triggers in a transaction, which may be rolled back; returns whether the attempt is over.
async fn has_ended(store: &dyn Store, db: &mut dyn Connection, lease: Lease) -> bool {
    let location = store.location().expect("the store has transactions");
    db.begin().await;
    if let Err(error) = db.settle(location, Success { lease, now: None, output: None }).await {
        // Another actor has cancelled it since.
        assert_eq!(error.kind(), ErrorKind::IllegalMove, "{error}");
        db.end(false).await;
        return true;
    }
    let batch = Batch::one(some_trigger());
    db.trigger(location, &batch).await.expect("the store takes triggers");
    let commits = fastrand::bool();
    db.end(commits).await;
    commits
}
