//! `cargo xtask test`: set-up, then every check, the cheap ones first.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use crate::earlier::{self, EARLIER};
use crate::run::{INCREMENTAL, answers, cargo, cargo_command, run};
use crate::services::Services;
use crate::sweep::sweep;
use crate::tidy::tidy;
use crate::{package, packages};

/// The oldest nextest that the configuration was written for.
const NEXTEST: &str = "0.9.143";

const WORKSPACE: [&str; 2] = ["--workspace", "--all-features"];
const DEFAULT: &str = "default";
const FAST_PROFILE: &str = "fast";
/// Says to random proofs that they run all their cases: `quell_conformance::effort`.
const LONG: &str = "QUELL_TEST_LONG";
/// The crates of [`fast()`]: the rules, what proves them, one store, the client and the worker.
const FAST: [&str; 10] = [
    "quell-core",
    "quell-check",
    "quell-conformance",
    "quell-engine",
    "quell-portable",
    "quell-shards",
    "quell-sqlite",
    "quell",
    "quell-lab",
    "xtask",
];
/// Without the stores that need a server.
const FAST_FEATURES: &str = "quell-conformance/suite,quell-conformance/sim";

/// Runs everything but what takes long; the first failure stops it.
pub(crate) fn test(root: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    begin(root)?;
    step("lints", || {
        let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
        cargo(root, &[&clippy[..], &["--", "-D", "warnings"]].concat())
    })?;
    step("packages", || package::check(root))?;
    step("packages of the binary", || packages::lint(root))?;
    step("features, one at a time", || features(root))?;
    step("documentation", || documentation(root))?;
    let earlier = step("earlier build", || earlier::build(root))?;
    let services = step("services", Services::start)?;
    step("tests", || {
        let mut tests = nextest_command(root, DEFAULT, &WORKSPACE);
        run(root, services.tell(tests.env(EARLIER, &earlier)))
    })?;
    tell(&step("planted secrets", || sweep(root, DEFAULT, &services.logs()))?);
    drop(services);
    step("documentation tests", || {
        cargo(root, &["test", "--doc", "--workspace", "--all-features", "--locked"])
    })?;
    end(started);
    Ok(())
}

/// While you work: formatting, tidiness, and the tests that need no server and little time.
pub(crate) fn fast(root: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    begin(root)?;
    let crates = FAST.iter().flat_map(|name| ["-p", name]);
    let args: Vec<&str> = crates.chain(["--features", FAST_FEATURES]).collect();
    step("tests", || run(root, &mut nextest_command(root, FAST_PROFILE, &args)))?;
    end(started);
    Ok(())
}

/// What [`test()`] leaves out: tests in modules called `long`, most cases of random proofs, every test of the
/// suite on every store once more, for the page that shows the results, and the packages of the binary.
pub(crate) fn long(root: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    begin(root)?;
    let services = step("services", Services::start)?;
    step("tests", || {
        let mut tests = nextest_command(root, "long", &WORKSPACE);
        run(root, services.tell(tests.env(LONG, "1")))
    })?;
    step("conformance", || run(root, services.tell(&mut conformance_command())))?;
    drop(services);
    step("packages of the binary", || packages::packages(root, false))?;
    end(started);
    Ok(())
}

/// Runs the suite on every store and writes docs/conformance.md.
pub(crate) fn conformance_command() -> Command {
    cargo_command(&["run", "--locked", "-p", "quell-stores", "--", "table"])
}

fn begin(root: &Path) -> anyhow::Result<()> {
    step("system packages", packages)?;
    step("cargo-nextest", || nextest(root))?;
    step("formatting", || cargo(root, &["fmt", "--all", "--check"]))?;
    step("tidy", || tidy(root))
}

fn end(started: Instant) {
    tell(&format!("all of it passed in {} s", started.elapsed().as_secs()));
}

fn step<R>(name: &str, run: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
    tell(&format!("== {name}"));
    let started = Instant::now();
    let answer = run().with_context(|| format!("step `{name}`"))?;
    tell(&format!("== {name}: {} s", started.elapsed().as_secs()));
    Ok(answer)
}

#[expect(clippy::print_stdout, reason = "a chore prints what it does")]
pub(crate) fn tell(line: &str) {
    println!("{line}");
}

/// Installs what the tests run, where it is missing: a C compiler for SQLite, git, what signals and
/// starves processes, and what compares packages.
fn packages() -> anyhow::Result<()> {
    let wanted = [
        ("cc", "gcc"),
        ("git", "git"),
        ("kill", "procps"),
        ("prlimit", "util-linux"),
        ("diff", "diffutils"),
    ];
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

/// Runs tests of these crates by a profile of `.config/nextest.toml`. Most of the time tests wait: for
/// a deadline, a server, a time to come. So three run on each core.
fn nextest_command(root: &Path, profile: &str, crates: &[&str]) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = format!("--test-threads={}", cores.saturating_mul(3));
    let args = ["nextest", "run", "--profile", profile, "--locked", &at_once];
    let own = own_nextest(root);
    let mut command = if own.exists() { Command::new(own) } else { cargo_command(&[]) };
    let again_soon = if profile == FAST_PROFILE { "1" } else { "0" };
    command.args(args).args(crates).env(INCREMENTAL, again_soon);
    command
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
