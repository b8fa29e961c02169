//! Wake-ups: one is sent at once for whatever becomes due earlier than a worker expects.
//!
//! A hint may be lost or false in production; within one process that is not busy none is lost.

use futures_util::{FutureExt, StreamExt};
use quell_core::window::Debounce;
use quell_core::{
    Batch, Cancelled, EndNotification, Fold, NewTrigger, Outcome, QueueSettings, TaskSettings,
    Timestamp, Wakeups,
};

use super::limits::{per_partition, within};
use crate::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, plain, queue, secs, task};

/// The hints that have come so far: the earliest due time among those for the queue of the tests.
pub(super) fn received(wakeups: &mut Wakeups) -> Option<Timestamp> {
    let mut earliest = None;
    while let Some(Some(hint)) = wakeups.next().now_or_never() {
        if hint.queue.is_none_or(|hinted| hinted == queue()) {
            earliest = Some(earliest.map_or(hint.due, |due: Timestamp| due.min(hint.due)));
        }
    }
    earliest
}

/// Fails unless a hint has come that is no later than this second.
pub(super) async fn expect_hint(rig: &Rig, wakeups: &mut Wakeups, second: u64, after: &str) {
    let due = received(wakeups);
    let in_time = due.is_some_and(|due| due <= Rig::START + secs(second));
    assert!(in_time, "no hint for second {second} after {after}: {due:?}\n{}", rig.dump().await);
}

/// New work, and work that is due earlier than before.
pub async fn r34_new_and_earlier_due_times_are_told(mut rig: Rig) {
    let mut wakeups = rig.store.wakeups();
    let three = Debounce { max_triggers: Some(3), ..debounce() };
    let capped = || keyed_with("b", three, Fold::Last, "1");
    rig.trigger(plain("1")).await;
    expect_hint(&rig, &mut wakeups, 0, "a trigger without a key").await;
    rig.trigger(keyed("a")).await;
    expect_hint(&rig, &mut wakeups, 10, "a new window").await;
    rig.trigger_batch(Batch { triggers: vec![keyed("c"), keyed("c")], dedup: None }).await;
    expect_hint(&rig, &mut wakeups, 10, "a window that was opened and joined in one call").await;
    rig.at(1).flush("a").await;
    expect_hint(&rig, &mut wakeups, 1, "a flush").await;
    rig.trigger(capped()).await;
    rig.trigger(capped()).await;
    received(&mut wakeups);
    rig.at(2).trigger(capped()).await;
    expect_hint(&rig, &mut wakeups, 2, "a join that reached max_triggers").await;
}

/// A slot that one worker frees wakes the workers whose claims the limit held up.
pub async fn r31_a_freed_slot_is_told(mut rig: Rig) {
    let one = QueueSettings { concurrency: Some(1), ..QueueSettings::default() };
    rig.store.set_queue(Some(rig.now()), &queue(), &one).await.expect("sets");
    let ends: [(&str, Outcome); 3] = [
        ("a success", Outcome::succeeded()),
        ("a failure", fails(secs(500), false)),
        ("a burial", fails(secs(1), true)),
    ];
    for _ in 0..5 {
        rig.trigger(plain("1")).await;
    }
    let mut wakeups = rig.store.wakeups();
    for (after, outcome) in ends {
        let job = rig.claim_one().await;
        received(&mut wakeups);
        rig.settle(lease(&job), outcome).await;
        expect_hint(&rig, &mut wakeups, 0, after).await;
    }
    let job = rig.claim_one().await;
    received(&mut wakeups);
    rig.cancel(job.id).await.expect("cancels");
    expect_hint(&rig, &mut wakeups, 0, "a cancelled attempt").await;
    rig.claim_one().await;
    received(&mut wakeups);
    rig.at(30).reap().await;
    expect_hint(&rig, &mut wakeups, 0, "an expiry").await;
}

/// Whatever reschedules a job sends when it is due.
pub async fn r34_a_job_that_goes_back_is_told(mut rig: Rig) {
    let mut wakeups = rig.store.wakeups();
    rig.trigger(plain("1")).await;
    let ends: [(&str, Outcome, u64); 3] = [
        ("a failure", fails(secs(5), false), 5),
        ("a snooze", Outcome::Snoozed { delay: secs(7) }, 7),
        ("a release", Outcome::Released, 0),
    ];
    let mut second = 0;
    for (after, outcome, wait) in ends {
        let job = rig.at(second).claim_one().await;
        received(&mut wakeups);
        rig.settle(lease(&job), outcome).await;
        second += wait;
        expect_hint(&rig, &mut wakeups, second, after).await;
    }
    let job = rig.at(second).claim_one().await;
    received(&mut wakeups);
    rig.at(second + 30).reap().await;
    expect_hint(&rig, &mut wakeups, second + 30, "an expiry").await;
    let dead = rig.claim_one().await;
    assert_eq!(dead.id, job.id);
    rig.settle(lease(&dead), fails(secs(1), true)).await;
    received(&mut wakeups);
    rig.redrive(dead.id).await.expect("redrives");
    expect_hint(&rig, &mut wakeups, second + 30, "a redrive").await;
}

/// However an attempt ends, the window that waited for it wakes workers.
pub async fn r34_a_freed_key_is_told(mut rig: Rig) {
    let mut wakeups = rig.store.wakeups();
    for (round, how) in ["success", "failure", "death", "cancel", "expiry"].into_iter().enumerate()
    {
        let begin = round as u64 * 100;
        rig.at(begin).trigger(keyed(how)).await;
        let job = rig.at(begin + 10).claim_one().await;
        rig.trigger(keyed(how)).await;
        rig.at(begin + 20);
        received(&mut wakeups);
        assert_eq!(rig.next_due().await.due, None, "the window waits for the attempt");
        match how {
            "success" => rig.succeed(&job).await,
            "failure" => drop(rig.fail(&job, secs(1)).await),
            "death" => drop(rig.settle(lease(&job), fails(secs(1), true)).await),
            "cancel" => rig.cancel(job.id).await.expect("cancels"),
            _ => drop(rig.at(begin + 40).reap().await),
        }
        expect_hint(&rig, &mut wakeups, begin + 40, how).await;
        for job in rig.at(begin + 60).claim().await {
            rig.succeed(&job).await;
        }
    }
}

/// An old job that was redriven is the open window, and a newer one waits for it (R10): where the old
/// one is cancelled, the newer one is due.
pub async fn r10_r34_a_window_that_waited_for_a_cancelled_one_is_told(mut rig: Rig) {
    let full = |payload| keyed_with("a", debounce(), Fold::Collect { cap: 1 }, payload);
    let old = rig.trigger(full("1")).await.job().expect("a job");
    let run = rig.at(10).claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    rig.trigger(full("2")).await;
    let run = rig.at(20).claim_one().await;
    let redrive = quell_core::Redrive { id: old, payload: None };
    rig.store.redrive(Some(rig.now()), &redrive).await.expect("it is dead");
    rig.fail(&run, secs(0)).await;
    let mut wakeups = rig.store.wakeups();
    let cancelled = rig.store.cancel_key(Some(rig.now()), &task("t"), &key("a")).await;
    assert_eq!(cancelled.expect("cancels"), Some(old));
    expect_hint(&rig, &mut wakeups, 20, "the cancelled window").await;
    assert_eq!(rig.claim_one().await.id, run.id);
}

/// The worker of a running job that is cancelled is notified, so that it stops the handler.
pub async fn r21_r34_a_cancelled_attempt_is_notified(rig: Rig) {
    let waits = rig.trigger(plain("1")).await.job().expect("accepted");
    let mut wakeups = rig.store.wakeups();
    rig.cancel(waits).await.expect("cancels");
    rig.trigger(plain("2")).await;
    let job = rig.claim_one().await;
    rig.cancel(job.id).await.expect("cancels");
    let mut notified = false;
    while let Some(Some(wakeup)) = wakeups.next().now_or_never() {
        match wakeup.cancelled {
            Some(Cancelled::Job(id)) => notified |= id == job.id,
            Some(Cancelled::Any) => notified = true,
            None => {}
        }
    }
    assert!(notified, "no wake-up for the cancelled attempt\n{}", rig.dump().await);
}

/// A queue that may run again wakes workers.
pub async fn r34_settings_are_told(rig: Rig) {
    rig.set_queue(QueueSettings { paused: true, ..QueueSettings::default() }).await;
    rig.trigger(plain("1")).await;
    let mut wakeups = rig.store.wakeups();
    rig.set_queue(QueueSettings::default()).await;
    expect_hint(&rig, &mut wakeups, 0, "a resume").await;
}

/// A partition that has a slot again wakes workers, and so does a window that moved into one.
pub async fn r31_a_freed_partition_is_told(mut rig: Rig) {
    rig.set_queue(per_partition(1)).await;
    rig.trigger(within("a", "1")).await;
    rig.trigger(within("a", "2")).await;
    let mut wakeups = rig.store.wakeups();
    let job = rig.claim_one().await;
    received(&mut wakeups);
    rig.succeed(&job).await;
    expect_hint(&rig, &mut wakeups, 0, "a success").await;
    rig.claim_one().await;
    rig.trigger(NewTrigger { partition: Some(key("a")), ..keyed("k") }).await;
    rig.at(60).flush("k").await;
    received(&mut wakeups);
    rig.trigger(NewTrigger { partition: Some(key("b")), ..keyed("k") }).await;
    expect_hint(&rig, &mut wakeups, 60, "a window that left a full partition").await;
}

/// A task that may run again wakes workers, whatever the queues of its jobs.
pub async fn r33_a_resumed_task_is_told(rig: Rig) {
    let pause = |paused| TaskSettings::default().paused(paused);
    rig.store.set_task(Some(rig.now()), &task("t"), &pause(true)).await.expect("pauses");
    rig.trigger(plain("1")).await;
    let mut wakeups = rig.store.wakeups();
    rig.store.set_task(Some(rig.now()), &task("t"), &pause(false)).await.expect("resumes");
    expect_hint(&rig, &mut wakeups, 0, "a resumed task").await;
}

/// Each subscriber receives everything, and a slow one the earliest of what it missed.
pub async fn r34_every_subscriber_hears_the_earliest(rig: Rig) {
    let (mut first, mut second) = (rig.store.wakeups(), rig.store.wakeups());
    for (k, delay) in [("a", 40), ("b", 20), ("c", 30)] {
        let when = quell_core::When::After(secs(delay));
        rig.trigger(quell_core::NewTrigger { when, ..keyed(k) }).await;
    }
    expect_hint(&rig, &mut first, 20, "three triggers").await;
    expect_hint(&rig, &mut second, 20, "three triggers").await;
}

/// The earliest of what this worker may start, and the earliest lease; nothing else counts.
pub async fn r34_next_due_is_exact(mut rig: Rig) {
    assert_eq!((rig.next_due().await.due, rig.next_due().await.expiry), (None, None));
    rig.trigger(keyed("a")).await;
    rig.at(3).trigger(keyed("b")).await;
    rig.trigger(quell_core::NewTrigger { task: crate::rig::task("u"), ..plain("1") }).await;
    let next = rig.next_due().await;
    assert_eq!((next.now, next.due), (rig.now(), Some(Rig::START + secs(10))));
    rig.at(4).trigger(keyed("a")).await;
    assert_eq!(rig.next_due().await.due, Some(Rig::START + secs(13)), "a has moved past b");
    let b = rig.at(13).claim_one().await;
    rig.trigger(keyed("b")).await;
    let next = rig.next_due().await;
    assert_eq!(next.due, Some(Rig::START + secs(14)), "b's next window waits");
    assert_eq!(next.expiry, Some(b.lease_until));
    rig.at(14).claim_one().await;
    let next = rig.next_due().await;
    assert_eq!((next.due, next.expiry), (None, Some(b.lease_until)));
    rig.at(20).renew(lease(&b)).await;
    assert_eq!(rig.next_due().await.expiry, Some(Rig::START + secs(44)));
}

/// However a job ends, every caller that waits for its end is notified, and none before.
pub async fn r19_who_waits_hears_of_every_end(mut rig: Rig) {
    let ends = ["success", "failure", "death", "cancel", "cancel by key"];
    for (round, how) in ends.into_iter().enumerate() {
        let begin = round as u64 * 1_000;
        let id = rig.at(begin).trigger(keyed(how)).await.job().expect("a job");
        let mut waiting = [rig.store.ended(id), rig.store.ended(id)];
        let other = rig.trigger(keyed("other")).await.job().expect("a job");
        let mut of_other = rig.store.ended(other);
        if how == "cancel by key" {
            let key = key(how);
            rig.store.cancel_key(Some(rig.now()), &task("t"), &key).await.expect("cancels");
        } else {
            let claimed = rig.at(begin + 10).claim().await;
            let job = claimed.iter().find(|job| job.id == id).expect("it is due");
            not_told(&mut waiting, "a start");
            match how {
                "success" => rig.succeed(job).await,
                "death" => drop(rig.settle(lease(job), fails(secs(1), true)).await),
                "cancel" => rig.cancel(id).await.expect("cancels"),
                _ => {
                    rig.fail(job, secs(1)).await;
                    not_told(&mut waiting, "a failure that is tried again");
                    rig.cancel(id).await.expect("cancels");
                }
            }
        }
        for ended in &mut waiting {
            assert!(ended.now_or_never().is_some(), "{how} was not notified\n{}", rig.dump().await);
        }
        not_told(std::slice::from_mut(&mut of_other), "the end of another job");
        rig.cancel(other).await.expect("cancels");
    }
}

fn not_told(waiting: &mut [EndNotification], after: &str) {
    let reported = waiting.iter_mut().filter_map(|ended| ended.now_or_never()).count();
    assert_eq!(reported, 0, "{after} was notified as the end");
}

/// A caller that waits for a job that a newer window absorbs is notified, and can wait for that window.
pub async fn r12_r19_who_waits_hears_that_a_job_was_absorbed(mut rig: Rig) {
    for (begin, how) in [(0, "a failure"), (100, "an expiry")] {
        let first = rig.at(begin).trigger(keyed("a")).await.job().expect("a job");
        let run = rig.at(begin + 10).claim_one().await;
        let successor = rig.at(begin + 12).trigger(keyed("a")).await.job().expect("a job");
        let (first_ended, successor_ended) = (rig.store.ended(first), rig.store.ended(successor));
        match how {
            "a failure" => drop(rig.fail(&run, secs(1)).await),
            _ => drop(rig.at(begin + 40).reap().await),
        }
        assert!(first_ended.now_or_never().is_some(), "{how} that is absorbed was not notified");
        let run = rig.at(begin + 60).claim_one().await;
        assert_eq!(run.id, successor);
        rig.succeed(&run).await;
        assert!(
            successor_ended.now_or_never().is_some(),
            "the end of the successor was not notified after {how}"
        );
    }
}
