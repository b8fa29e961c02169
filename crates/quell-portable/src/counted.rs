//! How many jobs a partition has, kept beside them.
//!
//! A sum that each commit changes would make all of them conflict. So a commit that moves jobs writes a
//! row of its own, by how many they became more or fewer, in its batch; now and then a process adds some
//! of these rows to the sums of their queues and removes them, in one batch. Joins move no job and
//! write no such row.
//!
//! | row | what it holds |
//! | --- | --- |
//! | `n:a` | a number that differs after each fold |
//! | `n:d:…` | what one commit changed |
//! | `n:s:QUEUE` | the sums of a queue |
//! | `n:x:…` | one of these that could not be decoded: as long as there is one, all entries are counted |
//!
//! Invariant: the sums and the rows of commits together are the counts at each moment. A reader takes
//! several moments, so it begins again where a fold came between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quell_core::{Error, ErrorKind, JobState, QueueName, Result, TaskName, Timestamp};
use quell_engine::{Tally, add_to};
use tracing::{debug, error};

use crate::long::{PartCounts, whole};
use crate::names::text;
use crate::partition::{Partition, from_json, to_json};
use crate::table::{self, Change, Condition, Range, Row, Table};

/// The row that each fold changes.
const FOLDS: &str = "n:a";
/// What the rows of commits begin with.
const COMMITS: &str = "n:d:";
/// What the sums begin with.
const SUMS: &str = "n:s:";
/// What the names of rows begin with that could not be decoded; the row's own name follows.
const ASIDE: &str = "n:x:";
/// After how many commits of its own a process folds.
const FOLD_AFTER: u64 = 64;
/// Rows of commits that one fold adds at most, where a table takes more changes in a batch.
const MOST_FOLDED: usize = 1_000;
/// Rows of a batch that are left to the row of folds and to parts of long sums.
const LEFT: usize = 10;
/// Folds beside one commit.
const FOLDS_BESIDE: usize = 4;
/// How long they may take.
const LONGEST: Duration = Duration::from_secs(1);
/// Folds of one call of upkeep.
pub(crate) const FOLDS_OF_UPKEEP: usize = 200;
/// How often the counts are read that folds change meanwhile.
const TRIES: u32 = 10;
/// Between two such reads, at most, after the first.
const PAUSE: Duration = Duration::from_millis(20);
/// Rows that are read at a time.
const PAGE: usize = 1_000;

/// A line of a row.
type Line = (QueueName, TaskName, JobState, i64);

/// How many commits of this process have left a row.
#[derive(Debug, Default)]
pub(crate) struct CommitsCounted(AtomicU64);

impl CommitsCounted {
    /// Counts one; says whether it is time to fold.
    fn next(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) % FOLD_AFTER == FOLD_AFTER - 1
    }
}

/// The row of a commit; none where no job came, went or moved.
pub(crate) fn change_of(counts: &Tally, now: Timestamp) -> Result<Option<Change>> {
    if counts.is_empty() {
        return Ok(None);
    }
    // The oldest first, so that folds take those first.
    let (time, random) = (now.as_micros().max(0), fastrand::u64(..));
    let row = format!("{COMMITS}{time:016x}{random:016x}");
    Ok(Some(Change {
        row,
        condition: Condition::Any,
        value: Some(to_json(&lines(counts))?.into()),
    }))
}

fn lines(counts: &Tally) -> Vec<Line> {
    let line = |((queue, task, state), by): (&(QueueName, TaskName, JobState), &i64)| {
        (queue.clone(), task.clone(), *state, *by)
    };
    counts.iter().map(line).collect()
}

/// Adds what a row holds.
fn add(tally: &mut Tally, row: &Row) -> Result<()> {
    for (queue, task, state, by) in from_json::<Vec<Line>>(row)? {
        add_to(tally, (queue, task, state), by);
    }
    Ok(())
}

/// What a fold reads of a queue.
#[derive(Default)]
struct Sums {
    row: Option<Row>,
    tally: Tally,
}

/// The result of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Folded {
    /// Nothing is left to fold, but for what came meanwhile.
    All,
    /// There may be more.
    Some,
    /// Another process folded, too, and this one did nothing.
    Nothing,
}

/// What a fold changes.
#[derive(Default)]
struct Fold {
    changes: Vec<Change>,
    parts: PartCounts,
}

impl Fold {
    /// Removes a row that was read.
    fn remove(&mut self, row: &Row) {
        let condition = Condition::Version(row.version.clone());
        self.changes.push(Change { row: row.name.clone(), condition, value: None });
    }

    /// Keeps a row that cannot be decoded under another name, so that it holds up no other.
    fn set_aside(&mut self, row: &Row, reason: &Error) {
        error!(row = row.name, %reason, "counts of jobs cannot be read, so all entries are counted");
        let name = format!("{ASIDE}{}", row.name);
        let value = Some(row.value.clone());
        self.changes.push(Change { row: name, condition: Condition::Any, value });
    }
}

impl<T: Table> Partition<T> {
    /// The counts at one moment.
    pub(crate) async fn kept_counts(&self) -> Result<Tally> {
        for tries in 0..TRIES {
            let folds = self.row(FOLDS).await?;
            let (mut tally, mut range) = (Tally::new(), Range::of("n:"));
            loop {
                let (page, _) = self.whole_page(range.clone(), PAGE).await?;
                for row in page.rows.iter().filter(|row| row.name != FOLDS) {
                    if row.name.starts_with(ASIDE) {
                        let message = format!("the row {:?} could not be read", row.name);
                        return Err(Error::new(ErrorKind::Corrupt, message));
                    }
                    add(&mut tally, row)?;
                }
                match page.next {
                    Some(next) => range.from = next,
                    None => break,
                }
            }
            let version = |row: &Option<Row>| row.as_ref().map(|row| row.version.clone());
            if version(&folds) == version(&self.row(FOLDS).await?) {
                return Ok(tally);
            }
            tokio::time::sleep(PAUSE.saturating_mul(tries).mul_f64(fastrand::f64())).await;
        }
        let message = "cannot count jobs: other processes changed the counts at every try";
        Err(Error::new(ErrorKind::Contention, message))
    }

    /// Folds, after some commits that left rows, within a short time: the commit beside it waits for
    /// that. Nothing depends on it, so where it fails the next one tries again.
    pub(crate) async fn fold_some(&self, has_counts: bool) {
        if has_counts && self.commits.next() {
            match tokio::time::timeout(LONGEST, self.fold_all(FOLDS_BESIDE)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "cannot add up counts"),
                Err(_) => debug!("adding up counts timed out"),
            }
        }
    }

    /// Folds until nothing is left, so often at most.
    pub(crate) async fn fold_all(&self, most: usize) -> Result<()> {
        for _ in 0..most {
            if self.fold().await? == Folded::All {
                break;
            }
        }
        Ok(())
    }

    /// Adds some rows of commits to the sums.
    async fn fold(&self) -> Result<Folded> {
        let folds = self.row(FOLDS).await?;
        let most = self.table().bounds().changes.saturating_sub(LEFT).min(MOST_FOLDED);
        let (page, parts) = self.whole_page(Range::of(COMMITS), most).await?;
        let mut fold = Fold { parts, ..Fold::default() };
        let (mut changed, mut taken) = (Tally::new(), 0_usize);
        let mut queues = BTreeSet::new();
        for row in &page.rows {
            let mut one = Tally::new();
            let read = add(&mut one, row);
            let of_row = one.keys().map(|(queue, _, _)| queue);
            let more: BTreeSet<QueueName> =
                of_row.filter(|queue| !queues.contains(*queue)).cloned().collect();
            // One row for each queue, and perhaps another one where its sums cannot be read.
            let of_queues = queues.len().saturating_add(more.len()).saturating_mul(2);
            let needed = fold.changes.len().saturating_add(of_queues);
            if taken > 0 && needed.saturating_add(2) > most {
                break;
            }
            taken = taken.saturating_add(1);
            fold.remove(row);
            if let Err(error) = read {
                fold.set_aside(row, &error);
                continue;
            }
            queues.extend(more);
            one.into_iter().for_each(|(lane, by)| add_to(&mut changed, lane, by));
        }
        if taken == 0 {
            return Ok(Folded::All);
        }
        let has_more = page.next.is_some() || taken < page.rows.len();
        let mut sums = self.sums(&queues, &mut fold).await?;
        for (lane, by) in changed {
            let of_queue = sums.entry(lane.0.clone()).or_default();
            add_to(&mut of_queue.tally, lane, by);
        }
        for (queue, Sums { row, tally }) in sums {
            let value = match tally.is_empty() {
                true => None,
                false => Some(to_json(&lines(&tally))?.into()),
            };
            if value.is_some() || row.is_some() {
                let (row, condition) = (of_queue(&queue), Condition::unchanged(row));
                fold.changes.push(Change { row, condition, value });
            }
        }
        fold.changes.push(Change {
            row: FOLDS.to_owned(),
            condition: Condition::unchanged(folds),
            value: Some(format!("{:016x}", fastrand::u64(..)).into_bytes().into()),
        });
        let batch = self.in_parts(fold.changes, &fold.parts)?;
        Ok(match self.table().commit(self.name(), batch).await? {
            table::Committed::Conflict => Folded::Nothing,
            table::Committed::Done(_) if has_more => Folded::Some,
            table::Committed::Done(_) => Folded::All,
        })
    }

    /// The sums of queues; those that cannot be read begin from zero.
    async fn sums(
        &self,
        queues: &BTreeSet<QueueName>,
        fold: &mut Fold,
    ) -> Result<BTreeMap<QueueName, Sums>> {
        let names: Vec<String> = queues.iter().map(of_queue).collect();
        let rows = self.table().get(self.name(), &names).await?;
        let (rows, parts) = whole(self.table(), self.name(), rows).await?;
        fold.parts.extend(parts);
        let mut sums = BTreeMap::new();
        for (queue, row) in queues.iter().zip(rows) {
            let mut tally = Tally::new();
            let read = row.iter().try_for_each(|row| add(&mut tally, row));
            if let (Err(error), Some(row)) = (read, &row) {
                fold.set_aside(row, &error);
                tally.clear();
            }
            sums.insert(queue.clone(), Sums { row, tally });
        }
        Ok(sums)
    }
}

fn of_queue(queue: &QueueName) -> String {
    format!("{SUMS}{}", text(queue.as_str()))
}
