//! A worker in a process of its own, so that it can be killed, or stopped and replaced. The process
//! is the peer's program again: it prints a line when its worker is ready and one for each start of a
//! job, and stops its worker when its input ends.

use std::io::Write;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use peer_common::Starts;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::{PostgresPeer, Settings};

const READY: &str = "ready";
const START: &str = "start";

/// A running process. It ends with this program, whatever happens to that.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts one; its handlers never end where they are to hold on to their jobs.
    pub(crate) fn start(url: &str, settings: Settings, holds: bool) -> anyhow::Result<Self> {
        let value = settings.to_possible_value().context("settings without a name")?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["work", "--url", url, "--settings", value.get_name()])
            .args(holds.then_some("--hold"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What it starts itself is killed with it.
            .process_group(0)
            .spawn()
            .context("cannot start a worker's process")?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Process { child, input, output })
    }

    /// Waits until its worker is ready for jobs.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        self.line(READY).await
    }

    /// Waits for the next start of a job; a call that is dropped loses none.
    pub(crate) async fn started(&mut self) -> anyhow::Result<Instant> {
        self.line(START).await?;
        Ok(Instant::now())
    }

    async fn line(&mut self, expected: &str) -> anyhow::Result<()> {
        while let Some(line) = self.output.next_line().await? {
            if line == expected {
                return Ok(());
            }
        }
        bail!("the worker's process has ended")
    }

    /// Stops its worker, and returns when the process has ended.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.input);
        let ended = self.child.wait().await?;
        ensure!(ended.success(), "the worker's process failed: {ended}");
        Ok(())
    }

    /// Kills it and what it started, and returns when it is gone.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        let id = self.child.id().context("the worker's process has ended")?;
        let killed = Command::new("kill").args(["-KILL", "--", &format!("-{id}")]).status().await?;
        ensure!(killed.success(), "cannot kill the worker's process: {killed}");
        self.child.wait().await?;
        Ok(())
    }
}

/// What the process does.
pub(crate) async fn work<P: PostgresPeer>(
    url: &str,
    settings: Settings,
    holds: bool,
) -> anyhow::Result<()> {
    let peer = P::open(url, settings).await?;
    let (starts, mut started) = Starts::channel(holds);
    let worker = peer.work(starts).await?;
    say(READY)?;
    let mut input = tokio::io::stdin();
    let mut end = [0];
    loop {
        tokio::select! {
            start = started.recv() => {
                start.context("the worker ended")?;
                say(START)?;
            }
            _ended = input.read(&mut end) => break,
        }
    }
    if holds {
        // Its jobs do not end, so neither would the worker.
        std::process::exit(0);
    }
    P::stop(worker).await?;
    peer.close().await
}

fn say(what: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{what}")?;
    Ok(output.flush()?)
}
