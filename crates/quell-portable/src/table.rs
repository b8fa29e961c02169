//! A table: partitions of rows in the order of their names, with one atomic conditional batch.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use quell_core::checkup::Fact;
use quell_core::{Error, Result, Timestamp};

/// What a row was when it was read: it differs after each write of the row, also where the row was
/// deleted and inserted again. Only the table knows what it means.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// What the table calls this version.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Version(text.into())
    }

    /// What the table calls it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A row of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name, which no other row of its partition has.
    pub name: String,
    /// What it holds.
    pub value: Arc<[u8]>,
    /// What it was when it was read.
    pub version: Version,
}

/// What must hold of a row for a batch to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is none of this name.
    Absent,
    /// It is there, as it was in this version.
    Version(Version),
    /// It is there, in any version.
    Present,
    /// Nothing: there may be one, or none.
    Any,
}

impl Condition {
    /// That a row is as it was read: in its version, or absent.
    pub(crate) fn unchanged(row: Option<Row>) -> Self {
        row.map_or(Condition::Absent, |row| Condition::Version(row.version))
    }
}

/// A change of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The name of the row.
    pub row: String,
    /// What must hold of it.
    pub condition: Condition,
    /// What it is to hold; none removes the row. Of a row that is removed, the condition is a version
    /// or [`Condition::Present`].
    pub value: Option<Arc<[u8]>>,
}

/// Some names of rows, in their order: byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first name, or what comes before it.
    pub from: String,
    /// What comes after the last name.
    pub to: String,
}

impl Range {
    /// The names that begin with `prefix`.
    #[must_use]
    pub fn of(prefix: &str) -> Self {
        // The greatest character of a name is `~`, which comes before this one.
        Range { from: prefix.to_owned(), to: format!("{prefix}\u{7f}") }
    }
}

/// Rows of a range, from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their names.
    pub rows: Vec<Row>,
    /// Where to go on, if there may be more rows in the range: [`Range::from`] of the next page.
    pub next: Option<String>,
}

/// The outcome of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// All changes were made: the versions of the rows, in their order; none for one that was removed.
    Done(Vec<Option<Version>>),
    /// None was made: a condition does not hold.
    Conflict,
}

/// What a table takes. Above a bound it answers with an error of kind
/// [`Invalid`](quell_core::ErrorKind::Invalid), having written nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Changes of one batch.
    pub changes: usize,
    /// Bytes of one batch: of names and values together.
    pub batch_bytes: usize,
    /// Bytes of one value.
    pub row_bytes: usize,
    /// Bytes of a name of a row or a partition.
    pub name_bytes: usize,
}

impl Bounds {
    /// Refuses a batch that is above one of them.
    ///
    /// # Errors
    /// Of kind [`Invalid`](quell_core::ErrorKind::Invalid), with the number and the limit.
    pub fn check(&self, changes: &[Change]) -> Result<()> {
        let length = |change: &Change| change.value.as_ref().map_or(0, |value| value.len());
        let bytes: usize = changes.iter().map(|change| change.row.len() + length(change)).sum();
        let longest = changes.iter().map(length).max().unwrap_or(0);
        let name = changes.iter().map(|change| change.row.len()).max().unwrap_or(0);
        for (what, is, most) in [
            ("changes", changes.len(), self.changes),
            ("bytes", bytes, self.batch_bytes),
            ("bytes in a row", longest, self.row_bytes),
            ("bytes in a name", name, self.name_bytes),
        ] {
            if is > most {
                let message = format!("a batch has {is} {what}, the limit is {most}: split it");
                return Err(Error::invalid("batch", message));
            }
        }
        Ok(())
    }
}

/// Partitions of rows in the order of their names.
///
/// Names of partitions and rows have 1 to [`Bounds::name_bytes`] characters of `A-Z`, `a-z`, `0-9` and
/// `-._~:`; names order byte by byte. A read sees every batch that was
/// acknowledged before it began (no stale reads), and each row as some batch left it. Rows that are read
/// together may be of different moments.
///
/// Errors are of kind [`Unavailable`](quell_core::ErrorKind::Unavailable) where nothing was done and
/// a later try may work, and [`UnknownOutcome`](quell_core::ErrorKind::UnknownOutcome) where a batch
/// may have been made. A call returns within a deadline of its own, whatever the peer does.
#[async_trait]
pub trait Table: Send + Sync + fmt::Debug + 'static {
    /// What it takes.
    fn bounds(&self) -> Bounds;

    /// The time of the table's own clock, never of the caller's (R38): no later than the time at
    /// which the call returns.
    async fn now(&self) -> Result<Timestamp>;

    /// The newest time of that clock which is known without a request, such as by the last answer: no
    /// later than the time at which the call returns. None by default: then a step that has read for long
    /// still has the time at which it began.
    fn latest(&self) -> Option<Timestamp> {
        None
    }

    /// The rows of these names, in their order; none for one that is not there.
    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>>;

    /// The first rows of a range, at most `limit`; it may be fewer, with [`Page::next`].
    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page>;

    /// Makes all changes at once, each of another row, if all conditions hold; otherwise none.
    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed>;

    /// What operators may want to know of it, such as its place, without secrets; nothing by default.
    fn facts(&self) -> Vec<Fact> {
        Vec::new()
    }
}

#[async_trait]
impl<T: Table + ?Sized> Table for Arc<T> {
    fn bounds(&self) -> Bounds {
        (**self).bounds()
    }

    async fn now(&self) -> Result<Timestamp> {
        (**self).now().await
    }

    fn latest(&self) -> Option<Timestamp> {
        (**self).latest()
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        (**self).get(partition, rows).await
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        (**self).range(partition, range, limit).await
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        (**self).commit(partition, changes).await
    }

    fn facts(&self) -> Vec<Fact> {
        (**self).facts()
    }
}
