//! The way to the servers: one node or a Cluster, scripts by their hash, answers as they come.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_core::{Error, ErrorKind, Result};
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, ErrorKind as RedisKind, Pipeline, RedisResult, ServerErrorKind, Value};
use tokio::sync::Semaphore;

use crate::error::{explain, explain_write};
use crate::fast::Fast;

/// Calls of a process that may be under way in a Cluster at a time: each has a place of its own
/// where the shard remembers its number.
const PLACES: usize = 64;

/// How a call reaches its server.
#[derive(Clone)]
pub(crate) struct Link {
    to: To,
    numbers: Arc<Numbers>,
    wait: Option<Wait>,
}

/// Connections that many calls share.
#[derive(Clone)]
enum To {
    One(ConnectionManager),
    /// Its client sends a call again when a connection breaks, whether or not it was done.
    Cluster(ClusterConnection),
}

/// For how many replicas each write waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) replicas: u32,
    pub(crate) longest: Duration,
}

/// Places and numbers of calls that write.
#[derive(Debug)]
struct Numbers {
    free: Semaphore,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    /// Those that no call has, each with the number of its last call. A call that was dropped keeps
    /// its own: it may still be sent again.
    free: Vec<(u64, u64)>,
    made: u64,
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

    /// A script that may write: it sets `wrote` when it does.
    pub(crate) fn writing(code: &str) -> Self {
        let (before, after) = (include_str!("lua/once.lua"), include_str!("lua/once_end.lua"));
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
    pub(crate) agree: Script,
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
            agree: Script::reading(include_str!("lua/agree.lua")),
            raise: Script::reading(include_str!("lua/raise.lua")),
            enter: Script::reading(include_str!("lua/enter.lua")),
            keep: Script::reading(include_str!("lua/keep.lua")),
            fast: Fast::new(),
        })
    }
}

impl Link {
    pub(crate) fn to_one(connection: ConnectionManager, wait: Option<Wait>) -> Self {
        Self::new(To::One(connection), wait)
    }

    pub(crate) fn to_cluster(connection: ClusterConnection, wait: Option<Wait>) -> Self {
        Self::new(To::Cluster(connection), wait)
    }

    fn new(to: To, wait: Option<Wait>) -> Self {
        let numbers = Numbers { free: Semaphore::new(PLACES), places: Mutex::default() };
        Link { to, numbers: Arc::new(numbers), wait }
    }

    /// Runs a script as one that writes, if it is one.
    pub(crate) async fn ask(
        &self,
        what: &'static str,
        script: &Script,
        (keys, calls): (&[String], String),
        args: &[&[u8]],
    ) -> Result<Value> {
        if script.writes {
            self.write(what, script, (keys, calls), args).await
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
        self.run(script, keys, args).await.map_err(|error| explain(what, error))
    }

    /// Runs a script that may write: where its answer got lost, nobody knows what it did (R1).
    /// `calls` is the key where the shard remembers this process's calls.
    pub(crate) async fn write(
        &self,
        what: &'static str,
        script: &Script,
        (keys, calls): (&[String], String),
        args: &[&[u8]],
    ) -> Result<Value> {
        let mut keys = keys.to_vec();
        keys.push(calls);
        let (answer, heard) = match &self.to {
            To::One(_) => {
                let args = [args, &[b"", b""]].concat();
                self.run_and_wait(script, &keys, &args).await
            }
            To::Cluster(_) => {
                let _free = self.numbers.free.acquire().await;
                let (place, number) = self.numbers.take();
                let (place_text, number_text) = (place.to_string(), number.to_string());
                let args = [args, &[place_text.as_bytes(), number_text.as_bytes()]].concat();
                let answer = self.run_and_wait(script, &keys, &args).await;
                self.numbers.give_back(place, number);
                answer
            }
        }
        .map_err(|error| explain_write(what, error))?;
        if answer == Value::BulkString(b"twice".to_vec()) {
            return Err(unknown(what, "its answer got lost with a connection"));
        }
        let (wanted, heard) = (self.wait.map_or(0, |wait| wait.replicas), heard.unwrap_or(0));
        if heard < i64::from(wanted) {
            return Err(unknown(what, &format!("{heard} of {wanted} replicas have it")));
        }
        Ok(answer)
    }

    /// Runs a script, and has the same connection wait for replicas where that is asked for: on
    /// another one, which has written nothing, `WAIT` would prove nothing.
    async fn run_and_wait(
        &self,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
    ) -> RedisResult<(Value, Option<i64>)> {
        let Some(wait) = self.wait else {
            return Ok((self.run(script, keys, args).await?, None));
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
        match answers.next().unwrap_or(Value::Nil).extract_error()? {
            Value::Int(heard) => Ok((answer, Some(heard))),
            _ => Ok((answer, None)),
        }
    }

    async fn run(&self, script: &Script, keys: &[String], args: &[&[u8]]) -> RedisResult<Value> {
        match self.send(&script.by_hash(keys, args)).await {
            // A server that was started anew, or told to forget, is told the script again.
            Err(error) if error.kind() == RedisKind::Server(ServerErrorKind::NoScript) => {
                self.send(&script.by_code(keys, args)).await
            }
            answer => answer,
        }
    }

    async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let count = commands.len();
        match &self.to {
            To::One(connection) => connection.clone().req_packed_commands(commands, 0, count).await,
            To::Cluster(connection) => {
                connection.clone().req_packed_commands(commands, 0, count).await
            }
        }
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let answer = match &self.to {
            To::One(connection) => connection.clone().req_packed_command(command).await?,
            To::Cluster(connection) => connection.clone().req_packed_command(command).await?,
        };
        answer.extract_error()
    }

    /// Runs a command that needs no key and is no script.
    pub(crate) async fn command(&self, what: &'static str, command: &Cmd) -> Result<Value> {
        self.send(command).await.map_err(|error| explain(what, error))
    }
}

impl Numbers {
    /// A free place and the next number of it.
    fn take(&self) -> (u64, u64) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let free = places.free.pop();
        let (place, last) = free.unwrap_or_else(|| {
            places.made = places.made.saturating_add(1);
            (places.made, 0)
        });
        (place, last.saturating_add(1))
    }

    fn give_back(&self, place: u64, number: u64) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).free.push((place, number));
    }
}

fn unknown(what: &'static str, why: &str) -> Error {
    let message =
        format!("trying to {what}: {why}; it happened or it did not, look before trying again");
    Error::new(ErrorKind::UnknownOutcome, message)
}
