//! Dedup keys that the timer keeps, in place of the table.
//!
//! A trigger with a dedup key travels in a message, whose name stands for the key: of messages with one
//! name the timer keeps the first, for its window, so of callers that race one is accepted, and no row of
//! the store is read or written. The process that receives the message enqueues the trigger (`carried`).
//!
//! Invariant: whether a trigger goes this way depends on the option and on its having a dedup key, never
//! on its size, on load or on a failure. Two callers with one key that took different ways would both be
//! accepted. So what a message cannot carry is refused.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::{self, StreamExt};
use quell_core::checkup::Fact;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::schedule::Schedule;
use quell_core::{
    Answer, Batch, Error, ErrorKind, Key, NewTrigger, Now, Operation, Receipt, Result, TaskName,
    Timestamp, When, lacks,
};
use quell_engine::Backend;
use sha2::{Digest, Sha256};

use crate::carried::Carried;
use crate::messages::Inner;
use crate::notice::Notices;
use crate::partition::Partition;
use crate::table::{Change, Committed, Condition, Table};
use crate::timer::Message;

/// The row with the random name of the store.
const STORE: &str = "i:store";
/// What the names of these messages begin with; no others of Quell do.
const PREFIX: &str = "quell-dedup-";
/// Messages that one call sends at a time.
const AT_A_TIME: usize = 32;
/// Rows that a batch changes beside those of its jobs: its record and the places of that.
const BESIDE: usize = 4;

/// How a store lets its timer deduplicate.
#[derive(Debug)]
pub(crate) struct Native {
    store: String,
    window: Duration,
}

impl<T: Table> Partition<T> {
    /// The random name of the store, by which its messages differ from those of another store on the
    /// same timer. A process reads it once, and a store without a name gets one.
    pub(crate) async fn store_name<'n>(&self, notices: &'n Notices) -> Result<&'n str> {
        notices.store.get_or_try_init(|| self.give_store_name()).await.map(String::as_str)
    }

    async fn stored_name(&self) -> Result<Option<String>> {
        let row = self.table().get(self.home(), &[STORE.to_owned()]).await?.pop().flatten();
        let text = row.map(|row| String::from_utf8(row.value.to_vec())).transpose();
        text.map_err(|_| Error::new(ErrorKind::Corrupt, "cannot decode the name of the store"))
    }

    async fn give_store_name(&self) -> Result<String> {
        loop {
            if let Some(name) = self.stored_name().await? {
                return Ok(name);
            }
            let value = Some(format!("{:032x}", fastrand::u128(..)).into_bytes().into());
            let (row, condition) = (STORE.to_owned(), Condition::Absent);
            // A conflict is another process that gives it one.
            let (Committed::Done(_) | Committed::Conflict) =
                self.table().commit(self.home(), vec![Change { row, condition, value }]).await?;
        }
    }
}

impl Native {
    /// Lets the timer of a store deduplicate.
    pub(crate) async fn new<T: Table>(inner: &Inner<T>) -> Result<Native> {
        let Some(window) = inner.notices.timer.duplicate_window() else {
            let help = "its timer remembers no names of messages: take a queue with duplicate \
                        detection and name its window, or leave `native_dedup` out";
            return Err(lacks("native_dedup", help));
        };
        if !inner.below.capabilities().across_queues {
            let help = "a message reaches a partition after its trigger was accepted, and could be refused \
                        there: take one partition for all queues, or leave `native_dedup` out";
            return Err(lacks("native_dedup", help));
        }
        for known in inner.below.schedules().await? {
            refuse_schedule(&known.schedule)?;
        }
        let store = inner.store_name().await?.to_owned();
        Ok(Native { store, window })
    }

    /// Refuses what would take a dedup key in the table.
    pub(crate) fn check(&self, operation: &Operation) -> Result<()> {
        match operation {
            Operation::SetSchedule { schedule } => refuse_schedule(schedule),
            _ => Ok(()),
        }
    }

    /// What operators may want to know.
    pub(crate) fn fact(&self) -> Fact {
        let value = format!("by the timer, for {:?} from acceptance", self.window);
        Fact::plain("dedup keys", value)
    }

    /// Enqueues batches: those with a dedup key by messages, the others in the table.
    pub(crate) async fn enqueue<T: Table>(
        &self,
        inner: &Inner<T>,
        now: Now,
        batches: Vec<Batch>,
    ) -> Result<Answer> {
        let ways: Vec<bool> = batches.iter().map(Batch::asks_dedup).collect();
        let (sent, kept): (Vec<Batch>, Vec<Batch>) =
            batches.into_iter().partition(Batch::asks_dedup);
        if sent.is_empty() {
            return inner.below.call(now, Operation::Enqueue { batches: kept }).await;
        }
        let now = match now {
            Some(now) => now,
            None => inner.below.first().now().await?,
        };
        let sends = stream::iter(sent).map(|batch| self.send(inner, now, batch));
        let sends = sends.buffered(AT_A_TIME).collect::<Vec<_>>();
        let (sent, kept) = join(sends, keep(inner, now, kept)).await;
        let (mut sent, mut kept) = (sent.into_iter(), kept.into_iter());
        let answers = ways.into_iter().filter_map(|is_sent| match is_sent {
            true => sent.next(),
            false => kept.next(),
        });
        Ok(Answer::Enqueue(answers.collect()))
    }

    async fn send<T: Table>(
        &self,
        inner: &Inner<T>,
        now: Timestamp,
        batch: Batch,
    ) -> Result<Vec<Receipt>> {
        let (task, dedup) = key_of(&batch)?;
        self.check_hold(dedup)?;
        check_members(&batch)?;
        check_changes(&batch, inner.below.first())?;
        let name = name(&self.store, task, &dedup.key);
        let count = batch.triggers.len();
        let batch = from_now(batch.without_dedup(), now);
        let timer = &inner.notices.timer;
        let most = timer.most_bytes().saturating_sub(Carried::ROOM);
        let carried = Carried::new(&self.store, &name, now, batch)?;
        let mut body = carried.body()?;
        if body.len() > most {
            // R42: a trace is no reason to refuse a trigger.
            body = carried.without_traces().body()?;
        }
        if body.len() > most {
            let message = format!(
                "a message has {} bytes with the triggers' payloads, the limit is {most}: keep large \
                 payloads elsewhere and trigger with a reference, or leave the dedup key out",
                body.len()
            );
            return Err(Error::invalid("payload", message));
        }
        // It is due now, so it cannot be cancelled.
        timer.schedule(&Message { body, name: Some(name) }, now, now).await?;
        // The timer does not report whether it knew the name already.
        Ok(vec![Receipt::Pending; count])
    }

    /// The timer holds every key for the same time.
    fn check_hold(&self, dedup: &Dedup) -> Result<()> {
        let asked = match dedup.until {
            HoldUntil::Elapsed(hold) if hold == self.window => return Ok(()),
            HoldUntil::Elapsed(hold) => format!("for {hold:?}"),
            HoldUntil::Started => "until its job started".to_owned(),
            HoldUntil::Done => "until its job ended".to_owned(),
            _ => "for another time".to_owned(),
        };
        Err(unable(&format!(
            "the dedup key is to be taken {asked}, the timer's queue remembers it for {:?}: ask for \
             that time, or change the queue's window of duplicate detection",
            self.window
        )))
    }
}

/// Enqueues in the table; an error of all is one of each.
async fn keep<T: Table>(
    inner: &Inner<T>,
    now: Timestamp,
    batches: Vec<Batch>,
) -> Vec<Result<Vec<Receipt>>> {
    let count = batches.len();
    if count == 0 {
        return Vec::new();
    }
    let error = match inner.below.call(Some(now), Operation::Enqueue { batches }).await {
        Ok(Answer::Enqueue(answers)) => return answers,
        Ok(_) => {
            Error::new(ErrorKind::Internal, "the store returned the answer of another operation")
        }
        Err(error) => error,
    };
    let again = || Error::new(error.kind(), error.to_string());
    (0..count).map(|_| Err(again())).collect()
}

/// The one dedup key of a batch, and the task that it belongs to.
fn key_of(batch: &Batch) -> Result<(&TaskName, &Dedup)> {
    let found = match (&batch.dedup, batch.triggers.as_slice()) {
        (Some(dedup), [first, ..]) if batch.triggers.iter().all(|one| one.dedup.is_none()) => {
            Some((&first.task, dedup))
        }
        (None, [NewTrigger { task, dedup: Some(dedup), .. }]) => Some((task, dedup)),
        _ => None,
    };
    found.ok_or_else(|| {
        let keys = batch.triggers.iter().filter(|trigger| trigger.dedup.is_some()).count();
        unable(&format!(
            "a message carries a batch with one dedup key, and {keys} of {} triggers have their own: \
             send each of them by itself, or give the batch a key and its triggers none",
            batch.triggers.len()
        ))
    })
}

fn check_members(batch: &Batch) -> Result<()> {
    let count = batch.triggers.len();
    for (index, trigger) in batch.triggers.iter().enumerate() {
        let other = match trigger {
            NewTrigger { keyed: Some(_), .. } => "a debounce key",
            NewTrigger { idempotency: Some(_), .. } => "an idempotency key",
            _ => continue,
        };
        let error = unable(&format!(
            "{other} beside a dedup key: what it does is decided in the table, which the trigger \
             reaches later; leave one of the two keys out"
        ));
        return Err(if count > 1 { error.at(format!("triggers[{index}]")) } else { error });
    }
    Ok(())
}

/// Refuses what the table would refuse when the message comes.
fn check_changes<T: Table>(batch: &Batch, partition: &Partition<T>) -> Result<()> {
    let tasks: BTreeSet<_> = batch.triggers.iter().map(|trigger| &trigger.task).collect();
    let queues: BTreeSet<_> = batch.triggers.iter().map(|trigger| &trigger.queue).collect();
    let jobs = batch.triggers.len().saturating_mul(2);
    let changes = jobs.saturating_add(tasks.len()).saturating_add(queues.len() + BESIDE);
    let most = partition.most_changes();
    if changes > most {
        let help = format!(
            "a batch of {} triggers changes {changes} rows, this store writes {most} at once: split it",
            batch.triggers.len()
        );
        return Err(lacks("large_batches", &help));
    }
    let longest = partition.most_payload();
    let lengths = batch.triggers.iter().map(|trigger| trigger.payload.as_str().len());
    match lengths.max().filter(|length| *length > longest) {
        None => Ok(()),
        Some(length) => {
            let message = format!(
                "a payload has {length} bytes, this store takes {longest}: keep large payloads \
                 elsewhere and trigger with a reference"
            );
            Err(Error::invalid("payload", message))
        }
    }
}

/// A schedule's ticks fire in the table.
fn refuse_schedule(schedule: &Schedule) -> Result<()> {
    let Some(dedup) = &schedule.trigger.dedup else { return Ok(()) };
    Err(unable(&format!(
        "schedule {} has the dedup key {}, which its ticks would take in the table: set it without",
        schedule.name, dedup.key
    )))
}

/// Delays count from acceptance, not from when the message comes.
fn from_now(mut batch: Batch, now: Timestamp) -> Batch {
    for trigger in &mut batch.triggers {
        if let When::After(delay) = trigger.when {
            trigger.when = When::At(now + delay);
        }
    }
    batch
}

/// What a message is called that stands for a dedup key. Each part comes after its length, so that names
/// of different keys never meet.
fn name(store: &str, task: &TaskName, key: &Key) -> String {
    let mut hash = Sha256::new();
    for part in [store, task.as_str(), key.as_str()] {
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        hash.update(length.to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digits = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{PREFIX}{digits}")
}

/// The refusal of what `native_dedup` cannot keep.
fn unable(help: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("`native_dedup` cannot keep this: {help}"))
}
