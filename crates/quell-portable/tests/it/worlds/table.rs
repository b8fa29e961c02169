//! A table whose calls take time, are refused or lose their answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use quell_core::history::{Event, Sink};
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::{Bounds, Change, Committed, MemoryTable, Page, Range, Row, Table};
use tokio::time::{Instant, sleep};

/// How long a client waits for an answer that is lost.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What may go wrong in a world, drawn from its seed: most worlds have a few dangers, some have none.
#[derive(Debug)]
pub(super) struct Dangers {
    /// The longest delay of a call.
    slow: Duration,
    /// Of a thousand calls, how many begin a stretch in which the service refuses all.
    throttles: u16,
    /// Of a hundred calls, how many fail before anything is done.
    fails: u8,
    /// Of a hundred batches, how many are made and lose their answer.
    loses: u8,
    /// Whether processes die.
    pub(super) kills: bool,
    healed: AtomicBool,
    busy_until: Mutex<Option<Instant>>,
    /// Batches with a write conflict with another process's.
    pub(super) conflicts: AtomicU64,
}

impl Dangers {
    pub(super) fn draw(random: &mut Rng) -> Self {
        let mut one_of = |most: u16| if random.bool() { random.u16(1..=most) } else { 0 };
        Dangers {
            slow: Duration::from_millis(u64::from(one_of(20)) + 1),
            throttles: one_of(4),
            fails: u8::try_from(one_of(5)).unwrap(),
            loses: u8::try_from(one_of(8)).unwrap(),
            kills: one_of(1) == 1,
            healed: AtomicBool::new(false),
            busy_until: Mutex::default(),
            conflicts: AtomicU64::new(0),
        }
    }

    /// Whether commits may be missing from the record.
    pub(super) fn lose_records(&self) -> bool {
        self.loses > 0 || self.kills
    }

    pub(super) fn heal(&self) {
        self.healed.store(true, SeqCst);
    }

    pub(super) fn is_healed(&self) -> bool {
        self.healed.load(SeqCst)
    }
}

/// One process's connection to the table of its world.
#[derive(Clone, Debug)]
pub(super) struct Troubled {
    pub(super) table: MemoryTable,
    pub(super) dangers: Arc<Dangers>,
    pub(super) random: Arc<Mutex<Rng>>,
    pub(super) began: Instant,
    pub(super) start: Timestamp,
    pub(super) history: Sink,
}

impl Troubled {
    fn draw<R>(&self, draw: impl FnOnce(&mut Rng) -> R) -> R {
        draw(&mut self.random.lock().unwrap())
    }

    fn is(&self, percent: u8) -> bool {
        !self.dangers.is_healed() && self.draw(|random| random.u8(0..100) < percent)
    }

    /// Whether the service refuses calls at this moment: now and then it does, for up to a minute.
    fn is_busy(&self) -> bool {
        if self.dangers.is_healed() {
            return false;
        }
        let begins = self.draw(|random| random.u16(0..1_000)) < self.dangers.throttles;
        let mut until = self.dangers.busy_until.lock().unwrap();
        if begins && until.is_none_or(|until| until < Instant::now()) {
            *until =
                Some(Instant::now() + self.draw(|random| Duration::from_secs(random.u64(1..=60))));
        }
        until.is_some_and(|until| Instant::now() < until)
    }

    /// The store records what it knows to be committed: what this batch was is not on record. Whether a
    /// worker or an operator called, the table does not know.
    fn note_unanswered(&self) {
        let since = self.start + self.began.elapsed();
        for call in ["claim", "cancel"] {
            let (t, call) = (since + TIMEOUT, call.to_owned());
            self.history.record(&Event::Unanswered { t, since, call });
        }
    }

    /// The way to the service, and its refusal. All of a call's time passes before anything is done, so
    /// that processes record their commits in the order in which they made them.
    async fn arrive(&self) -> Result<()> {
        sleep(self.draw(|random| self.dangers.slow.mul_f64(random.f64()))).await;
        if self.is_busy() {
            sleep(Duration::from_secs(1)).await;
            return Err(Error::new(ErrorKind::Unavailable, "the service is busy"));
        }
        if self.is(self.dangers.fails) {
            return Err(Error::new(ErrorKind::Unavailable, "the request was lost"));
        }
        Ok(())
    }
}

#[async_trait]
impl Table for Troubled {
    fn bounds(&self) -> Bounds {
        self.table.bounds()
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.start + self.began.elapsed())
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        self.arrive().await?;
        self.table.get(partition, rows).await
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        self.arrive().await?;
        self.table.range(partition, range, limit).await
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        self.arrive().await?;
        let committed = self.table.commit(partition, changes).await?;
        self.dangers.conflicts.fetch_add(u64::from(committed == Committed::Conflict), SeqCst);
        if self.is(self.dangers.loses) {
            self.note_unanswered();
            sleep(TIMEOUT).await;
            return Err(Error::new(ErrorKind::UnknownOutcome, "the answer was lost"));
        }
        Ok(committed)
    }
}
