//! What keeps a command from being started: a file that is not there, may not be executed, or names an
//! interpreter that is not there.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Exec;

/// How much of a file is read for its first line: Linux reads as much.
const HEAD: u64 = 256;
/// The right to execute a file: of its owner, its group or others.
const EXECUTE: u32 = 0o111;

impl Exec {
    /// What is wrong with the command, and which setting of it; none where it can be started, as far as
    /// this shows.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        let fault = self.cwd.as_deref().and_then(folder_fault);
        fault.map(|fault| ("cwd", fault)).or_else(|| Some(("command", self.program_fault()?)))
    }

    /// The error of a command that was not started, with what is wrong where the system's error does not
    /// say that.
    pub(super) fn cannot_run(&self, error: &str) -> String {
        match self.fault() {
            Some((_, fault)) if !error.contains(&fault) => format!("{error}: {fault}"),
            _ => error.to_owned(),
        }
    }

    fn program_fault(&self) -> Option<String> {
        let program = self.command.first()?;
        if program.contains('/') {
            return file_fault(Path::new(program));
        }
        // Its own variable counts, as for the command that is started.
        let own = self.env.get("PATH").map(std::ffi::OsString::from);
        let folders = own.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let places: Vec<PathBuf> =
            std::env::split_paths(&folders).map(|folder| folder.join(program)).collect();
        if places.iter().any(|place| file_fault(place).is_none()) {
            return None;
        }
        let there = places.iter().find(|place| place.exists());
        there.map_or_else(
            || Some(format!("{program:?} is in no folder of PATH")),
            |place| file_fault(place),
        )
    }
}

fn folder_fault(folder: &Path) -> Option<String> {
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some(format!("{} is no folder", folder.display())),
        Err(error) => Some(format!("{} cannot be used: {error}", folder.display())),
    }
}

/// What keeps a file from being executed.
fn file_fault(file: &Path) -> Option<String> {
    let shown = file.display();
    match std::fs::metadata(file) {
        Err(error) => return Some(format!("{shown} cannot be used: {error}")),
        Ok(found) if found.is_dir() => return Some(format!("{shown} is a folder")),
        Ok(found) if found.permissions().mode() & EXECUTE == 0 => {
            return Some(format!("{shown} may not be executed: run chmod +x on it"));
        }
        Ok(_) => {}
    }
    let interpreter = interpreter(file)?;
    let error = std::fs::metadata(&interpreter).err()?;
    Some(format!("{shown} names the interpreter {interpreter:?} in its first line: {error}"))
}

/// What the first line of a script names after `#!`. A program that may not be read is none.
fn interpreter(file: &Path) -> Option<String> {
    let mut head = Vec::new();
    std::fs::File::open(file).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    // Only these separate it from its argument: a carriage return is a part of the name.
    let name = line.trim_start_matches([' ', '\t']).split([' ', '\t']).next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    fn exec(program: &str) -> Exec {
        Exec {
            command: vec![program.to_owned()],
            cwd: None,
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            permanent_exit_codes: Vec::new(),
            snooze_exit_codes: BTreeMap::new(),
            cancel_exit_codes: Vec::new(),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_command_that_cannot_be_started_says_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let nowhere = folder.path().join("nosuch").to_str().unwrap().to_owned();
        let table = [
            ("sh".to_owned(), ""),
            (script("fine", "#!/bin/sh -e\n", 0o755), ""),
            (script("binary", "\u{7f}ELF", 0o755), ""),
            ("quell-no-such-program".to_owned(), "is in no folder of PATH"),
            (nowhere, "cannot be used: No such file or directory"),
            (folder.path().to_str().unwrap().to_owned(), "is a folder"),
            (script("plain", "#!/bin/sh\n", 0o644), "may not be executed: run chmod"),
            (script("bad", "#!/no/such/sh\n", 0o755), "\"/no/such/sh\" in its first line: No such"),
            (script("windows", "#!/bin/sh\r\n", 0o755), r#"the interpreter "/bin/sh\r""#),
        ];
        for (program, why) in table {
            let fault = exec(&program).fault();
            let shown = fault.as_ref().map_or("", |(_, text)| text);
            assert_eq!(why.is_empty(), fault.is_none(), "{program}: {shown}");
            assert!(shown.contains(why), "{program}: {shown}");
        }
        let mut elsewhere = exec("sh");
        elsewhere.cwd = Some(folder.path().join("nosuch"));
        assert!(elsewhere.fault().is_some_and(|(field, _)| field == "cwd"));
        elsewhere.cwd = None;
        elsewhere.env.insert("PATH".to_owned(), folder.path().to_str().unwrap().to_owned());
        assert!(elsewhere.fault().is_some(), "its own PATH counts");
    }
}
