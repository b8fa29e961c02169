//! Set-up and chores: `cargo xtask test`, `cargo xtask sim`, `cargo xtask bench` and more.
//!
//! Invariant: it writes only below the checkout's `target` and the temporary folder, and leaves no
//! process behind.

mod bench;
mod run;
mod test;
mod tidy;

use clap::{Parser, Subcommand};

/// Set-up and chores of the Quell workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Sets up what tests need and runs every check and test.
    Test {
        /// Only formatting, lints and tests: no documentation, no features one by one.
        #[arg(long)]
        quick: bool,
    },
    /// Checks what no other tool does: file lengths, rule numbers, links, SQL files.
    Tidy,
    /// Checks licences, bans and sources of dependencies (needs `cargo install cargo-deny`).
    Deny,
    /// Runs seeds of the deterministic simulation and judges each.
    Sim {
        /// Handed on: --seed N, --from N, --seeds N, --minimise, --plan FILE, --history FILE,
        /// --bug NAME.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Measures Quell beside a peer and a floor.
    Bench {
        /// Which store.
        store: bench::Store,
        /// Handed on: --quick, --json FILE, --record, --trace FILE.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
}

/// The simulation is an example of its crate, so that tests and users need not build it.
fn sim(root: &std::path::Path, rest: &[String]) -> anyhow::Result<()> {
    let rest = rest.iter().map(String::as_str);
    let run = ["run", "--quiet", "--release", "--locked", "-p", "quell-conformance"];
    let args: Vec<&str> = run.into_iter().chain(["--example", "sim", "--"]).chain(rest).collect();
    run::cargo(root, &args)
}

fn main() -> anyhow::Result<()> {
    let root = run::root()?;
    match Cli::parse().chore {
        Chore::Test { quick } => test::test(&root, quick),
        Chore::Tidy => tidy::tidy(&root),
        Chore::Deny => run::cargo(&root, &["deny", "check", "bans", "licenses", "sources"]),
        Chore::Sim { rest } => sim(&root, &rest),
        Chore::Bench { store, rest } => bench::bench(&root, store, &rest),
    }
}
