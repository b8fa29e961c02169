//! The rules of `quell-core` stand apart from the store contract: they are plain functions.
//!
//! Invariant: asynchronous code is in the folders of the contract and of the model store alone.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The sources of the rules and of the contract.
const CORE: &str = "crates/quell-core/src";
/// The folders below it that may have asynchronous code: the contract and the model store.
const ASYNCHRONOUS: [&str; 2] = ["store", "memory"];
/// The words of asynchronous code.
const WORDS: [&str; 7] =
    ["async", "await", "async_trait", "futures_core", "futures_util", "tokio", "Future"];

/// Adds each line of a rule that has asynchronous code.
pub(crate) fn check(root: &Path, files: &[PathBuf], wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let core = root.join(CORE);
    for file in files {
        let Ok(below) = file.strip_prefix(&core) else { continue };
        if ASYNCHRONOUS.iter().any(|folder| below.starts_with(folder)) {
            continue;
        }
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        wrong.extend(asynchronous(&text).into_iter().map(|(line, word)| {
            let place = below.display();
            format!("{CORE}/{place}:{line}: a rule has `{word}`: rules are plain functions")
        }));
    }
    Ok(())
}

/// The lines with a word of asynchronous code outside of comments.
fn asynchronous(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let code = line.split("//").next().unwrap_or_default();
        let mut names = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        let word = names.find_map(|name| WORDS.into_iter().find(|word| *word == name));
        found.extend(word.map(|word| (number, word)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_code_is_found_outside_of_comments() {
        let table: [(&str, &[(usize, &str)]); 7] = [
            ("use async_trait::async_trait;\n", &[(1, "async_trait")]),
            ("fn a() {}\n\npub async fn b() {}\n", &[(3, "async")]),
            ("let answer = call.await?;\n", &[(1, "await")]),
            ("impl std::future::Future for A {}\n", &[(1, "Future")]),
            ("/// async fn in an example\nfn a() {} // tokio\n", &[]),
            ("fn asynchronous(future: Futures) {}\n", &[]),
            ("", &[]),
        ];
        for (text, expected) in table {
            assert_eq!(asynchronous(text), expected, "{text}");
        }
    }

    #[test]
    fn the_contract_and_the_model_store_may_be_asynchronous() {
        let root = tempfile::tempdir().unwrap();
        let source = |path: &str| {
            let file = root.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "async fn a() {}\n").unwrap();
            file
        };
        let files = [
            source("crates/quell-core/src/store/steps.rs"),
            source("crates/quell-core/src/memory/mod.rs"),
            source("crates/quell/src/client/mod.rs"),
            source("crates/quell-core/src/trigger/window.rs"),
        ];
        let mut wrong = Vec::new();
        check(root.path(), &files, &mut wrong).unwrap();
        let expected = "crates/quell-core/src/trigger/window.rs:1: a rule has `async`: rules are \
                        plain functions";
        assert_eq!(wrong, [expected]);
    }
}
