//! The Debian package: built by cargo-deb, judged by lintian, and installed in a system of its own, which
//! systemd runs in a container. There `installed.sh` does what an operator does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::package::target;
use crate::release::{self, Built};
use crate::run::{answers, output, run};
use crate::test::tell;
use crate::tools;

/// What runs in the system, and the unit that runs it at the end of the start.
const SCRIPT: &str = include_str!("installed.sh");
const UNIT: &str = "[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nTimeoutStartSec=300\n\
                    ExecStart=/bin/sh /test/installed.sh\nExecStopPost=/bin/systemctl --no-block poweroff\n";
/// How long the system may take, from its start to its end.
const DEADLINE: &str = "600";

pub(super) fn check(root: &Path, built: &Built) -> anyhow::Result<()> {
    let package = build(root, built)?;
    lint(root, &package)?;
    install(root, &package)
}

fn build(root: &Path, built: &Built) -> anyhow::Result<PathBuf> {
    let version = crate::manifest::version(root)?.replace('-', "~");
    let name = format!("quell_{version}-1_{}.deb", built.arch.name);
    let package = release::folder(root).join(name);
    compress(built)?;
    let mut deb = Command::new(tools::find(root, tools::DEB)?);
    deb.args(["deb", "--package", "quell-server", "--no-build", "--no-strip", "--locked"]);
    deb.args(["--profile", "dist", "--target", built.arch.triple, "--output"]).arg(&package);
    run(root, &mut deb)?;
    Ok(package)
}

/// Debian has manual pages compressed.
fn compress(built: &Built) -> anyhow::Result<()> {
    let folder = built.generated.join("compressed");
    run(&built.generated, Command::new("cp").args(["-r", "man"]).arg(&folder))?;
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let mut gzip = Command::new("gzip");
        run(&folder, gzip.args(["--best", "--no-name"]).arg(entry?.path()))?;
    }
    Ok(())
}

fn lint(root: &Path, package: &Path) -> anyhow::Result<()> {
    if !answers("lintian", &["--version"]) {
        quell_services::install(&["lintian"])?;
    }
    let mut lintian = Command::new("lintian");
    // Root runs these chores, and lintian would warn of that.
    lintian.args(["--allow-root", "--fail-on", "error,warning"]);
    run(root, lintian.arg(package))
}

/// Installs it in a system that starts, and has the script judge it.
fn install(root: &Path, package: &Path) -> anyhow::Result<()> {
    let wanted = [("systemd-nspawn", "systemd-container"), ("mmdebstrap", "mmdebstrap")];
    let missing = wanted.iter().filter(|(program, _)| !answers(program, &["--version"]));
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        quell_services::install(&missing)?;
    }
    let system = System::new(root)?;
    let test = system.0.path().join("test");
    fs::create_dir(&test)?;
    fs::write(test.join("installed.sh"), SCRIPT)?;
    fs::copy(package, test.join("quell.deb"))?;
    let units = system.0.path().join("etc/systemd/system");
    fs::write(units.join("test.service"), UNIT)?;
    let wants = units.join("default.target.wants");
    fs::create_dir_all(&wants)?;
    std::os::unix::fs::symlink("../test.service", wants.join("test.service"))?;
    let console = system.run()?;
    let log = fs::read_to_string(test.join("log")).unwrap_or(console);
    if !test.join("passed").exists() {
        bail!("the installed package does not work: {log}");
    }
    let facts = fs::read_to_string(test.join("passed"))?;
    tell(&format!(
        "the Debian package was installed, started, reloaded, killed, upgraded and purged {}",
        facts.trim()
    ));
    Ok(())
}

/// A system with systemd and little else, in a temporary folder.
struct System(TempDir);

impl System {
    fn new(root: &Path) -> anyhow::Result<Self> {
        let suite = suite()?;
        let archive = target(root).join(format!("{suite}.tar"));
        if !archive.exists() {
            // A run that breaks off leaves no half of it.
            let new = archive.with_extension("new.tar");
            let mut make = Command::new("mmdebstrap");
            make.args([
                "--variant=minbase",
                "--include=adduser,ca-certificates,man-db,procps,systemd,systemd-sysv",
            ]);
            run(root, make.arg(&suite).arg(&new))?;
            fs::rename(&new, &archive).with_context(|| archive.display().to_string())?;
        }
        let folder = tempfile::Builder::new().prefix("quell-system-").tempdir()?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--numeric-owner", "--exclude=./dev/*", "--file"]).arg(&archive);
        run(folder.path(), &mut tar)?;
        // systemd is the init system of a folder that everyone may enter.
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(System(folder))
    }

    /// Starts it and waits until it powers off. What it prints is the answer.
    fn run(&self) -> anyhow::Result<String> {
        let mut nspawn = Command::new("timeout");
        nspawn.args(["--kill-after=10", DEADLINE, "systemd-nspawn", "--quiet", "--boot"]);
        // Where systemd does not run, nothing keeps a list of containers.
        nspawn.args(["--register=no", "--keep-unit", "--private-network", "--directory"]);
        nspawn.arg(self.0.path()).stdin(std::process::Stdio::null());
        let ended = nspawn.output().context("cannot start systemd-nspawn")?;
        Ok(String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned())
    }
}

/// The name of this machine's release of Debian.
fn suite() -> anyhow::Result<String> {
    let command = ["-c", ". /etc/os-release; printf %s \"$VERSION_CODENAME\""];
    let name = String::from_utf8(output(Command::new("sh").args(command))?)?;
    ensure!(!name.is_empty(), "/etc/os-release has no VERSION_CODENAME: the test needs Debian");
    Ok(name)
}
