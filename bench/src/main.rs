//! Measures Quell beside a peer and a floor in plain SQL, in one run on the same machine.
//!
//! Each workload runs a few rounds, Quell, floor and peers in turn, and the medians are shown. Peers
//! are programs of their own, so that nothing they depend on is part of Quell's tree. Run it by
//! `cargo xtask bench sqlite`, `postgres`, `redis`, `azure` or `memory`; `capacity` measures
//! Quell alone at fixed rates, and `through` with many jobs.

mod azure;
mod capacity;
mod comparison;
mod cpu;
mod floor;
mod memory;
mod output;
mod place;
mod postgres;
mod program;
mod redis;
mod report;
mod scaling;
mod server;
mod through;
mod working;
mod workload;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::{Parser, Subcommand};
use quell::sqlite::Synchronous;

use output::{Output, PlainArgs};
use place::Place;
use report::{Row, record, show};
use workload::Sizes;

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    store: Store,
}

#[derive(Debug, Subcommand)]
enum Store {
    /// The embedded store.
    Sqlite(Args),
    /// The store that services share.
    Postgres(postgres::Args),
    /// The store on Redis.
    Redis(redis::Args),
    /// The store on Azure, on Azurite.
    Azure(PlainArgs),
    /// The engine beside direct moves, in memory.
    Memory(PlainArgs),
    /// What Quell alone needs at fixed rates, on each store.
    Capacity(capacity::Args),
    /// Many jobs through each store: whether the last are as fast as the first.
    Through(through::Args),
}

#[derive(Debug, clap::Args)]
struct Args {
    /// Smaller sizes and one round.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: Output,
    /// Replay this trace too (columns timestamp, repo, path).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The peer's program.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().store {
        Store::Sqlite(args) => sqlite(&args),
        Store::Postgres(args) => postgres::run(&args),
        Store::Redis(args) => redis::run(&args),
        Store::Azure(args) => azure::run(&args),
        Store::Memory(args) => memory::run(&args),
        Store::Capacity(args) => capacity::run(&args),
        Store::Through(args) => through::run(&args),
    }
}

fn sqlite(args: &Args) -> anyhow::Result<()> {
    let target = Path::new("target");
    std::fs::create_dir_all(target)?;
    let folder = tempfile::tempdir_in(target)?;
    let sizes = if args.quick { Sizes::QUICK } else { Sizes::FULL };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut rows = Vec::new();
    for mode in [Synchronous::Normal, Synchronous::Full] {
        // The peer runs `synchronous=normal`, so it is compared there only.
        let peer = args.peer.as_deref().filter(|_| mode == Synchronous::Normal);
        let bench = Bench { runtime: &runtime, folder: folder.path(), sizes, mode, peer };
        rows.extend(bench.all()?);
    }
    if let Some(trace) = &args.trace {
        rows.push(replay(trace)?);
    }
    let lines: Vec<String> = rows.iter().map(|row| row.json().to_string()).collect();
    args.output.write_json(&(lines.join("\n") + "\n"))?;
    show(&rows)?;
    if args.output.recording.record { record(&rows) } else { Ok(()) }
}

/// One mode of one run.
struct Bench<'b> {
    runtime: &'b tokio::runtime::Runtime,
    folder: &'b Path,
    sizes: Sizes,
    mode: Synchronous,
    peer: Option<&'b Path>,
}

impl Bench<'_> {
    fn all(&self) -> anyhow::Result<Vec<Row>> {
        let normal = self.mode == Synchronous::Normal;
        let goal = |normal_goal: f64, full_goal: f64| if normal { normal_goal } else { full_goal };
        let s = self.sizes;
        Ok(vec![
            self.rate("batch enqueue", Some(("batch", s.batch)), goal(1.5, 0.0), 0.6, || {
                self.block(workload::batch(&self.place(), s.batch))
            })?,
            self.rate("drain", Some(("drain", s.drain)), goal(4.0, 0.0), 0.0, || {
                self.block(workload::drain(&self.place(), s.drain))
            })?,
            self.rate(
                "single enqueue, 32 callers",
                Some(("single", s.single)),
                goal(3.0, 0.0),
                0.0,
                || self.block(workload::single(&self.place(), 32, s.single)),
            )?,
            self.rate("single enqueue, 512 callers", None, 0.0, 0.0, || {
                self.block(workload::single(&self.place(), 512, s.batch))
            })?,
            self.absolute("debounced, 100 keys, 512 callers", goal(200_000.0, 80_000.0), || {
                self.block(workload::debounced(&self.place(), 512, 100, s.debounced))
            })?,
            self.absolute("debounced, 100,000 keys, 512 callers", 0.0, || {
                self.block(workload::debounced(&self.place(), 512, 100_000, s.batch))
            })?,
            self.absolute("expired dedup keys removed", 10_000.0, || {
                self.block(workload::expire(&self.place(), s.batch))
            })?,
            self.latency("enqueue to start p50", 0.5, goal(0.7, 1.0))?,
            self.latency("enqueue to start p99", 0.99, goal(3.0, 4.0))?,
            self.millis("due to start p99", 5.0, || {
                self.block(workload::lateness(&self.place(), s.latency / 4))
            })?,
            self.millis("idle, then one job: start", 10.0, || {
                self.block(workload::after_idle(&self.place(), s.idle))
            })?,
            self.idle()?,
        ])
    }

    fn place(&self) -> Place {
        Place::Sqlite { folder: self.folder.to_owned(), mode: self.mode }
    }

    fn block<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        self.runtime.block_on(work)
    }

    /// Operations a second: higher is better; the goals are ratios to the peer and to the floor.
    fn rate(
        &self,
        name: &str,
        peer: Option<(&str, usize)>,
        peer_goal: f64,
        floor_goal: f64,
        quell: impl Fn() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Row> {
        let (mut own, mut peers, mut floors) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.sizes.rounds {
            progress(name, self.mode)?;
            own.push(quell()?);
            if let Some(floor) = floor::of(name) {
                floors.push(self.block(floor::run(floor, self.folder, self.mode, self.sizes))?);
            }
            if let (Some(program), Some((workload, count))) = (self.peer, peer) {
                peers.push(ask_peer(program, workload, count, self.folder)?);
            }
        }
        let row = Row::new(name, self.mode, "per second", median(own));
        Ok(row.beside(median_of(peers), peer_goal).above(median_of(floors), floor_goal))
    }

    fn absolute(
        &self,
        name: &str,
        goal: f64,
        quell: impl Fn() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Row> {
        let mut own = Vec::new();
        for _ in 0..self.sizes.rounds {
            progress(name, self.mode)?;
            own.push(quell()?);
        }
        Ok(Row::new(name, self.mode, "per second", median(own)).at_least(goal))
    }

    fn latency(&self, name: &str, quantile: f64, goal: f64) -> anyhow::Result<Row> {
        let row = self.millis(name, goal, || {
            self.block(workload::latency(&self.place(), self.sizes.latency, quantile))
        })?;
        match self.peer.filter(|_| quantile == 0.5) {
            Some(program) => {
                let peer = ask_peer(program, "latency", self.sizes.latency, self.folder)?;
                Ok(row.beside(Some(peer), 0.0))
            }
            None => Ok(row),
        }
    }

    /// Milliseconds: lower is better.
    fn millis(
        &self,
        name: &str,
        goal: f64,
        quell: impl Fn() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Row> {
        progress(name, self.mode)?;
        Ok(Row::new(name, self.mode, "ms", quell()?).at_most(goal))
    }

    fn idle(&self) -> anyhow::Result<Row> {
        progress("idle worker", self.mode)?;
        let (percent, written) = self.block(workload::idle(&self.place(), self.sizes.idle))?;
        let row = Row::new("idle worker, % of a core", self.mode, "%", percent).at_most(0.5);
        Ok(if written == 0 { row } else { row.failed(&format!("{written} bytes written")) })
    }
}

/// The trace through real workers, and what the rules say.
fn replay(trace: &Path) -> anyhow::Result<Row> {
    progress("replay of the trace", Synchronous::Full)?;
    let run = |command: &str, more: &[&str]| {
        let key = "{{ repo }}/{{ path | split('/') | first }}";
        let output = Command::new("target/dist/quell")
            .arg(command)
            .arg(trace)
            .args(["--key", key, "--time", "timestamp", "--min", "60s", "--max", "600s", "--json"])
            .args(more)
            .output()
            .context("target/dist/quell: build it first")?;
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        anyhow::Ok(answer)
    };
    let began = std::time::Instant::now();
    let replayed = run("replay", &["--speed", "max"])?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    let simulated = run("simulate", &[])?;
    let row = Row::new("replay of the trace", Synchronous::Full, "ms", took).at_most(10_000.0);
    let (runs, predicted) = (&replayed["runs"], &simulated["runs"]);
    let note = format!("{runs} runs, simulate says {predicted}");
    Ok(if runs == predicted { row.noted(&note) } else { row.failed(&note) })
}

fn ask_peer(program: &Path, workload: &str, count: usize, folder: &Path) -> anyhow::Result<f64> {
    let output = Command::new(program)
        .args([workload, &count.to_string()])
        .arg(folder)
        .output()
        .with_context(|| format!("cannot run the peer {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let reported = || String::from_utf8_lossy(&output.stderr).into_owned();
    text.trim().parse().with_context(reported)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn median_of(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| median(values))
}

fn progress(name: &str, mode: Synchronous) -> anyhow::Result<()> {
    use std::io::Write;
    Ok(writeln!(std::io::stderr(), "{mode:?}: {name} …")?)
}
