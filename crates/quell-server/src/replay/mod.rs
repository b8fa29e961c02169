//! `quell replay`.
use std::io::Write;

/// The arguments of `quell replay`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// None yet.
pub fn run(_args: Args, _out: &mut dyn Write) -> anyhow::Result<()> {
    Ok(())
}
