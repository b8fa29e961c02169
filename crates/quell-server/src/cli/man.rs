//! `quell man --out DIR`: the manual pages of this program, one for each command.
//!
//! They are made from the commands themselves, so they cannot lag behind them.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context as _;

/// `quell man --out DIR`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory of the pages, which is created if it is missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes `quell.1`, `quell-serve.1` and so on for `command`, the whole command line.
///
/// # Errors
/// Where a page cannot be written.
pub fn run(args: &Args, command: clap::Command, out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = &args.out;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("--out {}: cannot create the directory", folder.display()))?;
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("--out {}: cannot write the pages", folder.display()))?;
    Ok(writeln!(out, "wrote the manual pages to {}", folder.display())?)
}
