//! What a burst of triggers and its run cost where a timer wakes workers: requests to the table, and
//! messages or requests to the timer's queue. docs/azure.md and bench/archive/2026-11.md have the
//! figures.

use std::fmt;
use std::ops::Sub;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use quell::store::Store;
use quell::{Batch, Ctx, JobState, Payload, Policy, Quell, TaskError};
use quell_conformance::rig::{keyed_with, task};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Fold, NewTrigger};
use quell_portable::Timer;
use quell_services::ServiceBus as StandIn;
use quell_services::servicebus::Counts;
use tokio::sync::Semaphore;

use crate::proxy::{Act, Proxy};
use crate::queue::StoredQueue;
use crate::server::{Place, until_in};
use crate::servicebus::{QUEUE, lock, options_at};
use crate::timers::Queue;

/// Sizes of bursts.
const BURSTS: [usize; 3] = [1, 10, 100];
/// Requests of a trigger that is alone in its call.
const OF_A_TRIGGER: usize = 2;
/// Batches of one trigger that a step takes, at least.
const BATCHES_OF_A_STEP: usize = 12;
/// Requests to the table of a burst in one batch, and of its run: two to trigger, one to look the message
/// up, ten to start and seven to end.
const OF_A_RUN: usize = 18;
/// A lock is renewed after a third of it.
const LOCK: Duration = Duration::from_secs(6);
/// On a busy machine everything is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was asked of the services so far, or for one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bill {
    table: usize,
    sent: usize,
    received: usize,
    renewed: usize,
    completed: usize,
}

impl Sub for Bill {
    type Output = Bill;

    fn sub(self, less: Bill) -> Bill {
        Bill {
            table: self.table - less.table,
            sent: self.sent - less.sent,
            received: self.received - less.received,
            renewed: self.renewed - less.renewed,
            completed: self.completed - less.completed,
        }
    }
}

impl fmt::Display for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bill { table, sent, received, renewed, completed } = self;
        write!(f, "{table} | {sent} | {received} | {renewed} | {completed}")
    }
}

/// The timer's queue, and what counts its traffic.
enum Counter {
    Bus(StandIn),
    Stored(StoredQueue, Proxy),
}

impl Counter {
    async fn timer(&self) -> Arc<dyn Timer> {
        match self {
            Counter::Bus(stand_in) => {
                Arc::new(options_at(stand_in.port()).lock(LOCK).open().await.unwrap())
            }
            Counter::Stored(queue, proxy) => {
                Arc::new(queue.through(proxy.port).lock(LOCK).open().await.unwrap())
            }
        }
    }

    /// The messages in the queue, whatever their state.
    async fn messages(&self) -> usize {
        match self {
            Counter::Bus(stand_in) => {
                let Counts { ready, locked, scheduled, .. } = stand_in.counts(QUEUE).unwrap();
                ready + locked + scheduled
            }
            Counter::Stored(queue, _) => queue.messages().await,
        }
    }
}

struct Counted {
    proxy: Proxy,
    counter: Counter,
    quell: Quell,
    direct: Arc<dyn Store>,
    rows: Mutex<Vec<String>>,
}

impl Counted {
    async fn new(counter: Counter) -> Self {
        let place = Place::new();
        let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
        let through = place.through(proxy.port, PATIENCE);
        let through = through.timer("counted", counter.timer().await).open_store();
        let store = through.await.unwrap();
        let direct = place.options().timeout(PATIENCE).timer("counted", counter.timer().await);
        let direct = direct.open_store().await.unwrap();
        let quell = Quell::with_store(store).build().unwrap();
        let counted = Counted { proxy, counter, quell, direct, rows: Mutex::default() };
        // The first trigger takes a block of ids and learns the time.
        counted.quell.enqueue(Batch::one(later("warm"))).await.unwrap();
        counted
    }

    /// A row of the table that the test prints.
    fn report(&self, row: String) {
        self.rows.lock().unwrap().push(row);
    }

    /// Without what learns the time, once a minute at most.
    fn bill(&self) -> Bill {
        let is_clock = |request: &str| request.contains("RowKey='clock'");
        let table = self.proxy.seen().iter().filter(|(_, request)| !is_clock(request)).count();
        match &self.counter {
            Counter::Bus(stand_in) => {
                let stats = stand_in.stats().unwrap();
                let (sent, received) = (stats.sends, stats.deliveries);
                let (renewed, completed) = (stats.renewals, stats.completions);
                Bill { table, sent, received, renewed, completed }
            }
            Counter::Stored(_, proxy) => {
                let seen = proxy.seen();
                let count = |verb: &str| seen.iter().filter(|(_, it)| it.starts_with(verb)).count();
                let (sent, received) = (count("POST "), count("GET "));
                let (renewed, completed) = (count("PUT "), count("DELETE "));
                Bill { table, sent, received, renewed, completed }
            }
        }
    }

    async fn of<T>(&self, call: impl Future<Output = T>) -> (Bill, T) {
        let before = self.bill();
        let answer = call.await;
        (self.bill() - before, answer)
    }

    /// A run costs the same whatever its burst was; a queue of Azure Storage is polled besides.
    fn check_run(&self, bill: Bill, took: Duration) {
        let secs = usize::try_from(took.as_secs()).unwrap();
        // Heartbeats count as well.
        assert!((OF_A_RUN..=OF_A_RUN + secs / 10).contains(&bill.table), "{bill:?}");
        assert!(bill.renewed <= 3 * secs / usize::try_from(LOCK.as_secs()).unwrap(), "{bill:?}");
        assert_eq!((bill.sent, bill.completed), (1, 1), "{bill:?}");
        match self.counter {
            Counter::Bus(_) => assert_eq!(bill.received, 1, "{bill:?}"),
            // After 0.1, 0.2, 0.4 and 0.8 s, and then each second.
            Counter::Stored(..) => assert!((1..=12 + secs).contains(&bill.received), "{bill:?}"),
        }
    }

    /// What a burst costs from its batch to the end of its run, when its message is gone.
    async fn run(&self, burst: usize) -> Bill {
        let triggers = vec![soon(); burst];
        let before = self.counter.messages().await;
        let runs = async {
            let job = self.quell.enqueue(Batch { triggers, dedup: None }).await.unwrap()[0].job();
            until_in(PATIENCE, || async {
                let job = self.direct.job(job.unwrap()).await.unwrap().unwrap();
                job.state == JobState::Succeeded && self.counter.messages().await == before
            })
            .await;
        };
        self.of(runs).await.0
    }
}

fn keyed(of: &str, min: Duration, max: Duration) -> NewTrigger {
    let debounce = Debounce::new(Thresholds::new(min, max).unwrap());
    keyed_with(of, debounce, Fold::Last, r#"{"page":"a"}"#)
}

/// Nothing becomes due while the test runs, however slow the machine.
fn later(of: &str) -> NewTrigger {
    let hour = Duration::from_secs(3_600);
    keyed(of, hour, hour * 2)
}

fn soon() -> NewTrigger {
    keyed("soon", Duration::from_millis(500), Duration::from_secs(1))
}

/// What the handler waits for.
#[derive(Clone, Debug)]
struct Gate(Arc<Semaphore>);

async fn waits(_: Payload, ctx: Ctx<Gate>) -> Result<(), TaskError> {
    let _permit = ctx.state().0.acquire().await?;
    Ok(())
}

/// Each way to trigger a burst takes what it takes without a timer, and one message for its window.
async fn triggers_cost(counted: &Counted) {
    let quell = &counted.quell;
    for burst in BURSTS {
        let one_by_one = async {
            for _ in 0..burst {
                quell.enqueue(Batch::one(later(&format!("one{burst}")))).await.unwrap();
            }
        };
        let (one_by_one, ()) = counted.of(one_by_one).await;
        let all = (0..burst).map(|_| quell.enqueue(Batch::one(later(&format!("side{burst}")))));
        let (side_by_side, all) = counted.of(try_join_all(all)).await;
        all.unwrap();
        let triggers = vec![later(&format!("batch{burst}")); burst];
        let (batch, taken) = counted.of(quell.enqueue(Batch { triggers, dedup: None })).await;
        taken.unwrap();
        for (way, bill, most) in [
            ("one by one", one_by_one, OF_A_TRIGGER * burst),
            ("side by side", side_by_side, OF_A_TRIGGER * (2 + burst / BATCHES_OF_A_STEP)),
            ("one batch", batch, OF_A_TRIGGER),
        ] {
            counted.report(format!("| {burst} triggers, {way} | {bill} |"));
            assert!(bill.table <= most, "{burst} {way}: {bill:?}");
            assert_eq!(
                bill,
                Bill { table: bill.table, sent: 1, ..Bill::default() },
                "{burst} {way}"
            );
        }
    }
}

/// A run takes a message that is sent, received and completed, however many triggers it had.
async fn runs_cost(counted: &Counted) {
    for burst in BURSTS {
        let (mut bill, mut took) = timed(counted.run(burst)).await;
        // Where the machine stands still, a message comes before its row, and the row is read again.
        for _ in 0..2 {
            if bill.table > OF_A_RUN {
                (bill, took) = timed(counted.run(burst)).await;
            }
        }
        counted.report(format!("| {burst} triggers in one batch, and their run | {bill} |"));
        counted.check_run(bill, took);
    }
}

/// A run that takes longer than a third of the lock renews it, at the cost of the timer alone.
async fn a_long_run_costs(counted: &Counted, gate: &Gate) {
    let closed = gate.0.forget_permits(Semaphore::MAX_PERMITS);
    let before = counted.bill();
    let ends = async {
        until_in(PATIENCE, || async { (counted.bill() - before).renewed >= 2 }).await;
        gate.0.add_permits(closed);
    };
    let ((bill, took), ()) = tokio::join!(timed(counted.run(1)), ends);
    counted.report(format!("| a run that ends {took:?} after its trigger | {bill} |"));
    counted.check_run(bill, took);
}

async fn timed<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    (call.await, began.elapsed())
}

/// The rows of the table of figures.
async fn costs(counter: Counter) -> String {
    let counted = Counted::new(counter).await;
    triggers_cost(&counted).await;
    let gate = Gate(Arc::new(Semaphore::new(1)));
    // Its heartbeats are half a minute apart.
    let worker = counted.quell.worker(gate.clone()).lease(Duration::from_secs(600));
    let worker = worker.register_raw(task("t"), &Policy::queue("q"), waits);
    let story = async {
        // The worker starts, and sends its first heartbeat.
        counted.run(1).await;
        runs_cost(&counted).await;
        a_long_run_costs(&counted, &gate).await;
    };
    worker.run_until(story).await.unwrap();
    counted.rows.into_inner().unwrap().join("\n")
}

#[tokio::test]
async fn r34_what_a_burst_costs_with_service_bus() {
    let stand_in = StandIn::start().unwrap();
    stand_in.create_queue(QUEUE, lock(LOCK)).unwrap();
    eprintln!("{}", costs(Counter::Bus(stand_in)).await);
}

#[tokio::test]
async fn r34_what_a_burst_costs_with_a_storage_queue() {
    let queue = StoredQueue::new(LOCK).await;
    let proxy = Proxy::start(queue.port(), |_| Act::Forward).await;
    eprintln!("{}", costs(Counter::Stored(queue, proxy)).await);
}
