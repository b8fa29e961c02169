//! Dedup keys: how long they are taken, and by whom.

use std::time::Duration;

use futures_util::future::join_all;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::{Batch, NewTrigger, Receipt};

use crate::rig::{Rig, fails, key, keyed, lease, plain, secs, task};

fn with(until: HoldUntil) -> NewTrigger {
    NewTrigger { dedup: Some(Dedup { key: key("d"), until }), ..plain("1") }
}

/// From acceptance, not extended by duplicates, free to the microsecond.
pub async fn r16_a_key_is_taken_for_its_ttl(mut rig: Rig) {
    let until = HoldUntil::Elapsed(secs(10));
    let job = rig.trigger(with(until)).await.job().expect("a job");
    rig.at(9);
    assert_eq!(rig.trigger(with(until)).await, Receipt::Duplicate { job });
    rig.at_time(Rig::START + secs(10).saturating_sub(Duration::from_micros(1)));
    assert_eq!(rig.trigger(with(until)).await, Receipt::Duplicate { job });
    let other_task = NewTrigger { task: task("u"), ..with(until) };
    assert_eq!(rig.trigger(other_task).await.outcome(), "accepted", "keys are their task's own");
    rig.at(10);
    assert_eq!(rig.trigger(with(until)).await.outcome(), "accepted");
}

/// `Started` frees it at the first start, `Done` at the end; a retry is still the same job.
pub async fn r16_a_key_is_taken_until_started_or_done(mut rig: Rig) {
    for (round, until) in [HoldUntil::Started, HoldUntil::Done].into_iter().enumerate() {
        let begin = round as u64 * 1_000;
        let trigger = || NewTrigger {
            dedup: Some(Dedup { key: key(&format!("d{round}")), until }),
            ..plain("1")
        };
        rig.at(begin).trigger(trigger()).await;
        assert_eq!(rig.trigger(trigger()).await.outcome(), "duplicate");
        let job = rig.claim_one().await;
        let while_running = if until == HoldUntil::Done { "duplicate" } else { "accepted" };
        rig.fail(&job, secs(500)).await;
        assert_eq!(rig.trigger(trigger()).await.outcome(), while_running, "{until:?}");
        rig.at(begin + 600);
        for job in rig.claim().await {
            rig.succeed(&job).await;
        }
        assert_eq!(rig.trigger(trigger()).await.outcome(), "accepted", "{until:?}");
        for job in rig.claim().await {
            rig.succeed(&job).await;
        }
    }
}

/// It ran well, died, was cancelled, or was cancelled before it ever ran.
pub async fn r16_every_end_frees_a_key_that_is_taken_until_done(rig: Rig) {
    for until in [HoldUntil::Started, HoldUntil::Done] {
        for how in ["success", "death", "cancel", "early"] {
            let job = rig.trigger(with(until)).await.job().expect("a job");
            assert_eq!(rig.trigger(with(until)).await, Receipt::Duplicate { job });
            if how != "early" {
                let run = rig.claim_one().await;
                match how {
                    "success" => rig.succeed(&run).await,
                    "death" => drop(rig.settle(lease(&run), fails(secs(1), true)).await),
                    _ => rig.cancel(job).await.expect("cancels"),
                }
            } else {
                rig.cancel(job).await.expect("cancels");
            }
            let next = rig.trigger(with(until)).await;
            assert_eq!(next.outcome(), "accepted", "{until:?} after {how}");
            rig.cancel(next.job().expect("a job")).await.expect("cancels");
        }
    }
}

/// A TTL is a TTL: it holds when its job has ended, and on store time only.
pub async fn r16_a_ttl_outlasts_the_job_and_the_hosts_clock(mut rig: Rig) {
    let until = HoldUntil::Elapsed(secs(60));
    let job = rig.at(10).trigger(with(until)).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.succeed(&run).await;
    assert_eq!(rig.at(69).trigger(with(until)).await, Receipt::Duplicate { job });
    assert_eq!(rig.at(1).trigger(with(until)).await, Receipt::Duplicate { job });
    assert_eq!(rig.at(70).trigger(with(until)).await.outcome(), "accepted");
}

/// Taken atomically: of many callers at once, one is accepted.
pub async fn r16_callers_that_race_for_a_key_get_one_job(rig: Rig) {
    let receipts = join_all((0..32).map(|_| rig.trigger(with(HoldUntil::default())))).await;
    let accepted: Vec<_> = receipts.iter().filter(|r| r.outcome() == "accepted").collect();
    assert_eq!(accepted.len(), 1, "{receipts:?}");
    assert!(receipts.iter().all(|r| r.job() == accepted[0].job()), "{receipts:?}");
    assert_eq!(rig.jobs().await.len(), 1);
}

/// A batch inside which a key comes twice takes it once, also in one call with other batches.
pub async fn r16_a_key_counts_within_one_call_too(rig: Rig) {
    let one =
        || Batch { triggers: vec![with(HoldUntil::Done), with(HoldUntil::Done)], dedup: None };
    let receipts = rig.store.enqueue(Some(rig.now()), vec![one(), one()]).await.expect("accepts");
    let outcomes: Vec<_> = receipts.iter().flatten().flatten().map(Receipt::outcome).collect();
    assert_eq!(outcomes, ["accepted", "duplicate", "duplicate", "duplicate"]);
}

/// A member that is a duplicate by itself is not the job that holds the batch's key.
pub async fn r17_the_batchs_key_is_held_by_a_job_of_the_batch(rig: Rig) {
    let other = rig.trigger(with(HoldUntil::Done)).await.job().expect("a job");
    let batch = || Batch {
        triggers: vec![with(HoldUntil::Done), plain("2")],
        dedup: Some(Dedup { key: key("batch"), until: HoldUntil::Done }),
    };
    let first = rig.trigger_batch(batch()).await;
    assert_eq!(first[0], Receipt::Duplicate { job: other });
    let own = first[1].job().expect("a job");
    rig.cancel(other).await.expect("cancels");
    assert_eq!(rig.trigger_batch(batch()).await, vec![Receipt::Duplicate { job: own }; 2]);
    rig.cancel(own).await.expect("cancels");
    assert_eq!(rig.trigger_batch(batch()).await[0].outcome(), "accepted");
}

/// When the holder is absorbed, its key is taken until the successor ends.
pub async fn r16_a_hold_follows_its_job_to_the_successor(mut rig: Rig) {
    let dedup = Some(Dedup { key: key("d"), until: HoldUntil::Done });
    let deduped = || NewTrigger { dedup: dedup.clone(), ..keyed("a") };
    rig.trigger(deduped()).await;
    let failed = rig.at(10).claim_one().await;
    let successor = rig.at(12).trigger(keyed("a")).await.job().expect("a job");
    rig.settle(lease(&failed), fails(secs(1), false)).await;
    assert_eq!(rig.trigger(deduped()).await, Receipt::Duplicate { job: successor });
    let run = rig.at(22).claim_one().await;
    rig.succeed(&run).await;
    assert_eq!(rig.trigger(deduped()).await.outcome(), "accepted");
}

/// It started once: being absorbed by a window that has not takes nothing back.
pub async fn r16_a_key_that_a_start_freed_stays_free(mut rig: Rig) {
    let dedup = Some(Dedup { key: key("d"), until: HoldUntil::Started });
    let deduped = || NewTrigger { dedup: dedup.clone(), ..keyed("a") };
    rig.trigger(deduped()).await;
    let failed = rig.at(10).claim_one().await;
    let successor = rig.trigger(keyed("a")).await.job();
    rig.fail(&failed, secs(1)).await;
    let next = rig.at(12).trigger(deduped()).await;
    assert_eq!((next.outcome(), next.job()), ("debounced", successor));
    assert_eq!(rig.trigger(deduped()).await.outcome(), "duplicate", "until the successor starts");
}

/// Dedup is checked before debounce (R3).
pub async fn r16_a_duplicate_joins_no_window(mut rig: Rig) {
    let dedup = Some(Dedup::new(key("d")));
    let deduped = || NewTrigger { dedup: dedup.clone(), ..keyed("a") };
    let job = rig.trigger(deduped()).await.job().expect("a job");
    rig.at(5);
    assert_eq!(rig.trigger(deduped()).await, Receipt::Duplicate { job });
    assert_eq!(Rig::second(rig.job(job).await.window.due_at), 10, "a duplicate moves nothing");
}

/// All of a later batch are duplicates; the key takes nothing from its members.
pub async fn r17_one_key_for_a_batch(mut rig: Rig) {
    let batch = || Batch {
        triggers: vec![plain("1"), keyed("a"), plain("2")],
        dedup: Some(Dedup { key: key("batch"), until: HoldUntil::Elapsed(secs(10)) }),
    };
    let first = rig.trigger_batch(batch()).await;
    assert!(first.iter().all(|receipt| receipt.outcome() == "accepted"), "{first:?}");
    let job = first[0].job().expect("a job");
    assert_eq!(rig.trigger_batch(batch()).await, vec![Receipt::Duplicate { job }; 3]);
    rig.at(10);
    let outcomes: Vec<_> = rig.trigger_batch(batch()).await.iter().map(Receipt::outcome).collect();
    assert_eq!(outcomes, ["accepted", "debounced", "accepted"]);
}

/// Death freed the key; a redrive does not take it again, and leaves every other hold alone.
pub async fn r16_a_key_that_death_freed_stays_free_after_a_redrive(rig: Rig) {
    let named = |name: &str, until| NewTrigger {
        dedup: Some(Dedup { key: key(name), until }),
        ..plain("1")
    };
    let job = rig.trigger(named("done", HoldUntil::Done)).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    let others = [("ttl", HoldUntil::Elapsed(secs(500))), ("other", HoldUntil::Done)];
    for (name, until) in others {
        rig.trigger(named(name, until)).await;
    }
    rig.redrive(job).await.expect("redrives");
    assert_eq!(rig.trigger(named("done", HoldUntil::Done)).await.outcome(), "accepted");
    for (name, until) in others {
        assert_eq!(rig.trigger(named(name, until)).await.outcome(), "duplicate", "{name}");
    }
}

/// A redrive keeps the time to live that the job's own trigger asked for.
pub async fn r16_a_ttl_outlasts_death_and_redrive(rig: Rig) {
    let trigger = || with(HoldUntil::Elapsed(secs(500)));
    let job = rig.trigger(trigger()).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    rig.redrive(job).await.expect("redrives");
    assert_eq!(rig.trigger(trigger()).await, Receipt::Duplicate { job });
}
