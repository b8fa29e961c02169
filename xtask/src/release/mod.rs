//! `cargo xtask release`: what a release consists of, in `target/release-files`.
//!
//! For each architecture it builds one static binary, and packs an archive with it and the root file
//! system of the image. A list of dependencies (CycloneDX) and the texts of their licences lie in each.
//! Invariant: nothing is uploaded, and the same commit makes the same files: times come from the commit.

pub(crate) mod archive;
mod build;
mod notices;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::package::{self, target};
use crate::run::{output, run};
use crate::test::tell;
use archive::Archive;

/// An architecture that is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arch {
    /// As Rust has it.
    pub(crate) triple: &'static str,
    /// As Debian and images have it.
    pub(crate) name: &'static str,
}

const ARCHES: [Arch; 2] = [
    Arch { triple: "x86_64-unknown-linux-musl", name: "amd64" },
    Arch { triple: "aarch64-unknown-linux-musl", name: "arm64" },
];

impl Arch {
    /// This machine's.
    pub(crate) fn native() -> anyhow::Result<Self> {
        let this = std::env::consts::ARCH;
        let found = ARCHES.into_iter().find(|arch| arch.triple.starts_with(this));
        found.with_context(|| format!("no release is built on {this}: use x86_64 or aarch64"))
    }
}

/// The built files of one architecture.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) arch: Arch,
    /// The binary.
    pub(crate) binary: PathBuf,
    /// Manual pages, completions, the list of dependencies and the texts of licences.
    pub(crate) generated: PathBuf,
}

/// Where the files of a release are.
pub(crate) fn folder(root: &Path) -> PathBuf {
    target(root).join("release-files")
}

/// Builds and packs for both architectures, or only for this machine's; on request around binaries that
/// are built already.
pub(crate) fn release(
    root: &Path,
    native_only: bool,
    is_built: bool,
) -> anyhow::Result<Vec<Built>> {
    let folder = folder(root);
    // Files of another version would be in the list of checksums.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder.join("image")).with_context(|| folder.display().to_string())?;
    fs::copy(root.join("packages/docker/Dockerfile"), folder.join("image/Dockerfile"))?;
    let native = Arch::native()?;
    let others = ARCHES.into_iter().filter(|arch| !native_only && *arch != native);
    let all = std::iter::once(native).chain(others);
    let mut built: Vec<Built> = Vec::new();
    for arch in all {
        // Only this machine's own binary runs here: it writes the pages for the others, too.
        let pages = built.first().map(|first| first.generated.clone());
        if !is_built {
            build::build(root, arch)?;
        }
        built.push(make(root, &folder, arch, pages.as_deref())?);
    }
    checksums(&folder)?;
    tell(&format!("the release is in {}", folder.display()));
    Ok(built)
}

fn make(root: &Path, folder: &Path, arch: Arch, pages: Option<&Path>) -> anyhow::Result<Built> {
    let binary = target(root).join(arch.triple).join("dist/quell");
    // Beside the binary, where cargo-deb finds it.
    let generated = binary.with_file_name("package");
    if generated.exists() {
        fs::remove_dir_all(&generated).with_context(|| generated.display().to_string())?;
    }
    fs::create_dir_all(&generated).with_context(|| generated.display().to_string())?;
    match pages {
        Some(pages) => {
            let mut copy = Command::new("cp");
            run(
                root,
                copy.arg("-r").args([pages.join("man"), pages.join("completions")]).arg(&generated),
            )?;
        }
        None => write_pages(&binary, &generated)?,
    }
    let bill = generated.join("quell.cdx.json");
    let epoch = epoch(root)?;
    package::write_bill(root, &["--features", "full", "--target", arch.triple], &epoch, &bill)?;
    let third_party = generated.join("THIRD-PARTY.txt");
    fs::write(&third_party, notices::notices(root, arch)?)?;
    let built = Built { arch, binary, generated };
    pack(root, folder, &built, &epoch)?;
    Ok(built)
}

/// The manual pages and completions, by the binary itself.
fn write_pages(binary: &Path, generated: &Path) -> anyhow::Result<()> {
    run(generated, Command::new(binary).args(["man", "--out", "man"]))?;
    let completions = generated.join("completions");
    fs::create_dir_all(&completions)?;
    for (shell, name) in [("bash", "quell.bash"), ("zsh", "_quell"), ("fish", "quell.fish")] {
        let script = output(Command::new(binary).args(["completions", shell]))?;
        fs::write(completions.join(name), script)?;
    }
    Ok(())
}

/// The archive, and the root file system of the image.
fn pack(root: &Path, folder: &Path, built: &Built, epoch: &str) -> anyhow::Result<()> {
    let name = format!("quell-{}-{}", crate::manifest::version(root)?, built.arch.triple);
    let mut archive = Archive::new(&folder.join("work"))?;
    let within = |path: &str| format!("{name}/{path}");
    archive.file(&built.binary, &within("quell"), 0o755)?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"] {
        archive.file(&root.join(file), &within(file), 0o644)?;
    }
    for file in ["THIRD-PARTY.txt", "quell.cdx.json"] {
        archive.file(&built.generated.join(file), &within(file), 0o644)?;
    }
    archive.file(&root.join("examples/quell.toml"), &within("quell.toml"), 0o644)?;
    let unit = root.join("packages/systemd/quell.service");
    archive.file(&unit, &within("quell.service"), 0o644)?;
    for part in ["man", "completions"] {
        archive.folder(&built.generated.join(part), &within(part))?;
    }
    archive.write(&folder.join(format!("{name}.tar.gz")), epoch)?;
    let bill = folder.join(format!("{name}.cdx.json"));
    fs::copy(built.generated.join("quell.cdx.json"), bill)?;
    let image = folder.join(format!("image/rootfs-{}.tar", built.arch.name));
    root_file_system(root, built, Archive::new(&folder.join("work"))?)?.write(&image, epoch)
}

/// Certificates that Debian trusts, and the licence that they are under.
const CERTIFICATES: [(&str, &str); 2] = [
    ("/etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/ca-certificates.crt"),
    ("/usr/share/doc/ca-certificates/copyright", "usr/share/doc/ca-certificates/copyright"),
];

/// The user and group of the image.
const USER: u32 = 10_001;

fn root_file_system(root: &Path, built: &Built, mut archive: Archive) -> anyhow::Result<Archive> {
    if CERTIFICATES.iter().any(|(from, _)| !Path::new(from).exists()) {
        quell_services::install(&["ca-certificates"])?;
    }
    archive.file(&built.binary, "usr/bin/quell", 0o755)?;
    for (from, to) in CERTIFICATES {
        archive.file(Path::new(from), to, 0o644)?;
    }
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        archive.file(&root.join(file), &format!("usr/share/doc/quell/{file}"), 0o644)?;
    }
    for file in ["THIRD-PARTY.txt", "quell.cdx.json"] {
        let to = format!("usr/share/doc/quell/{file}");
        archive.file(&built.generated.join(file), &to, 0o644)?;
    }
    archive.file(&root.join("packages/docker/quell.toml"), "etc/quell/quell.toml", 0o644)?;
    let users = format!(
        "root:x:0:0::/nonexistent:/nonexistent\nquell:x:{USER}:{USER}::/var/lib/quell:/nonexistent\n"
    );
    archive.text(&users, "etc/passwd")?;
    archive.text(&format!("root:x:0:\nquell:x:{USER}:\n"), "etc/group")?;
    archive.empty("tmp", 0o1777, 0)?;
    archive.empty("var/lib/quell", 0o700, USER)?;
    Ok(archive)
}

/// The time of the commit, in seconds since 1970.
fn epoch(root: &Path) -> anyhow::Result<String> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(given);
    }
    let mut git = Command::new("git");
    let time = output(git.args(["log", "-1", "--format=%ct"]).current_dir(root))?;
    Ok(String::from_utf8(time)?.trim().to_owned())
}

/// `SHA256SUMS`, for `sha256sum --check`.
pub(crate) fn checksums(folder: &Path) -> anyhow::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name != SUMS {
            names.push(name);
        }
    }
    names.sort();
    let sums = output(Command::new("sha256sum").arg("--").args(&names).current_dir(folder))?;
    fs::write(folder.join(SUMS), sums).context(SUMS)
}

const SUMS: &str = "SHA256SUMS";
