//! The texts of the licences of everything that is linked into the binary, as these licences ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;

use super::Arch;
use crate::run::{cargo_command, output};

/// One page: each text once, below the names of the crates that have it.
pub(super) fn notices(root: &Path, arch: Arch) -> anyhow::Result<String> {
    let args = ["metadata", "--format-version", "1", "--locked", "--filter-platform", arch.triple];
    let mut command = cargo_command(&args);
    command.args(["--features", "quell-server/full"]).current_dir(root);
    let metadata: Value = serde_json::from_slice(&output(&mut command)?)?;
    let linked = linked(&metadata)?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without = String::new();
    for package in list(&metadata["packages"]).iter().filter(|it| !it["source"].is_null()) {
        if !linked.contains(text(&package["id"])) {
            continue;
        }
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        let found = licences(Path::new(text(&package["manifest_path"])))?;
        if found.is_empty() {
            without.push_str(&format!("{name}: {}\n", text(&package["license"])));
        }
        for licence in found {
            texts.entry(licence).or_default().insert(name.clone());
        }
    }
    Ok(page(&texts, &without))
}

fn page(texts: &BTreeMap<String, BTreeSet<String>>, without: &str) -> String {
    let mut page =
        String::from("The binary `quell` contains these crates, under these licences.\n");
    // The licences of most crates first.
    let mut order: Vec<_> = texts.iter().collect();
    order.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    for (licence, names) in order {
        let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        page.push_str(&format!("\n{}\n{names}:\n\n{}\n", "=".repeat(80), licence.trim_end()));
    }
    if !without.is_empty() {
        let line = "=".repeat(80);
        page.push_str(&format!(
            "\n{line}\nThese crates have no text beside their licence's name:\n\n{without}"
        ));
    }
    page
}

/// The packages that the server reaches by dependencies that are neither for builds nor for tests.
fn linked(metadata: &Value) -> anyhow::Result<BTreeSet<String>> {
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| (text(&node["id"]), node)).collect();
    let server = list(&metadata["packages"]).iter().find(|it| text(&it["name"]) == "quell-server");
    let server = server.context("cargo metadata lists no crate `quell-server`")?;
    let (mut reached, mut open) = (BTreeSet::new(), vec![text(&server["id"])]);
    while let Some(id) = open.pop() {
        if !reached.insert(id.to_owned()) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("cargo metadata has no node {id}"))?;
        for dependency in list(&node["deps"]) {
            // A kind of null is a dependency of the code itself.
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                open.push(text(&dependency["pkg"]));
            }
        }
    }
    Ok(reached)
}

/// The texts beside a manifest.
fn licences(manifest: &Path) -> anyhow::Result<Vec<String>> {
    let folder = manifest.parent().with_context(|| manifest.display().to_string())?;
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"]
            .iter()
            .any(|begin| name.starts_with(begin));
        if is_licence && entry.path().is_file() {
            let text =
                fs::read(entry.path()).with_context(|| entry.path().display().to_string())?;
            texts.push(String::from_utf8_lossy(&text).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_what_is_linked_and_not_what_only_builds_or_tests() {
        let root = crate::run::root().unwrap();
        let page = notices(&root, Arch::native().unwrap()).unwrap();
        for linked in ["tokio 1.", "ring 0.", "libsqlite3-sys 0.", "rustls 0.", "MIT License"] {
            assert!(page.contains(linked), "{linked} is missing");
        }
        for other in ["insta 1.", "bindgen 0.", "\ncc 1."] {
            assert!(!page.contains(other), "{other} is not linked");
        }
    }
}
