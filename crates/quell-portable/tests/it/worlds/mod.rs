//! Worlds of several processes on one table: real clients and workers whose calls pass each other.
//!
//! In the simulation of every store one call is made at a time. Here calls take time, so processes meet
//! on the same rows; they are refused, lose their answers, and processes die. Each process records what
//! it does, and the checker judges all records of a world. Time is virtual, and a seed draws the world.

mod table;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::BoxFuture;
use quell::clock::Clock;
use quell::{Ctx, Edge, Policy, Quell, TaskError};
use quell_conformance::Rig;
use quell_conformance::check::{self, Line};
use quell_conformance::effort::cases_by;
use quell_conformance::rig::key;
use quell_conformance::sim::SEEDS;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::history::{Event, History, Sink};
use quell_core::idempotency::Idempotency;
use quell_core::{
    Batch, Fold, JobFilter, Key, NewTrigger, Payload, QueueName, Store, TaskName, Timestamp,
    WorkerId,
};
use quell_engine::Engine;
use quell_portable::{MemoryTable, MemoryTimer, Partition, Partitions, Spread, Timed, Timer};
use quell_testkit::Bent;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::counted::counts_of;
use crate::unruly::Unruly;
use table::{Dangers, Troubled};

/// Seeds of each kind of world in a usual run and in a long one; `QUELL_SIM_SEEDS` changes how many.
const USUAL_SEEDS: u64 = 40;
const LONG_SEEDS: u64 = 1_000;
/// The first seed.
const FROM: &str = "QUELL_SIM_FROM";
/// The file that gets the record of the last world.
const LINES: &str = "QUELL_SIM_LINES";
const CLIENTS: usize = 2;
const WORKERS: usize = 3;
/// Calls of each client.
const CALLS: usize = 25;
const LEASE: Duration = Duration::from_secs(15);
const LOCK: Duration = Duration::from_secs(30);
/// How long names of messages are remembered, and dedup keys taken.
const WINDOW: Duration = Duration::from_secs(600);
/// Within this time everything ends once nothing goes wrong any more: some looks without a wake-up.
const CONVERGES: Duration = Duration::from_secs(4 * 3_600);

/// What a process has of its world: with a store of one partition or several, with a timer or without.
#[derive(Clone, Debug, Default)]
struct Kind {
    spread: Option<Spread>,
    has_timer: bool,
}

/// The record of one process.
#[derive(Clone, Debug)]
struct Record {
    name: Arc<str>,
    began: Instant,
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Record {
    fn line(&self, event: Event) {
        let now = Rig::START + self.began.elapsed();
        let line = Line { w: Some(now), ..Line::new(&*self.name, event) };
        self.lines.lock().unwrap().push(line);
    }
}

impl History for Record {
    fn record(&self, event: &Event) {
        self.line(event.clone());
    }

    fn wants_payloads(&self) -> bool {
        true
    }
}

/// The clock of every process: that of the test, which is paused.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Rig::START + self.0.elapsed()
    }

    fn store_time(&self) -> Option<Timestamp> {
        None
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }
}

struct World {
    kind: Kind,
    table: MemoryTable,
    timer: MemoryTimer,
    dangers: Arc<Dangers>,
    began: Instant,
    /// The records of all processes that ever were.
    records: Mutex<Vec<Record>>,
    random: Mutex<Rng>,
}

impl World {
    fn new(seed: u64, kind: Kind) -> Arc<Self> {
        let mut random = Rng::with_seed(seed);
        let dangers = Arc::new(Dangers::draw(&mut random));
        Arc::new(World {
            kind,
            table: MemoryTable::new(Rig::START),
            timer: MemoryTimer::new(Rig::START, LOCK).with_duplicate_window(WINDOW),
            dangers,
            began: Instant::now(),
            records: Mutex::default(),
            random: Mutex::new(random),
        })
    }

    fn draw<R>(&self, draw: impl FnOnce(&mut Rng) -> R) -> R {
        draw(&mut self.random.lock().unwrap())
    }

    fn record(&self, name: &str) -> Record {
        let (name, lines) = (Arc::from(name), Arc::default());
        let record = Record { name, began: self.began, lines };
        record.line(Event::Begin { t: Rig::START + self.began.elapsed() });
        self.records.lock().unwrap().push(record.clone());
        record
    }

    /// Opens the store as a process does, again and again until it answers.
    async fn open(&self, record: &Record) -> Quell {
        let sink: Sink = Arc::new(record.clone());
        let store = loop {
            match self.store(Arc::clone(&sink)).await {
                Ok(store) => break store,
                Err(_) => sleep(Duration::from_secs(1)).await,
            }
        };
        let quell = Quell::with_store(store).history(sink).clock(Arc::new(Paused(self.began)));
        quell.build().unwrap()
    }

    async fn store(&self, sink: Sink) -> quell_core::Result<Arc<dyn Store>> {
        let table = Troubled {
            table: self.table.clone(),
            dangers: Arc::clone(&self.dangers),
            random: Arc::new(Mutex::new(self.draw(Rng::fork))),
            began: self.began,
            start: Rig::START,
            history: Arc::clone(&sink),
        };
        let timer = self.kind.has_timer.then(|| -> Arc<dyn Timer> {
            let dangers = Arc::clone(&self.dangers);
            let loses = if self.draw(Rng::bool) { 5 } else { 0 };
            let timer = Unruly::new(self.timer.clone(), self.draw(Rng::fork));
            Arc::new(Bent(timer.that_loses(move || if dangers.is_healed() { 0 } else { loses })))
        });
        Ok(match (self.kind.spread.clone(), timer) {
            (None, None) => Arc::new(Engine::new(Partition::new(table, "p")).with_history(sink)),
            (None, Some(timer)) => {
                let engine = Engine::new(Partition::new(table, "p").with_timer(timer));
                Arc::new(Timed::new(engine.with_history(sink))?)
            }
            (Some(spread), None) => {
                Arc::new(Partitions::open(table, "p", spread, Some(sink)).await?)
            }
            (Some(spread), timer) => {
                let all = Partitions::open_with(table, "p", spread, Some(sink), timer).await?;
                Arc::new(Timed::several(all)?)
            }
        })
    }

    /// A worker that dies and comes back, until the world has healed; the last one works on.
    async fn works(self: Arc<Self>, number: usize) {
        for life in 0.. {
            let name = format!("w{number}.{life}");
            let record = self.record(&name);
            let lives = self.draw(|random| Duration::from_secs(random.u64(5..60)));
            let work = async {
                let quell = self.open(&record).await;
                let builder = quell.worker(Arc::clone(&self)).lease(LEASE);
                let builder = builder.concurrency(3).name(WorkerId::new(&name).unwrap());
                let builder = TASKS.iter().fold(builder, |builder, (task, policy)| {
                    builder.register_raw(name_of(task), &policy(), attempt)
                });
                builder.run_until(std::future::pending()).await.unwrap();
            };
            let is_last = !self.dangers.kills || self.dangers.is_healed();
            if is_last {
                return work.await;
            }
            // A process that is killed writes nothing more, and no end.
            let _killed = timeout(lives, work).await;
            sleep(self.draw(|random| Duration::from_secs(random.u64(0..10)))).await;
        }
    }

    /// A client that triggers, flushes and cancels.
    async fn calls(self: Arc<Self>, number: usize) {
        let record = self.record(&format!("c{number}"));
        let quell = self.open(&record).await;
        for call in 0..CALLS {
            let batch = self.batch(number * CALLS + call);
            let (task, key) = (name_of("index"), key("hot"));
            let _answer = match self.draw(|random| random.u8(0..20)) {
                0 => quell.store().flush(None, &task, &key).await.map(drop),
                1 => quell.store().cancel_key(None, &task, &key).await.map(drop),
                _ => quell.enqueue(batch).await.map(drop),
            };
            sleep(self.draw(|random| Duration::from_millis(random.u64(0..4_000)))).await;
        }
        record.line(Event::End);
    }

    fn batch(&self, number: usize) -> Batch {
        let many = self.draw(|random| if random.u8(0..4) == 0 { random.usize(2..5) } else { 1 });
        let triggers = (0..many).map(|index| self.trigger(number * 10 + index)).collect();
        Batch { triggers, dedup: None }
    }

    fn trigger(&self, number: usize) -> NewTrigger {
        let queue_is_spread = self.kind.spread.is_some();
        let (task, policy) = TASKS[self.draw(|random| random.usize(0..TASKS.len()))];
        let payload = Payload::from_text(format!(r#"{{"n":{number}}}"#)).unwrap();
        let hot = self.draw(|random| random.u8(0..3)) > 0;
        // A batch is of one partition, so where a queue has several all share a key.
        let name = if hot || queue_is_spread { "hot" } else { "cold" };
        let keyed = (task != "plain").then(|| key(name));
        let trigger = policy().trigger(name_of(task), payload, keyed).unwrap();
        if task != "plain" || queue_is_spread {
            return trigger;
        }
        match self.draw(|random| random.u8(0..3)) {
            0 => {
                let key = Key::new(format!("d{}", self.draw(|random| random.u8(0..4)))).unwrap();
                let until = [HoldUntil::Elapsed(WINDOW / 60), HoldUntil::Started, HoldUntil::Done];
                let until = until[self.draw(|random| random.usize(0..3))];
                NewTrigger { dedup: Some(Dedup { key, until }), ..trigger }
            }
            1 => {
                let key = key(&format!("i{number}"));
                NewTrigger { idempotency: Some(Idempotency::new(key)), ..trigger }
            }
            _ => trigger,
        }
    }

    /// Waits until every job has ended, and records the rows.
    async fn comes_to_its_end(&self, seed: u64) {
        let record = self.record("rows");
        let quell = self.open(&record).await;
        let all = async || {
            let (mut jobs, mut before) = (Vec::new(), None);
            loop {
                let limit = JobFilter::MAX_PAGE;
                let filter = JobFilter { before, limit, ..JobFilter::default() };
                let page = quell.store().jobs(&filter).await.unwrap();
                let Some(last) = page.last() else { break jobs };
                before = Some(last.id);
                jobs.extend(page);
            }
        };
        let ended = async {
            loop {
                let jobs = all().await;
                if jobs.iter().all(|job| job.state.is_ended()) {
                    break jobs;
                }
                sleep(Duration::from_secs(5)).await;
            }
        };
        let in_time = timeout(CONVERGES, ended).await.ok();
        let left = if in_time.is_none() { all().await } else { Vec::new() };
        let jobs = in_time.unwrap_or_default();
        assert!(left.is_empty(), "seed {seed}: not all jobs have ended: {left:#?}");
        let counts = quell.store().counts().await.unwrap();
        assert_eq!(counts, counts_of(&jobs), "seed {seed}");
        jobs.iter().for_each(|job| record.line(Event::row(job)));
        record.line(Event::End);
    }
}

/// A task's name and policy.
type Declared = (&'static str, fn() -> Policy);

const TASKS: [Declared; 5] = [
    ("index", || base().debounce(secs(2)..=secs(8))),
    ("gather", || base().debounce(secs(1)..=secs(4)).fold(Fold::Collect { cap: 4 })),
    ("lead", || base().debounce(secs(2)..=secs(6)).edge(Edge::Both)),
    ("fixed", || base().debounce(secs(5)..=secs(5)).fold(Fold::Merge).max_bytes(40)),
    ("plain", base),
];

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn base() -> Policy {
    Policy::queue(queue().as_str()).attempts(3).min_backoff(secs(1)).max_backoff(secs(4))
}

fn queue() -> QueueName {
    quell_conformance::rig::queue()
}

fn name_of(task: &str) -> TaskName {
    TaskName::new(task).unwrap()
}

/// Takes its time, and sometimes longer than its lease would hold by itself.
async fn attempt(_: Payload, ctx: Ctx<Arc<World>>) -> Result<(), TaskError> {
    let world = Arc::clone(ctx.state());
    let takes =
        world.draw(|random| if random.u8(0..8) == 0 { 25_000 } else { random.u64(0..2_000) });
    ctx.sleep(Duration::from_millis(takes)).await;
    match world.draw(|random| random.u8(0..20)) {
        _ if world.dangers.is_healed() => Ok(()),
        0 => Err(TaskError::permanent("no use")),
        1 => Err(TaskError::snooze(secs(3))),
        2 | 3 => Err(TaskError::retry("try again")),
        _ => Ok(()),
    }
}

/// What a world came to.
#[derive(Debug, Default)]
struct Came {
    attempts: usize,
    accepted: usize,
    conflicts: u64,
}

async fn run(seed: u64, kind: Kind) -> Came {
    // Pauses after conflicts and jitter of polls are drawn from here.
    fastrand::seed(seed);
    let world = World::new(seed, kind);
    let mut tasks = JoinSet::new();
    let clock = Arc::clone(&world);
    tasks.spawn(async move {
        loop {
            sleep(Duration::from_millis(100)).await;
            clock.timer.advance(Rig::START + clock.began.elapsed());
        }
    });
    (0..WORKERS).for_each(|number| drop(tasks.spawn(Arc::clone(&world).works(number))));
    let mut clients = JoinSet::new();
    (0..CLIENTS).for_each(|number| drop(clients.spawn(Arc::clone(&world).calls(number))));
    clients.join_all().await;
    world.dangers.heal();
    world.comes_to_its_end(seed).await;
    drop(tasks);
    let records = std::mem::take(&mut *world.records.lock().unwrap());
    let files = records.iter().map(|record| record.lines.lock().unwrap().clone()).collect();
    let lines = check::merge(files);
    let mut report = check::check(&lines);
    let is_unsure = |property: &str| match property {
        // R30 holds within each partition of a queue, and the checker knows of none.
        "P23" if world.kind.spread.is_some() => true,
        // Where answers are lost, it does not know which jobs of a key run, nor how often they failed.
        "P12" | "P13" | "P23" => world.dangers.lose_records(),
        _ => false,
    };
    report.violations.retain(|violation| !is_unsure(violation.property));
    if let Ok(file) = std::env::var(LINES) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(file, text).unwrap();
    }
    assert!(report.violations.is_empty(), "seed {seed}: {}", report.text(&lines));
    let conflicts = world.dangers.conflicts.load(SeqCst);
    Came { attempts: report.attempts, accepted: report.accepted, conflicts }
}

#[expect(clippy::print_stderr, reason = "for the page of what was run")]
fn run_all(kind: &Kind) {
    let seeds = cases_by(SEEDS, USUAL_SEEDS, LONG_SEEDS);
    let mut sum = Came::default();
    let first = std::env::var(FROM).map_or(0, |text| text.parse().unwrap());
    for seed in first..first + seeds {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        let came = runtime.block_on(run(seed, kind.clone()));
        sum.attempts += came.attempts;
        sum.accepted += came.accepted;
        sum.conflicts += came.conflicts;
    }
    eprintln!("{seeds} seeds: {sum:?}");
    let many = 5 * usize::try_from(seeds).unwrap();
    assert!(sum.conflicts > seeds && sum.attempts > many && sum.accepted > many, "{sum:?}");
}

#[test]
fn r02_processes_that_pass_each_other_keep_every_promise() {
    run_all(&Kind::default());
}

#[test]
fn r02_r34_so_do_those_that_a_timer_wakes() {
    run_all(&Kind { has_timer: true, ..Kind::default() });
}

#[test]
fn r02_so_do_those_of_a_queue_of_three_partitions() {
    run_all(&Kind { spread: Some(Spread::from([(queue(), 3)])), has_timer: false });
}

#[test]
fn r02_r34_so_do_those_of_three_partitions_with_a_timer() {
    run_all(&Kind { spread: Some(Spread::from([(queue(), 3)])), has_timer: true });
}
