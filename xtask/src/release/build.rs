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
    // Paths in messages of panics and of asserts in C would differ between machines.
    let moved = moved(root)?;
    let rust = moved.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    // Cargo splits the variable at this character.
    command.env("CARGO_ENCODED_RUSTFLAGS", rust.collect::<Vec<_>>().join("\u{1f}"));
    let c = moved.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}"));
    let flags = format!("CFLAGS_{}", arch.triple.replace('-', "_"));
    command.env(flags, c.collect::<Vec<_>>().join(" "));
    run(root, &mut command)?;
    check(&target(root).join(arch.triple).join("dist/quell"), &moved)
}

/// The folders that sources lie in, and what the binary calls them.
fn moved(root: &Path) -> anyhow::Result<[(String, &'static str); 2]> {
    let cargo = match std::env::var("CARGO_HOME") {
        Ok(home) => home,
        Err(_) => format!("{}/.cargo", std::env::var("HOME").context("HOME is not set")?),
    };
    Ok([(root.display().to_string(), "/quell"), (cargo, "/cargo")])
}

fn check(binary: &Path, moved: &[(String, &str)]) -> anyhow::Result<()> {
    let mut readelf = Command::new("readelf");
    let headers = output(readelf.args(["--wide", "--program-headers"]).arg(binary))?;
    let place = binary.display();
    ensure!(
        !String::from_utf8_lossy(&headers).contains("INTERP"),
        "{place} is linked dynamically: an image without a C library could not run it"
    );
    let bytes = std::fs::read(binary).with_context(|| place.to_string())?;
    for (path, _) in moved {
        let is_named = bytes.windows(path.len()).any(|window| window == path.as_bytes());
        ensure!(!is_named, "{place} names the folder {path}: check the flags that move paths");
    }
    Ok(())
}
