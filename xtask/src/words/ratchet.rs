//! How many listed words each crate's comments and strings have: never more than written down.
//!
//! When the number falls, `cargo xtask words --lower` writes down the new one, so that it cannot rise
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use super::glossary::Hit;

/// The number of hits of each crate.
pub(super) const COUNTS: &str = "xtask/words/counts.txt";
/// What stands at the head of the file.
const HEAD: &str = "\
# The number of listed words in the comments and strings of each crate: `cargo xtask words CRATE`
# lists them. A number only falls: `cargo xtask words --lower` writes that down. Sources that move to
# another crate take their part of the number along: edit both lines.
";

type Counts = BTreeMap<String, usize>;

/// Compares the hits of today with the numbers written down.
pub(super) fn check(
    root: &Path,
    hits: &[(String, Hit)],
    wrong: &mut Vec<String>,
) -> anyhow::Result<()> {
    let allowed = parse(&super::read(root, COUNTS)?)?;
    let found = count(hits);
    let crates: BTreeSet<&String> = allowed.keys().chain(found.keys()).collect();
    let mut added = None;
    for name in crates {
        let [most, now] = [&allowed, &found].map(|counts| counts.get(name).copied().unwrap_or(0));
        if now < most {
            wrong.push(format!(
                "{COUNTS}: {name} has {now} listed words, no longer {most}: run `cargo xtask words \
                 --lower`"
            ));
        }
        if now > most {
            wrong.push(format!(
                "{name}: {now} listed words in comments and strings, at most {most}: rewrite the \
                 new ones (`cargo xtask words {name}` lists all)"
            ));
            let added = added.get_or_insert_with(|| added_lines(root));
            let new = hits.iter().filter(|(file, hit)| {
                crate_of(file) == name.as_str() && added.contains(&(file.clone(), hit.line))
            });
            wrong.extend(new.map(|(file, hit)| format!("{file}:{}: {hit}", hit.line)));
        }
    }
    Ok(())
}

/// Writes down the numbers of crates that have fewer hits than before.
pub(super) fn lower(root: &Path, hits: &[(String, Hit)]) -> anyhow::Result<()> {
    let allowed = parse(&super::read(root, COUNTS)?)?;
    let text = lowered(&allowed, &count(hits));
    std::fs::write(root.join(COUNTS), text).with_context(|| COUNTS.to_string())
}

/// The file with the lower number of each crate; a crate without hits is left out.
fn lowered(allowed: &Counts, found: &Counts) -> String {
    let mut text = HEAD.to_string();
    for (name, most) in allowed {
        let now = found.get(name).copied().unwrap_or(0).min(*most);
        if now > 0 {
            text.push_str(&format!("{name} {now}\n"));
        }
    }
    text
}

fn count(hits: &[(String, Hit)]) -> Counts {
    let mut counts = Counts::new();
    for (file, _) in hits {
        *counts.entry(crate_of(file).to_string()).or_default() += 1;
    }
    counts
}

/// `crates/quell` of `crates/quell/src/lib.rs`.
fn crate_of(file: &str) -> &str {
    let second = file.match_indices('/').nth(1);
    second.map_or(file, |(at, _)| &file[..at])
}

fn parse(text: &str) -> anyhow::Result<Counts> {
    let mut counts = Counts::new();
    for line in super::lines(text) {
        let parsed = line.split_once(' ').and_then(|(name, count)| {
            let count = count.trim().parse().ok()?;
            Some((name.to_string(), count))
        });
        let Some((name, count)) = parsed else {
            bail!("{COUNTS}: `{line}` is not a crate and a number");
        };
        counts.insert(name, count);
    }
    Ok(counts)
}

/// The lines that came since the counts were last written down; none where git does not know.
fn added_lines(root: &Path) -> BTreeSet<(String, usize)> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let base = git(&["log", "-1", "--format=%H", "--", COUNTS]).unwrap_or_default();
    let base = if base.trim().is_empty() { "HEAD" } else { base.trim() };
    let diff = git(&["diff", "--unified=0", "--no-color", "--no-ext-diff", base, "--", "crates"]);
    lines_of_diff(&diff.unwrap_or_default())
}

/// The lines that a diff without context adds.
fn lines_of_diff(diff: &str) -> BTreeSet<(String, usize)> {
    let mut lines = BTreeSet::new();
    let mut file = "";
    for line in diff.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            file = name;
        } else if let Some((from, count)) = line.strip_prefix("@@ ").and_then(added_range) {
            lines.extend((from..from + count).map(|line| (file.to_string(), line)));
        }
    }
    lines
}

/// The first line and the number of lines that a hunk adds: `-1,2 +3,4 @@`.
fn added_range(hunk: &str) -> Option<(usize, usize)> {
    let range = hunk.split(' ').find_map(|part| part.strip_prefix('+'))?;
    let (from, count) = range.split_once(',').unwrap_or((range, "1"));
    Some((from.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(file: &str, line: usize) -> (String, Hit) {
        let hit = Hit { line, word: "told".to_string(), instead: "sent".to_string() };
        (file.to_string(), hit)
    }

    fn git(root: &Path, args: &[&str]) {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let done = Command::new("git").args(who).args(args).current_dir(root).output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn folder(counts: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["xtask/words", "crates/a/src"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        std::fs::write(root.path().join(COUNTS), counts).unwrap();
        root
    }

    fn checked(root: &Path, hits: &[(String, Hit)]) -> Vec<String> {
        let mut wrong = Vec::new();
        check(root, hits, &mut wrong).unwrap();
        wrong
    }

    #[test]
    fn a_count_neither_grows_nor_falls_in_silence() {
        let root = folder("crates/a 2\n");
        let file = "crates/a/src/lib.rs";
        assert_eq!(checked(root.path(), &[hit(file, 1), hit(file, 2)]), Vec::<String>::new());
        let fewer = checked(root.path(), &[hit(file, 1)]);
        assert!(fewer[0].contains("crates/a has 1 listed words, no longer 2"), "{fewer:?}");
        let more = checked(root.path(), &[hit(file, 1), hit(file, 2), hit(file, 3)]);
        assert!(more[0].starts_with("crates/a: 3 listed words"), "{more:?}");
        let new_crate =
            checked(root.path(), &[hit(file, 1), hit(file, 2), hit("crates/b/src/lib.rs", 1)]);
        assert!(new_crate[0].starts_with("crates/b: 1 listed words"), "{new_crate:?}");
    }

    #[test]
    fn a_growth_names_the_new_lines() {
        let root = folder("crates/a 1\n");
        let file = "crates/a/src/lib.rs";
        std::fs::write(root.path().join(file), "// told\n").unwrap();
        git(root.path(), &["init", "-q"]);
        git(root.path(), &["add", "."]);
        git(root.path(), &["commit", "-qm", "one"]);
        std::fs::write(root.path().join(file), "// told\n\n// told\n").unwrap();
        let wrong = checked(root.path(), &[hit(file, 1), hit(file, 3)]);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert_eq!(wrong[1], "crates/a/src/lib.rs:3: `told`: write: sent");
    }

    #[test]
    fn lower_writes_down_a_fall_and_never_a_rise() {
        let root = folder("crates/a 2\ncrates/b 1\ncrates/c 1\n");
        let hits: Vec<(String, Hit)> = ["crates/a/src/lib.rs", "crates/b/x.sql", "crates/b/x.sql"]
            .map(|file| hit(file, 1))
            .into();
        lower(root.path(), &hits).unwrap();
        let text = std::fs::read_to_string(root.path().join(COUNTS)).unwrap();
        assert_eq!(text, format!("{HEAD}crates/a 1\ncrates/b 1\n"));
    }

    #[test]
    fn a_diff_names_the_lines_that_it_adds() {
        let diff = "--- a/x.rs\n+++ b/x.rs\n@@ -1,2 +3,2 @@ fn a\n-b\n-c\n+d\n+e\n@@ -9 +10 @@\n\
                    -f\n+g\n@@ -12,1 +12,0 @@\n-h\n";
        let expected: BTreeSet<(String, usize)> =
            [3, 4, 10].map(|line| ("x.rs".to_string(), line)).into();
        assert_eq!(lines_of_diff(diff), expected);
    }
}
