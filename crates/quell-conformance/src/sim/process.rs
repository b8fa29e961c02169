//! One process: a client, perhaps a worker, a clock of its own, and a runtime that is stepped.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell::clock::Clock;
use quell::{Quell, Result, WorkerBuilder};
use quell_core::{Batch, Error, Timestamp};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::world::World;

/// A process that lives. Dropping it is a kill: nothing in it gets another step.
pub(super) struct Process {
    quell: Quell,
    clock: Arc<ProcessClock>,
    stop: Option<oneshot::Sender<()>>,
    worker: JoinSet<Result<()>>,
    calls: JoinSet<()>,
    // Last, so that what runs on it is dropped before.
    runtime: Runtime,
    parks: Arc<Parks>,
}

/// Whom to wake when a runtime finds nothing left to do.
#[derive(Debug, Default)]
struct Parks {
    waker: Mutex<Option<Waker>>,
    parked: AtomicBool,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Process {
    /// Starts a process; `make` builds its client inside its runtime, and its worker if it has one.
    pub(super) fn start<S: Send + Sync + 'static>(
        clock: Arc<ProcessClock>,
        make: impl FnOnce() -> (Quell, Option<WorkerBuilder<S>>),
    ) -> Self {
        let parks = Arc::new(Parks::default());
        let hook = Arc::clone(&parks);
        let runtime = Builder::new_current_thread()
            // One step of one task, then the scheduler decides again.
            .event_interval(1)
            .on_thread_park(move || {
                hook.parked.store(true, Ordering::Relaxed);
                if let Some(waker) = locked(&hook.waker).take() {
                    waker.wake();
                }
            })
            .build()
            .expect("a runtime without drivers");
        let (mut worker, mut stop) = (JoinSet::new(), None);
        let quell = {
            let _inside = runtime.enter();
            let (quell, builder) = make();
            if let Some(builder) = builder {
                let (sender, reported) = oneshot::channel();
                stop = Some(sender);
                // A sender that is dropped is no shutdown.
                let shutdown = async move {
                    if reported.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                worker.spawn(builder.run_until(shutdown));
            }
            quell
        };
        Process { quell, clock, stop, worker, calls: JoinSet::new(), runtime, parks }
    }

    pub(super) fn clock(&self) -> &Arc<ProcessClock> {
        &self.clock
    }

    /// Lets it make this number of steps.
    pub(super) fn step(&self, polls: u32) {
        self.runtime.block_on(Steps { left: polls });
    }

    /// Lets it go on until it has nothing left to do.
    pub(super) fn go_on(&self) {
        self.parks.parked.store(false, Ordering::Relaxed);
        self.runtime.block_on(UntilParked { parks: Arc::clone(&self.parks) });
    }

    /// Triggers a batch, in a task of the process; where it insists, again until it knows what
    /// became of it. The history has the answers.
    pub(super) fn trigger(&mut self, batch: Batch, insists: bool) {
        let (quell, clock) = (self.quell.clone(), Arc::clone(&self.clock));
        let _inside = self.runtime.enter();
        self.calls.spawn(async move {
            loop {
                let answer = quell.enqueue(batch.clone()).await;
                let open = |error: &Error| error.is_unknown_outcome() || error.is_retryable();
                if !insists || !answer.is_err_and(|error| open(&error)) {
                    return;
                }
                let pause = clock.world.draw(|rng| rng.u64(5..200));
                clock.sleep(Duration::from_millis(pause)).await;
            }
        });
    }

    /// Asks its worker to end.
    pub(super) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // A worker that has ended needs no signal.
            let _ended = stop.send(());
        }
    }

    /// Whether it was asked to end and has.
    pub(super) fn has_stopped(&mut self) -> bool {
        self.stop.is_none() && self.worker.try_join_next().is_some()
    }
}

/// Runs a runtime for some steps.
struct Steps {
    left: u32,
}

impl Future for Steps {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.left == 0 {
            return Poll::Ready(());
        }
        self.left -= 1;
        // Wanted again after one step of one task.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Runs a runtime until it would park.
struct UntilParked {
    parks: Arc<Parks>,
}

impl Future for UntilParked {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.parks.parked.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        *locked(&self.parks.waker) = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A clock that is off by some amount and jumps on request.
#[derive(Debug)]
pub(super) struct ProcessClock {
    world: Arc<World>,
    index: usize,
    name: String,
    sleepers: Arc<Mutex<Sleepers>>,
}

#[derive(Debug, Default)]
struct Sleepers {
    /// How far the clock is off, in microseconds.
    off: i64,
    next: u64,
    waiting: BTreeMap<(Timestamp, u64), Option<Waker>>,
}

impl ProcessClock {
    pub(super) fn new(world: Arc<World>, index: usize, name: String, off: i64) -> Arc<Self> {
        let sleepers = Arc::new(Mutex::new(Sleepers { off, ..Sleepers::default() }));
        Arc::new(ProcessClock { world, index, name, sleepers })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn jump(&self, by: Duration) {
        locked(&self.sleepers).off += i64::try_from(by.as_micros()).unwrap_or(0);
    }

    /// When its next sleeper wakes, in the world's time.
    pub(super) fn next(&self) -> Option<Timestamp> {
        let state = locked(&self.sleepers);
        let ((at, _), _) = state.waiting.first_key_value()?;
        Some(Timestamp::from_micros(at.as_micros().saturating_sub(state.off)))
    }

    /// Wakes those whose time has come; says whether there were any.
    pub(super) fn wake(&self) -> bool {
        let now = self.now();
        let mut wakers = Vec::new();
        {
            let mut state = locked(&self.sleepers);
            while let Some(entry) = state.waiting.first_entry().filter(|entry| entry.key().0 <= now)
            {
                wakers.push(entry.remove());
            }
        }
        let any = !wakers.is_empty();
        wakers.into_iter().flatten().for_each(Waker::wake);
        any
    }

    pub(super) fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + time)
    }
}

impl Clock for ProcessClock {
    fn now(&self) -> Timestamp {
        let off = locked(&self.sleepers).off;
        Timestamp::from_micros(self.world.now().as_micros().saturating_add(off))
    }

    /// The store has a clock of its own.
    fn store_time(&self) -> Option<Timestamp> {
        None
    }

    fn is_virtual(&self) -> bool {
        true
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let is_past = at <= self.now();
        let mut state = locked(&self.sleepers);
        let id = state.next;
        state.next += 1;
        if !is_past {
            state.waiting.insert((at, id), None);
        }
        Box::pin(Sleep { sleepers: Arc::clone(&self.sleepers), at, id })
    }
}

/// One sleep; dropping it forgets it.
struct Sleep {
    sleepers: Arc<Mutex<Sleepers>>,
    at: Timestamp,
    id: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match locked(&self.sleepers).waiting.get_mut(&(self.at, self.id)) {
            Some(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        locked(&self.sleepers).waiting.remove(&(self.at, self.id));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
