//! The steps that `quell queue` and `quell task` share: list what a server has, pause and resume.

use std::io::Write;

use quell::queue::QueueSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;

use serde_json::json;

use super::source::{Source, ask, join, print_json};

/// Who pauses.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Paused {
    /// Who asks for it, as lists and `explain` show; USER@HOST where it is left out.
    #[arg(long, value_name = "WHO")]
    pub(super) by: Option<String>,
}

impl Paused {
    /// With the caller where no one is named.
    pub(super) fn or_caller(self) -> Self {
        Paused { by: self.by.or_else(caller) }
    }
}

/// The user and the host; none where the user is not known.
fn caller() -> Option<String> {
    let variable = |name: &&str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    let user = ["USER", "LOGNAME", "USERNAME"].iter().find_map(variable)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| ["HOSTNAME", "COMPUTERNAME"].iter().find_map(variable));
    let caller = match host.as_deref().map(str::trim) {
        None | Some("") => user,
        Some(host) => format!("{user}@{host}"),
    };
    Some(caller).filter(|caller| caller.len() <= QueueSettings::MOST_REMARK)
}

/// What a server lists.
pub(super) fn get<T: DeserializeOwned>(source: &Source, what: &str) -> anyhow::Result<T> {
    let url = join(&source.server, &["v1", what])?;
    ask(&source.server, |client| client.get(url))
}

/// Pauses or resumes at a server.
pub(super) fn post<T: DeserializeOwned>(
    source: &Source,
    [what, name]: [&str; 2],
    paused: Option<&Paused>,
) -> anyhow::Result<T> {
    let verb = if paused.is_some() { "pause" } else { "resume" };
    let url = join(&source.server, &["v1", what, name, verb])?;
    let by = paused.and_then(|paused| paused.by.as_deref());
    ask(&source.server, |client| match by {
        Some(by) => client.post(url).json(&json!({ "by": by })),
        None => client.post(url),
    })
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
