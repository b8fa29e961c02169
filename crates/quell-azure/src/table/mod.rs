//! A table of Azure Table Storage as a [`Table`].

mod commit;
mod entity;
mod open;
mod request;

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use quell_core::checkup::Fact;
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::{Bounds, Change, Committed, Condition, Page, Range, Row, Table};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use self::commit::Batch;
use self::entity::{BOUNDS, Entity, bound, check_name, decode};
use self::request::{change, continuation, entity_path, query, read};
use crate::clock::{Clock, Monotonic, time_of};
use crate::error::{error_code, unavailable};
use crate::transport::{Answer, Deadline, Transport};

/// Rows of Quell's tables themselves, which callers do not see.
const OWN_PARTITION: &str = "quell";
/// The row that is written to learn the time.
const CLOCK_ROW: &str = "clock";
/// Rows of one page.
const PAGE: usize = 1_000;
/// Concurrent requests of one call.
const CONCURRENCY: usize = 16;

/// A table of Azure Table Storage; [`AzureOptions`](crate::AzureOptions) opens it.
///
/// A batch whose answer is lost is looked for in its rows. Where they do not show whether it was made,
/// its outcome is unknown.
#[derive(Debug)]
pub struct TableStorage {
    name: String,
    transport: Transport,
    timeout: Duration,
    clock: Clock,
    /// Held by the one call that writes the clock row.
    learning: Mutex<()>,
}

impl TableStorage {
    pub(crate) fn new(
        name: String,
        transport: Transport,
        timeout: Duration,
        monotonic: Monotonic,
    ) -> Self {
        let (clock, learning) = (Clock::new(monotonic), Mutex::default());
        TableStorage { name, transport, timeout, clock, learning }
    }

    fn rejected(&self, what: &str, answer: &Answer) -> Error {
        self.transport.rejected(what, &self.name, answer)
    }

    /// Reads each of these rows; a batch may be made meanwhile.
    async fn entities(
        &self,
        partition: &str,
        names: &[&str],
        deadline: Deadline,
    ) -> Result<Vec<Option<Entity>>> {
        let reads = names.iter().map(|name| self.entity(partition, name, deadline));
        let reads: Vec<_> = reads.collect();
        stream::iter(reads).buffered(CONCURRENCY).try_collect().await
    }

    async fn entity(
        &self,
        partition: &str,
        name: &str,
        deadline: Deadline,
    ) -> Result<Option<Entity>> {
        let mut request = read(entity_path(&self.name, partition, name));
        if partition == OWN_PARTITION {
            request.what = "open the table";
        }
        let answer = self.transport.answer(&request, deadline).await?;
        if answer.is_success() {
            return decode(&json(&answer)?, answer.etag()).map(Some);
        }
        match answer.status == 404 && error_code(&answer) != "TableNotFound" {
            true => Ok(None),
            false => Err(self.rejected(request.what, &answer)),
        }
    }

    /// The first entities that a filter takes, at most `limit`, and whether there are more.
    async fn page(&self, filter: &str, limit: usize) -> Result<(Vec<Value>, bool)> {
        let (deadline, mut after) = (Deadline::after(self.timeout), Vec::new());
        loop {
            let request = query(&self.name, filter, limit, &after);
            let answer = self.transport.send(&request, &self.name, deadline).await?;
            let mut page = json(&answer)?;
            let rows = page.get_mut("value").and_then(Value::as_array_mut).ok_or_else(no_json)?;
            after = continuation(&answer);
            // A page may be empty and not the last one, where the service has looked for long.
            if !rows.is_empty() || after.is_empty() {
                return Ok((std::mem::take(rows), !after.is_empty()));
            }
            if deadline.is_over() {
                return Err(unavailable("read rows", "none was found in time"));
            }
        }
    }

    /// Reads the service's time with a write, as the answers to reads have whole seconds only.
    async fn learn_time(&self, deadline: Deadline) -> Result<()> {
        let (row, value) = (CLOCK_ROW.to_owned(), Some([].into()));
        let clock = Change { row, condition: Condition::Any, value };
        let mut request = change(&self.name, OWN_PARTITION, &clock, "clock");
        request.what = "learn the service's time";
        let answer = self.transport.send(&request, &self.name, deadline).await?;
        let time = answer.etag().and_then(time_of).ok_or_else(|| {
            let message = "the service's answer to a write has no ETag with a time";
            Error::new(ErrorKind::Corrupt, message)
        })?;
        self.clock.raise(time);
        Ok(())
    }
}

#[async_trait]
impl Table for TableStorage {
    fn bounds(&self) -> Bounds {
        BOUNDS
    }

    async fn now(&self) -> Result<Timestamp> {
        let deadline = Deadline::after(self.timeout);
        loop {
            if let Some(now) = self.clock.read() {
                return Ok(now);
            }
            let what = "read the service's time";
            let late = |_| unavailable(what, "another call that reads it took too long");
            let _learning =
                timeout_at(deadline.ends(), self.learning.lock()).await.map_err(late)?;
            if self.clock.read().is_none() {
                self.learn_time(deadline).await?;
            }
        }
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        check_partition(partition)?;
        rows.iter().try_for_each(|row| check_name("row", row))?;
        let deadline = Deadline::after(self.timeout);
        let names: Vec<&str> = rows.iter().map(String::as_str).collect();
        let found = self.entities(partition, &names, deadline).await?;
        Ok(found.into_iter().map(|entity| entity.map(|entity| entity.row)).collect())
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        check_partition(partition)?;
        let Some(from) = bound(&range.from) else { return Ok(Page::default()) };
        let mut filter = format!("PartitionKey eq '{partition}' and RowKey ge '{from}'");
        if let Some(to) = bound(&range.to) {
            filter.push_str(&format!(" and RowKey lt '{to}'"));
        }
        let (rows, has_more) = self.page(&filter, limit.clamp(1, PAGE)).await?;
        let rows = rows.iter().map(|row| decode(row, None).map(|entity| entity.row));
        let rows: Vec<Row> = rows.collect::<Result<_>>()?;
        // The least name after the last one: `-` is the least character.
        let next = rows.last().filter(|_| has_more).map(|last| format!("{}-", last.name));
        Ok(Page { rows, next })
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        check_partition(partition)?;
        check(&changes)?;
        if changes.is_empty() {
            return Ok(Committed::Done(Vec::new()));
        }
        Batch::new(self, partition, &changes)?.commit().await
    }

    fn latest(&self) -> Option<Timestamp> {
        self.clock.read()
    }

    fn facts(&self) -> Vec<Fact> {
        let credentials = self.transport.credentials.summary();
        vec![
            Fact::plain("table", self.transport.url(&self.name)),
            Fact::plain("credentials", credentials),
        ]
    }
}

fn check_partition(partition: &str) -> Result<()> {
    if partition == OWN_PARTITION {
        let message = format!("partition {partition:?} is reserved: give another name");
        return Err(Error::invalid("partition", message));
    }
    check_name("partition", partition)
}

/// Refuses what the service would refuse, and what has no meaning.
fn check(changes: &[Change]) -> Result<()> {
    BOUNDS.check(changes)?;
    let mut names = BTreeSet::new();
    for Change { row, condition, value } in changes {
        check_name("row", row)?;
        // A version is a line of a batch.
        let is_line = |text: &str| text.chars().all(|c| (' '..='~').contains(&c));
        let is_blind = matches!(condition, Condition::Absent | Condition::Any);
        let help = if matches!(condition, Condition::Version(it) if !is_line(it.as_str())) {
            "its version is from another table"
        } else if value.is_none() && is_blind {
            "it is removed: give its version, or `Present`"
        } else if !names.insert(row) {
            "it is changed twice in one batch: change it once"
        } else {
            continue;
        };
        return Err(Error::invalid("changes", format!("row {row:?}: {help}")));
    }
    Ok(())
}

fn json(answer: &Answer) -> Result<Value> {
    serde_json::from_slice(&answer.body).map_err(|error| no_json().with_source(error))
}

fn no_json() -> Error {
    Error::new(ErrorKind::Corrupt, "the response is not the JSON of a table")
}
