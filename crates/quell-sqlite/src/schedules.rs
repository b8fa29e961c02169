//! Schedules on disk (R36): loads the rows, lets the core decide, accepts the triggers of the ticks
//! that fire, and writes both in one transaction.
//!
//! Looking for due ticks writes nothing, so that idle workers cause no write.

use std::collections::BTreeSet;

use quell_core::history::Event;
use quell_core::schedule::{
    Fired, RECORD, Schedule, ScheduleInfo, ScheduleState, Tick, Ticked, TickedBy, UNREADABLE_PAUSE,
    no_such_schedule,
};
use quell_core::{Batch, Error, JobId, Receipt, Result, ScheduleName, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use tracing::error;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::row::{get, optional_time, signed, time};
use crate::tx::Tx;

/// A schedule and its number.
struct Row {
    id: i64,
    info: ScheduleInfo,
}

/// What [`decode`] reads.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select id, name, schedule, paused, handled_at, last_at, next_at from quell_schedule ",
            $rest
        )
    };
}

/// Looks, without writing, when the next tick is due; `fired` is empty.
pub(crate) async fn look_for_ticks(db: &mut SqliteConnection, now: Timestamp) -> Result<Ticked> {
    const LOOK: &str =
        "select max(?1, clock), (select min(next_at) from quell_schedule) from quell_meta";
    let row = sqlx::query(LOOK).bind(now.as_micros()).fetch_one(db).await;
    let row = row.map_err(|e| explain("look for due ticks", e))?;
    Ok(Ticked { now: time(&row, 0)?, fired: Vec::new(), next: optional_time(&row, 1)? })
}

/// All schedules, by name.
pub(crate) async fn read_schedules(db: &mut SqliteConnection) -> Result<Vec<ScheduleInfo>> {
    let rows = sqlx::query(select!("order by name")).fetch_all(db).await;
    let rows = rows.map_err(|e| explain("read schedules", e))?;
    let decode = |row| {
        let decoded = decode(row).map(|row| row.info);
        decoded.inspect_err(|error| error!(%error, "schedule left out of a list")).ok()
    };
    Ok(rows.iter().filter_map(decode).collect())
}

/// The newest ticks among a job's triggers.
pub(crate) async fn read_ticks(db: &mut SqliteConnection, job: JobId) -> Result<Vec<Tick>> {
    const TICKS: &str = "select s.name, t.tick_at, t.backfilled
           from quell_tick t join quell_schedule s on s.id = t.schedule_id
          where t.job_id = ?1 order by t.tick_at desc limit ?2 + 0";
    // Those of one moment are chosen by name, which would need a sort here.
    const ENOUGH: usize = 4 * Tick::SHOWN;
    let rows = sqlx::query(TICKS)
        .bind(signed(job.get()))
        .bind(i64::try_from(ENOUGH).unwrap_or(i64::MAX))
        .fetch_all(db)
        .await;
    let rows = rows.map_err(|e| explain("read ticks", e))?;
    let decode = |row: &SqliteRow| {
        let by = if get(row, 2)? { TickedBy::Backfill } else { TickedBy::Plan };
        let schedule = ScheduleName::new(get::<&str, _>(row, 0)?)?;
        Ok(Tick { schedule, tick: time(row, 1)?, job: Some(job), by })
    };
    Ok(Tick::newest(rows.iter().map(decode).collect::<Result<_>>()?))
}

impl Tx<'_> {
    pub(crate) async fn set_schedule(&mut self, schedule: &Schedule) -> Result<()> {
        const INSERT: &str = "insert into quell_schedule (name, schedule, handled_at, next_at)
             values (?1, ?2, ?3, ?4)";
        let Some(mut row) = self.find_schedule(&schedule.name).await? else {
            let info = ScheduleInfo::new(schedule.clone(), self.now);
            sqlx::query(INSERT)
                .bind(schedule.name.as_str().to_owned())
                .bind(json(schedule)?)
                .bind(info.handled.as_micros())
                .bind(info.next.map(Timestamp::as_micros))
                .execute(&mut *self.db)
                .await
                .map_err(|e| explain("make a schedule", e))?;
            self.schedule_changed(info);
            return Ok(());
        };
        if row.info.set(schedule, self.now) {
            self.write_schedule(&row).await?;
            self.schedule_changed(row.info);
        }
        Ok(())
    }

    pub(crate) async fn set_schedule_state(
        &mut self,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        let mut row = self.known_schedule(name).await?;
        if row.info.switch(state, self.now) {
            self.write_schedule(&row).await?;
            self.schedule_changed(row.info);
        }
        Ok(())
    }

    pub(crate) async fn delete_schedule(&mut self, name: &ScheduleName) -> Result<()> {
        const DELETES: [&str; 2] = [
            "delete from quell_tick where schedule_id = ?1",
            "delete from quell_schedule where id = ?1",
        ];
        let row = self.known_schedule(name).await?;
        for sql in DELETES {
            let deleted = sqlx::query(sql).bind(row.id).execute(&mut *self.db).await;
            deleted.map_err(|e| explain("remove a schedule", e))?;
        }
        let (t, schedule) = (self.now, name.clone());
        self.tell(|| Event::Unscheduled { t, schedule });
        Ok(())
    }

    /// Fires what is due, in the order in which it became due.
    pub(crate) async fn tick(&mut self, limit: usize) -> Result<Ticked> {
        let (mut due, mut planned) = (self.due_schedules(limit).await?, Vec::new());
        for (at, row) in due.iter_mut().enumerate() {
            let known = self.fired_between(row.id, row.info.handled, self.now).await?;
            let ticks = row.info.due(self.now, limit.saturating_sub(planned.len()), &known);
            planned.extend(ticks.into_iter().map(|tick| (at, tick)));
        }
        let fired = self.fire(&due, &planned, TickedBy::Plan).await?;
        for row in &due {
            self.write_schedule(row).await?;
        }
        let next = look_for_ticks(&mut self.db, self.now).await?.next;
        Ok(Ticked { now: self.now, fired, next })
    }

    pub(crate) async fn run_schedule(&mut self, name: &ScheduleName) -> Result<Receipt> {
        let row = self.known_schedule(name).await?;
        let (t, place) = (self.now, self.told());
        let mut receipts = self.accept_promised(&[Batch::one(row.info.schedule.trigger)]).await?;
        let receipt = receipts.pop().transpose()?.and_then(|mut of_batch| of_batch.pop());
        let receipt = receipt.ok_or_else(|| corrupt("the receipt of a schedule"))?;
        let (schedule, told) = (name.clone(), receipt.clone());
        self.tell_at(place, || Event::ScheduleRun { t, schedule, receipt: told });
        Ok(receipt)
    }

    pub(crate) async fn backfill(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        let mut row = self.known_schedule(name).await?;
        let known = self.fired_between(row.id, from, to).await?;
        let ticks = row.info.backfill(from, to, self.now, &known)?;
        let planned: Vec<_> = ticks.into_iter().map(|tick| (0, tick)).collect();
        let rows = [row];
        let fired = self.fire(&rows, &planned, TickedBy::Backfill).await?;
        for row in rows.iter().filter(|_| !fired.is_empty()) {
            self.write_schedule(row).await?;
        }
        Ok(u64::try_from(fired.len()).unwrap_or(u64::MAX))
    }

    /// Forgets ticks that no backfill can reach any more.
    pub(crate) async fn prune_ticks(&mut self, limit: usize) -> Result<u64> {
        const PRUNE: &str = "delete from quell_tick where (schedule_id, tick_at) in
             (select schedule_id, tick_at from quell_tick where tick_at < ?1 limit ?2 + 0)";
        let removed = sqlx::query(PRUNE)
            .bind(self.now.before(RECORD).as_micros())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .execute(&mut *self.db)
            .await
            .map_err(|e| explain("forget old ticks", e))?;
        Ok(removed.rows_affected())
    }

    /// Accepts the triggers of ticks, each of the schedule at its place in `rows`, and keeps on
    /// record that they fired.
    async fn fire(
        &mut self,
        rows: &[Row],
        planned: &[(usize, Timestamp)],
        by: TickedBy,
    ) -> Result<Vec<Fired>> {
        const RECORD_TICKS: &str =
            "insert into quell_tick (schedule_id, tick_at, job_id, backfilled)
             select value ->> 0, value ->> 1, value ->> 2, ?2 from json_each(?1)";
        let planned: Vec<(&Row, Timestamp)> =
            planned.iter().filter_map(|(at, tick)| Some((rows.get(*at)?, *tick))).collect();
        let batch = |(row, _): &(&Row, _)| Batch::one(row.info.schedule.trigger.clone());
        let batches: Vec<Batch> = planned.iter().map(batch).collect();
        let (t, place) = (self.now, self.told());
        let receipts =
            self.accept_promised(&batches).await?.into_iter().collect::<Result<Vec<_>>>()?;
        let mut fired = Vec::with_capacity(planned.len());
        let mut ticks = Vec::with_capacity(planned.len());
        for ((row, tick), receipt) in planned.into_iter().zip(receipts.into_iter().flatten()) {
            let job = receipt.job().map(|job| signed(job.get()));
            ticks.push((row.id, tick.as_micros(), job));
            let one = Fired::new(&row.info.schedule, tick, receipt);
            self.tell_at(place + fired.len(), || Event::ticked(t, &one, by));
            fired.push(one);
        }
        if !ticks.is_empty() {
            let query = sqlx::query(RECORD_TICKS).bind(json(&ticks)?);
            let recorded = query.bind(by == TickedBy::Backfill).execute(&mut *self.db).await;
            recorded.map_err(|e| explain("record ticks", e))?;
        }
        Ok(fired)
    }

    async fn due_schedules(&mut self, limit: usize) -> Result<Vec<Row>> {
        let rows = sqlx::query(select!("where next_at <= ?1 order by next_at, name limit ?2 + 0"))
            .bind(self.now.as_micros())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *self.db)
            .await;
        let mut due = Vec::new();
        for row in &rows.map_err(|e| explain("read due schedules", e))? {
            match decode(row) {
                Ok(schedule) => due.push(schedule),
                Err(error) => self.postpone(get(row, 0)?, &error).await?,
            }
        }
        Ok(due)
    }

    /// R25: a schedule that cannot be decoded is tried again later, by a process that may know how,
    /// and stops no other. Its missed ticks follow its `catch_up` then.
    async fn postpone(&mut self, schedule: i64, error: &Error) -> Result<()> {
        error!(%error, "schedule cannot be decoded, trying again");
        let later = (self.now + UNREADABLE_PAUSE).as_micros();
        sqlx::query("update quell_schedule set next_at = ?2 where id = ?1")
            .bind(schedule)
            .bind(later)
            .execute(&mut *self.db)
            .await
            .map_err(|e| explain("postpone a schedule", e))?;
        Ok(())
    }

    async fn find_schedule(&mut self, name: &ScheduleName) -> Result<Option<Row>> {
        let query = sqlx::query(select!("where name = ?1")).bind(name.as_str().to_owned());
        let row = query.fetch_optional(&mut *self.db).await;
        row.map_err(|e| explain("read a schedule", e))?.as_ref().map(decode).transpose()
    }

    async fn known_schedule(&mut self, name: &ScheduleName) -> Result<Row> {
        self.find_schedule(name).await?.ok_or_else(|| no_such_schedule(name))
    }

    async fn fired_between(
        &mut self,
        schedule: i64,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<BTreeSet<Timestamp>> {
        const FIRED: &str =
            "select tick_at from quell_tick where schedule_id = ?1 and tick_at between ?2 and ?3";
        let ticks: Vec<i64> = sqlx::query_scalar(FIRED)
            .bind(schedule)
            .bind(from.as_micros())
            .bind(to.as_micros())
            .fetch_all(&mut *self.db)
            .await
            .map_err(|e| explain("read ticks", e))?;
        Ok(ticks.into_iter().map(Timestamp::from_micros).collect())
    }

    async fn write_schedule(&mut self, row: &Row) -> Result<()> {
        const UPDATE: &str = "update quell_schedule
                set schedule = ?2, paused = ?3, handled_at = ?4, last_at = ?5, next_at = ?6
              where id = ?1";
        let Row { id, info } = row;
        sqlx::query(UPDATE)
            .bind(id)
            .bind(json(&info.schedule)?)
            .bind(info.state == ScheduleState::Paused)
            .bind(info.handled.as_micros())
            .bind(info.last.map(Timestamp::as_micros))
            .bind(info.next.map(Timestamp::as_micros))
            .execute(&mut *self.db)
            .await
            .map_err(|e| explain("write a schedule", e))?;
        Ok(())
    }

    /// Tells workers, who sleep until the next tick they know of, and the history.
    fn schedule_changed(&mut self, info: ScheduleInfo) {
        self.news.next_tick = self.news.next_tick.into_iter().chain(info.next).min();
        let t = self.now;
        self.tell(|| Event::schedule(t, &info));
    }
}

/// A row of [`select`].
fn decode(row: &SqliteRow) -> Result<Row> {
    let name: &str = get(row, 1)?;
    let schedule: Schedule = serde_json::from_str(get(row, 2)?)
        .map_err(|error| corrupt(format_args!("schedule {name}: {error}")))?;
    let state = if get(row, 3)? { ScheduleState::Paused } else { ScheduleState::Active };
    let (last, next) = (optional_time(row, 5)?, optional_time(row, 6)?);
    let info = ScheduleInfo { schedule, state, handled: time(row, 4)?, last, next };
    Ok(Row { id: get(row, 0)?, info })
}
