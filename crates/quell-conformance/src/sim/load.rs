//! The tasks of the simulation: one of each kind, and handlers that do what chance says.

use std::sync::Arc;
use std::time::Duration;

use quell::{Ctx, Policy, Quell, TaskError, WorkerBuilder};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::poll::PollSettings;
use quell_core::schedule::{Schedule, Spec};
use quell_core::{
    Batch, Fold, Key, NewTrigger, Payload, ScheduleName, TaskName, Timestamp, When, WorkerId,
};

use super::plan::{Call, Plan, Planned};
use super::world::World;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The name of a task and whether it has keys.
pub(super) fn name(task: usize) -> (TaskName, bool) {
    const NAMES: [&str; Plan::TASKS] =
        ["trailing", "collect", "merge", "leading", "both", "throttle", "plain", "overlap"];
    let name = NAMES.get(task).copied().unwrap_or("trailing");
    (TaskName::new(name).expect("a valid name"), name != "plain")
}

fn policy(task: usize) -> Policy {
    let base = Policy::queue("q").attempts(3).min_backoff(ms(50)).max_backoff(ms(400));
    let base = base.timeout(ms(2_500));
    match task {
        1 => base.debounce(ms(200)..=ms(1_000)).fold(Fold::Collect { cap: 5 }),
        2 => base.debounce(ms(150)..=ms(600)).fold(Fold::Merge).max_triggers(4),
        3 => base.debounce(ms(150)..=ms(600)).edge(Edge::Leading),
        4 => base.debounce(ms(150)..=ms(600)).edge(Edge::Both),
        5 => base.throttle(ms(300)),
        6 => base,
        7 => base.debounce(ms(100)..=ms(300)).overlap(),
        _ => base.debounce(ms(100)..=ms(400)),
    }
}

/// The triggers of a step; `number` makes their payloads unlike all others.
pub(super) fn batch(calls: &[Call], number: usize) -> Batch {
    let triggers = calls.iter().enumerate().map(|(index, call)| trigger(call, number, index));
    Batch { triggers: triggers.collect(), dedup: None }
}

/// A schedule of the plan.
pub(super) fn schedule(planned: &Planned, index: usize) -> Schedule {
    let Planned { task, key, every, catch_up } = *planned;
    let call = Call { task, key, delay: None, dedup: None };
    let spec = Spec::every(every, Timestamp::from_secs(0)).expect("a valid interval");
    let trigger = trigger(&call, 1_000_000 + index, 0);
    Schedule { name: schedule_name(index), spec, catch_up, trigger }
}

pub(super) fn schedule_name(index: usize) -> ScheduleName {
    ScheduleName::new(format!("s{index}")).expect("a valid name")
}

fn trigger(call: &Call, number: usize, index: usize) -> NewTrigger {
    let (task, keyed) = name(call.task);
    let text = format!(r#"{{"n":{number},"f{index}":{number}}}"#);
    let payload = Payload::from_text(text.as_str()).expect("JSON");
    let key = keyed.then(|| Key::new(format!("k{}", call.key)).expect("a valid key"));
    let trigger = policy(call.task).trigger(task, payload, key).expect("a valid policy");
    let dedup = call.dedup.map(|(name, until)| Dedup {
        key: Key::new(format!("d{name}")).expect("a valid key"),
        until: match until {
            0 => HoldUntil::Elapsed(ms(700)),
            1 => HoldUntil::Started,
            _ => HoldUntil::Done,
        },
    });
    let when = call.delay.map_or(When::Now, When::After);
    // The hot key is in a partition, one of the others in another.
    let partition = (call.key < 2).then(|| Key::new(format!("p{}", call.key)));
    let partition = partition.map(|name| name.expect("a valid key"));
    NewTrigger { dedup, when, partition, ..trigger }
}

/// A worker that knows every task.
pub(super) fn worker(
    quell: &Quell,
    plan: &Plan,
    name_: &str,
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
    (0..Plan::TASKS).fold(worker, |worker, task| {
        let (name, keyed) = name(task);
        worker.register_raw(name, &policy(task), move |_, ctx| async move {
            if !keyed {
                charge(&ctx).await?;
            }
            handle(ctx).await
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
