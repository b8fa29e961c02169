//! `cargo xtask package`: the crates as crates.io would receive them.
//!
//! `check` is part of each test run. It packages the published crates, unpacks them into a workspace
//! below `target`, and checks that workspace with the dependencies that the lints have built already.
//! So a file that a package lacks, or a feature that only another crate of the workspace enabled, is
//! found at each run. `build_each` lets cargo build each package alone, as it does before an upload.
//!
//! Invariant: nothing is uploaded.

use std::collections::BTreeSet;
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
    let packages = names.iter().map(|name| format!("{name}-{version}")).collect();
    unpack(&target(root).join("package"), &unpacked, packages)?;
    let profiles = fs::read_to_string(root.join("Cargo.toml")).context("Cargo.toml")?;
    let manifest = workspace(&names, &version, &profiles);
    fs::write(unpacked.join("Cargo.toml"), manifest).context("write the workspace's manifest")?;
    fs::copy(root.join("Cargo.lock"), unpacked.join("Cargo.lock")).context("copy Cargo.lock")?;
    let mut check = cargo_command(&["check", "--workspace", "--all-features", "--offline"]);
    run(&unpacked, check.arg("--target-dir").arg(target(root)))
}

/// Unpacks these packages into a folder that has nothing else. A package that holds what its folder holds
/// already leaves that alone: cargo goes by files' times, and checks again what it takes for new.
fn unpack(archives: &Path, folder: &Path, packages: BTreeSet<String>) -> anyhow::Result<()> {
    let new = folder.with_extension("new");
    // What a run that broke off has left.
    if new.exists() {
        fs::remove_dir_all(&new).with_context(|| new.display().to_string())?;
    }
    for folder in [folder, &new] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let is_kept = entry.file_name().to_str().is_some_and(|name| packages.contains(name));
        if entry.file_type()?.is_dir() && !is_kept {
            fs::remove_dir_all(entry.path()).with_context(|| entry.path().display().to_string())?;
        }
    }
    for package in packages {
        let archive = archives.join(format!("{package}.crate"));
        // Files in packages have no times: these get the time of now.
        let mut tar = Command::new("tar");
        run(&new, tar.args(["--extract", "--gzip", "--touch", "--file"]).arg(&archive))?;
        let (old, new) = (folder.join(&package), new.join(&package));
        if !is_same(&old, &new)? {
            if old.exists() {
                fs::remove_dir_all(&old).with_context(|| old.display().to_string())?;
            }
            fs::rename(&new, &old).with_context(|| old.display().to_string())?;
        }
    }
    fs::remove_dir_all(&new).with_context(|| new.display().to_string())
}

/// Whether two unpacked packages hold the same, whichever commit they were made of.
fn is_same(old: &Path, new: &Path) -> anyhow::Result<bool> {
    let mut diff = Command::new("diff");
    diff.args(["--recursive", "--brief", "--exclude", ".cargo_vcs_info.json"]).args([old, new]);
    let output = diff.output().context("compare packages with `diff`")?;
    // 1: they differ, 2: the old one is missing.
    Ok(output.status.success())
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
pub(crate) fn target(root: &Path) -> PathBuf {
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

/// `cargo xtask sbom`: what `quell` is made of on every system, as CycloneDX.
pub(crate) fn sbom(root: &Path) -> anyhow::Result<()> {
    let place = target(root).join("quell.cdx.json");
    write_bill(root, &["--all-features", "--target", "all"], "", &place)?;
    tell(&place.display().to_string());
    Ok(())
}

/// Writes what a build of `quell` is made of, as CycloneDX, to `place`. With an `epoch`, the same
/// dependencies make the same file.
pub(crate) fn write_bill(
    root: &Path,
    of: &[&str],
    epoch: &str,
    place: &Path,
) -> anyhow::Result<()> {
    let tool = crate::tools::find(root, crate::tools::CYCLONEDX)?;
    let mut command = Command::new(tool);
    command.args(["cyclonedx", "--format", "json", "--override-filename", "quell.cdx"]).args(of);
    command.args(["--manifest-path", "crates/quell-server/Cargo.toml"]);
    if !epoch.is_empty() {
        command.env("SOURCE_DATE_EPOCH", epoch);
    }
    run(root, &mut command)?;
    let written = root.join("crates/quell-server/quell.cdx.json");
    let text = fs::read_to_string(&written).with_context(|| written.display().to_string())?;
    // The names of the workspace's own crates have the folder of the checkout.
    let text = text.replace(&format!("file://{}", root.display()), "file:///quell");
    fs::write(place, text).with_context(|| place.display().to_string())?;
    // The tool writes a file beside each manifest of the workspace.
    for file in crate::tidy::tracked(root)?.iter().filter(|file| file.ends_with("quell.cdx.json")) {
        fs::remove_file(file).with_context(|| file.display().to_string())?;
    }
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

    /// A package of one file, and what cargo adds of the commit.
    fn pack(archives: &Path, package: &str, text: &str, commit: &str) {
        let folder = archives.join(package);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lib.rs"), text).unwrap();
        fs::write(folder.join(".cargo_vcs_info.json"), commit).unwrap();
        let archive = format!("{package}.crate");
        run(archives, Command::new("tar").args(["-czf", &archive, package])).unwrap();
    }

    #[test]
    fn a_package_that_holds_the_same_as_before_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let (archives, folder) = (place.path().join("package"), place.path().join("unpacked"));
        let unpacked = |packages: &[&str]| {
            unpack(&archives, &folder, packages.iter().map(ToString::to_string).collect()).unwrap();
            let written = |package: &&str| {
                let file = folder.join(package).join("lib.rs");
                (fs::read_to_string(&file).unwrap(), file.metadata().unwrap().modified().unwrap())
            };
            packages.iter().map(written).collect::<Vec<_>>()
        };
        pack(&archives, "a-1.0.0", "one", "1");
        pack(&archives, "b-1.0.0", "one", "1");
        let first = unpacked(&["a-1.0.0", "b-1.0.0"]);
        pack(&archives, "a-1.0.0", "one", "2");
        pack(&archives, "b-1.0.0", "two", "2");
        let second = unpacked(&["a-1.0.0", "b-1.0.0"]);
        assert_eq!(second[0], first[0], "only its commit differs");
        assert_eq!(second[1].0, "two");
        assert!(second[1].1 > first[1].1);
        assert_eq!(unpacked(&["b-1.0.0"])[0], second[1]);
        assert!(!folder.join("a-1.0.0").exists(), "it is published no longer");
    }
}
