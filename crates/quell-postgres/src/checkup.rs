//! What `quell doctor` reads of a schema, and how its clock is set back (R38).
//!
//! Setting back scans every table that keeps times. It locks the clock, and no other process of the
//! store may run.

use std::time::Duration;

use quell_core::checkup::{Checkup, ClockReading, ClockReset, Fact, Gauge, in_use};
use quell_core::{Error, Result, StoreId};
use quell_engine::sql::{JOB_TIMES, TIMES, set_times_back};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::PostgresOptions;
use crate::bounded::Bounded;
use crate::error::explain;
use crate::options::hints_name;
use crate::row::{get, signed, time, unsigned};
use crate::sql::Sql;

/// Refused triggers that are counted at most.
const MOST_SET_ASIDE: u64 = 1_000;
/// Queues, tasks, lanes or partitions, at most: what an integer numbers.
const MOST_NAMES: u64 = i32::MAX as u64;
/// Triggers that wait in the inbox and are counted at most, and rows that are searched for refused ones: a
/// metrics page reads them at each scrape.
const MOST_COUNTED: u64 = 10_000;

/// Where store times are kept that are not in [`TIMES`].
const OWN_TIMES: [(&str, &[&str]); 3] =
    [("job", &JOB_TIMES), ("ended", &JOB_TIMES), ("lease", &["until"])];

/// The server's clock and the store's.
const CLOCKS: &str = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint,
        quell.peek(null, null)";

/// Reads a checkup; `pushes` is whether notifications arrive (R34).
pub(crate) async fn read_checkup(db: &mut Bounded, sql: &Sql, pushes: bool) -> Result<Checkup> {
    const FACTS: &str = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint,
            quell.peek(null, null), store_id, schema_version,
            current_setting('server_version'),
            -- The oldest: what was refused is older than all that waits.
            (select count(*) from (select from (select refused from quell.inbox order by id limit $2) o
                                    where refused is not null limit $1) r),
            (select count(*) from (select from quell.inbox where refused is null limit $2) w),
            (select coalesce(sum(numbackends), 0)::bigint from pg_stat_database),
            current_setting('max_connections')::bigint,
            -- What the role may not see is null. A snapshot holds vacuum back on the whole server.
            (select (extract(epoch from clock_timestamp() - min(since)) * 1000000)::bigint
               from (select min(xact_start) as since
                       from pg_stat_activity where backend_xmin is not null
                     union all select min(prepared) from pg_prepared_xacts) s),
            (select (extract(epoch from max(replay_lag)) * 1000000)::bigint
               from pg_stat_replication),
            (select coalesce(sum(s.n_dead_tup), 0)::bigint from pg_stat_all_tables s
              where s.relid = any(array['quell.job', 'quell.lease', 'quell.inbox', 'quell.head',
                                        'quell.delta']::regclass[])
                 or s.relid in (select inhrelid from pg_inherits
                                 where inhparent = 'quell.ended'::regclass)),
            (select max(n.last_value)
               from (select last_value from quell.queue_id_seq
                     union all select last_value from quell.task_id_seq
                     union all select last_value from quell.lane_id_seq
                     union all select last_value from quell.partition_id_seq) n)
       from quell.meta";
    let query = sql.query(FACTS).bind(signed(MOST_SET_ASIDE)).bind(signed(MOST_COUNTED));
    let row = &db.fetch_one(query).await.map_err(|e| explain("check the store", e))?;
    let clock = ClockReading { host: time(row, 0)?, mark: time(row, 1)? };
    let arrive = if pushes { "notifications arrive" } else { "polling, behind a pooler" };
    let mut facts = vec![
        Fact::plain("schema", get::<i32, _>(row, 3)?),
        Fact::plain("server", get::<&str, _>(row, 4)?),
        Fact::plain("wake-ups", arrive),
        Fact::set_aside(unsigned(get(row, 5)?), MOST_SET_ASIDE)
            .with_gauges(vec![Gauge::count("quell_store_inbox_refused", unsigned(get(row, 5)?))]),
    ];
    let waiting = unsigned(get(row, 6)?);
    let more = if waiting >= MOST_COUNTED { " or more" } else { "" };
    facts.push(
        Fact::plain("inbox waits", format_args!("{waiting}{more}"))
            .with_gauges(vec![Gauge::count("quell_store_inbox_waiting", waiting)]),
    );
    let (used, most) = (unsigned(get(row, 7)?), unsigned(get(row, 8)?));
    facts.push(Fact::plain("connections", format_args!("{used} of {most}")).with_gauges(vec![
        Gauge::count("quell_store_connections", used),
        Gauge::count("quell_store_connections_max", most),
    ]));
    facts.extend(lasting(row, 9, "oldest snapshot", "quell_store_oldest_snapshot_seconds")?);
    facts.extend(lasting(row, 10, "replica lag", "quell_store_replica_lag_seconds")?);
    let dead = unsigned(get(row, 11)?);
    facts.push(
        Fact::plain("dead rows", format_args!("{dead} that vacuum has not removed"))
            .with_gauges(vec![Gauge::count("quell_store_dead_rows", dead)]),
    );
    facts.push(numbers_left(unsigned(get(row, 12)?)));
    Ok(Checkup { id: Some(StoreId::new(get::<&str, _>(row, 2)?)?), clock, facts })
}

/// How many more names there may be of the most numerous kind, which has `used`.
fn numbers_left(used: u64) -> Fact {
    let left = MOST_NAMES.saturating_sub(used);
    let problem = (left < MOST_NAMES / 10).then(|| {
        format!(
            "names of queues, tasks or partitions run out, {MOST_NAMES} of a kind is the most and \
             none is ever removed: trigger with fewer different partitions"
        )
    });
    let fact = Fact::plain("names", format_args!("{used} of a kind, {left} left"));
    Fact { problem, ..fact }.with_gauges(vec![Gauge::count("quell_store_names_left", left)])
}

/// A time in microseconds; none where there is nothing of the kind, or the role may not see it.
fn lasting(row: &PgRow, index: usize, name: &str, metric: &str) -> Result<Option<Fact>> {
    let micros = get::<Option<i64>, _>(row, index)?;
    Ok(micros.map(|micros| {
        let time = Duration::from_micros(unsigned(micros.max(0)));
        Fact::plain(name, format_args!("{time:?}")).with_gauges(vec![Gauge::time(metric, time)])
    }))
}

impl PostgresOptions {
    /// Sets the store's clock back to the server's, with all times that the clock made while it was
    /// ahead: a lease that has 20 s left has 20 s left afterwards, and a job that is due is due.
    /// The schedules go on from now. All of it happens in one transaction.
    ///
    /// Processes behind a transaction pooler are not seen: stop them first, or they raise the clock
    /// again.
    ///
    /// # Errors
    /// [`ErrorKind::Contention`](quell_core::ErrorKind::Contention) while Quell is connected to the
    /// schema, [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) where the clock is not an
    /// hour ahead ([`ClockReading::LEAST_RESET`]), and as for [`PostgresOptions::open`].
    pub async fn reset_clock(self) -> Result<ClockReset> {
        let (sql, db) = self.connect().await?;
        // It reads and writes all tables, with no process of the store left: it may take its time.
        let mut db = db.into_inner();
        let done = set_back(&mut db, &sql).await;
        db.close().await.map_err(failed)?;
        done
    }
}

fn failed(error: sqlx::Error) -> Error {
    explain("set the clock back", error)
}

async fn set_back(db: &mut PgConnection, sql: &Sql) -> Result<ClockReset> {
    // Each process of the store keeps a connection of this name open.
    const CONNECTED: &str = "select count(*) from pg_stat_activity
          where datname = current_database() and application_name = $1";
    const LOCK: &str = "lock table quell.clock in access exclusive mode";
    // A call after the clock went back stores its floor.
    const HOLD: &str = "select quell.tick(null, null)";
    sql.query(HOLD).execute(&mut *db).await.map_err(failed)?;
    let mut tx = db.begin().await.map_err(failed)?;
    let connected: i64 = sqlx::query_scalar(CONNECTED)
        .bind(hints_name(sql.schema()))
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
    if connected > 0 {
        return Err(in_use(&format!("{connected} connections of Quell use the schema")));
    }
    sql.query(LOCK).execute(&mut *tx).await.map_err(failed)?;
    let read = sql.query(CLOCKS).fetch_one(&mut *tx).await.map_err(failed)?;
    let reset = ClockReading { host: time(&read, 0)?, mark: time(&read, 1)? }.reset()?;
    let by = reset.from.as_micros().saturating_sub(reset.to.as_micros());
    for (table, columns) in OWN_TIMES.iter().chain(TIMES) {
        let text = set_times_back(&format!("quell.{table}"), columns, "$1", "$2");
        let moved = sqlx::query(AssertSqlSafe(sql.rewrite(&text)));
        let moved = moved.bind(by).bind(reset.after.as_micros());
        moved.execute(&mut *tx).await.map_err(failed)?;
    }
    for text in [
        // A rate begins again: at most one more period's starts.
        "delete from quell.start where expires_at > $1",
        // All workers are stopped; each writes its row again when it starts.
        "delete from quell.worker where seen_at > $1",
        // Ticks of the time that never came fire when it comes.
        "delete from quell.tick_fired where tick_at > $1",
        "update quell.schedule
            set handled_at = least(handled_at, $1), last_at = least(last_at, $1),
                next_at = case when next_at is not null then least(next_at, $1) end",
        "update quell.clock set floor = least(floor, $1)",
        // The last of them, as a rollback does not undo it: should the commit fail, the floor is where it
        // was, and this can be done again.
        "select setval('quell.promised', $1)",
    ] {
        let done = sql.query(text).bind(reset.to.as_micros()).execute(&mut *tx).await;
        done.map_err(failed)?;
    }
    tx.commit().await.map_err(failed)?;
    Ok(reset)
}
