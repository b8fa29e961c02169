//! Processes on a table and a timer whose clocks follow the paused time of the test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{lease, queue};
use quell_core::{
    Batch, ClaimedJob, ExpiredLease, NewTrigger, Outcome, Receipt, Settlement, Store,
};
use quell_engine::Engine;
use quell_portable::{MemoryTable, MemoryTimer, Partition, Partitions, Spread, Timed};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// How long a message is locked.
pub(crate) const LOCK: Duration = Duration::from_secs(30);
/// How far the clocks move at a time.
const STEP: Duration = Duration::from_millis(100);

/// A store on a table, with a timer.
pub(crate) struct World {
    /// Where its queue is spread over several partitions: over how many.
    spread: Option<Spread>,
    pub(crate) table: MemoryTable,
    pub(crate) timer: MemoryTimer,
    began: Instant,
    _clock: JoinSet<()>,
}

/// A job that a worker started, and when.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) job: ClaimedJob,
    pub(crate) at: Duration,
}

/// What workers started so far.
pub(crate) type Runs = Arc<Mutex<Vec<Run>>>;

/// A process with one worker, which is killed where this is dropped.
pub(crate) struct Worker {
    _process: JoinSet<()>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(MemoryTimer::new(Rig::START, LOCK), Instant::now())
    }

    pub(crate) fn with_timer(timer: MemoryTimer) -> Self {
        Self::of(timer, Instant::now())
    }

    /// A store whose queue is spread over three partitions.
    pub(crate) fn of_partitions() -> Self {
        World { spread: Some(Spread::from([(queue(), 3)])), ..Self::new() }
    }

    /// Another store on the same timer, as by mistake.
    pub(crate) fn beside(&self) -> Self {
        World { spread: self.spread.clone(), ..Self::of(self.timer.clone(), self.began) }
    }

    fn of(timer: MemoryTimer, began: Instant) -> Self {
        let table = MemoryTable::new(Rig::START);
        let (clock_table, clock_timer) = (table.clone(), timer.clone());
        let mut clock = JoinSet::new();
        clock.spawn(async move {
            loop {
                let now = Rig::START + began.elapsed();
                clock_table.advance(now);
                clock_timer.advance(now);
                sleep(STEP).await;
            }
        });
        World { spread: None, table, timer, began, _clock: clock }
    }

    /// What one process opens.
    pub(crate) async fn store(&self) -> Arc<dyn Store> {
        let (table, timer) = (self.table.clone(), Arc::new(self.timer.clone()));
        let opened = match self.spread.clone() {
            None => Timed::new(Engine::new(Partition::new(table, "p").with_timer(timer))),
            Some(spread) => {
                let all = Partitions::open_with(table, "p", spread, None, Some(timer)).await;
                Timed::several(all.unwrap())
            }
        };
        Arc::new(opened.unwrap())
    }

    /// Triggers in a process that has no worker.
    pub(crate) async fn trigger(&self, trigger: NewTrigger) -> Receipt {
        let accepted = self.store().await.enqueue(None, vec![Batch::one(trigger)]).await.unwrap();
        accepted.into_iter().next().unwrap().unwrap().remove(0)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until this time of the test.
    pub(crate) async fn at(&self, time: Duration) {
        sleep_until(self.began + time).await;
        self.table.advance(Rig::START + time);
        self.timer.advance(Rig::START + time);
    }

    /// A process whose runs take so long.
    pub(crate) async fn worker(&self, runs: &Runs, takes: Duration) -> Worker {
        self.worker_with(100, runs, takes).await
    }

    /// The same, which runs `slots` jobs at a time.
    pub(crate) async fn worker_with(&self, slots: usize, runs: &Runs, takes: Duration) -> Worker {
        let (store, runs, began) = (self.store().await, Arc::clone(runs), self.began);
        let mut process = JoinSet::new();
        process.spawn(works(store, slots, runs, began, takes));
        Worker { _process: process }
    }

    /// Waits until it is so.
    pub(crate) async fn until(&self, what: &str, is: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is() {
            let (waiting, dead) = (self.timer.waiting(), self.timer.dead());
            assert!(begun.elapsed() < Duration::from_secs(3_600), "{what}: {waiting:?} {dead:?}");
            sleep(STEP).await;
        }
    }
}

/// A worker that asks for work when it is woken, and whenever a run ends.
async fn works(store: Arc<dyn Store>, slots: usize, runs: Runs, began: Instant, takes: Duration) {
    let (mut wakeups, mut running) = (store.wakeups(), JoinSet::new());
    loop {
        tokio::select! {
            woken = wakeups.next() => {
                let woken = woken.unwrap();
                if woken.queue.is_some_and(|woken| woken != queue()) {
                    continue;
                }
            }
            Some(_) = running.join_next() => {}
        }
        let _expired: quell_core::Result<Vec<ExpiredLease>> = store.reap(None, 1_000).await;
        store.tick(None, 100).await.unwrap();
        let claimed = store.claim(None, &Rig::claim_of(slots - running.len())).await.unwrap();
        for job in claimed.jobs {
            runs.lock().unwrap().push(Run { job: job.clone(), at: began.elapsed() });
            running.spawn(run(Arc::clone(&store), job, takes));
        }
    }
}

async fn run(store: Arc<dyn Store>, job: ClaimedJob, takes: Duration) {
    let ends = Instant::now() + takes;
    while Instant::now() + Rig::LEASE / 3 < ends {
        sleep(Rig::LEASE / 3).await;
        store.renew(None, &[lease(&job)], Rig::LEASE).await.unwrap();
    }
    sleep_until(ends).await;
    let settlement = Settlement { lease: lease(&job), outcome: Outcome::succeeded() };
    store.settle(None, vec![settlement]).await.unwrap();
}
