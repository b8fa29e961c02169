//! A private PgBouncer before a PostgreSQL server.

use std::process::{Command, Stdio};

use anyhow::Context;
use tempfile::TempDir;

use crate::Postgres;
use crate::packages::install;
use crate::postgres::{run_as, unprivileged};
use crate::process::{Process, free_port};

/// How connections of clients share those of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Each client has one for as long as it stays.
    Session,
    /// Each transaction has any.
    Transaction,
}

/// A pooler of its own.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    // In this order: the process ends before its folder goes.
    _process: Process,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts a pooler before `server`; installs Debian's where there is none.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what it said.
    pub fn start(server: &Postgres, pooling: Pooling) -> anyhow::Result<Self> {
        PgBouncer::start_at(server.port(), pooling)
    }

    /// As [`PgBouncer::start`], before whatever listens on this port of the loopback address and leads
    /// to a server.
    ///
    /// # Errors
    /// As [`PgBouncer::start`].
    pub fn start_at(server: u16, pooling: Pooling) -> anyhow::Result<Self> {
        if !std::path::Path::new("/usr/sbin/pgbouncer").exists() {
            install(&["pgbouncer"])?;
        }
        let folder = tempfile::Builder::new().prefix("quell-pgb-").tempdir()?;
        let port = free_port()?;
        let mode = match pooling {
            Pooling::Session => "session",
            Pooling::Transaction => "transaction",
        };
        let place = folder.path().display();
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir = {place}\nauth_type = any\n\
             pool_mode = {mode}\ndefault_pool_size = 4\nserver_login_retry = 0.1\nlogfile = {place}/log\n\
             pidfile = {place}/pid\n",
        );
        // `auth_type = any` logs everyone in as one user, whom it takes from the database's line.
        let ini = ini.replace("* = host", "* = user=quell host");
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, ini)?;
        if let Some((user, group)) = unprivileged() {
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group))?;
        }
        let mut command = Command::new("/usr/sbin/pgbouncer");
        run_as(&mut command).arg("--quiet").arg(&file);
        let process = Process::listening(&mut command, "PgBouncer", port, folder.path())?;
        Ok(PgBouncer { port, _process: process, _folder: folder })
    }

    /// The URL of the database `postgres` behind it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://quell@127.0.0.1:{}/postgres", self.port)
    }
}

/// The Python that has psycopg; installs Debian's where it is missing.
///
/// # Errors
/// Where it cannot be installed.
pub fn python_with_psycopg() -> anyhow::Result<Command> {
    let has = || {
        let mut ask = Command::new("/usr/bin/python3");
        ask.args(["-c", "import psycopg"]).stderr(Stdio::null());
        ask.status().is_ok_and(|status| status.success())
    };
    if !has() {
        install(&["python3-psycopg"]).context("psycopg")?;
    }
    Ok(Command::new("/usr/bin/python3"))
}
