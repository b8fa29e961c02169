//! `quell settings`: the reference of all settings of the configuration file.

use std::io::Write;

/// Prints it.
///
/// # Errors
/// Where it cannot be written.
pub fn run(out: &mut dyn Write) -> anyhow::Result<()> {
    Ok(out.write_all(crate::config::reference::reference().as_bytes())?)
}
