//! Ending attempts that succeeded: one statement for many (R11, R12, R21).
//!
//! Every other end is the engine's.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use quell_core::history::Event;
use quell_core::{
    JobId, JobState, Lease, LeaseToken, Outcome, Payload, QueueName, Result, Settled, SettledAs,
    Settlement, Timestamp,
};
use sqlx::sqlite::SqliteRow;

use crate::counts::LaneState;
use crate::error::explain;
use crate::keys::json;
use crate::row::{get, signed, unsigned};
use crate::tx::{Trip, Tx, opening};

/// Chooses the next window of a key among its jobs `$of`: the one with the smallest id (R10).
macro_rules! next_window {
    ($of:literal, $task:literal, $key:literal) => {
        concat!(
            $of,
            ".task_id = ",
            $task,
            " and ",
            $of,
            ".key = ",
            $key,
            "
             and ",
            $of,
            ".hold in (0, (select max(c.hold) from quell_job c
                                         where c.task_id = ",
            $task,
            " and c.key = ",
            $key,
            "
                                           and c.hold < 0))
           order by +",
            $of,
            ".id limit 1"
        )
    };
}

/// R11: the next windows of keys that no longer run may start: of the keys of the jobs `?1`.
pub(crate) const FREE_KEYS: &str = concat!(
    "update quell_job
        set waits = 0
      where waits = 1
        and id in (
              select (select w.id from quell_job w where ",
    next_window!("w", "e.task_id", "e.key"),
    "         )
                from json_each(?1) l
               cross join quell_job e on e.id = l.value
               where not exists (select 1 from quell_job r
                                  where r.task_id = e.task_id and r.key = e.key and r.hold > 0))
  returning lane_id, due_at"
);

/// Begins a transaction with ending attempts that succeeded. R21: only a current lease that has not
/// expired counts.
pub(crate) fn open_with_success(now: Timestamp, settlements: &[Settlement]) -> Trip {
    const SUCCEED: &str = opening!(
        "update quell_job
            set state = 2, hold = null, lease_until = null, failures = 0, ended_at = m.clock,
                -- R19: in a null, and so in most cases, there is no member.
                output = ?3 ->> (l.key || ':' || l.value)
           from json_each(?2) l, quell_meta m
          where quell_job.id = cast(l.key as integer) and token = l.value
            and state = 1 and lease_until > m.clock
      returning quell_job.id, token, lane_id"
    );
    let leases = json_leases(settlements.iter().map(|one| &one.lease));
    sqlx::query(SUCCEED).bind(now.as_micros()).bind(leases).bind(json_outputs(settlements))
}

impl Tx {
    /// Ends attempts that succeeded; answers come in the same order. `succeeded` is what the opening
    /// returned.
    pub(crate) async fn succeed(
        &mut self,
        settlements: &[Settlement],
        succeeded: &[SqliteRow],
    ) -> Result<Vec<Settled>> {
        let mut accepted = decode_leases(succeeded)?;
        for row in succeeded {
            let running = LaneState::new(get(row, 2)?, JobState::Running);
            self.tally.move_one(running, running.with(JobState::Succeeded));
        }
        let mut settled = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let (now, lease) = (self.now, settlement.lease);
            // A lease that is settled twice in one call counts once.
            let is_first = accepted.remove(&lease);
            let became = if is_first { SettledAs::Succeeded } else { SettledAs::Refused };
            if is_first {
                self.news.ended.push(lease.job);
            }
            self.record_event(|| Event::settled(now, settlement, became));
            settled.push(Settled { lease, became });
        }
        if !succeeded.is_empty() {
            self.free_keys(settled.iter().map(|one| one.lease.job)).await?;
            self.free_slots();
        }
        Ok(settled)
    }

    /// R11: the next windows of these jobs' keys may start, unless an attempt of the key runs.
    pub(crate) async fn free_keys(&mut self, jobs: impl Iterator<Item = JobId>) -> Result<()> {
        if !self.keys_wait {
            return Ok(());
        }
        let jobs = json(&jobs.map(|id| signed(id.get())).collect::<Vec<_>>())?;
        let rows = sqlx::query(FREE_KEYS).bind(jobs).fetch_all(&mut self.writer.db).await;
        for row in rows.map_err(|e| explain("free a key", e))? {
            let queue = self.names().lane(get(&row, 0)?).map(|lane| lane.queue.clone());
            if let Some(queue) = queue {
                self.wake(&queue, Timestamp::from_micros(get(&row, 1)?));
            }
        }
        Ok(())
    }

    /// R31: what queues' limits held back may start, at any worker.
    fn free_slots(&mut self) {
        let all = self.names().settings();
        let limited = all.filter(|(_, settings)| settings.limits_concurrency());
        let limited: Vec<QueueName> = limited.map(|(queue, _)| queue.clone()).collect();
        // A wake-up without a time promises no job that is due.
        limited.iter().for_each(|queue| self.wake(queue, Timestamp::MIN));
    }
}

/// Leases from rows of job and token: the token distinguishes a late message from a good one.
pub(super) fn decode_leases(rows: &[SqliteRow]) -> Result<HashSet<Lease>> {
    let lease = |row: &SqliteRow| {
        let job = JobId::new(unsigned(get(row, 0)?));
        Ok(Lease { job, token: LeaseToken::new(unsigned(get(row, 1)?)) })
    };
    rows.iter().map(lease).collect()
}

/// Outputs as a JSON object of texts by job and token, so that a late end of a job that runs again
/// does not lend it its output; none where no attempt has one. The first end of an attempt counts.
fn json_outputs(settlements: &[Settlement]) -> Option<String> {
    let mut outputs: BTreeMap<String, Option<&str>> = BTreeMap::new();
    for Settlement { lease, outcome } in settlements {
        if let Outcome::Succeeded { output } = outcome {
            let attempt = format!("{}:{}", signed(lease.job.get()), signed(lease.token.get()));
            outputs.entry(attempt).or_insert(output.as_ref().map(Payload::as_str));
        }
    }
    outputs.retain(|_, output| output.is_some());
    (!outputs.is_empty()).then(|| serde_json::to_string(&outputs).unwrap_or_default())
}

/// Leases as a JSON object of tokens by job, for `json_each`.
pub(super) fn json_leases<'l>(leases: impl Iterator<Item = &'l Lease>) -> String {
    let mut text = String::from("{");
    for lease in leases {
        let before = if text.len() == 1 { "" } else { "," };
        let (job, token) = (signed(lease.job.get()), signed(lease.token.get()));
        // Writing to a string cannot fail.
        let _infallible = write!(text, "{before}\"{job}\":{token}");
    }
    text.push('}');
    text
}
