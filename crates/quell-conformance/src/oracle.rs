//! The store against the model: the same random operations, every answer and every row compared.
//!
//! Times, keys and policies are drawn from few values, so that windows meet attempts, failures meet
//! newer windows, and dedup keys meet ends of jobs. A failure shrinks to a short script.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    AttemptOutcome, Batch, Claim, ExplainTarget, Failure, FailureKind, Fold, JobFilter, JobId,
    Lease, LeaseToken, MemoryStore, NewTrigger, Outcome, QueueSettings, Retention, Settlement,
    Store, Timestamp, When,
};

use crate::rig::{Opened, Rig, key, keyed_with, plain, queue, secs, task};

/// One operation on both stores.
#[derive(Clone, Debug)]
enum Op {
    Advance(u64),
    GoBack(u64),
    Enqueue(Vec<Call>, bool),
    Claim(usize),
    Settle(usize, End),
    Renew,
    Reap(usize),
    Flush(u8),
    CancelKey(u8),
    Cancel(u64),
    Redrive(u64),
    Prune,
    SetQueue(Option<u32>, bool, bool),
}

/// One trigger.
#[derive(Clone, Debug)]
struct Call {
    key: Option<u8>,
    policy: u8,
    priority: i16,
    delay: Option<u64>,
    dedup: Option<(u8, u8)>,
    payload: u8,
}

/// One end of an attempt.
#[derive(Clone, Copy, Debug)]
enum End {
    Succeed,
    Fail(u64, bool),
    Bury,
    Snooze(u64),
    Release,
    Cancel,
}

/// Operations in order; a failing one is shown one per line.
#[derive(Clone)]
struct Script(Vec<Op>);

impl Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|op| write!(f, "\n  {op:?}"))
    }
}

fn ops() -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        6 => (0_u64..25).prop_map(Op::Advance),
        1 => (0_u64..25).prop_map(Op::GoBack),
        8 => (vec(call(), 1..5), prop::bool::weighted(0.1)).prop_map(|(c, d)| Op::Enqueue(c, d)),
        6 => (0_usize..5).prop_map(Op::Claim),
        8 => (0_usize..6, end()).prop_map(|(lease, end)| Op::Settle(lease, end)),
        1 => Just(Op::Renew),
        3 => (0_usize..3).prop_map(Op::Reap),
        1 => (0_u8..3).prop_map(Op::Flush),
        1 => (0_u8..3).prop_map(Op::CancelKey),
        1 => (1_u64..12).prop_map(Op::Cancel),
        2 => (1_u64..12).prop_map(Op::Redrive),
        1 => Just(Op::Prune),
        1 => (prop::option::of(0_u32..4), prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(limit, paused, debounce)| Op::SetQueue(limit, paused, debounce)),
    ];
    vec(op, 1..60).prop_map(Script)
}

fn call() -> impl Strategy<Value = Call> {
    (
        prop::option::weighted(0.8, 0_u8..3),
        0_u8..10,
        prop_oneof![4 => Just(0_i16), 1 => -2_i16..3],
        prop::option::weighted(0.15, 1_u64..80),
        prop::option::weighted(0.15, (0_u8..2, 0_u8..3)),
        0_u8..4,
    )
        .prop_map(|(key, policy, priority, delay, dedup, payload)| Call {
            key,
            policy,
            priority,
            delay,
            dedup,
            payload,
        })
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => Just(End::Succeed),
        4 => (1_u64..40, prop::bool::weighted(0.3)).prop_map(|(backoff, last)| End::Fail(backoff, last)),
        1 => Just(End::Bury),
        1 => (1_u64..40).prop_map(End::Snooze),
        1 => Just(End::Release),
        1 => Just(End::Cancel),
    ]
}

impl Call {
    fn trigger(&self) -> NewTrigger {
        let payload = format!(r#"{{"n":{},"ids":[{}]}}"#, self.payload, self.payload);
        let when = self.delay.map_or(When::Now, |delay| When::After(secs(delay)));
        let dedup = self.dedup.map(|(name, until)| {
            let until = match until {
                0 => HoldUntil::Elapsed(secs(20)),
                1 => HoldUntil::Started,
                _ => HoldUntil::Done,
            };
            Dedup { key: key(&format!("d{name}")), until }
        });
        let base = match self.key {
            None => plain(&payload),
            Some(k) => {
                let (debounce, fold) = policy(self.policy);
                keyed_with(&format!("k{k}"), debounce, fold, &payload)
            }
        };
        let task = task(if self.policy == 9 { "u" } else { "t" });
        NewTrigger { task, priority: self.priority, when, dedup, ..base }
    }
}

/// A handful of policies; keys meet several of them, as after a deploy.
fn policy(number: u8) -> (Debounce, Fold) {
    let thresholds = Thresholds::new(secs(5), secs(20)).expect("valid");
    let base = Debounce::new(thresholds);
    match number {
        0 => (Debounce { max_triggers: Some(3), ..base }, Fold::Last),
        1 => (base, Fold::Collect { cap: 3 }),
        2 => (base, Fold::Merge),
        3 => (Debounce { edge: Edge::Leading, ..base }, Fold::First),
        4 => (Debounce { edge: Edge::Both, ..base }, Fold::Last),
        5 => (Debounce::throttle(secs(8)).expect("valid"), Fold::Last),
        6 => (Debounce { overlap: true, ..base }, Fold::Last),
        7 => {
            (Debounce::with_default(thresholds), Fold::Accumulate { fields: ["ids".into()].into() })
        }
        _ => (base, Fold::Last),
    }
}

impl End {
    fn outcome(self) -> Outcome {
        let failed = |kind| {
            Outcome::Failed(Failure { error: "boom".into(), ended: AttemptOutcome::Failed, kind })
        };
        match self {
            End::Succeed => Outcome::Succeeded,
            End::Fail(backoff, last) => {
                failed(FailureKind::Transient { backoff: secs(backoff), last })
            }
            End::Bury => failed(FailureKind::Permanent),
            End::Snooze(delay) => Outcome::Snoozed { delay: secs(delay) },
            End::Release => Outcome::Released,
            End::Cancel => Outcome::Cancelled { reason: "enough".into() },
        }
    }
}

/// Both stores and what the script remembers.
struct Pair {
    model: MemoryStore,
    store: Arc<dyn Store>,
    now: Timestamp,
    leases: Vec<Lease>,
}

/// Runs random scripts on fresh stores; `QUELL_ORACLE_CASES` sets how many (64 by default).
pub fn compare<F: Future<Output = Opened>>(open: impl Fn() -> F) {
    let cases = std::env::var("QUELL_ORACLE_CASES").ok().and_then(|text| text.parse().ok());
    let config =
        Config { cases: cases.unwrap_or(64), failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let ran = TestRunner::new(config).run(&ops(), |script| {
        runtime.block_on(async {
            let opened = open().await;
            let mut pair = Pair {
                model: MemoryStore::new(Rig::START),
                store: Arc::clone(&opened.store),
                now: Rig::START,
                leases: Vec::new(),
            };
            // Both begin with the same time seen.
            pair.same_rows(&Op::Advance(0)).await?;
            for op in &script.0 {
                pair.step(op).await?;
                pair.same_rows(op).await?;
            }
            drop(opened);
            Ok(())
        })
    });
    if let Err(failure) = ran {
        panic!("the store and the model differ: {failure}");
    }
}

/// Fails where the two answers differ.
fn same<T: Debug + PartialEq>(op: &Op, model: T, store: T) -> Result<T, TestCaseError> {
    if model == store {
        return Ok(store);
    }
    Err(TestCaseError::fail(format!("{op:?}\nmodel: {model:#?}\nstore: {store:#?}")))
}

/// Fails where one is an error and the other is not, or the kinds differ.
fn both<T: Debug + PartialEq>(
    op: &Op,
    model: quell_core::Result<T>,
    store: quell_core::Result<T>,
) -> Result<Option<T>, TestCaseError> {
    let kind = |error: &quell_core::Error| format!("{:?}", error.kind());
    match (model, store) {
        (Ok(model), Ok(store)) => same(op, model, store).map(Some),
        (Err(model), Err(store)) => same(op, kind(&model), kind(&store)).map(|_| None),
        (model, store) => {
            Err(TestCaseError::fail(format!("{op:?}\nmodel: {model:?}\nstore: {store:?}")))
        }
    }
}

impl Pair {
    async fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = Some(self.now);
        match op {
            Op::Advance(by) => self.now = self.now + secs(*by),
            Op::GoBack(by) => self.now = self.now.before(secs(*by)),
            Op::Enqueue(calls, whole) => {
                let dedup = whole.then(|| Dedup { key: key("b"), until: HoldUntil::Done });
                let triggers = calls.iter().map(Call::trigger).collect();
                let batches = vec![Batch { triggers, dedup }];
                let model = self.model.enqueue(now, batches.clone()).await;
                both(op, model, self.store.enqueue(now, batches).await)?;
            }
            Op::Claim(limit) => {
                let claim = Claim { lease: secs(15), ..Rig::wish(*limit) };
                let model = self.model.claim(now, &claim).await;
                let claimed = both(op, model, self.store.claim(now, &claim).await)?;
                let jobs = claimed.into_iter().flat_map(|claimed| claimed.jobs);
                self.leases.extend(jobs.map(|job| Lease { job: job.id, token: job.token }));
            }
            Op::Settle(pick, end) => {
                let known = self.leases.len().max(1);
                let stale = Lease { job: JobId::new(1), token: LeaseToken::new(77) };
                let newest = self.leases.len().saturating_sub(1 + pick % known);
                let lease = self.leases.get(newest).copied().unwrap_or(stale);
                let settlements = vec![Settlement { lease, outcome: end.outcome() }];
                let model = self.model.settle(now, settlements.clone()).await;
                both(op, model, self.store.settle(now, settlements).await)?;
            }
            Op::Renew => {
                let model = self.model.renew(now, &self.leases, secs(15)).await;
                both(op, model, self.store.renew(now, &self.leases, secs(15)).await)?;
            }
            Op::Reap(limit) => {
                let model = self.model.reap(now, *limit).await;
                both(op, model, self.store.reap(now, *limit).await)?;
            }
            Op::Prune => {
                let keep = Retention { succeeded: Some(secs(60)), dead: Some(secs(200)) };
                let model = self.model.prune(now, &keep, 999).await;
                both(op, model, self.store.prune(now, &keep, 999).await)?;
            }
            Op::Flush(_) | Op::CancelKey(_) | Op::Cancel(_) | Op::Redrive(_) | Op::SetQueue(..) => {
                self.operate(op).await?;
            }
        }
        Ok(())
    }

    async fn operate(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let (now, t) = (Some(self.now), task("t"));
        match op {
            Op::Flush(k) => {
                let key = key(&format!("k{k}"));
                let model = self.model.flush(now, &t, &key).await;
                both(op, model, self.store.flush(now, &t, &key).await)?;
            }
            Op::CancelKey(k) => {
                let key = key(&format!("k{k}"));
                let model = self.model.cancel_key(now, &t, &key).await;
                both(op, model, self.store.cancel_key(now, &t, &key).await)?;
            }
            Op::Cancel(id) => {
                let id = JobId::new(*id);
                let model = self.model.cancel(now, id, "enough").await;
                both(op, model, self.store.cancel(now, id, "enough").await)?;
            }
            Op::Redrive(id) => {
                let id = JobId::new(*id);
                let model = self.model.redrive(now, id).await;
                both(op, model, self.store.redrive(now, id).await)?;
            }
            Op::SetQueue(concurrency, paused, debounce) => {
                let debounce = debounce.then(|| Thresholds::new(secs(2), secs(9)).expect("valid"));
                let settings =
                    QueueSettings { concurrency: *concurrency, paused: *paused, debounce };
                let model = self.model.set_queue(&queue(), &settings).await;
                both(op, model, self.store.set_queue(&queue(), &settings).await)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Every row, every attempt, and what is said about one of them.
    async fn same_rows(&self, op: &Op) -> Result<(), TestCaseError> {
        let all = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
        let model = self.model.jobs(&all).await;
        let jobs = both(op, model, self.store.jobs(&all).await)?.unwrap_or_default();
        both(op, self.model.counts().await, self.store.counts().await)?;
        both(op, self.model.queues().await, self.store.queues().await)?;
        for job in jobs.iter().take(3) {
            let target = ExplainTarget::Job(job.id);
            let model = self.model.explain(&target).await;
            both(op, model, self.store.explain(&target).await)?;
        }
        let (now, queue, tasks) = (self.now, queue(), [task("t"), task("u")]);
        let model = self.model.next_due(Some(now), &queue, &tasks).await;
        both(op, model, self.store.next_due(Some(now), &queue, &tasks).await)?;
        Ok(())
    }
}
