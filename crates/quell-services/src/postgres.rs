//! A private PostgreSQL server.
//!
//! Its binaries are Debian's, or those of a newer release. It refuses to run as root, so root starts
//! it as the user `postgres`.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::packages::{install, run_as_root};
use crate::process::{Process, await_that, free_port};
use crate::releases::postgres_18;

/// How long a start or stop may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an orderly stop may take before it is an immediate one.
const STOP: Duration = Duration::from_secs(10);
/// Who owns the databases.
const USER: &str = "quell";

/// A server of its own.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    binaries: PathBuf,
    port: u16,
    settings: Vec<String>,
    process: Option<Process>,
}

impl Postgres {
    /// Starts a server with these settings (`name=value`) beside the defaults.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what it said.
    pub fn start(settings: &[&str]) -> anyhow::Result<Self> {
        Postgres::start_from(binaries()?, settings)
    }

    /// As [`Postgres::start`], of PostgreSQL 18.
    ///
    /// # Errors
    /// Where it cannot be fetched or started, with what it said.
    pub fn start_18(settings: &[&str]) -> anyhow::Result<Self> {
        // Debian's package makes the user that the server runs as.
        binaries()?;
        Postgres::start_from(postgres_18()?, settings)
    }

    fn start_from(binaries: PathBuf, settings: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("quell-pg-").tempdir()?;
        own(folder.path())?;
        let mut server = Postgres {
            folder,
            binaries,
            port: free_port()?,
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            process: None,
        };
        let data = server.data();
        let made = server
            .command("initdb")
            .args(["--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-U", USER])
            .arg(&data)
            .output()
            .context("cannot run initdb")?;
        if !made.status.success() {
            bail!("initdb failed: {}", String::from_utf8_lossy(&made.stderr));
        }
        server.resume()?;
        Ok(server)
    }

    /// Starts a standby that follows this server, with the same settings.
    ///
    /// # Errors
    /// Where it cannot be copied or started, with what was said.
    pub fn standby(&self) -> anyhow::Result<Self> {
        let mut standby = self.copied(&["--write-recovery-conf"])?;
        standby.resume()?;
        Ok(standby)
    }

    /// A backup of this server, as a server that does not run yet.
    ///
    /// # Errors
    /// Where it cannot be made, with what was said.
    pub fn backup(&self) -> anyhow::Result<Self> {
        self.copied(&[])
    }

    /// Starts a backup as `of` was at a restore point, by the log that `of` has archived. For that,
    /// `of` has [`Postgres::ARCHIVE`] among its settings.
    ///
    /// # Errors
    /// Where it does not come up, with its log.
    pub fn restore(&mut self, of: &Postgres, point: &str) -> anyhow::Result<()> {
        let archive = of.folder.path().join("archive");
        self.settings.push(format!("restore_command=cp {}/%f %p", archive.display()));
        self.settings.push(format!("recovery_target_name={point}"));
        self.settings.push("recovery_target_action=promote".to_owned());
        std::fs::write(self.data().join("recovery.signal"), "")?;
        self.resume()?;
        let is_over = || self.ask("select not pg_is_in_recovery()").is_ok_and(|over| over == "t");
        if !await_that(PATIENCE, is_over) {
            bail!("the restore does not end: {}", self.read_log());
        }
        Ok(())
    }

    /// Settings with which a server archives its log.
    pub const ARCHIVE: [&str; 2] =
        ["archive_mode=on", "archive_command=mkdir -p ../archive && cp %p ../archive/%f"];

    /// Marks this moment for [`Postgres::restore`].
    ///
    /// # Errors
    /// Where the server does not answer.
    pub fn mark(&self, point: &str) -> anyhow::Result<()> {
        self.ask(&format!("select pg_create_restore_point('{point}')")).map(drop)
    }

    /// Archives the log up to now.
    ///
    /// # Errors
    /// Where the server does not answer, or does not archive.
    pub fn archive(&self) -> anyhow::Result<()> {
        let file = self.ask("select pg_walfile_name(pg_switch_wal())")?;
        let asked = format!("select last_archived_wal >= '{file}' from pg_stat_archiver");
        let is_there = || self.ask(&asked).is_ok_and(|there| there == "t");
        if !await_that(PATIENCE, is_there) {
            bail!("{file} is not archived: {}", self.read_log());
        }
        Ok(())
    }

    fn copied(&self, more: &[&str]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("quell-pg-").tempdir()?;
        own(folder.path())?;
        let copy = Postgres {
            folder,
            binaries: self.binaries.clone(),
            port: free_port()?,
            settings: self.settings.clone(),
            process: None,
        };
        let copied = copy
            .command("pg_basebackup")
            .args(more)
            .args(["--checkpoint=fast", "--no-sync", "--dbname"])
            .arg(self.url())
            .arg("--pgdata")
            .arg(copy.data())
            .output()
            .context("cannot run pg_basebackup")?;
        if !copied.status.success() {
            bail!("pg_basebackup failed: {}", String::from_utf8_lossy(&copied.stderr));
        }
        Ok(copy)
    }

    /// Makes a standby the primary.
    ///
    /// # Errors
    /// Where it is none, or does not become one.
    pub fn promote(&self) -> anyhow::Result<()> {
        // The promotion may end the session that asks for it, so the result is read by another one.
        let asked = self.psql().args(["--command", "select pg_promote(true, 60)"]).output()?;
        let is_primary =
            || self.ask("select pg_is_in_recovery()").is_ok_and(|answer| answer == "f");
        if !await_that(PATIENCE, is_primary) {
            bail!("the standby was not promoted: {}", String::from_utf8_lossy(&asked.stderr));
        }
        Ok(())
    }

    /// Makes a standby of this server the primary in its place; this one stops in order, so that
    /// nothing is lost, and comes back as a standby of the new one.
    ///
    /// # Errors
    /// Where one of them does not do its part, with what it said.
    pub fn hand_over(&mut self, to: &Postgres) -> anyhow::Result<()> {
        // In order: it ends once its standby has everything.
        let mut process = self.process.take().context("the server does not run")?;
        process.signal(Signal::INT)?;
        if !await_that(PATIENCE, || process.has_ended()) {
            bail!("PostgreSQL does not stop: {}", self.read_log());
        }
        to.promote()?;
        self.settings.retain(|setting| !setting.starts_with("primary_conninfo="));
        let address = format!("host=127.0.0.1 port={} user={USER}", to.port);
        self.settings.push(format!("primary_conninfo={address}"));
        std::fs::write(self.data().join("standby.signal"), "")?;
        self.resume()?;
        let follows =
            || self.ask("select count(*) from pg_stat_wal_receiver where status = 'streaming'");
        if !await_that(PATIENCE, || follows().is_ok_and(|count| count == "1")) {
            bail!("the old primary does not follow the new one: {}", self.read_log());
        }
        Ok(())
    }

    /// Ends the sessions of this application that do nothing; says how many there were.
    ///
    /// # Errors
    /// Where the server does not answer.
    pub fn end_idle(&self, application: &str) -> anyhow::Result<usize> {
        let end = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
              where application_name = '{application}' and state = 'idle'"
        );
        self.ask(&end)?.parse().context("a count")
    }

    /// Cuts the connections of this application's sessions, in the middle of what they do; says how
    /// many there were.
    ///
    /// # Errors
    /// Where the server does not answer.
    pub fn cut(&self, application: &str) -> anyhow::Result<usize> {
        let cut = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity
              where application_name = '{application}'"
        );
        self.ask(&cut)?.parse().context("a count")
    }

    /// Sets a setting of everyone's new sessions, or takes it back.
    ///
    /// # Errors
    /// Where the server does not answer.
    pub fn set_for_sessions(&self, setting: &str, value: Option<&str>) -> anyhow::Result<()> {
        let value = value.map_or_else(|| "default".to_owned(), |value| format!("'{value}'"));
        self.ask(&format!("alter role {USER} set {setting} = {value}")).map(drop)
    }

    /// Kills the process that serves one of this application's sessions, if there is one: the server
    /// then restarts itself and all others.
    ///
    /// # Errors
    /// Where the server does not answer.
    pub fn kill_session(&self, application: &str) -> anyhow::Result<()> {
        let find = format!(
            "select pid from pg_stat_activity where application_name = '{application}'
              order by random() limit 1"
        );
        if let Some(pid) = self.ask(&find)?.parse::<i32>().ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _gone = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }

    /// The URL of the database `postgres` on it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// The number of its first process, while it runs; all others descend from it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts it again after [`Postgres::kill`] or [`Postgres::stop`], on the same port and data.
    ///
    /// # Errors
    /// Where it does not come up, with its log.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let before = self.read_log().len();
            let mut process = Process::start(&mut self.server()?)?;
            let up = await_that(PATIENCE, || process.has_ended() || self.is_ready());
            if up && !process.has_ended() {
                self.process = Some(process);
                return Ok(());
            }
            let log = self.read_log();
            // What the killed one left behind goes by itself, but not at once. Its sessions write to
            // the same log as they end.
            let lingers = log.get(before..).is_some_and(|new| new.contains("still in use"));
            if !lingers || Instant::now() >= deadline {
                bail!("PostgreSQL does not come up: {log}");
            }
        }
    }

    /// What it has logged so far.
    #[must_use]
    pub fn read_log(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn is_ready(&self) -> bool {
        let mut asked = self.command("pg_isready");
        asked.args(["--quiet", "--host=127.0.0.1", "--port", &self.port.to_string()]);
        asked.status().is_ok_and(|status| status.success())
    }

    /// Asks the server something, once it is there: it may be restarting itself.
    fn ask(&self, question: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            await_that(PATIENCE, || self.is_ready());
            // What a test has set for everyone's sessions is not for this one.
            let mut psql = self.psql();
            psql.env("PGOPTIONS", "-c statement_timeout=0").args(["--command", question]);
            let output = psql.output()?;
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
            }
            if Instant::now() >= deadline {
                bail!("{question}: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }

    fn server(&self) -> anyhow::Result<Command> {
        let log = std::fs::File::options().create(true).append(true).open(self.log())?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        command.arg("-p").arg(self.port.to_string()).args(["-c", "listen_addresses=127.0.0.1"]);
        for setting in &self.settings {
            command.args(["-c", setting]);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Kills the server and all that serve its connections, as a power cut would.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        // The others notice that their parent is gone; a new server waits for the last of them.
        self.process.take().context("the server does not run")?.kill()
    }

    /// Stops the server; connections are cut.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let process = self.process.take().context("the server does not run")?;
        // In the middle of the recovery after a session's death it may wait for ever.
        process.stop([Signal::INT, Signal::QUIT], STOP)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.join(program));
        command.current_dir(self.folder.path()).env("LC_ALL", "C.UTF-8");
        run_as(&mut command);
        command
    }

    /// `psql` on the database `postgres`, without any settings of the user's.
    #[must_use]
    pub fn psql(&self) -> Command {
        psql(&self.url())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // An immediate stop: nothing on it is needed any more.
            let _gone = process.signal(Signal::QUIT);
            await_that(PATIENCE, || process.has_ended());
        }
    }
}

/// `psql` on the database behind a URL, without any settings of the user's; it stops at an error.
#[must_use]
pub fn psql(url: &str) -> Command {
    // The `psql` on the path is Debian's script, which takes ten times as long to start.
    let program = newest().map_or_else(|| PathBuf::from("psql"), |binaries| binaries.join("psql"));
    let mut command = Command::new(program);
    command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"]);
    command.args(["--set", "ON_ERROR_STOP=1", "--dbname", url]);
    command
}

/// Lets a command run as the user that runs the server.
pub(crate) fn run_as(command: &mut Command) -> &mut Command {
    if let Some((user, group)) = unprivileged() {
        command.uid(user).gid(group);
    }
    command
}

/// The newest server's binaries on this machine; installs Debian's where there are none.
fn binaries() -> anyhow::Result<PathBuf> {
    if let Some(found) = newest() {
        return Ok(found);
    }
    // Debian would start a server of its own at once.
    let conf = "mkdir -p /etc/postgresql-common && \
                echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf";
    run_as_root("sh", &["-c", conf])?;
    install(&["postgresql"])?;
    newest().context("PostgreSQL was installed, but is not in /usr/lib/postgresql")
}

fn newest() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let of = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let found = versions.filter_map(|entry| Some(entry.ok()?.path()));
    let found = found.filter(|path| path.join("bin/postgres").exists());
    found.max_by_key(|path| of(path)).map(|path| path.join("bin"))
}

/// Gives a folder to the user that runs the server.
fn own(folder: &Path) -> anyhow::Result<()> {
    if let Some((user, group)) = unprivileged() {
        std::os::unix::fs::chown(folder, Some(user), Some(group))?;
    }
    Ok(())
}

/// The user and group that root runs the server as; none where one is not root.
pub(crate) fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let number = |flag| {
        let output = Command::new("id").args([flag, "postgres"]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    Some((number("-u")?, number("-g")?))
}
