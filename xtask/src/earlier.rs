//! The earlier build: the `quell` binary of the commit that `compat/earlier.toml` names, for tests
//! that run two builds on one store.
//!
//! The commit's files are written from the clone's own objects, through an index of their own: no
//! worktree is registered, and the checkout's index is not touched. The build shares no target
//! directory with the checkout: workspace crates of both have the same names and hashes there, and
//! cargo would take the artifact of one for that of the other wherever its files are newer.
//!
//! Invariant: `target/earlier/COMMIT/quell` is a whole build of that commit.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::run::{cargo_command, run};
use crate::test::tell;

/// Where the tests find the binary.
pub(crate) const EARLIER: &str = "QUELL_TEST_EARLIER";
/// Which commit it is of.
const PIN: &str = "compat/earlier.toml";

/// The binary, which is built where it is missing.
pub(crate) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let place = Place::of(root)?;
    if !place.program().exists() {
        place.build(root).with_context(|| format!("build the earlier commit {}", place.commit))?;
    }
    Ok(place.program())
}

/// The binary, if it is there.
pub(crate) fn built(root: &Path) -> anyhow::Result<Option<PathBuf>> {
    let program = Place::of(root)?.program();
    Ok(program.exists().then_some(program))
}

/// `cargo xtask earlier`.
pub(crate) fn earlier(root: &Path) -> anyhow::Result<()> {
    tell(&build(root)?.display().to_string());
    Ok(())
}

/// The folder of one commit's build.
struct Place {
    commit: String,
    folder: PathBuf,
}

impl Place {
    fn of(root: &Path) -> anyhow::Result<Place> {
        let text = std::fs::read_to_string(root.join(PIN)).with_context(|| PIN.to_owned())?;
        let commit = commit_of(&text)?;
        let folder = root.join("target/earlier").join(&commit);
        Ok(Place { commit, folder })
    }

    fn program(&self) -> PathBuf {
        self.folder.join("quell")
    }

    /// Debug information would double what is written. Its own target directory goes once the binary
    /// is out of it.
    fn build(&self, root: &Path) -> anyhow::Result<()> {
        let (source, target) = (self.folder.join("source"), self.folder.join("target"));
        write_files(root, &self.commit, &self.folder, &source)?;
        let quell = ["-p", "quell-server", "--bin", "quell", "--all-features"];
        let mut build = cargo_command(&[&["build", "--locked"], &quell[..]].concat());
        build.arg("--target-dir").arg(&target);
        build.env("CARGO_PROFILE_DEV_DEBUG", "false");
        run(&source, &mut build)?;
        std::fs::rename(target.join("debug/quell"), self.program())
            .context("the build has left no target/debug/quell")?;
        for folder in [source, target] {
            std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        Ok(())
    }
}

/// The commit that the pin names.
fn commit_of(pin: &str) -> anyhow::Result<String> {
    let named = pin.lines().find_map(|line| line.strip_prefix("commit = \"")?.strip_suffix('"'));
    let commit = named.with_context(|| format!("{PIN} has no line `commit = \"HASH\"`"))?;
    let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    ensure!(is_hash, "{PIN}: {commit:?} is not the 40 hexadecimal digits of a commit");
    Ok(commit.to_owned())
}

/// Writes a commit's files to `source`, and what git needs for that to `folder`.
fn write_files(root: &Path, commit: &str, folder: &Path, source: &Path) -> anyhow::Result<()> {
    let known = git(root).args(["cat-file", "-e", &format!("{commit}^{{commit}}")]).output()?;
    if !known.status.success() {
        bail!(
            "commit {commit}, which {PIN} names, is not in this clone: run `git fetch --unshallow`, \
             or in a clone that is whole `git fetch origin {commit}` ({})",
            String::from_utf8_lossy(&known.stderr).trim()
        );
    }
    // What a build that broke off has left.
    if source.exists() {
        std::fs::remove_dir_all(source).with_context(|| source.display().to_string())?;
    }
    std::fs::create_dir_all(source).with_context(|| source.display().to_string())?;
    let index = folder.join("index");
    run(root, git(root).env("GIT_INDEX_FILE", &index).args(["read-tree", commit]))?;
    let prefix = format!("--prefix={}/", source.display());
    let write = ["checkout-index", "--all", "--quiet", &prefix];
    run(root, git(root).env("GIT_INDEX_FILE", &index).args(write))?;
    std::fs::remove_file(&index).with_context(|| index.display().to_string())
}

fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(folder: &Path, args: &[&str]) -> String {
        let names = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
        let output = git(folder).args(names).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A repository with two commits of one file, and the first one's hash.
    fn repository() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        output(folder.path(), &["init", "--quiet"]);
        let commit = |text: &str| {
            std::fs::create_dir_all(folder.path().join("a")).unwrap();
            std::fs::write(folder.path().join("a/file"), text).unwrap();
            output(folder.path(), &["add", "."]);
            output(folder.path(), &["commit", "--quiet", "--message", text]);
            output(folder.path(), &["rev-parse", "HEAD"])
        };
        let first = commit("first");
        commit("second");
        (folder, first)
    }

    #[test]
    fn an_earlier_commits_files_are_written_and_the_checkout_stays_as_it_is() {
        let (repository, first) = repository();
        let root = repository.path();
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("source");
        // The second time there are files of a build that broke off.
        for _ in 0..2 {
            write_files(root, &first, place.path(), &source).unwrap();
            assert_eq!(std::fs::read_to_string(source.join("a/file")).unwrap(), "first");
            std::fs::write(source.join("left"), "over").unwrap();
        }
        write_files(root, &first, place.path(), &source).unwrap();
        assert!(!source.join("left").exists());
        assert_eq!(output(root, &["status", "--porcelain"]), "");
        assert_eq!(output(root, &["worktree", "list"]).lines().count(), 1);
    }

    #[test]
    fn a_commit_that_a_shallow_clone_lacks_is_an_error_with_the_remedy() {
        let (repository, first) = repository();
        let shallow = tempfile::tempdir().unwrap();
        let from = format!("file://{}", repository.path().display());
        output(shallow.path(), &["clone", "--quiet", "--depth", "1", &from, "clone"]);
        let root = shallow.path().join("clone");
        let source = shallow.path().join("source");
        let error = write_files(&root, &first, shallow.path(), &source).unwrap_err().to_string();
        assert!(error.contains(&first) && error.contains("git fetch --unshallow"), "{error}");
    }

    #[test]
    fn the_pin_names_one_whole_commit() {
        let root = crate::run::root().unwrap();
        assert_eq!(Place::of(&root).unwrap().commit.len(), 40);
        let hash = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(commit_of(&format!("# x\ncommit = \"{hash}\"\n")).unwrap(), hash);
        for wrong in ["", "commit = \"0123\"", "commit = \"HEAD\""] {
            assert!(commit_of(wrong).unwrap_err().to_string().contains(PIN), "{wrong}");
        }
    }
}
