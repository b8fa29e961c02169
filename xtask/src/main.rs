//! Set-up and chores: `cargo xtask test`, `cargo xtask tidy`, `cargo xtask bench` and more.
//!
//! Invariant: it leaves no process behind and writes only below the checkout's `target` and the
//! temporary folder, but for the files that a chore is there to write.

mod architecture;
mod bench;
mod book;
mod earlier;
mod fuzz;
mod layers;
mod licence;
mod live;
mod manifest;
mod markdown;
mod names;
mod package;
mod packages;
mod release;
mod run;
mod services;
mod sweep;
mod test;
mod tidy;
mod tools;
mod words;

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
        /// Only formatting, tidiness and the tests that need no server and little time.
        #[arg(long, conflicts_with = "long")]
        fast: bool,
        /// Only what a run without it leaves out: whole suites on further releases of servers, and the
        /// suite on every store for docs/conformance.md.
        #[arg(long)]
        long: bool,
    },
    /// Builds the `quell` of the commit that compat/earlier.toml names, which tests run beside this
    /// one's, and prints where it is.
    Earlier,
    /// Runs a command beside the servers that tests need, such as `cargo nextest run -p …`.
    WithServices {
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Checks what no other tool does: file lengths, rule numbers, links, SQL files, plain words.
    Tidy,
    /// Lists the words of xtask/words/list.txt in pages and in sources' comments and strings, and what
    /// to write instead; those of xtask/words/allow.txt are left out.
    Words {
        /// Only below this folder, such as `crates/quell`, or in this file.
        #[arg(default_value = "")]
        below: String,
    },
    /// Writes the public names of the crate `quell` to crates/quell/api.txt, which tidy compares.
    Names,
    /// Builds the pages of docs/SUMMARY.md as a book in target/book; installs mdBook if it is missing.
    Book {
        /// The repository's address on a code host: links to files outside of the book lead there.
        #[arg(long)]
        repository: Option<String>,
    },
    /// Packages the published crates and checks what the packages hold, as each test run does.
    Package {
        /// Has cargo build each package alone, too, as it does before an upload.
        #[arg(long)]
        each: bool,
    },
    /// Builds the packages of the binary, lints, installs and starts each: image, Helm chart, Debian package
    /// and systemd unit.
    Packages {
        /// Only lints their sources, as each test run does.
        #[arg(long, conflicts_with = "built")]
        lint: bool,
        /// Takes the binary that the last release built, for work on the packages themselves.
        #[arg(long)]
        built: bool,
    },
    /// Builds static binaries for x86-64 and ARM64 with every store, and packs archives with checksums
    /// and lists of dependencies into target/release-files.
    Release {
        /// Only for this machine's architecture.
        #[arg(long)]
        native: bool,
    },
    /// Checks licences, bans and sources of dependencies with cargo-deny, which it installs below
    /// `target/tools`.
    Deny,
    /// Writes the dependencies of `quell` as CycloneDX to target/quell.cdx.json, with cargo-cyclonedx,
    /// which it installs below `target/tools`.
    Sbom,
    /// Lists what has changed in the published crates since a commit and breaks callers, with
    /// cargo-semver-checks, which it installs below `target/tools`.
    Semver {
        /// The commit, such as the tag of the last version.
        #[arg(long, value_name = "COMMIT")]
        baseline: String,
    },
    /// Runs seeds of the deterministic simulation and judges each.
    Sim {
        /// Handed on: --seed N, --from N, --seeds N, --minimise, --plan FILE, --history FILE,
        /// --bug NAME; with --store and one of the stores of `soak` on that store, then only --seed,
        /// --from, --seeds and --history.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Runs the suite on every store and writes docs/conformance.md.
    Conformance,
    /// Drives a store and the model with random operations for as long as asked, built for release.
    Soak {
        /// Which store: memory, sqlite, postgres, redis, engine, table, sql-table or azure.
        #[arg(long)]
        store: String,
        /// For how long.
        #[arg(long, default_value_t = 5)]
        minutes: u64,
    },
    /// Kills, stops, locks out and starves real processes on one store, and judges what they did.
    Chaos {
        /// On which store: sqlite, postgres or redis.
        #[arg(long, default_value = "sqlite")]
        store: String,
        /// How many faults.
        #[arg(long, default_value_t = 1_000)]
        rounds: u32,
        /// Which ones.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Feeds every parser of strangers' input (needs a nightly compiler and cargo-fuzz).
    Fuzz {
        /// One target; all of them by default.
        target: Option<String>,
        /// For how long each.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
        minutes: u64,
    },
    /// Runs tests of the store on the Azure account whose connection string is in
    /// `AZURE_STORAGE_CONNECTION_STRING`. They leave tables and queues behind: give an account that you
    /// delete afterwards. Where `AZURE_SERVICEBUS_CONNECTION_STRING` has a queue of Service Bus
    /// (`EntityPath`), also tests of timers and dedup keys on that: docs/azure.md says how to create it.
    Live,
    /// Measures Quell beside its peers and a floor.
    Bench {
        /// Which store.
        store: bench::Store,
        /// Handed on: --quick, --json FILE, --record, --only TEXT; and others: see `bench/src`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
}

/// The simulation in memory is an example of its crate, so that tests and users need not build it;
/// that on a store is a chore of the crate that knows all stores.
fn sim(root: &std::path::Path, rest: &[String]) -> anyhow::Result<()> {
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let run = ["run", "--quiet", "--release", "--locked", "-p"];
    let store = rest.iter().position(|arg| *arg == "--store").and_then(|at| rest.get(at + 1));
    let Some(store) = store else {
        let sim = ["quell-conformance", "--example", "sim", "--"];
        return run::cargo(root, &[&run[..], &sim[..], &rest[..]].concat());
    };
    let args = [&run[..], &["quell-stores", "--", "sim"], &rest[..]].concat();
    let mut command = run::cargo_command(&args);
    if matches!(*store, "memory" | "sqlite") {
        return run::run(root, &mut command);
    }
    let services = services::Services::start()?;
    run::run(root, services.tell(&mut command))
}

fn main() -> anyhow::Result<()> {
    let root = run::root()?;
    match Cli::parse().chore {
        Chore::Test { fast: true, .. } => test::fast(&root),
        Chore::Test { long: true, .. } => test::long(&root),
        Chore::Test { .. } => test::test(&root),
        Chore::Earlier => earlier::earlier(&root),
        Chore::WithServices { command } => services::with_services(&root, &command),
        Chore::Tidy => tidy::tidy(&root),
        Chore::Names => names::write(&root),
        Chore::Words { below } => words::list(&root, &tidy::tracked(&root)?, &below),
        Chore::Book { repository } => book::book(&root, repository.as_deref()),
        Chore::Package { each } => {
            package::check(&root)?;
            if each { package::build_each(&root) } else { Ok(()) }
        }
        Chore::Packages { lint: true, .. } => packages::lint(&root),
        Chore::Packages { built, .. } => packages::packages(&root, built),
        Chore::Release { native } => release::release(&root, native, false).map(|_| ()),
        Chore::Deny => package::deny(&root),
        Chore::Sbom => package::sbom(&root),
        Chore::Semver { baseline } => package::semver(&root, &baseline),
        Chore::Sim { rest } => sim(&root, &rest),
        Chore::Conformance => {
            let services = services::Services::start()?;
            run::run(&root, services.tell(&mut test::conformance_command()))
        }
        Chore::Soak { store, minutes } => soak(&root, &store, minutes),
        Chore::Chaos { store, rounds, seed } => chaos(&root, &store, rounds, seed),
        Chore::Fuzz { target, minutes } => fuzz::fuzz(&root, target.as_deref(), minutes),
        Chore::Live => live::live(&root),
        Chore::Bench { store, rest } => bench::bench(&root, store, &rest),
    }
}

/// Runs the crate that knows all stores, so that this one stays quick to build.
fn soak(root: &std::path::Path, store: &str, minutes: u64) -> anyhow::Result<()> {
    let run = ["run", "--release", "--locked", "-p", "quell-stores", "--"];
    let soak = ["soak", "--store", store, "--minutes", &minutes.to_string()];
    let services = services::Services::start()?;
    run::run(root, services.tell(&mut run::cargo_command(&[&run[..], &soak].concat())))
}

/// The same test that every run has, with more rounds; built with debug assertions.
fn chaos(root: &std::path::Path, store: &str, rounds: u32, seed: u64) -> anyhow::Result<()> {
    let test = ["test", "--locked", "-p", "quell-server", "--test", "it", "--"];
    let name = format!("of_chaos_on_{store}");
    let mut command = run::cargo_command(&[&test[..], &[&name, "--nocapture"]].concat());
    command.env("QUELL_CHAOS_ROUNDS", rounds.to_string());
    run::run(root, command.env("QUELL_CHAOS_SEED", seed.to_string()))
}
