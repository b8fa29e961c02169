//! promtool, which checks metrics pages and alert rules as Prometheus reads them.

use std::path::Path;
use std::process::Command;

use crate::packages::install_without_service;

/// Where Debian's package has it.
const PLACE: &str = "/usr/bin/promtool";

/// The program; installs Debian's package of Prometheus where it is missing, whose service does not start.
///
/// # Errors
/// Where it cannot be installed.
pub fn promtool() -> anyhow::Result<Command> {
    let is_there = || Path::new(PLACE).exists();
    if !is_there() {
        install_without_service("prometheus", is_there)?;
    }
    Ok(Command::new(PLACE))
}
