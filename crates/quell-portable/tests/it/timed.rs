//! Stores whose workers sleep until a timer wakes them: the published scenarios of scheduled messages
//! and conditional rows, and what may go wrong in each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::rig::{fails, key, keyed, lease, plain, queue, task};
use quell_conformance::{Opened, Rig};
use quell_core::{
    Batch, ClaimedJob, Error, ErrorKind, JobState, NewTrigger, Outcome, QueueSettings, Store,
    Wakeups,
};
use quell_engine::Engine;
use quell_portable::{MemoryTimer, Message, Partition, Scheduled, Timed, Timer};
use quell_testkit::{Counted, WriteFails};
use tokio::time::{Instant, timeout, timeout_at};

/// Longer than anything here takes, in the paused time of a test.
const LONG: Duration = Duration::from_secs(3_600);
/// How long a message is locked.
const LOCK: Duration = Duration::from_secs(30);

/// A table and a timer, whose clocks go together.
pub(crate) struct Scene {
    pub(crate) table: Counted,
    pub(crate) timer: MemoryTimer,
}

/// A process with one worker on them.
pub(crate) struct Process {
    pub(crate) rig: Rig,
    pub(crate) wakeups: Wakeups,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let table = Counted::new(Rig::START);
        Scene { table, timer: MemoryTimer::new(Rig::START, LOCK) }
    }

    /// A process that triggers only.
    pub(crate) fn client(&self) -> Rig {
        let timer: Arc<dyn Timer> = Arc::new(self.timer.clone());
        let partition = Partition::new(self.table.clone(), "p").with_timer(timer);
        let store: Arc<dyn Store> = Arc::new(Timed::new(Engine::new(partition)).unwrap());
        Rig::new(Opened { store, guard: Box::new(()) })
    }

    pub(crate) fn worker(&self) -> Process {
        let rig = self.client();
        let wakeups = rig.store.wakeups();
        Process { rig, wakeups }
    }

    /// A window of a key that runs at 10 s, and a trigger of the key during the run: the client, the
    /// worker and the run.
    async fn triggered_during_a_run(&self) -> (Rig, Process, ClaimedJob) {
        let (mut client, mut worker) = (self.client(), self.worker());
        client.trigger(keyed("k")).await;
        self.at(10, &mut [&mut client, &mut worker.rig]);
        let run = worker.woken_one().await;
        client.trigger(keyed("k")).await;
        (client, worker, run)
    }

    /// It is this second of the test; every process knows.
    pub(crate) fn at(&self, second: u64, rigs: &mut [&mut Rig]) {
        let now = Rig::START + Duration::from_secs(second);
        self.table.table.advance(now);
        for rig in rigs {
            rig.at(second);
        }
        self.timer.advance(now);
    }

    /// Waits until this number of messages is left.
    pub(crate) async fn settles_at(&self, messages: usize) {
        let left = || self.timer.waiting().len();
        let reached = async {
            while left() != messages {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = timeout(LONG, reached).await;
        assert!(in_time.is_ok(), "{messages} messages were to be left: {:?}", self.timer.waiting());
    }
}

impl Process {
    /// What a worker claims when it is woken next, once it has taken back expired leases.
    pub(crate) async fn woken(&mut self) -> Vec<ClaimedJob> {
        loop {
            let woken = timeout(LONG, self.wakeups.next()).await.unwrap().unwrap();
            if woken.queue.is_none_or(|woken| woken == queue()) {
                self.rig.reap().await;
                return self.rig.claim().await;
            }
        }
    }

    pub(crate) async fn woken_one(&mut self) -> ClaimedJob {
        let mut jobs = self.woken().await;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    /// Works whenever it is woken, until this number of messages is left.
    pub(crate) async fn works_until(&mut self, scene: &Scene, messages: usize) {
        let reached = async {
            while scene.timer.waiting().len() != messages {
                if timeout(Duration::from_secs(1), self.wakeups.next()).await.is_ok() {
                    for job in self.rig.claim().await {
                        self.rig.succeed(&job).await;
                    }
                }
            }
        };
        let in_time = timeout(LONG, reached).await;
        assert!(
            in_time.is_ok(),
            "{messages} messages were to be left: {:?}",
            scene.timer.waiting()
        );
    }

    /// Nothing wakes the worker, however long it waits.
    async fn sleeps(&mut self) {
        let woken = timeout(LONG, self.wakeups.next()).await;
        assert!(woken.is_err(), "{woken:?}");
    }
}

/// Triggers a key, which the table refuses.
async fn fails_to_trigger(client: &Rig, key: &str) -> Error {
    client.store.enqueue(Some(client.now()), vec![Batch::one(keyed(key))]).await.unwrap_err()
}

/// Published: a message per window, and never more messages than triggers.
#[tokio::test(start_paused = true)]
async fn r07_a_window_has_one_message_which_is_sent_on_where_it_moved() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    for second in [0, 4, 8] {
        scene.at(second, &mut [&mut client, &mut worker.rig]);
        client.trigger(keyed("k")).await;
        assert_eq!(scene.timer.scheduled(), 1);
    }
    // Due at 10 s as the first trigger had it, and at 18 s as the last one has it.
    scene.at(10, &mut [&mut client, &mut worker.rig]);
    worker.sleeps().await;
    assert_eq!(scene.timer.waiting(), [Rig::START + Duration::from_secs(18)]);
    scene.at(18, &mut [&mut client, &mut worker.rig]);
    let job = worker.woken_one().await;
    assert_eq!(job.triggers, 3);
    worker.rig.succeed(&job).await;
    scene.settles_at(0).await;
    assert_eq!(scene.timer.scheduled(), 2, "at most a message for each trigger");
}

/// Published: success deletes exactly what was captured. What came during the run has a window and a
/// message of its own.
#[tokio::test(start_paused = true)]
async fn r02_a_trigger_during_a_run_has_a_message_of_its_own() {
    let scene = Scene::new();
    let (mut client, mut worker, first) = scene.triggered_during_a_run().await;
    scene.at(15, &mut [&mut client, &mut worker.rig]);
    worker.rig.succeed(&first).await;
    scene.at(20, &mut [&mut client, &mut worker.rig]);
    let second = worker.woken_one().await;
    assert_eq!((first.triggers, second.triggers), (1, 1));
    worker.rig.succeed(&second).await;
    scene.settles_at(0).await;
    assert_eq!(scene.timer.scheduled(), 2);
}

/// Published: the message is sent first, so one whose row was never written comes, and is ignored. It was
/// not cancelled, as its row might have been there.
#[tokio::test(start_paused = true)]
async fn r01_a_message_whose_row_was_never_written_is_ignored() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    // Ids are taken, so the step gets as far as its commit.
    client.trigger(keyed("other")).await;
    scene.table.fails_with([WriteFails::Unknown]);
    assert!(fails_to_trigger(&client, "k").await.is_unknown_outcome());
    assert_eq!((scene.timer.scheduled(), scene.timer.waiting().len()), (2, 2));
    scene.at(10, &mut [&mut client, &mut worker.rig]);
    let other = worker.woken_one().await;
    worker.rig.succeed(&other).await;
    // While the step may still be in flight the message waits for it, and no longer.
    scene.settles_at(1).await;
    scene.at(61, &mut [&mut client, &mut worker.rig]);
    worker.works_until(&scene, 0).await;
    assert!(worker.rig.jobs().await.iter().all(|job| job.key == Some(key("other"))));
}

/// A try that lost leaves no message behind, which could start a process for nothing.
#[tokio::test(start_paused = true)]
async fn r34_a_try_that_surely_wrote_nothing_leaves_no_message_behind() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    client.trigger(keyed("taken")).await;
    let due = Rig::START + Duration::from_secs(10);
    scene.table.fails_with([WriteFails::Conflict, WriteFails::Conflict]);
    client.trigger(keyed("k")).await;
    assert_eq!((scene.timer.scheduled(), scene.timer.waiting()), (4, vec![due, due]));
    scene.table.fails_with([WriteFails::Refused]);
    assert_eq!(fails_to_trigger(&client, "other").await.kind(), ErrorKind::Unavailable);
    assert_eq!((scene.timer.scheduled(), scene.timer.waiting()), (5, vec![due, due]));
    scene.at(10, &mut [&mut client, &mut worker.rig]);
    worker.works_until(&scene, 0).await;
    let jobs = worker.rig.jobs().await;
    assert!(jobs.len() == 2 && jobs.iter().all(|job| job.state == JobState::Succeeded), "{jobs:?}");
}

/// The message of a job that is due may have been received: it is left, and finds nothing.
#[tokio::test(start_paused = true)]
async fn r34_a_message_that_is_due_is_not_cancelled() {
    let scene = Scene::new();
    let client = scene.client();
    client.trigger(plain("1")).await;
    scene.table.fails_with([WriteFails::Conflict]);
    client.trigger(plain("2")).await;
    assert_eq!(scene.timer.waiting(), [Rig::START; 3]);
}

#[tokio::test(start_paused = true)]
async fn r34_a_message_that_was_delivered_is_not_cancelled() {
    let scene = Scene::new();
    let at = |second| Rig::START + Duration::from_secs(second);
    let send = async |second| {
        let message = Message { body: b"m".to_vec(), name: None };
        scene.timer.schedule(&message, Rig::START, at(second)).await.unwrap()
    };
    assert_eq!(send(0).await, None, "it is due");
    scene.timer.complete(&scene.timer.receive(1, LOCK).await.unwrap()[0].delivery).await.unwrap();
    let (first, second) = (send(10).await.unwrap(), send(20).await.unwrap());
    scene.timer.cancel(&second).await.unwrap();
    scene.timer.advance(at(20));
    let received = scene.timer.receive(9, LOCK).await.unwrap();
    assert_eq!(received.len(), 1);
    for gone in [&first, &second, &Scheduled::new("another timer's")] {
        assert_eq!(scene.timer.cancel(gone).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    scene.timer.complete(&received[0].delivery).await.unwrap();
    assert_eq!(scene.timer.cancel(&first).await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Published: a wake-up that finds nothing is ignored.
#[tokio::test(start_paused = true)]
async fn r09_a_message_of_a_job_that_was_cancelled_is_ignored() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    let id = client.trigger(keyed("k")).await.job().unwrap();
    client.cancel(id).await.unwrap();
    scene.at(10, &mut [&mut client, &mut worker.rig]);
    scene.settles_at(0).await;
    worker.sleeps().await;
}

/// Published: a holder that dies loses the lock, and another takes the row once its time is over.
#[tokio::test(start_paused = true)]
async fn r21_what_a_dead_process_had_started_comes_to_another() {
    let scene = Scene::new();
    let (mut client, mut dies) = (scene.client(), scene.worker());
    let triggers = vec![plain("1"), plain("2")];
    client.trigger_batch(Batch { triggers, dedup: None }).await;
    let started = dies.woken().await;
    assert_eq!(started.len(), 2);
    assert_eq!(scene.timer.scheduled(), 1, "one message covers both");
    drop(dies);
    let mut successor = scene.worker();
    scene.timer.lose_locks();
    // Its leases hold still.
    scene.at(15, &mut [&mut client, &mut successor.rig]);
    assert!(successor.woken().await.is_empty());
    scene.at(31, &mut [&mut client, &mut successor.rig]);
    let mut again = Vec::new();
    while again.len() < 2 {
        again.extend(successor.woken().await);
    }
    for job in &again {
        assert!(started.iter().any(|one| one.id == job.id && one.token < job.token));
        successor.rig.succeed(job).await;
    }
    // One that was started before its message came has a message for the end of its lease.
    scene.at(62, &mut [&mut client, &mut successor.rig]);
    successor.works_until(&scene, 0).await;
}

/// What starts under no message, because a worker looked by itself, has one for the end of its lease.
#[tokio::test(start_paused = true)]
async fn r21_what_started_without_a_message_is_taken_back_by_one() {
    let scene = Scene::new();
    let (mut client, mut looks) = (scene.client(), scene.client());
    client.trigger(keyed("k")).await;
    scene.at(10, &mut [&mut client, &mut looks]);
    let started = looks.claim_one().await;
    drop(looks);
    let mut successor = scene.worker();
    // The message of the window finds that another worker runs it.
    scene.at(11, &mut [&mut client, &mut successor.rig]);
    while scene.timer.waiting() != [Rig::START + Duration::from_secs(40)] {
        assert!(!scene.timer.waiting().is_empty());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    scene.at(41, &mut [&mut client, &mut successor.rig]);
    let again = successor.woken_one().await;
    assert_eq!(again.id, started.id);
    successor.rig.succeed(&again).await;
    // One that took a lease back looks once more, at the end of the first lease that it saw.
    scene.at(72, &mut [&mut client, &mut successor.rig]);
    successor.works_until(&scene, 0).await;
}

/// Published: the lock is renewed while the task runs, however long that is.
#[tokio::test(start_paused = true)]
async fn r21_a_long_run_keeps_its_message() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    client.trigger(plain("1")).await;
    let job = worker.woken_one().await;
    for second in (10..300).step_by(10) {
        scene.at(second, &mut [&mut client, &mut worker.rig]);
        assert!(worker.rig.renew(lease(&job)).await.is_some());
        // The lock is renewed in real time, as a service has it.
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(scene.timer.waiting().len(), 1);
    }
    worker.rig.succeed(&job).await;
    scene.settles_at(0).await;
    assert_eq!(scene.timer.scheduled(), 1);
}

/// A lock that is lost in mid-run costs no job its message.
#[tokio::test(start_paused = true)]
async fn r21_a_lock_that_is_lost_in_mid_run_leaves_a_message_behind() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    client.trigger(plain("1")).await;
    let job = worker.woken_one().await;
    let mut other = scene.worker();
    scene.timer.lose_locks();
    scene.at(20, &mut [&mut client, &mut worker.rig, &mut other.rig]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!scene.timer.waiting().is_empty());
    worker.rig.succeed(&job).await;
    drop(worker);
    scene.at(100, &mut [&mut client, &mut other.rig]);
    other.works_until(&scene, 0).await;
}

/// A table that is away for a moment costs no message: the process holds it, and it comes to another one
/// when the process dies.
#[tokio::test(start_paused = true)]
async fn r21_r39_a_message_is_held_while_the_table_is_away() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    client.trigger(plain("1")).await;
    let first = worker.woken_one().await;
    scene.table.has_no_time.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(120)).await;
    scene.table.has_no_time.store(false, Ordering::SeqCst);
    worker.rig.succeed(&first).await;
    client.trigger(plain("2")).await;
    let second = worker.woken_one().await;
    drop(worker);
    let mut successor = scene.worker();
    scene.timer.lose_locks();
    scene.at(31, &mut [&mut client, &mut successor.rig]);
    let again = successor.woken_one().await;
    assert_eq!(again.id, second.id);
    successor.rig.succeed(&again).await;
    scene.at(62, &mut [&mut client, &mut successor.rig]);
    successor.works_until(&scene, 0).await;
}

/// Jobs of messages that the lost one covered have another.
#[tokio::test(start_paused = true)]
async fn r21_a_lock_that_is_lost_leaves_no_job_behind_that_others_know() {
    let scene = Scene::new();
    let (client, mut knows) = (scene.client(), scene.worker());
    let other = || NewTrigger { task: task("other"), ..plain("1") };
    client.trigger(other()).await;
    client.trigger(other()).await;
    // This worker knows no such task, and holds one message for both jobs while something runs.
    client.trigger(plain("1")).await;
    let job = loop {
        if let Some(job) = knows.woken().await.pop() {
            break job;
        }
    };
    scene.settles_at(1).await;
    let held = scene.timer.scheduled();
    scene.timer.lose_locks();
    drop(client);
    tokio::time::sleep(LOCK).await;
    assert!(scene.timer.scheduled() > held, "their jobs are named again");
    knows.rig.succeed(&job).await;
}

/// Published: failure releases and redelivers, and then the job is dead.
#[tokio::test(start_paused = true)]
async fn r24_a_failure_comes_again_at_its_time_until_the_job_is_dead() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    let id = client.trigger(plain("1")).await.job().unwrap();
    let job = worker.woken_one().await;
    worker.rig.fail(&job, Duration::from_secs(40)).await;
    scene.settles_at(1).await;
    assert_eq!(scene.timer.waiting(), [Rig::START + Duration::from_secs(40)]);
    scene.at(40, &mut [&mut client, &mut worker.rig]);
    let job = worker.woken_one().await;
    worker.rig.settle(lease(&job), fails(Duration::ZERO, true)).await;
    scene.settles_at(0).await;
    assert_eq!(worker.rig.job(id).await.state, JobState::Dead);
}

/// R32: a paused queue wakes no worker; when it is resumed, a message wakes them.
#[tokio::test(start_paused = true)]
async fn r32_a_paused_queue_goes_on_by_a_message() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client(), scene.worker());
    client.set_queue(QueueSettings { paused: true, ..QueueSettings::default() }).await;
    client.trigger(plain("1")).await;
    assert!(worker.woken().await.is_empty());
    scene.at(5, &mut [&mut client, &mut worker.rig]);
    client.set_queue(QueueSettings::default()).await;
    let job = loop {
        if let Some(job) = worker.woken().await.pop() {
            break job;
        }
    };
    worker.rig.succeed(&job).await;
    scene.at(400, &mut [&mut client, &mut worker.rig]);
    worker.works_until(&scene, 0).await;
}

/// What a message woke a worker for and it could not take stays its matter until it is done.
#[tokio::test(start_paused = true)]
async fn r01_a_backlog_keeps_one_message_until_it_is_done() {
    let scene = Scene::new();
    let (client, mut worker) = (scene.client(), scene.worker());
    for payload in 0..20 {
        client.trigger(plain(&payload.to_string())).await;
    }
    let mut done = 0;
    let small = quell_core::Claim { limit: 3, ..Rig::claim_of(3) };
    timeout(LONG, worker.wakeups.next()).await.unwrap();
    scene.settles_at(1).await;
    while done < 20 {
        let jobs = worker.rig.claim_with(&small).await;
        assert!(!jobs.is_empty());
        for job in jobs {
            assert_eq!(scene.timer.waiting().len(), 1);
            worker.rig.succeed(&job).await;
            done += 1;
        }
    }
    worker.rig.claim_none().await;
    scene.settles_at(0).await;
    assert_eq!(scene.timer.scheduled(), 20);
}

/// Published: duplicates are ignored. So are messages that are not Quell's, which an operator finds.
#[tokio::test(start_paused = true)]
async fn r34_foreign_messages_are_put_aside() {
    let scene = Scene::new();
    let mut worker = scene.worker();
    let message = Message { body: b"hello".to_vec(), name: None };
    scene.timer.schedule(&message, Rig::START, Rig::START).await.unwrap();
    scene.settles_at(0).await;
    let dead = scene.timer.dead();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].0, b"hello");
    worker.sleeps().await;
}

/// A worker that is not woken sends no request: not in ten minutes, with windows that are not due.
#[tokio::test(start_paused = true)]
async fn r34_nothing_is_asked_of_the_table_while_nothing_is_due() {
    let scene = Scene::new();
    let (client, mut worker) = (scene.client(), scene.worker());
    client.trigger(keyed("k")).await;
    worker.rig.claim_none().await;
    let before = scene.table.requests.load(Ordering::SeqCst);
    let woken = timeout(Duration::from_secs(600), worker.wakeups.next()).await;
    assert!(woken.is_err());
    assert_eq!(scene.table.requests.load(Ordering::SeqCst), before);
}

/// What was there before there was a timer: windows, backlogs, leases of processes that are gone, plans.
#[tokio::test(start_paused = true)]
async fn r01_r34_a_timer_that_is_new_to_a_store_is_told_all_that_is_there() {
    let scene = Scene::new();
    let partition = Partition::new(scene.table.clone(), "p");
    let store: Arc<dyn Store> = Arc::new(Engine::new(partition));
    let before = Rig::new(Opened { store, guard: Box::new(()) });
    before.trigger(plain("1")).await;
    let started = before.claim_one().await;
    before.trigger(keyed("k")).await;
    for payload in 0..450 {
        before.trigger(plain(&payload.to_string())).await;
    }
    let timer: Arc<dyn Timer> = Arc::new(scene.timer.clone());
    let partition = Partition::new(scene.table.clone(), "p").with_timer(timer);
    let store = Timed::new(Engine::new(partition)).unwrap();
    store.announce().await.unwrap();
    let at = |second| Rig::START + Duration::from_secs(second);
    // The backlog in three pages, the window, and the end of the lease.
    assert_eq!(scene.timer.waiting(), [at(0), at(0), at(0), at(10), at(30)]);
    assert_eq!(started.lease_until, at(30));
    let rig = Rig::new(Opened { store: Arc::new(store), guard: Box::new(()) });
    let mut worker = Process { wakeups: rig.store.wakeups(), rig };
    let mut left = 452;
    for second in [0, 10, 31, 62] {
        scene.at(second, &mut [&mut worker.rig]);
        let until = Instant::now() + Duration::from_secs(20);
        while let Ok(Some(_)) = timeout_at(until, worker.wakeups.next()).await {
            worker.rig.reap().await;
            for job in worker.rig.claim().await {
                worker.rig.succeed(&job).await;
                left -= 1;
            }
        }
    }
    assert_eq!(left, 0);
}

/// A job that ends frees the next window of its key, which has a message then.
#[tokio::test(start_paused = true)]
async fn r11_a_window_that_waited_for_its_key_has_a_message_when_it_may_start() {
    let scene = Scene::new();
    let (mut client, mut worker, first) = scene.triggered_during_a_run().await;
    scene.at(29, &mut [&mut client, &mut worker.rig]);
    // It is due, and waits for the run of its key.
    worker.rig.claim_none().await;
    assert!(worker.rig.renew(lease(&first)).await.is_some());
    let became = worker.rig.settle(lease(&first), Outcome::succeeded()).await;
    assert_eq!(became, quell_core::SettledAs::Succeeded);
    let second = worker.woken_one().await;
    worker.rig.succeed(&second).await;
    scene.settles_at(0).await;
}
