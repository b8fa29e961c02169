//! Plain words: pages and sources use the field's terms, sentences stay short, and rule numbers in
//! public pages link to the rule.
//!
//! The lists are in `xtask/words`: `list.txt` has the words and what to write instead, `allow.txt`
//! the exceptions with their reasons, `counts.txt` the hits in each crate's comments and strings.
//! Invariant: a count in `counts.txt` never grows.

mod glossary;
mod page;
mod ratchet;
mod source;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use glossary::{Glossary, Hit};

/// The table of words.
const LIST: &str = "xtask/words/list.txt";
/// The exceptions.
const ALLOW: &str = "xtask/words/allow.txt";
/// Pages whose sentences are not measured and whose rule numbers need no link.
const NOT_PUBLIC: [&str; 3] = ["docs/conformance.md", "ARCHITECTURE.md", "CHANGELOG.md"];
/// The page that defines the rules, and so need not link to them.
const RULES: &str = "docs/semantics.md";

/// An exception: a word in a page, or `*` for all that is checked there.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Allowed {
    page: String,
    word: String,
}

/// Checks every page, and that no crate has more listed words than it had.
pub(crate) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let glossary = glossary(root)?;
    let allowed = allowed(&read(root, ALLOW)?)?;
    let mut used = BTreeSet::new();
    for (name, file) in named(root, files).filter(|(name, _)| name.ends_with(".md")) {
        let text = std::fs::read_to_string(file)?;
        for finding in page::findings(&glossary, &text, is_public(&name), name == RULES) {
            let exception = allowed
                .iter()
                .find(|entry| entry.page == name && entry.covers(finding.word.as_deref()));
            match exception {
                Some(entry) => _ = used.insert(entry.clone()),
                None => wrong.push(format!("{name}:{}: {}", finding.line, finding.what)),
            }
        }
    }
    for entry in allowed.difference(&used) {
        let Allowed { page, word } = entry;
        wrong.push(format!("{ALLOW}: `{word}` of {page} is no longer needed: remove the line"));
    }
    ratchet::check(root, &hits(root, files, &glossary, "crates/")?, wrong)
}

/// Lists every listed word in the pages and sources below a folder, or with `lower` writes down the
/// counts of crates that have fewer now.
pub(crate) fn list(root: &Path, files: &[PathBuf], below: &str, lower: bool) -> anyhow::Result<()> {
    let glossary = glossary(root)?;
    if lower {
        return ratchet::lower(root, &hits(root, files, &glossary, "crates/")?);
    }
    let mut out = std::io::stdout().lock();
    for (name, file) in named(root, files).filter(|(name, _)| name.starts_with(below)) {
        if name.ends_with(".md") {
            let text = std::fs::read_to_string(file)?;
            for finding in page::findings(&glossary, &text, is_public(&name), name == RULES) {
                writeln!(out, "{name}:{}: {}", finding.line, finding.what)?;
            }
        }
    }
    for (name, hit) in hits(root, files, &glossary, below)? {
        writeln!(out, "{name}:{}: {hit}", hit.line)?;
    }
    Ok(())
}

/// The listed words in the comments and strings of the sources below a folder.
fn hits(
    root: &Path,
    files: &[PathBuf],
    glossary: &Glossary,
    below: &str,
) -> anyhow::Result<Vec<(String, Hit)>> {
    let mut hits = Vec::new();
    for (name, file) in named(root, files).filter(|(name, _)| name.starts_with(below)) {
        let Some(language) = source::Language::of(file) else { continue };
        let text = std::fs::read_to_string(file)?;
        let found = source::hits(glossary, language, &text);
        hits.extend(found.into_iter().map(|hit| (name.clone(), hit)));
    }
    Ok(hits)
}

impl Allowed {
    /// Sentences and rule numbers have no word: only a whole page allows them.
    fn covers(&self, word: Option<&str>) -> bool {
        self.word == "*" || word == Some(self.word.as_str())
    }
}

fn is_public(name: &str) -> bool {
    let place = name.starts_with("docs/") || name == "bench/RESULTS.md" || !name.contains('/');
    place && !NOT_PUBLIC.contains(&name)
}

/// Each file with its path from the root, with slashes.
fn named<'f>(root: &'f Path, files: &'f [PathBuf]) -> impl Iterator<Item = (String, &'f PathBuf)> {
    files.iter().filter_map(move |file| {
        let name = file.strip_prefix(root).ok()?.to_string_lossy().replace('\\', "/");
        Some((name, file))
    })
}

fn glossary(root: &Path) -> anyhow::Result<Glossary> {
    Glossary::parse(&read(root, LIST)?).with_context(|| LIST.to_string())
}

fn allowed(text: &str) -> anyhow::Result<BTreeSet<Allowed>> {
    let mut allowed = BTreeSet::new();
    for line in lines(text) {
        let fields: Vec<&str> = line.splitn(3, '|').map(str::trim).collect();
        let [page, word, reason] = fields[..] else {
            bail!("{ALLOW}: `{line}` is not `page | word | reason`");
        };
        if page.is_empty() || word.is_empty() || reason.is_empty() {
            bail!("{ALLOW}: `{line}` has an empty field: give the page, the word and the reason");
        }
        allowed.insert(Allowed { page: page.to_string(), word: word.to_lowercase() });
    }
    Ok(allowed)
}

/// The lines of a list that are neither empty nor comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn read(root: &Path, name: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(name)).with_context(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the lists and one page, and the findings of a check of it.
    fn checked(allow: &str, page: &str) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for folder in ["xtask/words", "docs"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let files = [
            (LIST, "told, tells | sends\nso many | the number\n"),
            (ALLOW, allow),
            (ratchet::COUNTS, ""),
            ("docs/page.md", page),
        ];
        for (name, text) in files {
            std::fs::write(root.path().join(name), text).unwrap();
        }
        let mut wrong = Vec::new();
        check(root.path(), &[root.path().join("docs/page.md")], &mut wrong).unwrap();
        wrong
    }

    #[test]
    fn a_finding_names_the_page_the_line_the_word_and_the_replacement() {
        let wrong = checked("", "# Page\n\nA worker\nTells it.\n");
        assert_eq!(wrong, ["docs/page.md:4: `tells`: write: sends"]);
    }

    #[test]
    fn an_exception_covers_its_word_and_no_other() {
        let page = "It tells so many.\n";
        let wrong = checked("docs/page.md | tells | a name\n", page);
        assert_eq!(wrong, ["docs/page.md:1: `so many`: write: the number"]);
        let whole = checked("docs/page.md | * | not rewritten yet\n", page);
        assert_eq!(whole, Vec::<String>::new());
    }

    #[test]
    fn an_exception_that_nothing_needs_is_wrong() {
        for allow in ["docs/page.md | tells | a name\n", "docs/page.md | * | not rewritten yet\n"] {
            let wrong = checked(allow, "It is sent.\n");
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            assert!(wrong[0].contains("is no longer needed"), "{wrong:?}");
        }
    }

    #[test]
    fn an_exception_needs_a_reason() {
        for line in ["docs/page.md | told", "docs/page.md | told |"] {
            let error = allowed(line).unwrap_err().to_string();
            assert!(error.contains("docs/page.md | told"), "{error}");
        }
    }

    #[test]
    fn sentences_are_measured_in_public_pages_only() {
        let table = [
            ("docs/guide.md", true),
            ("README.md", true),
            ("bench/RESULTS.md", true),
            ("docs/conformance.md", false),
            ("CHANGELOG.md", false),
            ("bench/archive/2026-11.md", false),
        ];
        for (name, public) in table {
            assert_eq!(is_public(name), public, "{name}");
        }
    }
}
