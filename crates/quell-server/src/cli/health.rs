//! `quell health`: does a server work? For health checks in images without a shell or curl.

use std::io::Write;

use reqwest::Url;

use crate::cli::source::{ask, join};
use crate::view::Health;

/// `quell health`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server to ask.
    #[arg(long, value_name = "URL", env = "QUELL_SERVER", default_value = "http://127.0.0.1:7777")]
    server: Url,
}

/// Prints `ok` if the server works: it does not stop, and the disk of its store is not full.
///
/// # Errors
/// What the server says, or that none answers.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let url = join(&args.server, &["v1", "healthz"])?;
    let health: Health = ask(&args.server, |client| client.get(url))?;
    Ok(writeln!(out, "{}", health.status)?)
}
