//! `quell completions SHELL`: the script that completes this program's commands and options.
//!
//! It is made from the commands themselves, so it cannot lag behind them.

use std::io::Write;

use clap_complete::Shell;

/// `quell completions SHELL`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that reads the script.
    shell: Shell,
}

/// Prints the script for `command`, the whole command line.
///
/// # Errors
/// Where it cannot be written.
pub fn run(args: &Args, mut command: clap::Command, out: &mut dyn Write) -> anyhow::Result<()> {
    // The generator panics where it cannot write, as on a closed pipe: it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "quell", &mut script);
    Ok(out.write_all(&script)?)
}
