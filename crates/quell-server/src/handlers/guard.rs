//! Makes commands die with their server, also when that is killed.
//!
//! The binary starts itself twice, with a first argument that no user gives. `__guard` is one process beside the
//! server: it learns the process groups of running commands on its standard input, and kills those that are left
//! when that ends, as it does with the server. `__run` is what each command starts as: it waits for one byte on its
//! standard input, which comes once the guard knows the group, and becomes the command then. So a command runs only
//! while a guard would end it. One that was killed itself is replaced at the next start or end of a command.
//!
//! Only the binary can do this, on Linux with `/proc`; elsewhere commands start as they are.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::SignalKind;
use tracing::warn;

const GUARD: &str = "__guard";
const RUN: &str = "__run";
/// This program, even where its file was replaced since.
const THIS: &str = "/proc/self/exe";
/// What starts a command.
const GO: u8 = b'\n';
/// The exit status of a command that cannot be run, as shells have it.
pub(super) const CANNOT_RUN: u8 = 127;

/// Whether this process is the binary, which can start itself.
static IS_BINARY: AtomicBool = AtomicBool::new(false);
static GUARDED: Mutex<Guarded> = Mutex::new(Guarded { process: None, groups: BTreeSet::new() });

/// The first thing that the binary does: it acts as the guard or as a command where it was started as one.
#[must_use]
pub fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == GUARD {
        return Some(guard());
    }
    if first == RUN {
        return Some(run(arguments));
    }
    IS_BINARY.store(std::path::Path::new(THIS).exists(), Ordering::Relaxed);
    None
}

/// Keeps the groups that it reads, and kills the rest at the end.
fn guard() -> ExitCode {
    let _deaf = deaf_to_signals();
    let (mut groups, mut line) = (BTreeSet::new(), String::new());
    let mut input = std::io::stdin().lock();
    while input.read_line(&mut line).is_ok_and(|read| read > 0) {
        // A line without an end is a part of one: its number would be another group's.
        let whole = line.strip_suffix('\n').and_then(|line| line.split_at_checked(1));
        match whole.and_then(|(sign, group)| Some((sign, group.parse().ok()?))) {
            Some(("+", group @ 2..)) => drop(groups.insert(group)),
            Some(("-", group)) => drop(groups.remove(&group)),
            _ => {}
        }
        line.clear();
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // It may have ended by itself.
        let _ended = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}

/// Makes the process ignore what a service manager sends to all processes of a service that it stops: the server
/// ends its commands in order first. For as long as the returned value lives.
fn deaf_to_signals() -> Option<(tokio::runtime::Runtime, Vec<tokio::signal::unix::Signal>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let heard = {
        let _within = runtime.enter();
        kinds.into_iter().filter_map(|kind| tokio::signal::unix::signal(kind).ok()).collect()
    };
    Some((runtime, heard))
}

/// Waits for its start and becomes the command. The byte is read alone: what follows is the command's.
fn run(mut command: impl Iterator<Item = OsString>) -> ExitCode {
    let mut go = [0];
    let started = rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut go));
    if started != Ok(1) {
        return ExitCode::FAILURE;
    }
    let Some(program) = command.next() else { return ExitCode::FAILURE };
    let error = Command::new(&program).args(command).exec();
    let program = program.to_string_lossy();
    let _closed = writeln!(std::io::stderr(), "{}", cannot_run(&program, &error));
    ExitCode::from(CANNOT_RUN)
}

/// What is said of a command that cannot be run.
pub(super) fn cannot_run(program: &str, error: &dyn std::fmt::Display) -> String {
    format!("command {program:?} cannot be run: {error}")
}

/// How a program is started: by itself, or behind a start that waits.
pub(super) enum Start {
    Plain,
    Waiting,
}

impl Start {
    pub(super) fn of_this_process() -> Start {
        if IS_BINARY.load(Ordering::Relaxed) { Start::Waiting } else { Start::Plain }
    }

    /// The program and arguments to start for these.
    pub(super) fn command(&self, program: &str, arguments: &[String]) -> tokio::process::Command {
        let mut command = match self {
            Start::Plain => tokio::process::Command::new(program),
            Start::Waiting => {
                let mut command = tokio::process::Command::new(THIS);
                command.arg(RUN).arg(program);
                command
            }
        };
        command.args(arguments);
        command
    }

    /// What comes before the input of a command.
    pub(super) fn prefix(&self) -> &'static [u8] {
        match self {
            Start::Plain => &[],
            Start::Waiting => &[GO],
        }
    }

    /// Makes the guard keep a command's group for as long as the returned value lives.
    pub(super) fn hold(&self, group: Option<Pid>) -> std::io::Result<Held> {
        let group = match self {
            Start::Plain => None,
            Start::Waiting => group.map(|group| group.as_raw_nonzero().get()),
        };
        if let Some(group) = group {
            guarded().add(group)?;
        }
        Ok(Held(group))
    }
}

/// A group that the guard knows.
pub(super) struct Held(Option<i32>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            guarded().remove(group);
        }
    }
}

fn guarded() -> MutexGuard<'static, Guarded> {
    GUARDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guard process and what it knows.
struct Guarded {
    process: Option<Process>,
    groups: BTreeSet<i32>,
}

struct Process {
    child: Child,
    input: ChildStdin,
}

impl Guarded {
    fn add(&mut self, group: i32) -> std::io::Result<()> {
        self.groups.insert(group);
        if self.send(&format!("+{group}\n")).is_ok() {
            return Ok(());
        }
        // There is none yet, or it was killed or stopped.
        let started = self.start();
        if started.is_err() {
            self.groups.remove(&group);
        }
        started
    }

    fn remove(&mut self, group: i32) {
        if self.groups.remove(&group) && self.send(&format!("-{group}\n")).is_err() {
            // It is gone, and kills nothing any more.
            if let Err(error) = self.start() {
                warn!(%error, "cannot start the guard of commands: they would outlive a killed server");
            }
        }
    }

    fn send(&mut self, line: &str) -> std::io::Result<()> {
        let Some(process) = &mut self.process else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        // The pipe does not block: a guard that reads nothing must not stop the server.
        process.input.write_all(line.as_bytes())
    }

    /// Starts a guard that knows all groups.
    fn start(&mut self) -> std::io::Result<()> {
        if self.process.is_some() {
            warn!("the guard of commands was gone, another one is started");
            self.end();
        }
        let mut command = Command::new(THIS);
        command.arg(GUARD).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Signals to the server's group are not for it.
        let mut child = command.env_clear().process_group(0).spawn()?;
        let Some(input) = child.stdin.take() else {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        };
        rustix::io::ioctl_fionbio(&input, true)?;
        self.process = Some(Process { child, input });
        let known: String = self.groups.iter().map(|group| format!("+{group}\n")).collect();
        let sent = self.send(&known);
        if sent.is_err() {
            self.end();
        }
        sent
    }

    /// Ends the guard without an effect on any group.
    fn end(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _gone = process.child.kill();
            let _gone = process.child.wait();
        }
    }
}
