//! The event loop of a worker: turns answers and time into events, and performs commands.
//!
//! Store calls are futures of this loop, handlers are its child tasks; both end with it. The
//! `select()` is biased, so the same world gives the same order.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quell_core::history::{Event as Recorded, WorkerTask};
use quell_core::{
    Claim, Claimed, ClaimedJob, Key, Lease, NextDue, Outcome, Retention, Settlement, TaskName,
    Timestamp, Wakeup, Wakeups, WorkerId,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::Registered;
use super::attempt::{Attempt, Ended, Spent};
use super::event::{Command, Event};
use super::hold_off::{HoldOff, sooner};
use super::identity::Identity;
use super::machine::Machine;
use super::machine::upkeep::{PRUNE_BATCH, REAP_BATCH};
use super::panic::message;
use super::restore::restore_unreadable;
use super::ticker::TICK_BATCH;
use crate::handler::around::Hooks;
use crate::handler::ctx::Attempted;
use crate::{Ctx, Quell, spans};

/// How long a job of a task that the worker does not know is set back.
const STRANGER_PAUSE: std::time::Duration = std::time::Duration::from_secs(10);

/// A question of a test: is nothing in flight but sleeping handlers?
#[derive(Debug)]
pub(crate) struct Ping {
    pub(crate) answer: oneshot::Sender<Rest>,
    /// Whether to name the handlers that do not sleep.
    pub(crate) names: bool,
}

/// The answer to a [`Ping`].
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) is_resting: bool,
    /// How many events the worker has seen: it grows while there is progress.
    pub(crate) events: u64,
    /// The handlers that run and do not sleep.
    pub(crate) awake: Vec<String>,
}

/// Handlers that a [`Rest`] names.
const MAX_NAMED: usize = 10;

/// How long a worker that has stopped waits for the store to remove its row.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A handler that runs.
#[derive(Debug)]
struct Running {
    cancelled: CancellationToken,
    abort: AbortHandle,
    task: TaskName,
    started: Timestamp,
    spent: Spent,
    key: Option<Key>,
    /// How many sleeps on the worker's clock the handler waits for.
    sleeps: Arc<AtomicUsize>,
}

impl Running {
    fn is_awake(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst) == 0
    }
}

/// Everything that one worker owns while it runs.
pub(super) struct Runner<S> {
    pub(super) quell: Quell,
    pub(super) state: Arc<S>,
    pub(super) identity: Identity,
    pub(super) lease: std::time::Duration,
    pub(super) retention: Retention,
    pub(super) tasks: BTreeMap<TaskName, Registered<S>>,
    pub(super) hooks: Hooks<S>,
    /// The tasks of each queue, in the order of the machine's queues.
    pub(super) queues: Vec<Arc<[TaskName]>>,
    pub(super) hold_off: Arc<HoldOff>,
    pub(super) machine: Machine,
    pub(super) pings: Option<mpsc::Receiver<Ping>>,
}

/// What changes while the loop runs.
struct Live {
    calls: FuturesUnordered<BoxFuture<'static, Event>>,
    attempts: JoinSet<Ended>,
    /// Whose attempt a task is, for the end of one that broke.
    leases: HashMap<Id, Lease>,
    running: BTreeMap<Lease, Running>,
    wakeups: Option<Wakeups>,
    timer: Option<(Timestamp, BoxFuture<'static, ()>)>,
    /// How many events there were.
    events: u64,
}

impl Live {
    /// The end of an attempt; none of one that was aborted after its job was released.
    ///
    /// A task that broke outside of its handler ends its attempt as well, or its lease would be
    /// renewed for ever.
    fn finished(&mut self, joined: Joined) -> Option<Ended> {
        match joined {
            Ok((id, ended)) => {
                self.leases.remove(&id);
                Some(ended)
            }
            Err(broken) => {
                let lease = self.leases.remove(&broken.id())?;
                let spent = self.running.get(&lease)?.spent;
                let message = broken.try_into_panic().map_or_else(|_| String::new(), message);
                error!(job = %lease.job, message, "the task of an attempt broke outside of its handler");
                let text = format!("the attempt panicked outside of its handler: {message}");
                Some(spent.broken(lease, text))
            }
        }
    }
}

/// How the task of an attempt ended.
type Joined = Result<(Id, Ended), JoinError>;

/// What the loop's `select()` saw.
enum Seen {
    Event(Event),
    Ended(Joined),
    Ping(Ping),
    WakeupsEnded,
}

impl<S: Send + Sync + 'static> Runner<S> {
    /// Works until `shutdown` or `drain` has come and everything in flight has ended.
    pub(super) async fn run(
        mut self,
        drain: Option<BoxFuture<'static, ()>>,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        let mut live = Live {
            calls: FuturesUnordered::new(),
            attempts: JoinSet::new(),
            leases: HashMap::new(),
            running: BTreeMap::new(),
            wakeups: Some(self.quell.store().wakeups()),
            timer: None,
            events: 0,
        };
        self.introduce();
        let mut shutdown = std::pin::pin!(shutdown.fuse());
        let mut drain = drain.unwrap_or_else(|| Box::pin(pending())).fuse();
        let mut event = Event::Tick;
        loop {
            live.events += 1;
            let now = self.quell.clock().now();
            for command in self.machine.apply(event, now) {
                self.perform(command, now, &mut live);
            }
            if self.machine.is_done() {
                return self.leave(&mut live).await;
            }
            event = loop {
                let seen = tokio::select! {
                    biased;
                    () = &mut shutdown => Seen::Event(Event::Shutdown),
                    () = &mut drain => Seen::Event(Event::Drain),
                    seen = self.next(&mut live) => seen,
                };
                match seen {
                    Seen::Event(event) => break event,
                    Seen::Ended(first) => break self.ended(first, &mut live),
                    Seen::WakeupsEnded => live.wakeups = None,
                    Seen::Ping(Ping { answer, names }) => {
                        // A test that stopped asking has no use for the answer.
                        let _dropped = answer.send(self.rest(&live, names));
                    }
                }
            };
        }
    }

    fn rest(&self, live: &Live, names: bool) -> Rest {
        let awake = live.running.iter().filter(|(_, running)| running.is_awake());
        let (running, sleeping) = (live.running.len(), awake.clone().count() == 0);
        let at_rest = self.machine.at_rest(self.quell.clock().now());
        let name = |(lease, running): (&Lease, &Running)| {
            let key = running.key.as_ref().map(|key| format!(", key {key:?}")).unwrap_or_default();
            format!("task {}{key}, job {}", running.task, lease.job)
        };
        Rest {
            is_resting: at_rest == Some(running) && sleeping,
            events: live.events,
            awake: if names { awake.map(name).take(MAX_NAMED).collect() } else { Vec::new() },
        }
    }

    /// Waits for the next thing to happen. Dropping the future loses nothing.
    async fn next(&mut self, live: &mut Live) -> Seen {
        let Live { calls, attempts, wakeups, timer, .. } = live;
        let wake = self.machine.next_wake();
        if timer.as_ref().map(|(at, _)| *at) != wake {
            *timer = wake.map(|at| (at, self.quell.clock().sleep_until(at)));
        }
        let pings = &mut self.pings;
        tokio::select! {
            biased;
            Some(joined) = attempts.join_next_with_id() => Seen::Ended(joined),
            Some(event) = calls.next() => Seen::Event(event),
            wakeup = next_wakeup(wakeups) => {
                wakeup.map_or(Seen::WakeupsEnded, |wakeup| Seen::Event(Event::Woken(wakeup)))
            }
            () = sleep(timer) => {
                *timer = None;
                Seen::Event(Event::Tick)
            }
            ping = next_ping(pings) => Seen::Ping(ping),
        }
    }

    /// Gathers all attempts that have ended by now, so that they settle in one call.
    fn ended(&mut self, first: Joined, live: &mut Live) -> Event {
        let now = self.quell.clock().now();
        let (mut settlements, mut handed_over) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(joined) = next {
            if let Some(Ended { settlement, counted, goes_on }) = live.finished(joined) {
                let running = live.running.remove(&settlement.lease);
                if let Some(within) = goes_on {
                    handed_over.push((settlement.lease, within));
                } else {
                    if let Some(running) = running
                        && let Some(task) = self.tasks.get(&running.task)
                    {
                        task.metrics.ended(counted, now.since(running.started));
                    }
                    settlements.push(settlement);
                }
            }
            next = live.attempts.try_join_next_with_id();
        }
        if !handed_over.is_empty() {
            live.calls.push(Box::pin(std::future::ready(Event::HandedOver(handed_over))));
        }
        Event::Ended(settlements)
    }

    fn perform(&mut self, command: Command, now: Timestamp, live: &mut Live) {
        match command {
            Command::Claim { queue, limit } => self.claim(queue, limit, now, live),
            Command::Look(queues) => self.look(queues, now, live),
            Command::Start(job) => self.start(*job, now, live),
            Command::Settle(settlements) => self.settle(settlements, live),
            Command::Renew(leases) => self.renew(leases, now, live),
            Command::Extend { leases, within } => {
                let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
                live.calls.push(Box::pin(async move {
                    let answer = store.renew(time, &leases, within).await;
                    Event::Extended { leases, answer }
                }));
            }
            Command::Heartbeat { busy, since } => {
                let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
                let beat = self.identity.beat(busy, since, now);
                live.calls.push(Box::pin(async move {
                    Event::Beaten(store.heartbeat(time, &beat).await)
                }));
            }
            Command::Leave => {
                let store = Arc::clone(self.quell.store());
                let (worker, incarnation) =
                    (self.identity.worker().clone(), self.identity.incarnation());
                live.calls.push(Box::pin(async move {
                    Event::Left(store.remove_worker(&worker, incarnation).await)
                }));
            }
            Command::Reap => {
                let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
                let reap = async move { Event::Reaped(store.reap(time, REAP_BATCH).await) };
                live.calls.push(Box::pin(reap));
            }
            Command::Prune => {
                let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
                let retention = self.retention;
                live.calls.push(Box::pin(async move {
                    restore_unreadable(&*store, time).await;
                    let answer = store.prune(time, &retention, PRUNE_BATCH).await;
                    Event::Pruned { asked_at: now, answer }
                }));
            }
            Command::Tick => {
                let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
                live.calls.push(Box::pin(async move {
                    let answer = store.tick(time, TICK_BATCH).await;
                    Event::Ticked { asked_at: now, answer }
                }));
            }
            Command::Cancel(lease) => {
                if let Some(running) = live.running.get(&lease) {
                    running.cancelled.cancel();
                    self.record(|_, _| Recorded::Lost { job: lease.job, token: lease.token });
                }
            }
            Command::Abort(lease) => {
                if let Some(running) = live.running.remove(&lease) {
                    running.abort.abort();
                }
            }
        }
    }

    fn claim(&self, queue: usize, limit: usize, asked_at: Timestamp, live: &Live) {
        let (Some(name), Some(tasks)) = (self.machine.queue(queue), self.queues.get(queue)) else {
            return;
        };
        let (tasks, free_at) = self.hold_off.split(tasks, asked_at);
        let free_at = free_at.map(|at| self.machine.store_time(at));
        if tasks.is_empty() {
            let now = self.machine.store_time(asked_at);
            let next = NextDue { now, due: free_at, expiry: None };
            let answer = Ok(Claimed { now, jobs: Vec::new(), next, rated: true });
            let claimed = Event::Claimed { queue, limit, asked_at, answer };
            return live.calls.push(Box::pin(std::future::ready(claimed)));
        }
        let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
        let claim = Claim {
            queue: name.clone(),
            tasks,
            worker: self.identity.worker().clone(),
            limit,
            lease: self.lease,
            draw: self.identity.draw(self.quell.clock().is_virtual()),
        };
        live.calls.push(Box::pin(async move {
            let answer = store.claim(time, &claim).await;
            let answer = answer.map(|claimed| {
                let next = sooner(claimed.next, free_at);
                Claimed { next, ..claimed }
            });
            Event::Claimed { queue, limit, asked_at, answer }
        }));
    }

    fn look(&self, queues: Vec<usize>, asked_at: Timestamp, live: &Live) {
        let named = |index: &usize| {
            let (tasks, free_at) = self.hold_off.split(self.queues.get(*index)?, asked_at);
            let free_at = free_at.map(|at| self.machine.store_time(at));
            Some(((self.machine.queue(*index)?.clone(), tasks), free_at))
        };
        let (asked, free_at): (Vec<_>, Vec<_>) = queues.iter().filter_map(named).unzip();
        let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
        live.calls.push(Box::pin(async move {
            let answer = store.peek(time, &asked).await;
            let answer = answer.map(|dues| {
                dues.into_iter().zip(free_at).map(|(due, at)| sooner(due, at)).collect()
            });
            Event::Looked { queues, asked_at, answer }
        }));
    }

    fn settle(&self, sent: Vec<Settlement>, live: &Live) {
        let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
        live.calls.push(Box::pin(async move {
            let answer = store.settle(time, sent.clone()).await;
            Event::Settled { sent, answer }
        }));
    }

    fn renew(&self, leases: Vec<Lease>, asked_at: Timestamp, live: &Live) {
        let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
        let lease = self.lease;
        live.calls.push(Box::pin(async move {
            let answer = store.renew(time, &leases, lease).await;
            Event::Renewed { leases, asked_at, answer }
        }));
    }

    fn start(&mut self, job: ClaimedJob, now: Timestamp, live: &mut Live) {
        let lease = Lease { job: job.id, token: job.token };
        let Some(task) = self.tasks.get(&job.task) else {
            // A store that hands out a task that was not asked for breaks R28. The job is set back
            // for a while, or the two would go on so without a pause.
            error!(job = %job.id, task = %job.task, "store returned a job of a task that is not registered");
            let outcome = Outcome::Snoozed { delay: STRANGER_PAUSE };
            let ended = Event::Ended(vec![Settlement { lease, outcome }]);
            live.calls.push(Box::pin(std::future::ready(ended)));
            return;
        };
        let started_at = self.machine.store_time(now);
        task.metrics.started(job.first_at, job.due_at, started_at);
        self.record(|worker, wants| started(&job, started_at, worker, wants));
        let cancelled = CancellationToken::new();
        let settled = Arc::new(AtomicBool::new(false));
        let spent = Spent::of(&task.policy, &job);
        let attempt = Attempt {
            lease,
            handler: task.handler.clone(),
            hooks: self.hooks.clone(),
            payload: job.payload.clone(),
            timeout: task.policy.timeout(),
            clock: Arc::clone(self.quell.clock()),
            cancelled: cancelled.clone(),
            settled: Arc::clone(&settled),
            spent,
            span: spans::attempt(&job, task.policy.queue()),
        };
        let (name, key) = (job.task.clone(), job.key.clone());
        let sleeps = Arc::new(AtomicUsize::new(0));
        let attempted = Attempted {
            quell: self.quell.clone(),
            job,
            started_at,
            cancelled: cancelled.clone(),
            settled,
            asleep: Arc::clone(&sleeps),
            effects: Mutex::default(),
            hold_off: Arc::clone(&self.hold_off),
        };
        let ctx = Ctx::new(Arc::clone(&self.state), attempted);
        let abort = live.attempts.spawn(attempt.run(ctx));
        live.leases.insert(abort.id(), lease);
        let running = Running { cancelled, abort, task: name, started: now, spent, key, sleeps };
        live.running.insert(lease, running);
    }

    /// `event` receives the worker and whether payloads are wanted.
    fn record(&self, event: impl FnOnce(&WorkerId, bool) -> Recorded) {
        if let Some(history) = self.quell.history() {
            history.record(&event(self.identity.worker(), history.wants_payloads()));
        }
    }

    fn introduce(&self) {
        self.record(|worker, _| {
            let tasks = self.tasks.values().map(|task| WorkerTask {
                task: task.policy.name().clone(),
                queue: task.policy.queue().clone(),
                retry: *task.policy.retry(),
            });
            Recorded::Worker { worker: worker.clone(), tasks: tasks.collect() }
        });
    }

    /// Removes the worker's row, unless it rests. Where the store does not answer, the row shows
    /// the worker as unseen.
    async fn leave(&self, live: &mut Live) {
        if self.machine.is_resting() {
            return;
        }
        let (store, identity) = (self.quell.store(), &self.identity);
        let removed = async {
            // A heartbeat in flight might bring the row back.
            let mut is_beating = self.machine.is_beating();
            while is_beating {
                let event = live.calls.next().await;
                is_beating = event.is_some_and(|event| !matches!(event, Event::Beaten(_)));
            }
            store.remove_worker(identity.worker(), identity.incarnation()).await
        };
        let clock = self.quell.clock();
        tokio::select! {
            removed = removed => if let Err(error) = removed {
                debug!(%error, "the worker's row could not be removed");
            },
            () = clock.sleep_until(clock.now() + LEAVE_TIMEOUT) => {
                debug!("the store did not answer: the worker's row stays");
            }
        }
    }

    fn store_time(&self) -> Option<Timestamp> {
        self.quell.clock().store_time()
    }
}

pub(super) fn started(
    job: &ClaimedJob,
    t: Timestamp,
    worker: &WorkerId,
    with_payload: bool,
) -> Recorded {
    Recorded::Start {
        t,
        job: job.id,
        token: job.token,
        task: job.task.clone(),
        key: job.key.clone(),
        worker: worker.clone(),
        count: job.triggers,
        due: job.due_at,
        attempt: job.attempt,
        until: job.lease_until,
        payload: with_payload.then(|| job.payload.as_str().to_owned()),
        traces: job.traces.clone(),
    }
}

async fn next_wakeup(wakeups: &mut Option<Wakeups>) -> Option<Wakeup> {
    match wakeups {
        Some(wakeups) => wakeups.next().await,
        None => std::future::pending().await,
    }
}

async fn next_ping(pings: &mut Option<mpsc::Receiver<Ping>>) -> Ping {
    if let Some(receiver) = pings
        && let Some(ping) = receiver.recv().await
    {
        return ping;
    }
    std::future::pending().await
}

async fn sleep(timer: &mut Option<(Timestamp, BoxFuture<'static, ()>)>) {
    match timer {
        Some((_, sleep)) => sleep.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use quell_core::{Batch, JobId, JobState, MemoryStore, Payload, Result};

    use super::*;
    use crate::testing::TestClock;
    use crate::{Policy, TaskError};

    #[tokio::test]
    async fn r21_r28_a_job_that_the_worker_was_not_to_get_is_set_back() -> Result<()> {
        let start = Timestamp::from_secs(1_000);
        let clock = Arc::new(TestClock::new(start));
        let store = Arc::new(MemoryStore::new(start));
        let quell = Quell::with_store(store).clock(clock).build()?;
        let (task, policy) = (TaskName::new("t")?, Policy::default());
        let trigger = policy.trigger(task.clone(), Payload::from_stored("1"), None)?;
        quell.enqueue(Batch::one(trigger)).await?;
        let handler = |_: Payload, _: Ctx<()>| async { Ok::<_, TaskError>(()) };
        let mut runner = quell.worker(()).register_raw(task, &policy, handler).into_runner()?;
        runner.tasks.clear();
        let mut worker = JoinSet::new();
        worker.spawn(runner.run(None, std::future::pending()));
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        let job = quell.store().job(JobId::new(1)).await?.unwrap();
        let kept = (job.state, job.window.due_at, job.attempt);
        assert_eq!(kept, (JobState::Scheduled, start + STRANGER_PAUSE, 0), "{job:?}");
        Ok(())
    }
}
