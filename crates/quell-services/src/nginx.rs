//! A private nginx before an HTTP server.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::packages::{install_without_service, is_root};
use crate::process::{Process, free_port};

/// Where Debian's package puts it.
const PROGRAM: &str = "/usr/sbin/nginx";

/// An nginx of its own.
#[derive(Debug)]
pub struct Nginx {
    port: u16,
    // In this order: the process ends before its folder goes.
    _process: Process,
    _folder: TempDir,
}

impl Nginx {
    /// Starts nginx with what `configuration` makes of a free port: the text of a file in its `http` block.
    /// Installs Debian's where there is none.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what it said.
    pub fn start(configuration: impl FnOnce(u16) -> String) -> anyhow::Result<Self> {
        let is_there = || Path::new(PROGRAM).exists();
        if !is_there() {
            install_without_service("nginx", is_there)?;
        }
        let folder = tempfile::Builder::new().prefix("quell-nginx-").tempdir()?;
        let (port, place) = (free_port()?, folder.path().display());
        // It would have no right to the folder otherwise. One process: a kill leaves no worker behind.
        let user = if is_root() { "user root;\n" } else { "" };
        let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temp: String =
            kinds.iter().map(|kind| format!("{kind}_temp_path {place}/{kind};\n")).collect();
        let main = format!(
            "{user}daemon off;\nmaster_process off;\npid {place}/pid;\nerror_log {place}/log warn;\n\
             events {{}}\nhttp {{\naccess_log off;\n{temp}include {place}/site.conf;\n}}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), main)?;
        std::fs::write(folder.path().join("site.conf"), configuration(port))?;
        let mut command = Command::new(PROGRAM);
        command.arg("-c").arg(folder.path().join("nginx.conf")).arg("-e").arg("stderr");
        let process = Process::listening(&mut command, "nginx", port, folder.path())?;
        Ok(Nginx { port, _process: process, _folder: folder })
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}
