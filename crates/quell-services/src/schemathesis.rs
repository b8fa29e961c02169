//! Schemathesis, which calls an HTTP API by its OpenAPI description and judges the answers.

use std::process::Command;

use anyhow::Context;

use crate::packages::alone;
use crate::releases::{ensure_pip, python, run};

/// The version that tests use.
const VERSION: &str = "4.32.5";

/// The program, which is fetched where it is missing.
///
/// # Errors
/// Where it cannot be fetched.
pub fn schemathesis() -> anyhow::Result<Command> {
    let package = format!("schemathesis=={VERSION}");
    let folder = std::env::temp_dir().join(format!("quell-services-{package}"));
    let (site, complete) = (folder.join("site"), folder.join("complete"));
    let _alone = alone()?;
    if !complete.exists() {
        std::fs::create_dir_all(&folder)?;
        ensure_pip()?;
        let mut install = python();
        install.args(["-m", "pip", "install", "--quiet", "--only-binary=:all:", "--upgrade"]);
        install.arg("--target").arg(&site).arg(&package);
        run(&mut install).with_context(|| format!("cannot fetch {package}"))?;
        std::fs::write(complete, "")?;
    }
    let mut command = python();
    command.args(["-c", "from schemathesis.cli import schemathesis; schemathesis()"]);
    command.env("PYTHONPATH", site).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(folder);
    Ok(command)
}
