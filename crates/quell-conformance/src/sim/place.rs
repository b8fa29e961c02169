//! Where a simulated world keeps its store: in memory, or in a place that each process opens.
//!
//! A store in memory answers at once. A call to any other store is awaited on a runtime of its own
//! while the world stands still: no time passes and no other process runs, so that the store sees
//! one call after the other, with the world's time as its `now`. What stays the store's own are
//! the answers, and what each handle caches between them.
//!
//! Wake-ups of such a store would arrive whenever its background tasks get to run, which no seed
//! decides. The world sends its own instead, made from what the store records of each call: late,
//! lost and reordered like those of a store in memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_core::history::{Event, Sink};
use quell_core::{Error, ErrorKind, Result, Store, Timestamp, WakeHub, Wakeups};
use tokio::runtime::{Builder, Runtime};

use super::plan::Plan;

/// How long a store may take for one call, by the clock on the wall: a call that takes longer hangs.
const HANGS: Duration = Duration::from_secs(120);

/// A fresh place that holds one store, which each simulated process opens for itself.
///
/// ```
/// use std::sync::{Arc, OnceLock};
/// use quell_conformance::{check, sim};
///
/// // A store in memory is its only handle; any other opens its file or its server here.
/// let store = OnceLock::new();
/// let place = sim::Place::new(move |sink| {
///     let opened = Arc::clone(store.get_or_init(|| sim::memory(sink)));
///     async move { opened }
/// });
/// let ran = sim::run_on(&sim::Plan::draw(7), &place);
/// assert_eq!(ran.errors, Vec::<String>::new());
/// assert!(check::check(&ran.lines).violations.is_empty());
/// ```
#[derive(Clone)]
pub struct Place {
    open: Arc<dyn Fn(Sink) -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync>,
}

impl Place {
    /// A place whose store `open` opens once more each time, writing its history to the sink. The
    /// store must be empty the first time.
    pub fn new<F, Opening>(open: F) -> Self
    where
        F: Fn(Sink) -> Opening + Send + Sync + 'static,
        Opening: Future<Output = Arc<dyn Store>> + Send + 'static,
    {
        Place { open: Arc::new(move |sink| open(sink).boxed()) }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").finish_non_exhaustive()
    }
}

/// The store of a world, as its processes reach it.
pub(super) enum Stores {
    /// In memory: one handle, which answers at once and sends its own wake-ups.
    Memory(Arc<dyn Store>),
    /// A handle of each process, and one of the operators.
    Opened(Opened),
}

/// Handles of one store, and the runtime that they live on.
pub(super) struct Opened {
    place: Place,
    sink: Sink,
    handles: Mutex<Vec<Arc<dyn Store>>>,
    /// Wake-ups made from what the store records.
    hub: WakeHub,
    /// Errors that no store has a reason for in a world that makes one call at a time.
    errors: Mutex<Vec<String>>,
    /// What stores draw from.
    chance: AtomicU64,
    // Last, so that what runs on it is dropped before.
    runtime: Runtime,
}

impl Stores {
    /// Opens a handle for each process of a plan, and one more.
    pub(super) fn open(place: &Place, sink: Sink, plan: &Plan) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let opened = Opened {
            place: place.clone(),
            sink,
            handles: Mutex::default(),
            hub: WakeHub::new(),
            errors: Mutex::default(),
            chance: AtomicU64::new(plan.seed ^ 0x5851_f42d_4c95_7f2d),
            runtime,
        };
        let handles = (0..=plan.processes()).map(|_| opened.open()).collect();
        *locked(&opened.handles) = handles;
        Stores::Opened(opened)
    }

    /// The operators' handle.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        match self {
            Stores::Memory(store) => Arc::clone(store),
            Stores::Opened(opened) => {
                locked(&opened.handles).last().map(Arc::clone).expect("the last is theirs")
            }
        }
    }

    /// A process's handle.
    pub(super) fn store_of(&self, process: usize) -> Arc<dyn Store> {
        match self {
            Stores::Memory(store) => Arc::clone(store),
            Stores::Opened(opened) => {
                locked(&opened.handles).get(process).map(Arc::clone).expect("each has one")
            }
        }
    }

    /// A process that starts again opens the store again, and knows nothing of what it cached.
    pub(super) fn reopen(&self, process: usize) {
        let Stores::Opened(opened) = self else { return };
        let store = opened.open();
        let before =
            locked(&opened.handles).get_mut(process).map(|of| std::mem::replace(of, store));
        // What it leaves behind may need the runtime to end.
        let _inside = opened.runtime.enter();
        drop(before);
    }

    /// Hints that something may be due.
    pub(super) fn hints(&self) -> Wakeups {
        match self {
            Stores::Memory(store) => store.wakeups(),
            Stores::Opened(opened) => opened.hub.subscribe(),
        }
    }

    /// Makes a call while the world stands still.
    pub(super) fn perform<R>(&self, call: impl Future<Output = Result<R>>) -> Result<R> {
        match self {
            Stores::Memory(_) => call.now_or_never().unwrap_or_else(|| {
                Err(Error::new(ErrorKind::Internal, "a store in memory did not answer at once"))
            }),
            Stores::Opened(opened) => {
                let answer = opened.awaited(call);
                if let Err(error) = &answer
                    && is_odd(error.kind())
                {
                    locked(&opened.errors).push(error.to_string());
                }
                answer
            }
        }
    }

    /// Sends the wake-ups that follow from what a call recorded.
    pub(super) fn wake<'e>(&self, recorded: impl IntoIterator<Item = &'e Event>) {
        let Stores::Opened(opened) = self else { return };
        for event in recorded {
            match event {
                Event::Window { queue, due, .. } => opened.hub.wake(Some(queue), *due),
                // A key or a slot has come free, or what holds work back has changed.
                Event::Settle { .. }
                | Event::Expire { .. }
                | Event::Cancel { .. }
                | Event::Queue { .. }
                | Event::QueueDeleted { .. }
                | Event::TaskChanged { .. }
                | Event::Schedule { .. } => opened.hub.wake(None, Timestamp::MIN),
                _ => {}
            }
        }
    }

    /// The errors that the store had no reason for.
    pub(super) fn errors(&self) -> Vec<String> {
        match self {
            Stores::Memory(_) => Vec::new(),
            Stores::Opened(opened) => locked(&opened.errors).clone(),
        }
    }
}

/// Whether a store that is alone with one call at a time has no reason to fail so.
fn is_odd(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Invalid
            | ErrorKind::NotFound
            | ErrorKind::IdempotencyConflict
            | ErrorKind::IllegalMove
    )
}

impl Opened {
    fn open(&self) -> Arc<dyn Store> {
        self.awaited((self.place.open)(Arc::clone(&self.sink)))
    }

    /// Awaits what a store does. It draws from a generator of its own: what it draws must not change
    /// what processes draw.
    fn awaited<R>(&self, call: impl Future<Output = R>) -> R {
        let chance = fastrand::get_seed();
        fastrand::seed(self.chance.load(Ordering::Relaxed));
        let answer = self.runtime.block_on(async { tokio::time::timeout(HANGS, call).await });
        self.chance.store(fastrand::get_seed(), Ordering::Relaxed);
        fastrand::seed(chance);
        answer.expect("the store answers each call")
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
