//! What a simulated run will meet: nothing but data, drawn from a seed before the run starts.

use std::time::Duration;

use quell_core::QueueSettings;
use quell_core::job::Adjustment;
use quell_core::schedule::{CatchUp, ScheduleState};
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
    /// How many queues the tasks are in; 0 means one.
    #[serde(default)]
    pub queues: usize,
    /// Tasks that a worker does not know, though another one does.
    #[serde(default)]
    pub strangers: Vec<Stranger>,
    /// How long idempotency keys are kept.
    #[serde(default = "a_day")]
    pub keeps: Duration,
    /// What triggers by the clock, from the start until the world has healed and come to rest.
    #[serde(default)]
    pub schedules: Vec<Planned>,
    /// What happens, in the order of its times.
    pub steps: Vec<(Duration, Step)>,
    /// When the world heals.
    pub heals: Duration,
}

fn a_day() -> Duration {
    quell_core::idempotency::DEFAULT_RETENTION
}

/// A task that a worker is not registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stranger {
    /// The worker's process.
    pub worker: usize,
    /// Which of the tasks.
    pub task: usize,
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
        /// Whether it repeats the call until it knows what became of it.
        #[serde(default)]
        insists: bool,
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
    /// An operator changes one of the newest jobs, if it waits.
    Adjust {
        /// Counted from the newest.
        back: u64,
        /// How.
        adjustment: Adjustment,
    },
    /// An operator puts a dead job back.
    Redrive,
    /// An operator removes the rows of jobs that ended well a while ago.
    Prune {
        /// What is older goes.
        keep: Duration,
    },
    /// An operator sets a queue.
    Queue {
        /// Which.
        queue: usize,
        /// To what.
        settings: QueueSettings,
    },
    /// An operator deletes a queue.
    DeleteQueue {
        /// Which.
        queue: usize,
    },
    /// An operator pauses or resumes a task.
    Task {
        /// Which.
        task: usize,
        /// Whether it is paused from now on.
        paused: bool,
    },
    /// From now on processes start with another policy of a task.
    Deploy {
        /// Which task.
        task: usize,
        /// Which of its policies.
        version: u8,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which of the tasks.
    pub task: usize,
    /// Its key, where the task has keys.
    pub key: u8,
    /// A delay.
    pub delay: Option<Duration>,
    /// A dedup key and how long it holds: 0 for a while, 1 until started, 2 until done.
    pub dedup: Option<(u8, u8)>,
    /// Higher runs first.
    #[serde(default)]
    pub priority: i16,
    /// An idempotency key and which payload it comes with. Without one each call has a payload of
    /// its own.
    #[serde(default)]
    pub idem: Option<(u16, u8)>,
}

/// A process or the store comes to harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Harm {
    /// Killed after this number of further steps, and started again later.
    Kill {
        /// Which process.
        process: usize,
        /// How many polls it still gets.
        after: u32,
        /// When it comes back.
        back: Duration,
    },
    /// Asked to shut down, and started again later.
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
    /// The store restarts: calls in flight fail, done or not.
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

    /// How many processes there are.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.workers + self.callers
    }
}
