//! The way to the servers: one node or a Cluster, scripts by their hash, answers as they come.

use std::sync::Arc;
use std::time::Duration;

use quell_core::{Error, ErrorKind, Result};
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{
    Cmd, ErrorKind as RedisKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};

use crate::cluster::{self, Cluster, Twice};
use crate::error::{explain, is_lost, lost};
use crate::fast::Fast;
use crate::row::corrupt;

/// How a call reaches its server.
#[derive(Clone)]
pub(crate) struct Link {
    to: To,
    wait: Option<Wait>,
}

/// Connections that many calls share.
#[derive(Clone)]
enum To {
    One(ConnectionManager),
    Cluster(Box<Cluster>),
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

impl Script {
    fn by_hash(&self, keys: &[String], args: &[&[u8]]) -> Cmd {
        call("EVALSHA", &self.hash, keys, args)
    }

    fn by_code(&self, keys: &[String], args: &[&[u8]]) -> Cmd {
        call("EVAL", &self.code, keys, args)
    }
}

fn call(name: &str, script: &str, keys: &[String], args: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len()).arg(keys).arg(args);
    command
}

fn is_unknown_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error)
        if error.kind() == Some(ServerErrorKind::NoScript))
}

/// Every script that the store runs.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) read: Script,
    pub(crate) commit: Script,
    pub(crate) raise: Script,
    pub(crate) enter: Script,
    pub(crate) keep: Script,
    pub(crate) fast: Fast,
}

impl Scripts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Scripts {
            read: Script::reading(include_str!("lua/read.lua")),
            commit: Script::writing(include_str!("lua/commit.lua")),
            raise: Script::writing(include_str!("lua/raise.lua")),
            enter: Script::writing(include_str!("lua/enter.lua")),
            keep: Script::writing(include_str!("lua/keep.lua")),
            fast: Fast::new(),
        })
    }
}

impl Link {
    pub(crate) fn to_one(connection: ConnectionManager, wait: Option<Wait>) -> Self {
        Link { to: To::One(connection), wait }
    }

    pub(crate) fn to_cluster(cluster: Cluster, wait: Option<Wait>) -> Self {
        Link { to: To::Cluster(Box::new(cluster)), wait }
    }

    /// Whether a script that may write waits for replicas, although it may have written nothing: that
    /// is only known once it is too late to ask the same connection.
    pub(crate) fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Runs a script as one that writes, if it is one.
    pub(crate) async fn ask(
        &self,
        what: &'static str,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
    ) -> Result<Value> {
        if script.writes {
            self.write(what, script, keys, args).await
        } else {
            self.read(what, script, keys, args).await
        }
    }

    /// Runs a script that writes nothing.
    pub(crate) async fn read(
        &self,
        what: &'static str,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
    ) -> Result<Value> {
        let answer = self.run(script, keys, args, Twice::Harmless).await;
        answer.map_err(|error| explain(what, error))
    }

    /// Runs a script that may write: where its answer got lost, nobody knows what it did (R1).
    pub(crate) async fn write(
        &self,
        what: &'static str,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
    ) -> Result<Value> {
        let told = self.run_and_wait(script, keys, args).await;
        let (told, heard) = told.map_err(|error| match self.is_lost(&error) {
            true => lost(what, error),
            false => explain(what, error),
        })?;
        let Value::Array(told) = told else {
            return Err(corrupt(format_args!("the answer {told:?} to a script")));
        };
        let mut told = told.into_iter();
        let wrote = told.next() == Some(Value::Int(1));
        let wanted = self.wait.map_or(0, |wait| wait.replicas);
        if wrote && heard < i64::from(wanted) {
            return Err(unheard(what, heard, wanted));
        }
        Ok(told.next().unwrap_or(Value::Nil))
    }

    /// Whether a command may have been done although this error came.
    fn is_lost(&self, error: &RedisError) -> bool {
        match self.to {
            To::One(_) => is_lost(error),
            To::Cluster(_) => cluster::is_lost(error),
        }
    }

    /// Runs a script, and has the same connection wait for replicas where that is asked for: on
    /// another one, which has written nothing, `WAIT` would prove nothing.
    async fn run_and_wait(
        &self,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
    ) -> RedisResult<(Value, i64)> {
        let Some(wait) = self.wait else {
            return Ok((self.run(script, keys, args, Twice::Never).await?, 0));
        };
        let pair = |first: Cmd| {
            let mut pair = redis::pipe();
            pair.add_command(first);
            pair.cmd("WAIT").arg(wait.replicas).arg(wait.longest.as_millis().to_string());
            pair
        };
        let mut answers = self.send_all(&pair(script.by_hash(keys, args))).await?;
        if answers.first().is_some_and(is_unknown_script) {
            answers = self.send_all(&pair(script.by_code(keys, args))).await?;
        }
        let mut answers = answers.into_iter();
        let answer = answers.next().unwrap_or(Value::Nil).extract_error()?;
        // The script was done, whatever came of the waiting.
        let heard = answers.next().and_then(|heard| redis::from_redis_value(heard).ok());
        Ok((answer, heard.unwrap_or(0)))
    }

    async fn run(
        &self,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
        twice: Twice,
    ) -> RedisResult<Value> {
        match self.send(&script.by_hash(keys, args), twice).await {
            // A server that was started anew, or told to forget, is told the script again.
            Err(error) if error.kind() == RedisKind::Server(ServerErrorKind::NoScript) => {
                self.send(&script.by_code(keys, args), twice).await
            }
            answer => answer,
        }
    }

    /// Sends a script that may write, and what is to be asked of the same connection after it.
    async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let count = commands.len();
        match &self.to {
            To::One(connection) => connection.clone().req_packed_commands(commands, 0, count).await,
            To::Cluster(cluster) => cluster.send_all(commands, Twice::Never).await,
        }
    }

    async fn send(&self, command: &Cmd, twice: Twice) -> RedisResult<Value> {
        match &self.to {
            To::One(connection) => {
                connection.clone().req_packed_command(command).await?.extract_error()
            }
            To::Cluster(cluster) => cluster.send(command, twice).await,
        }
    }

    /// Runs a command that is no script, and that changes nothing the second time.
    pub(crate) async fn command(&self, what: &'static str, command: &Cmd) -> Result<Value> {
        self.send(command, Twice::Harmless).await.map_err(|error| explain(what, error))
    }
}

fn unheard(what: &'static str, heard: i64, wanted: u32) -> Error {
    let message = format!(
        "trying to {what}: {heard} of {wanted} replicas have it; it happened or it did not, look \
         before trying again"
    );
    Error::new(ErrorKind::UnknownOutcome, message)
}
