//! A private Redis server.
//!
//! Its binary is Debian's, or what [`SERVER`] names: Valkey's understands the same. It is ready once
//! its log says so, which is after it has read its data.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::packages::install_without_service;
use crate::process::{Process, await_that, free_port_with_bus};
use crate::releases::Release;

/// Names another server's program, such as `valkey-server`.
pub const SERVER: &str = "QUELL_TEST_REDIS_SERVER";

/// How long a start may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an orderly stop may take before it is a kill.
const STOP: Duration = Duration::from_secs(10);
/// How often a port may turn out to be taken.
const TRIES: usize = 5;

/// What every server begins with; its settings come after and win.
const CONFIGURATION: &str = "bind 127.0.0.1\nsave \"\"\nappendonly no\n";

/// A server of its own.
#[derive(Debug)]
pub struct Redis {
    // In this order: the process ends before its folder goes.
    process: Option<Process>,
    is_paused: bool,
    folder: TempDir,
    program: PathBuf,
    port: u16,
    password: Option<String>,
}

impl Redis {
    /// Starts a server with these settings beside the defaults, which keep nothing on disk. Each is
    /// a line of `redis.conf`, such as `appendonly yes` or `requirepass secret`.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what it said.
    pub fn start(settings: &[&str]) -> anyhow::Result<Self> {
        Redis::start_program(&program(), settings)
    }

    /// Starts a server of this release, likewise.
    ///
    /// # Errors
    /// Where it cannot be had or started, with what was said.
    pub fn start_release(release: Release, settings: &[&str]) -> anyhow::Result<Self> {
        Redis::start_program(&release.program()?, settings)
    }

    fn start_program(program: &Path, settings: &[&str]) -> anyhow::Result<Self> {
        let is_there = || answers(program) && answers("redis-cli".as_ref());
        if !is_there() {
            install_without_service("redis-server", is_there)?;
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let mut server = Redis::prepare(program, settings)?;
            match server.resume() {
                Ok(()) => return Ok(server),
                // Another process took the port first.
                Err(error) if tries < TRIES && error.to_string().contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn prepare(program: &Path, settings: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("quell-redis-").tempdir()?;
        let port = free_port_with_bus()?;
        let place = folder.path().display();
        let lines = settings.join("\n");
        let text = format!("{CONFIGURATION}port {port}\ndir {place}\n{lines}\n");
        std::fs::write(folder.path().join("redis.conf"), text)?;
        let mut passwords = settings.iter().filter_map(|line| line.strip_prefix("requirepass "));
        let password = passwords.next_back().map(str::to_owned);
        let program = program.to_owned();
        Ok(Redis { process: None, is_paused: false, folder, program, port, password })
    }

    /// `redis://127.0.0.1:PORT/`, with the password of `requirepass` where that is set.
    #[must_use]
    pub fn url(&self) -> String {
        let secret = self.password.as_ref().map(|password| format!(":{password}@"));
        format!("redis://{}{}/", secret.unwrap_or_default(), self.address())
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it keeps its data, its log and its `redis.conf`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it runs and is not paused.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.is_some() && !self.is_paused
    }

    /// Starts it again after [`Redis::kill`] or [`Redis::stop`], on the same port and with what it
    /// had kept on disk, and waits until it has read that.
    ///
    /// # Errors
    /// Where it does not come up, with its log.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(self.log())?;
        let began = log.metadata()?.len();
        let mut command = Command::new(&self.program);
        command.arg(self.folder.path().join("redis.conf")).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut process = Process::start(&mut command)?;
        let is_ready = || self.logged_since(began).contains("Ready to accept connections");
        let ended = await_that(PATIENCE, || process.has_ended() || is_ready());
        if !ended || process.has_ended() {
            bail!("Redis does not come up: {}", self.logged_since(began));
        }
        self.process = Some(process);
        self.is_paused = false;
        Ok(())
    }

    /// Kills it, as a power cut would; what it had written may still reach the disk.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.take().context("the server does not run")?.kill()
    }

    /// Stops it in order: what it keeps on disk is complete.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.go_on()?;
        let process = self.process.take().context("the server does not run")?;
        process.stop([Signal::TERM, Signal::KILL], STOP)
    }

    /// Lets it stand still: connections stay open, and nothing answers.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        self.process.as_ref().context("the server does not run")?.signal(Signal::STOP)?;
        self.is_paused = true;
        Ok(())
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn go_on(&mut self) -> anyhow::Result<()> {
        self.process.as_ref().context("the server does not run")?.signal(Signal::CONT)?;
        self.is_paused = false;
        Ok(())
    }

    /// Follows this master, and waits until it does.
    ///
    /// # Errors
    /// Where that does not come about in a minute.
    pub fn follow(&self, master: &Redis) -> anyhow::Result<()> {
        self.command(&["REPLICAOF", "127.0.0.1", &master.port.to_string()])?;
        let follows = || {
            let about = self.command(&["INFO", "replication"]).unwrap_or_default();
            about.contains("master_link_status:up")
        };
        anyhow::ensure!(await_that(PATIENCE, follows), "{} does not follow", self.address());
        Ok(())
    }

    /// Makes a replica of this server the master in its place, once that has everything; this one lives
    /// on as a replica of it, and the connections to it stay.
    ///
    /// # Errors
    /// Where that does not come about in a minute.
    pub fn hand_over(&self, to: &Redis) -> anyhow::Result<()> {
        let is_ready = || {
            let about = self.command(&["INFO", "replication"]).unwrap_or_default();
            about.contains("state=online")
        };
        anyhow::ensure!(await_that(PATIENCE, is_ready), "{} is not followed", self.address());
        self.command(&["FAILOVER", "TO", "127.0.0.1", &to.port.to_string()])?;
        let is_over = || {
            let about =
                |server: &Redis| server.command(&["INFO", "replication"]).unwrap_or_default();
            about(to).contains("role:master") && about(self).contains("master_link_status:up")
        };
        anyhow::ensure!(await_that(PATIENCE, is_over), "{} does not take over", to.address());
        Ok(())
    }

    /// What the server answers to a command, as `redis-cli` prints it for programs: an array takes a
    /// line for each element.
    ///
    /// # Errors
    /// Where it does not run or answers with an error, with that.
    pub fn command(&self, words: &[&str]) -> anyhow::Result<String> {
        self.cli(&[], words)
    }

    /// `redis-cli` with these options.
    pub(crate) fn cli(&self, options: &[&str], words: &[&str]) -> anyhow::Result<String> {
        // A server that stands still would never answer.
        anyhow::ensure!(self.is_running(), "the server at port {} does not run", self.port);
        let mut command = Command::new("redis-cli");
        command.args(["-e", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(password) = &self.password {
            command.env("REDISCLI_AUTH", password);
        }
        let output = command.args(options).args(words).stdin(Stdio::null()).output()?;
        let answer = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        if !output.status.success() {
            let reported = String::from_utf8_lossy(&output.stderr);
            bail!("{}: {answer}{}", words.join(" "), reported.trim_end());
        }
        Ok(answer)
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// What it has logged so far.
    #[must_use]
    pub fn read_log(&self) -> String {
        self.logged_since(0)
    }

    fn logged_since(&self, began: u64) -> String {
        let read = || {
            let mut file = std::fs::File::open(self.log())?;
            file.seek(SeekFrom::Start(began))?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            std::io::Result::Ok(text)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }
}

pub(crate) fn program() -> PathBuf {
    std::env::var_os(SERVER).unwrap_or_else(|| "redis-server".into()).into()
}

pub(crate) fn answers(program: &Path) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
