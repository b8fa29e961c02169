//! Dedup keys as conditional rows of a table: taken with the job or not at all, by one of those that
//! race for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quell_conformance::rig::{key, plain, task};
use quell_core::dedup::Dedup;
use quell_core::{Batch, ErrorKind, JobId, NewTrigger, Receipt, Result, Steps};
use quell_engine::Engine;
use quell_portable::{MemoryTable, Partition};

use crate::between::{Fault, Two, at, claim, enqueue, names, plains, two};

/// What the rows of jobs and of dedup keys begin with: a step must write both in one commit.
const WRITTEN: [&str; 2] = ["j:", "d:"];
/// More calls than one step makes.
const MOST_CALLS: usize = 100;

fn keyed(payload: &str) -> NewTrigger {
    NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain(payload) }
}

/// Two triggers with one key between them.
fn batch() -> Batch {
    Batch { triggers: vec![plain("1"), plain("2")], dedup: Some(Dedup::new(key("d"))) }
}

/// One trigger and a batch, each with a commit that fails at its job and at its key.
fn both() -> impl Iterator<Item = (Batch, &'static str)> {
    let batches = || [Batch::one(keyed("1")), batch()];
    WRITTEN.into_iter().flat_map(move |written| batches().map(|batch| (batch, written)))
}

async fn try_enqueue(store: &impl Steps, batch: Batch) -> Result<Vec<Receipt>> {
    store.enqueue(at(1), vec![batch]).await?.pop().unwrap()
}

/// Two processes that have taken their ids: from here on a trigger writes its own rows alone.
async fn two_with_ids() -> Two {
    let two = two();
    plains(&two.first, 1).await;
    plains(&*two.second, 1).await;
    assert_eq!(two.second.claim(at(0), &claim("w", 10)).await.unwrap().jobs.len(), 2);
    two
}

fn accepted(receipts: &[Receipt]) -> Vec<JobId> {
    let accepted = receipts.iter().filter(|receipt| receipt.outcome() == "accepted");
    accepted.map(|receipt| receipt.job().unwrap()).collect()
}

/// Lets another process take the key before each call that a step makes, one call after the other.
async fn race_at_every_call(batch: impl Fn() -> Batch, jobs: usize) {
    for call in 0.. {
        assert!(call < MOST_CALLS, "the step never ends");
        let two = two_with_ids().await;
        let (second, theirs) = (Arc::clone(&two.second), batch());
        let (calls, answers) = (AtomicUsize::new(0), Arc::new(std::sync::Mutex::default()));
        let kept: Arc<std::sync::Mutex<Vec<Receipt>>> = Arc::clone(&answers);
        two.between.before(move |_| calls.fetch_add(1, Ordering::SeqCst) == call, async move {
            *kept.lock().unwrap() = try_enqueue(&*second, theirs).await.unwrap();
        });
        let mine = try_enqueue(&two.first, batch()).await.unwrap();
        if !two.between.has_come() {
            assert!(call > 1, "a step reads its key and writes it");
            return;
        }
        let theirs = answers.lock().unwrap().clone();
        let first = theirs[0].job().unwrap();
        assert_eq!(accepted(&theirs).len(), jobs, "call {call}: {theirs:?}");
        for receipt in &mine {
            assert_eq!(*receipt, Receipt::Duplicate { job: first }, "call {call}");
        }
        let started = two.first.claim(at(2), &claim("w", 10)).await.unwrap().jobs;
        let started: Vec<JobId> = started.iter().map(|job| job.id).collect();
        assert_eq!(started, accepted(&theirs), "call {call}: exactly these jobs run");
    }
}

#[tokio::test]
async fn r16_of_two_enqueuers_one_takes_the_key_at_every_interleaving() {
    race_at_every_call(|| Batch::one(keyed("1")), 1).await;
}

#[tokio::test]
async fn r17_of_two_batches_one_takes_the_key_at_every_interleaving() {
    race_at_every_call(batch, 2).await;
}

/// A commit that the table refuses writes neither the job nor its key.
#[tokio::test]
async fn r16_r17_a_refused_commit_burns_no_key() {
    for (again, written) in both() {
        let two = two_with_ids().await;
        let before = names(&two.table, "").await;
        two.between.fail(Fault::Refused, written);
        let refused = try_enqueue(&two.first, again.clone()).await.map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::Unavailable));
        assert_eq!(names(&two.table, "").await, before, "nothing was written");
        let count = again.triggers.len();
        let taken = try_enqueue(&*two.second, again).await.unwrap();
        assert_eq!(accepted(&taken).len(), count, "{taken:?}");
    }
}

/// A commit whose answer is lost wrote both: who tries again is a duplicate of that very job.
#[tokio::test]
async fn r01_r16_a_lost_answer_is_told_and_trying_again_makes_no_second_job() {
    for (again, written) in both() {
        let two = two_with_ids().await;
        two.between.fail(Fault::AnswerLost, written);
        let unknown = try_enqueue(&two.first, again.clone()).await.map_err(|error| error.kind());
        assert_eq!(unknown, Err(ErrorKind::UnknownOutcome));
        let count = again.triggers.len();
        let receipts = try_enqueue(&two.first, again).await.unwrap();
        let started = two.second.claim(at(2), &claim("w", 10)).await.unwrap().jobs;
        assert_eq!(started.len(), count, "{started:#?}");
        let job = started[0].id;
        assert_eq!(receipts, vec![Receipt::Duplicate { job }; count]);
    }
}

/// Names that would meet where their parts were only put together.
#[tokio::test]
async fn r16_keys_of_tasks_and_partitions_never_meet() {
    let tasks = ["t", "t:t", "t.t", "t-t", "t_t", "T"].map(task);
    let parts =
        ["t", ":", "::", "t:", ":t", "t:t", "/", "\\", "#", "?", "%3a", "=3a", "é", "e\u{301}"];
    let long = ["x".repeat(200), format!("{}y", "x".repeat(199))];
    let keys: Vec<&str> = parts.into_iter().chain(long.iter().map(String::as_str)).collect();
    let table = MemoryTable::new(quell_conformance::Rig::START);
    let stores =
        ["p", "p:", "p:t", "P"].map(|name| Engine::new(Partition::new(table.clone(), name)));
    let mut taken = Vec::new();
    for (place, store) in stores.iter().enumerate() {
        for task in &tasks {
            for name in &keys {
                let dedup = Some(Dedup::new(key(name)));
                let trigger = NewTrigger { dedup, task: task.clone(), ..plain("1") };
                let receipt = enqueue(store, 1, trigger.clone()).await;
                assert_eq!(receipt.outcome(), "accepted", "partition {place}, {task}, {name:?}");
                taken.push((store, trigger, receipt.job().unwrap()));
            }
        }
    }
    for (store, trigger, job) in taken {
        let dedup = trigger.dedup.clone();
        assert_eq!(enqueue(store, 2, trigger).await, Receipt::Duplicate { job }, "{dedup:?}");
    }
}
