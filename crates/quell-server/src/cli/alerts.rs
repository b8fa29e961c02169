//! The command `quell alerts`: what is watched, and what is raised (R27).

use std::io::Write;

use serde_json::{Value, json};

use crate::cli::source::{Source, ask, join, read_store};
use crate::cli::text::table;
use crate::view;

/// `quell alerts`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
}

/// Runs `quell alerts`.
///
/// # Errors
/// What the server or the store says.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer = match &args.source.store {
        Some(url) => read_store(url, async |quell| {
            let rows = quell.store().alerts().await?;
            let shown: Vec<Value> = rows.iter().map(|row| view::alert(None, Some(row))).collect();
            Ok(json!({ "alerts": shown }))
        })?,
        None => {
            let url = join(&args.source.server, &["v1", "alerts"])?;
            ask(&args.source.server, |client| client.get(url))?
        }
    };
    if args.source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let rows = answer.get("alerts").and_then(Value::as_array).cloned().unwrap_or_default();
    let columns = [
        "name",
        "state",
        "since",
        "measured",
        "on",
        "queue",
        "task",
        "threshold",
        "notices_waiting",
    ];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}
