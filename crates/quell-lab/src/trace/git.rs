//! The history of a local git repository as rows: one per changed file of each commit.
//!
//! `git log` does the work, started without a shell and with everything off that a repository's
//! own configuration could make it run. Merges list no files, so they make no rows.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::Row;

/// Begins a commit; git ends it, and each path after it, with NUL.
const COMMIT: u8 = 0x1e;
/// Between the parts of a commit's line.
const PART: char = '\u{1f}';
/// The longest path or commit line, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// The rows of a repository, oldest commit first.
#[derive(Debug)]
pub(super) struct GitRows {
    repository: PathBuf,
    git: Child,
    output: BufReader<ChildStdout>,
    commit: Option<Commit>,
    line: u64,
    ended: bool,
}

#[derive(Debug)]
struct Commit {
    timestamp: String,
    author: String,
    id: String,
    subject: String,
}

impl GitRows {
    /// The columns of each row.
    pub(super) const COLUMNS: [&'static str; 5] =
        ["timestamp", "author", "path", "commit", "subject"];

    /// Starts `git log`.
    pub(super) fn open(repository: &Path) -> Result<GitRows> {
        ensure!(
            repository.join(".git").exists(),
            "{} is a directory without .git: give a file, or the top of a git repository",
            repository.display()
        );
        let mut git = Command::new("git")
            .arg("-C")
            .arg(repository)
            .args(["--no-pager", "-c", "log.showSignature=false", "-c", "core.fsmonitor=false"])
            .args(["log", "--reverse", "-z", "--name-only", "--no-renames"])
            .args(["--no-ext-diff", "--no-textconv", "--no-color", "--no-decorate"])
            .arg("--format=%x1e%ct%x1f%an%x1f%H%x1f%s")
            .args(["HEAD", "--"])
            .env("GIT_OPTIONAL_LOCKS", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("git cannot be started: install git, or give a CSV file")?;
        let output = git.stdout.take().context("git has no output")?;
        Ok(GitRows {
            repository: repository.to_owned(),
            git,
            output: BufReader::new(output),
            commit: None,
            line: 0,
            ended: false,
        })
    }

    fn read(&mut self) -> Result<Option<Row>> {
        loop {
            let mut bytes = Vec::new();
            let limit = MAX_BYTES as u64;
            self.output.by_ref().take(limit).read_until(0, &mut bytes)?;
            if bytes.is_empty() {
                return self.end().map(|()| None);
            }
            ensure!(
                bytes.pop() == Some(0),
                "git ended within a path, or named one of more than {MAX_BYTES} bytes, the limit"
            );
            if bytes.first() == Some(&COMMIT) {
                self.commit = Some(Commit::read(&bytes)?);
                continue;
            }
            let Some(commit) = &self.commit else { bail!("git named a path before any commit") };
            // A line break separates a commit from its first path.
            let path = String::from_utf8_lossy(bytes.strip_prefix(b"\n").unwrap_or(&bytes));
            self.line += 1;
            let Commit { timestamp, author, id, subject } = commit;
            let texts = [timestamp.as_str(), author, &path, id, subject];
            return Ok(Some(Row::of_texts(self.line, GitRows::COLUMNS.into_iter().zip(texts))));
        }
    }

    /// Git's own message, where it failed.
    fn end(&mut self) -> Result<()> {
        let mut message = String::new();
        if let Some(errors) = self.git.stderr.take() {
            errors.take(4 << 10).read_to_string(&mut message)?;
        }
        let status = self.git.wait()?;
        ensure!(status.success(), "git log failed: {}", message.trim().replace('\n', "; "));
        Ok(())
    }
}

impl Iterator for GitRows {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = self.read().with_context(|| self.repository.display().to_string()).transpose();
        self.ended = !matches!(row, Some(Ok(_)));
        row
    }
}

impl Drop for GitRows {
    /// Ends a git that was not read to its end.
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to end.
        let _gone = self.git.kill();
        let _status = self.git.wait();
    }
}

impl Commit {
    fn read(bytes: &[u8]) -> Result<Commit> {
        let text = String::from_utf8_lossy(bytes.get(1..).unwrap_or_default());
        let mut parts = text.splitn(4, PART).map(str::to_owned);
        let mut part = || parts.next().context("git printed a commit that cannot be read");
        Ok(Commit { timestamp: part()?, author: part()?, id: part()?, subject: part()? })
    }
}
