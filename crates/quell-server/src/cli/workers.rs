//! `quell workers`: which workers there are, and when each was last seen (R25).

use std::io::Write;

use crate::cli::source::{Source, ask, join, print_json, read_store};
use crate::cli::text::{join_lists, rows, table};
use crate::view::Workers;

/// `quell workers`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
}

/// Runs `quell workers`.
///
/// # Errors
/// What the server or the store says.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let source = &args.source;
    let answer: Workers = match &source.store {
        Some(url) => read_store(url, async |quell| Ok(Workers::from(&quell.workers().await?)))?,
        None => {
            let url = join(&source.server, &["v1", "workers"])?;
            ask(&source.server, |client| client.get(url))?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    let mut rows = rows(&answer.workers);
    join_lists(&mut rows, &["queues", "tasks"]);
    let columns = [
        "worker",
        "state",
        "host",
        "pid",
        "version",
        "queues",
        "tasks",
        "busy",
        "slots",
        "started_at",
        "seen_at",
    ];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}
