//! The command line of a peer, and its rounds: an empty database, the work, the counters.
//!
//! What opening and closing costs is measured once in every round and taken off.

use std::io::Write;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, Subcommand};
use peer_common::{Call, DebouncedCallers, Sampling};

use crate::counters::Counters;
use crate::database::Database;
use crate::failover::{self, Place};
use crate::process;
use crate::report::{Found, Measurement, PerJob, median};
use crate::workload;
use crate::{PostgresPeer, Settings};

#[derive(Debug, Parser)]
struct Cli {
    /// The server, and a database on it that is not used but to connect to.
    #[arg(long, global = true, default_value = "postgres://postgres@127.0.0.1/postgres")]
    url: String,
    /// The set-up.
    #[arg(long, global = true, value_enum, default_value = "defaults")]
    settings: Settings,
    /// How often; the median counts.
    #[arg(long, global = true, default_value_t = 3)]
    rounds: usize,
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Workload {
    /// Enqueue in batches of 1,000.
    Batch {
        #[arg(long, default_value_t = 100_000)]
        count: usize,
    },
    /// Callers at once, each enqueues one job at a time.
    Single {
        #[arg(long, default_value_t = 32)]
        callers: usize,
        #[arg(long, default_value_t = 32_000)]
        count: usize,
    },
    /// Callers at once, each asks for a later run of one of a few keys.
    Debounced {
        #[command(flatten)]
        callers: DebouncedCallers,
        #[arg(long, default_value_t = 32_768)]
        count: usize,
    },
    /// Work off what is queued, until all is durably completed.
    Drain {
        #[arg(long, default_value_t = 100_000)]
        count: usize,
    },
    /// Enqueue to start, one job at a time, with an idle worker.
    Latency {
        #[arg(long, default_value_t = 500)]
        samples: usize,
        /// Milliseconds between jobs, at least.
        #[arg(long, default_value_t = 20)]
        apart: u64,
        /// Seconds after which a round has samples enough.
        #[arg(long, default_value_t = 60)]
        budget: u64,
    },
    /// Nothing for a number of seconds, then one job.
    Idle {
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Likewise, with the worker in another process, for a number of samples.
    Pickup {
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        #[arg(long, default_value_t = 3)]
        samples: usize,
    },
    /// A worker's process is killed with jobs in hand, until they start in another one.
    Kill {
        #[arg(long, default_value_t = 8)]
        jobs: usize,
        /// Seconds after which they are given up.
        #[arg(long, default_value_t = 600)]
        budget: u64,
    },
    /// A worker's process stops and a new one starts, until that starts a job.
    Restart,
    /// Transactions per second of a worker that has nothing to do.
    Statements {
        #[arg(long, default_value_t = 30)]
        seconds: u64,
    },
    /// Measures nothing: runs a worker until the input ends, for those that measure processes.
    #[command(hide = true)]
    Work {
        #[arg(long)]
        hold: bool,
    },
}

impl Workload {
    /// How it is called in the output, and in which unit it is measured.
    fn words(self) -> (String, &'static str) {
        match self {
            Workload::Batch { .. } => ("batch".to_owned(), "per second"),
            Workload::Single { callers, .. } => {
                (format!("single, {callers} callers"), "per second")
            }
            Workload::Debounced { callers: DebouncedCallers { callers, keys }, .. } => {
                (format!("debounced, {callers} callers, {keys} keys"), "per second")
            }
            Workload::Drain { .. } => ("drain".to_owned(), "per second"),
            Workload::Latency { .. } => ("latency".to_owned(), "ms"),
            Workload::Idle { seconds } => (format!("idle, {seconds} s"), "ms"),
            Workload::Pickup { seconds, .. } => (format!("pick-up after {seconds} s"), "ms"),
            Workload::Kill { jobs, .. } => (format!("kill, {jobs} jobs"), "ms"),
            Workload::Restart => ("restart".to_owned(), "ms"),
            Workload::Statements { .. } => ("statements".to_owned(), "transactions per second"),
            Workload::Work { .. } => ("work".to_owned(), "nothing"),
        }
    }

    async fn run<P: PostgresPeer>(
        self,
        peer: &P,
        database: &Database,
        settings: Settings,
    ) -> anyhow::Result<Found> {
        let place = Place { url: database.url(), settings };
        match self {
            Workload::Batch { count } => workload::batch(peer, count).await,
            Workload::Single { callers, count } => {
                workload::callers(peer, Call::SingleScattered, callers, count).await
            }
            Workload::Debounced { callers: DebouncedCallers { callers, keys }, count } => {
                workload::callers(peer, Call::Debounced { keys }, callers, count).await
            }
            Workload::Drain { count } => workload::drain(peer, database, count).await,
            Workload::Latency { samples, apart, budget } => {
                let apart = Duration::from_millis(apart);
                let budget = Duration::from_secs(budget);
                workload::latency(peer, Sampling { samples, apart, budget }).await
            }
            Workload::Idle { seconds } => {
                workload::after_idle(peer, Duration::from_secs(seconds)).await
            }
            Workload::Pickup { seconds, samples } => {
                failover::picked_up(peer, place, Duration::from_secs(seconds), samples).await
            }
            Workload::Kill { jobs, budget } => {
                failover::killed(peer, place, jobs, Duration::from_secs(budget)).await
            }
            Workload::Restart => failover::restarted(peer, place).await,
            Workload::Statements { .. } => anyhow::bail!("measured by the counters"),
            Workload::Work { .. } => anyhow::bail!("measures nothing"),
        }
    }
}

/// Measures one workload as the command line says, and prints it as a line of JSON.
///
/// # Errors
///
/// Fails when the server or the peer does, and when the peer loses a job.
pub fn main<P: PostgresPeer>() -> anyhow::Result<()> {
    peer_common::run(measure::<P>())
}

async fn measure<P: PostgresPeer>() -> anyhow::Result<()> {
    let mut cli = Cli::parse();
    if let Workload::Work { hold } = cli.workload {
        return process::work::<P>(&cli.url, cli.settings, hold).await;
    }
    if matches!((cli.workload, cli.settings), (Workload::Kill { .. }, Settings::Best)) {
        cli.settings = Settings::Failover;
    }
    ensure!(cli.rounds > 0, "--rounds: at least 1");
    let mut found = Vec::new();
    let mut costs = Vec::new();
    let mut server = String::new();
    for _ in 0..cli.rounds {
        let name = format!("bench_{}", std::process::id());
        let mut database = Database::create(&cli.url, &name).await?;
        server = about(&mut database).await?;
        let (value, cost) = match cli.workload {
            Workload::Statements { seconds } => {
                database.autovacuum(false).await?;
                let found = statements::<P>(&cli, &mut database, seconds).await;
                database.autovacuum(true).await?;
                (found?, None)
            }
            workload => round::<P>(&cli, &mut database, workload).await?,
        };
        database.drop().await?;
        found.push(value);
        costs.extend(cost);
    }
    let (workload, unit) = cli.workload.words();
    let over_rounds = |of: fn(&Found) -> Option<f64>| {
        found.iter().map(of).collect::<Option<Vec<f64>>>().map(median)
    };
    let measurement = Measurement {
        peer: format!("{} {}", P::NAME, P::version()),
        settings: format!("{:?}", cli.settings).to_lowercase(),
        tuned: P::tuned(cli.settings),
        server,
        note: matches!(cli.workload, Workload::Debounced { .. }).then_some(P::DEBOUNCED),
        workload,
        unit,
        jobs: found.iter().map(|round| round.jobs).sum(),
        median: median(found.iter().map(|round| round.value).collect()),
        p99: over_rounds(|round| round.p99),
        stopping_ms: over_rounds(|round| round.stopping),
        rounds: found.iter().map(|round| round.value).collect(),
        per_job: (!costs.is_empty()).then(|| PerJob::median(&costs)),
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&measurement)?)?)
}

/// The server's version and what its durability rests on.
async fn about(database: &mut Database) -> anyhow::Result<String> {
    Ok(sqlx::query_scalar(
        "select format('PostgreSQL %s, fsync %s, synchronous_commit %s',
                       current_setting('server_version'), current_setting('fsync'),
                       current_setting('synchronous_commit'))",
    )
    .fetch_one(&mut database.outside)
    .await?)
}

async fn round<P: PostgresPeer>(
    cli: &Cli,
    database: &mut Database,
    workload: Workload,
) -> anyhow::Result<(Found, Option<Counters>)> {
    open_and_close::<P>(cli, database).await?;
    let before = Counters::read(database).await?;
    open_and_close::<P>(cli, database).await?;
    let opening = Counters::read(database).await?.since(before);
    if let Workload::Drain { count } = workload {
        let peer = P::open(database.url(), cli.settings).await?;
        workload::batch(&peer, count).await?;
        peer.close().await?;
    }
    database.checkpoint().await?;
    let before = Counters::read(database).await?;
    let peer = P::open(database.url(), cli.settings).await?;
    let found = workload.run(&peer, database, cli.settings).await?;
    peer.close().await?;
    let mut cost = Counters::read(database).await?.since(before).since(opening);
    cost.transactions -= found.asked as f64;
    Ok((found, Some(cost.per(found.jobs))))
}

/// The transactions of a long wait less those of a short one: starting and stopping cancel out.
async fn statements<P: PostgresPeer>(
    cli: &Cli,
    database: &mut Database,
    seconds: u64,
) -> anyhow::Result<Found> {
    const SHORT: u64 = 3;
    ensure!(seconds > SHORT, "--seconds: more than {SHORT}");
    open_and_close::<P>(cli, database).await?;
    let mut transactions = Vec::new();
    for length in [SHORT, seconds] {
        let before = Counters::read(database).await?;
        let length = Duration::from_secs(length);
        workload::waiting::<P>(database.url(), cli.settings, length).await?;
        transactions.push(Counters::read(database).await?.since(before).transactions);
    }
    let more = transactions.iter().copied().reduce(|short, long| long - short);
    Ok(Found::of(more.unwrap_or(f64::NAN) / (seconds - SHORT) as f64, 0))
}

async fn open_and_close<P: PostgresPeer>(cli: &Cli, database: &Database) -> anyhow::Result<()> {
    P::open(database.url(), cli.settings).await?.close().await
}
