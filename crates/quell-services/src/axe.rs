//! axe-core, which judges whether a page is accessible. Its version and digest are in a lock file.

use std::path::Path;

use anyhow::Context;

use crate::languages::node_packages;

/// The folder with the lock file.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/axe");

/// The text of its script, which is fetched where it is missing.
///
/// # Errors
/// Where it cannot be fetched or read.
pub fn axe() -> anyhow::Result<String> {
    let folder = node_packages(Path::new(SOURCES), "axe")?;
    let script = folder.join("node_modules/axe-core/axe.min.js");
    std::fs::read_to_string(&script).with_context(|| format!("cannot read {}", script.display()))
}
