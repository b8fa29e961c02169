//! Partitions of strict order: their jobs start one at a time, each after all before it (R41).

use std::sync::Arc;

use futures_util::future::{join, join_all};
use quell_core::{
    Batch, Claim, ClaimedJob, ErrorKind, JobId, Key, NewTrigger, Outcome, PartitionOrder,
    QueueSettings, Rate, TaskSettings, WorkerId,
};

use super::limits::within;
use super::wake::{expect_hint, received};
use crate::rig::{Rig, fails, key, keyed, lease, plain, queue, secs, task};

/// Settings with which partitions have a strict order.
pub(crate) fn strict() -> QueueSettings {
    QueueSettings::default().partition_order(PartitionOrder::Strict)
}

/// A trigger of a partition with a delay.
fn later(partition: &str, payload: &str, delay: u64) -> NewTrigger {
    let when = quell_core::trigger::When::After(secs(delay));
    NewTrigger { when, ..within(partition, payload) }
}

fn of_both_tasks(limit: usize) -> Claim {
    Claim { tasks: Arc::from([task("t"), task("u")]), ..Rig::claim_of(limit) }
}

fn payloads(jobs: &[ClaimedJob]) -> Vec<&str> {
    jobs.iter().map(|job| job.payload.as_str()).collect()
}

/// Claims one job, whose payload is this, and ends it.
async fn runs(rig: &Rig, payload: &str) {
    let job = rig.claim_one().await;
    assert_eq!(job.payload.as_str(), payload, "{}", rig.dump().await);
    rig.succeed(&job).await;
}

/// Whatever their tasks and priorities are, and while others run beside them.
pub async fn r41_jobs_of_a_partition_start_one_at_a_time_in_the_order_of_acceptance(mut rig: Rig) {
    rig.set_queue(strict()).await;
    rig.trigger(NewTrigger { priority: -3, ..within("a", "1") }).await;
    rig.at(1).trigger(NewTrigger { priority: 9, task: task("u"), ..within("a", "2") }).await;
    rig.at(2).trigger(NewTrigger { priority: 5, ..within("a", "3") }).await;
    rig.trigger(within("a", "4")).await;
    rig.trigger(within("b", "5")).await;
    rig.trigger(plain("6")).await;
    rig.trigger(plain("7")).await;
    let mut first = rig.claim_with(&of_both_tasks(9)).await;
    // R30 holds between partitions.
    assert_eq!(payloads(&first), ["5", "6", "7", "1"]);
    assert!(rig.claim_with(&of_both_tasks(9)).await.is_empty());
    let mut of_a = first.pop();
    for payload in ["2", "3", "4"] {
        rig.succeed(&of_a.take().expect("a job")).await;
        let mut next = rig.claim_with(&of_both_tasks(9)).await;
        assert_eq!(payloads(&next), [payload], "{}", rig.dump().await);
        of_a = next.pop();
    }
}

/// A job that waits for its retry holds up its own partition until it has ended or is dead.
pub async fn r41_a_retry_holds_up_those_behind_it(mut rig: Rig) {
    rig.set_queue(strict()).await;
    for payload in ["1", "2", "3"] {
        rig.trigger(within("a", payload)).await;
    }
    let job = rig.claim_one().await;
    rig.fail(&job, secs(60)).await;
    rig.at(5).claim_none().await;
    assert_eq!(rig.next_due().await.due, Some(Rig::START + secs(60)));
    // No other partition waits, nor what has none.
    rig.trigger(within("b", "4")).await;
    rig.trigger(plain("5")).await;
    assert_eq!(payloads(&rig.claim().await), ["4", "5"]);
    rig.at(59).claim_none().await;
    let again = rig.at(60).claim_one().await;
    assert_eq!((again.id, again.attempt), (job.id, 2));
    rig.settle(lease(&again), fails(secs(1), true)).await;
    runs(&rig, "2").await;
    runs(&rig, "3").await;
}

/// A snooze, a release and a lease that expired hold up like a retry.
pub async fn r41_whatever_brings_a_job_back_it_is_next(mut rig: Rig) {
    rig.set_queue(strict()).await;
    rig.trigger(within("a", "1")).await;
    rig.trigger(within("a", "2")).await;
    let job = rig.claim_one().await;
    rig.settle(lease(&job), Outcome::Snoozed { delay: secs(100) }).await;
    rig.at(99).claim_none().await;
    let job = rig.at(100).claim_one().await;
    rig.settle(lease(&job), Outcome::Released).await;
    let again = rig.claim_one().await;
    assert_eq!(again.id, job.id);
    rig.at(130).reap().await;
    let last = rig.claim_one().await;
    assert_eq!(last.id, job.id);
    rig.succeed(&last).await;
    runs(&rig, "2").await;
}

/// A job that ends without another attempt lets the next one start, and workers are notified.
pub async fn r34_r41_an_end_in_front_lets_the_next_one_start(mut rig: Rig) {
    rig.set_queue(strict()).await;
    for payload in ["1", "2", "3"] {
        rig.trigger(within("a", payload)).await;
    }
    let job = rig.claim_one().await;
    rig.fail(&job, secs(900)).await;
    rig.at(1).claim_none().await;
    let mut wakeups = rig.store.wakeups();
    received(&mut wakeups);
    rig.cancel(job.id).await.expect("cancels");
    expect_hint(&rig, &mut wakeups, 1, "a cancelled job in front").await;
    let job = rig.claim_one().await;
    assert_eq!(job.payload.as_str(), "2");
    rig.settle(lease(&job), fails(secs(1), true)).await;
    runs(&rig, "3").await;
}

/// One with a delay takes its place when its time comes.
pub async fn r41_a_delayed_job_holds_up_from_its_time_on(mut rig: Rig) {
    rig.set_queue(strict()).await;
    rig.trigger(later("a", "10", 10)).await;
    rig.trigger(within("a", "1")).await;
    rig.trigger(later("a", "500", 500)).await;
    let job = rig.claim_one().await;
    assert_eq!(job.payload.as_str(), "1", "before its time it holds up no other");
    rig.at(20).trigger(within("a", "2")).await;
    rig.succeed(&job).await;
    let delayed = rig.claim_one().await;
    assert_eq!(delayed.payload.as_str(), "10");
    rig.fail(&delayed, secs(30)).await;
    rig.at(49).claim_none().await;
    runs(rig.at(50), "10").await;
    runs(&rig, "2").await;
    rig.claim_none().await;
    assert_eq!(rig.next_due().await.due, Some(Rig::START + secs(500)));
}

/// A job that may not start holds up those behind it: its task is paused, or no worker knows it.
pub async fn r28_r33_r41_a_job_in_front_holds_up_whoever_may_run_it(mut rig: Rig) {
    rig.set_queue(strict()).await;
    rig.trigger(NewTrigger { task: task("u"), ..within("a", "1") }).await;
    rig.at(1).trigger(within("a", "2")).await;
    rig.trigger(within("b", "3")).await;
    assert_eq!(payloads(&rig.claim().await), ["3"], "the worker does not know task u");
    assert_eq!(rig.next_due().await.due, None);
    let paused = TaskSettings::default().paused(true);
    rig.store.set_task(Some(rig.now()), &task("u"), &paused).await.expect("pauses");
    assert!(rig.claim_with(&of_both_tasks(9)).await.is_empty());
    rig.store
        .set_task(Some(rig.now()), &task("u"), &TaskSettings::default())
        .await
        .expect("resumes");
    let first = rig.claim_with(&of_both_tasks(9)).await;
    assert_eq!(payloads(&first), ["1"]);
    // So does its retry.
    rig.fail(&first[0], secs(10)).await;
    rig.at(11).claim_none().await;
    let first = rig.claim_with(&of_both_tasks(9)).await;
    rig.succeed(&first[0]).await;
    runs(&rig, "2").await;
}

/// A dead job that is redriven comes before what has not started; of several, the oldest is first.
pub async fn r26_r41_a_redriven_job_is_next(mut rig: Rig) {
    rig.set_queue(strict()).await;
    let mut dead: Vec<JobId> = Vec::new();
    for payload in ["1", "2", "3"] {
        rig.trigger(within("a", payload)).await;
    }
    for _ in 0..2 {
        let job = rig.claim_one().await;
        rig.settle(lease(&job), fails(secs(1), true)).await;
        dead.push(job.id);
    }
    for id in dead.iter().rev() {
        rig.at(5).redrive(*id).await.expect("redrives");
    }
    runs(&rig, "1").await;
    runs(&rig, "2").await;
    runs(&rig, "3").await;
}

/// A window that waits for another of its key holds up no other job: that one may be behind it.
pub async fn r11_r41_who_waits_for_its_key_holds_up_nobody(mut rig: Rig) {
    rig.set_queue(strict()).await;
    let in_partition =
        |partition: &str| NewTrigger { partition: Some(key(partition)), ..keyed("k") };
    rig.trigger(in_partition("b")).await;
    let runs_in_b = rig.at(10).claim_one().await;
    rig.at(11).trigger(in_partition("a")).await;
    rig.at(30).trigger(within("a", "1")).await;
    // The window is due before it, and waits for the attempt in b.
    let job = rig.claim_one().await;
    assert_eq!(job.payload.as_str(), "1");
    rig.succeed(&runs_in_b).await;
    rig.trigger(within("a", "2")).await;
    rig.claim_none().await;
    rig.succeed(&job).await;
    let window = rig.claim_one().await;
    assert_eq!(window.key, Some(key("k")), "it is due before the other");
    rig.succeed(&window).await;
    runs(&rig, "2").await;
}

/// A debounced window takes its place when it is due, as each join moves it.
pub async fn r07_r41_a_window_takes_its_place_when_it_is_due(mut rig: Rig) {
    rig.set_queue(strict()).await;
    let window = NewTrigger { partition: Some(key("a")), ..keyed("k") };
    rig.trigger(window.clone()).await;
    rig.at(5).trigger(window).await;
    rig.at(12).trigger(within("a", "1")).await;
    let job = rig.claim_one().await;
    assert_eq!(job.payload.as_str(), "1");
    rig.at(16).trigger(within("a", "2")).await;
    rig.succeed(&job).await;
    let window = rig.claim_one().await;
    assert_eq!(window.key, Some(key("k")));
    rig.succeed(&window).await;
    runs(&rig, "2").await;
}

/// The order takes hold at the next claim, of what waits already too, and goes as it came.
pub async fn r32_r41_the_order_is_live(mut rig: Rig) {
    for payload in ["1", "2", "3"] {
        rig.trigger(within("a", payload)).await;
    }
    let one = Rig::claim_of(1);
    let first = rig.claim_with(&one).await;
    rig.fail(&first[0], secs(20)).await;
    rig.set_queue(strict()).await;
    rig.claim_none().await;
    let known = rig.store.queues().await.expect("lists");
    assert_eq!(known[0].settings, strict().completed());
    rig.set_queue(QueueSettings::default()).await;
    assert_eq!(payloads(&rig.claim().await), ["2", "3"]);
    // What runs at the same time when the order comes ends; until then nothing starts.
    rig.at(20).set_queue(strict()).await;
    rig.claim_none().await;
}

/// A strict order with more than one at a time is refused by its field.
pub async fn r40_r41_an_order_of_several_at_a_time_is_refused(rig: Rig) {
    let settings = strict().partition_concurrency(2);
    let error =
        rig.store.set_queue(Some(rig.now()), &queue(), &settings).await.expect_err("refused");
    assert_eq!(
        (error.kind(), error.field()),
        (ErrorKind::Invalid, Some("partition_concurrency")),
        "{error}"
    );
}

/// The queue's other limits hold beside the order, and say when the next one may start.
pub async fn r31_r41_rates_hold_beside_the_order(mut rig: Rig) {
    let rate = Rate { limit: 1, period: secs(10) };
    rig.set_queue(strict().partition_rate(rate)).await;
    for payload in ["1", "2"] {
        rig.trigger(within("a", payload)).await;
    }
    rig.trigger(within("b", "3")).await;
    let jobs = rig.claim().await;
    assert_eq!(payloads(&jobs), ["1", "3"]);
    rig.succeed(&jobs[0]).await;
    rig.at(4).claim_none().await;
    assert_eq!(rig.next_due().await.due, Some(Rig::START + secs(10)));
    runs(rig.at(10), "2").await;
    rig.set_queue(strict().concurrency(1)).await;
    rig.at(40).reap().await;
    rig.trigger(within("c", "4")).await;
    rig.trigger(within("d", "5")).await;
    assert_eq!(rig.claim().await.len(), 1);
}

/// A partition with a long line, and many partitions that wait for retries, hold up no other.
pub async fn r41_long_lines_and_many_retries_hold_up_nobody_else(mut rig: Rig) {
    rig.set_queue(strict()).await;
    for first in (0..600).step_by(40) {
        let triggers = (first..first + 40).map(|n| within("a", &n.to_string())).collect();
        rig.trigger_batch(Batch { triggers, dedup: None }).await;
    }
    let names: Vec<String> = (0..70).map(|n| format!("p{n}")).collect();
    for some in names.chunks(10) {
        let triggers = some.iter().flat_map(|name| [within(name, "1"), within(name, "2")]);
        rig.trigger_batch(Batch { triggers: triggers.collect(), dedup: None }).await;
    }
    let first = rig.claim().await;
    assert_eq!(first.len(), 71);
    for job in first.iter().filter(|job| job.payload.as_str() == "1") {
        if job.id != first[0].id {
            rig.fail(job, secs(300)).await;
        }
    }
    rig.at(1).trigger(within("z", "9")).await;
    assert_eq!(payloads(&rig.claim().await), ["9"]);
    rig.claim_none().await;
    rig.succeed(&first[0]).await;
    assert_eq!(payloads(&rig.claim().await), ["1"]);
    assert_eq!(rig.next_due().await.due, Some(Rig::START + secs(300)));
}

/// Workers that race with each other and with the ends of attempts, among them failures: each
/// partition runs in its order, one at a time.
pub async fn r41_claims_and_ends_that_race_keep_the_order(mut rig: Rig) {
    rig.set_queue(strict()).await;
    let partitions = ["a", "b", "c"];
    for n in 0..8 {
        let triggers = partitions.iter().map(|name| within(name, &n.to_string())).collect();
        rig.trigger_batch(Batch { triggers, dedup: None }).await;
    }
    let mut ended = partitions.map(|_| 0_u32);
    let (mut second, mut held): (u64, Vec<ClaimedJob>) = (0, Vec::new());
    while ended.iter().sum::<u32>() < 24 {
        second += 1;
        assert!(second < 400, "it comes to an end: {ended:?}\n{}", rig.dump().await);
        rig.at(second);
        let ends = std::mem::take(&mut held);
        let rig = &rig;
        let settled = join_all(ends.iter().map(|job| async move {
            let is_retried = job.attempt == 1 && job.payload.as_str() > "4";
            let outcome = if is_retried { fails(secs(2), false) } else { Outcome::succeeded() };
            rig.settle(lease(job), outcome).await;
            !is_retried
        }));
        let claims = (0..4).map(|number| {
            let worker = WorkerId::new(format!("w{number}")).expect("a valid name");
            let claim = Claim { worker, ..Rig::claim_of(1) };
            // Contention is an answer, too (R35).
            async move { rig.store.claim(Some(rig.now()), &claim).await }
        });
        let (settled, claimed) = join(settled, join_all(claims)).await;
        let number = |job: &ClaimedJob, of: &Option<Key>| {
            let number = partitions.iter().position(|name| *of == Some(key(name)));
            number.unwrap_or_else(|| panic!("job {} is of no known partition", job.id))
        };
        for (job, is_over) in ends.iter().zip(settled) {
            let partition = rig.job(job.id).await.partition;
            ended[number(job, &partition)] += u32::from(is_over);
        }
        held.extend(claimed.into_iter().filter_map(Result::ok).flat_map(|claimed| claimed.jobs));
        let mut running = partitions.map(|_| 0_u32);
        for job in &held {
            let partition = rig.job(job.id).await.partition;
            let number = number(job, &partition);
            running[number] += 1;
            let next = ended[number].to_string();
            assert_eq!(
                (running[number], job.payload.as_str()),
                (1, &*next),
                "{}",
                rig.dump().await
            );
        }
    }
}
