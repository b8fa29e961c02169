//! Schedules on disk (R36): loads the rows, lets the core decide, accepts the triggers of the ticks
//! that fire, and writes both in one transaction.
//!
//! Whoever fires ticks of a schedule holds its row; others pass it over, so each tick is one
//! trigger whatever number of workers ask. Looking for due ticks writes nothing.

use std::collections::BTreeSet;

use quell_core::history::Event;
use quell_core::schedule::{
    Fired, RECORD, Schedule, ScheduleInfo, ScheduleState, Tick, Ticked, TickedBy, UNREADABLE_PAUSE,
    no_such_schedule,
};
use quell_core::{Batch, Error, JobId, Receipt, Result, ScheduleName, Timestamp};
use sqlx::postgres::PgRow;
use tracing::error;

use crate::connections::Connections;
use crate::error::corrupt;
use crate::row::{get, optional_time, signed, time};
use crate::sql::{PgQuery, Sql};
use crate::tx::{Asked, Tx, first, read};

/// A schedule and its number.
#[derive(Debug)]
pub(crate) struct Row {
    id: i32,
    pub(crate) info: ScheduleInfo,
}

/// What [`decode_schedule`] reads.
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select id, name, schedule, paused, handled_at, last_at, next_at from quell.schedule ",
            $rest
        )
    };
}

pub(crate) const ALL_SCHEDULES: &str = select!("order by name collate \"C\"");

/// Looks, without writing, when the next tick is due; `fired` is empty.
pub(crate) async fn look_for_ticks(pool: &Connections, sql: &Sql, asked: Asked) -> Result<Ticked> {
    let rows = read(pool, sql, "look for due ticks", asked.bind(sql.query(LOOK))).await?;
    decode_look(first(&rows)?)
}

const LOOK: &str = "select quell.peek($1, $2),
            (select next_at from quell.schedule where next_at is not null
              order by next_at, name limit 1)";

fn decode_look(row: &PgRow) -> Result<Ticked> {
    Ok(Ticked { now: time(row, 0)?, fired: Vec::new(), next: optional_time(row, 1)? })
}

/// The newest ticks among a job's triggers.
pub(crate) fn ticks_query(sql: &Sql, job: JobId) -> PgQuery {
    const TICKS: &str = "select s.name, t.tick_at, t.backfilled
           from quell.tick_fired t join quell.schedule s on s.id = t.schedule_id
          where t.job_id = $1 order by t.tick_at desc limit $2";
    // Those of one moment are chosen by name, which would need a sort here.
    const ENOUGH: usize = 4 * Tick::SHOWN;
    let query = sql.query(TICKS).bind(signed(job.get()));
    query.bind(i64::try_from(ENOUGH).unwrap_or(i64::MAX))
}

/// What [`ticks_query`] brought.
pub(crate) fn decode_ticks(job: JobId, rows: &[PgRow]) -> Result<Vec<Tick>> {
    let decode = |row: &PgRow| {
        let by = if get(row, 2)? { TickedBy::Backfill } else { TickedBy::Plan };
        let schedule = ScheduleName::new(get::<&str, _>(row, 0)?)?;
        Ok(Tick { schedule, tick: time(row, 1)?, job: Some(job), by })
    };
    Ok(Tick::newest(rows.iter().map(decode).collect::<Result<_>>()?))
}

impl Tx<'_> {
    pub(crate) async fn set_schedule(&mut self, schedule: &Schedule) -> Result<()> {
        const INSERT: &str = "insert into quell.schedule (name, schedule, handled_at, next_at)
             values ($1, $2, $3, $4)";
        let found = self.find_schedule(&schedule.name).await?;
        self.read_clock().await?;
        let Some(mut row) = found else {
            let info = ScheduleInfo::new(schedule.clone(), self.now);
            // Fails, to be tried again, where another call made it a moment earlier.
            let query = self
                .sql
                .query(INSERT)
                .bind(schedule.name.as_str().to_owned())
                .bind(json(schedule)?)
                .bind(info.handled.as_micros())
                .bind(info.next.map(Timestamp::as_micros));
            self.run("make a schedule", query).await?;
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
            "delete from quell.tick_fired where schedule_id = $1",
            "delete from quell.schedule where id = $1",
        ];
        let row = self.known_schedule(name).await?;
        for sql in DELETES {
            self.run("remove a schedule", self.sql.query(sql).bind(row.id)).await?;
        }
        let (t, schedule) = (self.now, name.clone());
        self.tell(|| Event::Unscheduled { t, schedule });
        Ok(())
    }

    /// Fires what is due, in the order in which it became due.
    pub(crate) async fn fire_due(&mut self, limit: usize) -> Result<Ticked> {
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
        let query = self.asked_now().bind(self.sql.query(LOOK));
        let rows = self.fetch("look for due ticks", query).await?;
        Ok(Ticked { now: self.now, fired, next: decode_look(first(&rows)?)?.next })
    }

    pub(crate) async fn run_schedule(&mut self, name: &ScheduleName) -> Result<Receipt> {
        let row = self.known_schedule(name).await?;
        let place = self.told();
        let mut receipts = self.accept_promised(&[Batch::one(row.info.schedule.trigger)]).await?;
        let receipt = receipts.pop().transpose()?.and_then(|mut of_batch| of_batch.pop());
        let receipt = receipt.ok_or_else(|| corrupt("the receipt of a schedule"))?;
        let (t, schedule, told) = (self.now, name.clone(), receipt.clone());
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
        const PRUNE: &str = "delete from quell.tick_fired
              where ctid = any(array(select ctid from quell.tick_fired where tick_at < $1 limit $2
                                        for update skip locked))";
        let query = self.sql.query(PRUNE).bind(self.now.before(RECORD).as_micros());
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        self.run_counted("forget old ticks", query).await
    }

    /// Accepts the triggers of ticks, each of the schedule at its place in `rows`, and keeps on
    /// record that they fired.
    async fn fire(
        &mut self,
        rows: &[Row],
        planned: &[(usize, Timestamp)],
        by: TickedBy,
    ) -> Result<Vec<Fired>> {
        const RECORD_TICKS: &str = "insert into quell.tick_fired
                (schedule_id, tick_at, job_id, backfilled)
             select id, at, job, $4 from unnest($1::int[], $2::bigint[], $3::bigint[]) t (id, at, job)";
        let planned: Vec<(&Row, Timestamp)> =
            planned.iter().filter_map(|(at, tick)| Some((rows.get(*at)?, *tick))).collect();
        if planned.is_empty() {
            return Ok(Vec::new());
        }
        let batch = |(row, _): &(&Row, _)| Batch::one(row.info.schedule.trigger.clone());
        let batches: Vec<Batch> = planned.iter().map(batch).collect();
        // The time by which the ticks were chosen: to accept them may take until the next one.
        let (t, place) = (self.now, self.told());
        let receipts =
            self.accept_promised(&batches).await?.into_iter().collect::<Result<Vec<_>>>()?;
        let mut fired = Vec::with_capacity(planned.len());
        let (mut ids, mut times, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
        for ((row, tick), receipt) in planned.into_iter().zip(receipts.into_iter().flatten()) {
            ids.push(row.id);
            times.push(tick.as_micros());
            jobs.push(receipt.job().map(|job| signed(job.get())));
            let one = Fired::new(&row.info.schedule, tick, receipt);
            self.tell_at(place + fired.len(), || Event::ticked(t, &one, by));
            fired.push(one);
        }
        let query = self.sql.query(RECORD_TICKS).bind(ids).bind(times).bind(jobs);
        self.run("record ticks", query.bind(by == TickedBy::Backfill)).await?;
        Ok(fired)
    }

    /// Schedules that are due, locked; those that another call is firing are passed over.
    async fn due_schedules(&mut self, limit: usize) -> Result<Vec<Row>> {
        self.read_clock().await?;
        let due = select!(
            "where next_at <= $1 order by next_at, name collate \"C\" limit $2
               for update skip locked"
        );
        let query = self.sql.query(due).bind(self.now.as_micros());
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let mut due = Vec::new();
        for row in &self.fetch("read due schedules", query).await? {
            match decode_schedule(row) {
                Ok(schedule) => due.push(schedule),
                Err(error) => self.postpone(get(row, 0)?, &error).await?,
            }
        }
        Ok(due)
    }

    /// R25: a schedule that cannot be decoded is tried again later, by a process that may know how,
    /// and stops no other. Its missed ticks follow its `catch_up` then.
    async fn postpone(&mut self, schedule: i32, error: &Error) -> Result<()> {
        error!(%error, "schedule cannot be decoded, trying again");
        let query = self.sql.query("update quell.schedule set next_at = $2 where id = $1");
        let query = query.bind(schedule).bind((self.now + UNREADABLE_PAUSE).as_micros());
        self.run("postpone a schedule", query).await
    }

    async fn find_schedule(&mut self, name: &ScheduleName) -> Result<Option<Row>> {
        let query = self.sql.query(select!("where name = $1 for update"));
        let rows = self.fetch("read a schedule", query.bind(name.as_str().to_owned())).await?;
        rows.first().map(decode_schedule).transpose()
    }

    async fn known_schedule(&mut self, name: &ScheduleName) -> Result<Row> {
        let found = self.find_schedule(name).await?;
        self.read_clock().await?;
        found.ok_or_else(|| no_such_schedule(name))
    }

    async fn fired_between(
        &mut self,
        schedule: i32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<BTreeSet<Timestamp>> {
        const FIRED: &str = "select tick_at from quell.tick_fired
              where schedule_id = $1 and tick_at between $2 and $3";
        let query = self.sql.query(FIRED).bind(schedule).bind(from.as_micros());
        let rows = self.fetch("read ticks", query.bind(to.as_micros())).await?;
        rows.iter().map(|row| time(row, 0)).collect()
    }

    async fn write_schedule(&mut self, row: &Row) -> Result<()> {
        const UPDATE: &str = "update quell.schedule
                set schedule = $2, paused = $3, handled_at = $4, last_at = $5, next_at = $6
              where id = $1";
        let Row { id, info } = row;
        let query = self
            .sql
            .query(UPDATE)
            .bind(*id)
            .bind(json(&info.schedule)?)
            .bind(info.state == ScheduleState::Paused)
            .bind(info.handled.as_micros())
            .bind(info.last.map(Timestamp::as_micros))
            .bind(info.next.map(Timestamp::as_micros));
        self.run("write a schedule", query).await
    }

    /// Tells workers, who sleep until the next tick they know of, and the history.
    fn schedule_changed(&mut self, info: ScheduleInfo) {
        self.news.next_tick = self.news.next_tick.into_iter().chain(info.next).min();
        let t = self.now;
        self.tell(|| Event::schedule(t, &info));
    }
}

fn json(schedule: &Schedule) -> Result<String> {
    let name = &schedule.name;
    serde_json::to_string(schedule)
        .map_err(|error| corrupt(format_args!("schedule {name}: {error}")))
}

/// A row of a schedule.
pub(crate) fn decode_schedule(row: &PgRow) -> Result<Row> {
    let name: &str = get(row, 1)?;
    let schedule: Schedule = serde_json::from_str(get(row, 2)?)
        .map_err(|error| corrupt(format_args!("schedule {name}: {error}")))?;
    let state = if get(row, 3)? { ScheduleState::Paused } else { ScheduleState::Active };
    let (last, next) = (optional_time(row, 5)?, optional_time(row, 6)?);
    let info = ScheduleInfo { schedule, state, handled: time(row, 4)?, last, next };
    Ok(Row { id: get(row, 0)?, info })
}
