//! Opening a table: it is created where that is asked for, and a table of others is refused.
//!
//! Row `format` of partition `quell` says that the table is Quell's, how its rows are encoded, and whether
//! queues have partitions of their own: whoever writes the row first decides.

use std::sync::Arc;

use quell_core::{Error, ErrorKind, Result};
use quell_portable::{Change, Committed, Condition, Layout, Row};

use super::commit::Batch;
use super::entity::decode;
use super::request::{continuation, create_table, entity_path, query, read};
use super::{OWN_PARTITION, TableStorage, json};
use crate::error::error_code;
use crate::transport::Deadline;

const FORMAT_ROW: &str = "format";
/// The name of the store's timer, if it has one.
const TIMER_ROW: &str = "timer";
/// How this version encodes rows.
const FORMAT: u32 = 1;
/// What stands behind the format where queues have partitions of their own.
const QUEUES: &str = "queues";

enum Found {
    Quells(Layout),
    NoMarker,
    NoTable,
}

impl TableStorage {
    /// Checks that the table is Quell's and has this layout, or is empty; creates it where it is missing
    /// and `create` is so.
    pub(crate) async fn prepare(&self, layout: Layout, create: bool) -> Result<()> {
        let deadline = Deadline::after(self.timeout);
        match self.find(deadline).await? {
            Found::Quells(found) => return self.check_layout(found, layout),
            Found::NoMarker => {}
            Found::NoTable if create => {
                self.transport.create(&create_table(&self.name), &self.name, deadline).await?;
            }
            Found::NoTable => {
                let name = &self.name;
                let message =
                    format!("table {name:?} does not exist: create it, or open with `create`");
                return Err(Error::new(ErrorKind::NotFound, message));
            }
        }
        if self.has_rows(deadline).await? {
            // They may be those of a process that opens the table too.
            return match self.find(deadline).await? {
                Found::Quells(found) => self.check_layout(found, layout),
                Found::NoMarker | Found::NoTable => {
                    Err(self.foreign("it has rows, and none says that it is Quell's"))
                }
            };
        }
        let format = match layout {
            Layout::One => FORMAT.to_string(),
            Layout::Queues => format!("{FORMAT} {QUEUES}"),
        };
        let value = Some(Arc::from(format.into_bytes()));
        let marker = [Change { row: FORMAT_ROW.to_owned(), condition: Condition::Absent, value }];
        // A conflict is another process that opens the table.
        Batch::new(self, OWN_PARTITION, &marker)?.commit().await?;
        match self.find(deadline).await? {
            Found::Quells(found) => self.check_layout(found, layout),
            Found::NoMarker | Found::NoTable => Err(self.foreign("another process changes it")),
        }
    }

    fn check_layout(&self, found: Layout, wanted: Layout) -> Result<()> {
        if found == wanted {
            return Ok(());
        }
        let name = &self.name;
        let message = match found {
            Layout::One => format!(
                "table {name:?} has all queues in one partition: open it with layout=one, or give the \
                 name of another"
            ),
            Layout::Queues => format!(
                "table {name:?} has a partition for each queue: open it with layout=queues, or give \
                 the name of another"
            ),
        };
        Err(Error::invalid("layout", message))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The timer that the store's processes use.
    pub(crate) async fn timer(&self) -> Result<Option<String>> {
        let found = self.timer_row().await?;
        Ok(found.map(|row| String::from_utf8_lossy(&row.value).into_owned()))
    }

    async fn timer_row(&self) -> Result<Option<Row>> {
        let deadline = Deadline::after(self.timeout);
        let found = self.entities(OWN_PARTITION, &[TIMER_ROW], deadline).await?;
        Ok(found.into_iter().flatten().next().map(|entity| entity.row))
    }

    /// Changes what [`timer`](TableStorage::timer) answers.
    pub(crate) async fn set_timer(&self, name: Option<&str>) -> Result<()> {
        loop {
            let (row, found) = (TIMER_ROW.to_owned(), self.timer_row().await?);
            let value: Option<Arc<[u8]>> = name.map(|name| Arc::from(name.as_bytes()));
            let condition = match found {
                found if found.as_ref().map(|row| &row.value) == value.as_ref() => return Ok(()),
                Some(found) if value.is_none() => Condition::Version(found.version),
                Some(found) => {
                    let message = format!(
                        "another process has set the timer of table {:?} to {}",
                        self.name,
                        String::from_utf8_lossy(&found.value)
                    );
                    return Err(Error::new(ErrorKind::Contention, message));
                }
                None => Condition::Absent,
            };
            let change = [Change { row, condition, value }];
            if let Committed::Done(_) = Batch::new(self, OWN_PARTITION, &change)?.commit().await? {
                return Ok(());
            }
        }
    }

    async fn find(&self, deadline: Deadline) -> Result<Found> {
        let request = read(entity_path(&self.name, OWN_PARTITION, FORMAT_ROW));
        let answer = self.transport.send(&request, deadline).await?;
        match (answer.status, error_code(&answer).as_str()) {
            (404, "TableNotFound") => Ok(Found::NoTable),
            (404, _) => Ok(Found::NoMarker),
            _ if !answer.is_success() => Err(self.rejected("open the table", &answer)),
            _ => {
                let marker = decode(&json(&answer)?, answer.etag()).ok();
                let text =
                    marker.and_then(|marker| String::from_utf8(marker.row.value.to_vec()).ok());
                let text = text.as_deref().unwrap_or_default();
                let (format, layout) = text.split_once(' ').unwrap_or((text, ""));
                match (format.parse::<u32>().ok(), layout) {
                    (Some(FORMAT), "") => Ok(Found::Quells(Layout::One)),
                    (Some(FORMAT), QUEUES) => Ok(Found::Quells(Layout::Queues)),
                    (Some(newer), _) if newer > FORMAT => Err(Error::new(
                        ErrorKind::Newer,
                        format!(
                            "table {:?} has format {newer}, and this version of Quell reads \
                             {FORMAT}: use a newer one",
                            self.name
                        ),
                    )),
                    _ => Err(self.foreign("its row `format` of partition `quell` is not Quell's")),
                }
            }
        }
    }

    async fn has_rows(&self, deadline: Deadline) -> Result<bool> {
        let mut after = Vec::new();
        loop {
            let request = query(&self.name, "", 1, &after);
            let answer = self.transport.send(&request, deadline).await?;
            if !answer.is_success() {
                return Err(self.rejected("open the table", &answer));
            }
            let page = json(&answer)?;
            let rows = page.get("value").and_then(|rows| rows.as_array());
            after = continuation(&answer);
            if rows.is_some_and(|rows| !rows.is_empty()) || after.is_empty() {
                return Ok(!rows.is_none_or(Vec::is_empty));
            }
        }
    }

    fn foreign(&self, reason: &str) -> Error {
        let name = &self.name;
        let message = format!("table {name:?} is not Quell's: {reason}; give the name of another");
        Error::new(ErrorKind::Foreign, message)
    }
}
