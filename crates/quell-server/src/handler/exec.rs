//! Running a command: an argument list, never a shell.
//!
//! The payload comes on standard input, the rest in `QUELL_*` variables; nothing else of this
//! process's environment is passed on unless named. The command leads a process group of its own,
//! which dies with the attempt, grandchildren included.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use quell::TaskError;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::{Invocation, MAX_OUTPUT, tail};

/// Variables of this process that every command may see.
const PASSED: [&str; 3] = ["PATH", "HOME", "LANG"];
/// How long a command that is told to stop may take to do so.
const GRACE: Duration = Duration::from_secs(2);

/// A command to run.
#[derive(Clone, Debug, Default)]
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
}

impl Exec {
    /// Runs the command once.
    ///
    /// # Errors
    /// A transient failure with the ends of both outputs, or a permanent one for the exit codes
    /// that say so.
    pub async fn run(&self, call: &Invocation) -> Result<(), TaskError> {
        let mut child = self.command(call)?.spawn().map_err(|error| self.cannot_start(&error))?;
        let group = Group::of(&child);
        let (input, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let payload = call.payload.as_str().as_bytes().to_vec();
        let feed = async move {
            if let Some(mut input) = input {
                // A command need not read its input.
                let _unread = input.write_all(&payload).await;
            }
        };
        let ended = async {
            let (_, stdout, stderr, status) =
                tokio::join!(feed, keep_tail(stdout), keep_tail(stderr), child.wait());
            (stdout, stderr, status)
        };
        let mut ended = std::pin::pin!(ended);
        let (stdout, stderr, status) = tokio::select! {
            ended = &mut ended => ended,
            () = call.cancelled.cancelled() => {
                group.signal(Signal::TERM);
                match tokio::time::timeout(GRACE, &mut ended).await {
                    Ok(ended) => ended,
                    Err(_) => {
                        group.signal(Signal::KILL);
                        return Err(TaskError::retry("the command was stopped and had to be killed"));
                    }
                }
            }
        };
        let status = status.map_err(|error| self.cannot_start(&error))?;
        self.judge(status, &stdout, &stderr)
    }

    fn command(&self, call: &Invocation) -> Result<Command, TaskError> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(TaskError::permanent("the task's command is empty"));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
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
        command.env("QUELL_TASK", call.task.as_str());
        command.env("QUELL_QUEUE", call.queue.as_str());
        command.env("QUELL_JOB", call.job.to_string());
        command.env("QUELL_KEY", call.key.as_ref().map_or("", |key| key.as_str()));
        command.env("QUELL_ATTEMPT", call.attempt.to_string());
        command.env("QUELL_TRIGGERS", call.triggers.to_string());
        command.env("QUELL_FIRST_AT", call.first_at.to_string());
        command.env("QUELL_DUE_AT", call.due_at.to_string());
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        Ok(command)
    }

    fn cannot_start(&self, error: &std::io::Error) -> TaskError {
        let program = self.command.first().map_or("", String::as_str);
        TaskError::retry(format!("command {program:?} cannot be run: {error}"))
    }

    fn judge(&self, status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Result<(), TaskError> {
        if status.success() {
            return Ok(());
        }
        let mut error = format!("the command ended with {status}");
        for (name, output) in [("stderr", stderr), ("stdout", stdout)] {
            if !output.is_empty() {
                error.push_str(&format!("\n{name}: {}", tail(output)));
            }
        }
        let permanent = status.code().is_some_and(|code| self.permanent_exit_codes.contains(&code));
        Err(if permanent { TaskError::permanent(error) } else { TaskError::retry(error) })
    }
}

/// A command's process group; dropping it kills what is left of the group.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
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

/// Reads to the end and keeps the last bytes.
async fn keep_tail(output: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let (mut kept, mut chunk) = (Vec::new(), [0_u8; 4096]);
    let Some(mut output) = output else { return kept };
    while let Ok(read @ 1..) = output.read(&mut chunk).await {
        kept.extend_from_slice(chunk.get(..read).unwrap_or_default());
        if kept.len() > 4 * MAX_OUTPUT {
            kept.drain(..kept.len().saturating_sub(2 * MAX_OUTPUT));
        }
    }
    kept
}
