//! Many jobs through one store, in rounds: enqueue, work off, remove what has ended. The last round must
//! be as fast as the first, and leave the store as small.
//!
//! A production worker removes what is past its retention each minute; here it goes after each round,
//! so that the size does not depend on how fast the machine is. PostgreSQL has a program of its own,
//! which looks at each table (`cargo xtask bench postgres --scaling --only bloat`).

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use quell::Quell;
use quell::worker::Retention;

use crate::output::Recording;
use crate::report::shown;
use crate::server::{Server, Store};
use crate::workload::{fill, work_off};

/// Triggers of one batch.
const BATCH: usize = 1_000;
/// Rows of each kind that one call removes: as a worker does.
const PRUNE_BATCH: usize = 1_000;
/// How long a call may remove nothing before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these stores.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "sqlite,redis")]
    stores: Vec<Store>,
    /// Jobs in all.
    #[arg(long, default_value_t = 10_000_000)]
    count: usize,
    /// Jobs of a round, which wait at once.
    #[arg(long, default_value_t = 1_000_000)]
    round: usize,
    /// 30,000 jobs in three rounds.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    recording: Recording,
}

/// What one round took, and what it left.
#[derive(Clone, Copy, Debug)]
struct Round {
    enqueued: f64,
    worked_off: f64,
    removed: f64,
    /// Bytes while all jobs of the round had ended, and after their removal.
    full: f64,
    left: f64,
}

/// Measures, shows and records.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (count, round) = if args.quick { (30_000, 10_000) } else { (args.count, args.round) };
    ensure!(
        round >= BATCH && round % BATCH == 0 && count >= 2 * round,
        "--round: a multiple of {BATCH}, and at most half of --count"
    );
    let target = Path::new("target");
    std::fs::create_dir_all(target)?;
    let folder = tempfile::tempdir_in(target)?;
    let mut tables = String::new();
    for store in &args.stores {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let server = Server::start(*store, folder.path())?;
        let version = runtime.block_on(async {
            drop(Quell::open(&server.url()).await?);
            server.version().await
        })?;
        let rounds = runtime.block_on(rounds(*store, &server, count / round, round))?;
        tables.push_str(&table(&version, &rounds, round));
    }
    let about = format!("{count} jobs through each store, {round} at a time");
    args.recording.finish(&about, &tables)
}

async fn rounds(
    store: Store,
    server: &Server,
    rounds: usize,
    size: usize,
) -> anyhow::Result<Vec<Round>> {
    let quell = Quell::open(&server.url()).await?;
    let mut measured = Vec::with_capacity(rounds);
    for number in 1..=rounds {
        let enqueued = fill(&quell, BATCH, size).await?;
        let worked_off = work_off(&quell, size).await?;
        let full = server.size()?;
        let removed = remove(&quell, size).await?;
        let round = Round { enqueued, worked_off, removed, full, left: server.size()? };
        writeln!(std::io::stderr(), "{}: round {number}: {round:?}", store.name())?;
        measured.push(round);
    }
    Ok(measured)
}

/// Removes this number of jobs that have ended; returns how many a second.
async fn remove(quell: &Quell, count: usize) -> anyhow::Result<f64> {
    let retention = Retention { succeeded: Some(Duration::ZERO), dead: None };
    let (began, mut moved_at, mut removed) = (Instant::now(), Instant::now(), 0);
    while removed < count as u64 {
        let batch = quell.store().prune(None, &retention, PRUNE_BATCH).await?.jobs;
        if batch > 0 {
            moved_at = Instant::now();
        }
        ensure!(moved_at.elapsed() < PATIENCE, "{removed} of {count} ended jobs were removed");
        removed += batch;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

fn table(version: &str, rounds: &[Round], size: usize) -> String {
    let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
    let row = |(index, round): (usize, &Round)| {
        let Round { enqueued, worked_off, removed, full, left } = *round;
        let rates = [enqueued, worked_off, removed].map(shown).join(" | ");
        let sizes = [full, left].map(megabytes).join(" | ");
        format!("| {} | {rates} | {sizes} |\n", (index + 1) * size)
    };
    let lines: String = rounds.iter().enumerate().map(row).collect();
    let ratio = |of: fn(&Round) -> f64| match rounds {
        [first, .., last] => of(last) / of(first),
        _ => f64::NAN,
    };
    format!(
        "\n{version}\n\n| jobs gone through | enqueued, per second | worked off, per second | removed, \
         per second | MB before the removal | MB after it |\n| --- | --- | --- | --- | --- | --- |\n\
         {lines}\nThe last round against the first: enqueued {:.2} x, worked off {:.2} x, removed \
         {:.2} x; {:.2} x the size before the removal, {:.2} x after it.\n",
        ratio(|round| round.enqueued),
        ratio(|round| round.worked_off),
        ratio(|round| round.removed),
        ratio(|round| round.full),
        ratio(|round| round.left),
    )
}
