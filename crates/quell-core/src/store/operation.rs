//! What a store does, as data: an operation and its answer, in one table.
//!
//! So a wrapper of a store, such as one that fails calls or records them, is a function over
//! operations, and an operation and its answer can cross a wire. What an operation may touch
//! follows from it, too: see [`Scope`](crate::Scope).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::alert::{AlertRow, AlertState, Overview};
use crate::checkup::Checkup;
use crate::effect::EffectStart;
use crate::heartbeat::{Beaten, Heartbeat, WorkerDrain, Workers};
use crate::job::{Adjusted, Adjustment};
use crate::queue::{QueueInfo, QueueSettings, TaskInfo, TaskSettings};
use crate::schedule::{RecordedTick, Schedule, ScheduleInfo, ScheduleState, Ticked};
use crate::store::{Steps, Trouble};
use crate::{
    AlertName, Attempt, Backlog, BacklogOf, Batch, Capabilities, Claim, Claimed, Counts,
    DeadExport, DeadFilter, Effect, EffectName, EndNotification, Error, ErrorKind, ExpiredLease,
    ExplainTarget, Explanation, Imported, Job, JobFilter, JobId, JobResult, Key, Lease, Location,
    NextDue, Now, Payload, Pruned, QueueName, Receipt, Redrive, Renewal, Result, Retention,
    ScheduleName, Settled, SettledAs, Settlement, TaskName, Timestamp, UnreadableJob,
    UnreadablePage, Wakeups, WorkerId,
};

/// A call of a store: resolves to its answer.
pub type Call<'s, R> = Pin<Box<dyn Future<Output = Result<R>> + Send + 's>>;

/// What sort of step an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// It changes nothing, so it may be made again.
    Read,
    /// It may change the store.
    Write,
    /// As a write; and most of what clients and workers do all the time, so that a store may have a
    /// faster way for it.
    Hot,
}

impl OperationKind {
    /// Whether it may change the store.
    #[must_use]
    pub fn writes(self) -> bool {
        self != OperationKind::Read
    }
}

/// How a method takes what its operation keeps.
macro_rules! taken {
    (own $type:ty) => { $type };
    (lent $type:ty) => { &$type };
    (all $type:ty) => { &[$type] };
    (text $type:ty) => { &str };
    (maybe $type:ty) => { Option<&$type> };
}

/// The type that an operation keeps.
macro_rules! kept {
    (own $type:ty) => { $type };
    (lent $type:ty) => { $type };
    (all $type:ty) => { Vec<$type> };
    (text $type:ty) => { String };
    (maybe $type:ty) => { Option<$type> };
}

/// The value that an operation keeps of a method's argument.
macro_rules! keep {
    (own $value:expr) => {
        $value
    };
    (lent $value:expr) => {
        $value.clone()
    };
    (all $value:expr) => {
        $value.to_vec()
    };
    (text $value:expr) => {
        $value.to_owned()
    };
    (maybe $value:expr) => {
        $value.cloned()
    };
}

/// The argument of a method, from the value that an operation keeps.
macro_rules! lend {
    (own $value:expr) => {
        $value
    };
    (lent $value:expr) => {
        &$value
    };
    (all $value:expr) => {
        &$value
    };
    (text $value:expr) => {
        &$value
    };
    (maybe $value:expr) => {
        $value.as_ref()
    };
}

/// The time that a method was given; none where it has no time.
macro_rules! time {
    () => {
        None
    };
    ($now:ident) => {
        $now
    };
}

/// The second, where there is the first.
macro_rules! second {
    ($first:ident, $second:expr) => {
        $second
    };
}

/// Passes the table of all operations to a macro.
macro_rules! with_operations {
    ($to:ident) => {
        $to! {
            Hot enqueue(now) Enqueue { batches: own Vec<Batch> } -> Vec<Result<Vec<Receipt>>>;
            Hot claim(now) Claim { claim: lent Claim } -> Claimed;
            Hot renew(now) Renew { leases: all Lease, lease: own Duration } -> Vec<Renewal>;
            Hot settle(now) Settle { settlements: own Vec<Settlement> } -> Vec<Settled>;
            Write begin_effect(now) BeginEffect { lease: lent Lease, name: lent EffectName, key: lent Key } -> EffectStart;
            Write end_effect(now) EndEffect { lease: lent Lease, name: lent EffectName, result: lent Payload } -> ();
            Read effects() Effects { id: own JobId } -> Vec<Effect>;
            Write heartbeat(now) Heartbeat { beat: lent Heartbeat } -> Beaten;
            Write drain_worker(now) DrainWorker { drain: lent WorkerDrain } -> u64;
            Write remove_worker() RemoveWorker { worker: lent WorkerId, incarnation: own u32 } -> ();
            Read workers(now) Workers {} -> Workers;
            Write reap(now) Reap { limit: own usize } -> Vec<ExpiredLease>;
            Read next_due(now) NextDue { queue: lent QueueName, tasks: all TaskName } -> NextDue;
            Read peek(now) Peek { queues: all (QueueName, Arc<[TaskName]>) } -> Vec<NextDue>;
            Read backlog(now) Backlog { of: lent BacklogOf } -> Backlog;
            Read queues() Queues {} -> Vec<QueueInfo>;
            Write set_queue(now) SetQueue { queue: lent QueueName, settings: lent QueueSettings } -> ();
            Write replace_queue(now) ReplaceQueue { queue: lent QueueName, known: maybe QueueSettings, settings: lent QueueSettings } -> bool;
            Write delete_queue(now) DeleteQueue { queue: lent QueueName } -> bool;
            Read tasks() Tasks {} -> Vec<TaskInfo>;
            Read task_settings() TaskSettingsOf { tasks: all TaskName } -> Vec<TaskInfo>;
            Write set_task(now) SetTask { task: lent TaskName, settings: lent TaskSettings } -> ();
            Write replace_task(now) ReplaceTask { task: lent TaskName, known: lent TaskSettings, settings: lent TaskSettings } -> bool;
            Read job() Job { id: own JobId } -> Option<Job>;
            Read result() ResultOf { id: own JobId } -> Option<JobResult>;
            Read jobs() Jobs { filter: lent JobFilter } -> Vec<Job>;
            Read counts() Counts {} -> Vec<Counts>;
            Read attempts() Attempts { id: own JobId } -> Vec<Attempt>;
            Read explain(now) Explain { target: lent ExplainTarget } -> Option<Explanation>;
            Write flush(now) Flush { task: lent TaskName, key: lent Key } -> Option<JobId>;
            Write cancel_key(now) CancelKey { task: lent TaskName, key: lent Key } -> Option<JobId>;
            Write cancel(now) Cancel { id: own JobId, reason: text String } -> ();
            Write adjust(now) Adjust { id: own JobId, adjustment: own Adjustment } -> Adjusted;
            Write redrive(now) Redrive { redrive: lent Redrive } -> SettledAs;
            Write prune(now) Prune { retention: lent Retention, limit: own usize } -> Pruned;
            Read overview(now) Overview {} -> Overview;
            Read alerts() Alerts {} -> Vec<AlertRow>;
            Write set_alert() SetAlert { name: lent AlertName, version: own u64, state: maybe AlertState } -> bool;
            Read checkup() Checkup {} -> Checkup;
            Write set_schedule(now) SetSchedule { schedule: lent Schedule } -> ();
            Write set_schedule_state(now) SetScheduleState { name: lent ScheduleName, state: own ScheduleState } -> ();
            Write delete_schedule(now) DeleteSchedule { name: lent ScheduleName } -> ();
            Read schedules() Schedules {} -> Vec<ScheduleInfo>;
            Read ticks() Ticks { name: lent ScheduleName, from: own Timestamp, to: own Timestamp, limit: own usize } -> Vec<RecordedTick>;
            Write tick(now) Tick { limit: own usize } -> Ticked;
            Write run_schedule(now) RunSchedule { name: lent ScheduleName } -> Receipt;
            Write backfill(now) Backfill { name: lent ScheduleName, from: own Timestamp, to: own Timestamp } -> u64;
            Read dead() Dead { filter: lent DeadFilter } -> Vec<Job>;
            Read count_dead() CountDead { filter: lent DeadFilter } -> u64;
            Read exports() Exports { ids: all JobId } -> Vec<DeadExport>;
            Write discard(now) Discard { ids: all JobId, reason: text String } -> Vec<JobId>;
            Write import_dead(now) ImportDead { exports: all DeadExport } -> Vec<Imported>;
            Read unreadable() Unreadable { page: lent UnreadablePage } -> Vec<UnreadableJob>;
            Write restore(now) Restore { ids: all JobId } -> Vec<JobId>;
        }
    };
}

macro_rules! operation {
    ($($kind:ident $method:ident($($now:ident)?) $variant:ident {
        $($field:ident: $mode:ident $type:ty),*
    } -> $answer:ty;)*) => {
        /// What a store is asked to do. Each is the method of [`Store`] that has its name, with
        /// what that takes.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the methods of `Steps` say what each is")]
        pub enum Operation {
            $($variant { $($field: kept!($mode $type)),* }),*
        }

        impl Operation {
            /// Each operation's name, as its method has it, and what sort of step it is.
            pub const ALL: &'static [(&'static str, OperationKind)] =
                &[$((stringify!($method), OperationKind::$kind)),*];

            /// Its name, as its method has it.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Operation::$variant { .. } => stringify!($method)),*
                }
            }

            /// What sort of step it is.
            #[must_use]
            pub fn kind(&self) -> OperationKind {
                match self {
                    $(Operation::$variant { .. } => OperationKind::$kind),*
                }
            }
        }
    };
}
with_operations!(operation);

macro_rules! answer {
    ($($kind:ident $method:ident($($now:ident)?) $variant:ident {
        $($field:ident: $mode:ident $type:ty),*
    } -> $answer:ty;)*) => {
        /// The answer to the [`Operation`] of the same name.
        #[derive(Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "the methods of `Steps` say what each is")]
        pub enum Answer {
            $($variant($answer)),*
        }

        impl Answer {
            /// The name of the operation that it answers.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Answer::$variant(_) => stringify!($method)),*
                }
            }
        }
    };
}
with_operations!(answer);

impl Answer {
    /// The error of a caller that asked for something else: a defect of the store, or of a wrapper.
    #[must_use]
    pub fn is_not_of(&self, asked: &str) -> Error {
        let message = format!("the store answered `{asked}` with an answer to `{}`", self.name());
        Error::new(ErrorKind::Internal, message)
    }
}

macro_rules! dispatch {
    ($($kind:ident $method:ident($($now:ident)?) $variant:ident {
        $($field:ident: $mode:ident $type:ty),*
    } -> $answer:ty;)*) => {
        /// Takes an operation by the method that it names: what [`Store::call`] is where a store
        /// has a method for each.
        ///
        /// # Errors
        /// As the method.
        pub async fn dispatch<S: Steps + ?Sized>(
            steps: &S,
            now: Now,
            operation: Operation,
        ) -> Result<Answer> {
            match operation {
                $(Operation::$variant { $($field),* } => {
                    let taken = steps.$method($(second!($now, now),)? $(lend!($mode $field)),*);
                    taken.await.map(Answer::$variant)
                })*
            }
        }
    };
}
with_operations!(dispatch);

macro_rules! methods {
    ($($kind:ident $method:ident($($now:ident)?) $variant:ident {
        $($field:ident: $mode:ident $type:ty),*
    } -> $answer:ty;)*) => {
        $(
            #[doc = concat!("As `", stringify!($method), "` of [`Steps`].")]
            fn $method(
                &self,
                $($now: Now,)?
                $($field: taken!($mode $type)),*
            ) -> Call<'_, $answer> {
                let operation = Operation::$variant { $($field: keep!($mode $field)),* };
                let answer = self.call(time!($($now)?), operation);
                Box::pin(async move {
                    match answer.await? {
                        Answer::$variant(answer) => Ok(answer),
                        other => Err(other.is_not_of(stringify!($method))),
                    }
                })
            }
        )*
    };
}

/// The engine below clients and workers: it takes [operations](Operation), each an atomic step.
///
/// All of a step happens or none, except that an error of kind
/// [`UnknownOutcome`](crate::ErrorKind::UnknownOutcome) says nothing about which. Dropping a
/// returned future leaves the step's outcome unknown in the same way.
///
/// A store implements [`Store::call`]; wrappers of stores work there. The other methods
/// that return a [`Call`] are written once, on top of it: implementations leave them as they are.
///
/// ```
/// use quell_core::{Answer, MemoryStore, Operation, Store, Timestamp};
///
/// # async fn of(store: MemoryStore) -> quell_core::Result<()> {
/// let queues = store.queues().await?;
/// let answer = store.call(None, Operation::Queues {}).await?;
/// assert!(matches!(answer, Answer::Queues(same) if same == queues));
/// # Ok(())
/// # }
/// ```
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug + 'static {
    /// What the store does natively.
    fn capabilities(&self) -> Capabilities;

    /// How many calls of [`enqueue`](Store::enqueue) a process does well to make at a time when
    /// more triggers wait, as things are now: it is asked before each call. One for a store that
    /// takes one writer at a time.
    fn concurrent_enqueues(&self) -> usize {
        1
    }

    /// Where callers' own transactions find the store (R4, R22); none where they cannot.
    fn location(&self) -> Option<&Location> {
        None
    }

    /// Takes the step that `operation` names, at `now`; none stands for the store's own clock.
    ///
    /// The answer is of the operation's own variant.
    async fn call(&self, now: Now, operation: Operation) -> Result<Answer>;

    /// A stream of wake-ups: something may be due earlier than a worker expects (R34). A wake-up
    /// may be lost or false; polling is the safety net.
    fn wakeups(&self) -> Wakeups;

    /// A caller's own transaction has committed that triggered without notifying (R4): workers of
    /// this process look for its triggers at once, and those of others are notified (R34). Without
    /// this call they find them by polling.
    fn transaction_committed(&self) {}

    /// Why the store accepts no triggers, as far as it knows without a call: a disk that is full, a
    /// file that is gone. It answers at once.
    fn trouble(&self) -> Option<Trouble> {
        None
    }

    /// Leaves what is durable as one whole: a store in a file moves its journal into it. For the end
    /// of a process, after its last call; without it nothing is lost.
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Resolves after the end of a job that comes after this call (R19), an absorption too. The
    /// notification may be lost or false; asking for the [result](Store::result) now and then is
    /// the safety net. A store that pushes nothing returns a future that never resolves.
    fn ended(&self, job: JobId) -> EndNotification;

    with_operations!(methods);
}
