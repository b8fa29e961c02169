//! The scheduler: who runs next, what arrives, and when time moves on.

use std::sync::Arc;
use std::time::Duration;

use quell::Quell;
use quell_core::history::{Event, Sink};
use quell_core::{MemoryStore, Store, Timestamp};

use super::load::{self, Release};
use super::operate::Operators;
use super::place::{Place, Stores};
use super::plan::{Harm, Plan, Step};
use super::process::{Process, ProcessClock};
use super::remote::Remote;
use super::world::{Record, World};
use crate::check::Line;

/// When a run begins: 2026-01-01T00:00:00Z.
pub const START: Timestamp = Timestamp::from_secs(1_767_225_600);
/// How long everything may take to come to its end once the world has healed.
const CONVERGES: Duration = Duration::from_secs(60);
/// When the last message that was slow before the world healed has arrived, there and back.
const CALMS: Duration = Duration::from_millis(3_100);
/// How long schedules go on in a world that has come to rest.
const GOES_ON: Duration = Duration::from_millis(2_000);
/// Longer than any message takes that is not slow.
const MESSAGE: Duration = Duration::from_millis(1);
/// How late a start may be in a healed world: some messages' way, far less than a poll.
const PUNCTUAL: Duration = Duration::from_millis(25);

/// The model store, which writes its events to `sink`.
#[must_use]
pub fn memory(sink: Sink) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(START).with_history(sink))
}

/// What a run on real handles of a store came to.
#[derive(Debug)]
pub struct Ran {
    /// The history.
    pub lines: Vec<Line>,
    /// Errors that the store had no reason for: it was never asked two things at once.
    pub errors: Vec<String>,
}

/// Performs a plan on the store that `make` opens, and answers with its history.
///
/// The store must answer every call at once, as stores in memory do; for any other there is
/// [`run_on`].
#[must_use]
pub fn run(plan: &Plan, make: impl FnOnce(Sink) -> Arc<dyn Store>) -> Vec<Line> {
    perform(plan, |sink| Stores::Memory(make(sink))).lines
}

/// Performs a plan on a store that each process opens for itself, and awaits its calls while the
/// world stands still.
#[must_use]
pub fn run_on(plan: &Plan, place: &Place) -> Ran {
    perform(plan, |sink| Stores::open(place, sink, plan))
}

fn perform(plan: &Plan, open: impl FnOnce(Sink) -> Stores) -> Ran {
    // Retries and polls draw their jitter from the thread's generator, and what runs after this run
    // must not draw the same again.
    let chance = fastrand::get_seed();
    fastrand::seed(plan.seed);
    let record = Record::default();
    // Where workers have few slots, what is due waits for one.
    let punctual = (plan.concurrency >= Plan::MANY).then_some(PUNCTUAL);
    record.line("world", Event::Record { faults: true, punctual });
    let stores = open(record.sink("store"));
    let world = World::new(plan, START, record.clone(), stores);
    let operators = Operators { plan, world: Arc::clone(&world) };
    operators.begin();
    let (slots, next_step, number, stopped) = (Vec::new(), 0, 0, plan.schedules.is_empty());
    let release = Release::first(plan);
    let mut run =
        Run { plan, world, operators, record, release, slots, next_step, number, stopped };
    run.slots = (0..plan.processes()).map(|index| Slot::new(plan, index)).collect();
    (0..plan.processes()).for_each(|index| run.start(index));
    run.until_over();
    run.operators.record_rows();
    run.slots.clear();
    fastrand::seed(chance);
    run.record.end();
    Ran { errors: run.world.stores().errors(), lines: run.record.take() }
}

/// A place for a process, which may be down.
#[derive(Debug)]
struct Slot {
    process: Option<Process>,
    /// How often it was started.
    starts: u32,
    /// How far its clock is off, in microseconds.
    off: i64,
    /// Whether it may have something to do.
    stirred: bool,
    paused_until: Option<Timestamp>,
    back_at: Option<Timestamp>,
    /// How many steps it has left to live.
    dies_after: Option<u32>,
    /// How long it stays down when it has died or stopped.
    down_for: Duration,
    /// What it was started with.
    release: Release,
}

impl Slot {
    fn new(plan: &Plan, index: usize) -> Self {
        // By any amount: up to a day either way.
        let mut rng = fastrand::Rng::with_seed(plan.seed.wrapping_add(index as u64));
        let off = rng.i64(-86_400_000_000..86_400_000_000);
        Slot {
            process: None,
            starts: 0,
            off,
            stirred: false,
            paused_until: None,
            back_at: None,
            dies_after: None,
            down_for: Duration::ZERO,
            release: Release::first(plan),
        }
    }

    fn may_run(&self) -> bool {
        self.stirred && self.process.is_some() && self.paused_until.is_none()
    }
}

struct Run<'p> {
    plan: &'p Plan,
    world: Arc<World>,
    operators: Operators<'p>,
    record: Record,
    /// What processes start with.
    release: Release,
    slots: Vec<Slot>,
    next_step: usize,
    /// How many batches were made.
    number: usize,
    /// Whether no schedule makes triggers any more.
    stopped: bool,
}

impl Run<'_> {
    fn start(&mut self, index: usize) {
        let (world, plan, release) = (Arc::clone(&self.world), self.plan, self.release);
        let Some(slot) = self.slots.get_mut(index) else { return };
        (slot.starts, slot.release) = (slot.starts + 1, release);
        if slot.starts > 1 {
            world.stores().reopen(index);
        }
        let name = format!("p{index}.{}", slot.starts);
        let clock = ProcessClock::new(Arc::clone(&world), index, name.clone(), slot.off);
        let store = Remote { world: Arc::clone(&world), clock: Arc::clone(&clock) };
        let sink = self.record.sink(&name);
        let process = Process::start(Arc::clone(&clock), || {
            let quell = Quell::with_store(Arc::new(store)).clock(clock).history(sink).build();
            let quell = quell.expect("valid settings");
            let works = index < plan.workers;
            let worker =
                works.then(|| load::worker(&quell, plan, (index, &name), &release, &world));
            (quell, worker)
        });
        (slot.process, slot.stirred, slot.back_at) = (Some(process), true, None);
    }

    fn until_over(&mut self) {
        let heals = START + self.plan.heals;
        loop {
            self.run_all();
            let Some(next) = self.next_moment(heals) else { return };
            if next > heals + CONVERGES || (self.world.is_healed() && self.is_over()) {
                return;
            }
            self.world.pass(next);
            for slot in &mut self.slots {
                let woke = slot.process.as_ref().is_some_and(|process| process.clock().wake());
                slot.stirred |= woke;
                slot.paused_until = slot.paused_until.filter(|until| *until > next);
            }
            self.come_back(next);
            if next >= heals && !self.world.is_healed() {
                self.heal();
            }
            if next >= heals + CALMS {
                self.world.say_calm();
            }
            if next >= heals + CALMS + GOES_ON && !self.stopped {
                self.stopped = true;
                self.operators.pause_schedules();
            }
            self.perform_steps(next);
        }
    }

    /// Lets processes run, in an order and for as many steps as chance says, until all stand still.
    fn run_all(&mut self) {
        loop {
            self.take_stirred();
            let ready: Vec<usize> =
                (0..self.slots.len()).filter(|index| self.slots[*index].may_run()).collect();
            if ready.is_empty() {
                return;
            }
            let (pick, polls) = self
                .world
                .draw(|rng| (rng.usize(..ready.len()), rng.bool().then(|| rng.u32(1..16))));
            self.step(ready[pick], polls);
        }
    }

    /// Lets a process make this number of steps, or go on until it stands still.
    fn step(&mut self, index: usize, polls: Option<u32>) {
        let slot = &mut self.slots[index];
        let Some(process) = &mut slot.process else { return };
        let now = self.world.now();
        if let Some(left) = slot.dies_after {
            process.step(left);
            let name = process.clock().name().to_owned();
            (slot.process, slot.dies_after) = (None, None);
            slot.back_at = Some(now + slot.down_for);
            self.world.fault("kill", &name);
            return;
        }
        match polls {
            Some(polls) => process.step(polls),
            None => process.go_on(),
        }
        slot.stirred = polls.is_some();
        if process.has_stopped() {
            // Where the store did not answer in time, leases may expire; else none may.
            if self.world.was_harmed() {
                self.world.fault("kill", process.clock().name());
            }
            slot.process = None;
            slot.back_at = Some(now + slot.down_for);
        }
    }

    fn take_stirred(&mut self) {
        for index in self.world.take_stirred() {
            if index == World::ALL {
                self.slots.iter_mut().for_each(|slot| slot.stirred = true);
            } else if let Some(slot) = self.slots.get_mut(index) {
                slot.stirred = true;
            }
        }
    }

    fn next_moment(&self, heals: Timestamp) -> Option<Timestamp> {
        let step = self.plan.steps.get(self.next_step).map(|(at, _)| START + *at);
        let stops = Some(heals + CALMS + GOES_ON).filter(|_| !self.stopped);
        let heals = match (self.world.is_healed(), self.world.is_calm()) {
            (false, _) => Some(heals),
            (true, false) => Some(heals + CALMS),
            (true, true) => None,
        };
        let slots = self.slots.iter().flat_map(|slot| {
            let sleeps = slot.process.as_ref().filter(|_| slot.paused_until.is_none());
            [sleeps.and_then(|process| process.clock().next()), slot.paused_until, slot.back_at]
        });
        let moments = [step, heals, stops, self.world.next_arrival()].into_iter().chain(slots);
        moments.flatten().min().map(|next| next.max(self.world.now()))
    }

    fn come_back(&mut self, now: Timestamp) {
        for index in 0..self.slots.len() {
            if self.slots[index].back_at.is_some_and(|at| at <= now) {
                self.start(index);
            }
        }
    }

    fn perform_steps(&mut self, now: Timestamp) {
        while let Some((at, step)) = self.plan.steps.get(self.next_step)
            && START + *at <= now
        {
            self.next_step += 1;
            self.perform(step);
        }
    }

    fn perform(&mut self, step: &Step) {
        match step {
            Step::Trigger { process, calls, insists } => {
                self.number += 1;
                let slot = self.slots.get_mut(*process);
                if let Some(Slot { process: Some(process), stirred, release, .. }) = slot {
                    process.trigger(load::batch(calls, self.number, release), *insists);
                    *stirred = true;
                }
            }
            Step::Deploy { task, version } => self.release.deploy(*task, *version),
            Step::Harm(harm) => self.harm(*harm),
            _ => self.operators.perform(step),
        }
        self.world.stir(World::ALL);
    }

    fn harm(&mut self, harm: Harm) {
        let now = self.world.now();
        fn name(slot: &Slot) -> String {
            slot.process.as_ref().map_or_else(String::new, |p| p.clock().name().to_owned())
        }
        match harm {
            Harm::Kill { process, after, back } => {
                let Some(slot) = self.slots.get_mut(process) else { return };
                (slot.dies_after, slot.down_for, slot.stirred) = (Some(after), back, true);
                // A paused one dies where it stands.
                slot.paused_until = None;
            }
            Harm::Stop { process, back } => {
                let Some(slot) = self.slots.get_mut(process) else { return };
                if let Some(process) = &mut slot.process {
                    process.stop();
                    self.world.record_stop(process.clock().name());
                }
                (slot.down_for, slot.stirred) = (back, true);
            }
            Harm::Pause { process, time } => {
                let Some(slot) = self.slots.get_mut(process) else { return };
                slot.paused_until = Some(now + time);
                let whom = name(slot);
                self.harmed("pause", whom);
            }
            Harm::Jump { process, by } => {
                let Some(slot) = self.slots.get_mut(process) else { return };
                if let Some(process) = &slot.process {
                    process.clock().jump(by);
                }
                slot.off += i64::try_from(by.as_micros()).unwrap_or(0);
                let whom = name(slot);
                self.harmed("clock jumped", whom);
            }
            Harm::StoreJump { by } => {
                self.world.jump_store(by);
                self.world.fault("clock jumped", "store");
            }
            Harm::StoreDown { time } => {
                self.world.take_store_down(time);
                self.world.fault("down", "store");
            }
        }
    }

    /// A process came to harm, and with it its calls in flight.
    fn harmed(&self, what: &'static str, whom: String) {
        self.world.fault(what, &whom);
        self.world.after(MESSAGE, move |world| world.fault(what, &whom));
    }

    fn heal(&mut self) {
        for slot in &mut self.slots {
            (slot.paused_until, slot.dies_after) = (None, None);
            slot.stirred = true;
        }
        let now = self.world.now();
        for index in 0..self.slots.len() {
            if self.slots[index].process.is_none() {
                self.slots[index].back_at = Some(now);
            }
        }
        self.come_back(now);
        self.operators.resume();
        self.world.heal();
        self.world.stir(World::ALL);
    }

    /// Whether nothing is in flight and every job has ended.
    fn is_over(&self) -> bool {
        self.world.is_calm()
            && self.stopped
            && self.next_step == self.plan.steps.len()
            && self.world.next_arrival().is_none()
            && self.operators.all_ended()
    }
}
