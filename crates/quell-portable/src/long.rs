//! Values that are longer than a row of the table takes: kept in parts, in rows of their own.
//!
//! The row itself says how many parts there are and what they begin with, a random number; so a reader
//! sees whether the parts that it read are those of the row that it read.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::table::{Change, Condition, Row, Table};

/// What a row begins with whose value is in parts; no other does.
const IN_PARTS: u8 = b'+';
/// How often a value is read whose parts change meanwhile.
const TRIES: usize = 10;

/// What stands in the row of a value in parts.
#[derive(Serialize, Deserialize)]
struct Parts {
    count: usize,
    /// What each part begins with.
    mark: String,
}

fn part(row: &str, number: usize) -> String {
    format!("l:{row}:{number}")
}

/// How many parts the values of rows have that have parts.
pub(crate) type PartCounts = BTreeMap<String, usize>;

/// The changes that write a row or remove it, with its parts. It had `parts_before` of them.
pub(crate) fn changes(change: Change, parts_before: usize, most: usize) -> Result<Vec<Change>> {
    let (row, mut changes, mut count) = (change.row.clone(), Vec::new(), 0);
    match change.value {
        Some(value) if value.len() > most => {
            let mark = format!("{:016x}", fastrand::u64(..));
            let chunks: Vec<&[u8]> = value.chunks(most.saturating_sub(mark.len()).max(1)).collect();
            count = chunks.len();
            for (number, chunk) in chunks.into_iter().enumerate() {
                let value = [mark.as_bytes(), chunk].concat();
                changes.push(Change {
                    row: part(&row, number),
                    condition: Condition::Any,
                    value: Some(value.into()),
                });
            }
            let parts = serde_json::to_vec(&Parts { count, mark }).map_err(|error| {
                Error::new(ErrorKind::Internal, "cannot encode a row as JSON").with_source(error)
            })?;
            let value = [&[IN_PARTS], parts.as_slice()].concat();
            changes.push(Change { value: Some(value.into()), ..change });
        }
        value => changes.push(Change { value, ..change }),
    }
    for number in count..parts_before {
        let (row, condition) = (part(&row, number), Condition::Present);
        changes.push(Change { row, condition, value: None });
    }
    Ok(changes)
}

/// Puts the values in these rows together that are in parts. A row that has gone meanwhile is none.
pub(crate) async fn whole<T: Table>(
    table: &T,
    partition: &str,
    rows: Vec<Option<Row>>,
) -> Result<(Vec<Option<Row>>, PartCounts)> {
    let (mut all, mut counts) = (Vec::with_capacity(rows.len()), PartCounts::new());
    for row in rows {
        let row = match row {
            Some(row) if is_in_parts(&row) => {
                let (row, count) = assemble(table, partition, row).await?;
                counts.extend(row.as_ref().map(|row| (row.name.clone(), count)));
                row
            }
            row => row,
        };
        all.push(row);
    }
    Ok((all, counts))
}

fn is_in_parts(row: &Row) -> bool {
    row.value.first() == Some(&IN_PARTS)
}

async fn assemble<T: Table>(table: &T, partition: &str, row: Row) -> Result<(Option<Row>, usize)> {
    let name = row.name.clone();
    let mut row = Some(row);
    for _ in 0..TRIES {
        let found = match row {
            Some(row) if is_in_parts(&row) => row,
            row => return Ok((row, 0)),
        };
        let parts: Parts = serde_json::from_slice(found.value.get(1..).unwrap_or_default())
            .map_err(|error| {
                let message = format!("cannot decode the parts of the row {name:?}");
                Error::new(ErrorKind::Corrupt, message).with_source(error)
            })?;
        let names: Vec<String> = (0..parts.count).map(|number| part(&name, number)).collect();
        let read = table.get(partition, &names).await?;
        let mark = parts.mark.as_bytes();
        let chunks = read.iter().map(|part| part.as_ref()?.value.strip_prefix(mark));
        let chunks: Option<Vec<&[u8]>> = chunks.collect();
        if let Some(chunks) = chunks {
            let value: Arc<[u8]> = chunks.concat().into();
            return Ok((Some(Row { value, ..found }), parts.count));
        }
        row = table.get(partition, std::slice::from_ref(&name)).await?.pop().flatten();
    }
    let message = format!("cannot read the row {name:?}: other processes changed it at every try");
    Err(Error::new(ErrorKind::Contention, message))
}

#[cfg(test)]
mod tests {
    use quell_core::Timestamp;

    use super::*;
    use crate::MemoryTable;
    use crate::table::Bounds;

    fn table() -> MemoryTable {
        let bounds = Bounds { changes: 100, batch_bytes: 10_000, row_bytes: 100, name_bytes: 64 };
        MemoryTable::new(Timestamp::MIN).with_bounds(bounds)
    }

    async fn set(table: &MemoryTable, value: Option<&[u8]>, parts: usize) -> usize {
        let (row, condition) = ("j:1".to_owned(), Condition::Any);
        let change = Change { row, condition, value: value.map(Into::into) };
        let changes = changes(change, parts, 100).unwrap();
        let count = changes.len();
        table.commit("p", changes).await.unwrap();
        count
    }

    async fn get(table: &MemoryTable) -> (Option<Vec<u8>>, usize) {
        let rows = table.get("p", &["j:1".to_owned()]).await.unwrap();
        let (mut rows, counts) = whole(table, "p", rows).await.unwrap();
        let value = rows.pop().flatten().map(|row| row.value.to_vec());
        (value, counts.get("j:1").copied().unwrap_or(0))
    }

    #[tokio::test]
    async fn a_long_value_is_kept_in_parts_that_go_with_it() {
        let table = table();
        let long = vec![b'x'; 1_000];
        assert_eq!(set(&table, Some(&long), 0).await, 13);
        assert_eq!(get(&table).await, (Some(long), 12));
        let shorter = vec![b'y'; 150];
        set(&table, Some(&shorter), 12).await;
        assert_eq!(get(&table).await, (Some(shorter), 2));
        set(&table, Some(b"[1]"), 2).await;
        assert_eq!(get(&table).await, (Some(b"[1]".to_vec()), 0));
        let all = crate::Range::of("");
        assert_eq!(table.range("p", &all, 100).await.unwrap().rows.len(), 1, "no part is left");
    }

    #[tokio::test]
    async fn parts_of_another_value_are_never_taken_for_its_own() {
        let table = table();
        set(&table, Some(&[b'x'; 1_000]), 0).await;
        let read = table.get("p", &["j:1".to_owned()]).await.unwrap();
        set(&table, Some(&[b'y'; 1_000]), 12).await;
        let (rows, _) = whole(&table, "p", read).await.unwrap();
        assert_eq!(rows[0].as_ref().unwrap().value.to_vec(), [b'y'; 1_000]);
    }
}
