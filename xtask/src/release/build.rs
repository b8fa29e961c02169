//! The static binary of an architecture: musl, every store, the profile `dist`.
//!
//! Invariant: the binary has no interpreter, so it runs in an empty image, and no path of this machine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::Arch;
use crate::package::target;
use crate::run::{answers, cargo_command, output, run};

/// Builds it.
pub(super) fn build(root: &Path, arch: Arch) -> anyhow::Result<()> {
    run(root, Command::new("rustup").args(["target", "add", arch.triple]))?;
    let mut command = if arch == Arch::native()? {
        if !answers("musl-gcc", &["--version"]) {
            quell_services::install(&["musl-tools"])?;
        }
        cargo_command(&["build"])
    } else {
        quell_services::zigbuild()?
    };
    command.args(["--locked", "--profile", "dist", "--package", "quell-server"]);
    command.args(["--features", "full", "--target", arch.triple]);
    command.env("CARGO_ENCODED_RUSTFLAGS", rust_flags(root)?);
    run(root, &mut command)?;
    check(root, &target(root).join(arch.triple).join("dist/quell"))
}

/// Paths in messages of panics would differ between machines.
fn rust_flags(root: &Path) -> anyhow::Result<String> {
    let cargo = match std::env::var("CARGO_HOME") {
        Ok(home) => home,
        Err(_) => format!("{}/.cargo", std::env::var("HOME").context("HOME is not set")?),
    };
    let remap = |from: &str, to: &str| format!("--remap-path-prefix={from}={to}");
    // Cargo splits the variable at this character.
    Ok([remap(&root.display().to_string(), "/quell"), remap(&cargo, "/cargo")].join("\u{1f}"))
}

fn check(root: &Path, binary: &Path) -> anyhow::Result<()> {
    let mut readelf = Command::new("readelf");
    let headers = output(readelf.args(["--wide", "--program-headers"]).arg(binary))?;
    let place = binary.display();
    ensure!(
        !String::from_utf8_lossy(&headers).contains("INTERP"),
        "{place} is linked dynamically: an image without a C library could not run it"
    );
    let bytes = std::fs::read(binary).with_context(|| place.to_string())?;
    let path = root.display().to_string();
    let names_root = bytes.windows(path.len()).any(|window| window == path.as_bytes());
    ensure!(!names_root, "{place} names the folder {path}: check --remap-path-prefix");
    Ok(())
}
