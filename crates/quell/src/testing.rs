//! A worker in virtual time, for testing your own tasks in milliseconds.
//!
//! [`TestKit`] runs real client and worker code on the in-memory store with a clock that only
//! moves on command, and then stops at every due time on the way. It waits for handlers, except
//! while they [`Ctx::sleep`](crate::Ctx::sleep).
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use std::time::Duration;
//! use quell::testing::TestKit;
//! use quell::{Ctx, Policy, Task, TaskError};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Meter { customer: u32 }
//!
//! impl Task for Meter {
//!     const NAME: &'static str = "meter";
//!     type Output = ();
//!     fn policy() -> Policy {
//!         Policy::default().debounce(Duration::from_secs(10)..=Duration::from_secs(60))
//!     }
//!     fn debounce_key(&self) -> Option<String> { Some(self.customer.to_string()) }
//! }
//!
//! async fn meter(_: Meter, ctx: Ctx<AtomicU64>) -> Result<(), TaskError> {
//!     ctx.state().fetch_add(ctx.triggers(), Relaxed);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let kit = TestKit::start(|quell| quell.worker(AtomicU64::new(0)).register(meter))?;
//! kit.quell().trigger_many((0..5).map(|_| Meter { customer: 7 })).await?;
//! kit.advance(Duration::from_secs(9)).await;
//! assert_eq!(kit.succeeded("meter").await?.len(), 0);
//! kit.advance(Duration::from_secs(1)).await;
//! let runs = kit.succeeded("meter").await?;
//! assert_eq!((runs.len(), runs[0].window.triggers), (1, 5));
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use quell_core::poll::PollSettings;
use quell_core::{Job, JobFilter, JobState, Result, Store, TaskName, Timestamp};
use quell_engine::{Engine, Maps};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::worker::{Ping, Rest};
use crate::{Quell, WorkerBuilder};

/// A clock that moves only on command.
#[derive(Debug, Default)]
pub struct TestClock {
    time: Arc<Mutex<Time>>,
}

#[derive(Debug, Default)]
struct Time {
    now: Timestamp,
    next_id: u64,
    sleepers: BTreeMap<(Timestamp, u64), Option<Waker>>,
    /// Sleepers whose time has come but who have not gone on yet.
    waking: BTreeMap<u64, ()>,
}

impl TestClock {
    /// A clock whose time is `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let time = Time { now, ..Time::default() };
        TestClock { time: Arc::new(Mutex::new(time)) }
    }

    /// The earliest time of a sleeper.
    #[must_use]
    pub fn next_sleeper(&self) -> Option<Timestamp> {
        locked(&self.time).sleepers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves the clock to `now`, if that is later, and wakes whom it passes.
    pub fn set(&self, now: Timestamp) {
        let mut wakers = Vec::new();
        {
            let mut time = locked(&self.time);
            time.now = time.now.max(now);
            while let Some(entry) = time.sleepers.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                let ((_, id), waker) = entry.remove_entry();
                time.waking.insert(id, ());
                wakers.extend(waker);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether all sleepers whose time has come have gone on.
    fn is_settled(&self) -> bool {
        locked(&self.time).waking.is_empty()
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        locked(&self.time).now
    }

    fn store_time(&self) -> Option<Timestamp> {
        Some(self.now())
    }

    fn is_virtual(&self) -> bool {
        true
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let mut time = locked(&self.time);
        let id = time.next_id;
        time.next_id += 1;
        if at > time.now {
            time.sleepers.insert((at, id), None);
        }
        Box::pin(Sleep { time: Arc::clone(&self.time), at, id })
    }
}

/// One sleep; dropping it forgets it.
struct Sleep {
    time: Arc<Mutex<Time>>,
    at: Timestamp,
    id: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut time = locked(&self.time);
        match time.sleepers.get_mut(&(self.at, self.id)) {
            Some(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => {
                time.waking.remove(&self.id);
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let mut time = locked(&self.time);
        time.sleepers.remove(&(self.at, self.id));
        time.waking.remove(&self.id);
    }
}

/// A client and a worker in virtual time. Dropping it stops the worker.
#[derive(Debug)]
pub struct TestKit {
    quell: Quell,
    clock: Arc<TestClock>,
    pings: mpsc::Sender<Ping>,
    patience: Duration,
    _worker: JoinSet<Result<()>>,
}

impl TestKit {
    /// When virtual time starts: 2026-01-01T00:00:00Z.
    pub const START: Timestamp = Timestamp::from_secs(1_767_225_600);

    /// How long, in real time, handlers may go on without progress.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Starts the worker that `make` builds, on a fresh in-memory store.
    ///
    /// Use it in a current-thread runtime, as `#[tokio::test]` makes one.
    ///
    /// # Errors
    /// As for [`QuellBuilder::build`](crate::QuellBuilder::build).
    pub fn start<S: Send + Sync + 'static>(
        make: impl FnOnce(&Quell) -> WorkerBuilder<S>,
    ) -> Result<Self> {
        TestKit::start_on(Arc::new(Engine::new(Maps::new(TestKit::START))), make)
    }

    /// Starts the worker that `make` builds, on this store.
    ///
    /// # Errors
    /// As for [`TestKit::start`].
    pub fn start_on<S: Send + Sync + 'static>(
        store: Arc<dyn Store>,
        make: impl FnOnce(&Quell) -> WorkerBuilder<S>,
    ) -> Result<Self> {
        let clock = Arc::new(TestClock::new(TestKit::START));
        let quell = Quell::with_store(store).clock(Arc::<TestClock>::clone(&clock)).build()?;
        let (pings, asked) = mpsc::channel(1);
        let worker = make(&quell).answering(asked);
        // Heartbeats serve other workers, and there are none: here they would be steps to take.
        let mut worker = worker.heartbeat(Duration::from_secs(3_600));
        // Polling is the safety net of real time. In virtual time it would only be steps to take.
        if worker.poll_settings() == PollSettings::default() {
            let base = Duration::from_secs(3_600);
            worker = worker.poll(PollSettings { base, ceiling: base });
        }
        let mut running = JoinSet::new();
        running.spawn(worker.run_until(std::future::pending()));
        Ok(TestKit { quell, clock, pings, patience: TestKit::PATIENCE, _worker: running })
    }

    /// How long, in real time, handlers may go on without progress before [`TestKit::settle`] and
    /// [`TestKit::advance`] panic; [`TestKit::PATIENCE`] by default.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The client.
    #[must_use]
    pub fn quell(&self) -> &Quell {
        &self.quell
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Lets `time` pass, stopping wherever something is due, and returns once all is at rest.
    ///
    /// # Panics
    /// As for [`TestKit::settle`].
    pub async fn advance(&self, time: Duration) {
        let target = self.now() + time;
        loop {
            self.settle().await;
            match self.clock.next_sleeper() {
                Some(next) if next <= target => self.clock.set(next),
                Some(_) | None => break,
            }
        }
        self.clock.set(target);
        self.settle().await;
    }

    /// Returns once nothing runs but handlers that sleep on the clock.
    ///
    /// # Panics
    /// When the worker refused to start, and when a handler goes on without progress: it waits for
    /// something that virtual time does not bring about, such as a sleep that is not
    /// [`Ctx::sleep`](crate::Ctx::sleep) or the result of another job. The panic names it.
    #[expect(clippy::panic, reason = "the kit runs in tests, whose failure is a panic")]
    pub async fn settle(&self) {
        // Twice in a row: the first answer may have been given before a wake-up was seen.
        let mut quiet = 0;
        let (mut events, mut since) = (None, Instant::now());
        while quiet < 2 {
            let rest = self.ask(false).await;
            quiet = if rest.is_resting && self.clock.is_settled() { quiet + 1 } else { 0 };
            if events.replace(rest.events) != Some(rest.events) {
                since = Instant::now();
            } else if since.elapsed() > self.patience {
                let awake = self.ask(true).await.awake;
                let what = if awake.is_empty() {
                    "a call of the store".to_owned()
                } else {
                    awake.join("; ")
                };
                panic!(
                    "the test kit did not come to rest within {:?}: waiting for {what}. A handler \
                     may wait for `Ctx::sleep` alone: virtual time stands still meanwhile",
                    self.patience
                );
            }
            tokio::task::yield_now().await;
        }
    }

    #[expect(clippy::panic, reason = "the kit runs in tests, whose failure is a panic")]
    async fn ask(&self, names: bool) -> Rest {
        let (answer, rest) = oneshot::channel();
        let asked = self.pings.send(Ping { answer, names }).await.is_ok();
        match rest.await {
            Ok(rest) if asked => rest,
            _ => panic!("the test kit's worker ended: check its registrations"),
        }
    }

    /// The jobs of a task that succeeded, oldest first, 200 at most.
    ///
    /// # Errors
    /// What the store says.
    pub async fn succeeded(&self, task: &str) -> Result<Vec<Job>> {
        self.jobs(task, JobState::Succeeded).await
    }

    /// The jobs of a task in this state, oldest first, 200 at most.
    ///
    /// # Errors
    /// What the store says.
    pub async fn jobs(&self, task: &str, state: JobState) -> Result<Vec<Job>> {
        let filter = JobFilter {
            task: Some(TaskName::new(task)?),
            state: Some(state),
            limit: JobFilter::MAX_PAGE,
            ..JobFilter::default()
        };
        let mut jobs = self.quell.store().jobs(&filter).await?;
        jobs.reverse();
        Ok(jobs)
    }
}

fn locked(time: &Mutex<Time>) -> MutexGuard<'_, Time> {
    time.lock().unwrap_or_else(PoisonError::into_inner)
}
