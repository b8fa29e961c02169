//! Opening a table: it is created where that is asked for, and a table of others is refused.
//!
//! Row `format` of partition `quell` says that the table is Quell's, how its rows are encoded, and whether
//! queues have partitions of their own: the first process that writes the row decides.

use std::sync::Arc;

use quell_core::{Error, ErrorKind, Result};
use quell_portable::{Change, Committed, Condition, Layout, Row};

use super::commit::Batch;
use super::entity::Entity;
use super::request::create_table;
use super::{OWN_PARTITION, TableStorage};
use crate::transport::Deadline;

const FORMAT_ROW: &str = "format";
/// The name of the store's timer, if it has one.
const TIMER_ROW: &str = "timer";
/// How this version encodes rows: 2 has the counts of jobs beside them.
const FORMAT: u32 = 2;
/// What stands behind the format where queues have partitions of their own.
const QUEUES: &str = "queues";

impl TableStorage {
    /// Checks that the table is Quell's and has this layout, or is empty; creates it where it is missing
    /// and `create` is so.
    pub(crate) async fn prepare(&self, layout: Layout, create: bool) -> Result<()> {
        let deadline = Deadline::after(self.timeout);
        let found = match self.layout(deadline).await {
            Err(error) if error.kind() == ErrorKind::NotFound && create => {
                self.transport.create(&create_table(&self.name), &self.name, deadline).await?;
                None
            }
            found => found?,
        };
        if let Some(found) = found {
            return self.check_layout(found, layout);
        }
        let (rows, _) = self.page("", 1).await?;
        let reason = match rows.is_empty() {
            // They may be those of a process that opens the table too.
            false => "it has rows, and none says that it is Quell's",
            true => {
                self.mark(layout).await?;
                "another process changes it"
            }
        };
        let found = self.layout(deadline).await?.ok_or_else(|| self.foreign(reason))?;
        self.check_layout(found, layout)
    }

    /// Writes that the table is Quell's, unless another process that opens it did so.
    async fn mark(&self, layout: Layout) -> Result<()> {
        let format = match layout {
            Layout::One => FORMAT.to_string(),
            Layout::Queues => format!("{FORMAT} {QUEUES}"),
        };
        let value = Some(Arc::from(format.into_bytes()));
        let marker = [Change { row: FORMAT_ROW.to_owned(), condition: Condition::Absent, value }];
        Batch::new(self, OWN_PARTITION, &marker)?.commit().await.map(drop)
    }

    fn check_layout(&self, found: Layout, wanted: Layout) -> Result<()> {
        if found == wanted {
            return Ok(());
        }
        let (has, layout) = match found {
            Layout::One => ("all queues in one partition", "one"),
            Layout::Queues => ("a partition for each queue", "queues"),
        };
        let message = format!(
            "table {:?} has {has}: open it with layout={layout}, or give the name of another",
            self.name
        );
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
        let entity = self.entity(OWN_PARTITION, TIMER_ROW, Deadline::after(self.timeout)).await?;
        Ok(entity.map(|entity| entity.row))
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

    /// The layout of a table that is Quell's; none where nothing says that it is.
    async fn layout(&self, deadline: Deadline) -> Result<Option<Layout>> {
        let foreign = || self.foreign("its row `format` of partition `quell` is not Quell's");
        let entity = match self.entity(OWN_PARTITION, FORMAT_ROW, deadline).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => return Err(foreign()),
            entity => entity?,
        };
        let Some(Entity { row, .. }) = entity else { return Ok(None) };
        let text = String::from_utf8_lossy(&row.value);
        let (format, layout) = text.split_once(' ').unwrap_or((&text, ""));
        match (format.parse::<u32>().ok(), layout) {
            (Some(FORMAT), "") => Ok(Some(Layout::One)),
            (Some(FORMAT), QUEUES) => Ok(Some(Layout::Queues)),
            (Some(newer), _) if newer > FORMAT => {
                let name = &self.name;
                let message = format!(
                    "table {name:?} has format {newer}, and this version of Quell reads {FORMAT}: \
                     use a newer one"
                );
                Err(Error::new(ErrorKind::Newer, message))
            }
            (Some(older @ 1..FORMAT), _) => Err(self.foreign(&format!(
                "it has format {older} of a build before the first version, and this one reads \
                 {FORMAT}"
            ))),
            _ => Err(foreign()),
        }
    }

    fn foreign(&self, reason: &str) -> Error {
        let name = &self.name;
        let message = format!("table {name:?} is not Quell's: {reason}; give the name of another");
        Error::new(ErrorKind::Foreign, message)
    }
}
