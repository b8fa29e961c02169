//! Which ids the jobs of a partition get.
//!
//! Ids come in blocks, so that no row is written by every trigger. Partitions of one store take turns, so
//! an id alone says which of them has the job; the row of taken ids counts turns, so the only partition
//! of a store has all ids.

use std::ops;
use std::sync::{Arc, Mutex};

use quell_core::checkup::SKIPPED_IDS;
use quell_core::part::Ids;
use quell_core::{Error, ErrorKind, JobId, Result};
use quell_shards::MOST_SHARDS;

use crate::partition::{Partition, State, locked};
use crate::table::{self, Change, Condition, Table};

/// The row that says which ids are taken.
const IDS: &str = "i:ids";
/// How many ids a process takes at a time.
const BLOCK: u64 = 1_000;
/// How often a process tries to take ids before it gives up.
const TRIES: usize = 50;

/// The ids of one partition: `turn * step + number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    number: u64,
    step: u64,
}

impl Numbers {
    /// All ids, for the only partition of a store.
    pub(crate) const ALL: Numbers = Numbers { number: 0, step: 1 };

    pub(crate) fn of_partition(number: u64) -> Self {
        Numbers { number, step: MOST_SHARDS }
    }

    /// The ids from this turn on.
    pub(crate) fn from(self, turn: u64) -> Ids {
        let next = turn.saturating_mul(self.step).saturating_add(self.number);
        Ids { next, step: self.step }
    }

    /// A turn after which all ids of the partition are above this one.
    pub(crate) fn turn(self, id: JobId) -> u64 {
        id.get().checked_div(self.step).unwrap_or(id.get())
    }
}

/// Ids that no other step has; those that it does not use go back, unless others were taken since.
#[derive(Debug)]
pub(crate) struct TakenIds {
    state: Arc<Mutex<State>>,
    pub(crate) ids: ops::Range<u64>,
}

impl Drop for TakenIds {
    fn drop(&mut self) {
        let mut state = locked(&self.state);
        if state.ids.start == self.ids.end {
            state.ids.start = self.ids.start;
        }
    }
}

impl TakenIds {
    pub(crate) fn none(state: &Arc<Mutex<State>>) -> Self {
        TakenIds { state: Arc::clone(state), ids: 0..0 }
    }
}

impl<T: Table> Partition<T> {
    /// Leaves the next [`SKIPPED_IDS`] ids out, where the table was restored or lost its newest writes:
    /// ids that were given and then lost may be known elsewhere. A process that runs meanwhile still
    /// uses the ids that it took before.
    ///
    /// # Errors
    /// What the table answers; [`ErrorKind::Contention`] where other processes take ids all the time.
    pub async fn skip_ids(&self) -> Result<()> {
        for _ in 0..TRIES {
            if self.take_block(0, SKIPPED_IDS).await?.is_some() {
                return Ok(());
            }
        }
        Err(no_ids())
    }

    /// Takes the next block of ids that begins above this one; none where another process took ids
    /// meanwhile.
    async fn take_block(&self, above: u64, count: u64) -> Result<Option<ops::Range<u64>>> {
        let row = self.row(IDS).await?;
        let next = row.as_ref().map_or(Ok(1), |row| number(&row.value))?;
        let next = next.max(above.saturating_add(1));
        let end = next.saturating_add(count);
        let condition = Condition::unchanged(row);
        let value = Some(end.to_string().into_bytes().into());
        let change = Change { row: IDS.to_owned(), condition, value };
        Ok(match self.table().commit(self.name(), vec![change]).await? {
            table::Committed::Done(_) => Some(next..end),
            table::Committed::Conflict => None,
        })
    }

    /// Takes `count` ids above this one.
    pub(crate) async fn take_ids(&self, count: u64, above: u64) -> Result<TakenIds> {
        let take = |state: &mut State| {
            let from = state.ids.start;
            let fits = from > above && state.ids.end.saturating_sub(from) >= count;
            fits.then(|| {
                state.ids.start = from.saturating_add(count);
                TakenIds { state: Arc::clone(self.state()), ids: from..state.ids.start }
            })
        };
        for _ in 0..TRIES {
            if let Some(taken) = take(&mut locked(self.state())) {
                return Ok(taken);
            }
            if let Some(block) = self.take_block(above, count.max(BLOCK)).await? {
                let mut state = locked(self.state());
                // What is left of the block before is given up, unless this one goes on from it.
                let goes_on = state.ids.end == block.start && state.ids.start > above;
                state.ids = if goes_on { state.ids.start..block.end } else { block };
            }
        }
        Err(no_ids())
    }
}

fn no_ids() -> Error {
    let message = "cannot take ids: other processes took some at every try";
    Error::new(ErrorKind::Contention, message)
}

fn number(value: &[u8]) -> Result<u64> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::new(ErrorKind::Corrupt, "cannot decode which ids are taken"))
}
