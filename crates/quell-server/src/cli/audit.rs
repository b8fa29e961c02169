//! `quell audit`: what operators did through a server.

use std::io::Write;

use serde_json::json;

use super::source::{Server, ask, join, print_json};
use super::text::{rows, table};
use crate::view::AuditEntries;

/// `quell audit`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// At most this many, up to 200, the newest first.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    #[command(flatten)]
    server: Server,
    /// Print JSON, with the settings before and after.
    #[arg(long)]
    json: bool,
}

/// Runs `quell audit`.
///
/// # Errors
/// What the server says.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut url = join(&args.server, &["v1", "audit"])?;
    url.query_pairs_mut().append_pair("limit", &args.limit.to_string());
    let answer: AuditEntries = ask(&args.server, |client| client.get(url))?;
    if args.json {
        return print_json(&answer, out);
    }
    let mut rows = rows(&answer.entries);
    for (row, entry) in rows.iter_mut().zip(&answer.entries) {
        row["who"] = json!(entry.by.name);
        row["from"] = json!(entry.by.peer);
    }
    let columns = ["at", "who", "from", "operation", "path", "status", "count"];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}
