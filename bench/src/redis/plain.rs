//! The other floor: `redis-benchmark` with scripts that call what Quell's call, on as many keys, and
//! decide nothing. It sends as fast as it can, and looks at no answer; so it has no worker, and what
//! waits for one is not measured.

use std::process::Command;

use anyhow::{Context, ensure};
use quell_services::Redis;
use serde_json::json;

use crate::program::{self, Reported};

/// Its program.
pub(super) const PROGRAM: &str = "redis-benchmark";
/// How many jobs are triggered by a call of a batch, as by all contenders.
const BATCH: usize = 1_000;
/// How many jobs are claimed and settled by a call: as many as one script of Quell takes at most.
const CLAIM: usize = 1_000;
/// As long as a job's row in Quell is.
const ROW: &str = "noop in default, a row of the length of Quell's";
/// It counts whole milliseconds, and prints an infinite rate for what took less than one.
const RESOLUTION: f64 = 0.001;
/// Its figure is the second of eight, and the first may have anything in it.
const FIGURES_AFTER: usize = 6;

/// A script, and how it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    script: &'static str,
    keys: &'static [&'static str],
    args: Vec<String>,
    /// How many jobs each call is about.
    jobs: usize,
    connections: usize,
    /// How many keys there are to draw from.
    drawn: usize,
}

/// Whether it takes part in a workload of these arguments.
pub(super) fn takes_part(args: &[&str]) -> bool {
    !steps(args).is_empty()
}

/// Runs a workload on this server, and says what other programs would print.
pub(super) fn ask(server: &Redis, args: &[&str], count: usize, seconds: u32) -> Reported {
    let output = measure(server, args, count, seconds);
    output.unwrap_or_else(|error| Reported {
        text: String::new(),
        failed: Some(format!("{error:#}")),
    })
}

fn measure(server: &Redis, args: &[&str], count: usize, seconds: u32) -> anyhow::Result<Reported> {
    let mut took = 0.0;
    for step in steps(args) {
        let calls = count.div_ceil(step.jobs);
        let hash = server.command(&["SCRIPT", "LOAD", step.script])?;
        let output = program::run(&step.command(server, &hash, calls), seconds);
        if output.failed.is_some() {
            return Ok(output);
        }
        took += (calls as f64 / rate(&output.text)?).max(RESOLUTION);
    }
    ensure!(took > 0.0, "it is not asked for this");
    let version = Command::new(PROGRAM).arg("--version").output()?;
    let line = json!({
        "peer": String::from_utf8_lossy(&version.stdout).trim(),
        "tuned": format!(
            "scripts that call what Quell's do, a connection for each caller; claims and \
             settlements of {CLAIM} on one"
        ),
        "jobs": count,
        "value": count as f64 / took,
    });
    Ok(Reported { text: line.to_string(), failed: None })
}

/// What it is called with for a workload; nothing where it cannot take part.
fn steps(args: &[&str]) -> Vec<Step> {
    let flag = |name: &str| {
        let mut after = args.iter().skip_while(|arg| **arg != name).skip(1);
        after.next().and_then(|value| value.parse().ok()).unwrap_or(1)
    };
    let connections = flag("--callers");
    let enqueue = |jobs: usize| Step {
        script: include_str!("plain/enqueue.lua"),
        keys: &["names", "clock", "newest", "jobs", "line", "heads", "counts"],
        args: vec![ROW.to_owned(); jobs],
        jobs,
        connections,
        drawn: 1,
    };
    let of_worker = |script, keys| Step {
        script,
        keys,
        args: vec![CLAIM.to_string()],
        jobs: CLAIM,
        connections,
        drawn: 1,
    };
    match args.first() {
        Some(&"batch") => vec![enqueue(BATCH)],
        Some(&"single") => vec![enqueue(1)],
        Some(&"debounced") => vec![Step {
            script: include_str!("plain/debounce.lua"),
            keys: &["names", "clock", "newest", "jobs", "line", "heads", "window:__rand_int__"],
            drawn: flag("--keys"),
            ..enqueue(1)
        }],
        Some(&("drain" | "head")) => vec![
            of_worker(
                include_str!("plain/claim.lua"),
                &["names", "clock", "jobs", "line", "heads", "leases", "counts", "slots"],
            ),
            of_worker(
                include_str!("plain/settle.lua"),
                &["names", "clock", "jobs", "leases", "ended", "counts", "slots", "awaited"],
            ),
        ],
        _ => Vec::new(),
    }
}

impl Step {
    fn command(&self, server: &Redis, hash: &str, calls: usize) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "--csv"]);
        command.args(["-c", &self.connections.to_string(), "-n", &calls.to_string()]);
        command.args(["-r", &self.drawn.to_string()]);
        command.args(["EVALSHA", hash, &self.keys.len().to_string()]);
        command.args(self.keys.iter().map(|key| format!("plain:{key}"))).args(&self.args);
        command
    }
}

/// Calls a second, of what it printed.
fn rate(csv: &str) -> anyhow::Result<f64> {
    let figure = csv.trim().rsplit("\",\"").nth(FIGURES_AFTER);
    let rate = figure.and_then(|figure| figure.parse::<f64>().ok()).filter(|rate| *rate > 0.0);
    rate.with_context(|| {
        format!("{PROGRAM} printed no rate: {}", csv.chars().take(200).collect::<String>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_whatever_the_test_was_called() {
        let head = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n";
        let line = "\"EVALSHA 1f 1 a \",\" b\",\"2500.50\",\"1\",\"2\",\"3\",\"4\",\"5\",\"6\"\n";
        assert_eq!(rate(&format!("{head}{line}")).unwrap(), 2_500.5);
        assert!(rate(head).is_err() && rate("").is_err());
        let short = line.replace("2500.50", "inf");
        assert_eq!(rate(&format!("{head}{short}")).unwrap(), f64::INFINITY);
    }

    #[test]
    fn it_takes_part_where_no_worker_is_waited_for() {
        assert!(["batch", "single", "drain", "head"].iter().all(|one| takes_part(&[one])));
        assert!(!takes_part(&["latency", "--samples"]) && !takes_part(&["windows"]));
        let debounced = steps(&["debounced", "--callers", "512", "--keys", "100"]).remove(0);
        assert_eq!((debounced.connections, debounced.drawn, debounced.jobs), (512, 100, 1));
    }

    #[test]
    fn its_scripts_bring_each_job_from_its_trigger_to_its_end() {
        let server = Redis::start(&[]).unwrap();
        let card = |key: &str| server.command(&["ZCARD", key]).unwrap();
        let run = |args: &[&str], count: usize| {
            let output = ask(&server, args, count, 60);
            assert!(output.failed.is_none() && output.text.contains("\"value\""), "{output:?}");
        };
        run(&["batch"], 2_000);
        run(&["single", "--callers", "4"], 16);
        assert_eq!((card("plain:line"), card("plain:ended")), ("2016".to_owned(), "0".to_owned()));
        run(&["drain"], 2_016);
        assert_eq!((card("plain:line"), card("plain:ended")), ("0".to_owned(), "2016".to_owned()));
        run(&["debounced", "--callers", "4", "--keys", "10"], 400);
        assert_eq!(card("plain:line"), "10");
        let missing = ask(&server, &["latency"], 1, 60).failed;
        assert!(missing.is_some_and(|reason| reason.contains("not asked")), "no reason");
    }
}
