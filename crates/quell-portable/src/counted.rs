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
//!
//! Invariant: the sums and the rows of commits together are the counts at each moment. A reader takes
//! several moments, so it starts over where a fold came between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use quell_core::{Error, ErrorKind, JobState, QueueName, Result, TaskName, Timestamp};
use quell_engine::{Tally, add_to};
use tracing::debug;

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
/// After how many commits of its own a process folds.
const FOLD_AFTER: u64 = 64;
/// Rows of commits that one fold adds at most, where a table takes more changes in a batch.
const MOST_FOLDED: usize = 1_000;
/// Rows of a batch that are left to the row of folds and to parts of long sums.
const LEFT: usize = 10;
/// Folds of one call of upkeep.
const MOST_FOLDS: usize = 50;
/// How often the counts are read that folds change meanwhile.
const TRIES: usize = 10;
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

impl<T: Table> Partition<T> {
    /// The counts at one moment.
    pub(crate) async fn kept_counts(&self) -> Result<Tally> {
        for _ in 0..TRIES {
            let folds = self.folds().await?;
            let (mut tally, mut range) = (Tally::new(), Range::of("n:"));
            loop {
                let page = self.page(range.clone(), PAGE).await?;
                let rows = page.rows.into_iter().map(Some).collect();
                let (rows, _) = whole(self.table(), self.name(), rows).await?;
                let counts = rows.iter().flatten().filter(|row| row.name != FOLDS);
                counts.into_iter().try_for_each(|row| add(&mut tally, row))?;
                match page.next {
                    Some(next) => range.from = next,
                    None => break,
                }
            }
            let version = |row: &Option<Row>| row.as_ref().map(|row| row.version.clone());
            if version(&folds) == version(&self.folds().await?) {
                return Ok(tally);
            }
        }
        let message =
            "cannot read how many jobs there are: other processes add them up all the time";
        Err(Error::new(ErrorKind::Contention, message))
    }

    async fn folds(&self) -> Result<Option<Row>> {
        Ok(self.table().get(self.name(), &[FOLDS.to_owned()]).await?.pop().flatten())
    }

    /// Folds, after some commits that left rows. Who commits meanwhile needs nothing of it, so where it
    /// fails the next one tries again.
    pub(crate) async fn fold_some(&self, has_counts: bool) {
        if has_counts
            && self.commits.next()
            && let Err(error) = self.fold().await
        {
            debug!(%error, "cannot add up counts");
        }
    }

    /// Folds what is there, but for what comes meanwhile.
    pub(crate) async fn fold_all(&self) -> Result<()> {
        for _ in 0..MOST_FOLDS {
            if !self.fold().await? {
                break;
            }
        }
        Ok(())
    }

    /// Adds some rows of commits to the sums; says whether there may be more. One of two that fold at a
    /// time does nothing.
    async fn fold(&self) -> Result<bool> {
        let folds = self.folds().await?;
        let bounds = self.table().bounds();
        let most = bounds.changes.saturating_sub(LEFT).min(MOST_FOLDED);
        let page = self.page(Range::of(COMMITS), most).await?;
        let found = page.rows.len();
        let (mut commits, mut changed) = (Vec::new(), Tally::new());
        let mut queues = BTreeSet::new();
        for row in page.rows {
            let mut one = Tally::new();
            add(&mut one, &row)?;
            let mut all = queues.clone();
            all.extend(one.keys().map(|(queue, _, _)| queue.clone()));
            if commits.len().saturating_add(1).saturating_add(all.len()) > most {
                break;
            }
            queues = all;
            one.into_iter().for_each(|(lane, by)| add_to(&mut changed, lane, by));
            commits.push(row);
        }
        if commits.is_empty() {
            return Ok(false);
        }
        let has_more = page.next.is_some() || commits.len() < found;
        let (mut sums, parts) = self.sums(&queues).await?;
        for (lane, by) in changed {
            let of_queue = sums.entry(lane.0.clone()).or_default();
            add_to(&mut of_queue.tally, lane, by);
        }
        let mut rows = vec![Change {
            row: FOLDS.to_owned(),
            condition: unchanged(folds),
            value: Some(format!("{:016x}", fastrand::u64(..)).into_bytes().into()),
        }];
        for commit in commits {
            let condition = Condition::Version(commit.version);
            rows.push(Change { row: commit.name, condition, value: None });
        }
        for (queue, Sums { row, tally }) in sums {
            let value = match tally.is_empty() {
                true => None,
                false => Some(to_json(&lines(&tally))?.into()),
            };
            if value.is_some() || row.is_some() {
                rows.push(Change { row: of_queue(&queue), condition: unchanged(row), value });
            }
        }
        let batch = self.in_parts(rows, &parts)?;
        let done = self.table().commit(self.name(), batch).await?;
        Ok(has_more && matches!(done, table::Committed::Done(_)))
    }

    /// The sums of queues.
    async fn sums(
        &self,
        queues: &BTreeSet<QueueName>,
    ) -> Result<(BTreeMap<QueueName, Sums>, PartCounts)> {
        let names: Vec<String> = queues.iter().map(of_queue).collect();
        let rows = self.table().get(self.name(), &names).await?;
        let (rows, parts) = whole(self.table(), self.name(), rows).await?;
        let mut sums = BTreeMap::new();
        for (queue, row) in queues.iter().zip(rows) {
            let mut tally = Tally::new();
            row.iter().try_for_each(|row| add(&mut tally, row))?;
            sums.insert(queue.clone(), Sums { row, tally });
        }
        Ok((sums, parts))
    }
}

fn of_queue(queue: &QueueName) -> String {
    format!("{SUMS}{}", text(queue.as_str()))
}

/// That a row is as it was read.
fn unchanged(row: Option<Row>) -> Condition {
    row.map_or(Condition::Absent, |row| Condition::Version(row.version))
}
