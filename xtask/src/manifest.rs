//! What `cargo metadata` knows of the workspace: which crates are published, whether their manifests
//! are complete, and whether the licences of all dependencies are allowed.
//!
//! Invariant: it reads, and changes no file.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::licence;
use crate::run::cargo_command;

/// Each published crate has these beside its manifest; in the clone they are links to the root's.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Fails with a list of everything that keeps a crate from being published, and of every dependency
/// whose licence `deny.toml` does not allow.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let metadata = metadata(root)?;
    let mut wrong = Vec::new();
    toolchain(root, &metadata, &mut wrong)?;
    let published: BTreeSet<&str> = published(&metadata).iter().map(|it| name(it)).collect();
    for package in members(&metadata) {
        if published.contains(name(package)) {
            complete(package, &mut wrong);
            dependencies(package, &published, &mut wrong);
        }
    }
    licences(root, &metadata, &mut wrong)?;
    if !wrong.is_empty() {
        bail!("manifests:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

/// The names of the crates that are published.
pub(crate) fn published_names(root: &Path) -> anyhow::Result<Vec<String>> {
    let metadata = metadata(root)?;
    Ok(published(&metadata).into_iter().map(|it| name(it).to_owned()).collect())
}

/// The version that the crates share.
pub(crate) fn version(root: &Path) -> anyhow::Result<String> {
    let metadata = metadata(root)?;
    let quell = members(&metadata).into_iter().find(|it| name(it) == "quell");
    let version = quell.and_then(|it| it["version"].as_str());
    Ok(version.context("cargo metadata lists no crate `quell`")?.to_owned())
}

fn metadata(root: &Path) -> anyhow::Result<Value> {
    let mut command =
        cargo_command(&["metadata", "--format-version", "1", "--locked", "--all-features"]);
    let output = command.current_dir(root).output().context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

fn members(metadata: &Value) -> Vec<&Value> {
    let ids = list(&metadata["workspace_members"]);
    list(&metadata["packages"]).iter().filter(|it| ids.contains(&it["id"])).collect()
}

/// `publish = false` is an empty list of registries.
fn published(metadata: &Value) -> Vec<&Value> {
    members(metadata).into_iter().filter(|it| it["publish"].is_null()).collect()
}

/// The declared minimum is the version that every build here uses.
fn toolchain(root: &Path, metadata: &Value, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    const FILE: &str = "rust-toolchain.toml";
    let text = std::fs::read_to_string(root.join(FILE)).with_context(|| FILE.to_owned())?;
    let channel = text.lines().find_map(|it| it.strip_prefix("channel = \"")?.strip_suffix('"'));
    let built = minor(channel.with_context(|| format!("{FILE} has no line `channel = \"…\"`"))?);
    for package in members(metadata) {
        let declared = minor(package["rust_version"].as_str().unwrap_or_default());
        if declared != built {
            let name = name(package);
            wrong.push(format!(
                "{name}: rust-version is {declared:?}, but {FILE} builds with {built}: declare that"
            ));
        }
    }
    Ok(())
}

/// `1.95` of `1.95.0`.
fn minor(version: &str) -> String {
    version.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// What crates.io and docs.rs show.
fn complete(package: &Value, wrong: &mut Vec<String>) {
    let mut missing = Vec::new();
    for field in ["description", "license", "readme"] {
        if package[field].as_str().is_none_or(str::is_empty) {
            missing.push(field.to_owned());
        }
    }
    if !(1..=5).contains(&list(&package["keywords"]).len()) {
        missing.push("keywords (1 to 5)".to_owned());
    }
    if list(&package["categories"]).is_empty() {
        missing.push("categories".to_owned());
    }
    if package["metadata"]["docs"]["rs"]["all-features"] != Value::Bool(true) {
        missing.push("package.metadata.docs.rs.all-features".to_owned());
    }
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let folder = manifest.parent().unwrap_or(manifest);
    let readme = package["readme"].as_str().unwrap_or("README.md");
    for file in LICENCES.iter().copied().chain([readme]) {
        if !folder.join(file).is_file() {
            missing.push(format!("the file {file}"));
        }
    }
    if !missing.is_empty() {
        wrong.push(format!("{}: its manifest lacks {}", name(package), missing.join(", ")));
    }
}

/// A published crate depends on published crates of the same version. Its tests may use any crate of
/// the workspace, by path alone: cargo leaves those out of the package. With a version they would
/// have to be published before it, and some of them depend on it.
fn dependencies(package: &Value, published: &BTreeSet<&str>, wrong: &mut Vec<String>) {
    let own = name(package);
    for dependency in list(&package["dependencies"]) {
        if dependency["path"].is_null() {
            continue;
        }
        let other = name(dependency);
        let by_version = dependency["req"] != "*";
        if dependency["kind"] == "dev" {
            if by_version {
                wrong.push(format!(
                    "{own}: its dev-dependency {other} has a version: name its path alone"
                ));
            }
        } else if !published.contains(other) {
            wrong.push(format!("{own}: depends on {other}, which is not published"));
        } else if !by_version {
            wrong.push(format!("{own}: its dependency {other} has no version"));
        }
    }
}

/// The licence of each dependency, by the list that cargo-deny uses.
fn licences(root: &Path, metadata: &Value, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    const FILE: &str = "deny.toml";
    let text = std::fs::read_to_string(root.join(FILE)).with_context(|| FILE.to_owned())?;
    let allowed = licence::allowed(&text);
    for package in list(&metadata["packages"]) {
        let licence = package["license"].as_str().unwrap_or_default();
        if !licence::is_allowed(licence, &allowed) {
            let (name, version) = (name(package), package["version"].as_str().unwrap_or_default());
            wrong.push(format!(
                "{name} {version}: the licence {licence:?} is not in the list `allow` of {FILE}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_workspace_is_ready_to_publish() {
        let root = crate::run::root().unwrap();
        check(&root).unwrap();
        let names = published_names(&root).unwrap();
        assert!(names.contains(&"quell".to_owned()) && names.contains(&"quell-server".to_owned()));
        assert!(!names.contains(&"xtask".to_owned()) && !names.contains(&"quell-bench".to_owned()));
    }

    #[test]
    fn what_is_missing_is_listed() {
        let package = json!({
            "name": "bare", "description": "x", "license": null, "readme": null, "keywords": [],
            "categories": ["database"], "metadata": null, "manifest_path": "/nowhere/Cargo.toml",
        });
        let mut wrong = Vec::new();
        complete(&package, &mut wrong);
        let all = wrong.join("\n");
        for field in ["bare", "license", "readme", "keywords", "docs.rs", "file LICENSE-MIT"] {
            assert!(all.contains(field), "{field} is not in {all}");
        }
        assert!(!all.contains("description") && !all.contains("categories"), "{all}");
    }

    #[test]
    fn dependencies_within_the_workspace_are_those_that_can_be_published() {
        let check = |kind: Value, other: &str, req: &str| {
            let dependency = json!({"name": other, "kind": kind, "req": req, "path": "/there"});
            let package = json!({"name": "quell", "dependencies": [dependency]});
            let mut wrong = Vec::new();
            dependencies(&package, &BTreeSet::from(["quell", "quell-core"]), &mut wrong);
            wrong.join("\n")
        };
        let table = [
            (Value::Null, "quell-core", "=0.1.0", ""),
            (Value::Null, "quell-core", "*", "has no version"),
            (Value::Null, "quell-services", "=0.1.0", "is not published"),
            (json!("dev"), "quell-services", "*", ""),
            (json!("dev"), "quell-core", "=0.1.0", "its path alone"),
        ];
        for (kind, other, req, expected) in table {
            let found = check(kind.clone(), other, req);
            let as_expected =
                if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
            assert!(as_expected, "{kind} {other} {req}: {found:?}");
        }
    }

    #[test]
    fn a_version_is_compared_without_its_patch() {
        assert_eq!(minor("1.95.0"), minor("1.95"));
        assert_ne!(minor("1.95.0"), minor("1.94"));
    }
}
