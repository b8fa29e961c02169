//! Accepting triggers: idempotency first, then dedup, then debounce (R3, R5–R9, R13, R14, R16, R17,
//! R19).
//!
//! A store that keeps rows shows them as [`Rows`] and calls [`accept`] inside its own transaction;
//! the decisions are made here, once for all stores.

use std::collections::BTreeMap;

use crate::dedup::{Dedup, Hold};
use crate::edge::{Edge, KeyMemory, Landing, land, remember_trigger};
use crate::idempotency::{Conflict, Fingerprint, Record};
use crate::job::Shape;
use crate::trigger::Keyed;
use crate::window::{Debounce, Thresholds, Window};
use crate::{
    Batch, Error, Job, JobId, JobResult, Key, NewTrigger, Payload, QueueName, Receipt, Result,
    TaskName, Timestamp, TriggerId, When,
};

/// The rows that accepting triggers reads and writes, within one atomic step.
pub trait Rows {
    /// The store's time of the step.
    fn now(&self) -> Timestamp;
    /// An id larger than every one before it.
    fn next_id(&mut self) -> JobId;
    /// The thresholds that a queue's settings name (R14).
    fn thresholds(&self, queue: &QueueName) -> Option<Thresholds>;
    /// The open window of a key.
    fn open_window(&self, task: &TaskName, key: &Key) -> Option<JobId>;
    /// Whether this window of the key must wait: an attempt of the key runs, or an older closed
    /// window waits (R10, R11).
    fn key_is_busy(&self, task: &TaskName, key: &Key, window: JobId) -> bool;
    /// A job, where its row is there.
    fn job(&self, id: JobId) -> Option<&Job>;
    /// A new job.
    fn insert(&mut self, job: Job);
    /// Changes a job, where its row is there.
    fn update(&mut self, id: JobId, change: &mut dyn FnMut(&mut Job));
    /// The hold on a dedup key.
    fn hold(&self, task: &TaskName, key: &Key) -> Option<Hold>;
    /// Takes a dedup key.
    fn set_hold(&mut self, task: &TaskName, key: &Key, hold: Hold);
    /// What is kept of an idempotency key.
    fn record(&self, task: &TaskName, key: &Key) -> Option<&Record>;
    /// Takes an idempotency key.
    fn set_record(&mut self, task: &TaskName, key: &Key, record: Record);
    /// What is remembered of a debounce key.
    fn memory(&self, task: &TaskName, key: &Key) -> Option<KeyMemory>;
    /// Remembers something of a debounce key.
    fn set_memory(&mut self, task: &TaskName, key: &Key, memory: KeyMemory);
}

/// Why a batch is refused, before anything is written.
#[derive(Debug)]
pub enum Refused {
    /// A member's idempotency key came with another payload (R19).
    Conflict(Box<Conflict>),
    /// A member asks for what its task does not allow (R40).
    Invalid(Error),
}

impl From<Box<Conflict>> for Refused {
    fn from(conflict: Box<Conflict>) -> Self {
        Refused::Conflict(conflict)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Conflict(conflict) => conflict.into(),
            Refused::Invalid(error) => error,
        }
    }
}

/// Accepts a batch as a whole, or says that it is a duplicate as a whole (R5, R17).
///
/// # Errors
/// Before anything is written: see [`Refused`].
pub fn accept(rows: &mut impl Rows, batch: &Batch) -> Result<Vec<Receipt>, Refused> {
    check_delays(rows, batch).map_err(Refused::Invalid)?;
    accept_promised(rows, batch)
}

/// R7, R40: refuses a delay beyond its trigger's own max, with the thresholds that count here.
fn check_delays(rows: &impl Rows, batch: &Batch) -> Result<()> {
    for (index, trigger) in batch.triggers.iter().enumerate() {
        let Some(keyed) = trigger.keyed.as_ref().filter(|_| trigger.when != When::Now) else {
            continue;
        };
        let debounce = resolve(rows, trigger, &keyed.debounce);
        let several = batch.triggers.len() > 1;
        let place = |e: Error| if several { e.at(format!("triggers[{index}]")) } else { e };
        debounce.check_due(trigger.when, rows.now()).map_err(place)?;
    }
    Ok(())
}

/// As [`accept`], for triggers whose acceptance was promised before: those of a committed
/// transaction (R4) and of schedules (R36). No delay of theirs is refused any more: a window that
/// one opens waits as long as it asks.
///
/// # Errors
/// Before anything is written, where a member's idempotency key came with another payload (R19).
pub fn accept_promised(rows: &mut impl Rows, batch: &Batch) -> Result<Vec<Receipt>, Refused> {
    let fingerprints = fingerprints(rows, batch)?;
    let members = batch.triggers.iter().zip(fingerprints);
    let batch_key = batch.triggers.first().zip(batch.dedup.as_ref());
    if let Some((trigger, dedup)) = batch_key
        && let Some(job) = holder(rows, trigger, dedup)
    {
        let answer = |(member, _)| known(rows, member).unwrap_or(Receipt::Duplicate { job });
        return Ok(members.map(answer).collect());
    }
    let receipts: Vec<Receipt> = members
        .map(|(trigger, fingerprint)| match fingerprint {
            Some(fingerprint) => accept_idempotent(rows, trigger, fingerprint),
            None => accept_trigger(rows, trigger),
        })
        .collect();
    // A member that is a duplicate by its own key names a job that is not the batch's.
    let accepted = receipts.iter().find(|receipt| receipt.trigger().is_some());
    let job = accepted.and_then(Receipt::job);
    if let (Some((trigger, dedup)), Some(job)) = (batch_key, job) {
        take(rows, trigger, dedup, job);
    }
    Ok(receipts)
}

/// The fingerprint of each member with an idempotency key; refuses the batch where one differs from
/// what the key was used for, before or within the batch (R19).
fn fingerprints(
    rows: &impl Rows,
    batch: &Batch,
) -> Result<Vec<Option<Fingerprint>>, Box<Conflict>> {
    let mut within = BTreeMap::new();
    let checked = batch.triggers.iter().enumerate().map(|(index, trigger)| {
        let Some(idempotency) = &trigger.idempotency else { return Ok(None) };
        let (task, key) = (&trigger.task, &idempotency.key);
        let given = Fingerprint::of(&trigger.payload);
        let recorded = recorded(rows, task, key).map(|(r, _)| (r.fingerprint, Some(r.job)));
        let (first, job) = recorded.unwrap_or((*within.entry((task, key)).or_insert(given), None));
        if first != given {
            let index = (batch.triggers.len() > 1).then_some(index);
            let (task, key) = (task.clone(), key.clone());
            return Err(Box::new(Conflict { task, key, first, job, given, index }));
        }
        Ok(Some(given))
    });
    checked.collect()
}

/// The record of a key that is taken, and its result.
fn recorded<'r>(
    rows: &'r impl Rows,
    task: &TaskName,
    key: &Key,
) -> Option<(&'r Record, JobResult)> {
    let record = rows.record(task, key)?;
    Some((record, record.result(rows.now(), rows.job(record.job))?))
}

/// The answer to a trigger whose idempotency key is taken (R19).
fn known(rows: &impl Rows, trigger: &NewTrigger) -> Option<Receipt> {
    let key = &trigger.idempotency.as_ref()?.key;
    recorded(rows, &trigger.task, key).map(|(_, result)| result.receipt())
}

/// Accepts one trigger with an idempotency key that came with no other payload. Where it is a
/// duplicate by its dedup key it takes nothing: no job is its own.
fn accept_idempotent(
    rows: &mut impl Rows,
    trigger: &NewTrigger,
    fingerprint: Fingerprint,
) -> Receipt {
    if let Some(receipt) = known(rows, trigger) {
        return receipt;
    }
    let receipt = accept_trigger(rows, trigger);
    if let (Some(accepted), Some(idempotency)) = (receipt.trigger(), &trigger.idempotency) {
        let record = idempotency.record(fingerprint, accepted.job, rows.now());
        rows.set_record(&trigger.task, &idempotency.key, record);
    }
    receipt
}

/// Accepts one trigger, or says that it is a duplicate; whatever its idempotency key.
pub fn accept_trigger(rows: &mut impl Rows, trigger: &NewTrigger) -> Receipt {
    if let Some(dedup) = &trigger.dedup
        && let Some(job) = holder(rows, trigger, dedup)
    {
        return Receipt::Duplicate { job };
    }
    let receipt = match &trigger.keyed {
        Some(keyed) => accept_keyed(rows, trigger, keyed),
        None => {
            let job = Job::unkeyed(rows.next_id(), trigger, rows.now());
            opened(rows, job)
        }
    };
    if let (Some(dedup), Some(job)) = (&trigger.dedup, receipt.job()) {
        take(rows, trigger, dedup, job);
    }
    receipt
}

fn accept_keyed(rows: &mut impl Rows, trigger: &NewTrigger, keyed: &Keyed) -> Receipt {
    let debounce = resolve(rows, trigger, &keyed.debounce);
    let (task, key) = (&trigger.task, &keyed.key);
    let step = trigger.step(&debounce, rows.now());
    let shape = Shape::of(&trigger.fold, &debounce);
    let (open, closed) = open_or_close(rows, trigger, keyed, &shape);
    let window = open.as_ref().and_then(|folded| rows.job(folded.into)).map(|job| job.window);
    let memory = debounce.edge.remembers().then(|| rows.memory(task, key)).flatten();
    let memory = memory.filter(|memory| goes_on(rows, &debounce, memory, closed));
    let landing = land(&step, &debounce, window.as_ref(), memory.as_ref());
    let (job, receipt) = match (landing, open) {
        (Landing::Joins(window), Some(folded)) => {
            let id = folded.into;
            // R11: a policy that now forbids, or allows, attempts of one key to overlap.
            let changed = rows.job(id).is_some_and(|job| job.shape.overlap != shape.overlap);
            let waits = changed.then(|| !shape.overlap && rows.key_is_busy(task, key, id));
            rows.update(id, &mut |job| {
                job.joined(trigger, &shape, window, &folded);
                job.waits = waits.unwrap_or(job.waits);
            });
            (id, debounced(rows, id, window.triggers))
        }
        (Landing::Opens(window) | Landing::Joins(window), _) => {
            let id = rows.next_id();
            let waits = !debounce.overlap && rows.key_is_busy(task, key, id);
            let job = Job::opened(id, trigger, key, shape, window, waits);
            (job.id, opened(rows, job))
        }
        (Landing::Suppressed(id), _) => {
            // Where the leader's row is gone, the key's memory counts on.
            let mut triggers = memory.map_or(1, |memory| memory.triggers.saturating_add(1));
            rows.update(id, &mut |job| {
                job.suppressed();
                triggers = job.window.triggers;
            });
            (id, debounced(rows, id, triggers))
        }
    };
    let newest = receipt.trigger().unwrap_or(TriggerId { job, seq: 0 });
    if let Some(memory) = remember_trigger(memory.as_ref(), &step, debounce.edge, newest) {
        rows.set_memory(task, key, memory);
    }
    receipt
}

/// The payload of an open window with that of the trigger that joins it.
struct Folded {
    into: JobId,
    payload: Payload,
    elements: u64,
}

/// The open window of the key with the trigger in it; none where it does not fit, and then the
/// window is closed, which is said beside (R10).
fn open_or_close(
    rows: &mut impl Rows,
    trigger: &NewTrigger,
    keyed: &Keyed,
    shape: &Shape,
) -> (Option<Folded>, bool) {
    let Some(id) = rows.open_window(&trigger.task, &keyed.key) else { return (None, false) };
    let folded = rows.job(id).and_then(|job| fold_in(job, trigger, shape));
    let now = rows.now();
    if folded.is_none() {
        rows.update(id, &mut |job| job.close(now));
    }
    let closed = folded.is_none();
    (folded, closed)
}

/// The open window's payload with that of a trigger; none where the window would exceed its bounds
/// (R10).
fn fold_in(job: &Job, trigger: &NewTrigger, shape: &Shape) -> Option<Folded> {
    let fold = &trigger.fold;
    let payload = fold.join(&job.payload, &trigger.payload);
    let elements = if fold.collects() { job.elements().saturating_add(1) } else { 1 };
    let fits = shape.may_hold(&payload, elements);
    fits.then_some(Folded { into: job.id, payload, elements })
}

/// R13: whether the burst that is remembered goes on. One whose count is lost is over, or ids would
/// come again; and what does not fit into the window that leads it begins another, which runs.
fn goes_on(rows: &impl Rows, debounce: &Debounce, memory: &KeyMemory, closed: bool) -> bool {
    let leader = rows.job(memory.leader);
    match debounce.edge {
        Edge::Trailing | Edge::Throttle => true,
        Edge::Both => memory.triggers > 0 || leader.is_some(),
        Edge::Leading => {
            let waits = leader.is_some_and(Job::is_closed_window);
            !closed && !waits && (memory.triggers > 0 || leader.is_some())
        }
    }
}

/// R14: the queue's thresholds replace the process's defaults.
fn resolve(rows: &impl Rows, trigger: &NewTrigger, debounce: &Debounce) -> Debounce {
    let own = debounce.from_default.then(|| rows.thresholds(&trigger.queue)).flatten();
    Debounce { thresholds: own.unwrap_or(debounce.thresholds), ..*debounce }
}

fn opened(rows: &mut impl Rows, job: Job) -> Receipt {
    let (id, trigger, due) = (job.id, job.newest_trigger(), job.window.due_at);
    rows.insert(job);
    Receipt::Accepted { job: id, trigger, due }
}

fn debounced(rows: &impl Rows, job: JobId, triggers: u64) -> Receipt {
    let due = rows.job(job).map_or(rows.now(), |job| job.window.due_at);
    Receipt::Debounced { job, trigger: TriggerId { job, seq: triggers }, triggers, due }
}

/// The job that holds a dedup key now (R16).
fn holder(rows: &impl Rows, trigger: &NewTrigger, dedup: &Dedup) -> Option<JobId> {
    let hold = rows.hold(&trigger.task, &dedup.key)?;
    let job = rows.job(hold.job).map(|job| (job.state, job.starts() > 0));
    hold.holds(rows.now(), job).then_some(hold.job)
}

fn take(rows: &mut impl Rows, trigger: &NewTrigger, dedup: &Dedup, job: JobId) {
    let hold = dedup.hold(job, rows.now());
    rows.set_hold(&trigger.task, &dedup.key, hold);
}

impl Job {
    /// The job of a trigger without a debounce key (R9). A task that collects gets an array (R10).
    #[must_use]
    pub fn unkeyed(id: JobId, trigger: &NewTrigger, now: Timestamp) -> Job {
        let (task, queue) = (trigger.task.clone(), trigger.queue.clone());
        let payload = trigger.fold.open(&trigger.payload);
        let window = Window::unkeyed(now, trigger.when.earliest(now));
        Job {
            partition: trigger.partition.clone(),
            priority: trigger.priority,
            shape: Shape { fold: trigger.fold.alone(), ..Shape::default() },
            traces: trigger.trace.iter().collect(),
            ..Job::new(id, task, queue, payload, window)
        }
    }

    /// The job of a trigger that opens `window`; `waits` where an attempt of its key runs (R11).
    fn opened(
        id: JobId,
        trigger: &NewTrigger,
        key: &Key,
        shape: Shape,
        window: Window,
        waits: bool,
    ) -> Job {
        Job {
            key: Some(key.clone()),
            shape,
            window,
            waits,
            ..Job::unkeyed(id, trigger, window.first_at)
        }
    }

    /// Takes a trigger into the open window, which becomes `window` (R7). A join gives fresh
    /// attempts (R12) and moves the window to the trigger's queue and partition.
    fn joined(&mut self, trigger: &NewTrigger, shape: &Shape, window: Window, folded: &Folded) {
        self.window = window;
        self.payload = folded.payload.clone();
        self.priority = self.priority.max(trigger.priority);
        if self.queue != trigger.queue {
            self.queue = trigger.queue.clone();
        }
        self.partition.clone_from(&trigger.partition);
        if self.shape != *shape {
            self.shape = shape.clone();
        }
        self.count_elements(folded.elements);
        trigger.trace.iter().for_each(|context| self.traces.push(context));
        self.attempt = 0;
    }

    /// Counts a trigger that a leading edge does not run (R13).
    fn suppressed(&mut self) {
        self.window.triggers = self.window.triggers.saturating_add(1);
        self.suppressed = self.suppressed.saturating_add(1);
    }
}

impl Shape {
    /// What a job keeps of the policy that its trigger brought.
    fn of(fold: &crate::Fold, debounce: &Debounce) -> Shape {
        let throttled = debounce.edge == Edge::Throttle;
        Shape {
            fold: fold.clone(),
            edge: debounce.edge,
            period: throttled.then(|| debounce.thresholds.min()),
            overlap: debounce.overlap,
            max_bytes: debounce.max_bytes.filter(|_| fold.reads_payload()),
            closed: false,
            surplus: 0,
        }
    }
}
