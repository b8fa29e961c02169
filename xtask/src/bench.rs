//! `cargo xtask bench`: builds Quell and its peer for release, then runs the bench.

use std::path::Path;

use clap::ValueEnum;

use crate::run::cargo;

/// The stores that can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Store {
    /// The embedded store, beside `effectum`.
    Sqlite,
}

/// Builds and runs; the peer has a target folder of its own, because it links another SQLite.
pub(crate) fn bench(root: &Path, store: Store, rest: &[String]) -> anyhow::Result<()> {
    let Store::Sqlite = store;
    let peer =
        ["build", "--release", "--locked", "--manifest-path", "bench/peers/effectum/Cargo.toml"];
    cargo(root, &[&peer[..], &["--target-dir", "target/peers"]].concat())?;
    cargo(root, &["build", "--release", "--locked", "-p", "quell-server"])?;
    let run = ["run", "--release", "--locked", "-p", "quell-bench", "--", "sqlite"];
    let peer = ["--peer", "target/peers/release/effectum-peer"];
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    cargo(root, &[&run[..], &peer, &rest].concat())
}
