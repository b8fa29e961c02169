//! Programs that chores need and that few machines have: each is installed below `target/tools`
//! where it is missing.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::run::{answers, cargo};

/// A cargo subcommand, and the version that was tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Licences, bans and sources of dependencies.
pub(crate) const DENY: Tool = Tool { name: "cargo-deny", version: "0.20" };
/// Debian packages.
pub(crate) const DEB: Tool = Tool { name: "cargo-deb", version: "3.8" };
/// Lists of what a program is made of.
pub(crate) const CYCLONEDX: Tool = Tool { name: "cargo-cyclonedx", version: "0.5" };
/// Changes of public names and types that break callers.
pub(crate) const SEMVER: Tool = Tool { name: "cargo-semver-checks", version: "0.51" };

/// The machine's program, or one below `target/tools`, which is built if it is not there.
pub(crate) fn find(root: &Path, tool: Tool) -> anyhow::Result<PathBuf> {
    let subcommand = tool.name.trim_start_matches("cargo-");
    if answers(tool.name, &[subcommand, "--version"]) {
        return Ok(PathBuf::from(tool.name));
    }
    let tools = root.join("target/tools");
    let program = tools.join("bin").join(tool.name);
    if !program.exists() {
        let folder = tools.to_str().context("the checkout's path is not UTF-8")?;
        let version = format!("^{}", tool.version);
        cargo(root, &["install", tool.name, "--locked", "--version", &version, "--root", folder])?;
    }
    Ok(program)
}
