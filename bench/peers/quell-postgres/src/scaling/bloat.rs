//! Many jobs through the same tables, with autovacuum as shipped: they must stop to grow.
//!
//! In rounds: enqueue, work off, remove what has ended. A production worker removes it each minute
//! past its retention; here it is removed after each round, so that what is left at the end does
//! not depend on how fast the machine is.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quell::Quell;
use quell::worker::Retention;
use sqlx::PgConnection;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::jobs::{CONCURRENCY, Noop, Start, close, drained, fill, start_worker, started};
use crate::part::{Part, at_most};

/// How often the tables are looked at.
const LOOKS: usize = 10;
/// As a worker does.
const PRUNE_BATCH: usize = 1_000;
/// How long nothing may be removed.
const PATIENCE: Duration = Duration::from_secs(30);
/// The column that counts them.
const VACUUMS: usize = 9;
/// How much larger the tables may be at the end than after the first tenth.
const BOUND: f64 = 1.5;

pub(crate) async fn measure(url: &str, count: usize, round: usize) -> Result<()> {
    ensure!(round > 0 && count >= LOOKS * round, "--count: at least {LOOKS} times --round");
    let database = crate::database(url).await?;
    let quell = Quell::open(database.url()).await?;
    let mut part = Part::new(&[
        "enqueued, per second",
        "worked off, per second",
        "removed, per second",
        "all tables, MB",
        "`job`, MB",
        "its indexes, MB",
        "`ended`, MB",
        "its indexes, MB",
        "dead rows",
        "vacuums",
        "dead rows made, a job",
        "WAL, bytes a job",
    ])?;
    let (sender, starts) = unbounded_channel();
    let worker = start_worker(&quell, sender, CONCURRENCY);
    let mut rounds = Rounds { quell: &quell, starts, db: database.inside().await?, size: round };
    let each = count / LOOKS / round;
    let mut made = made(&mut rounds.db).await?;
    for look in 1..=LOOKS {
        let rates = rounds.run(each).await?;
        let sizes = sizes(&mut rounds.db).await?;
        let before = std::mem::replace(&mut made, self::made(&mut rounds.db).await?);
        let a_job = [0, 1].map(|n| (made[n] - before[n]) / (each * round) as f64);
        let cells = rates.into_iter().chain(sizes).chain(a_job);
        part.add(&(look * each * round).to_string(), cells)?;
    }
    worker.stop().await?;
    close(rounds.db).await?;
    drop(quell);
    database.drop().await?;
    let (growth, ratio) = (part.last(3) / part.cell(0, 3), part.last(1) / part.cell(0, 1));
    let met = if part.last(VACUUMS) > 0.0 {
        at_most(growth, BOUND)
    } else {
        "unknown, autovacuum has not come by yet"
    };
    let verdict = format!(
        "the tables are {growth:.2} x what they were after the first tenth, goal {BOUND} x: {met}; \
         the last tenth is worked off at {ratio:.2} x the rate of the first; {round} wait at once"
    );
    part.conclude(&verdict)
}

struct Rounds<'q> {
    quell: &'q Quell,
    starts: UnboundedReceiver<Start>,
    db: PgConnection,
    size: usize,
}

impl Rounds<'_> {
    /// Runs this number of rounds; returns the rates of their three parts.
    async fn run(&mut self, rounds: usize) -> Result<[f64; 3]> {
        let mut took = [Duration::ZERO; 3];
        for _ in 0..rounds {
            let began = Instant::now();
            self.quell.store().set_queue(None, &"default".parse()?, &paused(true)).await?;
            fill(self.quell, self.size, |n| Noop { n }).await?;
            let filled = Instant::now();
            self.quell.store().set_queue(None, &"default".parse()?, &paused(false)).await?;
            started(&mut self.starts, self.size).await?;
            drained(&mut self.db).await?;
            let worked = Instant::now();
            self.prune().await?;
            for (sum, part) in
                took.iter_mut().zip([filled - began, worked - filled, worked.elapsed()])
            {
                *sum += part;
            }
        }
        Ok(took.map(|took| (rounds * self.size) as f64 / took.as_secs_f64()))
    }

    async fn prune(&self) -> Result<()> {
        let retention = Retention { succeeded: Some(Duration::ZERO), dead: None };
        let (mut removed, began) = (0, Instant::now());
        while removed < self.size as u64 {
            let batch = self.quell.store().prune(None, &retention, PRUNE_BATCH).await?.jobs;
            // Autovacuum may hold a table for a moment.
            let is_late = batch == 0 && began.elapsed() > PATIENCE;
            ensure!(!is_late, "{removed} of {} ended jobs were removed", self.size);
            removed += batch;
        }
        Ok(())
    }
}

fn paused(paused: bool) -> quell::queue::QueueSettings {
    quell::queue::QueueSettings { paused, ..quell::queue::QueueSettings::default() }
}

/// All tables, then `job` and `ended`, each with its indexes, in megabytes; dead rows; vacuums.
async fn sizes(db: &mut PgConnection) -> Result<[f64; 7]> {
    let (all, job, job_indexes, ended, ended_indexes, dead, vacuums) = sqlx::query_as(
        "select sum(pg_total_relation_size(relid))::float8 / 1e6,
                pg_table_size('quell.job')::float8 / 1e6, pg_indexes_size('quell.job')::float8 / 1e6,
                (sum(pg_table_size(relid)) filter (where relname ~ '^ended'))::float8 / 1e6,
                (sum(pg_indexes_size(relid)) filter (where relname ~ '^ended'))::float8 / 1e6,
                sum(n_dead_tup)::float8, sum(autovacuum_count)::float8
           from pg_stat_user_tables where schemaname = 'quell'",
    )
    .fetch_one(db)
    .await?;
    Ok([all, job, job_indexes, ended, ended_indexes, dead, vacuums])
}

/// So far: the row versions that updates and deletes left behind, and the bytes of WAL.
async fn made(db: &mut PgConnection) -> Result<[f64; 2]> {
    let (dead, wal) = sqlx::query_as(
        "select sum(n_tup_upd + n_tup_del)::float8,
                pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8
           from pg_stat_user_tables where schemaname = 'quell'",
    )
    .fetch_one(db)
    .await?;
    Ok([dead, wal])
}
