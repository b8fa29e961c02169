//! Private Redis Sentinels that watch a master and its replicas.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::Redis;
use crate::process::{Process, await_that, free_port_with_bus};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// As many as agree on a failover where one of them is away.
const COUNT: usize = 3;

/// A master with replicas, and three Sentinels that agree on who it is.
#[derive(Debug)]
pub struct RedisSentinels {
    // In this order: processes end before their folders go.
    sentinels: Vec<(Process, u16, TempDir)>,
    servers: Vec<Redis>,
}

impl RedisSentinels {
    /// The name by which the Sentinels know the master.
    pub const MASTER: &str = "main";

    /// Starts a master, `replicas` of it, and the Sentinels. It is whole once this returns: each
    /// Sentinel knows the replicas and the other Sentinels.
    ///
    /// # Errors
    /// Where it cannot be installed or started, with what was said.
    pub fn start(replicas: usize) -> anyhow::Result<Self> {
        let server = || Redis::start(&["repl-diskless-sync-delay 0"]);
        let first = server()?;
        let master = first.port().to_string();
        let mut servers = vec![first];
        for _ in 0..replicas {
            let replica = server()?;
            replica.command(&["REPLICAOF", "127.0.0.1", &master])?;
            servers.push(replica);
        }
        for replica in servers.iter().skip(1) {
            let follows = || {
                let about = replica.command(&["INFO", "replication"]).unwrap_or_default();
                about.contains("master_link_status:up")
            };
            ensure!(await_that(PATIENCE, follows), "a replica does not follow");
        }
        let sentinels = (0..COUNT).map(|_| sentinel(&master)).collect::<anyhow::Result<_>>()?;
        let whole = RedisSentinels { sentinels, servers };
        let peers = format!("num-other-sentinels\n{}", COUNT - 1);
        let slaves = format!("num-slaves\n{replicas}");
        for (_, port, _) in &whole.sentinels {
            let mut reported = String::new();
            let knows = || {
                reported = ask(*port, &["SENTINEL", "MASTER", Self::MASTER]).unwrap_or_default();
                let has = |pair: &str| reported.contains(&format!("{pair}\n"));
                has(&peers) && has(&slaves) && has("flags\nmaster")
            };
            ensure!(await_that(PATIENCE, knows), "the Sentinel at {port} does not know all");
        }
        Ok(whole)
    }

    /// `host:port` of each Sentinel, with commas.
    #[must_use]
    pub fn addresses(&self) -> String {
        let all = self.sentinels.iter().map(|(_, port, _)| format!("127.0.0.1:{port}"));
        all.collect::<Vec<_>>().join(",")
    }

    /// The number of the server that the first Sentinel says is the master.
    ///
    /// # Errors
    /// Where it does not say, or names another.
    pub fn master(&self) -> anyhow::Result<usize> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::MASTER];
        let reported = ask(self.first()?, &words)?;
        let port: u16 = reported.lines().nth(1).unwrap_or_default().trim().parse()?;
        let found = self.servers.iter().position(|server| server.port() == port);
        found.with_context(|| format!("no server is at port {port}"))
    }

    /// A server.
    ///
    /// # Errors
    /// Fails where there is none of this number.
    pub fn server(&self, number: usize) -> anyhow::Result<&Redis> {
        self.servers.get(number).with_context(|| format!("server {number}: there is none"))
    }

    /// A server, to hurt it.
    ///
    /// # Errors
    /// Fails where there is none of this number.
    pub fn server_mut(&mut self, number: usize) -> anyhow::Result<&mut Redis> {
        self.servers.get_mut(number).with_context(|| format!("server {number}: there is none"))
    }

    fn first(&self) -> anyhow::Result<u16> {
        self.sentinels.first().map(|(_, port, _)| *port).context("there is no Sentinel")
    }

    /// Has the Sentinels make another server the master, while the old one lives.
    ///
    /// # Errors
    /// Where they refuse.
    pub fn fail_over(&self) -> anyhow::Result<()> {
        ask(self.first()?, &["SENTINEL", "FAILOVER", Self::MASTER]).map(drop)
    }

    /// Waits until another server than this is the master, and says which.
    ///
    /// # Errors
    /// Where that does not come about in a minute.
    pub fn await_other_than(&self, master: usize) -> anyhow::Result<usize> {
        let is_other = || self.master().is_ok_and(|now| now != master);
        ensure!(await_that(PATIENCE, is_other), "no other server becomes the master");
        self.master()
    }
}

fn sentinel(master: &str) -> anyhow::Result<(Process, u16, TempDir)> {
    let folder = tempfile::Builder::new().prefix("quell-sentinel-").tempdir()?;
    let port = free_port_with_bus()?;
    let (name, place) = (RedisSentinels::MASTER, folder.path().display());
    let text = format!(
        "bind 127.0.0.1\nport {port}\ndir {place}\nsentinel monitor {name} 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds {name} 1000\nsentinel failover-timeout {name} 3000\n"
    );
    let file = folder.path().join("sentinel.conf");
    std::fs::write(&file, text)?;
    let process = run(&file, folder.path())?;
    let answers = || ask(port, &["PING"]).is_ok_and(|reported| reported == "PONG");
    ensure!(await_that(PATIENCE, answers), "a Sentinel does not come up");
    Ok((process, port, folder))
}

fn run(file: &Path, folder: &Path) -> anyhow::Result<Process> {
    let log = std::fs::File::create(folder.join("log"))?;
    let mut command = Command::new(crate::redis::program());
    command.arg(file).arg("--sentinel").current_dir(folder);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Process::start(&mut command)
}

/// What a Sentinel answers, as `redis-cli` prints it for programs.
fn ask(port: u16, words: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("redis-cli");
    command.args(["-e", "-h", "127.0.0.1", "-p", &port.to_string()]).args(words);
    let output = command.stdin(Stdio::null()).output()?;
    let answer = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    ensure!(output.status.success(), "{}: {answer}", words.join(" "));
    Ok(answer)
}
