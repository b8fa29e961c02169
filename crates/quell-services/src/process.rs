//! A child process that ends with the value that owns it.

use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
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

/// A port of the loopback address that nothing listens on at this moment.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

/// How far above its port a node of a Redis cluster listens for the other nodes.
pub(crate) const BUS: u16 = 10_000;

/// A port that nothing listens on at this moment, nor on the one of its [`BUS`]. Outgoing
/// connections of others take neither, so a server can come back to them.
pub(crate) fn free_port_with_bus() -> anyhow::Result<u16> {
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    for _ in 0..1_000 {
        let port = fastrand::u16(10_000..22_000);
        if is_free(port) && is_free(port + BUS) {
            return Ok(port);
        }
    }
    bail!("no port from 10000 to 22000 is free, with the one {BUS} above it")
}

/// Waits until `is_so`, until the deadline at the longest; says whether it is so.
#[expect(clippy::disallowed_methods, reason = "it looks again after each pause, up to a deadline")]
pub(crate) fn await_that(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
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
