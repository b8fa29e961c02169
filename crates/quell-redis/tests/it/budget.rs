//! The commands that each call runs, and the bytes that it moves, do not grow with what the store holds.

use std::sync::Arc;

use quell_conformance::budget::{Ledger, judge};
use quell_core::{Result, Store};
use quell_redis::RedisOptions;
use quell_services::Redis;

/// Commands and hundreds of bytes.
const SLACK: u64 = 20;

/// Calls that may cost more, and what bounds them.
const GROWING: &[(&str, &str)] = &[
    ("backlog", "a look reads 10,000 waiting jobs of at most 10,000 partitions"),
    ("explain", "advice on keys reads the newest 1,000 jobs of a task at most"),
];

/// A server whose commands are counted, those of scripts too.
struct Books(Redis);

impl Books {
    fn spent(&self) -> u64 {
        let stats = self.0.command(&["INFO", "commandstats"]).unwrap();
        let calls = stats.lines().filter(|line| !line.starts_with("cmdstat_info:"));
        let calls = calls.filter_map(|line| line.split_once(":calls=")?.1.split(',').next());
        let calls: u64 = calls.map(|calls| calls.parse::<u64>().unwrap()).sum();
        let stats = self.0.command(&["INFO", "stats"]).unwrap();
        let moved = stats.lines().filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_moved = ["total_net_input_bytes", "total_net_output_bytes"].contains(&name);
            is_moved.then(|| value.trim().parse::<u64>().unwrap())
        });
        calls + moved.sum::<u64>() / 100
    }
}

impl Ledger for Books {
    async fn open(&self) -> Arc<dyn Store> {
        let options = RedisOptions::from_url(&self.0.url()).unwrap();
        Arc::new(options.open().await.unwrap())
    }

    async fn close(&self, store: Arc<dyn Store>) {
        drop(store);
    }

    async fn count(&self, call: impl AsyncFnOnce(&dyn Store) -> Result<()>) -> Result<u64> {
        let store = self.open().await;
        // What asking costs is the same each time, but for a few bytes.
        let before = self.spent();
        let asked = self.spent() - before;
        let before = self.spent();
        call(&*store).await?;
        Ok((self.spent() - before).saturating_sub(asked))
    }
}

#[tokio::test]
async fn r35_no_call_costs_more_where_more_is_held() {
    let costs = judge(async || Books(Redis::start(&[]).unwrap()), SLACK, GROWING).await.unwrap();
    eprintln!("{}", costs.join("\n"));
}
