//! Schedules and their ticks (R36), as the engine's steps load and write them.
//!
//! A step that fires ticks of a schedule holds its row, and others pass it over, so each tick is one
//! trigger whatever number of workers ask. Looking for due ticks writes nothing.

use std::collections::BTreeSet;

use quell_core::schedule::{RECORD, ScheduleInfo, ScheduleState, Tick, Ticked, TickedBy};
use quell_core::{JobId, Result, ScheduleName, Timestamp};
use quell_engine::sql::decode_schedule;
use quell_engine::{Entry, Place, Row, RowName, Scan, Seen};
use sqlx::postgres::PgRow;

use crate::backend::PostgresBackend;
use crate::connections::Connections;
use crate::error::corrupt;
use crate::row::{Columns, get, optional_time, signed, time, unsigned};
use crate::sql::{PgQuery, Sql};
use crate::step::Step;
use crate::tx::{Asked, Tx, first, read};

/// Looks, without writing, when the next tick is due; `fired` is empty.
pub(crate) async fn look_for_ticks(pool: &Connections, sql: &Sql, asked: Asked) -> Result<Ticked> {
    const LOOK: &str = "select quell.peek($1, $2),
                (select next_at from quell.schedule where next_at is not null
                  order by next_at, name limit 1)";
    let rows = read(pool, sql, "look for due ticks", asked.bind(sql.query(LOOK))).await?;
    let row = first(&rows)?;
    Ok(Ticked { now: time(row, 0)?, fired: Vec::new(), next: optional_time(row, 1)? })
}

/// The newest ticks among a job's triggers.
pub(crate) fn ticks_query(sql: &Sql, job: JobId) -> PgQuery {
    const TICKS: &str = "select s.name, t.tick_at, t.job_id, t.backfilled
           from quell.tick_fired t join quell.schedule s on s.id = t.schedule_id
          where t.job_id = $1 order by t.tick_at desc limit $2";
    // Those of one moment are chosen by name, which would need a sort here.
    const ENOUGH: usize = 4 * Tick::SHOWN;
    let query = sql.query(TICKS).bind(signed(job.get()));
    query.bind(i64::try_from(ENOUGH).unwrap_or(i64::MAX))
}

/// A row of a tick: the schedule's name, the time, the job, and whether a backfill fired it.
pub(crate) fn decode_tick(row: &PgRow) -> Result<Tick> {
    let by = if get(row, 3)? { TickedBy::Backfill } else { TickedBy::Plan };
    let job = get::<Option<i64>, _>(row, 2)?.map(|id| JobId::new(unsigned(id)));
    Ok(Tick { schedule: ScheduleName::new(get::<&str, _>(row, 0)?)?, tick: time(row, 1)?, job, by })
}

impl PostgresBackend {
    /// Loads schedules and ticks.
    pub(crate) async fn load_schedules(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
        found: &mut Vec<(RowName, Row)>,
    ) -> Result<()> {
        const SCHEDULES: &str = "select name, schedule, paused, handled_at, last_at, next_at
               from quell.schedule where name = any($1)";
        const LOCK: &str = "select name, schedule, paused, handled_at, last_at, next_at
               from quell.schedule where name = any($1) order by name collate \"C\" for update";
        // Each is looked up by itself: a join that was planned while the table was empty reads all.
        const TICKS: &str = "select k.name, t.tick_at, t.job_id, t.backfilled
               from unnest($1::text[], $2::bigint[]) k (name, at)
              cross join lateral (
                    select * from quell.tick_fired f
                     where f.schedule_id = (select s.id from quell.schedule s
                                             where s.name = k.name)
                       and f.tick_at = k.at
                    offset 0) t";
        let schedules = names.iter().filter_map(|name| match name {
            RowName::Schedule(name) => Some(name.as_str().to_owned()),
            _ => None,
        });
        let schedules: Vec<String> = schedules.collect();
        if !schedules.is_empty() {
            let sql = if step.writes() { LOCK } else { SCHEDULES };
            let query = self.sql.query(sql).bind(schedules);
            let rows = step.fetch(self, "read schedules", query).await?;
            if step.writes() {
                self.read_clock(step).await?;
            }
            for row in &rows {
                let info = decode_schedule(&Columns(row))?;
                let name = info.schedule.name.clone();
                found.push((RowName::Schedule(name), Row::Schedule(Box::new(info))));
            }
        }
        let ticks = names.iter().filter_map(|name| match name {
            RowName::Tick(name, at) => Some((name.as_str().to_owned(), at.as_micros())),
            _ => None,
        });
        let (schedules, times): (Vec<String>, Vec<i64>) = ticks.unzip();
        if schedules.is_empty() {
            return Ok(());
        }
        let query = self.sql.query(TICKS).bind(schedules).bind(times);
        for row in &step.fetch(self, "read ticks", query).await? {
            let tick = decode_tick(row)?;
            found.push((RowName::Tick(tick.schedule.clone(), tick.tick), Row::Tick(tick)));
        }
        Ok(())
    }

    /// Schedules by when they tick next. A step that writes locks them, and passes over those of others.
    pub(crate) async fn planned(&self, step: &mut Step, scan: &Scan) -> Result<Seen> {
        const PLAN: &str = "select name, next_at from quell.schedule
              where next_at is not null and next_at <= $1
              order by next_at, name collate \"C\" limit $2";
        const LOCK: &str = "select name, next_at from quell.schedule
              where next_at is not null and next_at <= $1
              order by next_at, name collate \"C\" limit $2 for update skip locked";
        let query = self.sql.query(if step.writes() { LOCK } else { PLAN });
        let query = query.bind(scan.to.unwrap_or(Timestamp::MAX).as_micros());
        let query = query.bind(i64::try_from(scan.limit).unwrap_or(i64::MAX));
        let rows = step.fetch(self, "read due schedules", query).await?;
        let entry = |row: &PgRow| {
            let name = RowName::Schedule(ScheduleName::new(get::<&str, _>(row, 0)?)?);
            Ok(Entry { place: Place::at(time(row, 1)?), name, note: None })
        };
        let entries = rows.iter().map(entry).collect::<Result<Vec<Entry>>>()?;
        Ok(Seen { more: entries.len() >= scan.limit, entries })
    }

    /// The ticks of a schedule that fired, by when they were due.
    pub(crate) async fn fired(
        &self,
        step: &mut Step,
        schedule: &ScheduleName,
        scan: &Scan,
    ) -> Result<Seen> {
        const FIRED: &str = "select t.tick_at from quell.tick_fired t
              where t.schedule_id = (select s.id from quell.schedule s where s.name = $1)
                and t.tick_at >= $2 and t.tick_at <= $3 and t.tick_at > $4
              order by t.tick_at limit $5";
        let after = scan.after.as_ref().map_or(Timestamp::MIN, |(place, _)| place.at);
        let micros = |at: Option<Timestamp>, or: Timestamp| at.unwrap_or(or).as_micros();
        let query = self.sql.query(FIRED).bind(schedule.as_str().to_owned());
        let query = query.bind(micros(scan.from, Timestamp::MIN));
        let query = query.bind(micros(scan.to, Timestamp::MAX)).bind(after.as_micros());
        let query = query.bind(i64::try_from(scan.limit).unwrap_or(i64::MAX));
        let rows = step.fetch(self, "read ticks", query).await?;
        let entry = |row: &PgRow| {
            let at = time(row, 0)?;
            let name = RowName::Tick(schedule.clone(), at);
            Ok(Entry { place: Place::at(at), name, note: None })
        };
        let entries = rows.iter().map(entry).collect::<Result<Vec<Entry>>>()?;
        Ok(Seen { more: entries.len() >= scan.limit, entries })
    }
}

impl Tx {
    /// Writes schedules, removes them with their ticks, and records ticks. If another call makes a
    /// schedule of the same name a moment earlier, this one has a write conflict and is retried.
    pub(crate) async fn write_schedules(
        &mut self,
        step: &Step,
        schedules: &[(ScheduleName, Option<ScheduleInfo>)],
    ) -> Result<()> {
        const INSERT: &str = "insert into quell.schedule
                (name, schedule, paused, handled_at, last_at, next_at)
             values ($1, $2, $3, $4, $5, $6)";
        const UPDATE: &str = "update quell.schedule
                set schedule = $2, paused = $3, handled_at = $4, last_at = $5, next_at = $6
              where name = $1";
        const REMOVE: [&str; 2] = [
            "delete from quell.tick_fired
              where schedule_id = (select id from quell.schedule where name = $1)",
            "delete from quell.schedule where name = $1",
        ];
        for (name, info) in schedules {
            let text = name.as_str().to_owned();
            let Some(info) = info else {
                for sql in REMOVE {
                    self.run("remove a schedule", self.sql.query(sql).bind(text.clone())).await?;
                }
                continue;
            };
            let is_there = step.there.contains(&RowName::Schedule(name.clone()));
            let schedule = serde_json::to_string(&info.schedule)
                .map_err(|error| corrupt(format_args!("schedule {name}: {error}")))?;
            let query = self
                .sql
                .query(if is_there { UPDATE } else { INSERT })
                .bind(text)
                .bind(schedule)
                .bind(info.state == ScheduleState::Paused)
                .bind(info.handled.as_micros())
                .bind(info.last.map(Timestamp::as_micros))
                .bind(info.next.map(Timestamp::as_micros));
            self.run("write a schedule", query).await?;
        }
        Ok(())
    }

    /// Records ticks that fired, and forgets others.
    pub(crate) async fn write_ticks(
        &mut self,
        ticks: &[(ScheduleName, Timestamp, Option<Tick>)],
    ) -> Result<()> {
        const RECORD: &str =
            "insert into quell.tick_fired (schedule_id, tick_at, job_id, backfilled)
             select s.id, t.at, t.job, t.backfilled
               from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bool[])
                    t (name, at, job, backfilled)
              cross join lateral (
                    select id from quell.schedule where name = t.name offset 0) s";
        // The schedule is locked by this call, so its ticks stay where they are.
        const FORGET: &str = "delete from quell.tick_fired where ctid = any(array(
                    select t.place
                      from unnest($1::text[], $2::bigint[]) k (name, at)
                     cross join lateral (
                           select f.ctid as place from quell.tick_fired f
                            where f.schedule_id = (select s.id from quell.schedule s
                                                    where s.name = k.name)
                              and f.tick_at = k.at
                           offset 0) t))";
        let (gone, fired): (Vec<_>, Vec<_>) = ticks.iter().partition(|(.., tick)| tick.is_none());
        let names =
            |ticks: &[&(ScheduleName, Timestamp, Option<Tick>)]| -> (Vec<String>, Vec<i64>) {
                ticks.iter().map(|(name, at, _)| (name.as_str().to_owned(), at.as_micros())).unzip()
            };
        if !gone.is_empty() {
            let (schedules, times) = names(&gone);
            let query = self.sql.query(FORGET).bind(schedules).bind(times);
            self.run("forget ticks", query).await?;
        }
        if fired.is_empty() {
            return Ok(());
        }
        let (schedules, times) = names(&fired);
        let ticks = || fired.iter().filter_map(|(.., tick)| tick.as_ref());
        let jobs = ticks().map(|tick| tick.job.map(|job| signed(job.get())));
        let query = self.sql.query(RECORD).bind(schedules).bind(times);
        let query = query.bind(jobs.collect::<Vec<Option<i64>>>());
        let query = query.bind(ticks().map(|one| one.by == TickedBy::Backfill).collect::<Vec<_>>());
        self.run("record ticks", query).await
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

    /// Puts schedules off that cannot be decoded (R25).
    pub(crate) async fn postpone(&mut self, schedules: &[(ScheduleName, Timestamp)]) -> Result<()> {
        const POSTPONE: &str = "update quell.schedule set next_at = $2 where name = $1";
        for (name, at) in schedules {
            let query = self.sql.query(POSTPONE).bind(name.as_str().to_owned());
            self.run("postpone a schedule", query.bind(at.as_micros())).await?;
        }
        Ok(())
    }
}
