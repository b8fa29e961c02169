//! Fuzzing: each target for a while, one after the other. Findings stay in `fuzz/artifacts`, new
//! inputs in the target folder; `crates/quell-fuzz` replays the committed corpora in every test run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::run::{answers, run};

/// Runs one target or all of them, for this number of minutes each.
pub(crate) fn fuzz(root: &Path, target: Option<&str>, minutes: u64) -> anyhow::Result<()> {
    ensure!(
        answers("cargo", &["fuzz", "--version"]),
        "cargo-fuzz is missing: cargo install cargo-fuzz --locked"
    );
    ensure!(
        answers("cargo", &["+nightly", "--version"]),
        "a nightly compiler is missing: rustup toolchain install nightly"
    );
    let folder = root.join("fuzz");
    let built = root.join("target/fuzz");
    for name in targets(&folder)? {
        if target.is_some_and(|wanted| wanted != name) {
            continue;
        }
        let found = built.join("found").join(&name);
        std::fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        let seconds = format!("-max_total_time={}", 60 * minutes);
        // Through rustup's own `cargo`: the one that runs this is another toolchain's.
        let mut command = Command::new("cargo");
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        command.args(["+nightly", "fuzz", "run", &name]).arg(&found).arg(format!("corpus/{name}"));
        command.args(["--", &seconds, "-rss_limit_mb=4096", "-timeout=20", "-max_len=4096"]);
        run(&folder, command.env("CARGO_TARGET_DIR", &built))?;
    }
    Ok(())
}

/// The targets: one for each corpus.
fn targets(folder: &Path) -> anyhow::Result<Vec<String>> {
    let corpora = std::fs::read_dir(folder.join("corpus")).context("fuzz/corpus")?;
    let mut names = Vec::new();
    for corpus in corpora {
        names.push(corpus?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
