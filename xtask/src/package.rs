//! `cargo xtask package`: the crates as crates.io would receive them.
//!
//! `check` is part of each test run. It packages the published crates, unpacks them into a workspace
//! below `target`, and checks that workspace with the dependencies that the lints have built already.
//! So a file that a package lacks, or a feature that only another crate of the workspace enabled, is
//! found at each run. `build_each` lets cargo build each package alone, as it does before an upload.
//!
//! Invariant: nothing is uploaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::manifest;
use crate::run::{cargo_command, run};
use crate::test::tell;

/// Packages the published crates and checks what the packages hold.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    manifest::check(root)?;
    let names = manifest::published_names(root)?;
    let version = manifest::version(root)?;
    // Quiet, as cargo warns of each crate without a repository: there is no public URL yet.
    let mut package = package(&names);
    run(root, package.args(["--quiet", "--no-verify"]))?;
    let unpacked = target(root).join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).with_context(|| unpacked.display().to_string())?;
    }
    fs::create_dir_all(&unpacked).with_context(|| unpacked.display().to_string())?;
    for name in &names {
        let archive = target(root).join(format!("package/{name}-{version}.crate"));
        // Files in packages have no times. With those of now, cargo checks them again.
        let mut tar = Command::new("tar");
        run(&unpacked, tar.args(["--extract", "--gzip", "--touch", "--file"]).arg(&archive))?;
    }
    let profiles = fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    let manifest = workspace(&names, &version, &profiles);
    fs::write(unpacked.join("Cargo.toml"), manifest).context("write the workspace's manifest")?;
    fs::copy(root.join("Cargo.lock"), unpacked.join("Cargo.lock")).context("copy Cargo.lock")?;
    let mut check = cargo_command(&["check", "--workspace", "--all-features", "--offline"]);
    run(&unpacked, check.arg("--target-dir").arg(target(root)))
}

/// Packages each published crate and has cargo build it alone, with its default features.
pub(crate) fn build_each(root: &Path) -> anyhow::Result<()> {
    let names = manifest::published_names(root)?;
    let mut package = package(&names);
    // Without this, each package would get a target directory of its own.
    run(root, package.env("CARGO_TARGET_DIR", target(root)))?;
    tell(&format!("{} packages build: {}", names.len(), names.join(", ")));
    Ok(())
}

/// Where this checkout is built.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// `cargo package` of the published crates. The others cannot be packaged, as they depend on crates
/// that no registry has.
fn package(names: &[String]) -> Command {
    // Tests run before a commit, too.
    let mut command = cargo_command(&["package", "--locked", "--allow-dirty"]);
    for name in names {
        command.args(["--package", name]);
    }
    command
}

/// A workspace of the unpacked crates, which are used in place of those that crates.io does not have.
/// It has the profiles of the checkout, so that dependencies are not built again.
fn workspace(names: &[String], version: &str, checkout: &str) -> String {
    let mut text = String::from("[workspace]\nresolver = \"3\"\nmembers = [\"*-*\"]\n\n");
    text.push_str("[patch.crates-io]\n");
    for name in names {
        text.push_str(&format!("{name} = {{ path = \"{name}-{version}\" }}\n"));
    }
    text.push('\n');
    text.push_str(checkout.find("[profile.dev]").map_or("", |start| &checkout[start..]));
    text
}

/// `cargo xtask sbom`: what `quell` is made of, as CycloneDX.
pub(crate) fn sbom(root: &Path) -> anyhow::Result<()> {
    let tool = crate::tools::find(root, crate::tools::CYCLONEDX)?;
    let mut command = Command::new(tool);
    let cyclonedx = ["cyclonedx", "--format", "json", "--all-features", "--target", "all"];
    command.args(cyclonedx).args(["--override-filename", "quell.cdx"]);
    command.args(["--manifest-path", "crates/quell-server/Cargo.toml"]);
    run(root, &mut command)?;
    let written = root.join("crates/quell-server/quell.cdx.json");
    let place = target(root).join("quell.cdx.json");
    fs::rename(&written, &place).with_context(|| written.display().to_string())?;
    tell(&place.display().to_string());
    Ok(())
}

/// `cargo xtask deny`. Advisories need a database from the network; the rest needs none.
pub(crate) fn deny(root: &Path) -> anyhow::Result<()> {
    let tool = crate::tools::find(root, crate::tools::DENY)?;
    run(root, Command::new(tool).args(["deny", "check", "bans", "licenses", "sources"]))
}

/// `cargo xtask semver`: what has changed in the published crates since a commit and breaks callers.
pub(crate) fn semver(root: &Path, baseline: &str) -> anyhow::Result<()> {
    let tool = crate::tools::find(root, crate::tools::SEMVER)?;
    let check = ["semver-checks", "--release-type", "minor", "--baseline-rev", baseline];
    run(root, Command::new(tool).args(check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_of_packages_has_them_and_the_profiles_of_the_checkout() {
        let names = ["quell".to_owned(), "quell-core".to_owned()];
        let text = workspace(&names, "1.2.3", "[workspace]\nx = 1\n[profile.dev]\ndebug = false\n");
        assert!(text.contains("quell = { path = \"quell-1.2.3\" }"), "{text}");
        assert!(text.contains("quell-core = { path = \"quell-core-1.2.3\" }"), "{text}");
        assert!(text.ends_with("[profile.dev]\ndebug = false\n"), "{text}");
        assert!(!text.contains("x = 1"), "{text}");
    }
}
