//! Workers: they claim due jobs, run handlers and settle the results.
//!
//! [`Quell::worker`] makes a [`WorkerBuilder`]; [`Quell::workers`] lists the workers of a store.
//!
//! ```
//! use std::time::Duration;
//! use quell::worker::{PollSettings, Retention, WorkerId};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = quell::Quell::open("memory:").await?;
//! let worker = quell
//!     .worker(())
//!     .name(WorkerId::new("mailer-1")?)
//!     .poll(PollSettings::default().base(Duration::from_millis(200)))
//!     .retention(Retention::default().dead(Duration::from_secs(30 * 86_400)));
//! # let _ = worker;
//! # Ok(())
//! # }
//! ```

// `machine` decides (no I/O), `run` performs, `event` is what they send each other, `ticker` says
// when to ask for ticks of schedules, `attempt` runs one handler, `contain` bounds a user's code.
mod attempt;
mod contain;
mod event;
pub(crate) mod hold_off;
mod identity;
mod machine;
mod panic;
mod poller;
pub mod pull;
mod restore;
mod run;
mod ticker;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_core::heartbeat;
pub use quell_core::heartbeat::{Drained, WorkerDrain, WorkerRow, Workers};
pub use quell_core::poll::PollSettings;
use quell_core::{Error, Payload, QueueName, Result, TaskName};
pub use quell_core::{Retention, WorkerId};
use tokio::sync::mpsc;

use crate::handler::around::{Around, Hooks};
use crate::handler::{AnyHandler, check_input};
use crate::handler::{Handler, Input, RawOutput};
use crate::metrics::TaskMetrics;
use crate::trigger::TaskPolicy;
use crate::{Ctx, Policy, Quell, Task, TaskError};
use identity::Identity;
use machine::{Bounds, Machine};
pub(crate) use panic::message as panic_message;
use run::Runner;
pub(crate) use run::{Ping, Rest};

/// A task that a worker knows.
struct Registered<S> {
    policy: TaskPolicy,
    handler: AnyHandler<S>,
    metrics: TaskMetrics,
}

/// A worker before it runs.
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Hello { name: String }
/// # impl quell::Task for Hello { const NAME: &'static str = "hello"; type Output = (); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// use quell::{Ctx, Quell, TaskError};
/// use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
///
/// async fn hello(task: Hello, ctx: Ctx<UnboundedSender<String>>) -> Result<(), TaskError> {
///     ctx.state().send(format!("hello, {}", task.name))?;
///     Ok(())
/// }
///
/// let (sender, mut heard) = unbounded_channel();
/// let quell = Quell::open("memory:").await?;
/// quell.trigger(Hello { name: "you".into() }).await?;
/// let said = async { assert_eq!(heard.recv().await.unwrap(), "hello, you") };
/// quell.worker(sender).register(hello).run_until(said).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker works while `run_until` is awaited"]
pub struct WorkerBuilder<S> {
    quell: Quell,
    state: Arc<S>,
    bounds: Bounds,
    retention: Retention,
    name: Option<WorkerId>,
    tasks: BTreeMap<TaskName, Registered<S>>,
    refused: Option<Error>,
    pings: Option<mpsc::Receiver<Ping>>,
    panic_hook: bool,
    hooks: Hooks<S>,
    watched: Vec<QueueName>,
    drain: Option<BoxFuture<'static, ()>>,
}

impl<S> fmt::Debug for WorkerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("tasks", &self.tasks.keys())
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

impl<S: Send + Sync + 'static> WorkerBuilder<S> {
    pub(crate) fn new(quell: Quell, state: S) -> Self {
        let bounds = Bounds {
            concurrency: 32,
            prefetch: 4_000,
            lease: Duration::from_secs(30),
            heartbeat: heartbeat::interval(Duration::from_secs(30)),
            grace: Duration::from_secs(30),
            poll: PollSettings::default(),
            rests: false,
        };
        WorkerBuilder {
            quell,
            state: Arc::new(state),
            bounds,
            retention: Retention::default(),
            name: None,
            tasks: BTreeMap::new(),
            refused: None,
            pings: None,
            panic_hook: false,
            hooks: Hooks::default(),
            watched: Vec::new(),
            drain: None,
        }
    }

    /// How many attempts run at once in this worker. 32 by default.
    pub fn concurrency(mut self, attempts: usize) -> Self {
        self.bounds.concurrency = attempts;
        self
    }

    /// How many jobs the worker may hold beyond those that run. It takes no more ahead than it
    /// finishes in 50 ms at its present rate, releases what it cannot start within 100 ms, and
    /// takes nothing ahead in a queue with a rate. 4,000 by default.
    pub fn prefetch(mut self, jobs: usize) -> Self {
        self.bounds.prefetch = jobs;
        self
    }

    /// How long a lease holds without renewal; renewals come every third of it (R21). 30 s by
    /// default: a job of a worker that was killed runs again after at most that.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.bounds.lease = lease;
        self.bounds.heartbeat = heartbeat::interval(lease);
        self
    }

    /// How long attempts may go on after the shutdown began (R29). 30 s by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.bounds.grace = grace;
        self
    }

    /// Claims nothing more once `drain` completes, and lets attempts go on without a bound. The worker ends
    /// when the last of them has, or with a shutdown before. So another worker can take its place.
    ///
    /// ```
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Hello;
    /// # impl quell::Task for Hello { const NAME: &'static str = "hello"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::{Ctx, Quell};
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let hello = |_: Hello, _: Ctx<()>| async { Ok(()) };
    /// let worker = quell.worker(()).register(hello).drain_when(async {});
    /// worker.run_until(std::future::pending()).await
    /// # }
    /// ```
    pub fn drain_when(mut self, drain: impl Future<Output = ()> + Send + 'static) -> Self {
        self.drain = Some(Box::pin(drain));
        self
    }

    /// How often queues are polled when nothing wakes the worker (R35).
    pub fn poll(mut self, poll: PollSettings) -> Self {
        self.bounds.poll = poll;
        self
    }

    /// Records where a handler panicked, with a backtrace (R25).
    ///
    /// Every worker catches the panics of its handlers and records the message. Only the process's
    /// panic hook knows more, so this sets one when the worker starts, once in a process: it notes
    /// the place and the backtrace of panics in attempts, and then calls the hook that was there
    /// before. Other panics pass through it. A hook that is set later replaces it.
    ///
    /// ```
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Hello;
    /// # impl quell::Task for Hello { const NAME: &'static str = "hello"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::{Ctx, Quell};
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let hello = |_: Hello, _: Ctx<()>| async { Ok(()) };
    /// quell.worker(()).register(hello).with_panic_hook().run_until(async {}).await
    /// # }
    /// ```
    pub fn with_panic_hook(mut self) -> Self {
        self.panic_hook = true;
        self
    }

    /// Adds a hook around every handler of this worker, for measurements, error reports, limits of
    /// your own and the like: [`Around`] has an example. The hook that is added first is the
    /// outermost.
    pub fn around(mut self, hook: impl Around<S>) -> Self {
        self.hooks.push(hook);
        self
    }

    /// Takes back expired leases of queues whose jobs workers elsewhere run, such as those of
    /// [`pull`]. It claims nothing from them. A worker that watches queues needs no task: it does
    /// the upkeep of the store and fires ticks of schedules.
    pub fn watch(mut self, queues: impl IntoIterator<Item = QueueName>) -> Self {
        self.watched.extend(queues);
        self
    }

    /// How long ended jobs are kept (R37).
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// What the worker calls itself in the record of attempts and in the list of workers. Made up
    /// by default. Give each running worker a name of its own: two of one name look like one (R25,
    /// R31).
    pub fn name(mut self, name: WorkerId) -> Self {
        self.name = Some(name);
        self
    }

    /// Runs jobs of a task with this handler: `async fn(T, Ctx<S>) -> Result<T::Output,
    /// TaskError>`.
    ///
    /// A policy or handler that cannot be meant is reported by [`WorkerBuilder::run_until`].
    pub fn register<I: Input, H: Handler<S, I>>(mut self, handler: H) -> Self {
        let policy = self.quell.task_policy::<I::Task>().and_then(|policy| {
            check_input::<I>(policy.fold())?;
            Ok((*policy).clone())
        });
        self.insert(<I::Task as Task>::NAME, policy, AnyHandler::typed(handler));
        self
    }

    /// Runs jobs of a task that is declared at run time; the handler gets the bare payload, and
    /// returns nothing or its output as JSON.
    pub fn register_raw<F, Fut, R>(mut self, name: TaskName, policy: &Policy, handler: F) -> Self
    where
        F: Fn(Payload, Ctx<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, TaskError>> + Send + 'static,
        R: RawOutput,
    {
        let shown = name.clone();
        let policy = TaskPolicy::new(name, policy, self.quell.default_thresholds());
        self.insert(shown.as_str(), policy, AnyHandler::raw(handler));
        self
    }

    /// Works until `shutdown` completes, then ends as R29 says: claims nothing more, lets attempts
    /// finish within the grace time, gives the rest back unspent.
    ///
    /// It rides out a store that fails or goes away. Dropping the future stops the worker at once,
    /// and its leases expire.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a registration or setting that cannot
    /// be meant; nothing ran then.
    pub async fn run_until(mut self, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
        let drain = self.drain.take();
        crate::metrics::describe();
        let runner = self.into_runner()?;
        runner.run(drain, shutdown).await;
        Ok(())
    }

    /// Answers a test's question whether it is at rest.
    pub(crate) fn answering(mut self, pings: mpsc::Receiver<Ping>) -> Self {
        self.pings = Some(pings);
        self
    }

    /// Sends heartbeats at another interval than the lease asks for.
    pub(crate) fn heartbeat(mut self, interval: Duration) -> Self {
        self.bounds.heartbeat = interval;
        self
    }

    pub(crate) fn poll_settings(&self) -> PollSettings {
        self.bounds.poll
    }

    fn insert(&mut self, name: &str, policy: Result<TaskPolicy>, handler: AnyHandler<S>) {
        match policy {
            Ok(policy) if self.tasks.contains_key(policy.name()) => {
                let twice = format!("task {name} is registered twice: give it one handler");
                self.refused.get_or_insert(Error::invalid("task", twice));
            }
            Ok(policy) => {
                let metrics = TaskMetrics::new(policy.queue(), policy.name());
                self.tasks.insert(policy.name().clone(), Registered { policy, handler, metrics });
            }
            Err(error) => {
                self.refused.get_or_insert(error);
            }
        }
    }

    fn into_runner(mut self) -> Result<Runner<S>> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        self.check_bounds()?;
        if self.panic_hook {
            panic::install();
        }
        let mut by_queue: BTreeMap<QueueName, Vec<TaskName>> = BTreeMap::new();
        for task in self.tasks.values() {
            by_queue
                .entry(task.policy.queue().clone())
                .or_default()
                .push(task.policy.name().clone());
        }
        let (names, queues): (Vec<_>, Vec<_>) =
            by_queue.into_iter().map(|(queue, tasks)| (queue, Arc::from(tasks))).unzip();
        let now = self.quell.clock().now();
        let lease = self.bounds.lease;
        let name = self.name.map_or_else(made_up_name, Ok)?;
        let tasks = self.tasks.keys().cloned().collect();
        let slots = self.bounds.concurrency;
        let identity = Identity::new(name, names.clone(), tasks, slots, lease);
        self.bounds.rests = self.quell.store().capabilities().timed;
        let mut watched = self.watched;
        watched.retain(|queue| !names.contains(queue));
        watched.sort();
        watched.dedup();
        let queues = queues.into_iter().chain(watched.iter().map(|_| Arc::from([]))).collect();
        // In virtual time, runs must repeat: the poll's jitter too.
        let seed = if self.quell.clock().store_time().is_some() { 0 } else { fastrand::u64(..) };
        Ok(Runner {
            machine: Machine::new(self.bounds, names, watched, now, seed),
            quell: self.quell,
            state: self.state,
            identity,
            lease,
            retention: self.retention,
            tasks: self.tasks,
            hooks: self.hooks,
            hold_off: Arc::default(),
            queues,
            pings: self.pings,
        })
    }

    fn check_bounds(&self) -> Result<()> {
        if self.tasks.is_empty() && self.watched.is_empty() {
            return Err(Error::invalid("task", "worker has no task: register a handler"));
        }
        if self.bounds.concurrency == 0 {
            return Err(Error::invalid("concurrency", "concurrency is 0: give 1 or more"));
        }
        if self.bounds.lease < Duration::from_millis(3) {
            let lease = self.bounds.lease;
            return Err(Error::invalid(
                "lease",
                format!("lease of {lease:?} is too short to renew"),
            ));
        }
        self.bounds.poll.validate()
    }
}

/// A name that no other worker has: the process and a random part.
fn made_up_name() -> Result<WorkerId> {
    WorkerId::new(format!("{}-{:08x}", std::process::id(), fastrand::u32(..)))
}
