//! A private stand-in for Azure Service Bus, which has no emulator without containers.
//!
//! It is a program for Node.js in the folder `servicebus` of this crate, and speaks AMQP 1.0.
//! Microsoft's own SDKs for Python and JavaScript judge it ([`python_sdk`], [`node_sdk`]); it has
//! Azure's rules, and neither its timing, its limits nor its failovers. Packages are fetched by npm and
//! pip below the temporary folder, where no script of a package runs; every file's hash is pinned.
//!
//! Invariant: it listens on the loopback address only, and ends with its input, so with its parent.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::languages::{installed, node_packages};
use crate::process::Process;
use crate::releases::{ensure_pip, python, run};

/// The name of the shared access key, and the key itself.
pub const KEY_NAME: &str = "quell";
const KEY: &str = "c3RhbmQtaW4gZm9yIHRlc3Rz";

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/servicebus");

/// How a queue behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// How long a lock lasts. A minute by default.
    pub lock: Duration,
    /// The number of deliveries after which a message that no receiver completed is dead-lettered. 10 by
    /// default.
    pub max_deliveries: u32,
    /// For how long names of messages are remembered. None by default: duplicates pass.
    pub duplicate_window: Option<Duration>,
    /// How long a message lives. For ever by default.
    pub time_to_live: Option<Duration>,
}

impl Default for QueueOptions {
    fn default() -> Self {
        let lock = Duration::from_secs(60);
        QueueOptions { lock, max_deliveries: 10, duplicate_window: None, time_to_live: None }
    }
}

/// A fault that happens a number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A send is stored, and its connection closed before the acknowledgement.
    DropAfter,
    /// The connection is closed when a send arrives, which is not stored.
    DropBefore,
    /// A send is stored and never acknowledged.
    NoAnswer,
    /// An operation of `$management` is done and never answered.
    NoAnswerManagement,
    /// An operation of `$management` is done, and its answer is that it took too long.
    TimeoutManagement,
    /// A send is refused: the service is throttling.
    Busy,
    /// A link is refused: the service is throttling.
    BusyAttach,
    /// An operation of `$management` is refused: the service is throttling.
    BusyManagement,
    /// A token is refused: its key is no longer that of the queue.
    Token,
    /// A completion is acknowledged, and its message is delivered again.
    Twice,
}

/// The messages of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Counts {
    /// Those that may be delivered.
    pub ready: usize,
    /// Those that a receiver has locked.
    pub locked: usize,
    /// Those whose time has not come.
    pub scheduled: usize,
    /// The messages in its dead-letter queue.
    pub dead: usize,
}

/// What the stand-in has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Stats {
    /// The tokens that it accepted.
    pub tokens: usize,
    /// The connections that are open.
    pub connections: usize,
    /// The messages that were sent and stored, other than by `$management`.
    pub sends: usize,
    /// The messages that were delivered, however often each.
    pub deliveries: usize,
    /// The renewals of locks that were asked for.
    pub renewals: usize,
    /// The completions that were asked for.
    pub completions: usize,
}

/// A stand-in of its own.
#[derive(Debug)]
pub struct ServiceBus {
    port: u16,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    // In this order: the process ends before its folder goes.
    _process: Process,
    folder: TempDir,
}

impl ServiceBus {
    /// Starts a stand-in; its packages are installed where they are missing.
    ///
    /// # Errors
    /// Where they cannot be installed, or it does not start, with what it said.
    pub fn start() -> anyhow::Result<Self> {
        let mut command = node_sdk()?;
        let folder = tempfile::Builder::new().prefix("quell-servicebus-").tempdir()?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        command.arg(Path::new(SOURCES).join("main.js"));
        command.env("SERVICEBUS_KEY_NAME", KEY_NAME).env("SERVICEBUS_KEY", KEY);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut process = Process::start(&mut command)?;
        let (input, output) = process.pipes()?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let Ok(port) = line.trim().parse() else {
            let said = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            bail!("the stand-in for Service Bus does not come up: {said}");
        };
        Ok(ServiceBus { port, pipes: Mutex::new((input, output)), _process: process, folder })
    }

    /// The port of its AMQP.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its endpoint and key, as Azure prints them for its emulator.
    #[must_use]
    pub fn connection_string(&self) -> String {
        connection_string(self.port)
    }

    /// Creates a queue, in the place of one of the same name.
    ///
    /// # Errors
    /// Where the stand-in has ended.
    pub fn create_queue(&self, queue: &str, options: QueueOptions) -> anyhow::Result<()> {
        let ms = |time: Option<Duration>| time.unwrap_or_default().as_millis();
        let options = json!({
            "lockMs": options.lock.as_millis(),
            "maxDeliveries": options.max_deliveries,
            "duplicateWindowMs": ms(options.duplicate_window),
            "ttlMs": ms(options.time_to_live),
        });
        self.control(&json!({ "do": "create", "queue": queue, "options": options })).map(drop)
    }

    /// Lets a fault happen to the queue this number of times from now on; none ends it.
    ///
    /// # Errors
    /// Where the stand-in has ended.
    pub fn fault(&self, queue: &str, fault: Fault, times: u32) -> anyhow::Result<()> {
        let command = json!({ "do": "fault", "queue": queue, "kind": fault, "times": times });
        self.control(&command).map(drop)
    }

    /// Delivers messages that are scheduled from now on so much after their time, or before it where
    /// the number is negative.
    ///
    /// # Errors
    /// Where there is no such queue.
    pub fn shift_schedule(&self, queue: &str, ms: i64) -> anyhow::Result<()> {
        self.control(&json!({ "do": "shift", "queue": queue, "ms": ms })).map(drop)
    }

    /// Sets the service's clock, by which tokens expire, ahead of the machine's by so much, or behind it
    /// where the number is negative.
    ///
    /// # Errors
    /// Where the stand-in has ended.
    pub fn shift_clock(&self, ms: i64) -> anyhow::Result<()> {
        self.control(&json!({ "do": "clock", "ms": ms })).map(drop)
    }

    /// Ends all locks on the queue's messages.
    ///
    /// # Errors
    /// Where there is no such queue.
    pub fn expire_locks(&self, queue: &str) -> anyhow::Result<()> {
        self.control(&json!({ "do": "expire", "queue": queue })).map(drop)
    }

    /// Closes all connections.
    ///
    /// # Errors
    /// Where the stand-in has ended.
    pub fn disconnect(&self) -> anyhow::Result<()> {
        self.control(&json!({ "do": "disconnect" })).map(drop)
    }

    /// Counts the queue's messages.
    ///
    /// # Errors
    /// Where there is no such queue.
    pub fn counts(&self, queue: &str) -> anyhow::Result<Counts> {
        Ok(serde_json::from_value(self.control(&json!({ "do": "counts", "queue": queue }))?)?)
    }

    /// The reasons of the messages in the dead-letter queue, the oldest first.
    ///
    /// # Errors
    /// Where there is no such queue.
    pub fn dead_letters(&self, queue: &str) -> anyhow::Result<Vec<String>> {
        Ok(serde_json::from_value(self.control(&json!({ "do": "dead", "queue": queue }))?)?)
    }

    /// What it has counted.
    ///
    /// # Errors
    /// Where the stand-in has ended.
    pub fn stats(&self) -> anyhow::Result<Stats> {
        Ok(serde_json::from_value(self.control(&json!({ "do": "stats" }))?)?)
    }

    fn control(&self, command: &Value) -> anyhow::Result<Value> {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let (input, output) = &mut *pipes;
        let mut line = String::new();
        let written = writeln!(input, "{command}").and_then(|()| output.read_line(&mut line));
        if !written.is_ok_and(|length| length > 0) {
            let said = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            bail!("the stand-in for Service Bus has ended: {said}");
        }
        let mut answer: Value = serde_json::from_str(&line)?;
        match answer.get_mut("ok") {
            Some(answer) => Ok(answer.take()),
            None => bail!("the stand-in for Service Bus refuses {command}: {line}"),
        }
    }
}

/// The connection string of a stand-in that is reached by this port, such as that of a proxy.
#[must_use]
pub fn connection_string(port: u16) -> String {
    format!(
        "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};\
         UseDevelopmentEmulator=true"
    )
}

/// A Node.js that has Microsoft's SDK; the SDK is fetched where it is missing.
///
/// # Errors
/// Where it cannot be fetched.
pub fn node_sdk() -> anyhow::Result<Command> {
    let folder = node_packages(Path::new(SOURCES), "servicebus-node")?;
    let mut command = Command::new("node");
    command.env("NODE_PATH", folder.join("node_modules"));
    Ok(command)
}

/// A Python that has Microsoft's SDK; the SDK is fetched where it is missing.
///
/// # Errors
/// Where it cannot be fetched.
pub fn python_sdk() -> anyhow::Result<Command> {
    let sources = Path::new(SOURCES);
    let folder = installed(sources, "servicebus-python", &["requirements.txt"], |folder| {
        ensure_pip()?;
        let mut install = python();
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]);
        // Packages without machine code suit whichever Python there is.
        install.args(["--only-binary=:all:", "--platform", "any", "--implementation", "py"]);
        install.args(["--abi", "none", "--upgrade", "--target"]).arg(folder.join("site"));
        run(install.arg("--requirement").arg(folder.join("requirements.txt")))
    })?;
    let mut command = python();
    command.env("PYTHONPATH", folder.join("site")).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}
