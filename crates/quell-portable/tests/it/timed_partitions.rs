//! One timer for the partitions of a store: what a store of one partition need not care for.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::rig::{keyed, plain, queue, secs};
use quell_conformance::{Opened, Rig};
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{ErrorKind, ScheduleName, Wakeups};
use quell_portable::{MemoryTable, MemoryTimer, Partitions, Spread, Table, Timed, Timer};
use tokio::time::{Instant, timeout_at};

use crate::between::{Between, Fault, two_with};

/// Partitions of the queue.
const COUNT: u32 = 4;
/// Jobs without a key: each goes to one of the partitions by chance.
const JOBS: usize = 40;

/// A table, and a timer beside it.
struct Scene {
    table: MemoryTable,
    timer: MemoryTimer,
}

/// A process that works when it is woken.
struct Worker {
    rig: Rig,
    wakeups: Wakeups,
}

impl Scene {
    fn new() -> Self {
        let timer = MemoryTimer::new(Rig::START, secs(30)).with_duplicate_window(secs(600));
        Scene { table: MemoryTable::new(Rig::START), timer }
    }

    async fn partitions<T: Table + Clone>(&self, table: T, is_timed: bool) -> Partitions<T> {
        let timer = is_timed.then(|| Arc::new(self.timer.clone()) as Arc<dyn Timer>);
        let spread = Spread::from([(queue(), COUNT)]);
        Partitions::open_with(table, "p", spread, None, timer).await.unwrap()
    }

    async fn timed<T: Table + Clone>(&self, table: T) -> Timed<T> {
        Timed::several(self.partitions(table, true).await).unwrap()
    }

    async fn client(&self) -> Rig {
        rig(self.timed(self.table.clone()).await)
    }

    /// A worker, whose commits can be made to fail.
    async fn worker(&self) -> (Worker, Between) {
        let between = two_with(self.table.clone()).between;
        let rig = rig(self.timed(between.clone()).await);
        (Worker { wakeups: rig.store.wakeups(), rig }, between)
    }

    fn at(&self, second: u64, rigs: &mut [&mut Rig]) {
        let now = Rig::START + secs(second);
        self.table.advance(now);
        for rig in rigs {
            rig.at(second);
        }
        self.timer.advance(now);
    }
}

fn rig(store: impl quell_core::Store) -> Rig {
    Rig::new(Opened { store: Arc::new(store), guard: Box::new(()) })
}

impl Worker {
    /// Works whenever it is woken, for some time; says how many jobs it ran.
    async fn works(&mut self) -> usize {
        let (mut ran, until) = (0, Instant::now() + Duration::from_secs(20));
        while let Ok(Some(_)) = timeout_at(until, self.wakeups.next()).await {
            self.rig.reap().await;
            for job in self.rig.claim().await {
                self.rig.succeed(&job).await;
                ran += 1;
            }
        }
        ran
    }
}

/// Another partition may answer the same claim, so its caller gets no error: the jobs run nowhere, and a
/// message announces the end of their leases.
#[tokio::test(start_paused = true)]
async fn r21_a_claim_of_which_one_partition_lost_the_answer_leaves_no_job_behind() {
    let scene = Scene::new();
    let (mut client, (mut worker, between)) = (scene.client().await, scene.worker().await);
    for _ in 0..JOBS {
        client.trigger(plain("1")).await;
    }
    between.fail(Fault::AnswerLost, "x:r:");
    scene.at(1, &mut [&mut client, &mut worker.rig]);
    let first = worker.works().await;
    assert!(!between.fails() && first > 0 && first < JOBS, "{first}");
    let mut ran = first;
    for second in [25, 32, 40, 62] {
        scene.at(second, &mut [&mut client, &mut worker.rig]);
        ran += worker.works().await;
    }
    assert_eq!(ran, JOBS);
    assert_eq!(scene.timer.waiting(), []);
}

#[tokio::test(start_paused = true)]
async fn r01_r34_a_timer_that_is_new_to_a_store_is_told_what_all_partitions_have() {
    let scene = Scene::new();
    let before = rig(scene.partitions(scene.table.clone(), false).await);
    for payload in 0..JOBS {
        before.trigger(plain(&payload.to_string())).await;
        before.trigger(keyed(&payload.to_string())).await;
    }
    let started = before.claim_with(&Rig::claim_of(7)).await.len();
    assert_eq!(started, 7);
    let store = scene.timed(scene.table.clone()).await;
    store.announce().await.unwrap();
    let at = |second| Rig::START + secs(second);
    let reported: std::collections::BTreeSet<_> = scene.timer.waiting().into_iter().collect();
    assert_eq!(
        reported,
        [at(0), at(10), at(30)].into(),
        "backlogs, windows, and leases that expire"
    );
    let rig = rig(store);
    let mut worker = Worker { wakeups: rig.store.wakeups(), rig };
    let mut ran = 0;
    for second in [1, 11, 31, 62] {
        scene.at(second, &mut [&mut worker.rig]);
        ran += worker.works().await;
    }
    assert_eq!(ran, 2 * JOBS);
}

#[tokio::test(start_paused = true)]
async fn r34_r36_a_tick_wakes_a_worker_whichever_partition_has_its_schedule() {
    let scene = Scene::new();
    let (mut client, (mut worker, _)) = (scene.client().await, scene.worker().await);
    let schedule = Schedule {
        name: ScheduleName::new("s").unwrap(),
        spec: Spec::every(secs(100), Rig::START).unwrap(),
        catch_up: CatchUp::All,
        trigger: plain("1"),
        declared: None,
    };
    client.store.set_schedule(Some(client.now()), &schedule).await.unwrap();
    for second in [100, 200] {
        scene.at(second, &mut [&mut client, &mut worker.rig]);
        let woken = tokio::time::timeout(secs(60), worker.wakeups.next()).await.unwrap().unwrap();
        assert_eq!(woken.queue, None, "ticks are of no queue");
        let ticked = worker.rig.store.tick(Some(worker.rig.now()), 10).await.unwrap();
        assert_eq!(ticked.fired.len(), 1);
        assert_eq!(worker.works().await, 1);
    }
}

/// A trigger would be accepted by the timer, and perhaps refused by its partition.
#[tokio::test]
async fn r18_several_partitions_leave_no_dedup_keys_to_a_timer() {
    let scene = Scene::new();
    let store = scene.timed(scene.table.clone()).await;
    let refused = store.native_dedup().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("one partition for all queues"), "{refused}");
    let untimed = Timed::several(scene.partitions(scene.table.clone(), false).await);
    assert_eq!(untimed.unwrap_err().field(), Some("timer"));
}
