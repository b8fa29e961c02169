//! A private Azurite: Microsoft's emulator of Azure's tables, queues and blobs.
//!
//! It keeps everything in memory. Its package is fetched by npm below the temporary folder, where no
//! script of a package runs.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::packages::{alone, install_while_alone};
use crate::process::{Process, await_that};

const VERSION: &str = "3.35.0";
/// Of the package's file, as the registry and npm's lock file have it.
const INTEGRITY: &str = "sha512-GzKmi+/5U0baNRjEEVtBMLpLuIKEJ0uSh0VWBzOI4qe4f5ziJyoZQmcTO7QhxZTF6+\
                         rphj7TZS3PtJY7uiiacA==";
/// Its account, and the key of that, which is public.
pub const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// How long a start may take on a busy machine: it reads some thousand files.
const PATIENCE: Duration = Duration::from_secs(240);

/// A server of its own.
#[derive(Debug)]
pub struct Azurite {
    // In this order: the process ends before its folder goes.
    _process: Process,
    _folder: TempDir,
    tables: u16,
    queues: u16,
}

impl Azurite {
    /// Starts a server, which is installed where it is missing.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what it said.
    pub fn start() -> anyhow::Result<Self> {
        let program = program()?;
        let folder = tempfile::Builder::new().prefix("quell-azurite-").tempdir()?;
        let place = folder.path().join("log");
        let log = std::fs::File::create(&place)?;
        let mut command = Command::new("node");
        command.arg(program).current_dir(folder.path());
        command.args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"]);
        command.arg("--inMemoryPersistence");
        // It takes ports that are free, and says which.
        command.args(["--tablePort", "0", "--queuePort", "0", "--blobPort", "0"]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut process = Process::start(&mut command)?;
        let said = || std::fs::read_to_string(&place).unwrap_or_default();
        let ports = || Some((listens(&said(), "Table")?, listens(&said(), "Queue")?));
        await_that(PATIENCE, || process.has_ended() || ports().is_some());
        let Some((tables, queues)) = ports().filter(|_| !process.has_ended()) else {
            bail!("Azurite does not come up: {}", said());
        };
        Ok(Azurite { _process: process, _folder: folder, tables, queues })
    }

    /// The port of its tables.
    #[must_use]
    pub fn table_port(&self) -> u16 {
        self.tables
    }

    /// Its account and endpoints, as Azure prints them.
    #[must_use]
    pub fn connection_string(&self) -> String {
        format!(
            "AccountName={ACCOUNT};AccountKey={KEY};\
             TableEndpoint=http://127.0.0.1:{}/{ACCOUNT};\
             QueueEndpoint=http://127.0.0.1:{}/{ACCOUNT}",
            self.tables, self.queues
        )
    }
}

/// The port on which a service listens, as its log has it.
fn listens(log: &str, service: &str) -> Option<u16> {
    let begin = format!("Azurite {service} service is successfully listening at http://127.0.0.1:");
    log.split_inclusive('\n')
        .find_map(|line| line.strip_prefix(&begin)?.strip_suffix('\n')?.trim_end().parse().ok())
}

/// Where its program is; it is fetched where it is missing.
fn program() -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("quell-services-azurite=={VERSION}"));
    let program = folder.join("node_modules/azurite/dist/src/azurite.js");
    let complete = folder.join("complete");
    let _alone = alone()?;
    if complete.exists() {
        return Ok(program);
    }
    ensure_npm()?;
    std::fs::create_dir_all(&folder)?;
    let wanted = format!(r#"{{"private":true,"dependencies":{{"azurite":"{VERSION}"}}}}"#);
    std::fs::write(folder.join("package.json"), wanted)?;
    let mut install = Command::new("npm");
    install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]);
    let output = install.current_dir(&folder).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!("npm cannot fetch Azurite: {}", String::from_utf8_lossy(&output.stderr));
    }
    let lock = std::fs::read_to_string(folder.join("package-lock.json")).context("npm's lock")?;
    ensure!(lock.contains(INTEGRITY), "npm fetched another file than that of Azurite {VERSION}");
    std::fs::write(complete, "")?;
    Ok(program)
}

/// Installs Node.js and npm where they are missing, for who is [`alone`] already.
pub(crate) fn ensure_npm() -> anyhow::Result<()> {
    let answers = |program: &str| {
        let version = Command::new(program).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    if !answers("node") || !answers("npm") {
        install_while_alone(&["nodejs", "npm"])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_server_answers_and_ends_with_its_value() {
        let server = Azurite::start().unwrap();
        let port = server.table_port();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let request =
            format!("GET /{ACCOUNT}/Tables HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 40"), "unsigned: {answer}");
        drop(server);
        let is_closed = || TcpStream::connect(("127.0.0.1", port)).is_err();
        assert!(await_that(PATIENCE, is_closed), "port {port} still answers");
    }
}
