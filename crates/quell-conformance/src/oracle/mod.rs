//! The store against the model: the same random operations, every answer and every row compared,
//! and no wake-up missing.
//!
//! A failure shrinks to a short script. `script` draws the operations, `plans` those on
//! schedules, `dead` those on the dead, this file runs them.

mod dead;
mod plans;
mod script;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use proptest::test_runner::{
    Config, FailurePersistence, FileFailurePersistence, TestCaseError, TestRunner,
};
use quell_core::heartbeat::{Heartbeat, WorkerDrain};
use quell_core::part::Ids;
use quell_core::window::Thresholds;
use quell_core::{
    AlertName, AlertState, BacklogOf, Claim, DeadExport, Draw, EffectName, ExplainTarget,
    JobFilter, JobId, Lease, LeaseToken, MemoryStore, NextDue, Payload, QueueInfo, QueueName,
    QueueSettings, Receipt, Retention, Settlement, Store, TaskName, TaskSettings, Timestamp,
    TriggerId, Wakeup, Wakeups, WorkerId,
};

use crate::effort;
use crate::rig::{Opened, Rig, heartbeat, key, secs, task};
use plans::{PlanOp, moment, schedule, schedule_name};
use script::{End, Op, queue_number, scripts};

/// How long leases hold: shorter than many a jump of the clock.
const LEASE: Duration = secs(15);

/// Both stores and what the script remembers.
struct Pair {
    ids: Ids,
    model: MemoryStore,
    store: Arc<dyn Store>,
    wakeups: Wakeups,
    /// When the next job was due, as of the step before, by queue and task.
    knew: BTreeMap<(u8, TaskName), NextDue>,
    /// When the next tick was due, as of the step before.
    knew_tick: Option<Timestamp>,
    now: Timestamp,
    leases: Vec<Lease>,
    /// The dead jobs of the last export.
    exports: Vec<DeadExport>,
    steps: usize,
}

/// The seeds of failures that were once found, tried before all others.
pub const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions/oracle.txt");

/// The ids of a store that counts its jobs.
pub const COUNTED: Ids = Ids { next: 1, step: 1 };

/// Runs random scripts on fresh stores, whose jobs get these ids. `QUELL_ORACLE_CASES` sets how many; by
/// default 8, and 256 in a [long run](crate::effort).
pub fn compare<F: Future<Output = Opened>>(open: impl Fn() -> F, ids: Ids) {
    compare_cases(open, ids, (8, 256));
}

/// The same, with another usual number, and 16 times as many in a long run.
pub fn compare_some<F: Future<Output = Opened>>(open: impl Fn() -> F, ids: Ids, usual: u32) {
    let usual = u64::from(usual);
    compare_cases(open, ids, (usual, usual.saturating_mul(16)));
}

fn compare_cases<F: Future<Output = Opened>>(
    open: impl Fn() -> F,
    ids: Ids,
    (usual, long): (u64, u64),
) {
    let cases = effort::cases_by("QUELL_ORACLE_CASES", usual, long);
    // Store authors have a copy of this crate that is not theirs to write to.
    let kept = std::path::Path::new(REGRESSIONS).exists().then_some(REGRESSIONS);
    if let Err(failure) = run(open, ids, u32::try_from(cases).unwrap_or(u32::MAX), kept) {
        panic!("{failure}");
    }
}

/// Runs this number of random scripts on fresh stores, after those whose seeds are in the file
/// `regressions`, and returns how many operations that were.
///
/// # Errors
/// The first script, made as short as it goes, after which the two differ, and where. Its seed is
/// added to `regressions`.
pub fn run<F: Future<Output = Opened>>(
    open: impl Fn() -> F,
    ids: Ids,
    cases: u32,
    regressions: Option<&'static str>,
) -> Result<usize, String> {
    let kept = regressions.map_or(FileFailurePersistence::Off, FileFailurePersistence::Direct);
    let failure_persistence: Option<Box<dyn FailurePersistence>> = Some(Box::new(kept));
    let config = Config { cases, failure_persistence, ..Config::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("there is no runtime: {error}"))?;
    // One that cannot be opened is no script's failure, and its seed is not kept.
    runtime.block_on(async { drop(open().await) });
    let steps = Cell::new(0);
    let ran = TestRunner::new(config).run(&scripts(), |script| {
        steps.set(steps.get() + script.0.len());
        runtime.block_on(async {
            let opened = open().await;
            let mut pair = Pair::new(&opened, ids);
            // Both begin with the same time seen.
            pair.same_rows(&Op::Advance(0)).await?;
            let across_queues = opened.store.capabilities().across_queues;
            let each = script.0.iter().cloned();
            for op in each.map(|op| if across_queues { op } else { op.of_one_queue() }) {
                let op = &op;
                pair.step(op).await?;
                pair.same_rows(op).await?;
                pair.notified_of_earlier_work(op).await?;
            }
            Ok(())
        })
    });
    ran.map_err(|failure| format!("the store and the model differ: {failure}"))?;
    Ok(steps.get())
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

/// Asks both stores the same and compares the answers.
macro_rules! ask {
    ($pair:ident, $op:expr, $method:ident ( $($argument:expr),* )) => {
        both(
            $op,
            $pair.model.$method($($argument),*).await,
            $pair.store.$method($($argument),*).await,
        )?
    };
}

impl Pair {
    fn new(opened: &Opened, ids: Ids) -> Self {
        let model = MemoryStore::new(Rig::START).numbered(ids);
        let store = Arc::clone(&opened.store);
        let (wakeups, knew) = (store.wakeups(), BTreeMap::new());
        let (knew_tick, now, steps) = (None, Rig::START, 0);
        let (leases, exports) = (Vec::new(), Vec::new());
        Pair { ids, model, store, wakeups, knew, knew_tick, now, leases, exports, steps }
    }

    async fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = Some(self.now);
        match op {
            Op::Advance(micros) => self.now = self.now + Duration::from_micros(*micros),
            Op::GoBack(by) => self.now = self.now.before(secs(*by)),
            Op::Enqueue(members) => {
                let batches = || members.iter().map(script::Members::batch).collect();
                // An error of one batch, by its words, which name the job and both payloads.
                let sent = |answers: Vec<quell_core::Result<Vec<Receipt>>>| -> Vec<_> {
                    let sent = |error: quell_core::Error| format!("{:?} {error}", error.kind());
                    answers.into_iter().map(|answer| answer.map_err(sent)).collect()
                };
                let model = self.model.enqueue(now, batches()).await.map(sent);
                both(op, model, self.store.enqueue(now, batches()).await.map(sent))?;
            }
            Op::Claim { limit, queue, both: both_tasks, worker } => {
                let tasks: Vec<TaskName> = if *both_tasks { tasks() } else { vec![task("t")] };
                let queue = queue_number(*queue);
                let worker = worker_name(*worker);
                // Mostly a draw of its own, and sometimes one that another has drawn.
                let draw = Draw::new(self.steps as u64 % 5);
                let asked = Claim { worker, draw, ..Rig::claim_of(*limit) };
                let claim = Claim { queue, tasks: tasks.into(), lease: LEASE, ..asked };
                let claimed = ask!(self, op, claim(now, &claim));
                let jobs = claimed.into_iter().flat_map(|claimed| claimed.jobs);
                self.leases.extend(jobs.map(|job| Lease { job: job.id, token: job.token }));
            }
            Op::Settle(ends) => {
                let settlements = self.settlements(ends);
                ask!(self, op, settle(now, settlements.clone()));
            }
            Op::Renew(count) => {
                let newest = self.leases.len().saturating_sub(*count);
                let leases = self.leases.get(newest..).unwrap_or_default();
                ask!(self, op, renew(now, leases, LEASE));
            }
            Op::BeginEffect { back, name, key: k } => {
                let (lease, name) = (self.lease(*back), effect_name(*name));
                ask!(self, op, begin_effect(now, &lease, &name, &key(&format!("i{k}"))));
            }
            Op::EndEffect { back, name, result } => {
                let (lease, name) = (self.lease(*back), effect_name(*name));
                let result = Payload::from_stored(result.to_string());
                ask!(self, op, end_effect(now, &lease, &name, &result));
            }
            Op::Heartbeat { worker, incarnation, busy, tasks: named } => {
                let beat = heartbeat(&worker_name(*worker), *incarnation);
                let named = named.map(|named| tasks().into_iter().take(named.into()).collect());
                let beat = Heartbeat { busy: *busy, tasks: named, lease: LEASE, ..beat };
                ask!(self, op, heartbeat(now, &beat));
                let drain = WorkerDrain::new(beat.worker.clone(), *busy % 2 == 1);
                ask!(self, op, drain_worker(now, &drain));
            }
            Op::RemoveWorker { worker, incarnation } => {
                ask!(self, op, remove_worker(&worker_name(*worker), *incarnation));
            }
            Op::Reap(limit) => drop(ask!(self, op, reap(now, *limit))),
            Op::Prune => self.prune(op).await?,
            Op::Flush(_)
            | Op::CancelKey(_)
            | Op::Cancel(_)
            | Op::Adjust { .. }
            | Op::SetQueue { .. }
            | Op::DeleteQueue(_)
            | Op::SetAlert { .. }
            | Op::SetTask { .. } => self.operate(op).await?,
            Op::Plan(plan) => self.plan(op, plan).await?,
            Op::Dead(dead) => self.with_dead(op, dead).await?,
        }
        Ok(())
    }

    async fn prune(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let keep = Retention { succeeded: Some(secs(60)), dead: Some(secs(200)) };
        // Stores differ in when they remove keys that no longer have an effect.
        let modelled = self.model.prune(Some(self.now), &keep, 999).await;
        let stored = self.store.prune(Some(self.now), &keep, 999).await;
        both(op, modelled.map(|gone| gone.jobs), stored.map(|gone| gone.jobs))?;
        Ok(())
    }

    /// A lease, counted from the newest; where there are none yet, a forged one.
    fn lease(&self, back: usize) -> Lease {
        let newest = self.leases.len().saturating_sub(1 + back % self.leases.len().max(1));
        let forged = Lease { job: JobId::new(1), token: LeaseToken::new(77) };
        self.leases.get(newest).copied().unwrap_or(forged)
    }

    /// The id of the `number`-th job, from 1.
    fn id(&self, number: u64) -> JobId {
        JobId::new(self.ids.next + number.saturating_sub(1) * self.ids.step)
    }

    /// Each lease once in a call.
    fn settlements(&self, ends: &[(usize, End)]) -> Vec<Settlement> {
        let mut taken = BTreeSet::new();
        let picked = ends.iter().map(|(back, end)| (self.lease(*back), end.outcome()));
        picked
            .filter(|(lease, _)| taken.insert(*lease))
            .map(|(lease, outcome)| Settlement { lease, outcome })
            .collect()
    }

    async fn operate(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let (now, t) = (Some(self.now), task("t"));
        match op {
            Op::Flush(k) => {
                ask!(self, op, flush(now, &t, &key(&format!("k{k}"))));
            }
            Op::CancelKey(k) => {
                ask!(self, op, cancel_key(now, &t, &key(&format!("k{k}"))));
            }
            Op::Adjust { id, adjustment } => {
                ask!(self, op, adjust(now, self.id(*id), *adjustment));
            }
            Op::Cancel(id) => drop(ask!(self, op, cancel(now, self.id(*id), "enough"))),
            Op::SetQueue { queue, settings } => {
                ask!(self, op, set_queue(now, &queue_number(*queue), settings));
            }
            Op::DeleteQueue(queue) => {
                let queue = queue_number(*queue);
                // Only the store may know one that a window passed through within one call.
                let known = self.model.queues().await.unwrap_or_default();
                if known.iter().any(|info| info.name == queue) {
                    ask!(self, op, delete_queue(now, &queue));
                }
            }
            Op::SetTask { other, paused } => {
                let task = task(if *other { "u" } else { "t" });
                let thresholds = other.then_some(Thresholds::DEFAULT);
                let settings = TaskSettings::default().paused(*paused).debounce(thresholds);
                ask!(self, op, set_task(now, &task, &settings));
                let open = TaskSettings::default().debounce(thresholds);
                ask!(self, op, replace_task(now, &task, &open, &open));
                ask!(self, op, task_settings(&tasks()));
            }
            Op::SetAlert { name, version, value } => {
                let name = AlertName::new(format!("a{name}")).expect("a valid name");
                let state = value.map(|value| AlertState { value, ..AlertState::default() });
                ask!(self, op, set_alert(&name, *version, state.as_ref()));
                ask!(self, op, alerts());
            }
            _ => {}
        }
        Ok(())
    }

    async fn plan(&mut self, op: &Op, plan: &PlanOp) -> Result<(), TestCaseError> {
        let now = Some(self.now);
        match plan {
            PlanOp::Set { name, spec, catch_up, call } => {
                let schedule = schedule(*name, *spec, *catch_up, call);
                ask!(self, op, set_schedule(now, &schedule));
            }
            PlanOp::Switch { name, state } => {
                ask!(self, op, set_schedule_state(now, &schedule_name(*name), *state));
            }
            PlanOp::Delete { name } => {
                ask!(self, op, delete_schedule(now, &schedule_name(*name)));
            }
            PlanOp::Tick { limit } => drop(ask!(self, op, tick(now, *limit))),
            PlanOp::Run { name } => {
                ask!(self, op, run_schedule(now, &schedule_name(*name)));
            }
            PlanOp::Backfill { name, from, seconds } => {
                let (from, to) = (moment(*from), moment(*from) + secs(*seconds));
                ask!(self, op, backfill(now, &schedule_name(*name), from, to));
            }
        }
        Ok(())
    }

    /// What waits in the partitions of a queue. A store that says that there may be more says nothing that is not so.
    async fn same_backlog(&self, op: &Op) -> Result<(), TestCaseError> {
        let of = BacklogOf::new(queue_number(0)).partitions(2);
        let now = Some(self.now);
        let (model, store) =
            (self.model.backlog(now, &of).await, self.store.backlog(now, &of).await);
        let is_cut = store.as_ref().is_ok_and(|store| !store.is_whole);
        let (true, Ok(store)) = (is_cut, &store) else {
            return both(op, model, store).map(|_| ());
        };
        let all = self.model.backlog(now, &of.partitions(1_000)).await;
        let all = all.map_err(|error| TestCaseError::fail(format!("{op:?}: {error}")))?;
        for one in &store.partitions {
            let known = all.partitions.iter().find(|other| other.partition == one.partition);
            let is_so = known.is_some_and(|known| {
                one.waiting.jobs() <= known.waiting.jobs() && one.running == known.running
            });
            if !is_so {
                return Err(TestCaseError::fail(format!(
                    "{op:?}\nmodel: {all:#?}\nstore: {store:#?}"
                )));
            }
        }
        Ok(())
    }

    /// Every row, what is said about some of them, and when to look again.
    async fn same_rows(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let all = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
        let jobs = ask!(self, op, jobs(&all)).unwrap_or_default();
        ask!(self, op, counts());
        ask!(self, op, workers(Some(self.now)));
        ask!(self, op, schedules());
        if self.steps.is_multiple_of(3) {
            ask!(self, op, overview(Some(self.now)));
        }
        // A queue that a window only passed through within one call may be listed or not.
        let in_use = |queues: Vec<QueueInfo>| -> Vec<QueueInfo> {
            let set = |queue: &QueueInfo| queue.settings != QueueSettings::default();
            let holds = |queue: &QueueInfo| jobs.iter().any(|job| job.queue == queue.name);
            queues.into_iter().filter(|queue| set(queue) || holds(queue)).collect()
        };
        let queues = (self.model.queues().await, self.store.queues().await);
        both(op, queues.0.map(in_use), queues.1.map(in_use))?;
        ask!(self, op, tasks());
        self.steps += 1;
        // Removed jobs among them, whose results records keep.
        let removed = self.id(1 + self.steps as u64 % 12);
        ask!(self, op, result(removed));
        // Newest and oldest in turn, so that each job is asked about at some step.
        let turn = jobs.get(self.steps % jobs.len().max(1));
        for job in jobs.iter().take(2).chain(turn) {
            let seq = self.steps as u64 % (job.window.triggers + 2);
            let trigger = TriggerId { job: job.id, seq };
            ask!(self, op, explain(Some(self.now), &ExplainTarget::Job(job.id)));
            ask!(self, op, explain(Some(self.now), &ExplainTarget::Trigger(trigger)));
            if let Some(key) = job.key.clone() {
                let task = seq.is_multiple_of(2).then(|| job.task.clone());
                let newest = ExplainTarget::Key { task, key };
                ask!(self, op, explain(Some(self.now), &newest));
            }
        }
        self.same_leads(op).await?;
        self.same_backlog(op).await?;
        self.same_dead(op).await?;
        // Where queues have nothing to do with each other, the other one is empty.
        let queues = if self.store.capabilities().across_queues { 2 } else { 1 };
        for number in 0..queues {
            let queue = queue_number(number);
            ask!(self, op, next_due(Some(self.now), &queue, &tasks()));
        }
        Ok(())
    }

    /// R15: where a dedup and an idempotency key lead, of one task and of any.
    async fn same_leads(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = Some(self.now);
        let task = self.steps.is_multiple_of(2).then(|| tasks().swap_remove(0));
        for name in ["d0", "d1", "batch"] {
            let target = ExplainTarget::DedupKey { task: task.clone(), key: key(name) };
            ask!(self, op, explain(now, &target));
        }
        for number in 0..3 {
            let key = key(&format!("i{number}"));
            let target = ExplainTarget::IdempotencyKey { task: task.clone(), key };
            ask!(self, op, explain(now, &target));
        }
        Ok(())
    }

    /// R34: where a worker, of whichever task it is, must look earlier than it expects, for jobs or
    /// for ticks, it gets a wake-up. Where a timer wakes workers, no call sends one.
    async fn notified_of_earlier_work(&mut self, op: &Op) -> Result<(), TestCaseError> {
        if self.store.capabilities().timed {
            return Ok(());
        }
        let mut sent = Vec::new();
        while let Some(Some(hint)) = self.wakeups.next().now_or_never() {
            sent.push(hint);
        }
        let next = ask!(self, op, tick(Some(self.now), 0)).and_then(|ticked| ticked.next);
        let knew = std::mem::replace(&mut self.knew_tick, next);
        if let Some(next) = next.filter(|next| knew.is_none_or(|knew| *next < knew))
            && !sent.iter().any(|hint| hint.queue.is_none() && hint.due <= next)
        {
            let said = format!("{op:?}\na tick is due at {next}, wake-ups were {sent:?}");
            return Err(TestCaseError::fail(said));
        }
        // R41: a trigger that moves the window in front is no such news.
        let triggers = matches!(op, Op::Enqueue(_) | Op::Plan(_) | Op::Dead(_));
        let model = self.model.queues().await.unwrap_or_default();
        let is_strict = |queue: &QueueName| {
            model.iter().any(|info| info.name == *queue && info.settings.is_strict())
        };
        for number in 0..2 {
            let queue = queue_number(number);
            let is_silent = triggers && is_strict(&queue);
            for task in tasks() {
                let next =
                    self.store.next_due(Some(self.now), &queue, std::slice::from_ref(&task)).await;
                let Ok(next) = next else { continue };
                let knew = self.knew.insert((number, task), next);
                // The passing of time sends no wake-up: a worker that was to look by now does so without one.
                let woke = |knew: NextDue| {
                    matches!(op, Op::Advance(_)) && knew.due.is_some_and(|due| due <= next.now)
                };
                let later = |knew: NextDue| knew.due.is_none_or(|knew| next.due < Some(knew));
                let told_late = knew.is_none_or(|knew| later(knew) && !woke(knew));
                let Some(due) = next.due.filter(|_| told_late && !is_silent) else { continue };
                let tells = |hint: &Wakeup| {
                    hint.queue.as_ref().is_none_or(|sent| *sent == queue) && hint.due <= due
                };
                if !sent.iter().any(tells) {
                    let said = format!("{op:?}\n{queue} is due at {due}, wake-ups were {sent:?}");
                    return Err(TestCaseError::fail(said));
                }
            }
        }
        Ok(())
    }
}

fn worker_name(number: u8) -> WorkerId {
    WorkerId::new(format!("w{number}")).expect("a valid name")
}

fn effect_name(number: u8) -> EffectName {
    EffectName::new(format!("e{number}")).expect("a valid name")
}

fn tasks() -> Vec<TaskName> {
    vec![task("t"), task("u")]
}
