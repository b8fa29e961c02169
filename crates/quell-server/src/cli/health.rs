//! `quell health`: does a server work? For health checks in images without a shell or curl.

use std::io::Write;

use crate::cli::source::{Server, ask, join, print_json};
use crate::view::Health;

/// `quell health`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: Server,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints `ok` if the server works: it does not stop, and the disk of its store is not full.
///
/// # Errors
/// What the server says, or that none answers.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let url = join(&args.server, &["v1", "healthz"])?;
    let health: Health = ask(&args.server, |client| client.get(url))?;
    if args.json {
        return print_json(&health, out);
    }
    Ok(writeln!(out, "{}", health.status)?)
}
