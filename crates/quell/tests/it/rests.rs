//! Workers on a store that wakes them whenever something is due: they rest, and nothing is forgotten.
//!
//! The table and the timer are in memory, and their clocks go with the test's, which is paused.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell::clock::Clock;
use quell::queue::QueueSettings;
use quell::worker::WorkerId;
use quell::{JobId, JobState, Quell, QueueName, Result, Timestamp, WorkerBuilder};
use quell_engine::Engine;
use quell_portable::{MemoryTimer, Partition, Partitions, Scheduled, Spread, Timed, Timer};
use quell_testkit::{Around, Bent, Counted, Sending};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::tasks::{App, Reindex, Script, reindex, script, secs};

const START: Timestamp = Timestamp::from_secs(1_000_000);
const MINUTE: Duration = Duration::from_secs(60);

/// A timer that loses messages, which no service should.
#[derive(Debug)]
struct Forgetful {
    timer: MemoryTimer,
    random: Mutex<Rng>,
    lost: Arc<AtomicU64>,
}

#[async_trait]
impl Around for Forgetful {
    fn timer(&self) -> &MemoryTimer {
        &self.timer
    }

    async fn send(&self, sending: Sending<'_>) -> Result<Option<Scheduled>> {
        if self.random.lock().unwrap().bool() {
            self.lost.fetch_add(1, Ordering::SeqCst);
            return Ok(None);
        }
        sending.to(&self.timer).await
    }
}

/// The test's clock, which jumps ahead where everybody waits.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        START + self.0.elapsed()
    }

    fn store_time(&self) -> Option<Timestamp> {
        None
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }
}

struct Scene {
    /// Where each queue has partitions of its own: over how many these are spread.
    spread: Option<Spread>,
    table: Counted,
    timer: MemoryTimer,
    began: Instant,
    _clock: JoinSet<()>,
}

impl Scene {
    fn new() -> Self {
        Self::of(None)
    }

    /// Each queue has a partition, and that of scripts three.
    fn of_partitions() -> Self {
        Self::of(Some(Spread::from([(QueueName::new("scripts").unwrap(), 3)])))
    }

    fn of(spread: Option<Spread>) -> Self {
        let table = Counted::new(START);
        let timer = MemoryTimer::new(START, secs(30));
        let began = Instant::now();
        let (clocks, moved) = (table.table.clone(), timer.clone());
        let mut clock = JoinSet::new();
        clock.spawn(async move {
            loop {
                sleep(Duration::from_millis(100)).await;
                clocks.advance(START + began.elapsed());
                moved.advance(START + began.elapsed());
            }
        });
        Scene { spread, table, timer, began, _clock: clock }
    }

    /// What one process opens.
    fn process(&self) -> Quell {
        self.process_with(Arc::new(self.timer.clone()))
    }

    fn process_with(&self, timer: Arc<dyn Timer>) -> Quell {
        let table = self.table.clone();
        let store = match self.spread.clone() {
            None => Timed::new(Engine::new(Partition::new(table, "p").with_timer(timer))),
            Some(spread) => {
                let opened = Partitions::open_with(table, "p", spread, None, Some(timer));
                Timed::several(opened.now_or_never().unwrap().unwrap())
            }
        };
        let clock = Arc::new(Paused(self.began));
        Quell::with_store(Arc::new(store.unwrap())).clock(clock).build().unwrap()
    }

    /// A process of its own with a worker; it is killed where this is dropped.
    fn worker(&self, log: &App) -> JoinSet<()> {
        self.named("w", log)
    }

    fn named(&self, name: &str, log: &App) -> JoinSet<()> {
        let worker = self.process().worker(Arc::clone(log)).register(script).register(reindex);
        Scene::run(worker.name(WorkerId::new(name).unwrap()))
    }

    fn run(worker: WorkerBuilder<App>) -> JoinSet<()> {
        let mut process = JoinSet::new();
        process.spawn(async move { worker.run_until(std::future::pending()).await.unwrap() });
        process
    }

    fn requests(&self) -> u64 {
        self.table.requests.load(Ordering::SeqCst)
    }

    /// Fails where the table is asked anything in so long.
    async fn is_quiet_for(&self, time: Duration) {
        let before = self.requests();
        sleep(time).await;
        assert_eq!(self.requests() - before, 0, "requests while nothing was due");
    }
}

/// Waits for what is to come in so long.
async fn comes<F: Future<Output = bool>>(within: Duration, what: &str, mut is: impl FnMut() -> F) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Runs each test on a store of one partition, and on one of several.
macro_rules! on_each {
    ($($name:ident,)*) => {
        mod one_partition {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::Scene::new()).await;
            })*
        }

        mod partitions {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::Scene::of_partitions()).await;
            })*
        }
    };
}

on_each! {
    r34_a_worker_that_the_store_wakes_asks_nothing_of_it_while_nothing_is_due,
    r08_r34_a_worker_that_rests_is_up_when_a_window_is_due,
    r25_a_worker_that_rests_is_not_listed_and_comes_back_as_one_that_starts,
    r32_a_pause_lets_workers_rest_and_its_end_wakes_them,
    r25_a_poison_job_is_buried_where_all_other_workers_rest,
    r34_a_message_that_comes_to_workers_of_other_queues_is_soon_where_it_belongs,
    r01_r34_what_no_message_tells_of_is_found_by_a_look,
}

async fn has_ended(client: &Quell, job: JobId) -> bool {
    let job = client.job(job).await.unwrap().unwrap();
    job.state == JobState::Succeeded
}

async fn r34_a_worker_that_the_store_wakes_asks_nothing_of_it_while_nothing_is_due(scene: Scene) {
    let log = App::default();
    let (client, worker) = (scene.process(), scene.worker(&log));
    sleep(3 * MINUTE).await;
    scene.is_quiet_for(10 * MINUTE).await;
    let job = client.trigger(Script::new(&[])).await.unwrap().job().unwrap();
    comes(secs(2), "the run", || has_ended(&client, job)).await;
    sleep(3 * MINUTE).await;
    scene.is_quiet_for(10 * MINUTE).await;
    assert_eq!(log.runs().len(), 1);
    drop(worker);
}

/// The default hold is an hour, and so is the window of this timer.
#[tokio::test(start_paused = true)]
async fn r16_r18_r34_a_key_that_the_timer_keeps_runs_its_task_once_at_a_worker_that_rests() {
    let (scene, log) = (Scene::new(), App::default());
    let process = async || {
        let timer = Arc::new(scene.timer.clone().with_duplicate_window(60 * MINUTE));
        let partition = Partition::new(scene.table.clone(), "p").with_timer(timer);
        let store = Timed::new(Engine::new(partition)).unwrap().native_dedup().await.unwrap();
        let clock = Arc::new(Paused(scene.began));
        Quell::with_store(Arc::new(store)).clock(clock).build().unwrap()
    };
    let (client, worker) = (process().await, process().await.worker(Arc::clone(&log)));
    let worker = Scene::run(worker.register(script));
    sleep(3 * MINUTE).await;
    scene.is_quiet_for(10 * MINUTE).await;
    let run_in = async |within: Duration, runs: usize| {
        for _ in 0..3 {
            let receipt = client.trigger(Script::new(&[])).dedup("x").await.unwrap();
            assert_eq!((receipt.outcome(), receipt.job()), ("pending", None));
        }
        comes(within, "the run", || async { log.runs().len() == runs }).await;
        sleep(MINUTE).await;
        assert_eq!(log.runs().len(), runs);
    };
    run_in(secs(2), 1).await;
    run_in(secs(2), 1).await;
    sleep(60 * MINUTE).await;
    run_in(secs(2), 2).await;
    let refused = client.trigger(Reindex::page("a")).dedup("x").await.unwrap_err();
    assert_eq!(refused.kind(), quell::ErrorKind::Unsupported);
    assert!(refused.to_string().contains("a debounce key"), "{refused}");
    drop(worker);
}

async fn r08_r34_a_worker_that_rests_is_up_when_a_window_is_due(scene: Scene) {
    let log = App::default();
    let (client, worker) = (scene.process(), scene.worker(&log));
    sleep(3 * MINUTE).await;
    let delayed = client.trigger(Script::new(&[])).delay(20 * MINUTE);
    let job = delayed.await.unwrap().job().unwrap();
    let asked = Instant::now();
    scene.is_quiet_for(10 * MINUTE).await;
    comes(11 * MINUTE, "the run", || has_ended(&client, job)).await;
    let late = asked.elapsed().checked_sub(20 * MINUTE).unwrap();
    assert!(late < secs(1), "{late:?}");
    // A burst runs once, at the end of its window.
    for _ in 0..5 {
        client.trigger(Reindex::page("a")).await.unwrap();
        sleep(secs(1)).await;
    }
    comes(secs(20), "the window's run", || async { log.runs().len() == 2 }).await;
    assert_eq!(log.runs()[1].triggers, 5);
    drop(worker);
}

async fn r25_a_worker_that_rests_is_not_listed_and_comes_back_as_one_that_starts(scene: Scene) {
    let log = App::default();
    let (client, worker) = (scene.process(), scene.worker(&log));
    let listed = || async { client.workers().await.unwrap() };
    comes(MINUTE, "the worker", || async { listed().await.rows.len() == 1 }).await;
    let first = listed().await.rows[0].started_at;
    sleep(5 * MINUTE).await;
    assert!(listed().await.rows.is_empty());
    let job = client.trigger(Script::new(&[])).await.unwrap().job().unwrap();
    comes(secs(2), "the run", || has_ended(&client, job)).await;
    let again = listed().await;
    assert_eq!(again.rows.len(), 1);
    assert!(again.rows[0].started_at > first + 4 * MINUTE, "{again:?}");
    drop(worker);
}

async fn r32_a_pause_lets_workers_rest_and_its_end_wakes_them(scene: Scene) {
    let log = App::default();
    let (client, worker) = (scene.process(), scene.worker(&log));
    client.queue("scripts").set(&QueueSettings::default()).await.unwrap();
    client.queue("scripts").pause().await.unwrap();
    let job = client.trigger(Script::new(&[])).await.unwrap().job().unwrap();
    sleep(3 * MINUTE).await;
    scene.is_quiet_for(10 * MINUTE).await;
    assert!(log.runs().is_empty());
    client.queue("scripts").resume().await.unwrap();
    comes(secs(5), "the run", || has_ended(&client, job)).await;
    drop(worker);
}

async fn r25_a_poison_job_is_buried_where_all_other_workers_rest(scene: Scene) {
    let log = App::default();
    let client = scene.process();
    let names: Vec<String> = (0..7).map(|n| format!("w{n}")).collect();
    let mut workers: BTreeMap<&str, _> =
        names.iter().map(|name| (name.as_str(), scene.named(name, &log))).collect();
    sleep(5 * MINUTE).await;
    assert!(client.workers().await.unwrap().rows.is_empty(), "all rest");
    let job = client.trigger(Script::new(&["hang"; 9])).await.unwrap().job().unwrap();
    // The process that runs it dies of it at once.
    for crashes in 1..=5 {
        comes(30 * MINUTE, "a run", || async { log.runs().len() == crashes }).await;
        let attempts = client.attempts(job).await.unwrap();
        let holder = attempts.last().unwrap().worker.as_str();
        drop(workers.remove(holder).unwrap());
        let now = client.job(job).await.unwrap().unwrap();
        assert_eq!(now.crashes as usize, crashes - 1, "each counts");
    }
    let dead = || async { client.job(job).await.unwrap().unwrap().state == JobState::Dead };
    comes(30 * MINUTE, "its burial", dead).await;
    assert_eq!((log.runs().len(), workers.len()), (5, 2));
}

async fn r34_a_message_that_comes_to_workers_of_other_queues_is_soon_where_it_belongs(
    scene: Scene,
) {
    let log = App::default();
    let client = scene.process();
    let pages: Vec<_> = (0..3)
        .map(|_| Scene::run(scene.process().worker(Arc::clone(&log)).register(reindex)))
        .collect();
    let scripts = Scene::run(scene.process().worker(Arc::clone(&log)).register(script));
    sleep(5 * MINUTE).await;
    // Whose turn it is to receive is different each time.
    for pause in 0..10 {
        sleep(secs(60 + 7 * pause)).await;
        let job = client.trigger(Script::new(&[])).await.unwrap().job().unwrap();
        comes(secs(9), "the run", || has_ended(&client, job)).await;
    }
    drop((scripts, pages));
}

/// The safety net: a message that was lost costs a quarter of an hour, and no job.
async fn r01_r34_what_no_message_tells_of_is_found_by_a_look(scene: Scene) {
    let (log, lost) = (App::default(), Arc::default());
    let forgetful = |seed| {
        let (timer, random) = (scene.timer.clone(), Mutex::new(Rng::with_seed(seed)));
        scene.process_with(Arc::new(Bent(Forgetful { timer, random, lost: Arc::clone(&lost) })))
    };
    let client = forgetful(1);
    let workers: Vec<_> = (2..4)
        .map(|seed| Scene::run(forgetful(seed).worker(Arc::clone(&log)).register(script)))
        .collect();
    for n in 0..10_u64 {
        sleep(5 * MINUTE).await;
        let asked = Instant::now();
        let delay = secs(1 + n * 20);
        let job = client.trigger(Script::new(&[])).delay(delay).await.unwrap().job().unwrap();
        comes(delay + 20 * MINUTE, "the run", || has_ended(&client, job)).await;
        assert!(asked.elapsed() >= delay, "never early");
    }
    assert!(lost.load(Ordering::SeqCst) > 3, "{lost:?} messages were lost");
    drop(workers);
}
