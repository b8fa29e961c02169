//! Jobs for workers that run in other programs and ask for their work: claim, renew, settle.
//!
//! A program in another language cannot hold a [`Quell`]. It calls a server, and the server calls
//! [`PullTasks`], which keeps the rules that a worker of this crate keeps in its own process: the
//! policy decides on retries, a crashed job is not handed out for ever, and a worker gives a sign
//! of life (R24, R25, R34).
//!
//! It keeps no state that a promise depends on. Another process with the same tasks may renew and
//! settle what this one handed out: a [`PullLease`] says what is needed for that.
//!
//! ```
//! use std::time::Duration;
//! use quell::worker::pull::{PullClaim, PullOutcome, PullProcess, PullTasks};
//! use quell::worker::WorkerId;
//! use quell::{Batch, Payload, Policy, Quell, TaskName};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = Quell::open("memory:").await?;
//! let (resize, policy) = (TaskName::new("resize")?, Policy::default());
//! let tasks = PullTasks::new(quell.clone()).task(resize.clone(), &policy)?;
//!
//! let trigger = policy.trigger(resize.clone(), Payload::encode(&7)?, None)?;
//! quell.enqueue(Batch::one(trigger)).await?;
//!
//! let process = PullProcess::new(WorkerId::new("python-1")?, 4711);
//! let claim = PullClaim::new(process, vec![resize]).wait(Duration::from_secs(20));
//! let pulled = tasks.claim(claim).await?.delivered();
//! let job = &pulled.jobs[0];
//! assert_eq!(job.job.payload.as_str(), "7");
//!
//! let settled = tasks.settle(vec![(job.lease.clone(), PullOutcome::succeeded())]).await?;
//! let settled = settled[0].as_ref().unwrap();
//! assert_eq!(settled.became, quell::store::SettledAs::Succeeded);
//! # Ok(())
//! # }
//! ```

mod apart;
mod beats;
mod calls;
mod handed;
mod lane;
mod lease;
mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_core::heartbeat::{Heartbeat, interval, listed};
use quell_core::history::{Event as Recorded, WorkerTask};
use quell_core::{
    ClaimedJob, Error, ErrorKind, QueueName, Renewal, Result, TaskName, Timestamp, WorkerId,
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::metrics::{self, TaskMetrics};
use crate::trigger::TaskPolicy;
use crate::{Policy, Quell};
use beats::Beats;
use calls::Calls;
pub use handed::Handed;
use lane::Lanes;
pub use lease::PullLease;
pub use settle::{PullOutcome, PullSettled};

/// The longest time that a claim waits.
pub const MAX_WAIT: Duration = Duration::from_secs(25);
/// The most jobs of one claim, leases of one renewal and settlements of one call.
pub const MAX_JOBS: usize = 1_000;
/// The most tasks that one claim names.
pub const MAX_TASKS: usize = 100;
/// The shortest lease.
pub const MIN_LEASE: Duration = Duration::from_secs(1);
/// The longest lease: a job of a worker that died waits for so long.
pub const MAX_LEASE: Duration = Duration::from_secs(3_600);
/// A worker that was silent for longer is not there.
const SEEN: Duration = Duration::from_secs(90);
/// How much longer than its timeout an attempt is renewed: its worker ends it in good order before.
const WRAP_UP: Duration = Duration::from_secs(5);

/// The process of a worker, as it reports itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullProcess {
    /// The worker's name.
    pub worker: WorkerId,
    /// A random number that the process chose at its start.
    pub incarnation: u32,
    /// Its host.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Its client and that one's version.
    pub version: String,
    /// How many attempts it runs at once at most.
    pub slots: u32,
    /// How many attempts it runs now.
    pub busy: u32,
    /// How long it has been running.
    pub age: Duration,
}

impl PullProcess {
    /// A process that reports nothing else of itself.
    #[must_use]
    pub fn new(worker: WorkerId, incarnation: u32) -> Self {
        PullProcess {
            worker,
            incarnation,
            host: String::new(),
            pid: 0,
            version: String::new(),
            slots: 1,
            busy: 0,
            age: Duration::ZERO,
        }
    }

    fn beat(&self, queues: Vec<QueueName>, tasks: Vec<TaskName>, lease: Duration) -> Heartbeat {
        Heartbeat {
            worker: self.worker.clone(),
            incarnation: self.incarnation,
            host: self.host.clone(),
            pid: self.pid,
            version: self.version.clone(),
            queues,
            tasks: listed(tasks),
            slots: self.slots,
            busy: self.busy,
            lease,
            age: self.age,
        }
    }
}

/// A worker's request for jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullClaim {
    /// Who asks.
    pub process: PullProcess,
    /// The tasks that it knows, 1 to [`MAX_TASKS`].
    pub tasks: Vec<TaskName>,
    /// At most this many jobs, 1 to [`MAX_JOBS`]: the worker's free slots. 1 by default.
    pub limit: usize,
    /// No further job once their payloads have this many bytes. 4 MiB by default.
    pub bytes: usize,
    /// How long to wait where nothing is due, [`MAX_WAIT`] at most. Not at all by default.
    pub wait: Duration,
    /// How long each lease holds, [`MIN_LEASE`] to [`MAX_LEASE`]. 30 s by default.
    pub lease: Duration,
}

impl PullClaim {
    /// A claim of one job of these tasks.
    #[must_use]
    pub fn new(process: PullProcess, tasks: Vec<TaskName>) -> Self {
        let lease = Duration::from_secs(30);
        PullClaim { process, tasks, limit: 1, bytes: 4 << 20, wait: Duration::ZERO, lease }
    }

    /// Sets how many jobs are wanted at most.
    #[must_use]
    pub fn limit(self, limit: usize) -> Self {
        PullClaim { limit, ..self }
    }

    /// Sets how long to wait.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        PullClaim { wait, ..self }
    }

    /// Sets how long each lease holds.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        PullClaim { lease, ..self }
    }

    fn validate(&self) -> Result<()> {
        within("limit", self.limit, MAX_JOBS, "jobs")?;
        within("tasks", self.tasks.len(), MAX_TASKS, "tasks")?;
        if self.wait > MAX_WAIT {
            let message =
                format!("wait of {:?} is longer than {MAX_WAIT:?}: claim again", self.wait);
            return Err(Error::invalid("wait", message));
        }
        valid_lease(self.lease)
    }
}

fn within(field: &'static str, count: usize, most: usize, what: &str) -> Result<()> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(Error::invalid(field, format!("{field} has {count} {what}: give 1 to {most}")))
}

fn valid_lease(lease: Duration) -> Result<()> {
    if (MIN_LEASE..=MAX_LEASE).contains(&lease) {
        return Ok(());
    }
    let bounds = format!("give {MIN_LEASE:?} to {MAX_LEASE:?}");
    Err(Error::invalid("lease", format!("lease of {lease:?} is out of bounds: {bounds}")))
}

/// What a claim brought.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// The store time of the answer.
    pub now: Timestamp,
    /// The jobs, in the order in which they start.
    pub jobs: Vec<PulledJob>,
    /// Whether an operator drains the worker: it gets none until it is resumed (R29).
    pub drained: bool,
}

/// A job for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PulledJob {
    /// What renewals and the settlement name.
    pub lease: PullLease,
    /// The job.
    pub job: ClaimedJob,
    /// Its queue.
    pub queue: QueueName,
    /// How long the attempt may take.
    pub timeout: Duration,
}

/// A task that workers elsewhere run.
#[derive(Clone)]
struct PullTask {
    policy: TaskPolicy,
    metrics: TaskMetrics,
}

/// Serves workers that run in other programs: hands out jobs, extends leases, takes results.
///
/// Clones share what they know of waiting claims.
#[derive(Clone)]
pub struct PullTasks {
    quell: Quell,
    tasks: Arc<BTreeMap<TaskName, PullTask>>,
    shared: Arc<Shared>,
}

struct Shared {
    lanes: Lanes,
    beats: Beats,
    calls: Arc<Calls>,
    /// Store time minus this process's time in microseconds, as the last answer showed it.
    store_ahead: Mutex<Option<i64>>,
    closed: CancellationToken,
}

impl fmt::Debug for PullTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullTasks").field("tasks", &self.tasks.keys()).finish_non_exhaustive()
    }
}

impl PullTasks {
    /// Without tasks; add them with [`PullTasks::task`].
    #[must_use]
    pub fn new(quell: Quell) -> Self {
        let shared = Shared {
            lanes: Lanes::default(),
            beats: Beats::default(),
            calls: Arc::default(),
            store_ahead: Mutex::default(),
            closed: CancellationToken::new(),
        };
        PullTasks { quell, tasks: Arc::default(), shared: Arc::new(shared) }
    }

    /// The same calls, workers and leases, for other tasks: without any, until they are added. So a server can
    /// change its tasks while workers hold jobs.
    #[must_use]
    pub fn for_other_tasks(&self) -> Self {
        let (quell, shared) = (self.quell.clone(), Arc::clone(&self.shared));
        PullTasks { quell, tasks: Arc::default(), shared }
    }

    /// Adds a task with its policy.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a policy that cannot be meant, or a task that was added before.
    pub fn task(mut self, name: TaskName, policy: &Policy) -> Result<Self> {
        let policy = TaskPolicy::new(name.clone(), policy, self.quell.default_thresholds())?;
        let metrics = TaskMetrics::new(policy.queue(), &name);
        let tasks = Arc::make_mut(&mut self.tasks);
        if tasks.insert(name.clone(), PullTask { policy, metrics }).is_some() {
            return Err(Error::invalid("task", format!("task {name} is given twice")));
        }
        Ok(self)
    }

    /// The queues of its tasks.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueName> {
        queues_of(self.tasks.values())
    }

    /// The queue of a task; none where it is not one of these.
    #[must_use]
    pub fn queue_of(&self, task: &TaskName) -> Option<&QueueName> {
        self.tasks.get(task).map(|task| task.policy.queue())
    }

    /// Claims due jobs, and waits for some where none are due. An answer without jobs means that
    /// the wait is over, or that the worker leaves.
    ///
    /// Of the claims of one set of tasks, one looks for work at a time, in the order in which they
    /// came: a hundred idle workers cost no more than one. Dropping the future, or the answer
    /// before it was delivered, releases the jobs (R29).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a request that is out of bounds, [`ErrorKind::NotFound`] for a
    /// task that is unknown; errors of the store.
    pub async fn claim(&self, claim: PullClaim) -> Result<Handed> {
        claim.validate()?;
        let mut by_queue: BTreeMap<QueueName, BTreeSet<TaskName>> = BTreeMap::new();
        for task in &claim.tasks {
            let known = self.known(task)?;
            by_queue.entry(known.policy.queue().clone()).or_default().insert(task.clone());
        }
        let in_order = |tasks: BTreeSet<TaskName>| tasks.into_iter().collect::<Arc<[TaskName]>>();
        let queues: Vec<_> =
            by_queue.into_iter().map(|(queue, tasks)| (queue, in_order(tasks))).collect();
        self.introduce(&claim);
        self.wait_for_jobs(&claim, &queues).await
    }

    /// Extends leases and reports a sign of life of the worker (R21, R34). The answers are in the
    /// order of the leases; a lease whose attempt has outlasted its timeout is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a request that is out of bounds; errors of the store.
    pub async fn renew(
        &self,
        process: &PullProcess,
        leases: &[PullLease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        valid_lease(lease)?;
        if !leases.is_empty() {
            within("leases", leases.len(), MAX_JOBS, "leases")?;
        }
        let queues = queues_of(leases.iter().filter_map(|lease| self.tasks.get(&lease.task)));
        let over: Vec<bool> = leases.iter().map(|lease| self.is_over(lease)).collect();
        let live = leases.iter().zip(&over).filter(|(_, over)| !**over);
        let live: Vec<_> = live.map(|(lease, _)| lease.lease).collect();
        let renew = async {
            match live.as_slice() {
                [] => Ok(Vec::new()),
                live => self.quell.store().renew(self.store_time(), live, lease).await,
            }
        };
        // A heartbeat that hangs delays no renewal.
        let ((), answers) = tokio::join!(self.beat(process, &queues, lease), renew);
        let answers = answers?;
        if let Some(until) = answers.iter().find_map(|answer| answer.until()) {
            self.learn(until.before(lease));
        }
        let mut answers = answers.into_iter();
        let mut answer = |over: &bool| match over {
            true => Renewal::Lost,
            false => answers.next().unwrap_or(Renewal::Unknown),
        };
        let answers: Vec<Renewal> = over.iter().map(&mut answer).collect();
        for (lease, _) in leases.iter().zip(&answers).filter(|(_, one)| **one == Renewal::Lost) {
            metrics::lease_lost();
            self.record(|_| Recorded::Lost { job: lease.lease.job, token: lease.lease.token });
        }
        Ok(answers)
    }

    /// Ends the claims of a process that wait in this one, and removes its worker from the list. A
    /// later claim or renewal adds it again.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn leave(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        self.shared.lanes.leave(worker, incarnation);
        self.shared.beats.forget(worker, incarnation);
        self.quell.store().remove_worker(worker, incarnation).await
    }

    /// Whether a worker that runs a task has called this process of late: within three of the longest
    /// intervals of heartbeats.
    #[must_use]
    pub fn is_run(&self, task: &TaskName) -> bool {
        self.shared.beats.runs(task, self.quell.clock().now().before(SEEN))
    }

    /// Ends all claims that wait, and lets no later one wait: for a server that stops.
    pub fn close(&self) {
        self.shared.closed.cancel();
    }

    /// Waits until the jobs of claims whose callers have gone are released, for `time` at most.
    pub async fn drained(&self, time: Duration) {
        let end = self.quell.clock().now() + time;
        tokio::select! {
            () = self.shared.calls.drained() => {}
            () = self.quell.clock().sleep_until(end) => {}
        }
    }

    fn known(&self, task: &TaskName) -> Result<&PullTask> {
        self.tasks.get(task).ok_or_else(|| {
            let message = format!("task {task} is not one that workers pull");
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// Whether an attempt has outlasted its timeout, as far as this process knows the store's time.
    fn is_over(&self, lease: &PullLease) -> bool {
        let Some(task) = self.tasks.get(&lease.task) else { return false };
        if self.ahead().is_none() {
            return false;
        }
        let allowed = task.policy.timeout().saturating_add(WRAP_UP);
        self.store_now().since(lease.started_at) > allowed
    }

    fn ahead(&self) -> std::sync::MutexGuard<'_, Option<i64>> {
        self.shared.store_ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of the store's time in an answer that has just come.
    fn learn(&self, store_now: Timestamp) {
        // The answer took a while to come: the store's time is later than this says, never earlier.
        let now = self.quell.clock().now();
        *self.ahead() = Some(store_now.as_micros().saturating_sub(now.as_micros()));
    }

    /// The store's time as far as it is known.
    fn store_now(&self) -> Timestamp {
        let ahead = self.ahead().unwrap_or_default();
        Timestamp::from_micros(self.quell.clock().now().as_micros().saturating_add(ahead))
    }

    /// A moment of store time as this process's clock says it.
    fn local_time(&self, store_time: Timestamp) -> Timestamp {
        let ahead = self.ahead().unwrap_or_default();
        Timestamp::from_micros(store_time.as_micros().saturating_sub(ahead))
    }

    fn store_time(&self) -> Option<Timestamp> {
        self.quell.clock().store_time()
    }

    /// Reports a sign of life where one is due. Without it the worker would look unseen, no more.
    async fn beat(&self, process: &PullProcess, queues: &[QueueName], lease: Duration) {
        let now = self.quell.clock().now();
        let due = self.shared.beats.due(process, queues, interval(lease), now);
        let Some((queues, tasks)) = due else { return };
        let beat = process.beat(queues, tasks, lease);
        match self.quell.store().heartbeat(self.store_time(), &beat).await {
            Ok(beaten) => self.shared.beats.answered(process, beaten),
            Err(error) => {
                self.shared.beats.failed(process);
                debug!(%error, worker = %process.worker, "heartbeat failed, trying again");
            }
        }
    }

    /// Records which tasks a worker runs, where there are new ones.
    fn introduce(&self, claim: &PullClaim) {
        let Some(all) = self.shared.beats.introduce(&claim.process, &claim.tasks) else { return };
        let known = all.iter().filter_map(|task| self.tasks.get(task));
        let tasks = known.map(|task| WorkerTask {
            task: task.policy.name().clone(),
            queue: task.policy.queue().clone(),
            retry: *task.policy.retry(),
        });
        let worker = claim.process.worker.clone();
        self.record(|_| Recorded::Worker { worker, tasks: tasks.collect() });
    }

    /// `event` receives whether payloads are wanted.
    fn record(&self, event: impl FnOnce(bool) -> Recorded) {
        if let Some(history) = self.quell.history() {
            history.record(&event(history.wants_payloads()));
        }
    }
}

fn queues_of<'t>(tasks: impl Iterator<Item = &'t PullTask>) -> Vec<QueueName> {
    let mut queues: Vec<QueueName> = tasks.map(|task| task.policy.queue().clone()).collect();
    queues.sort();
    queues.dedup();
    queues
}
