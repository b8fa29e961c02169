//! How many jobs there are, beside the jobs and from their entries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use async_trait::async_trait;
use futures_util::FutureExt;
use quell_conformance::Rig;
use quell_conformance::rig::{plain, queue, secs, task};
use quell_core::{
    Batch, Claim, Counts, Job, JobState, NewTrigger, QueueName, Result, Retention, Steps, Timestamp,
};
use quell_engine::Engine;
use quell_portable::{
    Bounds, Change, Committed, Condition, MemoryTable, Page, Partition, Range, Row, Table,
};

use crate::between::{at, start, two_with};

type Store<T> = Engine<Partition<T>>;

fn store<T: Table>(table: T) -> Store<T> {
    Engine::new(Partition::new(table, "p"))
}

/// Compares what is kept with what is there.
pub(crate) async fn expect_exact(table: &MemoryTable) {
    let store = store(table.clone());
    assert_eq!(store.counts().await.unwrap(), store.recount().await.unwrap());
}

/// A table whose counts are those of the entries, whatever was done to it.
pub(crate) struct Kept(pub(crate) MemoryTable);

impl Drop for Kept {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let compared = expect_exact(&self.0).now_or_never();
            assert!(compared.is_some(), "a table in memory answers at once");
        }
    }
}

/// The counts of jobs that were listed.
pub(crate) fn counts_of(jobs: &[Job]) -> Vec<Counts> {
    let mut counts: BTreeMap<_, u64> = BTreeMap::new();
    for job in jobs {
        *counts.entry((job.queue.clone(), job.task.clone(), job.state)).or_default() += 1;
    }
    let rows = counts.into_iter();
    rows.map(|((queue, task, state), jobs)| Counts { queue, task, state, jobs }).collect()
}

/// Counts the rows and the calls of a table.
#[derive(Clone, Debug)]
struct Counting {
    table: MemoryTable,
    rows: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl Counting {
    fn new(table: MemoryTable) -> Self {
        Counting { table, rows: Arc::default(), calls: Arc::default() }
    }

    /// How many rows were read in how many calls since this was asked last.
    fn take(&self) -> (usize, usize) {
        (self.rows.swap(0, SeqCst), self.calls.swap(0, SeqCst))
    }

    fn note(&self, rows: usize) {
        self.rows.fetch_add(rows, SeqCst);
        self.calls.fetch_add(1, SeqCst);
    }
}

#[async_trait]
impl Table for Counting {
    fn bounds(&self) -> Bounds {
        self.table.bounds()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.table.now().await
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        self.note(rows.len());
        self.table.get(partition, rows).await
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        let page = self.table.range(partition, range, limit).await?;
        self.note(page.rows.len());
        Ok(page)
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        self.table.commit(partition, changes).await
    }
}

fn bounded() -> MemoryTable {
    let bounds =
        Bounds { changes: 100, batch_bytes: 4 << 20, row_bytes: 960 << 10, name_bytes: 512 };
    MemoryTable::new(Rig::START).with_bounds(bounds)
}

fn in_queue(number: usize) -> NewTrigger {
    NewTrigger { queue: QueueName::new(format!("q{number:03}")).unwrap(), ..plain("1") }
}

/// One commit for each.
async fn enqueue<T: Table>(store: &Store<T>, triggers: impl IntoIterator<Item = NewTrigger>) {
    for trigger in triggers {
        let batch = Batch { triggers: vec![trigger], ..Batch::default() };
        store.enqueue(at(0), vec![batch]).await.unwrap().remove(0).unwrap();
    }
}

/// Upkeep that removes no job.
async fn fold<T: Table>(store: &Store<T>) {
    store.prune(at(0), &Retention { succeeded: None, dead: None }, 100).await.unwrap();
}

async fn rows_named(table: &MemoryTable, prefix: &str) -> usize {
    table.range("p", &Range::of(prefix), usize::MAX).await.unwrap().rows.len()
}

#[tokio::test]
async fn counts_read_no_more_rows_with_more_jobs() {
    let mut read = Vec::new();
    for jobs in [100, 5_000] {
        let table = Counting::new(bounded());
        let store = store(table.clone());
        for _ in 0..jobs / 100 {
            let batch = Batch { triggers: vec![plain("1"); 20], ..Batch::default() };
            store.enqueue(at(0), vec![batch; 5]).await.unwrap();
        }
        fold(&store).await;
        table.take();
        let counts = store.counts().await.unwrap();
        assert_eq!(counts.iter().map(|counts| counts.jobs).sum::<u64>(), jobs);
        read.push(table.take());
        // The row of folds, twice, and that of the queue; a call for each.
        assert_eq!(store.recount().await.unwrap(), counts);
    }
    assert_eq!(read[0], read[1], "rows and calls");
    assert!(read[0].0 <= 4 && read[0].1 <= 3, "{read:?}");
}

/// Without upkeep: commits fold, too, also where each commit is of another queue.
#[tokio::test]
async fn rows_of_commits_do_not_pile_up() {
    for queues in [1, 50] {
        for commits in [300, 1_500] {
            let table = Counting::new(bounded());
            let triggers = (0..commits).map(|number| in_queue(number % queues));
            enqueue(&store(table.clone()), triggers).await;
            let left = rows_named(&table.table, "n:d:").await;
            assert!(left < 2 * 64, "{left} of {commits} in {queues} queues");
            expect_exact(&table.table).await;
        }
    }
}

/// A table without bounds takes more queues in a commit than a fold adds.
#[tokio::test]
async fn a_commit_of_more_queues_than_a_fold_adds_is_folded() {
    let most = usize::MAX;
    let bounds = Bounds { changes: most, batch_bytes: most, row_bytes: most, name_bytes: 512 };
    let table = MemoryTable::new(Rig::START).with_bounds(bounds);
    let store = store(table.clone());
    let batch = Batch { triggers: (0..1_500).map(in_queue).collect(), ..Batch::default() };
    store.enqueue(at(0), vec![batch]).await.unwrap().remove(0).unwrap();
    fold(&store).await;
    assert_eq!(rows_named(&table, "n:d:").await, 0);
    expect_exact(&table).await;
}

/// A fold changes a row of each queue beside those that it removes.
#[tokio::test]
async fn folds_keep_to_the_bounds_of_a_batch() {
    let table = bounded();
    let store = store(table.clone());
    enqueue(&store, (0..250).map(in_queue)).await;
    expect_exact(&table).await;
    fold(&store).await;
    assert_eq!(rows_named(&table, "n:d:").await, 0);
    assert_eq!(rows_named(&table, "n:s:").await, 250);
    expect_exact(&table).await;
}

/// What is zero is not kept.
#[tokio::test]
async fn queues_without_jobs_leave_no_sums() {
    let table = bounded();
    let store = store(table.clone());
    enqueue(&store, (0..30).map(in_queue)).await;
    let retention = Retention { succeeded: Some(secs(1)), dead: Some(secs(1)) };
    store.prune(at(0), &retention, 100).await.unwrap();
    for number in 0..30 {
        let claim = Claim { queue: in_queue(number).queue, ..Rig::claim_of(1) };
        let claimed = store.claim(at(1), &claim).await.unwrap();
        store.cancel(at(1), claimed.jobs[0].id, "no longer needed").await.unwrap();
    }
    store.reap(at(1_000), 100).await.unwrap();
    store.prune(at(2_000), &retention, 100).await.unwrap();
    store.prune(at(2_000), &retention, 100).await.unwrap();
    let counts = store.counts().await.unwrap();
    assert_eq!(counts, store.recount().await.unwrap());
    let left: u64 = counts.iter().map(|counts| counts.jobs).sum();
    assert_eq!(rows_named(&table, "n:s:").await as u64, left, "{counts:?}");
}

/// A reader that has seen the rows of commits, and then the sums with them, would count them twice.
#[tokio::test]
async fn a_fold_between_the_reads_of_a_reader_is_noticed() {
    let two = two_with(MemoryTable::new(Rig::START).with_page_limit(2));
    let (reader, other) = (&two.first, Arc::clone(&two.second));
    enqueue(&*other, vec![plain("1"); 3]).await;
    fold(&other).await;
    enqueue(&*other, vec![plain("1"); 3]).await;
    // The second page.
    two.between.before(|call| call.reads("n:d:"), async move {
        enqueue(&*other, vec![plain("1"); 2]).await;
        fold(&other).await;
    });
    let jobs = |counts: Vec<Counts>| counts.iter().map(|counts| counts.jobs).sum::<u64>();
    assert_eq!(jobs(reader.counts().await.unwrap()), 8);
    assert!(two.between.has_come());
}

async fn damage(table: &MemoryTable, prefix: &str, value: &'static [u8]) {
    let rows = table.range("p", &Range::of(prefix), 1).await.unwrap().rows;
    let (row, condition) = (rows[0].name.clone(), Condition::Any);
    table.commit("p", vec![Change { row, condition, value: Some(value.into()) }]).await.unwrap();
}

/// What cannot be read of the counts is set aside: it holds up no other, and the answer is right.
#[tokio::test]
async fn r25_a_damaged_row_of_counts_hides_no_job_and_stops_no_upkeep() {
    for prefix in ["n:d:", "n:s:"] {
        let table = bounded();
        let store = store(table.clone());
        enqueue(&store, vec![plain("1"); 70]).await;
        damage(&table, prefix, b"rubbish").await;
        let counts = store.counts().await.unwrap();
        let expected =
            Counts { queue: queue(), task: task("t"), state: JobState::Scheduled, jobs: 70 };
        assert_eq!(counts, [expected]);
        enqueue(&store, vec![plain("1"); 70]).await;
        assert_eq!(start(&store, 1, 5).await.len(), 5);
        let retention = Retention { succeeded: Some(secs(1)), dead: None };
        store.prune(at(1_000), &retention, 10).await.unwrap();
        assert_eq!(rows_named(&table, "n:d:").await, 0, "{prefix}");
        assert_eq!(rows_named(&table, "n:x:").await, 1, "{prefix}");
        expect_exact(&table).await;
    }
}

/// As of a build that kept no counts.
#[tokio::test]
async fn counts_that_are_wrong_are_not_shown_as_negative() {
    let table = bounded();
    let store = store(table.clone());
    enqueue(&store, vec![plain("1"); 10]).await;
    fold(&store).await;
    damage(&table, "n:s:", b"[]").await;
    assert_eq!(start(&store, 1, 5).await.len(), 5);
    expect_exact(&table).await;
}
