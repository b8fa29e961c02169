//! The tasks of the simulation: one of each kind, and handlers that do what chance says.

use std::sync::Arc;
use std::time::Duration;

use quell::{Ctx, Policy, Quell, TaskError, WorkerBuilder};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::idempotency::Idempotency;
use quell_core::poll::PollSettings;
use quell_core::schedule::{Schedule, Spec};
use quell_core::trace::TraceContext;
use quell_core::{
    Batch, Fold, Key, NewTrigger, Payload, QueueName, ScheduleName, TaskName, Timestamp, When,
    WorkerId,
};

use super::plan::{Call, Plan, Planned, Stranger};
use super::world::World;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What a process was deployed with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    /// Which policy of each task.
    versions: [u8; Plan::TASKS],
    queues: usize,
    keeps: Duration,
}

impl Release {
    /// The first one.
    pub(super) fn first(plan: &Plan) -> Self {
        Release { versions: [0; Plan::TASKS], queues: plan.queues, keeps: plan.keeps }
    }

    /// From now on processes start with this policy of a task.
    pub(super) fn deploy(&mut self, task: usize, version: u8) {
        if let Some(of_task) = self.versions.get_mut(task) {
            *of_task = version;
        }
    }

    fn policy(&self, task: usize) -> Policy {
        let queue = if self.queues > 1 { task % self.queues } else { 0 };
        let base = Policy::queue(queue_name(queue).as_str()).idempotency_retention(self.keeps);
        let base = base.min_backoff(ms(50)).max_backoff(ms(400)).timeout(ms(2_500));
        let version = self.versions.get(task).copied().unwrap_or(0);
        policy(base.attempts(3), task, version)
    }
}

/// The name of a queue.
pub(super) fn queue_name(queue: usize) -> QueueName {
    QueueName::new(if queue == 0 { "q" } else { "r" }).expect("a valid name")
}

/// The name of a task and whether it has keys.
pub(super) fn name(task: usize) -> (TaskName, bool) {
    const NAMES: [&str; Plan::TASKS] =
        ["trailing", "collect", "merge", "leading", "both", "throttle", "plain", "overlap"];
    let name = NAMES.get(task).copied().unwrap_or("trailing");
    (TaskName::new(name).expect("a valid name"), name != "plain")
}

/// What a task is named for, and what becomes of it later.
fn policy(base: Policy, task: usize, version: u8) -> Policy {
    match (version, task) {
        (1, 5) => base.throttle(ms(120)).attempts(2),
        (1, _) => base.debounce(ms(40)..=ms(250)).attempts(2).max_backoff(ms(100)),
        (2, _) => {
            let base = base.debounce(ms(300)..=ms(1_500)).edge(Edge::Leading);
            base.fold(Fold::Merge).max_bytes(30)
        }
        (3, _) => base.debounce(ms(100)..=ms(400)).overlap().fold(Fold::Collect { cap: 3 }),
        // Windows that are soon full (R10), by their number or their size.
        (_, 1) => base.debounce(ms(200)..=ms(1_000)).fold(Fold::Collect { cap: 5 }).max_bytes(50),
        (_, 2) => base.debounce(ms(150)..=ms(600)).fold(Fold::Merge).max_triggers(4).max_bytes(30),
        (_, 3) => base.debounce(ms(150)..=ms(600)).edge(Edge::Leading),
        (_, 4) => base.debounce(ms(150)..=ms(600)).edge(Edge::Both),
        (_, 5) => base.throttle(ms(300)),
        (_, 6) => base,
        (_, 7) => base.debounce(ms(100)..=ms(300)).overlap(),
        _ => base.debounce(ms(100)..=ms(400)),
    }
}

/// The triggers of a step; `number` makes their payloads unlike all others.
pub(super) fn batch(calls: &[Call], number: usize, release: &Release) -> Batch {
    let calls = calls.iter().enumerate();
    let triggers = calls.map(|(index, call)| trigger(call, number, index, release));
    Batch { triggers: triggers.collect(), dedup: None }
}

/// A schedule of the plan.
pub(super) fn schedule(plan: &Plan, planned: &Planned, index: usize) -> Schedule {
    let Planned { task, key, every, catch_up } = *planned;
    let call = Call { task, key, ..Call::default() };
    let spec = Spec::every(every, Timestamp::from_secs(0)).expect("a valid interval");
    let trigger = trigger(&call, 1_000_000 + index, 0, &Release::first(plan));
    // A tick has no caller.
    let trigger = NewTrigger { trace: None, ..trigger };
    Schedule { name: schedule_name(index), spec, catch_up, trigger, declared: None }
}

pub(super) fn schedule_name(index: usize) -> ScheduleName {
    ScheduleName::new(format!("s{index}")).expect("a valid name")
}

fn trigger(call: &Call, number: usize, index: usize, release: &Release) -> NewTrigger {
    let (task, keyed) = name(call.task);
    let text = match call.idem {
        Some((name, payload)) => format!(r#"{{"i":{name},"p{payload}":{payload}}}"#),
        None => format!(r#"{{"n":{number},"f{index}":{number}}}"#),
    };
    let payload = Payload::from_text(text.as_str()).expect("JSON");
    let debounced = keyed.then(|| key(format!("k{}", call.key)));
    let policy = release.policy(call.task);
    let trigger = policy.trigger(task, payload, debounced).expect("a valid policy");
    let dedup = call.dedup.map(|(name, until)| Dedup {
        key: key(format!("d{name}")),
        until: match until {
            0 => HoldUntil::Elapsed(ms(700)),
            1 => HoldUntil::Started,
            _ => HoldUntil::Done,
        },
    });
    let idempotency = call.idem.map(|(name, _)| Idempotency {
        retention: release.keeps,
        ..Idempotency::new(key(format!("i{name}")))
    });
    // A delay beyond max is refused (R7), whatever policy the process has.
    let longest = trigger.keyed.as_ref().map(|keyed| keyed.debounce.thresholds.max());
    let delay = call.delay.map(|delay| longest.map_or(delay, |longest| delay.min(longest)));
    let when = delay.map_or(When::Now, When::After);
    // The hot key is in a partition, one of the others in another.
    let partition = (call.key < 2).then(|| key(format!("p{}", call.key)));
    let trigger =
        NewTrigger { dedup, when, partition, idempotency, priority: call.priority, ..trigger };
    // Some share a context with the next call, and some have none.
    let traced =
        (!number.is_multiple_of(4)).then(|| format!("00-{:032x}-{:016x}-01", 7, number / 2 + 1));
    let trace = traced.and_then(|parent| TraceContext::new(&parent, None).ok());
    NewTrigger { trace, ..trigger }
}

fn key(name: String) -> Key {
    Key::new(name).expect("a valid key")
}

/// A worker that knows every task but those that the plan keeps from it.
pub(super) fn worker(
    quell: &Quell,
    plan: &Plan,
    (process, name_): (usize, &str),
    release: &Release,
    world: &Arc<World>,
) -> WorkerBuilder<Chance> {
    let chance = Chance { world: Arc::clone(world), work: plan.work, failing: plan.failing };
    let poll = PollSettings { base: plan.poll, ceiling: plan.poll * 4 };
    let worker = quell
        .worker(chance)
        .concurrency(plan.concurrency)
        .lease(plan.lease)
        .grace(ms(500))
        .poll(poll)
        .name(WorkerId::new(name_).expect("a valid name"));
    let knows = |task: &usize| !plan.strangers.contains(&Stranger { worker: process, task: *task });
    (0..Plan::TASKS).filter(knows).fold(worker, |worker, task| {
        let (name, keyed) = name(task);
        worker.register_raw(name, &release.policy(task), move |payload, ctx| async move {
            if !keyed {
                charge(&ctx).await?;
            }
            handle(ctx).await?;
            // Some return what they were given.
            Ok((task % 2 == 0).then_some(payload))
        })
    })
}

/// What decides on the end of an attempt.
#[derive(Debug)]
pub(super) struct Chance {
    world: Arc<World>,
    work: Duration,
    failing: u8,
}

/// An effect on the outside, which takes its time and knows idempotency keys.
async fn charge(ctx: &Ctx<Chance>) -> Result<(), TaskError> {
    let world = &ctx.state().world;
    let takes = || world.draw(|rng| ms(rng.u64(1..8)));
    let effect = ctx.effect("charge").verify(|key| async move {
        ctx.sleep(takes()).await;
        Ok(world.has_charged(&key).then_some(()))
    });
    let charged = effect.run(|key| async move {
        ctx.sleep(takes()).await;
        if world.charge(key) {
            world.record(Event::Performed { job: ctx.job(), name: "charge".to_owned() });
        }
        ctx.sleep(takes()).await;
        Ok(())
    });
    charged.await
}

/// One attempt. It does not heed its cancellation: a zombie goes on and settles late.
async fn handle(ctx: Ctx<Chance>) -> Result<(), TaskError> {
    let Chance { world, work, failing } = ctx.state();
    let (time, ending) = world.draw(|rng| {
        let ending = if rng.u8(..100) < *failing { rng.u8(1..10) } else { 0 };
        (work.mul_f64(rng.f64()), ending)
    });
    // In a world that has healed, work comes to an end.
    let calm = world.is_healed();
    if !time.is_zero() && !calm {
        ctx.sleep(time).await;
    }
    match ending {
        _ if calm => Ok(()),
        0 => Ok(()),
        1 => Err(TaskError::permanent("no use")),
        2 => Err(TaskError::snooze(ms(120))),
        3 => Err(TaskError::cancel("not wanted")),
        _ => Err(TaskError::retry("try again")),
    }
}
