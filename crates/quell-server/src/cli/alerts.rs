//! The command `quell alerts`: what is watched, and what is raised (R27).

use std::io::Write;

use crate::cli::source::{Source, ask, join, print_json, read_store};
use crate::cli::text::{rows, table};
use crate::view::{Alert, Alerts};

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
    let answer: Alerts = match &args.source.store {
        Some(url) => read_store(url, async |quell| {
            let rows = quell.store().alerts().await?;
            Ok(Alerts { alerts: rows.iter().map(|row| Alert::new(None, Some(row))).collect() })
        })?,
        None => {
            let url = join(&args.source.server, &["v1", "alerts"])?;
            ask(&args.source.server, |client| client.get(url))?
        }
    };
    if args.source.json {
        return print_json(&answer, out);
    }
    let rows = rows(&answer.alerts);
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
