//! `cargo xtask bench`: builds Quell as it is shipped and its peers likewise, then runs the bench.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::run::{answers, cargo, run};

/// The stores that can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Store {
    /// The embedded store, beside `effectum`.
    Sqlite,
    /// The store that services share, beside `graphile_worker`, `riverqueue`, BullMQ,
    /// `apalis-postgres` and `awa`.
    Postgres,
    /// The store on Redis, beside BullMQ, dramatiq and `apalis-redis`.
    Redis,
    /// The store on Azure, on Azurite.
    Azure,
    /// The engine beside the model store's direct moves.
    Memory,
    /// What Quell alone needs at fixed rates, on SQLite, PostgreSQL and Redis.
    Capacity,
    /// Many jobs through SQLite and Redis: whether the last are as fast as the first.
    Through,
}

/// Programs in Rust on PostgreSQL, Quell first; who of them takes part is said in
/// `bench/src/postgres/workloads.rs`.
const POSTGRES_PEERS: [&str; 7] = [
    "quell-postgres",
    "pg-floor",
    "graphile-worker",
    "riverqueue",
    "bullmq-postgres",
    "apalis-postgres",
    "awa",
];

/// Programs in Rust on Redis, Quell first; who of them takes part is said in `bench/src/redis/workloads.rs`.
const REDIS_PEERS: [&str; 3] = ["quell-redis", "redis-floor", "apalis-redis"];

/// Builds and runs. Peers have a target folder of their own, because of what they link.
pub(crate) fn bench(root: &Path, store: Store, rest: &[String]) -> anyhow::Result<()> {
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let run = ["run", "--profile", "dist", "--locked", "-p", "quell-bench", "--"];
    match store {
        Store::Azure => cargo(root, &[&run[..], &["azure"], &rest].concat()),
        Store::Memory => cargo(root, &[&run[..], &["memory"], &rest].concat()),
        Store::Capacity => cargo(root, &[&run[..], &["capacity"], &rest].concat()),
        Store::Through => cargo(root, &[&run[..], &["through"], &rest].concat()),
        Store::Sqlite => {
            peer(root, "effectum")?;
            cargo(root, &["build", "--profile", "dist", "--locked", "-p", "quell-server"])?;
            let peer = ["sqlite", "--peer", "target/peers/release/effectum-peer"];
            cargo(root, &[&run[..], &peer, &rest].concat())
        }
        Store::Postgres => {
            let alone = rest.contains(&"--scaling");
            let needed = POSTGRES_PEERS.iter().take(if alone { 1 } else { POSTGRES_PEERS.len() });
            needed.copied().try_for_each(|name| peer(root, name))?;
            if !alone {
                node_peer(root, "bullmq")?;
            }
            cargo(root, &[&run[..], &["postgres"], &rest].concat())
        }
        Store::Redis => {
            let alone = rest.contains(&"--scaling");
            let needed = REDIS_PEERS.iter().take(if alone { 1 } else { REDIS_PEERS.len() });
            needed.copied().try_for_each(|name| peer(root, name))?;
            if !alone {
                node_peer(root, "bullmq")?;
                python_peer(root, "dramatiq")?;
            }
            cargo(root, &[&run[..], &["redis"], &rest].concat())
        }
    }
}

fn peer(root: &Path, name: &str) -> anyhow::Result<()> {
    let manifest = format!("bench/peers/{name}/Cargo.toml");
    let build = ["build", "--release", "--locked", "--manifest-path", &manifest];
    cargo(root, &[&build[..], &["--target-dir", "target/peers"]].concat())
}

/// A program in JavaScript, with what it needs, in a folder of its own. (Not by `npm ci`: that wants
/// the lock to name the binaries of platforms that are not in use here.)
fn node_peer(root: &Path, name: &str) -> anyhow::Result<()> {
    if !answers("npm", &["--version"]) {
        quell_services::install(&["nodejs", "npm"])?;
    }
    let folder = copied(root, name)?;
    let install = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"];
    run(&folder, Command::new("npm").args(install))
}

/// A program in Python, likewise.
fn python_peer(root: &Path, name: &str) -> anyhow::Result<()> {
    if !answers("python3", &["-c", "import ensurepip"]) {
        quell_services::install(&["python3-venv"])?;
    }
    let folder = copied(root, name)?;
    if !folder.join("venv/bin/pip").exists() {
        run(&folder, Command::new("python3").args(["-m", "venv", "venv"]))?;
    }
    let install = ["install", "--quiet", "--require-hashes", "-r", "requirements.txt"];
    run(&folder, Command::new(folder.join("venv/bin/pip")).args(install))
}

/// The files of a program below `target`, where what it needs goes too.
fn copied(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = root.join("target/peers").join(name);
    std::fs::create_dir_all(&folder)?;
    for file in std::fs::read_dir(root.join("bench/peers").join(name))? {
        let file = file?;
        std::fs::copy(file.path(), folder.join(file.file_name()))?;
    }
    Ok(folder)
}
