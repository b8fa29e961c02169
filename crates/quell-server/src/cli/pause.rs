//! The steps that `quell queue` and `quell task` share: list what a server has, pause and resume.

use std::io::Write;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::source::{Source, ask, join, print_json};

/// What a server lists.
pub(super) fn get<T: DeserializeOwned>(source: &Source, what: &str) -> anyhow::Result<T> {
    let url = join(&source.server, &["v1", what])?;
    ask(&source.server, |client| client.get(url))
}

/// Pauses or resumes at a server.
pub(super) fn post<T: DeserializeOwned>(
    source: &Source,
    [what, name]: [&str; 2],
    paused: bool,
) -> anyhow::Result<T> {
    let verb = if paused { "pause" } else { "resume" };
    let url = join(&source.server, &["v1", what, name, verb])?;
    ask(&source.server, |client| client.post(url))
}

/// Prints the new state.
pub(super) fn print_paused(
    source: &Source,
    answer: &impl Serialize,
    what: &str,
    paused: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if source.json {
        return print_json(answer, out);
    }
    Ok(writeln!(out, "{what} {}", if paused { "is paused" } else { "goes on" })?)
}
