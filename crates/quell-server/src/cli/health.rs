//! `quell health`: does a server work? For health checks in images without a shell or curl.

use std::io::Write;

use crate::cli::source::Asked;
use crate::view::Health;

/// `quell health`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    asked: Asked,
}

/// Prints `ok` if the server works: it does not stop, and the disk of its store is not full.
///
/// # Errors
/// What the server says, or that none answers.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let text = |health: &Health| format!("{}\n", health.status);
    args.asked.print(&["v1", "healthz"], out, text)
}
