//! Claims that wait for work, and what they find (R8, R25, R34, R35).
//!
//! A claim looks once by itself. Where nothing is due it gets in line with the other claims of the
//! same tasks, and the first of them waits for wake-ups and due times on behalf of all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use quell_core::heartbeat::interval;
use quell_core::poll::{PollInterval, PollSettings, Polled};
use quell_core::{
    Claim, Claimed, Draw, Error, ErrorKind, Lease, QueueName, Result, Settlement, TaskName,
    Timestamp, Wakeups, WorkerId,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::attempt::Spent;
use super::super::run::started;
use super::handed::{Handed, Undelivered};
use super::{PullClaim, PullLease, PullProcess, PullTasks, PulledJob};
use crate::metrics;
use crate::random::drawn;

/// The jobs of the first store call of a claim: later ones ask for as many as their payloads allow.
const FIRST: usize = 4;
/// The most jobs of one store call.
const MOST: usize = 256;

/// Queues, each with the tasks that a worker knows of it.
type Queues = Vec<(QueueName, Arc<[TaskName]>)>;

/// What the first claim in line keeps for the next.
struct Lane {
    wakeups: Option<Wakeups>,
    interval: PollInterval,
}

/// The lines of waiting claims, by their tasks; and who waits.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Mutex<BTreeMap<Queues, Arc<tokio::sync::Mutex<Lane>>>>,
    waiting: Mutex<BTreeMap<(WorkerId, u32), (CancellationToken, usize)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lanes {
    /// The line of these tasks. Lines without a waiting claim are forgotten.
    fn lane(&self, queues: &Queues, settings: PollSettings) -> Arc<tokio::sync::Mutex<Lane>> {
        let mut lanes = locked(&self.lanes);
        lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        let new = || Lane { wakeups: None, interval: PollInterval::new(settings) };
        let lane =
            lanes.entry(queues.clone()).or_insert_with(|| Arc::new(tokio::sync::Mutex::new(new())));
        Arc::clone(lane)
    }

    /// Notes that a claim of a process waits.
    fn enter<'l>(&'l self, process: &PullProcess) -> InLine<'l> {
        let key = (process.worker.clone(), process.incarnation);
        let mut waiting = locked(&self.waiting);
        let (left, claims) = waiting.entry(key.clone()).or_default();
        *claims += 1;
        InLine { lanes: self, key, left: left.clone() }
    }

    /// Ends the claims of a process that wait.
    pub(super) fn leave(&self, worker: &WorkerId, incarnation: u32) {
        if let Some((left, _)) = locked(&self.waiting).remove(&(worker.clone(), incarnation)) {
            left.cancel();
        }
    }
}

/// A claim that waits.
struct InLine<'l> {
    lanes: &'l Lanes,
    key: (WorkerId, u32),
    /// Fires when the worker leaves.
    left: CancellationToken,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut waiting = locked(&self.lanes.waiting);
        // After a leave it is no longer listed, or a later claim of the same process is.
        let Some((_, claims)) = waiting.get_mut(&self.key).filter(|_| !self.left.is_cancelled())
        else {
            return;
        };
        *claims = claims.saturating_sub(1);
        if *claims == 0 {
            waiting.remove(&self.key);
        }
    }
}

/// What a look for work found.
struct Look {
    now: Timestamp,
    jobs: Vec<PulledJob>,
    undelivered: Undelivered,
    /// When more will be due, in this process's time.
    next: Option<Timestamp>,
    /// Something was due, and a limit kept it back.
    is_limited: bool,
}

impl Look {
    fn handed(self) -> Handed {
        Handed::new(self.now, self.jobs, self.undelivered)
    }
}

impl PullTasks {
    /// Looks for work, and waits for some.
    pub(super) async fn wait_for_jobs(&self, claim: &PullClaim, queues: &Queues) -> Result<Handed> {
        let clock = self.quell.clock();
        let names: Vec<QueueName> = queues.iter().map(|(queue, _)| queue.clone()).collect();
        self.beat(&claim.process, &names, claim.lease).await;
        let in_line = self.shared.lanes.enter(&claim.process);
        let deadline = clock.now() + claim.wait;
        let ends = claim.wait.is_zero() || self.shared.closed.is_cancelled();
        if self.shared.beats.is_drained(&claim.process) {
            // R29: it waits apart from the line, which it would hold up.
            let over = async {
                tokio::select! {
                    () = in_line.left.cancelled() => {}
                    () = self.shared.closed.cancelled() => {}
                    () = clock.sleep_until(deadline) => {}
                }
            };
            let is_over = tokio::select! {
                biased;
                () = over => true,
                () = self.keep_beating(claim, &names, false) => false,
            };
            let nothing = self.nothing(self.store_now()).handed();
            return Ok(if is_over { nothing.drained() } else { nothing });
        }
        let first = self.look(claim, queues).await;
        let empty = match first {
            Ok(look) if ends || !look.jobs.is_empty() => return Ok(look.handed()),
            Ok(look) => look.handed(),
            Err(error) if ends || error.kind() != ErrorKind::Contention => return Err(error),
            Err(_) => self.nothing(self.store_now()).handed(),
        };
        let over = async {
            tokio::select! {
                () = in_line.left.cancelled() => {}
                () = self.shared.closed.cancelled() => {}
                () = clock.sleep_until(deadline) => {}
            }
        };
        let lane = self.shared.lanes.lane(queues, PollSettings::default());
        tokio::select! {
            biased;
            found = self.stand_in_line(claim, queues, &lane) => found,
            () = self.keep_beating(claim, &names, true) => Ok(empty.drained()),
            () = over => Ok(empty),
        }
    }

    /// Waits until it is first in line, and then for work. It lets the next go first where a limit of
    /// its own worker may keep the work back (R8).
    async fn stand_in_line(
        &self,
        claim: &PullClaim,
        queues: &Queues,
        lane: &tokio::sync::Mutex<Lane>,
    ) -> Result<Handed> {
        let clock = self.quell.clock();
        loop {
            if let Some(found) = self.first_in_line(claim, queues, &mut *lane.lock().await).await? {
                return Ok(found);
            }
            clock.sleep_until(clock.now() + PollSettings::default().base).await;
        }
    }

    /// Waits for work on behalf of all in line; none where the next one should look.
    async fn first_in_line(
        &self,
        claim: &PullClaim,
        queues: &Queues,
        lane: &mut Lane,
    ) -> Result<Option<Handed>> {
        let clock = self.quell.clock();
        let Lane { wakeups, interval } = lane;
        // Before the look: what comes after it wakes.
        let wakeups = wakeups.get_or_insert_with(|| self.quell.store().wakeups());
        loop {
            let look = self.look(claim, queues).await;
            let now = clock.now();
            interval.on(Polled::of(&look), now);
            let mut look_at = now + interval.sleep(now, self.random());
            match look {
                Ok(look) if !look.jobs.is_empty() => return Ok(Some(look.handed())),
                Ok(look) if look.is_limited && self.limits_workers(queues).await? => {
                    return Ok(None);
                }
                Ok(look) => look_at = look.next.map_or(look_at, |next| next.min(look_at)),
                Err(error) if error.kind() == ErrorKind::Contention => {
                    queues.iter().for_each(|(queue, _)| metrics::contention(queue));
                }
                Err(error) => return Err(error),
            }
            let mut ended = false;
            while clock.now() < look_at {
                tokio::select! {
                    biased;
                    wakeup = wakeups.next(), if !ended => match wakeup {
                        None => ended = true,
                        Some(wakeup) => {
                            let is_ours = |name: &QueueName| queues.iter().any(|(queue, _)| queue == name);
                            if wakeup.cancelled.is_none() && wakeup.queue.as_ref().is_none_or(is_ours) {
                                look_at = look_at.min(self.local_time(wakeup.due));
                            }
                        }
                    },
                    () = clock.sleep_until(look_at) => {}
                }
            }
        }
    }

    /// Sends heartbeats until an operator drains the process, or resumes it.
    async fn keep_beating(&self, claim: &PullClaim, queues: &[QueueName], until_drained: bool) {
        let clock = self.quell.clock();
        let began = clock.now();
        loop {
            clock.sleep_until(clock.now() + interval(claim.lease)).await;
            let age = claim.process.age.saturating_add(clock.now().since(began));
            let process = PullProcess { age, ..claim.process.clone() };
            self.beat(&process, queues, claim.lease).await;
            if self.shared.beats.is_drained(&process) == until_drained {
                return;
            }
        }
    }

    /// Claims what is due now.
    async fn look(&self, claim: &PullClaim, queues: &Queues) -> Result<Look> {
        let store = self.quell.store();
        let dues = store.peek(self.store_time(), queues).await?;
        let now = dues.first().map_or_else(|| self.store_now(), |due| due.now);
        self.learn(now);
        let mut look = self.nothing(now);
        let is_virtual = self.quell.clock().is_virtual();
        let turn = if is_virtual { 0 } else { fastrand::usize(..queues.len().max(1)) };
        for place in (0..queues.len()).map(|place| (place + turn) % queues.len()) {
            let (Some(queue), Some(due)) = (queues.get(place), dues.get(place)) else { continue };
            match due.due {
                None => {}
                // One that a limit keeps back may be past, too: what ends the limit wakes.
                Some(at) if at > due.now => self.note_next(at, now, &mut look),
                Some(_) if look.jobs.len() >= claim.limit => {}
                Some(_) => {
                    let before = look.jobs.len();
                    self.claim_from(claim, queue, &mut look).await?;
                    look.is_limited |= look.jobs.len() == before;
                }
            }
        }
        Ok(look)
    }

    /// Notes when something will be due; what was due before says nothing of when to look again.
    fn note_next(&self, at: Timestamp, now: Timestamp, look: &mut Look) {
        if at > now {
            let at = self.local_time(at);
            look.next = Some(look.next.map_or(at, |next| next.min(at)));
        }
    }

    /// Whether one of these queues has a limit that counts for each worker by itself.
    async fn limits_workers(&self, queues: &Queues) -> Result<bool> {
        let known = self.quell.store().queues().await?;
        let is_ours = |name: &QueueName| queues.iter().any(|(queue, _)| queue == name);
        let mut ours = known.iter().filter(|queue| is_ours(&queue.name));
        Ok(ours.any(|queue| queue.settings.worker_concurrency.is_some()))
    }

    /// A number in [0, 1); in virtual time always the same, so that runs repeat.
    fn random(&self) -> f64 {
        if self.quell.clock().is_virtual() { 0.5 } else { fastrand::f64() }
    }

    /// Claims jobs of one queue until enough are there, or their payloads are large enough.
    async fn claim_from(
        &self,
        claim: &PullClaim,
        (queue, tasks): &(QueueName, Arc<[TaskName]>),
        look: &mut Look,
    ) -> Result<()> {
        loop {
            let limit = next_limit(claim, &look.jobs);
            if limit == 0 {
                return Ok(());
            }
            let claimed = self.claim_some(claim, queue, tasks, limit).await;
            let (claimed, undelivered) = match claimed {
                // What was claimed before is not to wait for another try.
                Err(_) if !look.jobs.is_empty() => return Ok(()),
                claimed => claimed?,
            };
            look.undelivered.absorb(undelivered);
            let is_all = claimed.jobs.len() < limit;
            metrics::polled(queue, claimed.jobs.len());
            if let Some(at) = claimed.next.due {
                self.note_next(at, claimed.now, look);
            }
            self.take(claim, queue, claimed, look).await;
            if is_all {
                return Ok(());
            }
        }
    }

    /// One store call. It goes on where the worker has gone meanwhile, and releases what it brings.
    async fn claim_some(
        &self,
        claim: &PullClaim,
        queue: &QueueName,
        tasks: &Arc<[TaskName]>,
        limit: usize,
    ) -> Result<(Claimed, Undelivered)> {
        let (store, time) = (Arc::clone(self.quell.store()), self.store_time());
        let asked = Claim {
            queue: queue.clone(),
            tasks: Arc::clone(tasks),
            worker: claim.process.worker.clone(),
            limit,
            lease: claim.lease,
            draw: Draw::new(drawn()),
        };
        let mut undelivered = self.undelivered();
        let (send, answer) = oneshot::channel();
        self.shared.calls.begin(async move {
            let claimed = store.claim(time, &asked).await.map(|claimed| {
                undelivered.add(&claimed.jobs);
                (claimed, undelivered)
            });
            // Where the claim has gone, the answer is dropped, which releases its jobs.
            drop(send.send(claimed));
        });
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "the claim broke off: its answer is unknown"))
        })
    }

    /// Adds claimed jobs to what was found, but for those that are not to run again (R25).
    async fn take(&self, claim: &PullClaim, queue: &QueueName, claimed: Claimed, look: &mut Look) {
        look.now = claimed.now;
        let mut poisoned = Vec::new();
        for job in claimed.jobs {
            let lease = Lease { job: job.id, token: job.token };
            let Some(task) = self.tasks.get(&job.task) else { continue };
            if let Some(outcome) = Spent::of(&task.policy, &job).poison() {
                look.undelivered.remove(lease);
                task.metrics.ended(outcome.counted(), Duration::ZERO);
                poisoned.push(Settlement { lease, outcome });
                continue;
            }
            task.metrics.started(job.first_at, job.due_at, claimed.now);
            self.record(|wants| started(&job, claimed.now, &claim.process.worker, wants));
            look.jobs.push(PulledJob {
                lease: PullLease::of(&job, claimed.now),
                job,
                queue: queue.clone(),
                timeout: task.policy.timeout(),
            });
        }
        if !poisoned.is_empty()
            && let Err(error) = self.quell.store().settle(self.store_time(), poisoned).await
        {
            // Their leases expire, and the next claim settles them.
            tracing::warn!(%error, "jobs that crash their workers could not be settled, trying again");
        }
    }

    fn nothing(&self, now: Timestamp) -> Look {
        let (jobs, undelivered) = (Vec::new(), self.undelivered());
        Look { now, jobs, undelivered, next: None, is_limited: false }
    }

    fn undelivered(&self) -> Undelivered {
        let (store, calls) = (Arc::clone(self.quell.store()), Arc::clone(&self.shared.calls));
        Undelivered::new(store, self.store_time(), calls)
    }
}

/// How many jobs the next store call asks for.
fn next_limit(claim: &PullClaim, jobs: &[PulledJob]) -> usize {
    let left = claim.limit.saturating_sub(jobs.len());
    let bytes: usize = jobs.iter().map(|job| job.job.payload.as_str().len()).sum();
    if jobs.is_empty() {
        return left.min(FIRST);
    }
    let Some(room) = claim.bytes.checked_sub(bytes).filter(|room| *room > 0) else { return 0 };
    let average = bytes.div_ceil(jobs.len()).max(1);
    left.min(MOST).min(room / average)
}
