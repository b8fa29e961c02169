//! Archives that depend on their content alone: entries in order, one time, owners by number.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::run::run;

/// An archive that is being gathered in a folder. Owners are kept aside, as only root may set them.
#[derive(Debug)]
pub(crate) struct Archive {
    place: PathBuf,
    /// Entries of another owner than root.
    owned: Vec<(String, u32)>,
}

impl Archive {
    /// Begins with an empty folder.
    pub(crate) fn new(place: &Path) -> anyhow::Result<Self> {
        if place.exists() {
            fs::remove_dir_all(place).with_context(|| place.display().to_string())?;
        }
        fs::create_dir_all(place).with_context(|| place.display().to_string())?;
        Ok(Archive { place: place.to_owned(), owned: Vec::new() })
    }

    /// Adds a copy of a file.
    pub(crate) fn file(&mut self, from: &Path, to: &str, mode: u32) -> anyhow::Result<()> {
        let place = self.parent(to)?;
        fs::copy(from, &place).with_context(|| from.display().to_string())?;
        set_mode(&place, mode)
    }

    /// Adds a file with this text.
    pub(crate) fn text(&mut self, text: &str, to: &str) -> anyhow::Result<()> {
        let place = self.parent(to)?;
        fs::write(&place, text).with_context(|| to.to_owned())?;
        set_mode(&place, 0o644)
    }

    /// Adds the files of a folder.
    pub(crate) fn folder(&mut self, from: &Path, to: &str) -> anyhow::Result<()> {
        for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name();
            self.file(&entry.path(), &format!("{to}/{}", name.to_string_lossy()), 0o644)?;
        }
        Ok(())
    }

    /// Adds an empty folder.
    pub(crate) fn empty(&mut self, to: &str, mode: u32, owner: u32) -> anyhow::Result<()> {
        let place = self.parent(to)?;
        fs::create_dir(&place).with_context(|| to.to_owned())?;
        if owner != 0 {
            self.owned.push((to.to_owned(), owner));
        }
        set_mode(&place, mode)
    }

    /// Writes it with `epoch` as the time of each entry, compressed if the name ends in `.gz`.
    pub(crate) fn write(self, to: &Path, epoch: &str) -> anyhow::Result<()> {
        let is_compressed = to.extension().is_some_and(|ending| ending == "gz");
        let tar = if is_compressed { to.with_extension("") } else { to.to_owned() };
        let mut create = pack("--create", &tar, epoch, 0);
        create.arg("--sort=name");
        for (entry, _) in &self.owned {
            create.arg(format!("--exclude={entry}"));
        }
        run(&self.place, create.args(names(&self.place)?))?;
        for (entry, owner) in &self.owned {
            let mut append = pack("--append", &tar, epoch, *owner);
            run(&self.place, append.arg("--no-recursion").arg(entry))?;
        }
        if is_compressed {
            let compressed = File::create(to).with_context(|| to.display().to_string())?;
            let mut gzip = Command::new("gzip");
            gzip.args(["--best", "--no-name", "--stdout"]).arg(&tar);
            run(&self.place, gzip.stdout(Stdio::from(compressed)))?;
            fs::remove_file(&tar).with_context(|| tar.display().to_string())?;
        }
        fs::remove_dir_all(&self.place).with_context(|| self.place.display().to_string())
    }

    /// The place of an entry, whose folder is there then, for everyone to read.
    fn parent(&self, to: &str) -> anyhow::Result<PathBuf> {
        let mut folder = self.place.clone();
        let parts: Vec<&str> = to.split('/').collect();
        for part in parts.iter().take(parts.len().saturating_sub(1)) {
            folder.push(part);
            if !folder.exists() {
                fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
                set_mode(&folder, 0o755)?;
            }
        }
        Ok(self.place.join(to))
    }
}

/// `tar` with everything that must not depend on the machine.
fn pack(operation: &str, tar: &Path, epoch: &str, owner: u32) -> Command {
    let mut command = Command::new("tar");
    command.args([operation, "--format=gnu", "--numeric-owner"]);
    command.arg(format!("--owner={owner}")).arg(format!("--group={owner}"));
    command.arg(format!("--mtime=@{epoch}")).arg("--file").arg(tar);
    command
}

/// What is in a folder, in order.
fn names(folder: &Path) -> anyhow::Result<Vec<std::ffi::OsString>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names =
        entries.map(|entry| Ok(entry?.file_name())).collect::<anyhow::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn set_mode(place: &Path, mode: u32) -> anyhow::Result<()> {
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(place, permissions).with_context(|| place.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::output;

    #[test]
    fn an_archive_depends_on_its_content_alone() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        let write = |name: &str| {
            // The time of the file is that of now.
            fs::write(&source, "text").unwrap();
            let mut archive = Archive::new(&folder.path().join("work")).unwrap();
            archive.file(&source, "usr/bin/program", 0o755).unwrap();
            archive.text("name", "etc/passwd").unwrap();
            archive.empty("var/lib/quell", 0o700, 10_001).unwrap();
            let place = folder.path().join(name);
            archive.write(&place, "1700000000").unwrap();
            place
        };
        let (first, second) = (write("first.tar"), write("second.tar"));
        assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
        let mut list = Command::new("tar");
        list.env("TZ", "UTC")
            .args(["--list", "--verbose", "--numeric-owner", "--file"])
            .arg(&first);
        let listed = String::from_utf8(output(&mut list).unwrap()).unwrap();
        let of = |name: &str| {
            let line = listed.lines().find(|line| line.ends_with(name));
            line.unwrap_or_else(|| panic!("{name}: {listed}")).to_owned()
        };
        assert!(of("usr/bin/program").starts_with("-rwxr-xr-x 0/0"), "{listed}");
        assert!(of("usr/bin/program").contains("2023-11-14"), "{listed}");
        assert!(of("etc/").starts_with("drwxr-xr-x 0/0"), "{listed}");
        assert!(of("var/lib/quell/").starts_with("drwx------ 10001/10001"), "{listed}");
        let compressed = write("third.tar.gz");
        assert!(fs::read(compressed).unwrap().starts_with(&[0x1f, 0x8b]));
    }
}
