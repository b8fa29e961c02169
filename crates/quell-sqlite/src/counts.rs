//! The counts of jobs are kept beside the jobs: `quell_tally` in `sql/schema.sql`.
//!
//! SQLite has one writer at a time, so a transaction adds up in memory what it changes and writes the
//! sums once, in the same trip as its commit: they commit and roll back with the jobs. Each statement
//! that adds or removes jobs, or changes their state or lane, notes it here.
//!
//! The newest changes stay on the row that each transaction writes anyway, so a small commit writes no
//! page more; where they are many, they are added to the table.

use std::collections::BTreeMap;

use quell_core::{JobState, Result};
use quell_engine::{Tally, add_to};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use tracing::error;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::names::{Names, base_of};
use crate::row::get;

/// How many changes stay in the row of the store before they are added to the table.
const MOST_RECENT: usize = 12;

/// Ends a transaction with what changed of late: `$recent` is the parameter with [`LaneTally::json`].
macro_rules! count_and_commit {
    ($recent:literal) => {
        concat!("update quell_meta set recent = ", $recent, "; commit")
    };
}
pub(crate) use count_and_commit;

/// A job's lane, without its partition, and its state. Both are what the row says, whatever that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneState {
    lane: i64,
    state: i64,
}

impl LaneState {
    /// Of jobs that carry the number `lane_id`.
    pub(crate) fn new(lane_id: i64, state: JobState) -> Self {
        LaneState { lane: base_of(lane_id), state: i64::from(state.code()) }
    }

    /// The same lane, in another state.
    pub(crate) fn with(self, state: JobState) -> Self {
        LaneState { state: i64::from(state.code()), ..self }
    }
}

/// The lane and the state of a job's row as [`decode_lane_state`] reads them, of rows too that cannot be
/// decoded.
macro_rules! lane_state_columns {
    () => {
        "cast(lane_id as integer), cast(state as integer)"
    };
}
pub(crate) use lane_state_columns;

/// Reads the two columns of [`lane_state_columns`], the first at `index`.
pub(crate) fn decode_lane_state(row: &SqliteRow, index: usize) -> Result<LaneState> {
    Ok(LaneState { lane: base_of(get(row, index)?), state: get(row, index + 1)? })
}

/// How many jobs a transaction adds to each lane and state, or takes from it.
#[derive(Debug, Default)]
pub(crate) struct LaneTally(BTreeMap<LaneState, i64>);

impl LaneTally {
    pub(crate) fn add(&mut self, of: LaneState, jobs: usize) {
        let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
        let sum = self.0.entry(of).or_default();
        *sum = sum.saturating_add(jobs);
    }

    pub(crate) fn remove(&mut self, of: LaneState) {
        let sum = self.0.entry(of).or_default();
        *sum = sum.saturating_sub(1);
    }

    pub(crate) fn move_one(&mut self, from: LaneState, to: LaneState) {
        if from != to {
            self.remove(from);
            self.add(to, 1);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(|jobs| *jobs == 0)
    }

    /// What `recent` says, which was written by [`LaneTally::json`], and these changes.
    pub(crate) fn with_recent(mut self, recent: Option<&str>) -> Self {
        let rows = recent.map_or(Ok(Vec::new()), serde_json::from_str::<Vec<(i64, i64, i64)>>);
        let rows = rows.unwrap_or_else(|error| {
            error!(%error, "recent counts cannot be decoded: update quell_recount set wrong = 0");
            Vec::new()
        });
        for (lane, state, jobs) in rows {
            let sum = self.0.entry(LaneState { lane, state }).or_default();
            *sum = sum.saturating_add(jobs);
        }
        self.0.retain(|_, jobs| *jobs != 0);
        self
    }

    /// Whether these are more than the row of the store should keep.
    pub(crate) fn are_many(&self) -> bool {
        self.0.len() > MOST_RECENT
    }

    /// The sums as rows of lane, state and jobs; none where there are none.
    pub(crate) fn json(&self) -> Result<Option<String>> {
        let changed = self.0.iter().filter(|(_, jobs)| **jobs != 0);
        let rows: Vec<_> = changed.map(|(of, jobs)| (of.lane, of.state, jobs)).collect();
        if rows.is_empty() { Ok(None) } else { json(&rows).map(Some) }
    }

    /// Adds the sums to the table.
    pub(crate) async fn write(&self, db: &mut SqliteConnection) -> Result<()> {
        const ADD: &str = "insert into quell_tally (lane_id, state, jobs)
             select value ->> 0, value ->> 1, value ->> 2 from json_each(?1) where true
             on conflict (lane_id, state) do update set jobs = jobs + excluded.jobs";
        let Some(rows) = self.json()? else { return Ok(()) };
        let added = sqlx::query(ADD).bind(rows).execute(db).await;
        added.map(drop).map_err(|e| explain("count jobs", e))
    }
}

/// How many jobs there are, as the transactions keep it: no job is read.
pub(crate) async fn read_counts(db: &mut SqliteConnection, names: &Names) -> Result<Tally> {
    const SUMS: &str = "select lane_id, state, jobs from quell_tally";
    const RECENT: &str = "select recent from quell_meta";
    let failed = |e| explain("count jobs", e);
    let mut sums = LaneTally::default();
    for row in &sqlx::query(SUMS).fetch_all(&mut *db).await.map_err(failed)? {
        let of = LaneState { lane: get(row, 0)?, state: get(row, 1)? };
        sums.0.insert(of, get(row, 2)?);
    }
    let recent = sqlx::query_scalar::<_, Option<String>>(RECENT).fetch_one(db).await;
    let sums = sums.with_recent(recent.map_err(failed)?.as_deref());
    let mut tally = Tally::new();
    for (of, jobs) in sums.0 {
        let Some(lane) = names.lane(of.lane) else { continue };
        let state = u8::try_from(of.state).ok().and_then(JobState::from_code);
        let state = state.ok_or_else(|| corrupt("the state of a job"))?;
        add_to(&mut tally, (lane.queue.clone(), lane.task.clone(), state), jobs);
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cancels_out_is_not_written_and_a_partition_counts_as_its_lane() {
        let mut tally = LaneTally::default();
        let [new, running, dead] = [JobState::Scheduled, JobState::Running, JobState::Dead]
            .map(|state| LaneState::new((7 << 32) + 3, state));
        tally.add(new, 2);
        tally.move_one(new, running);
        tally.move_one(running, new);
        assert_eq!(tally.json().unwrap().as_deref(), Some("[[7,0,2]]"));
        tally.move_one(new, dead);
        tally.move_one(dead, dead);
        tally.remove(new);
        tally.remove(dead);
        assert_eq!(tally.json().unwrap(), None);
        assert!(tally.is_empty());
    }

    #[test]
    fn recent_changes_are_added_up_and_rubbish_is_left_out() {
        let new = LaneState::new(1, JobState::Scheduled);
        let mut tally = LaneTally::default();
        tally.add(new, 2);
        let tally = tally.with_recent(Some("[[1,0,-2],[1,1,4]]"));
        assert_eq!(tally.json().unwrap().as_deref(), Some("[[1,1,4]]"));
        let tally = tally.with_recent(Some("rubbish")).with_recent(None);
        assert_eq!((tally.0.len(), tally.are_many()), (1, false));
        let many = (0..13).map(|lane| format!("[{lane},0,1]")).collect::<Vec<_>>().join(",");
        assert!(tally.with_recent(Some(&format!("[{many}]"))).are_many());
    }
}
