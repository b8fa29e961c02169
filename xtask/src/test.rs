//! `cargo xtask test`: set-up, then every check, the cheap ones first.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use crate::earlier::{self, EARLIER};
use crate::run::{answers, cargo, cargo_command, run};
use crate::services::Services;
use crate::tidy::tidy;

/// The oldest nextest that the configuration was written for.
const NEXTEST: &str = "0.9.143";

/// Runs everything; the first failure stops it.
pub(crate) fn test(root: &Path, quick: bool) -> anyhow::Result<()> {
    let started = Instant::now();
    step("system packages", packages)?;
    step("cargo-nextest", || nextest(root))?;
    step("formatting", || cargo(root, &["fmt", "--all", "--check"]))?;
    step("tidy", || tidy(root))?;
    step("lints", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
        cargo(root, &[&clippy[..], &["--", "-D", "warnings"]].concat())
    })?;
    if !quick {
        step("features, one at a time", || features(root))?;
        step("documentation", || documentation(root))?;
    }
    let earlier = step("earlier build", || earlier::build(root))?;
    let services = step("services", Services::start)?;
    step("tests", || run(root, services.tell(nextest_command(root).env(EARLIER, &earlier))))?;
    drop(services);
    step("documentation tests", || {
        cargo(root, &["test", "--doc", "--workspace", "--all-features", "--locked"])
    })?;
    tell(&format!("all of it passed in {} s", started.elapsed().as_secs()));
    Ok(())
}

fn step<R>(name: &str, run: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
    tell(&format!("== {name}"));
    let started = Instant::now();
    let answer = run().with_context(|| format!("step `{name}`"))?;
    tell(&format!("== {name}: {} s", started.elapsed().as_secs()));
    Ok(answer)
}

#[expect(clippy::print_stdout, reason = "a chore tells what it does")]
pub(crate) fn tell(line: &str) {
    println!("{line}");
}

/// Installs what the tests run, where it is missing: a C compiler for SQLite, git, and what signals
/// and starves processes.
fn packages() -> anyhow::Result<()> {
    let wanted = [("cc", "gcc"), ("git", "git"), ("kill", "procps"), ("prlimit", "util-linux")];
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|(program, _)| !answers(program, &["--version"]))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    quell_services::install(&[&["libc6-dev"], &missing[..]].concat())
}

/// Uses the machine's nextest, or installs one below `target`.
fn nextest(root: &Path) -> anyhow::Result<()> {
    if answers("cargo-nextest", &["nextest", "--version"]) || own_nextest(root).exists() {
        return Ok(());
    }
    let tools = root.join("target/tools");
    let tools = tools.to_str().context("the checkout's path is not UTF-8")?;
    let version = format!("^{NEXTEST}");
    cargo(root, &["install", "cargo-nextest", "--locked", "--version", &version, "--root", tools])
}

fn own_nextest(root: &Path) -> std::path::PathBuf {
    root.join("target/tools/bin/cargo-nextest")
}

/// Half of the time tests wait: for a deadline, a server, a time to come. So two run on each core.
fn nextest_command(root: &Path) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = format!("--test-threads={}", cores.saturating_mul(2));
    let args = ["nextest", "run", "--workspace", "--all-features", "--locked", &at_once];
    let own = own_nextest(root);
    if own.exists() {
        let mut command = Command::new(own);
        command.args(args);
        return command;
    }
    cargo_command(&args)
}

/// Features add up: what has some builds without any, and with each alone.
fn features(root: &Path) -> anyhow::Result<()> {
    let crates = [
        ("quell", &["sqlite", "postgres", "redis", "azure", "azure-entra"][..]),
        ("quell-conformance", &["suite", "sim"]),
        ("quell-azure", &["entra"]),
    ];
    for (name, features) in crates {
        let check = ["clippy", "-p", name, "--locked", "--no-default-features"];
        let none: &[&str] = &[];
        let each = features.iter().map(|feature| vec!["--features", feature]);
        for chosen in std::iter::once(none.to_vec()).chain(each) {
            cargo(root, &[&check[..], &chosen, &["--", "-D", "warnings"]].concat())?;
        }
    }
    Ok(())
}

fn documentation(root: &Path) -> anyhow::Result<()> {
    let mut doc = cargo_command(&["doc", "--workspace", "--no-deps", "--all-features", "--locked"]);
    run(root, doc.env("RUSTDOCFLAGS", "-D warnings"))
}
