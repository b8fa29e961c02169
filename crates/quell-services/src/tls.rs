//! Certificates of an authority that is known to no machine, and a website that shows one.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::packages::install;
use crate::process::{Process, await_that, free_port};

/// Certificates of one authority, in a folder.
#[derive(Debug)]
pub struct Papers(TempDir);

impl Papers {
    /// Makes an authority (`ca.pem`), and a certificate for this machine that it signs (`cert.pem`, with
    /// `key.pem`); installs Debian's OpenSSL where there is none.
    ///
    /// # Errors
    /// Where it cannot be installed, or what it said.
    pub fn new() -> anyhow::Result<Self> {
        if !Path::new("/usr/bin/openssl").exists() {
            install(&["openssl"])?;
        }
        let folder = tempfile::Builder::new().prefix("quell-tls-").tempdir()?;
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let openssl = |words: &[&str]| {
            let output = Command::new("openssl").args(words).current_dir(&folder).output()?;
            if !output.status.success() {
                bail!("openssl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
            }
            Ok(())
        };
        let authority = ["-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"];
        openssl(&[&["req", "-x509", "-days", "9"][..], &key, &authority].concat())?;
        let request = ["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "request.pem"];
        openssl(&[&["req"][..], &key, &request].concat())?;
        let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
        std::fs::write(folder.path().join("names"), names)?;
        let sign = ["x509", "-req", "-in", "request.pem", "-days", "9", "-extfile", "names"];
        let by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "cert.pem"];
        openssl(&[&sign[..], &by].concat())?;
        Ok(Papers(folder))
    }

    /// The path of one of the files.
    ///
    /// # Errors
    /// Where the path is not UTF-8.
    pub fn path(&self, name: &str) -> anyhow::Result<String> {
        let path = self.0.path().join(name);
        Ok(path.to_str().context("the path of a certificate is not UTF-8")?.to_owned())
    }
}

/// A website behind TLS.
#[derive(Debug)]
pub struct Website {
    port: u16,
    // In this order: the process ends before its folder goes.
    _process: Process,
    _folder: TempDir,
}

impl Website {
    /// Starts a website that shows the certificate of `papers` and answers `GET` of `path` with `json`.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(papers: &Papers, path: &str, json: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("quell-web-").tempdir()?;
        let file = folder.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap_or(folder.path()))?;
        let head = "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n";
        std::fs::write(&file, format!("{head}{json}"))?;
        let (port, cert, key) = (free_port()?, papers.path("cert.pem")?, papers.path("key.pem")?);
        let place = format!("127.0.0.1:{port}");
        let words =
            ["s_server", "-quiet", "-HTTP", "-accept", &place, "-cert", &cert, "-key", &key];
        let mut command = Command::new("openssl");
        command.args(words).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::start(&mut command)?;
        let is_up = || std::net::TcpStream::connect(&place).is_ok();
        let up = await_that(Duration::from_secs(30), || process.has_ended() || is_up());
        if !up || process.has_ended() {
            bail!("OpenSSL's server does not come up at {place}");
        }
        Ok(Website { port, _process: process, _folder: folder })
    }

    /// Its URL, by the name that its certificate has.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }
}
