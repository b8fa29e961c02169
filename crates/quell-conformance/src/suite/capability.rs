//! What a store may lack, by name, and what it does about it (R18): a clear refusal before anything
//! is written, or the fallback that `quell_core::Capabilities` documents.
//!
//! A rule test that needs what a store does not claim is not run on it; the test here is.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use quell_core::dedup::Dedup;
use quell_core::{
    Batch, Capabilities, Claim, Error, ErrorKind, JobFilter, NewTrigger, QueueName, QueueSettings,
    Receipt, Result,
};

use crate::rig::{Rig, key, keyed, plain, secs};

/// One field of [`Capabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Dedup keys are exact.
    Dedup,
    /// Triggers inside the caller's own transaction.
    Transactions,
    /// Wake-ups are pushed.
    Push,
    /// Higher priority first.
    Priorities,
    /// Limits hold across processes.
    ExactLimits,
    /// Jobs can be listed and counted.
    Listing,
    /// Keys and batches are one across queues.
    AcrossQueues,
    /// Batches are as large as a client takes.
    LargeBatches,
}

impl Capability {
    /// All of them.
    pub const ALL: [Capability; 8] = [
        Capability::Dedup,
        Capability::Transactions,
        Capability::Push,
        Capability::Priorities,
        Capability::ExactLimits,
        Capability::Listing,
        Capability::AcrossQueues,
        Capability::LargeBatches,
    ];

    /// The field's name, which errors carry.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Capability::Dedup => "dedup",
            Capability::Transactions => "transactions",
            Capability::Push => "push",
            Capability::Priorities => "priorities",
            Capability::ExactLimits => "exact_limits",
            Capability::Listing => "listing",
            Capability::AcrossQueues => "across_queues",
            Capability::LargeBatches => "large_batches",
        }
    }

    /// Whether a store claims it.
    #[must_use]
    pub const fn is_claimed(self, claims: &Capabilities) -> bool {
        match self {
            Capability::Dedup => claims.dedup,
            Capability::Transactions => claims.transactions,
            Capability::Push => claims.push,
            Capability::Priorities => claims.priorities,
            Capability::ExactLimits => claims.exact_limits,
            Capability::Listing => claims.listing,
            Capability::AcrossQueues => claims.across_queues,
            Capability::LargeBatches => claims.large_batches,
        }
    }

    /// The same claims without this one.
    #[must_use]
    pub const fn hidden(self, claims: Capabilities) -> Capabilities {
        match self {
            Capability::Dedup => Capabilities { dedup: false, ..claims },
            Capability::Transactions => Capabilities { transactions: false, ..claims },
            Capability::Push => Capabilities { push: false, ..claims },
            Capability::Priorities => Capabilities { priorities: false, ..claims },
            Capability::ExactLimits => Capabilities { exact_limits: false, ..claims },
            Capability::Listing => Capabilities { listing: false, ..claims },
            Capability::AcrossQueues => Capabilities { across_queues: false, ..claims },
            Capability::LargeBatches => Capabilities { large_batches: false, ..claims },
        }
    }

    /// The test of this module that shows what a store without it does. None for transactions:
    /// they are a matter between the client and one kind of database, not of the trait.
    #[must_use]
    pub const fn test(self) -> Option<&'static str> {
        match self {
            Capability::Dedup => Some("r18_a_dedup_key_is_kept_or_refused"),
            Capability::Transactions => None,
            Capability::Push => Some("r18_hints_come_or_a_poll_finds_the_work"),
            Capability::Priorities => Some("r18_priorities_decide_or_due_times_do"),
            Capability::ExactLimits => Some("r18_a_queues_limit_is_exact_or_refused"),
            Capability::Listing => Some("r18_jobs_are_listed_or_the_list_is_refused"),
            Capability::AcrossQueues => Some("r18_a_task_has_its_keys_in_every_queue_or_in_one"),
            Capability::LargeBatches => Some("r18_a_large_batch_is_accepted_or_refused_whole"),
        }
    }
}

impl Rig {
    /// Whether the store claims it.
    #[must_use]
    pub fn claims(&self, capability: Capability) -> bool {
        capability.is_claimed(&self.store.capabilities())
    }

    /// Fails unless the answer is a refusal that names the capability.
    fn refused<T: std::fmt::Debug>(answer: Result<T>, capability: Capability) -> Error {
        let error = answer.expect_err("what a store does not claim is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let name = format!("`{}`", capability.name());
        assert!(error.to_string().contains(&name), "{error} does not name {name}");
        error
    }

    /// Fails if anything is there to be run, now or ever.
    async fn nothing_was_written(&mut self) {
        assert_eq!(self.next_due().await.due, None, "something was written");
        self.at(100_000).claim_none().await;
    }
}

/// A dedup key is kept, or its batch refused whole before anything is written.
pub async fn r18_a_dedup_key_is_kept_or_refused(mut rig: Rig) {
    let deduped = || NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain("1") };
    let one = |triggers, dedup| vec![Batch { triggers, dedup }];
    let calls = [
        one(vec![plain("0"), deduped()], None),
        one(vec![plain("0")], Some(Dedup::new(key("batch")))),
        vec![Batch::one(plain("0")), Batch::one(deduped())],
    ];
    if rig.claims(Capability::Dedup) {
        for call in calls {
            rig.store.enqueue(Some(rig.now()), call.clone()).await.expect("accepts");
            let again = rig.store.enqueue(Some(rig.now()), call).await.expect("accepts");
            let last = again.last().and_then(|receipts| receipts.as_ref().ok()?.last());
            assert_eq!(last.map(quell_core::Receipt::outcome), Some("duplicate"), "{again:?}");
        }
        return;
    }
    for call in calls {
        Rig::refused(rig.store.enqueue(Some(rig.now()), call).await, Capability::Dedup);
    }
    rig.nothing_was_written().await;
}

/// Without priorities they are accepted and due time decides, then id.
pub async fn r18_priorities_decide_or_due_times_do(rig: Rig) {
    for (priority, payload) in [(0, "1"), (9, "2"), (-9, "3")] {
        rig.trigger(NewTrigger { priority, ..plain(payload) }).await;
    }
    let jobs = rig.claim().await;
    let order: Vec<_> = jobs.iter().map(|job| job.payload.as_str()).collect();
    let by_priority = rig.claims(Capability::Priorities);
    assert_eq!(order, if by_priority { ["2", "1", "3"] } else { ["1", "2", "3"] });
}

/// A queue's limit holds across processes, or setting one is refused and changes nothing.
pub async fn r18_a_queues_limit_is_exact_or_refused(rig: Rig) {
    let limited = QueueSettings { concurrency: Some(1), ..QueueSettings::default() };
    let queue = crate::rig::queue();
    if rig.claims(Capability::ExactLimits) {
        rig.set_queue(limited).await;
    } else {
        let paused = QueueSettings { paused: true, ..limited.clone() };
        for settings in [&limited, &paused] {
            let answer = rig.store.set_queue(Some(rig.now()), &queue, settings).await;
            Rig::refused(answer, Capability::ExactLimits);
        }
        rig.set_queue(QueueSettings::default()).await;
    }
    for payload in ["1", "2"] {
        rig.trigger(plain(payload)).await;
    }
    let expected = if rig.claims(Capability::ExactLimits) { 1 } else { 2 };
    assert_eq!(rig.claim().await.len(), expected);
}

/// New work is hinted at, or the stream stays open and silent and a poll finds the work.
pub async fn r18_hints_come_or_a_poll_finds_the_work(mut rig: Rig) {
    let mut wakeups = rig.store.wakeups();
    rig.trigger(plain("1")).await;
    let hint = wakeups.next().now_or_never();
    if rig.claims(Capability::Push) {
        assert!(matches!(hint, Some(Some(_))), "no hint came: {hint:?}");
    } else {
        assert!(!matches!(hint, Some(None)), "a stream that ends means a store that is gone");
    }
    assert_eq!(rig.next_due().await.due, Some(rig.now()));
    let due = rig.now() + Duration::from_micros(1);
    let job = rig.at_time(due).claim_one().await;
    rig.succeed(&job).await;
    assert_eq!(rig.at(60).next_due().await.due, None);
}

/// Jobs are listed and counted, or both are refused and one job is still found by its id.
pub async fn r18_jobs_are_listed_or_the_list_is_refused(mut rig: Rig) {
    let id = rig.trigger(plain("1")).await.job().expect("a job");
    let everything = JobFilter::default();
    if rig.claims(Capability::Listing) {
        assert_eq!(rig.list(&everything).await, [id]);
        assert_eq!(rig.store.counts().await.expect("counts").len(), 1);
    } else {
        Rig::refused(rig.store.jobs(&everything).await, Capability::Listing);
        Rig::refused(rig.store.counts().await, Capability::Listing);
    }
    assert_eq!(rig.job(id).await.id, id);
    let job = rig.at_time(rig.now() + secs(1)).claim_one().await;
    assert_eq!(job.id, id);
}

/// A task's keys and a batch are one across queues, or what would need that is refused before
/// anything is written.
pub async fn r18_a_task_has_its_keys_in_every_queue_or_in_one(mut rig: Rig) {
    let other = QueueName::new("other").expect("a valid name");
    let elsewhere = |trigger: NewTrigger| NewTrigger { queue: other.clone(), ..trigger };
    let first = rig.trigger(keyed("k")).await.job().expect("a job");
    let answer = async |rig: &Rig, triggers: Vec<NewTrigger>| -> Result<Vec<Receipt>> {
        let call = vec![Batch { triggers, dedup: None }];
        let mut answers = rig.store.enqueue(Some(rig.now()), call).await?;
        answers.pop().expect("one answer for one batch")
    };
    // Without a key, a trigger may go anywhere.
    let free = rig.trigger(elsewhere(plain("2"))).await.job().expect("a job");
    let moved = answer(&rig, vec![elsewhere(keyed("k"))]).await;
    let mixed = answer(&rig, vec![plain("4"), elsewhere(plain("5"))]).await;
    if rig.claims(Capability::AcrossQueues) {
        assert_eq!(moved.expect("joins")[0].job(), Some(first));
        assert_eq!(rig.job(first).await.queue, other);
        assert_eq!(mixed.expect("accepts").len(), 2);
        return;
    }
    Rig::refused(moved, Capability::AcrossQueues);
    Rig::refused(mixed, Capability::AcrossQueues);
    assert_eq!(rig.job(first).await.window.triggers, 1);
    let claim = Claim { queue: other.clone(), ..Rig::claim_of(9) };
    let now = rig.at(100_000).now();
    let claimed = rig.store.claim(Some(now), &claim).await.expect("claims");
    assert_eq!(claimed.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [free]);
    assert_eq!(rig.claim().await.len(), 1, "the window alone is in its queue");
}

/// A batch of many triggers is accepted whole, or refused before anything is written; a small one is
/// accepted, and so are many small ones in one call.
pub async fn r18_a_large_batch_is_accepted_or_refused_whole(mut rig: Rig) {
    let batch = |count: usize| Batch { triggers: vec![plain("1"); count], dedup: None };
    let large = rig.store.enqueue(Some(rig.now()), vec![batch(2_000)]).await;
    let large = large.and_then(|mut answers| answers.pop().expect("one answer for one batch"));
    if rig.claims(Capability::LargeBatches) {
        assert_eq!(large.expect("accepts").len(), 2_000);
        return;
    }
    Rig::refused(large, Capability::LargeBatches);
    rig.nothing_was_written().await;
    let small = rig.store.enqueue(Some(rig.now()), vec![batch(10); 30]).await.expect("accepts");
    assert!(small.iter().all(|one| one.as_ref().is_ok_and(|receipts| receipts.len() == 10)));
}
