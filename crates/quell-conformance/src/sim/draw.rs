//! Draws a plan from a seed.
//!
//! Each seed switches most dangers off and makes one key hot: bugs need a few things to coincide,
//! and uniform load rarely makes them do so.

use std::time::Duration;

use fastrand::Rng;
use quell_core::job::Adjustment;
use quell_core::schedule::{CatchUp, ScheduleState};
use quell_core::{PartitionOrder, QueueSettings, Rate};

use super::plan::{Call, Harm, Network, Plan, Planned, Step, Stranger};

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let heals = Duration::from_millis(rng.u64(2_000..8_000));
        let (workers, callers) = (rng.usize(1..4), rng.usize(0..2));
        let dangers = Dangers::draw(&mut rng);
        let mut plan = Plan {
            seed,
            workers,
            callers,
            concurrency: *rng.choice(&[1, 2, Plan::MANY]).unwrap_or(&Plan::MANY),
            lease: Duration::from_millis(rng.u64(300..1_500)),
            poll: Duration::from_millis(*rng.choice(&[1_000, 5_000]).unwrap_or(&1_000)),
            work: Duration::from_millis(*rng.choice(&[0, 5, 100, 1_000, 3_000]).unwrap_or(&5)),
            failing: if rng.u8(..) < 150 { 0 } else { rng.u8(5..60) },
            network: dangers.network,
            broken_call: None,
            queues: if rng.u8(..) < 64 { 2 } else { 1 },
            strangers: Vec::new(),
            keeps: Duration::from_millis(*rng.choice(&[300, 2_000, 86_400_000]).unwrap_or(&300)),
            schedules: Vec::new(),
            steps: Vec::new(),
            heals,
        };
        let tasks: Vec<usize> = (0..rng.usize(1..4)).map(|_| rng.usize(..Self::TASKS)).collect();
        plan.draw_triggers(&mut rng, &tasks);
        plan.draw_strangers(&mut rng);
        plan.draw_operators(&mut rng, &dangers);
        plan.draw_deploys(&mut rng, &dangers, &tasks);
        plan.draw_harm(&mut rng, &dangers);
        plan.draw_schedules(&mut rng);
        plan.steps.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Some tasks, one hot key, gaps of one or two lengths.
    fn draw_triggers(&mut self, rng: &mut Rng, tasks: &[usize]) {
        let gaps: Vec<u64> = (0..rng.usize(1..3))
            .map(|_| *rng.choice(&[1, 20, 150, 400, 1_200]).unwrap_or(&20))
            .collect();
        let habits = Habits::draw(rng);
        let mut at = 0;
        for number in 0..rng.u16(3..40) {
            at += rng.choice(&gaps).map_or(20, |gap| rng.u64(..*gap + 1));
            let time = Duration::from_micros(at * 1_000 + rng.u64(..1_000));
            if time >= self.heals {
                break;
            }
            let insists = habits.insists && rng.bool();
            let size = if habits.batched { rng.u16(1..4) } else { 1 };
            let calls = (0..size).map(|index| {
                let mut call = habits.call(rng, tasks);
                // Asking again is safe with a key: one that others use, too, or one of its own.
                if insists && call.idem.is_none() {
                    call.idem = Some((1_000 + number * 4 + index, 0));
                }
                call
            });
            let calls = calls.collect();
            let process = rng.usize(..self.processes());
            self.steps.push((time, Step::Trigger { calls, process, insists }));
        }
    }

    /// One worker knows every task, others perhaps not.
    fn draw_strangers(&mut self, rng: &mut Rng) {
        let all = rng.usize(..self.workers);
        if rng.u8(..) >= 64 {
            return;
        }
        for worker in (0..self.workers).filter(|worker| *worker != all) {
            let unknown = (0..Self::TASKS).filter(|_| rng.bool());
            let mut unknown: Vec<Stranger> =
                unknown.map(|task| Stranger { worker, task }).collect();
            // A worker without a task does not start.
            unknown.truncate(Self::TASKS - 1);
            self.strangers.extend(unknown);
        }
    }

    fn draw_operators(&mut self, rng: &mut Rng, dangers: &Dangers) {
        for _ in 0..dangers.operators {
            let task = rng.usize(..Self::TASKS);
            let queue = rng.usize(..self.queues);
            let step = match rng.u8(..10) {
                0 => Step::Flush { task, key: 0 },
                1 => Step::Cancel { back: rng.u64(..3) },
                2 => Step::Redrive,
                3 => Step::Prune { keep: Duration::from_millis(rng.u64(..1_000)) },
                4 => Step::Task { task, paused: true },
                5 => Step::Task { task, paused: false },
                6 => Step::DeleteQueue { queue },
                7 => Step::Adjust { back: rng.u64(..4), adjustment: adjustment(rng) },
                _ => Step::Queue { queue, settings: settings(rng) },
            };
            self.steps.push((self.moment(rng), step));
        }
    }

    /// Another policy, and processes that take it up as they restart.
    fn draw_deploys(&mut self, rng: &mut Rng, dangers: &Dangers, tasks: &[usize]) {
        for _ in 0..dangers.deploys {
            let at = self.moment(rng);
            let task = rng.choice(tasks).copied().unwrap_or(0);
            self.steps.push((at, Step::Deploy { task, version: rng.u8(..4) }));
            for process in 0..self.processes() {
                let back = Duration::from_millis(rng.u64(1..300));
                let then = at + Duration::from_millis(rng.u64(..800));
                // Some go on with the old one.
                if rng.u8(..3) > 0 && then < self.heals {
                    self.steps.push((then, Step::Harm(Harm::Stop { process, back })));
                }
            }
        }
    }

    fn draw_harm(&mut self, rng: &mut Rng, dangers: &Dangers) {
        let (processes, lease) = (self.processes(), self.lease);
        let soon = |rng: &mut Rng| Duration::from_millis(rng.u64(1..1_000));
        for _ in 0..dangers.kills {
            let (process, after, back) = (rng.usize(..processes), rng.u32(..40), soon(rng));
            let harm = Harm::Kill { process, after, back };
            self.steps.push((self.moment(rng), Step::Harm(harm)));
        }
        for _ in 0..dangers.stops {
            let harm = Harm::Stop { process: rng.usize(..processes), back: soon(rng) };
            self.steps.push((self.moment(rng), Step::Harm(harm)));
        }
        for _ in 0..dangers.pauses {
            // Often longer than a lease.
            let time = lease.mul_f64(rng.f64() * 2.0);
            let harm = Harm::Pause { process: rng.usize(..processes), time };
            self.steps.push((self.moment(rng), Step::Harm(harm)));
        }
        for _ in 0..dangers.jumps {
            let harm = if rng.bool() {
                Harm::Jump { process: rng.usize(..processes), by: soon(rng) * 10 }
            } else {
                Harm::StoreJump { by: rng.i64(-1_500..1_500) }
            };
            self.steps.push((self.moment(rng), Step::Harm(harm)));
        }
        for _ in 0..dangers.restarts {
            let harm = Harm::StoreDown { time: soon(rng) };
            self.steps.push((self.moment(rng), Step::Harm(harm)));
        }
    }

    /// One plan of three has schedules, and some operators meddle with them.
    fn draw_schedules(&mut self, rng: &mut Rng) {
        if rng.u8(..) >= 85 {
            return;
        }
        let count = rng.usize(1..3);
        for _ in 0..count {
            self.schedules.push(Planned {
                task: rng.usize(..Self::TASKS),
                key: 0,
                every: Duration::from_micros(rng.u64(200_000..2_000_000)),
                catch_up: *rng.choice(&CatchUp::ALL).unwrap_or(&CatchUp::All),
            });
        }
        for _ in 0..rng.usize(0..4) {
            let schedule = rng.usize(..count);
            let step = match rng.u8(..4) {
                0 => Step::RunSchedule { schedule },
                1 => Step::Backfill { schedule, back: Duration::from_millis(rng.u64(..3_000)) },
                2 => Step::SwitchSchedule { schedule, state: ScheduleState::Paused },
                _ => Step::SwitchSchedule { schedule, state: ScheduleState::Active },
            };
            self.steps.push((self.moment(rng), step));
        }
    }

    fn moment(&self, rng: &mut Rng) -> Duration {
        self.heals.mul_f64(rng.f64())
    }
}

/// What callers ask for.
struct Habits {
    deduped: bool,
    delayed: bool,
    batched: bool,
    ranked: bool,
    idempotent: bool,
    /// Whether some repeat a call until they know what became of it.
    insists: bool,
}

impl Habits {
    fn draw(rng: &mut Rng) -> Self {
        let mut some = |of_256: u8| rng.u8(..) < of_256;
        Habits {
            deduped: some(80),
            delayed: some(60),
            batched: some(60),
            ranked: some(60),
            idempotent: some(80),
            insists: some(100),
        }
    }

    fn call(&self, rng: &mut Rng, tasks: &[usize]) -> Call {
        Call {
            task: rng.choice(tasks).copied().unwrap_or(0),
            key: if rng.u8(..) < 200 { 0 } else { rng.u8(1..4) },
            delay: (self.delayed && rng.bool()).then(|| Duration::from_millis(rng.u64(1..2_000))),
            dedup: (self.deduped && rng.bool()).then(|| (rng.u8(..2), rng.u8(..3))),
            priority: if self.ranked { rng.i16(-2..3) } else { 0 },
            // Most come with the payload that the key came with before.
            idem: (self.idempotent && rng.bool())
                .then(|| (rng.u16(..4), u8::from(rng.u8(..) < 40))),
        }
    }
}

/// Settings of a queue: paused, with one or two limits, or none.
fn adjustment(rng: &mut Rng) -> Adjustment {
    match rng.u8(..3) {
        0 => Adjustment::default().priority(rng.i16(-2..3)),
        1 => Adjustment::default().run_now(true).priority(rng.i16(-2..3)),
        _ => Adjustment::default().run_now(true),
    }
}

fn settings(rng: &mut Rng) -> QueueSettings {
    let none = QueueSettings::default();
    let concurrency = Some(rng.u32(1..3));
    let rate = Some(Rate { limit: rng.u32(1..6), period: Duration::from_millis(300) });
    match rng.u8(..8) {
        0 | 1 => QueueSettings { paused: true, ..none },
        2 => QueueSettings { concurrency, ..none },
        3 if concurrency == Some(2) => none.partition_order(PartitionOrder::Strict),
        3 => QueueSettings { concurrency, partition_concurrency: Some(1), ..none },
        4 => QueueSettings { concurrency, worker_concurrency: Some(1), ..none },
        5 => QueueSettings { rate, ..none },
        6 => QueueSettings { partition_rate: rate, ..none },
        _ if concurrency == Some(1) => none.partition_order(PartitionOrder::Strict),
        _ => none,
    }
}

/// How much of each danger a seed has: most have none.
struct Dangers {
    network: Network,
    operators: u32,
    kills: u32,
    stops: u32,
    pauses: u32,
    jumps: u32,
    restarts: u32,
    deploys: u32,
}

impl Dangers {
    fn draw(rng: &mut Rng) -> Self {
        let mut some = |most: u32| if rng.u8(..) < 70 { rng.u32(1..=most) } else { 0 };
        let mut thousandths = |most| u16::try_from(some(most)).unwrap_or(0);
        let network = Network {
            fails_before: thousandths(150),
            fails_after: thousandths(150),
            slow: thousandths(150),
            twice: thousandths(300),
            deaf: thousandths(500),
        };
        Dangers {
            network,
            operators: some(8),
            kills: some(4),
            stops: some(3),
            pauses: some(4),
            jumps: some(3),
            restarts: some(2),
            deploys: some(2),
        }
    }
}
