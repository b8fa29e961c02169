//! Installing Debian packages that are missing.

use std::fs::File;
use std::process::Command;

use anyhow::{Context, bail};

/// Installs Debian packages, as root or by sudo.
///
/// # Errors
/// Where that is not possible, with what apt said.
pub fn install(packages: &[&str]) -> anyhow::Result<()> {
    let _alone = alone()?;
    apt(packages)
}

/// Whether this process is root's.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Installs a Debian package where it is missing. Its service starts neither now nor with the machine.
pub(crate) fn install_without_service(
    package: &str,
    is_there: impl Fn() -> bool,
) -> anyhow::Result<()> {
    let _alone = alone()?;
    if is_there() {
        return Ok(());
    }
    // Debian asks this file before it starts any service.
    let policy = "/usr/sbin/policy-rc.d";
    let begin = "test -e $0 || { printf '#!/bin/sh\\nexit 101 # quell-services\\n' > $0; \
                 chmod 755 $0; }";
    run_as_root("sh", &["-c", begin, policy])?;
    let installed = apt(&[package]);
    let end = "if grep -q quell-services $0; then rm $0; fi; update-rc.d $1 disable";
    let ended = run_as_root("sh", &["-c", end, policy, package]);
    installed.and(ended)
}

/// As [`install`], for who is [`alone`] already.
pub(crate) fn install_while_alone(packages: &[&str]) -> anyhow::Result<()> {
    apt(packages)
}

/// One at a time, whichever process asks: apt refuses the second.
pub(crate) fn alone() -> anyhow::Result<File> {
    let place = std::env::temp_dir().join("quell-services.lock");
    // Another user's file in a folder of everyone's may be opened, but not by who would create it.
    let file = File::open(&place).or_else(|_| File::create(&place))?;
    file.lock().context("cannot wait for another installation")?;
    Ok(file)
}

fn apt(packages: &[&str]) -> anyhow::Result<()> {
    run_as_root("apt-get", &["update", "--quiet"])?;
    let install = ["install", "--quiet", "--yes", "--no-install-recommends"];
    run_as_root("apt-get", &[&install[..], packages].concat())
}

/// Runs a program as root.
pub(crate) fn run_as_root(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(if is_root() { program } else { "sudo" });
    if !is_root() {
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
