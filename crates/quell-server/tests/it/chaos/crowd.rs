//! Eight worker processes on one queue with limits (R31, R35): they conflict and count that; nothing
//! is lost, and no limit is exceeded at any moment.
//!
//! Two records judge it: the histories of the processes, and lines that the commands append to one
//! file, which the kernel orders without any clock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use quell::JobState;
use quell::history::Event;
use quell::job::SettledAs;
use quell_conformance::rig::all_jobs;
use reqwest::Client;

use super::ground::Ground;
use super::judge::{checked, events};
use crate::binary::{Process, quell};

const PROCESSES: usize = 8;
/// Requests, each of many jobs.
const REQUESTS: usize = 4;
const PARTITIONS: usize = 5;
/// At once: of the queue, of a worker, of a partition.
const LIMITS: [(&str, usize); 3] = [("queue", 6), ("worker", 2), ("partition", 2)];

fn write_config(folder: &Path, url: &str) {
    let [(_, queue), (_, worker), (_, partition)] = LIMITS;
    let log = folder.join("log");
    let command = "read -r p; echo \\\"+ $QUELL_JOB $PPID $p\\\" >> $LOG; sleep 0.01; \
                   echo \\\"- $QUELL_JOB $PPID $p\\\" >> $LOG";
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n\
         [worker]\nconcurrency = 4\n\
         [queues.narrow]\nconcurrency = {queue}\nworker_concurrency = {worker}\n\
         partition_concurrency = {partition}\n\
         [tasks.log]\nqueue = \"narrow\"\npartition = \"{{{{ c }}}}\"\n\
         exec = {{ command = [\"sh\", \"-c\", \"{command}\"], env = {{ LOG = \"{}\" }} }}\n",
        log.display()
    );
    std::fs::write(folder.join("quell.toml"), text).unwrap();
}

async fn trigger(server: &Process, jobs: usize, first: usize) {
    // One partition has most of the jobs.
    let partition = |n: usize| if n.is_multiple_of(3) { n % PARTITIONS } else { 0 };
    let payload = |n| format!(r#"{{"payload":{{"c":"p{}"}}}}"#, partition(n));
    let each = (first..first + jobs).map(payload);
    let body = format!("[{}]", each.collect::<Vec<_>>().join(","));
    let request = Client::new().post(format!("{}/v1/tasks/log/triggers", server.url));
    let request = request.header("content-type", "application/json").body(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 202, "{}", response.text().await.unwrap());
}

/// A metric of the queue, as the page of a process has it.
async fn metric(server: &Process, name: &str) -> Option<f64> {
    let page = reqwest::get(format!("{}/metrics", server.url)).await.unwrap().text().await.unwrap();
    let wanted = format!("{name}{{queue=\"narrow\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&wanted)).map(|value| value.parse().unwrap())
}

/// Who holds a slot, of what each limit is about; the most that there were.
#[derive(Default)]
struct Slots {
    taken: BTreeMap<(&'static str, String), BTreeSet<u64>>,
    most: BTreeMap<&'static str, usize>,
}

impl Slots {
    fn start(&mut self, by: &str, job: u64, worker: &str, partition: &str) {
        for ((limit, most), whose) in LIMITS.into_iter().zip(["", worker, partition]) {
            let slots = self.taken.entry((limit, whose.to_owned())).or_default();
            assert!(slots.insert(job), "job {job} runs twice at once");
            assert!(slots.len() <= most, "{by}: {} run at once of {limit} {whose}", slots.len());
            let seen = self.most.entry(limit).or_default();
            *seen = slots.len().max(*seen);
        }
    }

    fn end(&mut self, job: u64, worker: &str, partition: &str) {
        for ((limit, _), whose) in LIMITS.into_iter().zip(["", worker, partition]) {
            let slots = self.taken.get_mut(&(limit, whose.to_owned()));
            assert!(slots.is_some_and(|slots| slots.remove(&job)), "job {job} ended, and runs not");
        }
    }
}

/// What the commands wrote: each job began and ended once, and how many ran at once.
fn judge_log(folder: &Path, jobs: &BTreeSet<u64>) -> Slots {
    let (mut slots, mut began, mut ended) = (Slots::default(), BTreeSet::new(), BTreeSet::new());
    for line in std::fs::read_to_string(folder.join("log")).unwrap().lines() {
        let [what, job, worker, partition] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line:?}")
        };
        let number = job.parse().unwrap();
        if what == "+" {
            assert!(began.insert(number), "job {job} began twice");
            slots.start("log", number, worker, partition);
        } else {
            assert!(ended.insert(number), "job {job} ended twice");
            slots.end(number, worker, partition);
        }
    }
    assert_eq!((&began, &ended), (jobs, jobs));
    slots
}

/// What the processes recorded: each job was started and settled once, and on the store's clock no
/// limit was exceeded; who ends at the moment of a start makes room for it.
fn judge_events(folder: &Path, partitions: &BTreeMap<u64, String>) -> Slots {
    let (mut moves, mut workers) = (Vec::new(), BTreeMap::new());
    for event in events(folder) {
        match event {
            Event::Claimed { t, job, worker, .. } => {
                let twice = workers.insert(job.get(), worker.to_string());
                assert_eq!(twice, None, "job {job} was handed out twice");
                moves.push((t, true, job.get()));
            }
            Event::Settle { t, job, became, .. } => {
                assert_eq!(became, SettledAs::Succeeded, "job {job}");
                moves.push((t, false, job.get()));
            }
            _ => {}
        }
    }
    assert_eq!(moves.len(), 2 * partitions.len());
    moves.sort_unstable();
    let mut slots = Slots::default();
    for (_, starts, job) in moves {
        let (worker, partition) = (&workers[&job], &partitions[&job]);
        if starts {
            slots.start("clock", job, worker, partition)
        } else {
            slots.end(job, worker, partition)
        }
    }
    slots
}

#[tokio::test]
async fn r31_r35_eight_processes_on_one_queue_meet_and_lose_nothing_and_exceed_no_limit() {
    let (contention, intervals) = crowd(&Ground::postgres(), 300).await;
    assert!(contention.iter().sum::<f64>() > 0.0, "they never met: {contention:?}");
    assert!(intervals.iter().all(|seconds| (1.0..=120.0).contains(seconds)), "{intervals:?}");
    assert!(intervals.iter().any(|seconds| *seconds > 1.0), "no interval grew: {intervals:?}");
}

/// Steps on Redis retry at once after a conflict: no process has to wait.
#[tokio::test]
async fn r31_eight_processes_on_one_queue_of_redis_lose_nothing_and_exceed_no_limit() {
    crowd(&Ground::redis(), 150).await;
}

/// Lets them run this many jobs a request, and judges it; returns the conflicts of each, and the longest
/// poll interval that it was seen to have: intervals shrink again once the others have less to do.
async fn crowd(ground: &Ground, jobs: usize) -> (Vec<f64>, Vec<f64>) {
    let folder = tempfile::tempdir().unwrap();
    write_config(folder.path(), &ground.url());
    let config = folder.path().join("quell.toml");
    let servers: Vec<Process> = (0..PROCESSES)
        .map(|n| {
            let history = folder.path().join(format!("{n}.jsonl"));
            let args = ["--config", text(&config), "--history", text(&history)];
            // Each time they meet, they say so.
            Process::start(quell(&["serve"]).args(args).env("QUELL_LOG", "off"))
        })
        .collect();
    let began = Instant::now();
    for (index, server) in servers.iter().take(REQUESTS).enumerate() {
        trigger(server, jobs, index * jobs).await;
    }
    let store = ground.store().await;
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut intervals = vec![0.0_f64; servers.len()];
    for turn in 0.. {
        let counts = store.counts().await.unwrap();
        let of = |state| counts.iter().filter(|c| c.state == state).map(|c| c.jobs).sum::<u64>();
        if of(JobState::Succeeded) == (jobs * REQUESTS) as u64 {
            break;
        }
        assert!(Instant::now() < deadline, "it does not come to rest: {counts:?}");
        let at = turn % servers.len();
        // It has none before its first poll.
        let interval = metric(&servers[at], "quell_poll_interval_seconds").await.unwrap_or(0.0);
        intervals[at] = intervals[at].max(interval);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = began.elapsed();
    let mut contention = Vec::new();
    for (server, longest) in servers.iter().zip(&mut intervals) {
        contention.push(metric(server, "quell_poll_contention_total").await.unwrap_or(0.0));
        let interval = metric(server, "quell_poll_interval_seconds").await.unwrap();
        *longest = longest.max(interval);
        server.signal("-TERM");
    }
    for mut server in servers {
        assert!(server.child.wait().unwrap().success());
    }
    let jobs = all_jobs(&*store).await;
    let of = |job: &quell::Job| job.partition.clone().unwrap().to_string();
    let partitions: BTreeMap<u64, String> =
        jobs.values().map(|job| (job.id.get(), of(job))).collect();
    let log = judge_log(folder.path(), &partitions.keys().copied().collect());
    let exercised = ["P1", "P2", "P4", "P10", "P11", "P21", "P23", "P24"];
    checked(folder.path(), &ground.url(), &exercised);
    let events = judge_events(folder.path(), &partitions);
    eprintln!(
        "{} jobs in {took:?}; contention {contention:?}; intervals {intervals:?}; most at once {:?} \
         on the store's clock, {:?} as the commands saw it",
        partitions.len(),
        events.most,
        log.most
    );
    assert_eq!(events.most, BTreeMap::from(LIMITS), "each limit is reached");
    (contention, intervals)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
