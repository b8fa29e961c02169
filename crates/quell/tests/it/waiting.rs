//! Why a job has not started yet, on every store (R15).

use std::time::Duration;

use quell::job::WaitReason;
use quell::queue::{PartitionOrder, QueueSettings, Rate};
use quell::store::{Claim, Claimed, Draw, Heartbeat};
use quell::trigger::NewTrigger;
use quell::worker::WorkerId;
use quell::{
    Batch, Job, JobId, Key, Payload, Policy, Quell, QueueName, Result, TaskName, Timestamp, When,
};
use quell_conformance::rig::{fails, secs, until};

const WORKER: &str = "w";

/// A queue of its own for each reason, on one store.
struct Rig {
    quell: Quell,
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn task() -> TaskName {
    TaskName::new("t").unwrap()
}

impl Rig {
    fn trigger_in(name: &str) -> NewTrigger {
        Policy::queue(name).trigger(task(), Payload::from_stored("1"), None).unwrap()
    }

    async fn accept(&self, trigger: NewTrigger) -> JobId {
        let receipts = self.quell.enqueue(Batch::one(trigger)).await.unwrap();
        receipts[0].job().unwrap()
    }

    async fn job(&self, id: JobId) -> Job {
        self.quell.job(id).await.unwrap().unwrap()
    }

    async fn claim(&self, name: &str, limit: usize) -> Claimed {
        let claim = Claim {
            queue: queue(name),
            tasks: [task()].into(),
            worker: WorkerId::new(WORKER).unwrap(),
            limit,
            lease: secs(600),
            draw: Draw::new(fastrand::u64(..)),
        };
        self.quell.store().claim(self.quell.clock().store_time(), &claim).await.unwrap()
    }

    /// A worker of a queue, with one slot.
    async fn beat(&self, name: &str, busy: u32, tasks: &[&str]) {
        let tasks = tasks.iter().map(|name| TaskName::new(*name).unwrap());
        let beat = Heartbeat {
            worker: WorkerId::new(format!("of-{name}")).unwrap(),
            incarnation: 1,
            host: String::new(),
            pid: 1,
            version: String::new(),
            queues: vec![queue(name)],
            tasks: Some(tasks.collect()),
            slots: 1,
            busy,
            lease: secs(600),
            age: Duration::ZERO,
        };
        self.quell.store().heartbeat(self.quell.clock().store_time(), &beat).await.unwrap();
    }

    /// The store's time.
    async fn now(&self) -> Timestamp {
        self.quell.store().workers(self.quell.clock().store_time()).await.unwrap().now
    }

    async fn reasons(&self, id: JobId) -> Vec<WaitReason> {
        let job = self.job(id).await;
        self.quell.why_waiting(&job).await.unwrap().unwrap().reasons
    }

    async fn set(&self, name: &str, settings: QueueSettings) {
        self.quell.queue(name).set(&settings).await.unwrap();
    }
}

/// Each reason, each in a queue of its own. A store with a timer lists no idle worker.
async fn each_reason_is_named(quell: Quell) -> Result<()> {
    let lists_all = !quell.store().capabilities().timed;
    let rig = Rig { quell };
    let queues =
        ["due", "key", "pause", "gone", "full", "part", "turn", "rate", "busy", "free", "share"];
    for name in queues {
        rig.beat(name, u32::from(name == "busy"), &["s", "t"]).await;
    }
    rig.beat("strange", 0, &["s"]).await;

    let job =
        rig.accept(NewTrigger { when: When::After(secs(3_600)), ..Rig::trigger_in("due") }).await;
    let due = rig.job(job).await.window.due_at;
    let waiting = rig.quell.why_waiting(&rig.job(job).await).await?.unwrap();
    assert!(matches!(waiting.reasons[..], [WaitReason::NotDue { until, .. }] if until == due));
    assert_eq!(waiting.starts_at(), Some(due));

    let keyed = || {
        let policy =
            Policy::queue("key").debounce(Duration::from_millis(1)..=Duration::from_millis(2));
        let key = Some(Key::new("k").unwrap());
        policy.trigger(task(), Payload::from_stored("1"), key).unwrap()
    };
    let runs = rig.accept(keyed()).await;
    until("the window is due", || async { rig.claim("key", 1).await.jobs.len() == 1 }).await;
    let waits = rig.accept(keyed()).await;
    until("the newer window waits for its key alone", || async {
        matches!(rig.reasons(waits).await[..], [WaitReason::KeyRuns { job, since: Some(_) }] if job == runs)
    })
    .await;
    assert_eq!(rig.quell.why_waiting(&rig.job(runs).await).await?, None, "it runs");

    each_pause_is_named(&rig).await?;
    each_limit_is_named(&rig).await?;
    the_rate_of_a_partition_is_named(&rig).await?;
    let job = rig.accept(Rig::trigger_in("busy")).await;
    let busy = WaitReason::WorkersBusy { busy: 1, slots: 1 };
    assert_eq!(rig.reasons(job).await, [busy]);
    let job = rig.accept(Rig::trigger_in("free")).await;
    assert_eq!(rig.reasons(job).await, [WaitReason::NextClaim]);
    if lists_all {
        let worker = WorkerId::new("of-free").unwrap();
        let drain = quell::worker::WorkerDrain::new(worker.clone(), true);
        assert_eq!(rig.quell.drain_worker(&drain).await?, 1);
        assert_eq!(rig.reasons(job).await, [WaitReason::WorkersDrained { workers: 1 }]);
        let resume = quell::worker::WorkerDrain::new(worker, false);
        assert_eq!(rig.quell.drain_worker(&resume).await?, 1);
        assert_eq!(rig.reasons(job).await, [WaitReason::NextClaim]);
    }
    let job = rig.accept(Rig::trigger_in("alone")).await;
    let expected = if lists_all { WaitReason::NoWorker } else { WaitReason::NextClaim };
    assert_eq!(rig.reasons(job).await, [expected]);
    let job = rig.accept(Rig::trigger_in("strange")).await;
    let expected = if lists_all { WaitReason::NoWorkerKnowsTask } else { WaitReason::NextClaim };
    assert_eq!(rig.reasons(job).await, [expected]);

    let before = rig.now().await;
    rig.quell.set_task(&task(), &quell::queue::TaskSettings::default().paused(true)).await?;
    let job = rig.accept(Rig::trigger_in("free")).await;
    let reasons = rig.reasons(job).await;
    let [WaitReason::TaskPaused { since: Some(since), by: None }] = &reasons[..] else {
        panic!("{reasons:?}")
    };
    assert!((before..=rig.now().await).contains(since), "{reasons:?}");
    Ok(())
}

/// Queues that are paused, or were deleted.
async fn each_pause_is_named(rig: &Rig) -> Result<()> {
    let job = rig.accept(Rig::trigger_in("pause")).await;
    let before = rig.now().await;
    rig.quell.queue("pause").pause_by("ann").await?;
    let reasons = rig.reasons(job).await;
    let [WaitReason::QueuePaused { since: Some(since), by: Some(by) }] = &reasons[..] else {
        panic!("{reasons:?}")
    };
    assert!((before..=rig.now().await).contains(since) && by == "ann", "{reasons:?}");
    assert_eq!(reasons[0].to_string(), format!("its queue is paused since {since} by ann"));
    rig.quell.queue("pause").pause().await?;
    assert_eq!(rig.reasons(job).await, reasons, "it stays paused");
    let job = rig.accept(Rig::trigger_in("gone")).await;
    rig.quell.queue("gone").delete().await?;
    assert_eq!(rig.reasons(job).await, [WaitReason::QueueDeleted]);
    Ok(())
}

/// Slots that are taken, the order of a partition, and a rate.
async fn each_limit_is_named(rig: &Rig) -> Result<()> {
    rig.set("full", QueueSettings::default().concurrency(1)).await;
    rig.accept(Rig::trigger_in("full")).await;
    assert_eq!(rig.claim("full", 9).await.jobs.len(), 1);
    let job = rig.accept(Rig::trigger_in("full")).await;
    assert_eq!(rig.reasons(job).await, [WaitReason::QueueFull { running: 1, limit: 1 }]);

    rig.set("part", QueueSettings::default().partition_concurrency(1)).await;
    let of = |name: &str| NewTrigger {
        partition: Some(Key::new(name).unwrap()),
        ..Rig::trigger_in("part")
    };
    rig.accept(of("a")).await;
    assert_eq!(rig.claim("part", 9).await.jobs.len(), 1);
    let (full, other) = (rig.accept(of("a")).await, rig.accept(of("b")).await);
    assert_eq!(rig.reasons(full).await, [WaitReason::PartitionFull { running: 1, limit: 1 }]);
    assert_eq!(rig.reasons(other).await, [WaitReason::NextClaim]);

    rig.set("turn", QueueSettings::default().partition_order(PartitionOrder::Strict)).await;
    let of = |payload: &str| NewTrigger {
        partition: Some(Key::new("a").unwrap()),
        payload: Payload::from_stored(payload),
        ..Rig::trigger_in("turn")
    };
    let (first, second) = (rig.accept(of("1")).await, rig.accept(of("2")).await);
    assert_eq!(rig.reasons(first).await, [WaitReason::NextClaim]);
    assert_eq!(rig.reasons(second).await, [WaitReason::Turn { job: first }]);
    let claimed = rig.claim("turn", 9).await;
    assert_eq!(claimed.jobs.len(), 1);
    let lease = quell::store::Lease { job: first, token: claimed.jobs[0].token };
    let outcome = quell::store::Outcome::Snoozed { delay: secs(3_600) };
    let settlement = quell::store::Settlement { lease, outcome };
    rig.quell.store().settle(None, vec![settlement]).await?;
    assert_eq!(rig.reasons(second).await, [WaitReason::Turn { job: first }]);

    rig.set("rate", QueueSettings::default().rate(Rate { limit: 1, period: secs(3_600) })).await;
    rig.accept(Rig::trigger_in("rate")).await;
    let claimed = rig.claim("rate", 9).await;
    assert_eq!(claimed.jobs.len(), 1);
    let job = rig.accept(Rig::trigger_in("rate")).await;
    assert_eq!(rig.reasons(job).await, [WaitReason::Rate { until: claimed.now + secs(3_600) }]);
    Ok(())
}

/// The rate of a partition apart from that of its queue, retries included.
async fn the_rate_of_a_partition_is_named(rig: &Rig) -> Result<()> {
    let of = |name: &str| NewTrigger {
        partition: Some(Key::new(name).unwrap()),
        ..Rig::trigger_in("share")
    };
    let hour = |limit: u32| Rate { limit, period: secs(3_600) };
    rig.set("share", QueueSettings::default().partition_rate(hour(1))).await;
    rig.accept(NewTrigger { priority: 5, ..of("a") }).await;
    let first = rig.claim("share", 9).await;
    let (held, free) = (rig.accept(of("a")).await, rig.accept(of("b")).await);
    let of_partition = WaitReason::PartitionRate { until: first.now + secs(3_600) };
    assert_eq!(rig.reasons(held).await, std::slice::from_ref(&of_partition));
    assert_eq!(rig.reasons(free).await, [WaitReason::NextClaim]);

    // Each start of a job counts.
    rig.set("share", QueueSettings::default().partition_rate(hour(2))).await;
    let lease = quell::store::Lease { job: first.jobs[0].id, token: first.jobs[0].token };
    let outcome = fails(Duration::from_micros(1), false);
    let settlement = quell::store::Settlement { lease, outcome };
    rig.quell.store().settle(None, vec![settlement]).await?;
    until("b and one of a have started", || async {
        rig.claim("share", 9).await;
        rig.job(free).await.starts() == 1
            && rig.job(held).await.starts() + rig.job(first.jobs[0].id).await.starts() == 2
    })
    .await;
    let held = rig.accept(of("a")).await;
    assert_eq!(rig.reasons(held).await, std::slice::from_ref(&of_partition));

    let both = QueueSettings::default().rate(Rate { limit: 3, period: secs(7_200) });
    rig.set("share", both.partition_rate(hour(2))).await;
    assert_eq!(
        rig.reasons(held).await,
        std::slice::from_ref(&of_partition),
        "the queue's has counted no start yet"
    );
    for _ in 0..3 {
        rig.accept(Rig::trigger_in("share")).await;
    }
    let claimed = rig.claim("share", 9).await;
    assert_eq!(claimed.jobs.len(), 3);
    let of_queue = WaitReason::Rate { until: claimed.now + secs(7_200) };
    assert_eq!(rig.reasons(held).await, [of_queue, of_partition]);
    Ok(())
}

#[tokio::test]
async fn r15_each_reason_to_wait_is_named_in_memory() -> Result<()> {
    each_reason_is_named(Quell::open("memory:").await?).await
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r15_each_reason_to_wait_is_named_on_sqlite() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("app.db").display());
    each_reason_is_named(Quell::open(&url).await?).await
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn r15_each_reason_to_wait_is_named_on_postgres() -> Result<()> {
    each_reason_is_named(Quell::open(&quell_services::url_for_tests()).await?).await
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn r15_each_reason_to_wait_is_named_on_redis() -> Result<()> {
    each_reason_is_named(Quell::open(&crate::redis::url()).await?).await
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r15_a_late_start_is_told_with_the_job_that_ran_until_then() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("app.db").display());
    let rig = Rig { quell: Quell::open(&url).await? };
    let keyed = || {
        let policy =
            Policy::queue("q").debounce(Duration::from_millis(1)..=Duration::from_millis(2));
        let key = Some(Key::new("k").unwrap());
        policy.trigger(task(), Payload::from_stored("1"), key).unwrap()
    };
    let first = rig.accept(keyed()).await;
    until("the window is due", || async { !rig.claim("q", 1).await.jobs.is_empty() }).await;
    let second = rig.accept(keyed()).await;
    let running = rig.job(first).await;
    let lease = quell::store::Lease { job: first, token: running.token };
    until("the newer one is due", || async {
        let due = rig.job(second).await.window.due_at;
        let now = rig.claim("q", 1).await.now;
        due < now
    })
    .await;
    let outcome = quell::store::Outcome::succeeded();
    let settlement = quell::store::Settlement { lease, outcome };
    rig.quell.store().settle(None, vec![settlement]).await?;
    assert_eq!(rig.claim("q", 1).await.jobs.len(), 1);
    let late = rig.quell.how_late(&rig.job(second).await).await?.unwrap();
    assert_eq!(late.after, Some(first), "{late}");
    let of_first = rig.quell.how_late(&rig.job(first).await).await?;
    assert!(of_first.is_none_or(|late| late.after.is_none()), "nothing of its key ran before it");
    Ok(())
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn r15_a_late_start_names_the_job_of_its_partition_that_ran_until_then() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("app.db").display());
    let rig = Rig { quell: Quell::open(&url).await? };
    let one = QueueSettings::default().partition_concurrency(1);
    rig.quell.queue("q").set(&one).await?;
    let of_customer = |name: &str| {
        let partition = Some(Key::new(name).unwrap());
        NewTrigger { partition, ..Rig::trigger_in("q") }
    };
    let first = rig.accept(of_customer("4711")).await;
    assert_eq!(rig.claim("q", 1).await.jobs.len(), 1);
    let second = rig.accept(of_customer("4711")).await;
    let other = rig.accept(of_customer("17")).await;
    assert_eq!(rig.claim("q", 1).await.jobs[0].id, other, "its partition is full");
    until("the second one is due", || async {
        rig.job(second).await.window.due_at < rig.claim("q", 1).await.now
    })
    .await;
    let full = WaitReason::PartitionFull { running: 1, limit: 1 };
    let waiting = rig.quell.why_waiting(&rig.job(second).await).await?.unwrap();
    assert!(waiting.reasons.contains(&full), "{waiting:?}");
    assert_eq!(full.to_string(), "its partition runs 1 attempt, and 1 is the limit");
    let lease = quell::store::Lease { job: first, token: rig.job(first).await.token };
    let outcome = quell::store::Outcome::succeeded();
    rig.quell.store().settle(None, vec![quell::store::Settlement { lease, outcome }]).await?;
    assert_eq!(rig.claim("q", 1).await.jobs[0].id, second);
    let late = rig.quell.how_late(&rig.job(second).await).await?.unwrap();
    assert_eq!((late.after, late.after_in_partition), (None, Some(first)), "{late}");
    assert!(late.to_string().contains(&format!("job {first} of it ran until then")), "{late}");
    Ok(())
}
