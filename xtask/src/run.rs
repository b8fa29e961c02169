//! Running other programs: every call names its folder, and a failure names the command.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Says to cargo whether the compiler keeps what makes its next run quicker.
pub(crate) const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// The workspace's root.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(manifest.parent().context("xtask has no parent folder")?.to_owned())
}

/// Runs a command to its end in `folder`.
pub(crate) fn run(folder: &Path, command: &mut Command) -> anyhow::Result<()> {
    command.current_dir(folder);
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status}): run it alone to see it again");
    }
    Ok(())
}

/// Runs a command to its end and returns what it printed on standard output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let shown = show(command);
    let output = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` failed ({}): {}", output.status, said.trim());
    }
    Ok(output.stdout)
}

/// Runs cargo with these arguments.
pub(crate) fn cargo(folder: &Path, args: &[&str]) -> anyhow::Result<()> {
    run(folder, &mut cargo_command(args))
}

/// What the compiler keeps for its next run would fill the disk: a chore builds each crate with several
/// sets of features.
pub(crate) fn cargo_command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).env(INCREMENTAL, "0");
    command
}

/// Whether a program is there and answers.
pub(crate) fn answers(program: impl AsRef<OsStr>, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
