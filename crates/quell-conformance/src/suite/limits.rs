//! Limits of workers and partitions, and rates; queues that are deleted and tasks that are paused
//! (R31–R33). The limit of a queue as a whole is in `queue`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quell_core::{
    Batch, Claim, ClaimedJob, ErrorKind, NewTrigger, Outcome, PartitionOrder, QueueName,
    QueueSettings, Rate, TaskSettings, Timestamp, WorkerId,
};

use crate::rig::{Rig, every_end, key, keyed, lease, plain, queue, secs, task};

/// A trigger of a partition.
pub(crate) fn within(partition: &str, payload: &str) -> NewTrigger {
    NewTrigger { partition: Some(key(partition)), ..plain(payload) }
}

/// Settings that only limit partitions.
pub(crate) fn per_partition(limit: u32) -> QueueSettings {
    QueueSettings { partition_concurrency: Some(limit), ..QueueSettings::default() }
}

fn rate(limit: u32, period: u64) -> QueueSettings {
    let rate = Some(Rate { limit, period: secs(period) });
    QueueSettings { rate, ..QueueSettings::default() }
}

fn by_worker(name: &str, limit: usize) -> Claim {
    Claim { worker: WorkerId::new(name).expect("a valid name"), ..Rig::claim_of(limit) }
}

fn of_both_tasks(limit: usize) -> Claim {
    Claim { tasks: Arc::from([task("t"), task("u")]), ..Rig::claim_of(limit) }
}

fn payloads(jobs: &[ClaimedJob]) -> Vec<&str> {
    jobs.iter().map(|job| job.payload.as_str()).collect()
}

async fn trigger_plain(rig: &Rig, count: usize) {
    for n in 0..count {
        rig.trigger(plain(&n.to_string())).await;
    }
}

/// Each worker has as many slots; a settlement gives one back to it alone.
pub async fn r31_a_workers_limit_is_its_own(rig: Rig) {
    let two = QueueSettings { worker_concurrency: Some(2), ..QueueSettings::default() };
    rig.set_queue(two.clone()).await;
    trigger_plain(&rig, 10).await;
    let first = rig.claim_with(&by_worker("a", 9)).await;
    assert_eq!(first.len(), 2);
    assert_eq!(rig.claim_with(&by_worker("a", 9)).await.len(), 0);
    assert_eq!(rig.claim_with(&by_worker("b", 9)).await.len(), 2);
    rig.succeed(&first[0]).await;
    assert_eq!(rig.claim_with(&by_worker("b", 9)).await.len(), 0);
    assert_eq!(rig.claim_with(&by_worker("a", 9)).await.len(), 1);
    rig.set_queue(QueueSettings { concurrency: Some(5), ..two }).await;
    assert_eq!(rig.claim_with(&by_worker("c", 9)).await.len(), 1, "four run already");
}

/// What waits in a full partition holds up no other, however much it is and however urgent.
pub async fn r31_a_full_partition_holds_up_nobody_else(rig: Rig) {
    rig.set_queue(per_partition(2)).await;
    for n in 0..50 {
        rig.trigger(NewTrigger { priority: 9, ..within("a", &n.to_string()) }).await;
    }
    for trigger in [within("b", "50"), plain("51"), plain("52"), plain("53"), within("b", "54")] {
        rig.trigger(trigger).await;
    }
    rig.trigger(within("b", "55")).await;
    let jobs = rig.claim().await;
    assert_eq!(payloads(&jobs), ["0", "1", "50", "51", "52", "53", "54"]);
    rig.claim_none().await;
    rig.succeed(&jobs[2]).await;
    assert_eq!(rig.claim_one().await.payload.as_str(), "55");
    rig.succeed(&jobs[1]).await;
    assert_eq!(rig.claim_one().await.payload.as_str(), "2");
}

/// Nor does a line of a full partition that is longer than what a store reads at a time.
pub async fn r31_a_long_line_of_a_full_partition_holds_up_nobody_else(mut rig: Rig) {
    rig.set_queue(per_partition(1)).await;
    for first in (0..600).step_by(40) {
        let triggers = (first..first + 40).map(|n| within("a", &n.to_string())).collect();
        rig.trigger_batch(Batch { triggers, dedup: None }).await;
    }
    rig.at(1).trigger(within("b", "600")).await;
    assert_eq!(payloads(&rig.claim().await), ["0", "600"]);
    assert_eq!(rig.claim().await.len(), 0);
}

/// A partition is one across the tasks and priorities of its queue, and not across queues.
pub async fn r31_a_partition_is_one_across_tasks_and_priorities_of_its_queue(rig: Rig) {
    let elsewhere = QueueName::new("other").expect("a valid name");
    rig.set_queue(per_partition(2)).await;
    rig.store.set_queue(Some(rig.now()), &elsewhere, &per_partition(1)).await.expect("sets");
    rig.trigger(within("a", "1")).await;
    rig.trigger(NewTrigger { task: task("u"), ..within("a", "2") }).await;
    rig.trigger(NewTrigger { priority: -1, ..within("a", "3") }).await;
    rig.trigger(NewTrigger { task: task("u"), priority: -1, ..within("a", "4") }).await;
    for payload in ["5", "6"] {
        rig.trigger(NewTrigger { queue: elsewhere.clone(), ..within("a", payload) }).await;
    }
    let first = rig.claim_with(&of_both_tasks(1)).await;
    assert_eq!(payloads(&first), ["1"]);
    let second = rig.claim_with(&of_both_tasks(9)).await;
    assert_eq!(payloads(&second), ["2"]);
    let there = Claim { queue: elsewhere, ..of_both_tasks(9) };
    assert_eq!(payloads(&rig.claim_with(&there).await), ["5"]);
    rig.succeed(&first[0]).await;
    assert_eq!(payloads(&rig.claim_with(&of_both_tasks(9)).await), ["3"]);
    rig.succeed(&second[0]).await;
    assert_eq!(payloads(&rig.claim_with(&of_both_tasks(9)).await), ["4"]);
}

/// Among what may start: priority, then due time, then id, whatever the partitions.
pub async fn r30_r31_the_order_holds_across_partitions(rig: Rig) {
    rig.set_queue(per_partition(2)).await;
    let with = |partition: &str, priority, payload: &str| NewTrigger {
        priority,
        ..within(partition, payload)
    };
    for (partition, priority, payload) in [
        ("a", 0, "1"),
        ("b", 0, "2"),
        ("a", 0, "3"),
        ("c", 5, "4"),
        ("a", 0, "5"),
        ("b", -5, "6"),
        ("c", 0, "7"),
        ("d", 0, "8"),
        ("b", 0, "9"),
    ] {
        rig.trigger(with(partition, priority, payload)).await;
    }
    rig.trigger(plain("10")).await;
    let mut order = Vec::new();
    for limit in [1, 2, 3, 9] {
        let jobs = rig.claim_with(&Rig::claim_of(limit)).await;
        order.extend(jobs.iter().map(|job| job.payload.as_str().to_owned()));
    }
    assert_eq!(order, ["4", "1", "2", "3", "7", "8", "9", "10"]);
}

/// A window waits in the partition of its newest trigger, as it does in its queue.
pub async fn r31_a_join_moves_the_window_to_the_triggers_partition(mut rig: Rig) {
    rig.set_queue(per_partition(1)).await;
    let within =
        |partition: Option<&str>, k: &str| NewTrigger { partition: partition.map(key), ..keyed(k) };
    let job = rig.trigger(within(Some("a"), "k")).await.job().expect("a job");
    rig.trigger(self::within("b", "1")).await;
    rig.claim_one().await;
    rig.at(5).trigger(within(Some("b"), "k")).await;
    assert_eq!(rig.job(job).await.partition, Some(key("b")));
    rig.at(20).claim_none().await;
    rig.at(21).trigger(within(None, "k")).await;
    assert_eq!(rig.job(job).await.partition, None);
    assert_eq!(rig.at(40).claim_one().await.id, job);
}

/// Whatever ends an attempt gives its partition's slot back, once, and the job comes back to it.
pub async fn r31_every_end_gives_a_partitions_slot_back(mut rig: Rig) {
    rig.set_queue(per_partition(1)).await;
    for n in 0..20 {
        rig.trigger(within("a", &n.to_string())).await;
    }
    for outcome in every_end() {
        let job = rig.claim_one().await;
        rig.claim_none().await;
        rig.settle(lease(&job), outcome).await;
        assert_eq!(rig.job(job.id).await.partition, Some(key("a")));
    }
    let job = rig.claim_one().await;
    rig.cancel(job.id).await.expect("cancels");
    rig.claim_one().await;
    rig.at(30).claim_none().await;
    rig.reap().await;
    rig.claim_one().await;
    rig.claim_none().await;
}

/// Never more than the number of starts in any window of the period, wherever it begins.
pub async fn r31_a_rate_is_a_sliding_log(mut rig: Rig) {
    rig.set_queue(rate(3, 10)).await;
    trigger_plain(&rig, 20).await;
    assert_eq!(rig.claim_with(&Rig::claim_of(2)).await.len(), 2);
    assert_eq!(rig.at(7).claim().await.len(), 1);
    rig.claim_none().await;
    let boundary = Rig::START + secs(10);
    rig.at_time(boundary.before(Duration::from_micros(1))).claim_none().await;
    assert_eq!(rig.at_time(boundary).claim().await.len(), 2);
    rig.at(16).claim_none().await;
    assert_eq!(rig.at(17).claim().await.len(), 1);
    rig.at(19).claim_none().await;
    assert_eq!(rig.at(20).claim().await.len(), 2);
    assert_eq!(rig.at(900).claim().await.len(), 3);
}

/// A start counts, whatever becomes of the attempt.
pub async fn r31_a_rates_slot_is_never_given_back(mut rig: Rig) {
    rig.set_queue(rate(4, 100)).await;
    trigger_plain(&rig, 20).await;
    let jobs = rig.claim_with(&Rig::claim_of(4)).await;
    rig.succeed(&jobs[0]).await;
    rig.settle(lease(&jobs[1]), Outcome::Released).await;
    rig.cancel(jobs[2].id).await.expect("cancels");
    rig.at(30).reap().await;
    rig.at(99).claim_none().await;
    assert_eq!(rig.at(100).claim().await.len(), 4);
}

/// Each partition has its own count, beside the queue's.
pub async fn r31_a_partitions_rate_is_its_own(mut rig: Rig) {
    let each = Some(Rate { limit: 2, period: secs(10) });
    let whole = Some(Rate { limit: 5, period: secs(10) });
    let settings = QueueSettings { partition_rate: each, ..QueueSettings::default() };
    rig.set_queue(settings.clone()).await;
    for n in 0..4 {
        for partition in ["a", "b"] {
            rig.trigger(within(partition, &n.to_string())).await;
        }
    }
    trigger_plain(&rig, 3).await;
    assert_eq!(rig.claim_with(&Rig::claim_of(3)).await.len(), 3, "two of a, one of b");
    assert_eq!(rig.at(4).claim().await.len(), 4, "one of b, three of none");
    rig.at(9).claim_none().await;
    assert_eq!(payloads(&rig.at(10).claim().await), ["2", "2", "3"]);
    assert_eq!(payloads(&rig.at(14).claim().await), ["3"]);
    rig.set_queue(QueueSettings { rate: whole, ..settings }).await;
    for partition in ["c", "d", "e"] {
        for payload in ["1", "2", "3"] {
            rig.trigger(within(partition, payload)).await;
        }
    }
    assert_eq!(payloads(&rig.claim().await), ["1", "2", "1", "2", "1"]);
    assert_eq!(payloads(&rig.at(24).claim().await), ["3", "3", "2", "3"]);
}

/// A rate counts from when it is set; a changed one goes on with what the one before counted.
pub async fn r31_a_rate_counts_from_when_it_is_set(mut rig: Rig) {
    trigger_plain(&rig, 60).await;
    assert_eq!(rig.claim_with(&Rig::claim_of(9)).await.len(), 9);
    rig.set_queue(rate(2, 10)).await;
    assert_eq!(rig.claim().await.len(), 2, "what started before does not count");
    rig.at(1).set_queue(rate(3, 10)).await;
    assert_eq!(rig.claim().await.len(), 1, "a higher limit counts what there was");
    rig.at(2).set_queue(rate(1, 10)).await;
    rig.at(10).claim_none().await;
    assert_eq!(rig.at(11).claim().await.len(), 1, "a lower one too");
    rig.at(15).set_queue(rate(1, 100)).await;
    rig.at(110).claim_none().await;
    assert_eq!(rig.at(111).claim().await.len(), 1, "a longer period counts what the shorter did");
    rig.at(120).set_queue(rate(1, 5)).await;
    assert_eq!(rig.claim().await.len(), 1, "a shorter one takes hold at once");
    rig.set_queue(QueueSettings::default()).await;
    rig.set_queue(rate(1, 5)).await;
    assert_eq!(rig.claim().await.len(), 1, "one that is set again begins again");
}

/// A claim returns when a rate lets the next one start, to the microsecond.
pub async fn r31_r34_the_next_start_heeds_the_rates(mut rig: Rig) {
    let micros = Duration::from_micros;
    let start = Rig::START + micros(3);
    let queue_rate = Rate { limit: 2, period: secs(10) };
    let each = Some(Rate { limit: 1, period: secs(60) });
    let settings = QueueSettings { partition_rate: each, ..rate(2, 10) };
    rig.at_time(start).set_queue(settings).await;
    for (partition, payload) in [("a", "1"), ("a", "2"), ("b", "3"), ("c", "4")] {
        rig.trigger(within(partition, payload)).await;
    }
    assert_eq!(rig.next_due().await.due, Some(start));
    let claimed = rig.store.claim(Some(start), &Rig::claim_of(9)).await.expect("claims");
    assert_eq!(payloads(&claimed.jobs), ["1", "3"]);
    let then = start + queue_rate.period;
    assert_eq!(claimed.next.due, Some(then), "c waits for the queue's rate");
    assert_eq!(rig.next_due().await.due, Some(then));
    assert_eq!(payloads(&rig.at_time(then).claim().await), ["4"]);
    let last = start + secs(60);
    assert_eq!(rig.next_due().await.due, Some(last), "a waits for its own");
    rig.at_time(last.before(micros(1))).claim_none().await;
    assert_eq!(payloads(&rig.at_time(last).claim().await), ["2"]);
    assert_eq!(rig.next_due().await.due, None);
}

/// A full partition is nothing to wait for: the next due time is that of another.
pub async fn r31_r34_a_full_partition_hides_nobodys_due_time(mut rig: Rig) {
    rig.set_queue(per_partition(1)).await;
    rig.trigger(within("a", "1")).await;
    rig.trigger(within("a", "2")).await;
    rig.trigger(NewTrigger { partition: Some(key("b")), ..keyed("k") }).await;
    let claimed = rig.store.claim(Some(rig.now()), &Rig::claim_of(9)).await.expect("claims");
    assert_eq!(payloads(&claimed.jobs), ["1"]);
    let due: Option<Timestamp> = Some(Rig::START + secs(10));
    assert_eq!((claimed.next.due, rig.next_due().await.due), (due, due));
    rig.at(3).succeed(&claimed.jobs[0]).await;
    assert_eq!(rig.next_due().await.due, Some(Rig::START));
}

/// Claims that race keep every limit together.
pub async fn r31_claims_that_race_keep_all_limits(rig: Rig) {
    let settings = QueueSettings {
        concurrency: Some(40),
        worker_concurrency: Some(8),
        partition_concurrency: Some(5),
        rate: Some(Rate { limit: 17, period: secs(10) }),
        partition_rate: Some(Rate { limit: 4, period: secs(10) }),
        ..QueueSettings::default()
    };
    rig.set_queue(settings).await;
    for n in 0..12 {
        for partition in ["a", "b", "c", "d", "e", "f"] {
            rig.trigger(within(partition, &n.to_string())).await;
        }
    }
    let claims_asked: Vec<_> = (0..9).map(|n| by_worker(&format!("w{n}"), 3)).collect();
    let claims = join_all(claims_asked.iter().map(|asked| rig.claim_with(asked))).await;
    let mut partitions = std::collections::BTreeMap::<_, usize>::new();
    for job in claims.iter().flatten() {
        let partition = rig.job(job.id).await.partition;
        *partitions.entry(partition).or_default() += 1;
    }
    assert_eq!(partitions.values().sum::<usize>(), 17, "{partitions:?}");
    assert!(partitions.values().all(|starts| *starts <= 4), "{partitions:?}");
}

/// Nothing starts until it is set again; triggers are accepted, and attempts end.
pub async fn r32_a_deleted_queue_waits_until_it_is_set_again(mut rig: Rig) {
    assert!(
        !rig.store.delete_queue(Some(rig.now()), &queue()).await.expect("deletes"),
        "there is none yet"
    );
    rig.set_queue(QueueSettings { concurrency: Some(2), ..QueueSettings::default() }).await;
    trigger_plain(&rig, 3).await;
    let running = rig.claim().await;
    assert_eq!(running.len(), 2);
    assert!(rig.store.delete_queue(Some(rig.now()), &queue()).await.expect("deletes"));
    assert!(
        !rig.store.delete_queue(Some(rig.now()), &queue()).await.expect("deletes"),
        "it is gone"
    );
    assert_eq!(rig.store.queues().await.expect("lists"), []);
    rig.succeed(&running[0]).await;
    trigger_plain(&rig, 4).await;
    assert_eq!(rig.store.queues().await.expect("lists"), [], "a trigger does not make it again");
    rig.at(5).claim_none().await;
    rig.set_queue(QueueSettings::default()).await;
    assert_eq!(rig.claim().await.len(), 5, "without the limit that it had");
}

/// Its jobs wait, are not due, and are not lost; those of other tasks go on.
pub async fn r33_a_paused_task_waits_and_others_go_on(mut rig: Rig) {
    let pause = |paused| TaskSettings::default().paused(paused);
    rig.store.set_task(Some(rig.now()), &task("t"), &pause(true)).await.expect("pauses");
    rig.trigger(NewTrigger { priority: 9, ..plain("1") }).await;
    rig.trigger(NewTrigger { task: task("u"), ..plain("2") }).await;
    rig.trigger(NewTrigger { task: task("u"), ..plain("3") }).await;
    assert_eq!(rig.next_due().await.due, None);
    let first = rig.claim_with(&of_both_tasks(1)).await;
    assert_eq!(payloads(&first), ["2"]);
    assert_eq!(payloads(&rig.claim_with(&of_both_tasks(9)).await), ["3"]);
    let known = rig.store.tasks().await.expect("lists");
    let shown: Vec<_> = known.iter().map(|t| (t.name.as_str(), t.settings.paused)).collect();
    assert_eq!(shown, [("t", true), ("u", false)]);
    rig.store.set_task(Some(rig.now()), &task("u"), &pause(true)).await.expect("pauses");
    assert!(rig.renew(lease(&first[0])).await.is_some());
    rig.settle(lease(&first[0]), Outcome::Released).await;
    assert!(rig.at(9).claim_with(&of_both_tasks(9)).await.is_empty());
    rig.store.set_task(Some(rig.now()), &task("t"), &pause(false)).await.expect("resumes");
    assert_eq!(rig.next_due().await.due, Some(Rig::START));
    assert_eq!(payloads(&rig.claim_with(&of_both_tasks(9)).await), ["1"]);
}

/// A pause is on record with its time and its caller, as long as it lasts, of queues and of tasks.
pub async fn r33_a_pause_is_on_record_with_its_time_and_caller(mut rig: Rig) {
    let by = |by: &str| QueueSettings::default().paused(true).paused_by(by.to_owned());
    let of_task = |by: &str| TaskSettings::default().paused(true).paused_by(by.to_owned());
    let forged = Some(Timestamp::from_secs(1));
    let shown = async |rig: &Rig| {
        let queue = rig.store.queues().await.expect("lists").remove(0).settings;
        let task = rig.store.tasks().await.expect("lists").remove(0).settings;
        [(queue.paused_since, queue.paused_by), (task.paused_since, task.paused_by)]
    };
    let both = |second: u64, by: Option<&str>| {
        let one = (Some(Rig::START + secs(second)), by.map(str::to_owned));
        [one.clone(), one]
    };
    rig.at(5);
    rig.set_queue(QueueSettings { paused_since: forged, ..by("ann") }).await;
    let paused = TaskSettings { paused_since: forged, ..of_task("ann") };
    rig.store.set_task(Some(rig.now()), &task("t"), &paused).await.expect("pauses");
    assert_eq!(shown(&rig).await, both(5, Some("ann")));
    rig.at(9);
    rig.set_queue(by("bob").debounce(crate::rig::debounce().thresholds)).await;
    rig.store.set_task(Some(rig.now()), &task("t"), &of_task("bob")).await.expect("pauses");
    assert_eq!(shown(&rig).await, both(5, Some("ann")), "it stays paused");
    rig.set_queue(QueueSettings { paused: false, ..by("cid") }).await;
    let open = TaskSettings { paused: false, ..of_task("cid") };
    rig.store.set_task(Some(rig.now()), &task("t"), &open).await.expect("resumes");
    assert_eq!(shown(&rig).await, [(None, None), (None, None)]);
    rig.at(12);
    rig.set_queue(QueueSettings::default().paused(true)).await;
    rig.store
        .set_task(Some(rig.now()), &task("t"), &TaskSettings::default().paused(true))
        .await
        .expect("pauses");
    assert_eq!(shown(&rig).await, both(12, None));
    let long = "x".repeat(QueueSettings::MOST_REMARK + 1);
    let queue =
        rig.store.set_queue(Some(rig.now()), &queue(), &by(&long)).await.expect_err("refused");
    let task = rig
        .store
        .set_task(Some(rig.now()), &task("t"), &of_task(&long))
        .await
        .expect_err("refused");
    assert_eq!((queue.field(), task.field()), (Some("paused_by"), Some("paused_by")));
    assert_eq!(shown(&rig).await, both(12, None));
}

/// The declaration that was applied last stays on record, whatever is set by hand, until another one is
/// applied or the queue is deleted.
pub async fn r32_a_declaration_stays_on_record_beside_settings_by_hand(rig: Rig) {
    let declared = async |rig: &Rig| {
        let known = rig.store.queues().await.expect("lists");
        known.into_iter().map(|known| known.settings.declared).collect::<Vec<_>>()
    };
    let by = |digest: &str| QueueSettings::default().declared(digest.to_owned());
    rig.set_queue(by("one").debounce(crate::rig::debounce().thresholds)).await;
    assert_eq!(declared(&rig).await, [Some("one".to_owned())]);
    rig.set_queue(QueueSettings::default().paused(true)).await;
    assert_eq!(declared(&rig).await, [Some("one".to_owned())]);
    rig.set_queue(by("two")).await;
    assert_eq!(declared(&rig).await, [Some("two".to_owned())]);
    let long = "x".repeat(QueueSettings::MOST_REMARK + 1);
    let refused =
        rig.store.set_queue(Some(rig.now()), &queue(), &by(&long)).await.expect_err("refused");
    assert_eq!(refused.field(), Some("declared"));
    rig.store.delete_queue(Some(rig.now()), &queue()).await.expect("deletes");
    rig.set_queue(QueueSettings::default()).await;
    assert_eq!(declared(&rig).await, [None]);
}

/// Every setting is kept as it was set.
pub async fn r32_all_settings_are_kept(rig: Rig) {
    let settings = QueueSettings {
        concurrency: Some(40),
        worker_concurrency: Some(8),
        partition_concurrency: Some(5),
        partition_order: PartitionOrder::ByPriority,
        rate: Some(Rate { limit: u32::MAX, period: Duration::from_micros(1) }),
        partition_rate: Some(Rate { limit: 1, period: Duration::MAX }),
        paused: true,
        debounce: Some(crate::rig::debounce().thresholds),
        ..QueueSettings::default()
    };
    // The store notes a pause with the time of a write.
    rig.trigger(NewTrigger { task: task("u"), ..plain("0") }).await;
    rig.set_queue(settings.clone()).await;
    let known = rig.store.queues().await.expect("lists");
    let kept = settings.kept(None, rig.now());
    assert_eq!(known.iter().map(|queue| &queue.settings).collect::<Vec<_>>(), [&kept]);
    // A period without end counts for ever.
    rig.set_queue(QueueSettings { paused: false, ..settings }).await;
    for payload in ["1", "2"] {
        rig.trigger(within("a", payload)).await;
    }
    assert_eq!(rig.claim().await.len(), 1);
    assert_eq!(rig.next_due().await.due, Some(Timestamp::MAX));
}

/// Limits that cannot be meant are refused by field, and what was set stays.
pub async fn r40_limits_that_cannot_be_meant_are_refused(rig: Rig) {
    let kept = QueueSettings { concurrency: Some(2), ..QueueSettings::default() };
    rig.set_queue(kept.clone()).await;
    let never = Some(Rate { limit: 0, period: secs(1) });
    let at_once = Some(Rate { limit: 1, period: secs(0) });
    let wrong = [
        ("worker_concurrency", QueueSettings { worker_concurrency: Some(3), ..kept.clone() }),
        ("partition_concurrency", QueueSettings { partition_concurrency: Some(3), ..kept.clone() }),
        ("rate", QueueSettings { rate: never, ..kept.clone() }),
        ("partition_rate", QueueSettings { partition_rate: never, ..kept.clone() }),
        ("rate", QueueSettings { rate: at_once, ..kept.clone() }),
        ("partition_rate", QueueSettings { partition_rate: at_once, ..kept.clone() }),
    ];
    for (field, settings) in wrong {
        let error =
            rig.store.set_queue(Some(rig.now()), &queue(), &settings).await.expect_err(field);
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
    }
    let known = rig.store.queues().await.expect("lists");
    assert_eq!(known.iter().map(|queue| &queue.settings).collect::<Vec<_>>(), [&kept]);
}
