//! What a simulated run will meet: drawn from a seed before it starts, and nothing but data.
//!
//! Each seed switches most dangers off and makes one key hot: bugs need a few things to coincide,
//! and uniform load rarely makes them do so.

use std::time::Duration;

use fastrand::Rng;
use quell_core::schedule::{CatchUp, ScheduleState};
use quell_core::{QueueSettings, Rate};
use serde::{Deserialize, Serialize};

/// A run, as data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Decides what the plan leaves open: which process runs next, and how messages fare.
    pub seed: u64,
    /// Processes that trigger and work.
    pub workers: usize,
    /// Processes that only trigger.
    pub callers: usize,
    /// Attempts at once in a worker.
    pub concurrency: usize,
    /// How long leases hold.
    pub lease: Duration,
    /// How often a worker polls when nothing wakes it.
    pub poll: Duration,
    /// The longest that a handler takes.
    pub work: Duration,
    /// How many handlers of a hundred fail.
    pub failing: u8,
    /// How the network treats messages until the world heals.
    pub network: Network,
    /// One call, by its number, that fails whatever the network does.
    #[serde(default)]
    pub broken_call: Option<BrokenCall>,
    /// What triggers by the clock, from the start until the world has healed and come to rest.
    #[serde(default)]
    pub schedules: Vec<Planned>,
    /// What happens, in the order of its times.
    pub steps: Vec<(Duration, Step)>,
    /// When the world heals.
    pub heals: Duration,
}

/// A schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Which of the tasks.
    pub task: usize,
    /// Its key, where the task has keys.
    pub key: u8,
    /// The time between two ticks.
    pub every: Duration,
    /// What becomes of missed ticks.
    pub catch_up: CatchUp,
}

/// How messages between processes and the store fare, each in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The call fails before the store did anything.
    pub fails_before: u16,
    /// The store did it, and the answer is lost.
    pub fails_after: u16,
    /// The message takes long.
    pub slow: u16,
    /// A settlement arrives twice.
    pub twice: u16,
    /// A wake-up is lost.
    pub deaf: u16,
}

/// A call to the store that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenCall {
    /// Its number, from 0, among the calls of all processes.
    pub number: u64,
    /// Whether the store has done it when it fails.
    pub done: bool,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A process triggers a batch.
    Trigger {
        /// Which process.
        process: usize,
        /// What it asks for.
        calls: Vec<Call>,
    },
    /// An operator makes a window due.
    Flush {
        /// Which task.
        task: usize,
        /// Which key.
        key: u8,
    },
    /// An operator cancels one of the newest jobs.
    Cancel {
        /// Counted from the newest.
        back: u64,
    },
    /// An operator puts a dead job back.
    Redrive,
    /// An operator sets the queue.
    Queue {
        /// At most so many attempts at once.
        concurrency: Option<u32>,
        /// Whether it is paused.
        paused: bool,
    },
    /// An operator pauses or resumes a schedule.
    SwitchSchedule {
        /// Which.
        schedule: usize,
        /// To what.
        state: ScheduleState,
    },
    /// An operator runs a schedule outside its plan.
    RunSchedule {
        /// Which.
        schedule: usize,
    },
    /// An operator fires the ticks of the last while that have not fired.
    Backfill {
        /// Which schedule.
        schedule: usize,
        /// From so long ago.
        back: Duration,
    },
    /// Something goes wrong.
    Harm(Harm),
}

/// One trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which of the tasks.
    pub task: usize,
    /// Its key, where the task has keys.
    pub key: u8,
    /// A delay.
    pub delay: Option<Duration>,
    /// A dedup key and how long it holds: 0 for a while, 1 until started, 2 until done.
    pub dedup: Option<(u8, u8)>,
}

/// A process or the store comes to harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Harm {
    /// Killed after so many more steps of it, and started again later.
    Kill {
        /// Which process.
        process: usize,
        /// How many polls it still gets.
        after: u32,
        /// When it comes back.
        back: Duration,
    },
    /// Told to shut down, and started again later.
    Stop {
        /// Which process.
        process: usize,
        /// When it comes back.
        back: Duration,
    },
    /// Stands still, with everything in it.
    Pause {
        /// Which process.
        process: usize,
        /// For how long.
        time: Duration,
    },
    /// Its clock jumps ahead.
    Jump {
        /// Which process.
        process: usize,
        /// By how much.
        by: Duration,
    },
    /// The store's clock jumps, back where negative, in milliseconds.
    StoreJump {
        /// By how much.
        by: i64,
    },
    /// The store restarts: what is under way fails, done or not.
    StoreDown {
        /// For how long.
        time: Duration,
    },
}

impl Plan {
    /// More slots than a worker ever fills.
    pub(super) const MANY: usize = 1_000;
    /// How many tasks there are: see `load`.
    pub(super) const TASKS: usize = 8;

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
            schedules: Vec::new(),
            steps: Vec::new(),
            heals,
        };
        plan.draw_triggers(&mut rng);
        plan.draw_operators(&mut rng, &dangers);
        plan.draw_harm(&mut rng, &dangers);
        plan.draw_schedules(&mut rng);
        plan.steps.sort_by_key(|(at, _)| *at);
        plan
    }

    /// The settings with one more limit, of a kind that is the seed's, where they have one.
    pub(super) fn limited(&self, settings: QueueSettings) -> QueueSettings {
        let rate = Some(Rate { limit: 5, period: Duration::from_millis(300) });
        match self.seed % 5 {
            _ if settings.concurrency.is_none() => settings,
            1 => QueueSettings { partition_concurrency: Some(1), ..settings },
            2 => QueueSettings { worker_concurrency: Some(1), ..settings },
            3 => QueueSettings { rate, ..settings },
            4 => QueueSettings { partition_rate: rate, ..settings },
            _ => settings,
        }
    }

    /// How many processes there are.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.workers + self.callers
    }

    /// Some tasks, one hot key, gaps of one or two lengths.
    fn draw_triggers(&mut self, rng: &mut Rng) {
        let tasks: Vec<usize> = (0..rng.usize(1..4)).map(|_| rng.usize(..Self::TASKS)).collect();
        let gaps: Vec<u64> = (0..rng.usize(1..3))
            .map(|_| *rng.choice(&[1, 20, 150, 400, 1_200]).unwrap_or(&20))
            .collect();
        let (deduped, delayed, batched) = (rng.u8(..) < 80, rng.u8(..) < 60, rng.u8(..) < 60);
        let mut at = 0;
        for _ in 0..rng.usize(3..40) {
            at += rng.choice(&gaps).map_or(20, |gap| rng.u64(..*gap + 1));
            let time = Duration::from_micros(at * 1_000 + rng.u64(..1_000));
            if time >= self.heals {
                break;
            }
            let calls = (0..if batched { rng.usize(1..4) } else { 1 }).map(|_| Call {
                task: rng.choice(&tasks).copied().unwrap_or(0),
                key: if rng.u8(..) < 200 { 0 } else { rng.u8(1..4) },
                delay: (delayed && rng.bool()).then(|| Duration::from_millis(rng.u64(1..2_000))),
                dedup: (deduped && rng.bool()).then(|| (rng.u8(..2), rng.u8(..3))),
            });
            let step =
                Step::Trigger { calls: calls.collect(), process: rng.usize(..self.processes()) };
            self.steps.push((time, step));
        }
    }

    fn draw_operators(&mut self, rng: &mut Rng, dangers: &Dangers) {
        for _ in 0..dangers.operators {
            let step = match rng.u8(..6) {
                0 => Step::Flush { task: rng.usize(..Self::TASKS), key: 0 },
                1 => Step::Cancel { back: rng.u64(..3) },
                2 => Step::Redrive,
                3 => Step::Queue { concurrency: None, paused: true },
                4 => Step::Queue { concurrency: Some(rng.u32(1..3)), paused: false },
                _ => Step::Queue { concurrency: None, paused: false },
            };
            self.steps.push((self.moment(rng), step));
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

/// How much of each danger a seed has: most have none.
struct Dangers {
    network: Network,
    operators: u32,
    kills: u32,
    stops: u32,
    pauses: u32,
    jumps: u32,
    restarts: u32,
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
        }
    }
}
