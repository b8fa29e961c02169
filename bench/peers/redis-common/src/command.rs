//! The command line of a program, and the line that it prints.

use std::io::Write;

use clap::{Parser, Subcommand};
use peer_common::{Call, DebouncedCallers};
use serde::Serialize;

use crate::workload;
use crate::{RedisPeer, Settings};

#[derive(Debug, Parser)]
struct Cli {
    /// A server that holds nothing but what an earlier round left for this one.
    #[arg(long, global = true, default_value = "redis://127.0.0.1/")]
    url: String,
    /// The set-up.
    #[arg(long, global = true, value_enum, default_value = "defaults")]
    settings: Settings,
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Workload {
    /// Enqueue in batches of 1,000.
    Batch {
        #[arg(long)]
        count: usize,
    },
    /// Callers at once, each enqueues one job at a time.
    Single {
        #[arg(long, default_value_t = 32)]
        callers: usize,
        #[arg(long)]
        count: usize,
    },
    /// Callers at once, each asks for a later run of one of a few keys.
    Debounced {
        #[command(flatten)]
        callers: DebouncedCallers,
        #[arg(long)]
        count: usize,
    },
    /// Work off what is queued, which is `count` jobs, until all is completed.
    Drain {
        #[arg(long)]
        count: usize,
    },
    /// Work until this number of jobs has started; more than that are queued.
    Head {
        #[arg(long)]
        count: usize,
    },
    /// Enqueue to start, one job at a time, with an idle worker.
    Latency {
        #[arg(long)]
        samples: usize,
        /// Seconds after which there are samples enough.
        #[arg(long, default_value_t = 30)]
        budget: u64,
    },
    /// Ask for a later run of a number of keys, each once.
    Windows {
        #[arg(long)]
        count: usize,
    },
}

/// What one round found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) value: f64,
    pub(crate) p99: Option<f64>,
    pub(crate) jobs: usize,
}

/// The line.
#[derive(Debug, Serialize)]
struct Round {
    peer: String,
    tuned: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
    jobs: usize,
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
}

/// Runs one round of one workload as the command line says, and prints it as a line of JSON.
///
/// # Errors
///
/// Fails when the server or the peer does, and when the peer loses a job.
pub fn main<P: RedisPeer>() -> anyhow::Result<()> {
    peer_common::run(measure::<P>())
}

async fn measure<P: RedisPeer>() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let peer = P::open(&cli.url, cli.settings).await?;
    let found = match cli.workload {
        Workload::Batch { count } => workload::batch(&peer, count).await,
        Workload::Single { callers, count } => {
            workload::callers(&peer, Call::Single, callers, count).await
        }
        Workload::Debounced { callers: DebouncedCallers { callers, keys }, count } => {
            workload::callers(&peer, Call::Debounced { keys }, callers, count).await
        }
        Workload::Windows { count } => workload::callers(&peer, Call::Windows, 512, count).await,
        Workload::Drain { count } => workload::drain(&peer, count).await,
        Workload::Head { count } => workload::head(&peer, count).await,
        Workload::Latency { samples, budget } => workload::latency(&peer, samples, budget).await,
    }?;
    let debounces = matches!(cli.workload, Workload::Debounced { .. } | Workload::Windows { .. });
    let round = Round {
        peer: format!("{} {}", P::NAME, P::version()),
        tuned: P::tuned(cli.settings),
        note: debounces.then_some(P::DEBOUNCED),
        jobs: found.jobs,
        value: found.value,
        p99: found.p99,
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&round)?)?)
}
