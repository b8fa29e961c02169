//! A table between whose calls another step runs: one test shows one race, each time the same.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use quell_conformance::rig::{Rig, plain, queue, task};
use quell_core::{
    Batch, Claim, ClaimedJob, Error, ErrorKind, JobId, NewTrigger, Receipt, Result, Steps,
    Timestamp, WorkerId,
};
use quell_engine::Engine;
use quell_portable::{Bounds, Change, Committed, MemoryTable, Page, Partition, Range, Row, Table};

/// A call of a table.
#[derive(Debug)]
pub(crate) enum Call<'c> {
    Get(&'c [String]),
    Range(&'c Range),
    Commit(&'c [Change]),
}

impl Call<'_> {
    /// Whether it commits a step, and does not take ids.
    pub(crate) fn commits(&self) -> bool {
        matches!(self, Call::Commit(changes) if changes.iter().all(|change| change.row != "i:ids"))
    }

    /// Whether it reads a row whose name begins so.
    pub(crate) fn gets(&self, prefix: &str) -> bool {
        matches!(self, Call::Get(rows) if rows.iter().any(|row| row.starts_with(prefix)))
    }

    /// Whether it reads an index, or other rows whose names begin so.
    pub(crate) fn reads(&self, prefix: &str) -> bool {
        matches!(self, Call::Range(range) if range.from.starts_with(prefix))
    }
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type When = Box<dyn Fn(&Call<'_>) -> bool + Send>;

/// A table in memory; before one call, or after it, something else happens.
#[derive(Clone)]
pub(crate) struct Between {
    table: MemoryTable,
    planned: Arc<Mutex<Option<(When, Work)>>>,
    fault: Arc<Mutex<Option<(Fault, &'static str)>>>,
}

/// How a commit fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The table refuses it and writes nothing.
    Refused,
    /// The table writes it, and its answer is lost.
    AnswerLost,
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Between")
    }
}

impl Between {
    /// Runs `work` before the first call for which `when` returns true.
    pub(crate) fn before(
        &self,
        when: impl Fn(&Call<'_>) -> bool + Send + 'static,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        *self.planned.lock().unwrap() = Some((Box::new(when), Box::pin(work)));
    }

    /// Lets the next commit fail that changes a row whose name begins so.
    pub(crate) fn fail(&self, fault: Fault, prefix: &'static str) {
        *self.fault.lock().unwrap() = Some((fault, prefix));
    }

    /// Whether a commit is still to fail.
    pub(crate) fn fails(&self) -> bool {
        self.fault.lock().unwrap().is_some()
    }

    fn fault_of(&self, changes: &[Change]) -> Option<Fault> {
        let mut fault = self.fault.lock().unwrap();
        let is_hit = |(_, prefix): &(Fault, &'static str)| {
            changes.iter().any(|change| change.row.starts_with(prefix))
        };
        fault.take_if(|fault| is_hit(fault)).map(|(fault, _)| fault)
    }

    async fn come(&self, call: Call<'_>) {
        let work = {
            let mut planned = self.planned.lock().unwrap();
            match planned.take() {
                Some((when, work)) if when(&call) => Some(work),
                other => {
                    *planned = other;
                    None
                }
            }
        };
        if let Some(work) = work {
            work.await;
        }
    }

    /// Moves the table's clock.
    pub(crate) fn advance(&self, now: Timestamp) {
        self.table.advance(now);
    }

    /// Whether what was planned has happened.
    pub(crate) fn has_come(&self) -> bool {
        self.planned.lock().unwrap().is_none()
    }
}

#[async_trait]
impl Table for Between {
    fn bounds(&self) -> Bounds {
        self.table.bounds()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.table.now().await
    }

    fn latest(&self) -> Option<Timestamp> {
        self.table.latest()
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        self.come(Call::Get(rows)).await;
        self.table.get(partition, rows).await
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        self.come(Call::Range(range)).await;
        self.table.range(partition, range, limit).await
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        self.come(Call::Commit(&changes)).await;
        match self.fault_of(&changes) {
            None => self.table.commit(partition, changes).await,
            Some(Fault::Refused) => Err(Error::new(ErrorKind::Unavailable, "the table is away")),
            Some(Fault::AnswerLost) => {
                let committed = self.table.commit(partition, changes).await?;
                assert!(matches!(committed, Committed::Done(_)), "{committed:?}");
                Err(Error::new(ErrorKind::UnknownOutcome, "the answer was lost"))
            }
        }
    }
}

pub(crate) type Store = Engine<Partition<Between>>;
pub(crate) type Other = Arc<Engine<Partition<MemoryTable>>>;

/// Two processes on one partition: what the first does can be interrupted by the second.
pub(crate) struct Two {
    pub(crate) first: Store,
    pub(crate) between: Between,
    pub(crate) second: Other,
    pub(crate) table: MemoryTable,
}

pub(crate) fn two() -> Two {
    two_with(MemoryTable::new(Rig::START))
}

pub(crate) fn two_with(table: MemoryTable) -> Two {
    let between = Between { table: table.clone(), planned: Arc::default(), fault: Arc::default() };
    let first = Engine::new(Partition::new(between.clone(), "p"));
    let second = Arc::new(Engine::new(Partition::new(table.clone(), "p")));
    Two { first, between, second, table }
}

/// Second `second` of the test.
pub(crate) fn at(second: u64) -> Option<Timestamp> {
    Some(Rig::START + Duration::from_secs(second))
}

/// A claim of at most `limit` jobs of task `t`, under leases of 30 s.
pub(crate) fn claim(worker: &str, limit: usize) -> Claim {
    Claim {
        queue: queue(),
        tasks: [task("t")].into(),
        worker: WorkerId::new(worker).unwrap(),
        limit,
        lease: Rig::LEASE,
        draw: Rig::DRAW,
    }
}

pub(crate) async fn enqueue(store: &impl Steps, second: u64, trigger: NewTrigger) -> Receipt {
    let mut all = store.enqueue(at(second), vec![Batch::one(trigger)]).await.unwrap();
    all.pop().unwrap().unwrap().pop().unwrap()
}

/// Triggers `count` jobs without a key at second 0.
pub(crate) async fn plains(store: &impl Steps, count: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(enqueue(store, 0, plain("1")).await.job().unwrap());
    }
    ids
}

pub(crate) async fn start(store: &impl Steps, second: u64, limit: usize) -> Vec<ClaimedJob> {
    store.claim(at(second), &claim("w", limit)).await.unwrap().jobs
}

/// The names of the rows that begin so.
pub(crate) async fn names(table: &MemoryTable, prefix: &str) -> Vec<String> {
    let page = table.range("p", &Range::of(prefix), 10_000).await.unwrap();
    page.rows.into_iter().map(|row| row.name).collect()
}

/// Replaces what the row of a job holds.
pub(crate) async fn damage(table: &MemoryTable, id: JobId, change: impl Fn(&str) -> String) {
    let name = format!("j:{:016x}", !id.get());
    let row = table.get("p", std::slice::from_ref(&name)).await.unwrap().pop().unwrap().unwrap();
    let value = change(std::str::from_utf8(&row.value).unwrap()).into_bytes();
    assert_ne!(*row.value, *value, "nothing was damaged");
    let condition = quell_portable::Condition::Any;
    let change = Change { row: name, condition, value: Some(value.into()) };
    table.commit("p", vec![change]).await.unwrap();
}
