//! `cargo xtask book`: the pages of `docs/SUMMARY.md` as one book.
//!
//! Pages link to each other and to sources as a code host shows them. This chore copies them to
//! `target/book-src` with links that work in a book, and mdBook renders the copy to `target/book`.
//! Invariant: a page of the book links to no page, heading or anchor that does not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::markdown::{Link, anchors, relink};
use crate::run::{answers, cargo, run};
use crate::test::tell;

/// The book's contents, in reading order.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The oldest mdBook that `docs/book.toml` was written for.
const MDBOOK: &str = "0.5.4";

/// A page's path from the root, with slashes, to its name in the book.
type Pages = BTreeMap<String, String>;

/// Builds the book. Links to files outside of it lead to `repository`; without one they are text.
pub(crate) fn book(root: &Path, repository: Option<&str>) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    check(root, &mut wrong)?;
    if !wrong.is_empty() {
        bail!("the book has dead links:\n  {}", wrong.join("\n  "));
    }
    mdbook(root)?;
    let sources = root.join("target/book-src");
    copy(root, &sources, repository)?;
    let to = root.join("target/book");
    let own = own_mdbook(root);
    let mut command = Command::new(if own.exists() { own } else { "mdbook".into() });
    run(root, command.arg("build").arg(&sources).arg("--dest-dir").arg(&to))?;
    tell(&format!("the book is in {}", to.join("index.html").display()));
    Ok(())
}

/// Lists links between pages of the book that lead to no heading or anchor, and pages of `docs/` that
/// the book lacks.
pub(crate) fn check(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let pages = pages(root)?;
    for entry in std::fs::read_dir(root.join("docs")).context("docs")? {
        let page = format!("docs/{}", entry?.file_name().to_string_lossy());
        if page.ends_with(".md") && page != SUMMARY && !pages.contains_key(&page) {
            wrong.push(format!("{page} is not in the book: add it to {SUMMARY}"));
        }
    }
    let mut known: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for page in pages.keys() {
        known.insert(page, anchors(&read(root, page)?));
    }
    for page in pages.keys() {
        relink(&read(root, page)?, |link| {
            let place =
                if link.path().is_empty() { Some(page.clone()) } else { beside(page, link.path()) };
            let found = place.as_deref().and_then(|place| known.get(place));
            if let (Some(found), Some(anchor)) = (found, link.anchor())
                && !found.contains(anchor)
            {
                wrong.push(format!("{page}: {} has no heading or anchor `{anchor}`", link.target));
            }
            None
        });
    }
    Ok(())
}

/// The pages that the summary names. The first one is the book's index.
fn pages(root: &Path) -> anyhow::Result<Pages> {
    let mut order = Vec::new();
    relink(&read(root, SUMMARY)?, |link| {
        order.extend(beside(SUMMARY, link.path()));
        None
    });
    let mut pages = Pages::new();
    let mut names = BTreeSet::new();
    for (index, page) in order.into_iter().enumerate() {
        let file = page.rsplit('/').next().unwrap_or(&page).to_lowercase();
        let name = if index == 0 { "index.md".to_owned() } else { file };
        if !names.insert(name.clone()) {
            bail!("{SUMMARY}: {page} is the second page called {name}: rename one of them");
        }
        pages.insert(page, name);
    }
    Ok(pages)
}

/// Writes the book's sources: the settings, the summary and each page, with the links of a book.
fn copy(root: &Path, to: &Path, repository: Option<&str>) -> anyhow::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to).with_context(|| to.display().to_string())?;
    }
    std::fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    std::fs::copy(root.join("docs/book.toml"), to.join("book.toml")).context("docs/book.toml")?;
    let pages = pages(root)?;
    let summary = [(SUMMARY, "SUMMARY.md")];
    let all = pages.iter().map(|(page, name)| (page.as_str(), name.as_str()));
    for (page, name) in all.chain(summary) {
        let text = relink(&read(root, page)?, |link| in_book(&pages, page, link, repository));
        std::fs::write(to.join(name), text).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// What replaces a link of a page in the book; `None` keeps it.
fn in_book(pages: &Pages, page: &str, link: &Link<'_>, repository: Option<&str>) -> Option<String> {
    if link.path().is_empty() || link.path().contains(':') {
        return None;
    }
    let place = beside(page, link.path())?;
    let anchor = link.anchor().map(|anchor| format!("#{anchor}")).unwrap_or_default();
    if let Some(name) = pages.get(&place) {
        return Some(format!("[{}]({name}{anchor})", link.text));
    }
    Some(match repository {
        Some(url) => {
            let url = url.trim_end_matches('/');
            format!("[{}]({url}/blob/HEAD/{place}{anchor})", link.text)
        }
        None => link.text.to_owned(),
    })
}

/// The path from the root of a link's target; none where that is outside of the root.
fn beside(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let folder = Path::new(page).parent()?;
    for part in folder.join(target).components() {
        match part {
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            Component::ParentDir => _ = parts.pop()?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

fn read(root: &Path, page: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(page)).with_context(|| page.to_owned())
}

/// Uses the machine's mdBook, or installs one below `target`: with search, without a server.
fn mdbook(root: &Path) -> anyhow::Result<()> {
    if own_mdbook(root).exists() || answers("mdbook", &["--version"]) {
        return Ok(());
    }
    let tools = root.join("target/tools");
    let tools = tools.to_str().context("the checkout's path is not UTF-8")?;
    let version = format!("^{MDBOOK}");
    let install = ["install", "mdbook", "--locked", "--version", &version, "--root", tools];
    let features = ["--no-default-features", "--features", "search"];
    cargo(root, &[&install[..], &features].concat())
}

fn own_mdbook(root: &Path) -> PathBuf {
    root.join("target/tools/bin/mdbook")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkout with these files.
    fn checkout(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        root
    }

    const CONTENTS: &str = "[Start](../README.md)\n\n- [Guide](guide.md)\n- [List](README.md)\n";

    #[test]
    fn links_lead_to_pages_of_the_book_or_to_the_repository() {
        let guide = "See [it](../README.md#why), [a *rule*](#rule), [`code`](../src/a.rs) and \
                     [web](https://example.com/a).\n";
        let root = checkout(&[
            ("docs/SUMMARY.md", CONTENTS),
            ("docs/book.toml", ""),
            ("docs/guide.md", guide),
            ("docs/README.md", "[up](../README.md)\n"),
            ("README.md", "[on](docs/guide.md#rule)\n"),
        ]);
        let to = root.path().join("target/book-src");
        let copied = |repository, name: &str| {
            copy(root.path(), &to, repository).unwrap();
            std::fs::read_to_string(to.join(name)).unwrap()
        };
        assert_eq!(
            copied(Some("https://host/quell/"), "guide.md"),
            "See [it](index.md#why), [a *rule*](#rule), \
             [`code`](https://host/quell/blob/HEAD/src/a.rs) and [web](https://example.com/a).\n"
        );
        assert!(copied(None, "guide.md").contains("(#rule), `code` and [web]"));
        assert_eq!(copied(None, "index.md"), "[on](guide.md#rule)\n");
        assert_eq!(copied(None, "readme.md"), "[up](index.md)\n");
        let summary = "[Start](index.md)\n\n- [Guide](guide.md)\n- [List](readme.md)\n";
        assert_eq!(copied(None, "SUMMARY.md"), summary);
    }

    #[test]
    fn a_link_to_no_heading_and_a_page_outside_of_the_book_are_found() {
        let root = checkout(&[
            ("docs/SUMMARY.md", CONTENTS),
            ("docs/guide.md", "# Guide\n\n[good](#guide) [bad](../README.md#gone) [no](#r7)\n"),
            ("docs/README.md", "[x](../src/a.rs#L7)\n"),
            ("docs/new.md", ""),
            ("README.md", "# Why\n"),
        ]);
        let mut wrong = Vec::new();
        check(root.path(), &mut wrong).unwrap();
        assert_eq!(
            wrong,
            [
                "docs/new.md is not in the book: add it to docs/SUMMARY.md",
                "docs/guide.md: ../README.md#gone has no heading or anchor `gone`",
                "docs/guide.md: #r7 has no heading or anchor `r7`",
            ]
        );
    }

    #[test]
    fn two_pages_of_one_name_are_refused() {
        let root = checkout(&[("docs/SUMMARY.md", "[A](a.md)\n[B](b.md)\n[C](../B.md)\n")]);
        let error = pages(root.path()).unwrap_err().to_string();
        assert!(error.contains("B.md is the second page called b.md"), "{error}");
    }
}
