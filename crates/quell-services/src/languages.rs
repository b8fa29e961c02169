//! Python and Node.js, with packages that tests need.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::azurite::ensure_npm;
use crate::packages::alone;
use crate::releases::{ensure_pip, python, run};

/// The version of the libraries of Standard Webhooks for Python.
const WEBHOOKS_PYTHON: &str = "standardwebhooks==1.1.0";
/// The same for Node.js.
const WEBHOOKS_NODE: &str = "standardwebhooks@1.1.1";

/// Python 3, with pip.
///
/// # Errors
/// Where pip cannot be installed.
pub fn python_3() -> anyhow::Result<Command> {
    let _alone = alone()?;
    ensure_pip()?;
    let mut command = python();
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Node.js.
///
/// # Errors
/// Where it cannot be installed.
pub fn node() -> anyhow::Result<Command> {
    let _alone = alone()?;
    ensure_npm()?;
    Ok(Command::new("node"))
}

/// npm.
///
/// # Errors
/// Where it cannot be installed.
pub fn npm() -> anyhow::Result<Command> {
    let _alone = alone()?;
    ensure_npm()?;
    let mut command = Command::new("npm");
    command.stdin(Stdio::null());
    Ok(command)
}

/// A Python that has the library of Standard Webhooks.
///
/// # Errors
/// Where it cannot be fetched.
pub fn python_with_webhooks() -> anyhow::Result<Command> {
    python_with(WEBHOOKS_PYTHON).map(|(command, _)| command)
}

/// A Node.js that has the library of Standard Webhooks.
///
/// # Errors
/// Where it cannot be fetched.
pub fn node_with_webhooks() -> anyhow::Result<Command> {
    let folder = std::env::temp_dir().join(format!("quell-services-{WEBHOOKS_NODE}"));
    let complete = folder.join("complete");
    let _alone = alone()?;
    ensure_npm()?;
    if !complete.exists() {
        std::fs::create_dir_all(&folder)?;
        let mut install = Command::new("npm");
        install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"]);
        install.arg("--prefix").arg(&folder).arg(WEBHOOKS_NODE).stdin(Stdio::null());
        run(&mut install).with_context(|| format!("cannot fetch {WEBHOOKS_NODE}"))?;
        std::fs::write(complete, "")?;
    }
    let mut command = Command::new("node");
    command.env("NODE_PATH", folder.join("node_modules"));
    Ok(command)
}

/// A Python that has this package, which is fetched where it is missing; and the package's folder.
pub(crate) fn python_with(package: &str) -> anyhow::Result<(Command, PathBuf)> {
    python_with_all(&[package])
}

/// As [`python_with`], for packages that need each other.
pub(crate) fn python_with_all(packages: &[&str]) -> anyhow::Result<(Command, PathBuf)> {
    let folder = std::env::temp_dir().join(format!("quell-services-{}", packages.join("+")));
    let (site, complete) = (folder.join("site"), folder.join("complete"));
    let _alone = alone()?;
    if !complete.exists() {
        std::fs::create_dir_all(&folder)?;
        ensure_pip()?;
        let mut install = python();
        install.args(["-m", "pip", "install", "--quiet", "--only-binary=:all:", "--upgrade"]);
        install.arg("--target").arg(&site).args(packages);
        run(&mut install).with_context(|| format!("cannot fetch {}", packages.join(" ")))?;
        std::fs::write(complete, "")?;
    }
    let mut command = python();
    command.env("PYTHONPATH", site).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok((command, folder))
}

/// The folder with the packages for Node.js that the lock file in `sources` pins; they are fetched where the
/// file has changed. No script of a package runs.
pub(crate) fn node_packages(sources: &Path, name: &str) -> anyhow::Result<PathBuf> {
    installed(sources, name, &["package.json", "package-lock.json"], |folder| {
        ensure_npm()?;
        let mut install = Command::new("npm");
        install.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).stdin(Stdio::null());
        run(install.current_dir(folder))
    })
}

/// The folder of packages that these files name; they are fetched where the files have changed.
pub(crate) fn installed(
    sources: &Path,
    name: &str,
    files: &[&str],
    fetch: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("quell-services-{name}"));
    let complete = folder.join("complete");
    let read = |file: &&str| std::fs::read_to_string(sources.join(file));
    let texts: Vec<String> = files.iter().map(read).collect::<Result<_, _>>()?;
    let wanted = texts.concat();
    let _alone = alone()?;
    if std::fs::read_to_string(&complete).is_ok_and(|found| found == wanted) {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folder)?;
    for (file, text) in files.iter().zip(texts) {
        std::fs::write(folder.join(file), text)?;
    }
    fetch(&folder).with_context(|| format!("cannot fetch the packages {name}"))?;
    std::fs::write(complete, wanted)?;
    Ok(folder)
}
