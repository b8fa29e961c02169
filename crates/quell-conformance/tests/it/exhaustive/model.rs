//! The model: the real memory store, walked through every order of a few calls.
//!
//! A state is what the store keeps plus what an onlooker must remember to judge it. Time is whole
//! seconds up to a horizon. An attempt that no step settles has crashed, and a message comes
//! late because any lease that was ever given may be settled or renewed at any later time. The two
//! workers take one job each and are alike, so the first free one claims.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::trigger::{Keyed, NewTrigger, When};
use quell_core::window::Debounce;
use quell_core::{
    AttemptOutcome, Batch, Claim, Draw, Failure, FailureKind, Job, JobFilter, JobId, JobState, Key,
    Lease, LeaseToken, MemoryStore, Outcome, Payload, QueueName, QueueSettings, Receipt, Renewal,
    Retention, Settled, Settlement, Snapshot, Store, TaskName, Timestamp, WorkerId,
};
use stateright::{Model, Property};

use super::bug::Bug;
use super::ghost::Ghost;
use super::judge::{self, Broken};

/// What is drawn for all claims.
const DRAW: Draw = Draw::new(5);
/// One lease, in seconds.
pub(super) const LEASE: i64 = 2;
/// The wait after a transient failure, and of a snooze.
pub(super) const BACKOFF: i64 = 1;
/// After this many attempts a failure is the last.
pub(super) const ATTEMPTS: u32 = 2;
/// How long a dedup key with a time to live is held.
pub(super) const HELD: i64 = 2;
/// How long ended jobs are kept where rows are pruned.
const KEPT: i64 = 1;

/// One small world: what may happen in it, and how often.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// The debounce of keyed triggers.
    pub(super) debounce: Debounce,
    /// The debounce keys that triggers carry; none for a trigger without one.
    pub(super) keys: &'static [Option<&'static str>],
    /// The dedup keys that triggers carry.
    pub(super) dedup: &'static [Option<HoldUntil>],
    /// A delay that every other trigger asks for.
    pub(super) delay: Option<Duration>,
    /// Triggers in all.
    pub(super) triggers: u8,
    /// Starts in all.
    pub(super) starts: u64,
    /// The last second.
    pub(super) horizon: i64,
    /// How attempts end.
    pub(super) ends: &'static [End],
    /// What operators do.
    pub(super) operators: &'static [Operation],
    /// Operations in all.
    pub(super) operations: u8,
    /// Whether late settlements and renewals arrive.
    pub(super) late: bool,
    /// What is wrong with this world, in tests of the judge.
    pub(super) bug: Option<Bug>,
}

/// How a worker says that an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Succeeded,
    Failed,
    Permanent,
    Snoozed,
    Released,
}

/// What an operator may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Cancel,
    CancelKey,
    Flush,
    Redrive,
    Prune,
    Pause,
    Limit,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Tick,
    Trigger { key: Option<&'static str>, dedup: Option<HoldUntil>, delayed: bool },
    Claim,
    Renew(Lease),
    Settle(Lease, End),
    Reap,
    Cancel(JobId),
    CancelKey(&'static str),
    Flush(&'static str),
    Redrive(JobId),
    Prune,
    Queue(QueueSettings),
}

/// What the store keeps and what the onlooker knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Moment {
    pub(super) kept: Snapshot,
    pub(super) now: i64,
    pub(super) triggered: u8,
    pub(super) operated: u8,
    pub(super) ghost: Ghost,
    /// The properties that the last step broke, and how.
    pub(super) broken: Vec<Broken>,
}

impl Moment {
    pub(super) fn store(&self) -> MemoryStore {
        MemoryStore::restored(&self.kept)
    }
}

/// All jobs, oldest first.
pub(super) fn jobs(store: &MemoryStore) -> Vec<Job> {
    let filter = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
    let mut jobs = at_once(store.jobs(&filter)).unwrap();
    jobs.reverse();
    jobs
}

/// The memory store never waits.
pub(super) fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().unwrap()
}

pub(super) fn at(now: i64) -> Timestamp {
    Timestamp::from_secs(now)
}

pub(super) fn seconds(count: i64) -> Duration {
    Duration::from_secs(count.unsigned_abs())
}

pub(super) fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

pub(super) fn task() -> TaskName {
    TaskName::new("t").unwrap()
}

/// What a step was answered, for the judge.
#[derive(Debug)]
pub(super) enum Answer {
    Nothing,
    Receipt(Receipt),
    Claimed(Vec<quell_core::ClaimedJob>),
    Renewed(Renewal),
    Settled(Settled),
    Expired(Vec<JobId>),
    Operated(bool),
}

impl World {
    pub(super) fn trigger(
        &self,
        key: Option<&str>,
        dedup: Option<HoldUntil>,
        delayed: bool,
    ) -> NewTrigger {
        let keyed = key.map(|key| Keyed { key: Key::new(key).unwrap(), debounce: self.debounce });
        let when = if delayed { self.delay.map_or(When::Now, When::After) } else { When::Now };
        let dedup = dedup.map(|until| Dedup { key: Key::new("d").unwrap(), until });
        let payload = Payload::from_stored("1");
        NewTrigger { keyed, when, dedup, ..NewTrigger::new(task(), queue(), payload) }
    }

    /// Carries a step out as this world does.
    pub(super) fn carry_out(&self, store: &MemoryStore, now: i64, action: &Action) -> Answer {
        match self.bug {
            Some(bug) => bug.act(self, store, now, action),
            None => self.act(store, now, action),
        }
    }

    /// Carries a step out as it should be.
    pub(super) fn act(&self, store: &MemoryStore, now: i64, action: &Action) -> Answer {
        let time = Some(at(now));
        match action {
            Action::Tick => {
                at_once(store.reap(time, 0)).unwrap();
                Answer::Nothing
            }
            Action::Trigger { key, dedup, delayed } => {
                let batch = Batch::one(self.trigger(*key, *dedup, *delayed));
                let receipts = at_once(store.enqueue(time, vec![batch])).unwrap();
                Answer::Receipt(receipts.into_iter().flatten().flatten().next().unwrap())
            }
            Action::Claim => {
                let busy = jobs(store).iter().filter(|job| job.state == JobState::Running).count();
                let claim = Claim {
                    queue: queue(),
                    tasks: Arc::from([task()]),
                    worker: WorkerId::new(format!("w{busy}")).unwrap(),
                    limit: 1,
                    lease: seconds(LEASE),
                    draw: DRAW,
                };
                Answer::Claimed(at_once(store.claim(time, &claim)).unwrap().jobs)
            }
            Action::Renew(lease) => {
                let renewed = at_once(store.renew(time, &[*lease], seconds(LEASE))).unwrap();
                Answer::Renewed(renewed.into_iter().next().unwrap())
            }
            Action::Settle(lease, end) => {
                let attempt = at_once(store.job(lease.job)).unwrap().map_or(0, |job| job.attempt);
                let settlement = Settlement { lease: *lease, outcome: end.outcome(attempt) };
                let settled = at_once(store.settle(time, vec![settlement])).unwrap();
                Answer::Settled(settled.into_iter().next().unwrap())
            }
            Action::Reap => {
                let expired = at_once(store.reap(time, 10)).unwrap();
                Answer::Expired(expired.into_iter().map(|one| one.lease.job).collect())
            }
            Action::Cancel(id) => Answer::Operated(at_once(store.cancel(time, *id, "why")).is_ok()),
            Action::CancelKey(key) => {
                let key = Key::new(*key).unwrap();
                Answer::Operated(at_once(store.cancel_key(time, &task(), &key)).unwrap().is_some())
            }
            Action::Flush(key) => {
                let key = Key::new(*key).unwrap();
                Answer::Operated(at_once(store.flush(time, &task(), &key)).unwrap().is_some())
            }
            Action::Redrive(id) => {
                Answer::Operated(at_once(store.redrive(time, &(*id).into())).is_ok())
            }
            Action::Prune => {
                let keep = Some(seconds(KEPT));
                let retention = Retention { succeeded: keep, dead: keep };
                Answer::Operated(at_once(store.prune(time, &retention, 10)).unwrap().jobs > 0)
            }
            Action::Queue(settings) => {
                at_once(store.set_queue(time, &queue(), settings)).unwrap();
                Answer::Nothing
            }
        }
    }

    /// Every lease that was ever given, and may still be used by a worker that does not know better.
    fn leases(&self, jobs: &[Job]) -> Vec<Lease> {
        let given = |job: &Job| {
            let (id, first) = (job.id, if self.late { 1 } else { job.starts().max(1) });
            let running = job.state == JobState::Running;
            let any = self.late || running;
            (first..=job.starts())
                .filter(move |_| any)
                .map(move |start| Lease { job: id, token: LeaseToken::of(start, DRAW) })
        };
        jobs.iter().flat_map(given).collect()
    }

    fn operations(&self, moment: &Moment, jobs: &[Job], actions: &mut Vec<Action>) {
        if moment.operated == self.operations {
            return;
        }
        let keys = || self.keys.iter().filter_map(|key| *key);
        let settings = at_once(moment.store().queues()).unwrap().into_iter().next();
        let settings = settings.map(|queue| queue.settings).unwrap_or_default();
        for operation in self.operators {
            match operation {
                Operation::Cancel => actions.extend(jobs.iter().map(|job| Action::Cancel(job.id))),
                Operation::Redrive => {
                    actions.extend(jobs.iter().map(|job| Action::Redrive(job.id)));
                }
                Operation::CancelKey => actions.extend(keys().map(Action::CancelKey)),
                Operation::Flush => actions.extend(keys().map(Action::Flush)),
                Operation::Prune => actions.push(Action::Prune),
                Operation::Pause => actions.push(Action::Queue(QueueSettings {
                    paused: !settings.paused,
                    ..settings.clone()
                })),
                Operation::Limit => actions.push(Action::Queue(QueueSettings {
                    concurrency: if settings.concurrency.is_none() { Some(1) } else { None },
                    ..settings.clone()
                })),
            }
        }
    }
}

impl End {
    fn outcome(self, attempt: u32) -> Outcome {
        let failed = |kind| {
            Outcome::Failed(Failure { error: "e".to_owned(), ended: AttemptOutcome::Failed, kind })
        };
        match self {
            End::Succeeded => Outcome::succeeded(),
            End::Failed => failed(FailureKind::Transient {
                backoff: seconds(BACKOFF),
                last: attempt >= ATTEMPTS,
                asked: false,
            }),
            End::Permanent => failed(FailureKind::Permanent),
            End::Snoozed => Outcome::Snoozed { delay: seconds(BACKOFF) },
            End::Released => Outcome::Released,
        }
    }
}

impl Model for World {
    type State = Moment;
    type Action = Action;

    fn init_states(&self) -> Vec<Moment> {
        let store = MemoryStore::new(at(0));
        at_once(store.set_queue(Some(at(0)), &queue(), &QueueSettings::default())).unwrap();
        let (kept, ghost) = (store.snapshot(), Ghost::default());
        vec![Moment { kept, now: 0, triggered: 0, operated: 0, ghost, broken: Vec::new() }]
    }

    fn actions(&self, moment: &Moment, actions: &mut Vec<Action>) {
        if !moment.broken.is_empty() {
            return;
        }
        let jobs = jobs(&moment.store());
        if moment.now < self.horizon {
            actions.push(Action::Tick);
        }
        if moment.triggered < self.triggers {
            for key in self.keys {
                for dedup in self.dedup {
                    let delayed = self.delay.is_some() && moment.triggered % 2 == 1;
                    actions.push(Action::Trigger { key: *key, dedup: *dedup, delayed });
                }
            }
        }
        let busy = jobs.iter().filter(|job| job.state == JobState::Running).count();
        let starts: u64 = jobs.iter().map(Job::starts).sum();
        if busy < 2 && starts < self.starts {
            actions.push(Action::Claim);
        }
        for lease in self.leases(&jobs) {
            actions.push(Action::Renew(lease));
            actions.extend(self.ends.iter().map(|end| Action::Settle(lease, *end)));
        }
        if busy > 0 {
            actions.push(Action::Reap);
        }
        self.operations(moment, &jobs, actions);
    }

    fn next_state(&self, last: &Moment, action: Action) -> Option<Moment> {
        let mut next = last.clone();
        match &action {
            Action::Tick => next.now += 1,
            Action::Trigger { .. } => next.triggered += 1,
            Action::Cancel(_)
            | Action::CancelKey(_)
            | Action::Flush(_)
            | Action::Redrive(_)
            | Action::Prune
            | Action::Queue(_) => next.operated += 1,
            Action::Claim | Action::Renew(_) | Action::Settle(..) | Action::Reap => {}
        }
        let store = last.store();
        let answer = self.carry_out(&store, next.now, &action);
        next.kept = store.snapshot();
        if next.kept == last.kept {
            next.operated = last.operated;
        }
        next.broken = judge::judge(self, last, &mut next, &action, &answer);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        judge::properties()
    }
}
