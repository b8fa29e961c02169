//! Schemathesis, which calls an HTTP API by its OpenAPI description and judges the answers.

use std::process::Command;

use crate::languages::python_with;

/// The version that tests use.
const PACKAGE: &str = "schemathesis==4.32.5";

/// The program, which is fetched where it is missing.
///
/// # Errors
/// Where it cannot be fetched.
pub fn schemathesis() -> anyhow::Result<Command> {
    let (mut command, folder) = python_with(PACKAGE)?;
    command.args(["-c", "from schemathesis.cli import schemathesis; schemathesis()"]);
    command.current_dir(folder);
    Ok(command)
}
