//! Installing Debian packages that are missing.

use std::process::Command;

use anyhow::{Context, bail};

/// Installs Debian packages, as root or by sudo.
///
/// # Errors
/// Where that is not possible, with what apt said.
pub fn install(packages: &[&str]) -> anyhow::Result<()> {
    run_as_root("apt-get", &["update", "--quiet"])?;
    let install = ["install", "--quiet", "--yes", "--no-install-recommends"];
    run_as_root("apt-get", &[&install[..], packages].concat())
}

/// Runs a program as root.
pub(crate) fn run_as_root(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let mut command = Command::new(if is_root { program } else { "sudo" });
    if !is_root {
        command.arg("--non-interactive").arg(program);
    }
    let command = command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {} failed: {said}", args.join(" "));
    }
    Ok(())
}
