//! `cargo xtask bench`: builds Quell and its peers for release, then runs the bench.

use std::path::Path;

use clap::ValueEnum;

use crate::run::cargo;

/// The stores that can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Store {
    /// The embedded store, beside `effectum`.
    Sqlite,
    /// The store that services share, beside `graphile_worker`, `apalis-postgres` and `awa`.
    Postgres,
}

/// Builds and runs. Peers have a target folder of their own, because of what they link.
pub(crate) fn bench(root: &Path, store: Store, rest: &[String]) -> anyhow::Result<()> {
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let run = ["run", "--release", "--locked", "-p", "quell-bench", "--"];
    match store {
        Store::Sqlite => {
            peer(root, "effectum")?;
            cargo(root, &["build", "--release", "--locked", "-p", "quell-server"])?;
            let peer = ["sqlite", "--peer", "target/peers/release/effectum-peer"];
            cargo(root, &[&run[..], &peer, &rest].concat())
        }
        Store::Postgres => {
            let peers = ["quell-postgres", "pg-floor", "graphile-worker", "apalis-postgres", "awa"];
            let alone = rest.contains(&"--scaling");
            let needed = peers.iter().take(if alone { 1 } else { peers.len() });
            needed.copied().try_for_each(|name| peer(root, name))?;
            cargo(root, &[&run[..], &["postgres"], &rest].concat())
        }
    }
}

fn peer(root: &Path, name: &str) -> anyhow::Result<()> {
    let manifest = format!("bench/peers/{name}/Cargo.toml");
    let build = ["build", "--release", "--locked", "--manifest-path", &manifest];
    cargo(root, &[&build[..], &["--target-dir", "target/peers"]].concat())
}
