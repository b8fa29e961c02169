//! Steps of two processes that pass each other: each decides by a row that the other changes.

use std::sync::Arc;
use std::time::Duration;

use quell_conformance::rig::{debounce, fails, key, keyed_with, lease, plain, queue, secs, task};
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::window::Debounce;
use quell_core::{
    EffectName, ErrorKind, Fold, JobState, NewTrigger, Outcome, Payload, QueueSettings, Rate,
    Redrive, ScheduleName, Settlement, Steps, Timestamp,
};
use tokio::task::JoinSet;

use crate::between::{at, claim, enqueue, names, plains, start, two};

fn overlapping(overlap: bool) -> NewTrigger {
    keyed_with("k", Debounce { overlap, ..debounce() }, Fold::Last, "1")
}

fn succeeded(job: &quell_core::ClaimedJob) -> Vec<Settlement> {
    vec![Settlement { lease: lease(job), outcome: Outcome::Succeeded { output: None } }]
}

/// A join that forbids attempts to overlap sees one that runs; meanwhile that one ends, and sees a
/// window that does not wait.
#[tokio::test]
async fn r11_a_window_never_waits_for_an_attempt_that_has_ended() {
    let two = two();
    enqueue(&*two.second, 0, overlapping(true)).await;
    let runs = start(&*two.second, 10, 1).await;
    enqueue(&*two.second, 11, overlapping(true)).await;
    let (second, settled) = (Arc::clone(&two.second), succeeded(&runs[0]));
    two.between.before(|call| call.commits(), async move {
        second.settle(at(12), settled).await.unwrap();
    });
    let joined = enqueue(&two.first, 12, overlapping(false)).await.job().unwrap();
    assert!(two.between.has_come());
    let job = two.second.job(joined).await.unwrap().unwrap();
    assert!(!job.waits, "nothing runs, and it waits: {job:?}");
    assert_eq!(start(&*two.second, 100, 1).await.len(), 1);
}

/// A join that forbids attempts to overlap sees no older window; meanwhile one is rescheduled, and sees
/// a window that may overlap.
#[tokio::test]
async fn r11_two_windows_of_a_key_that_must_not_overlap_never_run_at_once() {
    let two = two();
    let small = Debounce { max_bytes: Some(8), ..debounce() };
    let trigger = |overlap, payload: &str| {
        let debounce = Debounce { overlap, ..small };
        keyed_with("k", debounce, Fold::Collect { cap: 100 }, payload)
    };
    enqueue(&*two.second, 0, trigger(false, "11111")).await;
    let runs = start(&*two.second, 10, 1).await;
    let dead = Settlement { lease: lease(&runs[0]), outcome: fails(secs(1), true) };
    two.second.settle(at(11), vec![dead]).await.unwrap();
    enqueue(&*two.second, 12, trigger(true, "222")).await;
    let (second, id) = (Arc::clone(&two.second), runs[0].id);
    two.between.before(|call| call.commits(), async move {
        second.redrive(at(13), &Redrive::from(id)).await.unwrap();
    });
    enqueue(&two.first, 13, trigger(false, "3")).await;
    assert!(two.between.has_come());
    let started = start(&*two.second, 100, 10).await;
    assert_eq!(started.len(), 1, "{started:#?}");
}

/// A claim reads the logs of starts before there is one of the partition, and chooses its jobs after
/// another claim has filled it.
#[tokio::test]
async fn r31_a_partitions_rate_holds_from_its_first_start() {
    let two = two();
    let rate = Rate { limit: 1, period: Duration::from_secs(60) };
    let settings = QueueSettings { partition_rate: Some(rate), ..QueueSettings::default() };
    two.second.set_queue(at(0), &queue(), &settings).await.unwrap();
    for _ in 0..2 {
        enqueue(&*two.second, 0, NewTrigger { partition: Some(key("p")), ..plain("1") }).await;
    }
    let second = Arc::clone(&two.second);
    two.between.before(|call| call.reads("x:l:"), async move {
        assert_eq!(start(&*second, 1, 1).await.len(), 1);
    });
    let more = start(&two.first, 1, 1).await;
    assert!(two.between.has_come());
    assert_eq!(more.len(), 0, "two starts within a minute");
}

/// A claim reads the log of its queue's rate; another claim starts a job before the first one reads the
/// logs of the partitions, among which the log of the queue is found again.
#[tokio::test]
async fn r31_a_start_between_two_reads_of_a_queues_log_counts() {
    for starts_before in [0, 1] {
        let two = two();
        let rate = |limit| Some(Rate { limit, period: Duration::from_secs(60) });
        let settings = QueueSettings {
            rate: rate(starts_before + 1),
            partition_rate: rate(starts_before + 1),
            ..QueueSettings::default()
        };
        two.second.set_queue(at(0), &queue(), &settings).await.unwrap();
        for name in ["a", "b", "c", "d"] {
            enqueue(&*two.second, 0, NewTrigger { partition: Some(key(name)), ..plain("1") }).await;
        }
        let before = usize::try_from(starts_before).unwrap();
        assert_eq!(start(&*two.second, 1, before).await.len(), before);
        let second = Arc::clone(&two.second);
        two.between.before(|call| call.reads("s:"), async move {
            assert_eq!(start(&*second, 1, 1).await.len(), 1);
        });
        let more = start(&two.first, 1, 2).await;
        assert!(two.between.has_come());
        assert_eq!(more.len(), 0, "more starts within a minute than the queue's rate");
    }
}

/// An attempt ends while a claim reads, and makes room for a job. That starts no earlier than the end.
#[tokio::test]
async fn r31_a_start_is_no_earlier_than_the_end_that_made_room() {
    let two = two();
    let settings = QueueSettings { concurrency: Some(1), ..QueueSettings::default() };
    two.second.set_queue(at(0), &queue(), &settings).await.unwrap();
    for payload in ["1", "2"] {
        enqueue(&*two.second, 0, plain(payload)).await;
    }
    let runs = start(&*two.second, 1, 1).await;
    let (second, between, settled) =
        (Arc::clone(&two.second), two.between.clone(), succeeded(&runs[0]));
    two.between.advance(at(2).unwrap());
    two.between.before(|call| call.reads("x:r:"), async move {
        between.advance(at(5).unwrap());
        second.settle(None, settled).await.unwrap();
    });
    let claimed = two.first.claim(None, &claim("w2", 1)).await.unwrap();
    assert!(two.between.has_come());
    let ids: Vec<_> = claimed.jobs.iter().map(|job| job.id).collect();
    assert_eq!(ids.len(), 1);
    let job = two.second.job(ids[0]).await.unwrap().unwrap();
    let ended = two.second.job(runs[0].id).await.unwrap().unwrap().ended_at;
    assert!(job.started_at >= ended, "started at {:?}, room since {ended:?}", job.started_at);
}

/// A claim finds a job in one partition, and starts it after a join has moved it into a full one.
#[tokio::test]
async fn r31_a_job_that_moves_to_a_full_partition_does_not_start() {
    let two = two();
    let settings = QueueSettings { partition_concurrency: Some(1), ..QueueSettings::default() };
    two.second.set_queue(at(0), &queue(), &settings).await.unwrap();
    let of = |name: &str| NewTrigger {
        partition: Some(key(name)),
        ..keyed_with("k", Debounce { max_triggers: Some(1), ..debounce() }, Fold::Last, "1")
    };
    enqueue(&*two.second, 0, NewTrigger { partition: Some(key("full")), ..plain("1") }).await;
    assert_eq!(start(&*two.second, 0, 1).await.len(), 1);
    enqueue(&*two.second, 1, of("free")).await;
    let (second, moved) = (Arc::clone(&two.second), of("full"));
    two.between.before(|call| call.gets("j:"), async move {
        enqueue(&*second, 2, moved).await;
    });
    let started = start(&two.first, 2, 1).await;
    assert!(two.between.has_come());
    assert_eq!(started.len(), 0, "two attempts of a partition that takes one");
}

/// A claim reads that a queue has no limit; meanwhile one is set, and another claim uses it up.
#[tokio::test]
async fn r31_a_new_limit_holds_for_a_claim_that_began_before_it() {
    let two = two();
    plains(&*two.second, 2).await;
    let second = Arc::clone(&two.second);
    two.between.before(|call| call.commits(), async move {
        let settings = QueueSettings { concurrency: Some(1), ..QueueSettings::default() };
        second.set_queue(at(0), &queue(), &settings).await.unwrap();
        // Of another task, so that both do not choose the same job.
        let other = NewTrigger { task: task("u"), ..plain("1") };
        enqueue(&*second, 1, other).await;
        let mine = quell_core::Claim { tasks: [task("u")].into(), ..claim("v", 1) };
        assert_eq!(second.claim(at(1), &mine).await.unwrap().jobs.len(), 1);
    });
    let started = start(&two.first, 1, 2).await;
    assert!(two.between.has_come());
    assert_eq!(started.len(), 0, "more than one attempt after the limit of one");
}

/// A claim reads that a queue is not paused, and would start jobs after the pause was acknowledged.
#[tokio::test]
async fn r33_a_claim_that_began_before_a_pause_starts_nothing_after_it() {
    let two = two();
    plains(&*two.second, 1).await;
    let second = Arc::clone(&two.second);
    two.between.before(|call| call.commits(), async move {
        let settings = QueueSettings { paused: true, ..QueueSettings::default() };
        second.set_queue(at(0), &queue(), &settings).await.unwrap();
        let counts = second.counts().await.unwrap();
        assert!(counts.iter().all(|count| count.state == JobState::Scheduled));
    });
    let started = start(&two.first, 1, 1).await;
    assert!(two.between.has_come());
    assert_eq!(started.len(), 0, "a paused queue hands out nothing");
}

/// The result of an effect comes after the lease was lost, and after the next attempt has read that
/// there is none.
#[tokio::test]
async fn r23_an_attempt_that_lost_its_lease_records_no_result() {
    let two = two();
    plains(&*two.second, 1).await;
    let first = start(&*two.second, 0, 1).await;
    let (name, id) = (EffectName::new("charge").unwrap(), key("e"));
    two.second.begin_effect(at(1), &lease(&first[0]), &name, &id).await.unwrap();
    let (second, effect) = (Arc::clone(&two.second), name.clone());
    two.between.before(|call| call.commits(), async move {
        assert_eq!(second.reap(at(31), 10).await.unwrap().len(), 1);
        let next = start(&*second, 31, 1).await;
        second.begin_effect(at(31), &lease(&next[0]), &effect, &key("f")).await.unwrap();
    });
    let result = Payload::from_text("17").unwrap();
    let late = two.first.end_effect(at(29), &lease(&first[0]), &name, &result).await;
    assert!(two.between.has_come());
    let late = late.map_err(|error| error.kind());
    assert_eq!(late, Err(ErrorKind::IllegalMove), "the lease was lost");
}

/// A backfill sees a schedule that is removed meanwhile, with all that fired.
#[tokio::test]
async fn r36_a_removed_schedule_fires_nothing_and_leaves_nothing() {
    let two = two();
    let name = ScheduleName::new("s").unwrap();
    let schedule = Schedule {
        name: name.clone(),
        spec: Spec::every(Duration::from_secs(10), Timestamp::from_secs(0)).unwrap(),
        catch_up: CatchUp::Latest,
        trigger: plain("1"),
        declared: None,
    };
    two.second.set_schedule(at(0), &schedule).await.unwrap();
    assert_eq!(two.second.tick(at(100), 10).await.unwrap().fired.len(), 1);
    let (second, gone) = (Arc::clone(&two.second), name.clone());
    two.between.before(|call| call.commits(), async move {
        second.delete_schedule(at(101), &gone).await.unwrap();
    });
    let (from, to) = (at(10).unwrap(), at(20).unwrap());
    let fired = two.first.backfill(at(101), &name, from, to).await;
    assert!(two.between.has_come());
    assert_eq!(names(&two.table, "f:").await, [""; 0], "ticks of a schedule that was removed");
    assert_eq!(fired.map_err(|error| error.kind()), Err(ErrorKind::NotFound));
}

/// Two processes take ids in blocks: a run of a schedule must not open a window with an earlier id
/// than one that waits.
#[tokio::test]
async fn r10_r36_the_run_of_a_schedule_opens_the_newest_window() {
    let two = two();
    let small = Debounce { max_bytes: Some(4), ..debounce() };
    let trigger = |payload: &str| keyed_with("k", small, Fold::Collect { cap: 1 }, payload);
    // The first process has early ids, the second later ones.
    plains(&two.first, 1).await;
    let name = ScheduleName::new("s").unwrap();
    let schedule = Schedule {
        name: name.clone(),
        spec: Spec::every(Duration::from_secs(1_000), Timestamp::from_secs(0)).unwrap(),
        catch_up: CatchUp::Latest,
        trigger: trigger("2"),
        declared: None,
    };
    two.second.set_schedule(at(0), &schedule).await.unwrap();
    let older = enqueue(&*two.second, 1, trigger("1")).await.job().unwrap();
    let newer = two.first.run_schedule(at(2), &name).await.unwrap().job().unwrap();
    assert!(newer > older, "job {newer} was triggered after job {older}");
    let jobs = two.second.claim(at(100), &claim("w", 10)).await.unwrap().jobs;
    let of_key = jobs.iter().filter(|job| job.key.is_some()).count();
    assert_eq!(of_key, 1, "one attempt of a key at a time");
}

/// A prune reads what names a job before a trigger takes a key that names it, and the job after.
#[tokio::test]
async fn r16_r19_a_key_that_is_taken_meanwhile_is_not_overlooked() {
    use quell_core::edge::Edge;
    use quell_core::idempotency::Idempotency;
    let two = two();
    let leading = Debounce { edge: Edge::Leading, ..debounce() };
    let trigger = || keyed_with("k", leading, Fold::Last, "1");
    enqueue(&*two.second, 0, trigger()).await;
    let runs = start(&*two.second, 0, 1).await;
    two.second.settle(at(1), succeeded(&runs[0])).await.unwrap();
    let second = Arc::clone(&two.second);
    let named = NewTrigger { idempotency: Some(Idempotency::new(key("i"))), ..trigger() };
    let again = named.clone();
    two.between.before(|call| call.gets("j:"), async move {
        enqueue(&*second, 3, named).await;
    });
    let retention = quell_core::Retention { succeeded: Some(secs(1)), dead: None };
    two.first.prune(at(3), &retention, 10).await.unwrap();
    assert!(two.between.has_come());
    let receipt = enqueue(&*two.second, 4, again).await;
    assert!(matches!(receipt, quell_core::Receipt::Existing { .. }), "{receipt:?}");
}

/// A place in an index is not where the row says, and other steps of the process succeed between the
/// tries.
#[tokio::test]
async fn r35_a_busy_process_gets_past_a_place_that_is_not_there() {
    let two = two();
    let rate = |period| QueueSettings {
        rate: Some(Rate { limit: 10, period: Duration::from_secs(period) }),
        ..QueueSettings::default()
    };
    two.second.set_queue(at(0), &queue(), &rate(100)).await.unwrap();
    plains(&*two.second, 2).await;
    assert_eq!(start(&*two.second, 0, 1).await.len(), 1);
    two.second.set_queue(at(0), &queue(), &rate(200)).await.unwrap();
    let store = Arc::new(two.first);
    let (mut busy, works) = (JoinSet::new(), Arc::clone(&store));
    busy.spawn(async move {
        loop {
            enqueue(&*works, 0, NewTrigger { task: task("other"), ..plain("1") }).await;
            tokio::task::yield_now().await;
        }
    });
    tokio::task::yield_now().await;
    let claimed = store.claim(at(1), &claim("w", 1)).await;
    busy.abort_all();
    assert_eq!(claimed.unwrap().jobs.len(), 1);
}
