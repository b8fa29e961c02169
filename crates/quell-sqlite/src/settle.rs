//! Ending attempts: success in one statement for many, everything else by the core's moves (R12,
//! R21, R24, R25), and taking lapsed leases back.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::time::Duration;

use quell_core::crash::is_crash;
use quell_core::history::Event;
use quell_core::{
    Attempt, AttemptOutcome, Job, JobId, JobState, Lapsed, Lease, LeaseToken, Outcome, Payload,
    QueueName, Renewal, Result, Settled, SettledAs, Settlement, TaskName, Timestamp,
};

use sqlx::sqlite::SqliteRow;

use crate::error::explain;
use crate::keys::json;
use crate::row::{decode, get, job_columns, signed, unsigned};
use crate::tally::LaneState;
use crate::tx::{Trip, Tx, opening};
use crate::workers::read_workers;
use crate::write::put;

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

/// R10, R11: the next windows of all keys that no longer run may start.
const FREE_ALL: &str = "update quell_job
        set waits = 0
      where waits = 1
        and not exists (select 1 from quell_job r
                         where r.task_id = quell_job.task_id and r.key = quell_job.key
                           and (r.hold > 0 or r.hold < 0 and r.hold > -quell_job.id))
        and not exists (select 1 from quell_job r
                         where r.task_id = quell_job.task_id and r.key = quell_job.key
                           and r.hold = 0 and r.id < quell_job.id)
  returning lane_id, due_at";

/// Begins a transaction with ending all the attempts that succeeded; the rest comes after. R21: only
/// a current, unlapsed lease counts.
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
    let succeeded = settlements.iter().filter(|one| one.outcome.is_success());
    let query = sqlx::query(SUCCEED).bind(now.as_micros());
    query.bind(json_leases(succeeded.map(|one| &one.lease))).bind(json_outputs(settlements))
}

impl Tx<'_> {
    /// Ends attempts; answers come in the same order. `succeeded` is what the opening brought.
    pub(crate) async fn settle(
        &mut self,
        settlements: &[Settlement],
        succeeded: &[SqliteRow],
    ) -> Result<Vec<Settled>> {
        let mut accepted = leases(succeeded)?;
        for row in succeeded {
            let running = LaneState::new(get(row, 2)?, JobState::Running);
            self.tally.move_one(running, running.with(JobState::Succeeded));
        }
        let mut settled = Vec::with_capacity(settlements.len());
        for settlement in settlements {
            let Settlement { lease, outcome } = settlement;
            let (now, place) = (self.now, self.told());
            let became = if outcome.is_success() {
                // A lease that is settled twice in one call counts once.
                if accepted.remove(lease) { SettledAs::Succeeded } else { SettledAs::Refused }
            } else {
                self.settle_one(settlement).await?
            };
            if became == SettledAs::Succeeded {
                self.news.ended.push(lease.job);
            }
            self.tell_at(place, || Event::settled(now, settlement, became));
            settled.push(Settled { lease: *lease, became });
        }
        self.free_keys(settled.iter().map(|one| one.lease.job)).await?;
        if settled.iter().any(|one| one.became != SettledAs::Refused) {
            self.free_slots();
        }
        Ok(settled)
    }

    async fn settle_one(&mut self, settlement: &Settlement) -> Result<SettledAs> {
        let (now, Settlement { lease, outcome }) = (self.now, settlement);
        let job = self.load(lease.job).await?;
        let Some(mut job) = job.clone().filter(|job| job.is_held_by(lease.token, now)) else {
            return Ok(settlement.without_lease(job.as_ref()));
        };
        if let Some((ended, error)) = outcome.on_record() {
            self.record_attempt(&job, ended, error).await?;
        }
        let mut heir = self.heir_of(&job).await?;
        let became = job.settle(now, outcome, heir.as_mut());
        let became = self.heed_key(&mut job, became).await?;
        self.put_back(&job, heir.as_ref()).await?;
        Ok(became)
    }

    /// Takes back leases that lapsed, oldest first (R21).
    pub(crate) async fn reap(&mut self, limit: usize) -> Result<Vec<Lapsed>> {
        const LAPSED: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            " from quell_job j where j.state = 1 and j.lease_until <= ?1
             order by j.lease_until, j.id limit ?2 + 0"
        );
        let rows = sqlx::query(LAPSED)
            .bind(self.now.as_micros())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *self.db)
            .await
            .map_err(|e| explain("read lapsed leases", e))?;
        let workers = if rows.is_empty() { Vec::new() } else { read_workers(&mut self.db).await? };
        let mut lapsed = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut job = decode(row, self.names)?;
            let crash = is_crash(&job, &workers);
            let lease = Lease { job: job.id, token: job.token };
            self.record_attempt(&job, AttemptOutcome::Lapsed, None).await?;
            let mut heir = self.heir_of(&job).await?;
            let (t, place) = (self.now, self.told());
            let became = job.lapse(self.now, crash, heir.as_mut());
            let became = self.heed_key(&mut job, became).await?;
            self.put_back(&job, heir.as_ref()).await?;
            let Lease { job, token } = lease;
            self.tell_at(place, || Event::Lapse { t, job, token, became, crash });
            lapsed.push(Lapsed { lease, became, crash });
        }
        self.free_keys(lapsed.iter().map(|one| one.lease.job)).await?;
        if !lapsed.is_empty() {
            self.free_slots();
        }
        Ok(lapsed)
    }

    /// Extends leases that still hold (R21).
    pub(crate) async fn renew(
        &mut self,
        leases: &[Lease],
        length: Duration,
    ) -> Result<Vec<Renewal>> {
        const RENEW: &str = "update quell_job
                set lease_until = ?3
               from json_each(?1) l
              where quell_job.id = cast(l.key as integer) and token = l.value
                and state = 1 and lease_until > ?2
          returning quell_job.id, token";
        let until = self.now + length;
        let rows = sqlx::query(RENEW)
            .bind(json_leases(leases.iter()))
            .bind(self.now.as_micros())
            .bind(until.as_micros())
            .fetch_all(&mut *self.db)
            .await
            .map_err(|e| explain("renew leases", e))?;
        let renewed = self::leases(&rows)?;
        let t = self.now;
        for Lease { job, token } in leases.iter().filter(|lease| renewed.contains(lease)).copied() {
            self.tell(|| Event::Renew { t, job, token, until });
        }
        Ok(leases.iter().map(|lease| renewed.contains(lease).then_some(until).into()).collect())
    }

    /// A job's row.
    pub(crate) async fn load(&mut self, id: JobId) -> Result<Option<Job>> {
        const JOB: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            " from quell_job j where j.id = ?1 and j.state is not 6"
        );
        let row = sqlx::query(JOB).bind(signed(id.get())).fetch_optional(&mut *self.db).await;
        let row = row.map_err(|e| explain("read a job", e))?;
        row.map(|row| decode(&row, self.names)).transpose()
    }

    /// The next window of the job's key, if that is another job: the one with the smallest id (R10,
    /// R12).
    pub(crate) async fn heir_of(&mut self, job: &Job) -> Result<Option<Job>> {
        const NEXT: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            " from quell_job j where ",
            next_window!("j", "?1", "?2")
        );
        let Some(key) = &job.key else { return Ok(None) };
        let heir = self.window(NEXT, &job.task, key.as_str()).await?;
        Ok(heir.filter(|heir| heir.id != job.id))
    }

    /// The open window of a key.
    pub(crate) async fn open_window(&mut self, task: &TaskName, key: &str) -> Result<Option<Job>> {
        const WINDOW: &str = concat!(
            "select ",
            job_columns!("j.payload"),
            " from quell_job j where j.task_id = ?1 and j.key = ?2 and j.hold = 0"
        );
        self.window(WINDOW, task, key).await
    }

    async fn window(
        &mut self,
        sql: &'static str,
        task: &TaskName,
        key: &str,
    ) -> Result<Option<Job>> {
        let Some(task_id) = self.names.task_id(task) else { return Ok(None) };
        let row = sqlx::query(sql).bind(task_id).bind(key.to_owned());
        let row = row.fetch_optional(&mut *self.db).await;
        let row = row.map_err(|e| explain("read a window", e))?;
        row.map(|row| decode(&row, self.names)).transpose()
    }

    /// Writes a job, and the next window of its key where that absorbed it or waits for it; dedup
    /// holds follow the work.
    pub(crate) async fn put_back(&mut self, job: &Job, heir: Option<&Job>) -> Result<()> {
        let absorbed = job.state == JobState::Absorbed;
        if job.state.is_ended() {
            self.news.ended.push(job.id);
        }
        let rows: Vec<&Job> =
            [Some(job), heir.filter(|_| absorbed)].into_iter().flatten().collect();
        put(&mut self.db, self.names, &mut self.tally, &rows).await?;
        if let (true, Some(heir)) = (absorbed, heir) {
            // A key that was taken until the start is free: the job has started.
            const FOLLOW: &str = "update quell_hold set job_id = ?2
                  where job_id = ?1 and until <> '\"started\"'";
            sqlx::query(FOLLOW)
                .bind(signed(job.id.get()))
                .bind(signed(heir.id.get()))
                .execute(&mut *self.db)
                .await
                .map_err(|e| explain("move dedup keys", e))?;
            self.hand_over_records(job, heir).await?;
        }
        if let Some(next) = heir.filter(|next| !absorbed && next.waits && job.id < next.id) {
            const HOLD_BACK: &str = "update quell_job set waits = 1 where id = ?1 and waits = 0";
            let held = sqlx::query(HOLD_BACK).bind(signed(next.id.get()));
            let held = held.execute(&mut *self.db).await;
            held.map_err(|e| explain("hold a newer window back", e))?;
            self.keys_wait = true;
        }
        for changed in rows.into_iter().filter(|row| row.state == JobState::Scheduled) {
            let now = self.now;
            self.tell(|| Event::window(now, changed));
            if !changed.waits {
                self.wake(&changed.queue, changed.window.due_at);
            }
        }
        Ok(())
    }

    /// R11: the next windows of these jobs' keys may start, unless an attempt of the key runs.
    pub(crate) async fn free_keys(&mut self, jobs: impl Iterator<Item = JobId>) -> Result<()> {
        if !self.keys_wait {
            return Ok(());
        }
        let jobs = json(&jobs.map(|id| signed(id.get())).collect::<Vec<_>>())?;
        let rows = sqlx::query(FREE_KEYS).bind(jobs).fetch_all(&mut *self.db).await;
        self.tell_freed(rows)
    }

    /// The same of all keys: a row that cannot be decoded does not say which one it held.
    pub(crate) async fn free_all_keys(&mut self) -> Result<()> {
        let rows = sqlx::query(FREE_ALL).fetch_all(&mut *self.db).await;
        self.tell_freed(rows)
    }

    fn tell_freed(&mut self, rows: sqlx::Result<Vec<SqliteRow>>) -> Result<()> {
        for row in rows.map_err(|e| explain("free a key", e))? {
            let queue = self.names.lane(get(&row, 0)?).map(|lane| lane.queue.clone());
            if let Some(queue) = queue {
                self.wake(&queue, Timestamp::from_micros(get(&row, 1)?));
            }
        }
        Ok(())
    }

    /// R31: what queues' limits held back may start, at any worker.
    pub(crate) fn free_slots(&mut self) {
        let limited = self.settings.iter().filter(|(_, settings)| settings.limits_concurrency());
        let limited: Vec<QueueName> = limited.map(|(queue, _)| queue.clone()).collect();
        // A wake-up without a time promises no job that is due.
        limited.iter().for_each(|queue| self.wake(queue, Timestamp::MIN));
    }

    /// Puts an attempt that did not succeed on record.
    pub(crate) async fn record_attempt(
        &mut self,
        job: &Job,
        outcome: AttemptOutcome,
        error: Option<String>,
    ) -> Result<()> {
        let (Some(worker), Some(started_at)) = (job.worker.clone(), job.started_at) else {
            return Ok(());
        };
        let (token, ended_at) = (job.token, Some(self.now));
        let outcome = Some(outcome);
        let attempt = Attempt { token, worker, started_at, ended_at, outcome, error };
        self.write_attempt(job.id, &attempt).await?;
        self.give_up_attempts(job).await
    }

    /// Writes an attempt that has ended.
    pub(crate) async fn write_attempt(&mut self, id: JobId, attempt: &Attempt) -> Result<()> {
        sqlx::query(
            "insert into quell_attempt (job_id, token, worker, started_at, ended_at, outcome, error)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )
        .bind(signed(id.get()))
        .bind(signed(attempt.token.get()))
        .bind(attempt.worker.as_str().to_owned())
        .bind(attempt.started_at.as_micros())
        .bind(attempt.ended_at.map(Timestamp::as_micros))
        .bind(attempt.outcome.map(AttemptOutcome::code))
        .bind(attempt.error.clone())
        .execute(&mut *self.db)
        .await
        .map_err(|e| explain("record an attempt", e))?;
        Ok(())
    }
}

/// Leases from rows of job and token: a job's token is what tells a late message from a good one.
fn leases(rows: &[SqliteRow]) -> Result<HashSet<Lease>> {
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
fn json_leases<'l>(leases: impl Iterator<Item = &'l Lease>) -> String {
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
