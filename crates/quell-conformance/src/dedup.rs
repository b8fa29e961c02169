//! Dedup keys: how long they are taken, and by whom.

use std::time::Duration;

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

/// When the holder is absorbed, its key is taken until the heir ends.
pub async fn r16_a_hold_follows_its_job_to_the_heir(mut rig: Rig) {
    let dedup = Some(Dedup { key: key("d"), until: HoldUntil::Done });
    let deduped = || NewTrigger { dedup: dedup.clone(), ..keyed("a") };
    rig.trigger(deduped()).await;
    let failed = rig.at(10).claim_one().await;
    let heir = rig.at(12).trigger(keyed("a")).await.job().expect("a job");
    rig.settle(lease(&failed), fails(secs(1), false)).await;
    assert_eq!(rig.trigger(deduped()).await, Receipt::Duplicate { job: heir });
    let run = rig.at(22).claim_one().await;
    rig.succeed(&run).await;
    assert_eq!(rig.trigger(deduped()).await.outcome(), "accepted");
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
