//! `cargo xtask packages`: the packages of the binary, built, linted, installed and started.
//!
//! `lint` needs no binary and takes seconds, so each test run has it. `packages` builds the release for
//! this machine's architecture, starts the image in a container, and installs the Debian package in a
//! system of its own that systemd runs.
//! Invariant: containers and systems lie in temporary folders and end with the chore.

mod chart;
mod debian;
mod image;
mod lint;

use std::path::Path;

use anyhow::ensure;

use crate::release;
use crate::test::tell;

/// Lints the sources of all packages.
pub(crate) fn lint(root: &Path) -> anyhow::Result<()> {
    lint::dockerfile(root)?;
    lint::compose(root)?;
    lint::unit(root)?;
    lint::debian(root)?;
    chart::lint(root).map(|_| ())
}

/// Builds, lints, installs and starts each package, on request around the binary `is_built` already.
pub(crate) fn packages(root: &Path, is_built: bool) -> anyhow::Result<()> {
    ensure!(
        quell_services::is_root(),
        "containers and a system of its own need root: run `cargo xtask packages` as root"
    );
    lint(root)?;
    let built = release::release(root, true, is_built)?;
    for built in &built {
        chart::check(root, built)?;
        image::check(root, built)?;
        debian::check(root, built)?;
    }
    release::checksums(&release::folder(root))?;
    tell("each package was built, linted, installed and started");
    Ok(())
}
