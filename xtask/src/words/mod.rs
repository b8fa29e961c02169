//! Plain words: pages and sources use the field's terms, sentences stay short, and rule numbers in
//! public pages link to the rule.
//!
//! The lists are in `xtask/words`: `list.txt` has the words and what to write instead, `allow.txt`
//! the exceptions with their reasons.
//! Invariant: each exception is needed; one that covers no finding is an error.

mod glossary;
mod page;
mod source;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use glossary::Glossary;
use page::Finding;

/// The table of words.
const LIST: &str = "xtask/words/list.txt";
/// The exceptions.
const ALLOW: &str = "xtask/words/allow.txt";
/// Pages whose sentences are not measured and whose rule numbers need no link.
const NOT_PUBLIC: [&str; 3] = ["docs/conformance.md", "ARCHITECTURE.md", "CHANGELOG.md"];
/// The page that defines the rules, and so need not link to them.
const RULES: &str = "docs/semantics.md";

/// An exception: a word in a page or source, or `*` for all that is checked there.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
struct Allowed {
    file: String,
    word: String,
}

/// Checks every page and every source, and that each exception is needed.
pub(crate) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let allowed = allowed(&read(root, ALLOW)?)?;
    let mut used = BTreeSet::new();
    for (file, finding) in findings(root, files, "")? {
        match allowed.iter().find(|entry| entry.covers(&file, &finding)) {
            Some(entry) => _ = used.insert(entry.clone()),
            None => wrong.push(format!("{file}:{}: {}", finding.line, finding.what)),
        }
    }
    for Allowed { file, word } in allowed.difference(&used) {
        wrong.push(format!("{ALLOW}: `{word}` of {file} is no longer needed: remove the line"));
    }
    Ok(())
}

/// Lists what [`check`] would refuse in the pages and sources below a folder.
pub(crate) fn list(root: &Path, files: &[PathBuf], below: &str) -> anyhow::Result<()> {
    let allowed = allowed(&read(root, ALLOW)?)?;
    let mut out = std::io::stdout().lock();
    for (file, finding) in findings(root, files, below)? {
        if !allowed.iter().any(|entry| entry.covers(&file, &finding)) {
            writeln!(out, "{file}:{}: {}", finding.line, finding.what)?;
        }
    }
    Ok(())
}

/// All that is wrong in the pages and sources below a folder, each with its file, before exceptions.
fn findings(root: &Path, files: &[PathBuf], below: &str) -> anyhow::Result<Vec<(String, Finding)>> {
    let glossary = Glossary::parse(&read(root, LIST)?).with_context(|| LIST.to_string())?;
    let mut all = Vec::new();
    for (name, file) in named(root, files).filter(|(name, _)| name.starts_with(below)) {
        let language = source::Language::of(file);
        if language.is_none() && !name.ends_with(".md") {
            continue;
        }
        let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
        let found: Vec<Finding> = match language {
            Some(language) => {
                let hits = source::hits(&glossary, language, &text);
                hits.into_iter().map(Finding::from).collect()
            }
            None => page::findings(&glossary, &text, is_public(&name), name == RULES),
        };
        all.extend(found.into_iter().map(|finding| (name.clone(), finding)));
    }
    Ok(all)
}

impl Allowed {
    /// Sentences and rule numbers have no word: only `*` allows them.
    fn covers(&self, file: &str, finding: &Finding) -> bool {
        let is_word = finding.word.as_deref() == Some(self.word.as_str());
        self.file == file && (self.word == "*" || is_word)
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

fn allowed(text: &str) -> anyhow::Result<BTreeSet<Allowed>> {
    let mut allowed = BTreeSet::new();
    for line in lines(text) {
        let fields: Vec<&str> = line.splitn(3, '|').map(str::trim).collect();
        let [file, word, reason] = fields[..] else {
            bail!("{ALLOW}: `{line}` is not `file | word | reason`");
        };
        if file.is_empty() || word.is_empty() || reason.is_empty() {
            bail!("{ALLOW}: `{line}` has an empty field: give the file, the word and the reason");
        }
        if !allowed.insert(Allowed { file: file.to_string(), word: word.to_lowercase() }) {
            bail!("{ALLOW}: `{word}` of {file} has two lines: remove one");
        }
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

    /// A folder with the lists and one file, and the findings of a check of it.
    fn checked(allow: &str, file: &str, text: &str) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let files =
            [(LIST, "told, tells | sends\nso many | the number\n"), (ALLOW, allow), (file, text)];
        for (name, text) in files {
            let place = root.path().join(name);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, text).unwrap();
        }
        let mut wrong = Vec::new();
        check(root.path(), &[root.path().join(file)], &mut wrong).unwrap();
        wrong
    }

    #[test]
    fn a_finding_names_the_file_the_line_the_word_and_the_replacement() {
        let table = [
            ("docs/page.md", "# Page\n\nA worker\nTells it.\n"),
            ("crates/a/src/lib.rs", "fn told() {}\n\n\n// It tells `so many`.\n"),
            ("crates/a/src/sql/a.sql", "select told\n\n\n     , 'tells';\n"),
            ("bench/src/main.lua", "\n\n\n-- Tells it.\n"),
        ];
        for (file, text) in table {
            assert_eq!(checked("", file, text), [format!("{file}:4: `tells`: write: sends")]);
        }
    }

    #[test]
    fn a_file_that_is_neither_a_page_nor_a_source_is_not_read() {
        assert_eq!(checked("", "docs/page.txt", "It tells.\n"), Vec::<String>::new());
    }

    #[test]
    fn an_exception_covers_its_word_in_its_file_and_no_other() {
        for file in ["docs/page.md", "crates/a/src/lib.rs"] {
            let text = "// It tells so many.\n";
            let wrong = checked(&format!("{file} | Tells | a name\n"), file, text);
            assert_eq!(wrong, [format!("{file}:1: `so many`: write: the number")]);
            let whole = checked(&format!("{file} | * | not rewritten yet\n"), file, text);
            assert_eq!(whole, Vec::<String>::new());
            let other = checked("docs/other.md | tells | a name\n", file, text);
            assert_eq!(other.len(), 3, "{other:?}");
        }
    }

    #[test]
    fn an_exception_that_nothing_needs_is_wrong() {
        for file in ["docs/page.md", "crates/a/src/lib.rs"] {
            for word in ["tells", "*"] {
                let wrong = checked(&format!("{file} | {word} | a name\n"), file, "// Sent.\n");
                let expected =
                    format!("{ALLOW}: `{word}` of {file} is no longer needed: remove the line");
                assert_eq!(wrong, [expected]);
            }
        }
    }

    #[test]
    fn an_exception_needs_a_reason_and_has_one_line() {
        let table = [
            ("docs/page.md | told", "is not `file | word | reason`"),
            ("docs/page.md | told |", "has an empty field"),
            ("docs/page.md | told | a name\ndocs/page.md | Told | a name", "has two lines"),
        ];
        for (text, expected) in table {
            let error = allowed(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
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
