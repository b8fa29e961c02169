//! What `quell doctor` reads of a file, and how its clock is set back (R38).
//!
//! Setting back scans every table that keeps times. It runs while no other process has the file
//! open, so it delays no one.

use std::path::Path;

use quell_core::checkup::{Checkup, ClockReading, ClockReset, Fact, Gauge, in_use};
use quell_core::{Error, ErrorKind, Result, StoreId};
use quell_engine::sql::{JOB_TIMES, TIMES, set_times_back};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use crate::SqliteOptions;
use crate::clock::wall_clock;
use crate::error::explain;
use crate::files::{Files, mode, sibling};
use crate::row::{get, signed, time, unsigned};
use crate::wal::MAX_LOG_BYTES;

/// Refused triggers that are counted at most.
const MOST_SET_ASIDE: u64 = 1_000;
/// Triggers that wait in the inbox and are counted at most, and rows that are searched for refused ones: a
/// metrics page reads them at each scrape.
const MOST_WAITING: u64 = 10_000;

/// A log of this size is one that readers keep from being shortened.
const LONG_LOG: u64 = 4 * MAX_LOG_BYTES;

/// Reads a checkup; `file` is where the store is.
pub(crate) async fn read_checkup(
    db: &mut SqliteConnection,
    file: &Path,
    files: &Files,
) -> Result<Checkup> {
    const FACTS: &str = "select clock, store_id, schema_version, sqlite_version(),
            -- The oldest: what was refused is older than all that waits.
            (select count(*) from (select 1 from (select refused from quell_inbox order by id limit ?2 + 0)
                                    where refused is not null limit ?1 + 0)),
            (select journal_mode from pragma_journal_mode),
            (select count(*) from (select 1 from quell_inbox where refused is null limit ?2 + 0))
       from quell_meta";
    let query = sqlx::query(FACTS).bind(signed(MOST_SET_ASIDE)).bind(signed(MOST_WAITING));
    let row = query.fetch_one(db).await;
    let row = row.map_err(|e| explain("check the store", e))?;
    let clock = ClockReading { host: wall_clock(), mark: time(&row, 0)? };
    let bytes = |name: &str, metric: &str, path: &Path| {
        let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
        Fact::plain(name, bytes).with_gauges(vec![Gauge::count(metric, bytes)])
    };
    let log = sibling(file, "-wal").unwrap_or_default();
    let (refused, waiting) = (unsigned(get(&row, 4)?), unsigned(get(&row, 6)?));
    let mut facts = vec![
        Fact::plain("schema", get::<i64, _>(&row, 2)?),
        Fact::plain("sqlite", get::<&str, _>(&row, 3)?),
        Fact::plain("journal", get::<&str, _>(&row, 5)?),
        bytes("file bytes", "quell_store_file_bytes", file),
        with_log_problem(bytes("wal bytes", "quell_store_wal_bytes", &log), &log),
        Fact::set_aside(refused, MOST_SET_ASIDE)
            .with_gauges(vec![Gauge::count("quell_store_inbox_refused", refused)]),
        Fact::plain("inbox waits", waiting)
            .with_gauges(vec![Gauge::count("quell_store_inbox_waiting", waiting)]),
    ];
    facts.extend(of_disk(files));
    facts.extend(of_rights(file));
    Ok(Checkup { id: Some(StoreId::new(get::<&str, _>(&row, 1)?)?), clock, facts })
}

fn with_log_problem(fact: Fact, log: &Path) -> Fact {
    let bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    let problem = (bytes > LONG_LOG).then(|| {
        format!(
            "the write-ahead log has {bytes} bytes and is shortened beyond {MAX_LOG_BYTES}: a reader \
             that does not end keeps it, such as a backup, an open shell or a program's transaction: \
             end it"
        )
    });
    fact.with_problem(problem)
}

/// The free space of the disk, where the system says it.
fn of_disk(files: &Files) -> Option<Fact> {
    let free = files.free()?;
    let problem = files.trouble().map(|trouble| trouble.to_string());
    let gauge = Gauge::count("quell_store_disk_free_bytes", free);
    Some(Fact::plain("disk free", free).with_problem(problem).with_gauges(vec![gauge]))
}

/// Who may read the file, which has the payloads of all jobs.
fn of_rights(file: &Path) -> Option<Fact> {
    let mode = mode(file)?;
    let warning = (mode & 0o077 != 0).then(|| {
        format!(
            "others may read the payloads of all jobs, as the file's mode is {mode:04o}: run `chmod 600 \
             {0} {0}-wal {0}-shm`",
            file.display()
        )
    });
    Some(Fact::plain("file mode", format_args!("{mode:04o}")).with_warning(warning))
}

impl SqliteOptions {
    /// Sets the store's clock back to the host's, with all times that the clock made while it was
    /// ahead: a lease that has 20 s left has 20 s left afterwards, and a job that is due is due.
    /// The schedules go on from now. All of it happens in one transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Contention`] while another process has the file open, [`ErrorKind::Invalid`]
    /// where the clock is not an hour ahead ([`ClockReading::LEAST_RESET`]), and as for
    /// [`SqliteOptions::open`].
    pub async fn reset_clock(self) -> Result<ClockReset> {
        const WHAT: &str = "set the clock back";
        let mut db = self.connect().await?;
        // Only the file's only connection may leave WAL mode.
        let left = sqlx::query("pragma journal_mode = delete").execute(&mut db).await;
        if let Err(error) = left.map_err(|e| explain(WHAT, e)) {
            return Err(if error.kind() == ErrorKind::Contention {
                in_use("another process has the file open").with_source(error)
            } else {
                error
            });
        }
        let done = set_back(&mut db).await;
        let back = sqlx::query("pragma journal_mode = wal").execute(&mut db).await;
        back.map_err(|e| explain(WHAT, e))?;
        db.close().await.map_err(|e| explain(WHAT, e))?;
        done
    }
}

async fn set_back(db: &mut SqliteConnection) -> Result<ClockReset> {
    let failed = |e: sqlx::Error| -> Error { explain("set the clock back", e) };
    let mut tx = db.begin_with("begin immediate").await.map_err(failed)?;
    let read = sqlx::query("select clock from quell_meta").fetch_one(&mut *tx).await;
    let mark = time(&read.map_err(failed)?, 0)?;
    let reset = ClockReading { host: wall_clock(), mark }.reset()?;
    let by = reset.from.as_micros().saturating_sub(reset.to.as_micros());
    let of_jobs = [JOB_TIMES.as_slice(), &["lease_until"]].concat();
    for (table, columns) in [("job", of_jobs.as_slice())].iter().chain(TIMES) {
        let text = set_times_back(&format!("quell_{table}"), columns, "?1", "?2");
        let moved = sqlx::query(AssertSqlSafe(text)).bind(by).bind(reset.after.as_micros());
        moved.execute(&mut *tx).await.map_err(failed)?;
    }
    for sql in [
        // A rate begins again: at most one more period's starts.
        "delete from quell_start where expires_at > ?1",
        "update quell_partition set free_at = null where free_at > ?1",
        // All workers are stopped; each writes its row again when it starts.
        "delete from quell_worker where seen_at > ?1",
        // Ticks of the time that never came fire when it comes.
        "delete from quell_tick where tick_at > ?1",
        "update quell_schedule
            set handled_at = min(handled_at, ?1), last_at = min(last_at, ?1),
                next_at = min(next_at, ?1)",
        "update quell_meta set clock = ?1, version = version + 1",
    ] {
        let done = sqlx::query(sql).bind(reset.to.as_micros()).execute(&mut *tx).await;
        done.map_err(failed)?;
    }
    tx.commit().await.map_err(failed)?;
    Ok(reset)
}
