//! How Quell on PostgreSQL scales: more workers, a longer backlog, more open windows, more partitions,
//! more jobs gone through, more queues, more callers with transactions of their own. One part is
//! measured for each call, and printed in lines of JSON.

mod backlog;
mod bloat;
mod callers;
mod crowd;
mod idle;
mod jobs;
mod part;
mod partitions;
mod pickup;
mod snapshot;
mod windows;

use anyhow::Result;
use clap::{Parser, Subcommand};
use pg_common::Database;

#[derive(Debug, Parser)]
struct Cli {
    /// The server, and a database on it that is not used but to connect to.
    #[arg(long, global = true, default_value = "postgres://postgres@127.0.0.1/postgres")]
    url: String,
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The drain rate with a number of workers, each with a store of its own.
    Workers {
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
        workers: Vec<usize>,
        #[arg(long, default_value_t = 100_000)]
        count: usize,
    },
    /// What a claim costs before a backlog of waiting jobs, shortest first.
    Backlog {
        #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000,10000000")]
        backlogs: Vec<usize>,
    },
    /// Triggers and claims beside a number of open windows, fewest first.
    Windows {
        #[arg(long, value_delimiter = ',', default_value = "1000,1000000")]
        windows: Vec<usize>,
    },
    /// Looks and claims of a queue that limits its partitions, beside these numbers that wait.
    Partitions {
        #[arg(long, value_delimiter = ',', default_value = "1000,10000,50000")]
        partitions: Vec<usize>,
    },
    /// How large the tables are after a number of jobs went through them.
    Bloat {
        #[arg(long, default_value_t = 10_000_000)]
        count: usize,
        /// How many jobs wait at once.
        #[arg(long, default_value_t = 100_000)]
        round: usize,
    },
    /// Jobs a second while a snapshot stays open.
    Snapshot {
        #[arg(long, default_value_t = 40)]
        seconds: u64,
        /// How many jobs run at once.
        #[arg(long, default_value_t = 32)]
        at_once: usize,
        /// The same without a snapshot: whether the rate holds by itself.
        #[arg(long)]
        without: bool,
    },
    /// How long a job waits for its start, at a fixed rate, before and while a snapshot is open.
    Pickup {
        #[arg(long, default_value_t = 75)]
        seconds: u64,
        /// Triggers a second, each a call of its own.
        #[arg(long, default_value_t = 800)]
        rate: u32,
    },
    /// Commits of callers' own transactions, with a trigger and without, in a number of rounds.
    Callers {
        #[arg(long, default_value_t = 7)]
        rounds: usize,
        /// Of one kind of transactions in each round.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// What a worker of a number of queues asks while it has nothing to do.
    Idle {
        #[arg(long, default_value_t = 50)]
        queues: usize,
        #[arg(long, default_value_t = 63)]
        seconds: u64,
    },
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    match &cli.part {
        Part::Workers { workers, count } => crowd::measure(&cli.url, workers, *count).await,
        Part::Backlog { backlogs } => backlog::measure(&cli.url, backlogs).await,
        Part::Windows { windows } => windows::measure(&cli.url, windows).await,
        Part::Partitions { partitions: sizes } => partitions::measure(&cli.url, sizes).await,
        Part::Bloat { count, round } => bloat::measure(&cli.url, *count, *round).await,
        Part::Snapshot { seconds, at_once, without } => {
            snapshot::measure(&cli.url, *seconds, *at_once, !without).await
        }
        Part::Pickup { seconds, rate } => pickup::measure(&cli.url, *seconds, *rate).await,
        Part::Callers { rounds, seconds } => callers::measure(&cli.url, *rounds, *seconds).await,
        Part::Idle { queues, seconds } => idle::measure(&cli.url, *queues, *seconds).await,
    }
}

/// An empty database of this process's own.
async fn database(url: &str) -> Result<Database> {
    Database::create(url, &format!("bench_{}", std::process::id())).await
}
