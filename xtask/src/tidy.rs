//! What no other tool checks: files stay small, rules and tests name each other, SQL is used, links
//! lead somewhere, rules are plain functions, words are plain.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// No source file outside tests is longer.
const MAX_LINES: usize = 700;

/// Runs every check and lists all that is wrong.
pub(crate) fn tidy(root: &Path) -> anyhow::Result<()> {
    let files = tracked(root)?;
    let mut wrong = Vec::new();
    lengths(&files, &mut wrong)?;
    rules(root, &files, &mut wrong)?;
    sql(&files, &mut wrong)?;
    crate::book::check(root, &mut wrong)?;
    links(&files, &mut wrong)?;
    crate::architecture::check(root, &mut wrong)?;
    crate::layers::check(root, &files, &mut wrong)?;
    crate::names::check(root, &mut wrong)?;
    crate::words::check(root, &files, &mut wrong)?;
    if !wrong.is_empty() {
        bail!("not tidy:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

/// The files that git knows or would add, without links: what they lead to is among the files.
pub(crate) fn tracked(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    let text = String::from_utf8(listed.stdout)?;
    Ok(text.lines().map(|line| root.join(line)).filter(|file| is_plain(file)).collect())
}

fn is_plain(file: &Path) -> bool {
    file.is_file() && !file.is_symlink()
}

fn with_ending<'f>(files: &'f [PathBuf], ending: &str) -> impl Iterator<Item = &'f PathBuf> {
    files.iter().filter(move |file| file.extension().is_some_and(|found| found == ending))
}

fn is_test(file: &Path) -> bool {
    let in_tests = file.components().any(|part| part.as_os_str() == "tests");
    in_tests || file.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests"))
}

fn lengths(files: &[PathBuf], wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for file in with_ending(files, "rs").filter(|file| !is_test(file)) {
        let lines = std::fs::read_to_string(file)?.lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines, at most {MAX_LINES}", file.display()));
        }
    }
    Ok(())
}

/// A built rule has a test that names it; a test names a rule that is built.
fn rules(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let mut tested = BTreeSet::new();
    for file in with_ending(files, "rs") {
        for line in std::fs::read_to_string(file)?.lines() {
            tested.extend(rules_in_test_name(line));
        }
    }
    let doc = root.join("docs/semantics.md");
    let text = std::fs::read_to_string(&doc).with_context(|| doc.display().to_string())?;
    let mut known = BTreeSet::new();
    for line in text.lines() {
        let Some(rule) = line.strip_prefix("**R").and_then(leading_number) else { continue };
        known.insert(rule);
        let built = !line.contains("not built yet");
        if built && !tested.contains(&rule) {
            wrong.push(format!("R{rule} is documented as built, but no test names it"));
        }
        if !built && tested.contains(&rule) {
            wrong.push(format!("R{rule} has a test, but is documented as not built yet"));
        }
    }
    let missing: Vec<u32> =
        crate::architecture::rules().filter(|rule| !known.contains(rule)).collect();
    if !missing.is_empty() {
        wrong.push(format!("docs/semantics.md does not have the rules {missing:?}"));
    }
    Ok(())
}

/// The rules that a test's name begins with: `fn r06_r08_…` names two.
fn rules_in_test_name(line: &str) -> Vec<u32> {
    let line = line.trim_start();
    let name =
        ["fn ", "async fn ", "pub async fn "].iter().find_map(|start| line.strip_prefix(start));
    let words = name.unwrap_or_default().split('_');
    words.map_while(|word| word.strip_prefix('r')?.parse().ok()).collect()
}

fn leading_number(text: &str) -> Option<u32> {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Every SQL file is included somewhere.
fn sql(files: &[PathBuf], wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let mut sources = String::new();
    for file in with_ending(files, "rs") {
        sources.push_str(&std::fs::read_to_string(file)?);
    }
    for file in with_ending(files, "sql").chain(with_ending(files, "lua")) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !sources.contains(&format!("{name}\")")) {
            wrong.push(format!("{}: no source includes it", file.display()));
        }
    }
    Ok(())
}

/// Every relative link of every page leads to a file.
fn links(files: &[PathBuf], wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for page in with_ending(files, "md") {
        let text = std::fs::read_to_string(page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.contains(' ') {
                continue;
            }
            let found = page.parent().is_some_and(|folder| folder.join(target).exists());
            if !found {
                wrong.push(format!("{}: the link to {target} leads nowhere", page.display()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tests_name_has_its_rules() {
        let table: [(&str, &[u32]); 4] = [
            ("    async fn r06_r08_the_scenarios() {", &[6, 8]),
            ("fn r40_bad_input() {", &[40]),
            ("fn rows_are_kept() {", &[]),
            ("let r05_x = 1;", &[]),
        ];
        for (line, rules) in table {
            assert_eq!(rules_in_test_name(line), rules, "{line}");
        }
    }
}
