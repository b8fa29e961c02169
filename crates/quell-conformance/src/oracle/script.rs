//! Random scripts: what is drawn, and what it means to a store.
//!
//! Few keys, queues and policies, and times that often coincide, so that windows meet attempts,
//! failures meet newer windows, and keys meet the ends of the jobs that took them.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::idempotency::Idempotency;
use quell_core::job::Adjustment;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    AttemptOutcome, Batch, Failure, FailureKind, Fold, NewTrigger, Outcome, PartitionOrder,
    Payload, QueueName, QueueSettings, Rate, When,
};

use super::dead::{DeadOp, dead_op};
use super::plans::{PlanOp, plan_op};
use crate::rig::{key, keyed_with, plain, queue, secs, task, traced};

/// One operation on both stores.
#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Moves the clock, in microseconds.
    Advance(u64),
    /// Moves the clock back, in seconds.
    GoBack(u64),
    Enqueue(Vec<Members>),
    Claim {
        limit: usize,
        queue: u8,
        /// Whether the worker knows both tasks.
        both: bool,
        worker: u8,
    },
    /// Ends attempts, counted from the newest, in one call.
    Settle(Vec<(usize, End)>),
    /// Renews this number of the newest leases.
    Renew(usize),
    /// Begins an effect of an attempt, counted from the newest.
    BeginEffect {
        back: usize,
        name: u8,
        key: u8,
    },
    EndEffect {
        back: usize,
        name: u8,
        result: u8,
    },
    Reap(usize),
    /// A worker reports that it is alive.
    Heartbeat {
        worker: u8,
        incarnation: u32,
        busy: u32,
        /// How many tasks it names; none where it names none.
        tasks: Option<u8>,
    },
    RemoveWorker {
        worker: u8,
        incarnation: u32,
    },
    Flush(u8),
    CancelKey(u8),
    Cancel(u64),
    Adjust {
        id: u64,
        adjustment: Adjustment,
    },
    Prune,
    SetQueue {
        queue: u8,
        settings: QueueSettings,
    },
    DeleteQueue(u8),
    SetTask {
        /// Whether it is the task that fewer triggers are of.
        other: bool,
        paused: bool,
    },
    Plan(PlanOp),
    SetAlert {
        name: u8,
        version: u64,
        /// What it is set to; none removes it.
        value: Option<u64>,
    },
    Dead(DeadOp),
}

/// One batch.
#[derive(Clone, Debug)]
pub(super) struct Members {
    calls: Vec<Call>,
    /// Whether it has a dedup key as a whole.
    dedup: bool,
}

/// One trigger.
#[derive(Clone, Debug)]
pub(super) struct Call {
    key: Option<u8>,
    policy: u8,
    queue: u8,
    partition: Option<u8>,
    priority: i16,
    delay: Option<u64>,
    dedup: Option<(u8, u8)>,
    /// A key, and whether it is kept for long.
    idempotency: Option<(u8, bool)>,
    payload: u8,
    trace: Option<u8>,
}

/// One end of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Succeed(Option<u8>),
    Fail(u64, bool),
    Bury,
    Snooze(u64),
    Release,
    Cancel,
}

/// More ticks than are ever due in a script.
const ALL_TICKS: usize = 1 << 16;

impl Op {
    /// The same for a store whose tasks keep to one queue. Its shards share the limit of a call, so which of
    /// many ticks that are due fire first is up to them: all fire, or none. Each has seen times of its own,
    /// so the clock does not go back: a shard that is new would follow it.
    pub(super) fn of_one_queue(self) -> Self {
        let one = |call: Call| Call { queue: 0, ..call };
        match self {
            Op::Enqueue(members) => {
                let members = members.into_iter().map(|members| Members {
                    calls: members.calls.into_iter().map(one).collect(),
                    ..members
                });
                Op::Enqueue(members.collect())
            }
            Op::Plan(PlanOp::Set { name, spec, catch_up, call }) => {
                Op::Plan(PlanOp::Set { name, spec, catch_up, call: one(call) })
            }
            Op::GoBack(_) => Op::Advance(0),
            Op::Plan(PlanOp::Tick { limit: 1.. }) => Op::Plan(PlanOp::Tick { limit: ALL_TICKS }),
            Op::Claim { limit, queue: _, both, worker } => {
                Op::Claim { limit, queue: 0, both, worker }
            }
            other => other,
        }
    }
}

/// Operations in order; a failing one is shown one per line.
#[derive(Clone)]
pub(super) struct Script(pub(super) Vec<Op>);

impl Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|op| write!(f, "\n  {op:?}"))
    }
}

/// All scripts.
pub(super) fn scripts() -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        6 => advance(),
        1 => (0_u64..25).prop_map(Op::GoBack),
        8 => vec(members(), 1..4).prop_map(Op::Enqueue),
        6 => (0_usize..5, other(), prop::bool::weighted(0.7), other())
            .prop_map(|(limit, queue, both, worker)| Op::Claim { limit, queue, both, worker }),
        8 => vec((0_usize..6, end()), 1..4).prop_map(Op::Settle),
        1 => (0_usize..6).prop_map(Op::Renew),
        2 => (0_usize..6, 0_u8..2, 0_u8..3)
            .prop_map(|(back, name, key)| Op::BeginEffect { back, name, key }),
        2 => (0_usize..6, 0_u8..2, 0_u8..2)
            .prop_map(|(back, name, result)| Op::EndEffect { back, name, result }),
        3 => (0_usize..3).prop_map(Op::Reap),
        5 => (other(), 1_u32..3, 0_u32..3, prop::option::weighted(0.8, 0_u8..3)).prop_map(
            |(worker, incarnation, busy, tasks)| Op::Heartbeat { worker, incarnation, busy, tasks }
        ),
        1 => (other(), 1_u32..3)
            .prop_map(|(worker, incarnation)| Op::RemoveWorker { worker, incarnation }),
        1 => (0_u8..3).prop_map(Op::Flush),
        1 => (0_u8..3).prop_map(Op::CancelKey),
        1 => (1_u64..12).prop_map(Op::Cancel),
        2 => (1_u64..12, any::<bool>(), prop::option::of(-2_i16..3)).prop_map(
            |(id, run_now, priority)| Op::Adjust { id, adjustment: Adjustment { run_now, priority } },
        ),
        4 => dead_op().prop_map(Op::Dead),
        1 => Just(Op::Prune),
        2 => (other(), settings()).prop_map(|(queue, settings)| Op::SetQueue { queue, settings }),
        1 => other().prop_map(Op::DeleteQueue),
        1 => (any::<bool>(), prop::bool::weighted(0.4))
            .prop_map(|(other, paused)| Op::SetTask { other, paused }),
        6 => plan_op().prop_map(Op::Plan),
        1 => (0_u8..2, 0_u64..3, prop::option::weighted(0.8, 0_u64..9))
            .prop_map(|(name, version, value)| Op::SetAlert { name, version, value }),
    ];
    vec(op, 1..60).prop_map(Script)
}

/// Mostly whole seconds, so that times coincide.
fn advance() -> impl Strategy<Value = Op> {
    let micros = prop_oneof![5 => (0_u64..25).prop_map(|n| n * 1_000_000), 1 => 0_u64..3_000_000];
    micros.prop_map(Op::Advance)
}

/// 0, and now and then 1.
fn other() -> impl Strategy<Value = u8> {
    prop_oneof![5 => Just(0_u8), 1 => Just(1)]
}

fn members() -> impl Strategy<Value = Members> {
    let batch = (vec(call(), 1..4), prop::bool::weighted(0.1));
    batch.prop_map(|(calls, dedup)| Members { calls, dedup })
}

prop_compose! {
    pub(super) fn call()(
        key in prop::option::weighted(0.8, 0_u8..3),
        policy in 0_u8..14,
        queue in other(),
        partition in prop::option::weighted(0.6, 0_u8..3),
        priority in prop_oneof![4 => Just(0_i16), 1 => -2_i16..3],
        // Now and then longer than a window may be delayed.
        delay in prop::option::weighted(0.15, prop_oneof![6 => 1_u64..21, 1 => 21_u64..80]),
        dedup in prop::option::weighted(0.15, (0_u8..2, 0_u8..3)),
        idempotency in prop::option::weighted(0.2, (0_u8..3, any::<bool>())),
        payload in 0_u8..4,
        trace in prop::option::weighted(0.6, 1_u8..9),
    ) -> Call {
        Call { key, policy, queue, partition, priority, delay, dedup, idempotency, payload, trace }
    }
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        4 => prop::option::of(0_u8..4).prop_map(End::Succeed),
        4 => (1_u64..40, prop::bool::weighted(0.3)).prop_map(|(backoff, last)| End::Fail(backoff, last)),
        1 => Just(End::Bury),
        1 => (1_u64..40).prop_map(End::Snooze),
        1 => Just(End::Release),
        1 => Just(End::Cancel),
    ]
}

impl Members {
    pub(super) fn batch(&self) -> Batch {
        let dedup = self.dedup.then(|| Dedup { key: key("batch"), until: HoldUntil::Done });
        Batch { triggers: self.calls.iter().map(Call::trigger).collect(), dedup }
    }
}

impl Call {
    pub(super) fn trigger(&self) -> NewTrigger {
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
        let (debounce, fold) = policy(self.policy, self.key);
        let base = match self.key {
            None => NewTrigger { fold, ..plain(&payload) },
            Some(k) => keyed_with(&format!("k{k}"), debounce, fold, &payload),
        };
        let task = task(if self.policy == 9 { "u" } else { "t" });
        let queue = queue_number(self.queue);
        let partition = self.partition.map(|name| key(&format!("p{name}")));
        let idempotency = self.idempotency.map(|(name, long)| Idempotency {
            key: key(&format!("i{name}")),
            retention: secs(if long { 300 } else { 20 }),
        });
        let priority = self.priority;
        let base =
            NewTrigger { task, queue, partition, priority, when, dedup, idempotency, ..base };
        self.trace.map_or(base.clone(), |number| traced(number.into(), base))
    }
}

/// The queue that tests use, or another one.
pub(super) fn queue_number(number: u8) -> QueueName {
    if number == 0 { queue() } else { QueueName::new("other").expect("a valid name") }
}

/// A handful of policies; keys meet several of them, as after a deploy. Where two windows
/// differ in whether attempts may overlap, the rules do not define the one that waits for the other. So
/// windows of a key either become full, with and without overlap, or differ.
fn policy(number: u8, key: Option<u8>) -> (Debounce, Fold) {
    let (debounce, fold) = any_policy(number);
    match key {
        Some(0) => (Debounce { overlap: false, ..debounce }, fold),
        Some(1) => (Debounce { overlap: true, ..debounce }, fold),
        Some(_) => match number {
            1 | 2 | 10..=13 => (Debounce { max_bytes: None, ..debounce }, Fold::Last),
            _ => (debounce, fold),
        },
        None => (debounce, fold),
    }
}

fn any_policy(number: u8) -> (Debounce, Fold) {
    let thresholds = Thresholds::new(secs(5), secs(20)).expect("valid");
    let base = Debounce::new(thresholds);
    match number {
        0 => (Debounce { max_triggers: Some(3), ..base }, Fold::Last),
        1 => (base, Fold::Collect { cap: 3 }),
        2 => (Debounce { max_bytes: Some(20), ..base }, Fold::Merge),
        3 => (Debounce { edge: Edge::Leading, ..base }, Fold::First),
        4 => (Debounce { edge: Edge::Both, ..base }, Fold::Last),
        5 => (Debounce::throttle(secs(8)).expect("valid"), Fold::Last),
        6 => (Debounce { overlap: true, ..base }, Fold::Last),
        7 => (Debounce::with_default(thresholds), lists()),
        // Windows that are soon full (R10).
        10 => (base, Fold::Collect { cap: 1 }),
        11 => (Debounce { edge: Edge::Leading, ..base }, Fold::Collect { cap: 2 }),
        12 => (Debounce { edge: Edge::Both, max_bytes: Some(19), ..base }, lists()),
        13 => (Debounce { overlap: true, max_bytes: Some(50), ..base }, Fold::Collect { cap: 9 }),
        _ => (base, Fold::Last),
    }
}

fn lists() -> Fold {
    Fold::Accumulate { fields: ["ids".into()].into() }
}

/// What a queue is set to; now and then what must be refused.
fn settings() -> impl Strategy<Value = QueueSettings> {
    let rate = || {
        let rate = (1_u32..4, 1_u64..20);
        let rate = rate.prop_map(|(limit, period)| Rate { limit, period: secs(period) });
        prop::option::weighted(0.4, rate)
    };
    let debounce = any::<bool>()
        .prop_map(|own| own.then(|| Thresholds::new(secs(2), secs(9)).expect("valid")));
    (
        prop::option::weighted(0.3, 0_u32..5),
        prop::option::weighted(0.3, 1_u32..4),
        prop::option::weighted(0.5, 1_u32..3),
        rate(),
        rate(),
        prop::bool::weighted(0.15),
        debounce,
        prop::bool::weighted(0.3),
    )
        .prop_map(
            |(concurrency, worker, partition, rate, partition_rate, paused, debounce, strict)| {
                let order = PartitionOrder::default();
                QueueSettings {
                    paused_by: concurrency.map(|n| format!("caller {n}")),
                    declared: worker.map(|n| format!("declaration {n}")),
                    concurrency,
                    worker_concurrency: worker,
                    partition_concurrency: partition,
                    partition_order: if strict { PartitionOrder::Strict } else { order },
                    rate,
                    partition_rate,
                    paused,
                    debounce,
                    ..QueueSettings::default()
                }
            },
        )
}

impl End {
    pub(super) fn outcome(self) -> Outcome {
        let failed = |kind| {
            Outcome::Failed(Failure { error: "boom".into(), ended: AttemptOutcome::Failed, kind })
        };
        match self {
            End::Succeed(output) => Outcome::Succeeded {
                output: output.map(|n| Payload::from_stored(format!("[{n}]"))),
            },
            End::Fail(backoff, last) => {
                failed(FailureKind::Transient { backoff: secs(backoff), last, asked: false })
            }
            End::Bury => failed(FailureKind::Permanent),
            End::Snooze(delay) => Outcome::Snoozed { delay: secs(delay) },
            End::Release => Outcome::Released,
            End::Cancel => Outcome::Cancelled { reason: "enough".into() },
        }
    }
}
