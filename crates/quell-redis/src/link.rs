//! The way to the servers: one node or a Cluster, scripts by their hash, answers as they come.

use std::sync::Arc;
use std::time::Duration;

use quell_core::{Error, ErrorKind, Result};
use redis::{Cmd, ErrorKind as RedisKind, Pipeline, ServerErrorKind, Value};
use tokio::time::Instant;

use crate::cluster::{Cluster, Twice};
use crate::error::{explain, lost};
use crate::hot::Hot;
use crate::row::corrupt;
use crate::wire::{Failed, Sent, Wire};

/// How a call reaches its server.
#[derive(Clone)]
pub(crate) struct Link {
    to: To,
    wait: Option<Wait>,
    timeout: Duration,
}

/// Connections that many calls share.
#[derive(Clone)]
enum To {
    One(Wire),
    Cluster(Cluster),
}

/// For how many replicas each write waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) replicas: u32,
    pub(crate) longest: Duration,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let to = match self.to {
            To::One(_) => "one node",
            To::Cluster(_) => "a Cluster",
        };
        f.debug_struct("Link").field("to", &to).field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// A script and the hash that servers know it by.
#[derive(Debug)]
pub(crate) struct Script {
    code: String,
    hash: String,
    writes: bool,
}

impl Script {
    /// A script that writes nothing, or the same when it runs twice.
    pub(crate) fn reading(code: &str) -> Self {
        let hash = sha1_smol::Sha1::from(code).digest().to_string();
        Script { code: code.to_owned(), hash, writes: false }
    }

    /// A script that may write: it sets `wrote` when it does, and says so beside its answer.
    pub(crate) fn writing(code: &str) -> Self {
        let (before, after) = (include_str!("lua/wrote.lua"), include_str!("lua/wrote_end.lua"));
        Script { writes: true, ..Self::reading(&[before, code, after].concat()) }
    }
}

/// A script with its keys, all of one slot, and its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptCall<'c> {
    pub(crate) script: &'c Script,
    pub(crate) keys: &'c [String],
    pub(crate) args: &'c [&'c [u8]],
}

impl ScriptCall<'_> {
    /// The key that finds the server.
    fn key(&self) -> &str {
        self.keys.first().map_or("", String::as_str)
    }

    fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    fn by_code(&self) -> Cmd {
        self.command("EVAL", &self.script.code)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(self.keys).arg(self.args);
        command
    }
}

fn is_unknown_script(failed: &Failed) -> bool {
    failed.error.kind() == RedisKind::Server(ServerErrorKind::NoScript)
}

/// Every script that the store runs.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) read: Script,
    pub(crate) commit: Script,
    pub(crate) enter: Script,
    pub(crate) keep: Script,
    pub(crate) hot: Hot,
}

impl Scripts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Scripts {
            read: Script::reading(include_str!("lua/read.lua")),
            commit: Script::writing(include_str!("lua/commit.lua")),
            enter: Script::writing(include_str!("lua/enter.lua")),
            keep: Script::writing(include_str!("lua/keep.lua")),
            hot: Hot::new(),
        })
    }
}

impl Link {
    pub(crate) fn to_one(wire: Wire, wait: Option<Wait>, timeout: Duration) -> Self {
        Link { to: To::One(wire), wait, timeout }
    }

    pub(crate) fn to_cluster(cluster: Cluster, wait: Option<Wait>, timeout: Duration) -> Self {
        Link { to: To::Cluster(cluster), wait, timeout }
    }

    /// The connection, where there is one server.
    pub(crate) fn wire(&self) -> Option<&Wire> {
        match &self.to {
            To::One(wire) => Some(wire),
            To::Cluster(_) => None,
        }
    }

    /// Whether the last connection to the server of a key could be made.
    pub(crate) fn is_reachable(&self, key: &str) -> bool {
        match &self.to {
            To::One(wire) => !wire.has_failed(),
            To::Cluster(cluster) => cluster.is_reachable(key),
        }
    }

    /// Whether a script that may write waits for replicas, although it may have written nothing: that
    /// is only known once it is too late to ask the same connection.
    pub(crate) fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Runs a script as one that writes, if it is one.
    pub(crate) async fn ask(&self, what: &'static str, call: ScriptCall<'_>) -> Result<Value> {
        if call.script.writes { self.write(what, call).await } else { self.read(what, call).await }
    }

    /// Runs a script that writes nothing.
    pub(crate) async fn read(&self, what: &'static str, call: ScriptCall<'_>) -> Result<Value> {
        let answer = self.run(call, Twice::Harmless).await;
        answer.map_err(|failed| explain(what, failed.error))
    }

    /// Runs a script that may write: if its answer is lost, the outcome is unknown (R1).
    pub(crate) async fn write(&self, what: &'static str, call: ScriptCall<'_>) -> Result<Value> {
        let reported = self.run_and_wait(call).await;
        let (reported, received) = reported.map_err(|failed| match failed.may_be_done {
            true => lost(what, failed.error),
            false => explain(what, failed.error),
        })?;
        let Value::Array(reported) = reported else {
            return Err(corrupt(format_args!("the answer {reported:?} to a script")));
        };
        let mut reported = reported.into_iter();
        let wrote = reported.next() == Some(Value::Int(1));
        let wanted = self.wait.map_or(0, |wait| wait.replicas);
        if wrote && received < i64::from(wanted) {
            return Err(unconfirmed(what, received, wanted));
        }
        Ok(reported.next().unwrap_or(Value::Nil))
    }

    /// Runs a script, and has the same connection wait for replicas where that is asked for: on
    /// another one, which has written nothing, `WAIT` would prove nothing.
    async fn run_and_wait(&self, call: ScriptCall<'_>) -> Result<(Value, i64), Failed> {
        let Some(wait) = self.wait else {
            return Ok((self.run(call, Twice::Never).await?, 0));
        };
        let pair = |first: Cmd| {
            let mut pair = redis::pipe();
            pair.add_command(first);
            pair.cmd("WAIT").arg(wait.replicas).arg(wait.longest.as_millis().to_string());
            pair
        };
        let key = call.key();
        let answers = match self.send_all(key, &pair(call.by_hash())).await {
            Err(failed) if is_unknown_script(&failed) => {
                self.send_all(key, &pair(call.by_code())).await?
            }
            answers => answers?,
        };
        let mut answers = answers.into_iter();
        let answer = answers.next().unwrap_or(Value::Nil);
        // The script was done, whatever came of the waiting.
        let received = answers.next().and_then(|received| redis::from_redis_value(received).ok());
        Ok((answer, received.unwrap_or(0)))
    }

    async fn run(&self, call: ScriptCall<'_>, twice: Twice) -> Result<Value, Failed> {
        let key = call.key();
        match self.send(key, &call.by_hash(), twice).await {
            // A server that restarted or flushed its scripts receives the code of the script again.
            Err(failed) if is_unknown_script(&failed) => {
                self.send(key, &call.by_code(), twice).await
            }
            answer => answer,
        }
    }

    /// Sends a script that may write, and what is to be asked of the same connection after it.
    async fn send_all(&self, key: &str, commands: &Pipeline) -> Result<Vec<Value>, Failed> {
        match &self.to {
            To::One(wire) => wire.send(Sent::All(commands), self.deadline()).await,
            To::Cluster(cluster) => cluster.send_all(key, commands, Twice::Never).await,
        }
    }

    async fn send(&self, key: &str, command: &Cmd, twice: Twice) -> Result<Value, Failed> {
        match &self.to {
            To::One(wire) => {
                let (sent, deadline) = (Sent::One(command), self.deadline());
                let answers = match wire.send(sent, deadline).await {
                    // The server may have ended the connection a moment ago.
                    Err(failed) if matches!(twice, Twice::Harmless) && failed.is_broken() => {
                        wire.send(sent, deadline).await
                    }
                    answers => answers,
                };
                Ok(answers?.pop().unwrap_or(Value::Nil))
            }
            To::Cluster(cluster) => cluster.send(key, command, twice).await,
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Runs a command on a key, or on a channel, that is no script and changes nothing the second
    /// time.
    pub(crate) async fn command(
        &self,
        what: &'static str,
        key: &str,
        command: &Cmd,
    ) -> Result<Value> {
        let answer = self.send(key, command, Twice::Harmless).await;
        answer.map_err(|failed| explain(what, failed.error))
    }

    /// Runs a command about the servers themselves: of several, a map has the answer of each.
    pub(crate) async fn ask_servers(&self, what: &'static str, command: &Cmd) -> Result<Value> {
        let answer = match &self.to {
            To::One(_) => self.send("", command, Twice::Harmless).await,
            To::Cluster(cluster) => cluster.send_everywhere(command).await,
        };
        answer.map_err(|failed| explain(what, failed.error))
    }
}

fn unconfirmed(what: &'static str, received: i64, wanted: u32) -> Error {
    let message = format!(
        "trying to {what}: {received} of {wanted} replicas have it; it happened or it did not, look \
         before trying again"
    );
    Error::new(ErrorKind::UnknownOutcome, message)
}
