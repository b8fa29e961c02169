//! What linters and schemas say of the sources of packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::manifest;
use crate::run::{answers, output, run};

/// The largest exposure that `systemd-analyze security` may find, in tenths of its scale of ten.
const MAX_EXPOSURE: u32 = 20;

pub(super) fn dockerfile(root: &Path) -> anyhow::Result<()> {
    let mut hadolint = quell_services::hadolint()?;
    run(root, hadolint.arg("packages/docker/Dockerfile"))
}

/// The Compose file has only what the specification knows.
pub(super) fn compose(root: &Path) -> anyhow::Result<()> {
    let mut python = quell_services::python_with_compose()?;
    python.args(["-c", include_str!("compose.py"), "packages/docker/compose.yaml"]);
    output(python.current_dir(root))?;
    // Files outside of the workspace's manifests name its version, too.
    let version = manifest::version(root)?;
    has(root, "packages/docker/compose.yaml", &format!("quell:{version}}}"))
}

/// systemd knows each setting of the unit, and the unit leaves little open.
pub(super) fn unit(root: &Path) -> anyhow::Result<()> {
    if !answers("systemd-analyze", &["--version"]) {
        quell_services::install(&["systemd"])?;
    }
    let place = root.join("packages/systemd/quell.service");
    let text = fs::read_to_string(&place).with_context(|| place.display().to_string())?;
    // The program is not installed here.
    let checked = text.replace("ExecStart=/usr/bin/quell", "ExecStart=/bin/true");
    ensure!(checked != text, "quell.service does not start /usr/bin/quell");
    let folder = crate::package::target(root).join("unit");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let copy = folder.join("quell.service");
    fs::write(&copy, checked).with_context(|| copy.display().to_string())?;
    run(root, Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy))?;
    let threshold = format!("--threshold={MAX_EXPOSURE}");
    let security = ["security", "--offline=true", "--no-pager", &threshold];
    // It prints a table of everything, which matters only if it fails.
    let judged = output(Command::new("systemd-analyze").args(security).arg(&copy));
    judged.map(|_| ()).with_context(|| {
        format!("quell.service leaves more open than {MAX_EXPOSURE} tenths: `systemd-analyze security` lists it")
    })
}

/// The scripts of the Debian package are sound, and its changelog has this version.
pub(super) fn debian(root: &Path) -> anyhow::Result<()> {
    if !answers("shellcheck", &["--version"]) {
        quell_services::install(&["shellcheck"])?;
    }
    let scripts = ["postinst", "prerm", "postrm"].map(|name| format!("packages/debian/{name}"));
    run(root, Command::new("shellcheck").args(["--shell", "sh"]).args(scripts))?;
    let version = manifest::version(root)?.replace('-', "~");
    has(root, "packages/debian/changelog", &format!("quell ({version}-1) "))
}

/// Whether a file has a text that follows the workspace's version.
pub(super) fn has(root: &Path, file: &str, needle: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
    ensure!(text.contains(needle), "{file} does not have `{needle}`: has the version changed?");
    Ok(())
}
