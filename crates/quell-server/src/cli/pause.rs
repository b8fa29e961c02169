//! The steps that `quell queue` and `quell task` share: list what a server has, pause and resume.

use std::io::Write;

use serde_json::Value;

use super::source::{Source, ask, join};

/// What a server lists.
pub(super) fn get(source: &Source, what: &str) -> anyhow::Result<Value> {
    let url = join(&source.server, &["v1", what])?;
    ask(&source.server, |client| client.get(url))
}

/// The rows of a list.
pub(super) fn listed(answer: &Value, what: &str) -> Vec<Value> {
    answer.get(what).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Pauses or resumes at a server.
pub(super) fn post(
    source: &Source,
    [what, name]: [&str; 2],
    paused: bool,
) -> anyhow::Result<Value> {
    let verb = if paused { "pause" } else { "resume" };
    let url = join(&source.server, &["v1", what, name, verb])?;
    ask(&source.server, |client| client.post(url))
}

/// Prints the new state.
pub(super) fn print_paused(
    source: &Source,
    answer: &Value,
    what: &str,
    paused: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    Ok(writeln!(out, "{what} {}", if paused { "is paused" } else { "goes on" })?)
}
