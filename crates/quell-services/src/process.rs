//! A child process that ends with the value that owns it.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Between two looks at something that is awaited.
const PAUSE: Duration = Duration::from_millis(10);

/// A child process.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Process(command.spawn().with_context(|| format!("cannot run {program}"))?))
    }

    /// Starts a server that listens on a port of the loopback address, and waits until it does. Its log is in the
    /// folder.
    pub(crate) fn listening(
        command: &mut Command,
        name: &str,
        port: u16,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::start(command)?;
        let is_up = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let up = await_that(Duration::from_secs(30), || process.has_ended() || is_up());
        if !up || process.has_ended() {
            let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            bail!("{name} does not come up: {log}");
        }
        Ok(process)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The pipes to its input and from its output, where it was started with both.
    pub(crate) fn pipes(&mut self) -> anyhow::Result<(ChildStdin, ChildStdout)> {
        let pipes = self.0.stdin.take().zip(self.0.stdout.take());
        pipes.context("a process without pipes")
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("a process without a number")?;
        kill_process(pid, signal).context("cannot signal a process")
    }

    pub(crate) fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.0.wait().context("cannot wait for a process")
    }

    /// Kills it, and waits for its end.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        self.wait()?;
        Ok(())
    }

    /// Asks it to end by one signal and, where it runs on for longer than `limit`, by the other one; waits
    /// for its end.
    pub(crate) fn stop(
        mut self,
        [first, then]: [Signal; 2],
        limit: Duration,
    ) -> anyhow::Result<()> {
        self.signal(first)?;
        if !await_that(limit, || self.has_ended()) {
            self.signal(then)?;
        }
        self.wait()?;
        Ok(())
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _gone = self.signal(Signal::KILL);
            let _gone = self.0.wait();
        }
    }
}

/// Where outgoing connections take no port, so that a server can come back to its own.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A port of the loopback address that nothing listens on at this moment.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    free_port_where(PORTS, is_free)
}

/// How far above its port a node of a Redis cluster listens for the other nodes.
pub(crate) const BUS: u16 = 10_000;

/// As [`free_port`], where nothing listens on its [`BUS`] either.
pub(crate) fn free_port_with_bus() -> anyhow::Result<u16> {
    free_port_where(PORTS.start..PORTS.end - BUS, |port| is_free(port) && is_free(port + BUS))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn free_port_where(
    range: std::ops::Range<u16>,
    is_fit: impl Fn(u16) -> bool,
) -> anyhow::Result<u16> {
    let mut ports = (0..1_000).map(|_| fastrand::u16(range.clone()));
    ports
        .find(|port| is_fit(*port))
        .with_context(|| format!("no port of {range:?} is free, or none {BUS} above it"))
}

/// Waits until `is_so`, until the deadline at the longest; says whether it is so.
#[expect(clippy::disallowed_methods, reason = "it looks again after each pause, up to a deadline")]
pub fn await_that(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}
