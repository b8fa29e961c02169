//! What is kept how long, and what forgetting must not change (R37).

use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::idempotency::Idempotency;
use quell_core::window::Debounce;
use quell_core::{Batch, Fold, JobState, NewTrigger, Receipt, Retention};

use crate::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, plain, secs};

/// Keeps nothing that may go.
const NOTHING: Retention =
    Retention { succeeded: Some(std::time::Duration::ZERO), dead: Some(std::time::Duration::ZERO) };

/// However old, what still has to run stays.
pub async fn r37_what_has_not_ended_is_never_removed(rig: Rig) {
    rig.trigger(keyed("window")).await;
    rig.trigger(plain("1")).await;
    let running = rig.claim_one().await;
    rig.trigger(plain("2")).await;
    let waiting = rig.claim_one().await;
    rig.fail(&waiting, secs(1)).await;
    let before = rig.jobs().await;
    assert_eq!(rig.prune(86_400 * 366, &NOTHING, 99).await, 0);
    assert_eq!(rig.jobs().await, before);
    assert_eq!(rig.store.attempts(waiting.id).await.expect("reads").len(), 1);
    assert_eq!(rig.store.attempts(running.id).await.expect("reads").len(), 1);
}

/// Cancelled and absorbed jobs go with the succeeded ones; dead ones have a time of their own.
pub async fn r37_each_end_has_its_retention(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let failed = rig.at(10).claim_one().await;
    rig.trigger(keyed("a")).await;
    rig.fail(&failed, secs(1)).await;
    let dead = rig.at(20).claim_one().await;
    rig.settle(lease(&dead), fails(secs(1), true)).await;
    let cancelled = rig.trigger(plain("1")).await.job().expect("a job");
    rig.cancel(cancelled).await.expect("cancels");
    let succeeded = rig.trigger(plain("1")).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.succeed(&run).await;
    assert_eq!((run.id, rig.jobs().await.len()), (succeeded, 4));

    let keep = Retention { succeeded: Some(secs(100)), dead: Some(secs(300)) };
    assert_eq!(rig.prune(109, &keep, 99).await, 0);
    assert_eq!(rig.prune(110, &keep, 99).await, 1, "the absorbed one ended first");
    assert_eq!(rig.prune(120, &keep, 99).await, 2);
    assert_eq!(rig.states().await, [JobState::Dead]);
    let for_ever = Retention { succeeded: None, dead: None };
    assert_eq!(rig.prune(100_000, &for_ever, 99).await, 0);
    assert_eq!(rig.prune(100_000, &keep, 99).await, 1);
    assert_eq!(rig.prune(100_000, &keep, 99).await, 0);
}

/// A dedup key is taken for its TTL, whatever becomes of the job's row.
pub async fn r37_a_dedup_key_outlives_its_jobs_row(mut rig: Rig) {
    let until = HoldUntil::Elapsed(secs(500));
    let deduped = || NewTrigger { dedup: Some(Dedup { key: key("d"), until }), ..plain("1") };
    let job = rig.trigger(deduped()).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.succeed(&run).await;
    assert_eq!(rig.prune(400, &NOTHING, 99).await, 1);
    assert_eq!(rig.at(499).trigger(deduped()).await, Receipt::Duplicate { job });
    assert_eq!(rig.at(500).trigger(deduped()).await.outcome(), "accepted");
}

/// What an edge remembers of a burst outlives the row of the job that led it: the burst goes on, and
/// its triggers are counted on, so that no id comes twice.
pub async fn r13_r37_a_burst_outlives_its_leaders_row(mut rig: Rig) {
    let leading = Debounce { edge: Edge::Leading, ..debounce() };
    let trigger = || keyed_with("a", leading, Fold::Last, "1");
    let throttle = Debounce::throttle(secs(30)).expect("valid");
    let throttled = || keyed_with("b", throttle, Fold::Last, "1");
    let lead = rig.trigger(trigger()).await.job();
    rig.trigger(throttled()).await;
    for run in rig.claim().await {
        rig.succeed(&run).await;
    }
    assert_eq!(rig.prune(5, &NOTHING, 99).await, 2);
    let late = rig.at(6).trigger(trigger()).await;
    assert_eq!((late.outcome(), late.job()), ("debounced", lead));
    let batch = Batch { triggers: vec![trigger(), trigger()], dedup: None };
    let both = rig.at(7).trigger_batch(batch).await;
    let last = rig.at(8).trigger(trigger()).await;
    let receipts = [&late, &both[0], &both[1], &last];
    let ids = receipts.map(|receipt| receipt.trigger().expect("it was accepted"));
    assert_eq!(ids.map(|id| (Some(id.job), id.seq)), [2, 3, 4, 5].map(|seq| (lead, seq)));
    let Receipt::Debounced { triggers, .. } = last else { panic!("{last:?}") };
    assert_eq!(triggers, 5);
    rig.trigger(throttled()).await;
    rig.at(29).claim_none().await;
    assert_eq!(rig.prune(29, &NOTHING, 99).await, 0);
    rig.at(30).claim_one().await;
    assert_eq!(rig.trigger(trigger()).await.outcome(), "accepted", "the burst is over");
}

/// Removing what has no effect any more leaves every key that is still taken.
pub async fn r37_keys_that_are_still_taken_stay(rig: Rig) {
    let holds = [
        ("ttl", HoldUntil::Elapsed(secs(500))),
        ("started", HoldUntil::Started),
        ("done", HoldUntil::Done),
    ];
    let named = |name: &str, until| NewTrigger {
        dedup: Some(Dedup { key: key(name), until }),
        ..plain("1")
    };
    for (name, until) in holds {
        rig.trigger(named(name, until)).await;
    }
    rig.prune(1, &NOTHING, 99).await;
    for (name, until) in holds {
        assert_eq!(rig.trigger(named(name, until)).await.outcome(), "duplicate", "{name}");
    }
}

/// Expired dedup keys go as fast as they come, in calls of bounded size that say whether more is
/// left.
pub async fn r37_expired_keys_go_as_fast_as_they_come(mut rig: Rig) {
    // As many as come on a busy store; fewer where each write takes long.
    let is_quick = rig.claims(crate::Capability::LargeBatches);
    let (chunks, most) = if is_quick { (6, 1_000) } else { (1, 160) };
    let until = HoldUntil::Elapsed(secs(60));
    for minute in 0..3 {
        rig.at(60 * minute);
        for chunk in 0..chunks {
            let trigger = |n: u64| NewTrigger {
                dedup: Some(Dedup { key: key(&format!("{minute}-{chunk}-{n}")), until }),
                ..keyed("window")
            };
            let triggers: Vec<NewTrigger> = (0..500).map(trigger).collect();
            let batch =
                |triggers: &[NewTrigger]| Batch { triggers: triggers.to_vec(), dedup: None };
            let batches = triggers.chunks(10).map(batch).collect();
            let accepted = rig.store.enqueue(Some(rig.now()), batches).await.expect("accepts");
            assert!(accepted.iter().all(Result::is_ok), "{accepted:?}");
        }
        // As a worker does once a minute.
        while rig.pruned(rig.now(), &Retention::default(), most).await.more {}
    }
    let later = rig.at(180).now();
    let mut calls = 0;
    while rig.pruned(later, &Retention::default(), most).await.more {
        calls += 1;
        assert!(calls < 100, "a store must not announce more when nothing is left");
    }
    let left = rig.pruned(later, &Retention::default(), usize::MAX).await;
    assert_eq!(left.expired, 0, "expired keys stay although the store said that no more is left");
}

/// A key that expired while its job waited goes once the job has ended, a day later at most.
pub async fn r37_an_expired_key_goes_once_its_job_has_ended(mut rig: Rig) {
    let idempotency = Some(Idempotency { key: key("i"), retention: secs(100) });
    let trigger = NewTrigger { idempotency, ..plain("1") };
    let job = rig.trigger(trigger.clone()).await.job().expect("a job");
    for hours in [1, 2, 9, 48] {
        let now = rig.at(3_600 * hours).now();
        assert_eq!(rig.pruned(now, &NOTHING, 99).await.expired, 0, "after {hours} h");
        let again = rig.trigger(trigger.clone()).await;
        assert_eq!((again.outcome(), again.job()), ("existing", Some(job)));
    }
    let run = rig.claim_one().await;
    rig.succeed(&run).await;
    let now = rig.at(3_600 * 72).now();
    assert_eq!(rig.pruned(now, &NOTHING, 99).await.expired, 1);
    assert_eq!(rig.pruned(now, &NOTHING, 99).await.expired, 0);
}
