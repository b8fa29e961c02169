//! The way to the servers: one node or a Cluster, scripts by their hash, answers as they come.

use std::sync::Arc;

use quell_core::Result;
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, ErrorKind as RedisKind, RedisResult, ServerErrorKind, Value};

use crate::error::{explain, explain_write};

/// Connections that many calls share.
#[derive(Clone)]
pub(crate) enum Link {
    One(ConnectionManager),
    Cluster(ClusterConnection),
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Link::One(_) => "Link::One",
            Link::Cluster(_) => "Link::Cluster",
        })
    }
}

/// A script and the hash that servers know it by.
#[derive(Debug)]
pub(crate) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    fn new(code: &'static str) -> Self {
        let hash = sha1_smol::Sha1::from(code).digest().to_string();
        Script { code, hash }
    }
}

/// Every script that the store runs.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) read: Script,
    pub(crate) commit: Script,
}

impl Scripts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Scripts {
            read: Script::new(include_str!("lua/read.lua")),
            commit: Script::new(include_str!("lua/commit.lua")),
        })
    }
}

impl Link {
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
    pub(crate) async fn write(
        &self,
        what: &'static str,
        script: &Script,
        keys: &[String],
        args: &[&[u8]],
    ) -> Result<Value> {
        self.run(script, keys, args).await.map_err(|error| explain_write(what, error))
    }

    async fn run(&self, script: &Script, keys: &[String], args: &[&[u8]]) -> RedisResult<Value> {
        let call = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(args);
            command
        };
        match self.send(&call("EVALSHA", &script.hash)).await {
            // A server that was started anew, or told to forget, is told the script again.
            Err(error) if error.kind() == RedisKind::Server(ServerErrorKind::NoScript) => {
                self.send(&call("EVAL", script.code)).await
            }
            answer => answer,
        }
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let answer = match self {
            Link::One(connection) => connection.clone().req_packed_command(command).await?,
            Link::Cluster(connection) => connection.clone().req_packed_command(command).await?,
        };
        answer.extract_error()
    }
}
