//! A process of Node.js that answers calls: a line of JSON for each, and one for each answer.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use pg_common::Starts;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A line that the process prints: the start of a job, or the end of a call.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(default)]
    start: bool,
    #[serde(default)]
    id: u64,
    error: Option<String>,
}

type Answer = oneshot::Sender<Result<(), String>>;

/// Calls that have no answer yet, the number of the latest one, and whether answers come at all.
#[derive(Debug, Default)]
struct Open {
    answers: HashMap<u64, Answer>,
    latest: u64,
    ended: bool,
}

/// The process, which ends when this is dropped.
pub(crate) struct Node {
    open: Arc<Mutex<Open>>,
    starts: Arc<OnceLock<Starts>>,
    calls: UnboundedSender<String>,
    _child: Child,
    _pipes: JoinSet<Result<()>>,
}

impl Node {
    /// Starts a script.
    pub(crate) fn start(script: &Path, args: &[&str]) -> Result<Self> {
        let mut child = Command::new("node")
            .arg(script)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start node")?;
        let input = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        let (open, starts) = (Arc::<Mutex<Open>>::default(), Arc::<OnceLock<Starts>>::default());
        let (calls, lines) = unbounded_channel();
        let mut pipes = JoinSet::new();
        pipes.spawn(write(input, lines));
        pipes.spawn(read(output, Arc::clone(&open), Arc::clone(&starts)));
        Ok(Node { open, starts, calls, _child: child, _pipes: pipes })
    }

    /// Where starts of jobs are reported from now on.
    pub(crate) fn listen(&self, starts: Starts) {
        let _first_time = self.starts.set(starts);
    }

    /// Calls a function, and waits until it has ended.
    pub(crate) async fn call(&self, name: &str, args: Value) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        let id = {
            let mut open = lock(&self.open);
            ensure!(!open.ended, "node has ended");
            open.latest += 1;
            let id = open.latest;
            open.answers.insert(id, answer);
            id
        };
        let line = json!({ "id": id, "call": name, "args": args });
        self.calls.send(format!("{line}\n")).context("node has ended")?;
        let told = answered.await.context("node has ended")?;
        told.map_err(|error| anyhow!("{name}: {error}"))
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes calls, as many at once as there are.
async fn write(mut input: ChildStdin, mut lines: UnboundedReceiver<String>) -> Result<()> {
    while let Some(mut text) = lines.recv().await {
        while let Ok(line) = lines.try_recv() {
            text.push_str(&line);
        }
        input.write_all(text.as_bytes()).await?;
    }
    Ok(())
}

/// Reads answers and starts until the process ends, and then leaves no call without an answer.
async fn read(
    output: ChildStdout,
    open: Arc<Mutex<Open>>,
    starts: Arc<OnceLock<Starts>>,
) -> Result<()> {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(line) = serde_json::from_str::<Line>(&line) else { continue };
        if line.start {
            starts.get().into_iter().for_each(Starts::started);
        } else if let Some(answer) = lock(&open).answers.remove(&line.id) {
            let _unheard = answer.send(line.error.map_or(Ok(()), Err));
        }
    }
    let mut open = lock(&open);
    open.ended = true;
    open.answers.clear();
    Ok(())
}
