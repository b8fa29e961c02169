//! BullMQ on PostgreSQL, measured by the same code as the others. BullMQ is a library for Node.js, so
//! each queue runs in a process of that (`bench/peers/bullmq/driven.mjs`), and calls go to it and
//! starts come from it through pipes, in a few hundredths of a millisecond each.

mod node;

use std::sync::Arc;

use anyhow::{Context, Result};
use pg_common::{Peer, PostgresPeer, SILENCE, Settings, Starts};
use serde_json::json;

use node::Node;

#[derive(Clone)]
struct Bull {
    node: Arc<Node>,
}

impl Peer for Bull {
    const NAME: &'static str = "bullmq";
    const DEBOUNCED: &'static str =
        "its debounce mode: each trigger replaces the delayed job of the key";
    type Settings = Settings;
    type Worker = Arc<Node>;

    fn version() -> String {
        let lock = include_str!("../../bullmq/package-lock.json");
        let lock: Option<serde_json::Value> = serde_json::from_str(lock).ok();
        let version = lock.as_ref().map(|lock| &lock["packages"]["node_modules/bullmq"]["version"]);
        version.and_then(|version| version.as_str()).unwrap_or("unknown").to_owned()
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => "pools of 10, concurrency 1, completed jobs are kept",
            Settings::Best => "pools of 32, concurrency 128, completed jobs are removed",
            Settings::Failover => "as best, locks of 6 s, checked every second",
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
        let (name, silence) = match settings {
            Settings::Defaults => ("defaults", 0),
            Settings::Best => ("best", 0),
            Settings::Failover => ("best", SILENCE.as_millis()),
        };
        // `cargo xtask bench` installs it beside the folder of this program.
        let program = std::env::current_exe()?;
        let folder = program.ancestors().nth(2).context("no folder above this program's")?;
        let script = folder.join("bullmq/driven.mjs");
        let node = Node::start(&script, &[url, name, &silence.to_string()])?;
        node.call("ready", json!([])).await?;
        Ok(Bull { node: Arc::new(node) })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        self.node.call("enqueueMany", json!([first, count])).await
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        self.node.call("enqueue", json!([n])).await
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        self.node.call("debounce", json!([key])).await
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let holds = starts.holds();
        self.node.listen(starts);
        self.node.call("work", json!([holds])).await?;
        Ok(Arc::clone(&self.node))
    }

    async fn stop(node: Self::Worker) -> Result<()> {
        node.call("stop", json!([])).await
    }
}

impl PostgresPeer for Bull {
    const UNFINISHED: &'static str =
        "select count(*) from bullmq.job where state <> 'completed' and $1 > 0";

    async fn close(self) -> Result<()> {
        self.node.call("close", json!([])).await
    }
}

fn main() -> Result<()> {
    pg_common::main::<Bull>()
}
