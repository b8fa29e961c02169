//! Running a command: an argument list, never a shell.
//!
//! The payload comes on standard input, the rest in `QUELL_*` variables; nothing else of this
//! process's environment is passed on unless named. The command leads a process group of its own,
//! which dies with the attempt, grandchildren included.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::FusedFuture;
use quell::{Payload, TaskError};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::guard::{CANNOT_RUN, Held, Start, cannot_run};
use super::output::{MOST, Printed, output, too_large};
use super::{Invocation, MAX_OUTPUT, tail};

/// Variables of this process that every command may see.
const PASSED: [&str; 3] = ["PATH", "HOME", "LANG"];
/// How long a command may take to end after SIGTERM.
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// How long the outputs of a command that has ended are still read.
const AFTERMATH: Duration = Duration::from_secs(1);

/// A command to run.
#[derive(Clone, Debug)]
pub struct Exec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The folder it runs in; this process's by default.
    pub cwd: Option<PathBuf>,
    /// Variables to set.
    pub env: BTreeMap<String, String>,
    /// Variables of this process to pass on.
    pub pass_env: Vec<String>,
    /// Exit codes that no retry can help.
    pub permanent_exit_codes: Vec<i32>,
    /// Exit codes that ask for another run after a while, which spends no attempt.
    pub snooze_exit_codes: BTreeMap<i32, Duration>,
    /// Exit codes that end the job as cancelled.
    pub cancel_exit_codes: Vec<i32>,
    /// How long it may take before it gets SIGTERM.
    pub timeout: Duration,
}

impl Exec {
    /// Runs the command once. What it printed on standard output is its output, where that is JSON of
    /// at most 256 KiB.
    ///
    /// # Errors
    /// A transient failure with the ends of both outputs, or a permanent one for the exit codes
    /// that say so.
    pub async fn run(&self, call: &Invocation) -> Result<Option<Payload>, TaskError> {
        let payload = call.payload.as_str().as_bytes().to_vec();
        let command = self.command(call)?;
        let printed = self.run_command(command, payload, &call.cancelled, &call.stopping).await?;
        Ok(output(call, printed))
    }

    /// Runs a command with this input, until it ends or one of these fires; what it printed.
    pub(super) async fn run_command(
        &self,
        mut command: Command,
        payload: Vec<u8>,
        cancelled: &CancellationToken,
        stopping: &CancellationToken,
    ) -> Result<Printed, TaskError> {
        let start = Start::of_this_process();
        let mut child = command.spawn().map_err(|error| self.cannot_start(&error))?;
        let group = Group::of(&child, &start).map_err(|error| self.cannot_start(&error))?;
        let (stdout, stderr) = (Tail::of(MOST), Tail::of(4 * MAX_OUTPUT));
        let io = {
            let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
            let feed = async move {
                if let Some(mut input) = input {
                    // A command need not read its input.
                    let _started = input.write_all(start.prefix()).await;
                    let _unread = input.write_all(&payload).await;
                }
            };
            async { tokio::join!(feed, stdout.keep(out), stderr.keep(err)) }
        };
        let mut io = std::pin::pin!(io.fuse());
        let mut ended = std::pin::pin!(async {
            let status = with(&mut io, child.wait()).await;
            // What the command left running may hold its outputs open for ever.
            if !io.is_terminated() {
                let _read = tokio::time::timeout(AFTERMATH, &mut io).await;
            }
            status
        });
        let stopped = tokio::select! {
            status = &mut ended => {
                let status = status.map_err(|error| self.cannot_start(&error))?;
                return self.judge(status, &stdout, &stderr).map(|()| stdout.whole());
            }
            () = tokio::time::sleep(self.timeout) => Stopped::TimedOut,
            () = cancelled.cancelled() => Stopped::Lost,
            () = stopping.cancelled() => Stopped::Shutdown,
        };
        group.signal(Signal::TERM);
        if tokio::time::timeout(GRACE, &mut ended).await.is_err() {
            group.signal(Signal::KILL);
        }
        match stopped {
            Stopped::TimedOut => {
                let error =
                    format!("the command took longer than its timeout of {:?}", self.timeout);
                Err(TaskError::timed_out(with_outputs(error, &stdout, &stderr)))
            }
            // The worker releases the job, which costs no attempt, and drops this future (R29).
            Stopped::Shutdown => std::future::pending().await,
            // The lease is lost: the result counts no more (R21).
            Stopped::Lost => Err(TaskError::retry("the command was stopped: its lease was lost")),
        }
    }

    fn command(&self, call: &Invocation) -> Result<Command, TaskError> {
        let mut command = self.bare_command()?;
        command.env("QUELL_TASK", call.task.as_str());
        command.env("QUELL_QUEUE", call.queue.as_str());
        command.env("QUELL_JOB", call.job.to_string());
        command.env("QUELL_KEY", call.key.as_ref().map_or("", |key| key.as_str()));
        command.env("QUELL_ATTEMPT", call.attempt.to_string());
        command.env("QUELL_STARTS", call.starts.to_string());
        command.env("QUELL_FENCING_TOKEN", call.fencing_token.to_string());
        command.env("QUELL_TRIGGERS", call.triggers.to_string());
        command.env("QUELL_FIRST_AT", call.first_at.to_string());
        command.env("QUELL_DUE_AT", call.due_at.to_string());
        command.env("QUELL_TRACES", call.trace_parents().join(" "));
        if let Some(context) = call.trace() {
            command.env("TRACEPARENT", context.traceparent());
            // One that the configuration passes on belongs to another trace.
            match context.tracestate() {
                Some(state) => command.env("TRACESTATE", state),
                None => command.env_remove("TRACESTATE"),
            };
        }
        Ok(command)
    }

    /// The command with no variables but those that the configuration names.
    pub(super) fn bare_command(&self) -> Result<Command, TaskError> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(TaskError::permanent("the task's command is empty"));
        };
        let mut command = Start::of_this_process().command(program, arguments);
        command
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        let passed = PASSED.iter().copied().chain(self.pass_env.iter().map(String::as_str));
        for name in passed {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(&self.env);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        Ok(command)
    }

    fn cannot_start(&self, error: &std::io::Error) -> TaskError {
        let program = self.command.first().map_or("", String::as_str);
        if let Some(cwd) = self.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
            let cwd = cwd.display();
            return TaskError::retry(format!(
                "the folder {cwd} of command {program:?} is not there"
            ));
        }
        TaskError::retry(self.cannot_run(&cannot_run(program, error)))
    }

    /// Why the command was not run, where its start says so.
    fn not_run(&self, stderr: &str) -> Option<String> {
        let program = self.command.first()?;
        let begins = stderr.starts_with(&cannot_run(program, &""));
        begins.then(|| self.cannot_run(stderr.lines().next().unwrap_or_default()))
    }

    fn judge(&self, status: ExitStatus, stdout: &Tail, stderr: &Tail) -> Result<(), TaskError> {
        if status.success() {
            return Ok(());
        }
        if status.code() == Some(CANNOT_RUN.into())
            && let Some(reason) = self.not_run(&stderr.text())
        {
            return Err(TaskError::retry(reason));
        }
        let error = with_outputs(format!("the command ended with {status}"), stdout, stderr);
        let Some(code) = status.code() else { return Err(TaskError::retry(error)) };
        Err(match self.snooze_exit_codes.get(&code) {
            Some(delay) => TaskError::snooze(*delay),
            None if self.cancel_exit_codes.contains(&code) => TaskError::cancel(error),
            None if self.permanent_exit_codes.contains(&code) => TaskError::permanent(error),
            None => TaskError::retry(error),
        })
    }
}

/// Why a command was stopped.
enum Stopped {
    TimedOut,
    Shutdown,
    Lost,
}

fn with_outputs(mut error: String, stdout: &Tail, stderr: &Tail) -> String {
    for (name, output) in [("stderr", stderr), ("stdout", stdout)] {
        let text = output.text();
        if !text.is_empty() {
            error.push_str(&format!("\n{name}: {text}"));
        }
    }
    error
}

/// Awaits `main` while `side` goes on; `side` may end first.
async fn with<T>(side: impl Unpin + FusedFuture, main: impl Future<Output = T>) -> T {
    let mut main = std::pin::pin!(main);
    let mut side = side;
    loop {
        tokio::select! {
            done = &mut main => return done,
            _ = &mut side, if !side.is_terminated() => {}
        }
    }
}

/// A command's process group; dropping it kills what is left of the group.
struct Group {
    id: Option<Pid>,
    /// Let go after the group was killed.
    _held: Held,
}

impl Group {
    fn of(child: &Child, start: &Start) -> std::io::Result<Self> {
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Group { id, _held: start.hold(id)? })
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.id {
            // It may have ended by itself.
            let _ended = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// The last bytes of an output; what was read so far is there even when the reading is given up.
struct Tail {
    /// How many bytes are kept before the first of them are let go.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    fn of(most: usize) -> Self {
        Tail { most, kept: Mutex::default() }
    }

    /// Reads to the end.
    async fn keep(&self, output: Option<impl AsyncRead + Unpin>) {
        let Some(mut output) = output else { return };
        let mut chunk = [0_u8; 4096];
        while let Ok(read @ 1..) = output.read(&mut chunk).await {
            let mut kept = self.kept();
            kept.bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
            if kept.bytes.len() > self.most {
                let surplus = kept.bytes.len().saturating_sub(2 * MAX_OUTPUT);
                kept.bytes.drain(..surplus);
                kept.cut = true;
            }
        }
    }

    fn text(&self) -> String {
        tail(&self.kept().bytes)
    }

    fn whole(&self) -> Printed {
        let mut kept = self.kept();
        if kept.cut { Err(too_large()) } else { Ok(std::mem::take(&mut kept.bytes)) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
