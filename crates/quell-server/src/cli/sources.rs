//! `quell sources`: the webhook sources of a server, and how their deliveries went.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::json;

use super::source::Asked;
use super::text::{rows, table};
use crate::view::WebhookSources;

/// `quell sources`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    asked: Asked,
}

/// Runs `quell sources`.
///
/// # Errors
/// What the server says.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    args.asked.print(&["v1", "sources"], out, |answer: &WebhookSources| {
        let mut rows = rows(&answer.sources);
        for (row, source) in rows.iter_mut().zip(&answer.sources) {
            row["accepted"] = json!(counted(&source.accepted));
            row["refused"] = json!(counted(&source.refused));
        }
        let columns = [
            "name",
            "provider",
            "task",
            "accepted",
            "refused",
            "last_accepted_at",
            "last_refused_at",
        ];
        table(columns, &rows)
    })
}

/// Numbers with their names: `3 accepted, 1 ignored`.
fn counted(counts: &BTreeMap<String, u64>) -> String {
    let named = counts.iter().map(|(name, count)| format!("{count} {name}"));
    let text = named.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "0".to_owned() } else { text }
}
