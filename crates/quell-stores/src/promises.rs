//! The rules as `docs/semantics.md` words them, and which crates have tests that name them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, bail};

/// One rule of the promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Its number.
    pub rule: u8,
    /// Its name, for example `Batches`.
    pub title: String,
    /// How much of it is there.
    pub built: Built,
}

/// How much of a rule is there, as the promises say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Built {
    /// All of it.
    Whole,
    /// Not what this sentence names.
    Partly(String),
    /// Nothing.
    NotYet,
}

/// Reads the rules out of the text of `docs/semantics.md`.
///
/// # Errors
/// When there is none in it.
pub fn promises(text: &str) -> anyhow::Result<Vec<Promise>> {
    let found: Vec<Promise> = text.lines().filter_map(promise).collect();
    if found.is_empty() {
        bail!("docs/semantics.md has no line that begins like **R1 Accepted means durable.**");
    }
    Ok(found)
}

/// `**R31 Limits.** … Partly built: partitions are to come.`
fn promise(line: &str) -> Option<Promise> {
    let (head, body) = line.strip_prefix("**R")?.split_once("**")?;
    let (rule, title) = head.split_once(' ')?;
    let not_yet = "(not built yet)";
    let built = match body.split_once("Partly built: ") {
        _ if title.contains(not_yet) => Built::NotYet,
        Some((_, rest)) => Built::Partly(rest.to_owned()),
        None => Built::Whole,
    };
    let title = title.replace(not_yet, "").replace('.', "").trim().to_owned();
    Some(Promise { rule: rule.parse().ok()?, title, built })
}

/// The crates whose tests name a rule, by rule, without the suite's own.
///
/// # Errors
/// When a source cannot be read.
pub fn tested_in(root: &Path) -> anyhow::Result<BTreeMap<u8, BTreeSet<String>>> {
    let mut tested: BTreeMap<u8, BTreeSet<String>> = BTreeMap::new();
    let crates = root.join("crates");
    for entry in std::fs::read_dir(&crates).with_context(|| crates.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "quell-conformance" || name == env!("CARGO_PKG_NAME") {
            continue;
        }
        let mut rules = BTreeSet::new();
        for folder in ["src", "tests"] {
            collect(&entry.path().join(folder), &mut rules)?;
        }
        for rule in rules {
            tested.entry(rule).or_default().insert(name.clone());
        }
    }
    Ok(tested)
}

/// The rules that names of functions below a folder begin with.
fn collect(folder: &Path, rules: &mut BTreeSet<u8>) -> anyhow::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, rules)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let names =
                text.lines().filter_map(|line| line.split_once("fn ")).map(|(_, name)| name);
            for name in names {
                rules.extend(
                    name.split('_').map_while(|word| word.strip_prefix('r')?.parse::<u8>().ok()),
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_number_title_and_what_is_missing() {
        let table = [
            ("**R5 Batches.** A batch is whole.", (5, "Batches", Built::Whole)),
            ("**R36 Schedules (not built yet).** Cron.", (36, "Schedules", Built::NotYet)),
            (
                "**R31 Limits.** Exact. Partly built: rate limits are to come.",
                (31, "Limits", Built::Partly("rate limits are to come.".to_owned())),
            ),
        ];
        for (line, (rule, title, built)) in table {
            let title = title.to_owned();
            assert_eq!(promise(line), Some(Promise { rule, title, built }), "{line}");
        }
        assert!(promises("no rule").is_err());
    }
}
