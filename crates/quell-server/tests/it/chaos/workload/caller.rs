//! A caller of a chaos run: it triggers every task of the load until its process is killed or asked
//! to end.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use quell::history::{Event, Sink};
use quell::trigger::{Dedup, NewTrigger, TaskPolicy, Thresholds, TraceContext};
use quell::{Batch, ErrorKind, HoldUntil, Key, Payload, Quell, Receipt, TaskName};
use quell_conformance::effort::cases;

use super::books::Books;
use super::record::{Entry, Record};
use super::tasks::{self, LONG, NARROW, NOTE, ORDER, RARE, RATED, STAMPED};
use super::{raise_stamp, read_stamp};
use quell_server::signal;

/// How many other orders are triggered before one is asked for again.
const LATER: usize = 8;
/// Partitions of the queues with limits.
const PARTITIONS: u8 = 3;

/// One process.
pub(super) struct Caller {
    pub(super) quell: Quell,
    pub(super) sink: Sink,
    pub(super) record: Record,
    pub(super) stamps: PathBuf,
    pub(super) books: Option<Books>,
    /// Whose keys: no two callers that live at once have the same.
    pub(super) slot: u32,
    /// Whose policies.
    pub(super) deploy: u32,
    /// Whether it triggers attempts that take longer than their leases.
    pub(super) long: bool,
    /// Numbers of stamps.
    pub(super) op: u64,
    /// Orders that were answered, to be asked for again once they have run.
    pub(super) answered: VecDeque<u64>,
}

impl Caller {
    /// Triggers until the process is asked to end.
    pub(super) async fn call(mut self) -> anyhow::Result<()> {
        let mut shutdown = std::pin::pin!(signal::shutdown()?);
        loop {
            match fastrand::u8(..100) {
                0..38 => self.stamped().await?,
                38..57 => self.plain(NOTE).await?,
                57 => self.plain(if self.long { LONG } else { NOTE }).await?,
                58..70 => self.order().await?,
                70..80 => self.booked().await,
                80..88 => self.limited(NARROW).await?,
                88..94 => self.limited(RATED).await?,
                _ => self.rare().await?,
            }
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                () = tokio::time::sleep(Duration::from_millis(cases(3, 1))) => {}
            }
        }
    }

    fn key(&self) -> String {
        format!("s{}k{}", self.slot, fastrand::u8(..3))
    }

    fn trigger(
        &self,
        task: &str,
        payload: Payload,
        key: Option<Key>,
    ) -> anyhow::Result<NewTrigger> {
        let policy = tasks::policy(task, self.deploy);
        let task = TaskPolicy::new(TaskName::new(task)?, &policy, Thresholds::DEFAULT)?;
        // Half of them belong to a trace.
        let trace = fastrand::bool().then(|| {
            let parent = format!("00-{:032x}-{:016x}-01", fastrand::u128(1..), fastrand::u64(1..));
            TraceContext::new(&parent, None)
        });
        Ok(NewTrigger { trace: trace.transpose()?, ..task.trigger(payload, key) })
    }

    async fn stamped(&mut self) -> anyhow::Result<()> {
        let (op, key) = (self.op, self.key());
        self.op += 1;
        let value = read_stamp(&self.stamps.join(&key)) + 1;
        // On record first, so that no run reads a stamp that is on no record.
        self.sink.record(&Event::Stamp { op, key: key.clone(), value });
        raise_stamp(&self.stamps, &key, value)?;
        let key = Key::new(key)?;
        let trigger = self.trigger(STAMPED, Payload::encode(&key)?, Some(key))?;
        // Whatever the error is: the trigger counts as accepted only where the store said so.
        if self.quell.enqueue(Batch::one(trigger)).await.is_ok() {
            self.sink.record(&Event::StampOk { op });
        }
        Ok(())
    }

    /// A debounced trigger; its answer is in the history.
    async fn plain(&self, task: &str) -> anyhow::Result<()> {
        let key = Key::new(self.key())?;
        let trigger = self.trigger(task, Payload::encode(&key)?, Some(key))?;
        let _recorded = self.quell.enqueue(Batch::one(trigger)).await;
        Ok(())
    }

    /// A trigger that is folded into its window; some have a dedup key that all callers share.
    async fn rare(&self) -> anyhow::Result<()> {
        let payload = Payload::encode(&[fastrand::u16(..)])?;
        let trigger = self.trigger(RARE, payload, Some(Key::new(self.key())?))?;
        let key = Key::new(format!("d{}", fastrand::u8(..4)))?;
        let until = match fastrand::u8(..4) {
            0 => None,
            1 => Some(HoldUntil::Started),
            2 => Some(HoldUntil::Done),
            _ => Some(HoldUntil::Elapsed(Duration::from_millis(200))),
        };
        let dedup = until.map(|until| Dedup { key, until });
        let trigger = NewTrigger { dedup, ..trigger };
        let _recorded = self.quell.enqueue(Batch::one(trigger)).await;
        Ok(())
    }

    /// Keys that all callers share, more of them than the limits let run at once.
    async fn limited(&self, task: &str) -> anyhow::Result<()> {
        let partition = format!("p{}", fastrand::u8(..PARTITIONS));
        let key = Key::new(format!("{partition}k{}", fastrand::u8(..4)))?;
        let trigger = self.trigger(task, Payload::encode(&key)?, Some(key))?;
        let trigger = NewTrigger { partition: Some(Key::new(partition)?), ..trigger };
        let _recorded = self.quell.enqueue(Batch::one(trigger)).await;
        Ok(())
    }

    /// An order and its trigger in one transaction.
    async fn booked(&self) {
        let Some(books) = &self.books else { return };
        let (order, commit) = (number(), fastrand::u8(..4) > 0);
        if !commit {
            // On record first: whatever becomes of the call, the order must not exist.
            self.record.write(&Entry::RolledBack { order });
        }
        if books.order(&self.quell, order, commit).await.is_ok() && commit {
            self.record.write(&Entry::Committed { order });
        }
    }

    /// Triggers an order until it is answered, also the one that a caller of this slot left
    /// unanswered when it was killed. Some are asked for again at once, some later, some with
    /// another payload.
    async fn order(&mut self) -> anyhow::Result<()> {
        let open = self.stamps.join(format!("order-{}", self.slot));
        let left = std::fs::read_to_string(&open).ok().and_then(|text| text.parse().ok());
        let order = left.unwrap_or_else(number);
        if left.is_none() {
            std::fs::write(&open, order.to_string()).context("an order")?;
        }
        if !self.ask(order, &format!(r#"{{"order":{order},"cents":7}}"#)).await? {
            return Ok(());
        }
        match std::fs::remove_file(&open) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)?,
            Ok(()) | Err(_) => {}
        }
        self.answered.push_back(order);
        let again = match fastrand::u8(..4) {
            0 => order,
            1 => return self.conflict(order).await,
            _ if self.answered.len() < LATER => return Ok(()),
            _ => self.answered.pop_front().unwrap_or(order),
        };
        // The same JSON value.
        self.ask(again, &format!(r#"{{ "cents": 7.0, "order": {again} }}"#)).await?;
        Ok(())
    }

    /// The key with another payload.
    async fn conflict(&self, order: u64) -> anyhow::Result<()> {
        let trigger = self.order_trigger(order, &format!(r#"{{"order":{order},"cents":8}}"#))?;
        let entry = match self.quell.enqueue(Batch::one(trigger)).await {
            Ok(_) => Entry::Taken { order },
            Err(error) if error.kind() == ErrorKind::IdempotencyConflict => {
                Entry::Conflict { order }
            }
            // The store was out of reach.
            Err(_) => return Ok(()),
        };
        self.record.write(&entry);
        Ok(())
    }

    fn order_trigger(&self, order: u64, payload: &str) -> anyhow::Result<NewTrigger> {
        let policy = tasks::policy(ORDER, self.deploy);
        let task = TaskPolicy::new(TaskName::new(ORDER)?, &policy, Thresholds::DEFAULT)?;
        let mut trigger = task.trigger(Payload::from_text(payload)?, None);
        trigger.idempotency = Some(task.idempotency(Key::new(order.to_string())?));
        trigger.priority = fastrand::i16(0..3);
        Ok(trigger)
    }

    /// Whether it was answered.
    async fn ask(&self, order: u64, payload: &str) -> anyhow::Result<bool> {
        let trigger = self.order_trigger(order, payload)?;
        self.record.write(&Entry::Ask { order });
        // Some calls are dropped before their answer: their outcome is unknown on every store.
        let patience = match fastrand::u8(..6) {
            0 => Duration::from_micros(fastrand::u64(..3_000)),
            _ => Duration::MAX,
        };
        let call = self.quell.enqueue(Batch::one(trigger));
        let Ok(answer) = tokio::time::timeout(patience, call).await else {
            self.record.write(&Entry::Unanswered { order, kind: "dropped".to_owned() });
            return Ok(false);
        };
        let entry = match answer.as_deref() {
            Ok([Receipt::Existing { job, output, .. }]) => {
                let output = output.as_ref().map(|output| output.as_str().to_owned());
                Entry::Answer { order, job: job.get(), existing: true, output }
            }
            Ok([receipt]) => {
                let job = receipt.job().map_or(0, quell::JobId::get);
                Entry::Answer { order, job, existing: false, output: None }
            }
            Ok(receipts) => anyhow::bail!("one trigger was answered by {receipts:?}"),
            Err(error) => Entry::Unanswered { order, kind: format!("{:?}", error.kind()) },
        };
        self.record.write(&entry);
        Ok(matches!(entry, Entry::Answer { .. }))
    }
}

/// No other order has it.
fn number() -> u64 {
    fastrand::u64(1..1 << 50)
}
