//! The partition that lists the others of a store: rows that are written once and stay.
//!
//! | row | value |
//! | --- | --- |
//! | `p:s:TAG` | the tag of a partition, and its number |
//! | `p:n` | how many numbers are given |
//! | `p:w:QUEUE` | a queue, and over how many partitions it is spread |
//! | `p:k:TASK` | the queue in which a task has its keys |

use quell_core::{Error, ErrorKind, Result};
use quell_shards::MOST_SHARDS;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::names::text;
use crate::table::{Change, Committed, Condition, Range, Row, Table};

/// The row that counts the numbers that are given.
const NUMBERS: &str = "p:n";
/// How often a row is tried to be written while others write the same.
const TRIES: usize = 50;
/// Rows that are read at a time.
const PAGE: usize = 500;

/// A partition, by the rows that are written once.
#[derive(Clone, Debug)]
pub(crate) struct Listing<T> {
    pub(crate) table: T,
    pub(crate) partition: String,
}

/// What a row is about; its name may have a hash in place of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About<'a> {
    /// A partition, by its tag.
    Tag(&'a str),
    /// The spread of a queue.
    Spread(&'a str),
    /// The queue of a task's keys.
    Keys(&'a str),
    /// The number of the partition itself.
    Number,
}

impl About<'_> {
    pub(crate) fn row(self) -> String {
        match self {
            About::Tag(tag) => format!("p:s:{}", text(tag)),
            About::Spread(queue) => format!("p:w:{}", text(queue)),
            About::Keys(task) => format!("p:k:{}", text(task)),
            About::Number => "i:number".to_owned(),
        }
    }
}

impl<T: Table> Listing<T> {
    /// What a row says; none where it is not there.
    pub(crate) async fn read<V: DeserializeOwned>(&self, about: About<'_>) -> Result<Option<V>> {
        let found = self.table.get(&self.partition, &[about.row()]).await?.pop().flatten();
        found.map(|row| decode(&row)).transpose()
    }

    /// Writes a row, unless it is there; answers with what it says.
    pub(crate) async fn keep<V>(&self, about: About<'_>, value: V) -> Result<V>
    where
        V: Serialize + DeserializeOwned,
    {
        for _ in 0..TRIES {
            if let Some(known) = self.read(about).await? {
                return Ok(known);
            }
            let row = insert(about.row(), &value)?;
            if self.commit(vec![row]).await? {
                return Ok(value);
            }
        }
        Err(contended())
    }

    /// The number of a tag, the next one where it has none; 0 where all are given.
    pub(crate) async fn enter(&self, tag: &str) -> Result<u64> {
        let names = [About::Tag(tag).row(), NUMBERS.to_owned()];
        for _ in 0..TRIES {
            let mut found = self.table.get(&self.partition, &names).await?.into_iter();
            let (known, count) = (found.next().flatten(), found.next().flatten());
            if let Some(known) = known {
                return decode(&known).map(|(_, number): (String, u64)| number);
            }
            let given: u64 = count.as_ref().map_or(Ok(0), decode)?;
            let number = given.saturating_add(1);
            if number >= MOST_SHARDS {
                return Ok(0);
            }
            let condition = Condition::unchanged(count);
            let value = Some(encode(&number)?.into());
            let counts = Change { row: NUMBERS.to_owned(), condition, value };
            let row = insert(About::Tag(tag).row(), &(tag, number))?;
            if self.commit(vec![row, counts]).await? {
                return Ok(number);
            }
        }
        Err(contended())
    }

    /// All tags with their numbers.
    pub(crate) async fn tags(&self) -> Result<Vec<(String, u64)>> {
        self.all("p:s:").await
    }

    /// All queues that were ever given a spread, with it.
    pub(crate) async fn spreads(&self) -> Result<Vec<(String, u32)>> {
        self.all("p:w:").await
    }

    async fn all<V: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<V>> {
        let (mut all, mut range) = (Vec::new(), Range::of(prefix));
        loop {
            let page = self.table.range(&self.partition, &range, PAGE).await?;
            for row in &page.rows {
                all.push(decode(row)?);
            }
            match page.next {
                Some(next) => range.from = next,
                None => return Ok(all),
            }
        }
    }

    /// Whether a batch was made. False also where the outcome is unknown: the caller reads again.
    async fn commit(&self, changes: Vec<Change>) -> Result<bool> {
        match self.table.commit(&self.partition, changes).await {
            Ok(committed) => Ok(matches!(committed, Committed::Done(_))),
            Err(error) if error.is_unknown_outcome() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn insert(row: String, value: &impl Serialize) -> Result<Change> {
    Ok(Change { row, condition: Condition::Absent, value: Some(encode(value)?.into()) })
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| {
        Error::new(ErrorKind::Internal, "cannot encode a row as JSON").with_source(error)
    })
}

fn decode<V: DeserializeOwned>(row: &Row) -> Result<V> {
    serde_json::from_slice(&row.value).map_err(|error| {
        let message = format!("cannot decode row {:?} of the list of partitions", row.name);
        Error::new(ErrorKind::Corrupt, message).with_source(error)
    })
}

fn contended() -> Error {
    let message = "cannot register a partition: other processes changed the list at every try";
    Error::new(ErrorKind::Contention, message)
}
