//! No script grows with what a store holds: the server closes a connection to which one answer is
//! longer than it may be, and one by which a longer call comes.

use std::time::Duration;

use quell_conformance::rig::{Rig, fails, key, keyed, lease, plain, queue, secs, task};
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{
    Batch, DeadFilter, JobFilter, JobId, JobState, NewTrigger, QueueName, ScheduleName, Settlement,
    Store, Timestamp,
};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::Redis;

/// The sizes at which each is measured.
const SIZES: [u64; 2] = [300, 6_000];
/// Bytes of one answer. 6,000 members with their scores have some 200 KB.
const ANSWER: &str = "client-output-buffer-limit normal 131072 0 0";

/// A store on a server with these settings. The server goes with it.
async fn start(settings: &[&str]) -> (Redis, RedisStore) {
    let redis = Redis::start(settings).unwrap();
    let store = RedisOptions::from_url(&redis.url()).unwrap().open().await.unwrap();
    (redis, store)
}

/// The scripts that the server has run.
fn scripts(redis: &Redis) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]).unwrap();
    let of =
        |line: &str| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(of).unwrap_or(0)
}

async fn trigger(store: &RedisStore, count: u64, one: impl Fn(u64) -> NewTrigger) {
    for first in (0..count).step_by(100) {
        let batches = (first..count.min(first + 100)).map(|number| Batch::one(one(number)));
        for answer in store.enqueue(Some(Rig::START), batches.collect()).await.unwrap() {
            answer.unwrap();
        }
    }
}

/// Starts `count` jobs, and lets all but the first `running` die, those of a claim at one moment: at
/// several moments, or all at one.
async fn die(store: &RedisStore, count: u64, running: u64, apart: Duration) {
    let mut started = 0;
    while started < count {
        let jobs = store.claim(Some(Rig::START), &Rig::claim_of(10)).await.unwrap().jobs;
        let first = started;
        started += jobs.len() as u64;
        let dies = |(number, _): &(u64, _)| *number >= running;
        let ends = (first..)
            .zip(&jobs)
            .filter(dies)
            .map(|(_, job)| Settlement { lease: lease(job), outcome: fails(secs(1), true) });
        let now = Rig::START + apart * u32::try_from(first % 7).unwrap();
        store.settle(Some(now), ends.collect()).await.unwrap();
    }
}

/// Every job of a state, page by page.
async fn listed(store: &RedisStore, state: JobState) -> Vec<JobId> {
    let (mut ids, mut before) = (Vec::new(), None);
    loop {
        let limit = JobFilter::MAX_PAGE;
        let filter = JobFilter { before, state: Some(state), limit, ..JobFilter::default() };
        let page = store.jobs(&filter).await.unwrap();
        let Some(last) = page.last() else { return ids };
        before = Some(last.id);
        ids.extend(page.iter().map(|job| job.id));
    }
}

/// Every dead job, page by page.
async fn died(store: &RedisStore) -> Vec<JobId> {
    let (mut ids, mut before) = (Vec::new(), None);
    loop {
        let filter = DeadFilter { before, limit: 150, ..DeadFilter::default() };
        let page = store.dead(&filter).await.unwrap();
        let Some(last) = page.last() else { return ids };
        before = quell_core::DeadPlace::of(last);
        ids.extend(page.iter().map(|job| job.id));
    }
}

#[tokio::test]
async fn r26_lists_of_dead_and_running_jobs_are_read_in_portions() {
    for (size, apart) in SIZES.into_iter().zip([Duration::ZERO, Duration::from_micros(1)]) {
        let (redis, store) = start(&[ANSWER]).await;
        trigger(&store, 2 * size, |_| plain("1")).await;
        die(&store, 2 * size, size, apart).await;
        for (state, first) in [(JobState::Running, 1), (JobState::Dead, size + 1)] {
            let before = scripts(&redis);
            let ids = listed(&store, state).await;
            let expected: Vec<JobId> = (first..first + size).rev().map(JobId::new).collect();
            assert_eq!(ids, expected, "{state:?}");
            // Each page reads the index once.
            let (pages, scripts) = (size / 200 + 2, scripts(&redis) - before);
            assert!(
                scripts <= pages * (size / 1_000 + 4),
                "{scripts} scripts for {size} {state:?}"
            );
        }
        let mut ids = died(&store).await;
        assert_eq!(ids.len() as u64, size);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len() as u64, size, "each once");
    }
}

#[tokio::test]
async fn r26_a_list_reads_long_rows_within_a_bound_of_bytes() {
    let (_redis, store) = start(&["client-output-buffer-limit normal 6mb 0 0"]).await;
    let payload = format!("\"{}\"", "x".repeat(200_000));
    trigger(&store, 60, |_| plain(&payload)).await;
    die(&store, 60, 0, Duration::ZERO).await;
    assert_eq!(listed(&store, JobState::Dead).await.len(), 60);
    assert_eq!(died(&store).await.len(), 60);
}

#[tokio::test]
async fn r27_an_overview_reads_lines_of_partitions_in_portions() {
    for size in SIZES {
        let (redis, store) = start(&[ANSWER]).await;
        let of_partition = |number| {
            let partition = Some(key(&format!("p{number}")));
            NewTrigger { partition, ..plain("1") }
        };
        trigger(&store, size, of_partition).await;
        // A task whose jobs are behind all of them.
        let quiet = NewTrigger { task: task("quiet"), ..plain("1") };
        let later = Rig::START + secs(5);
        store.enqueue(Some(later), vec![Batch::one(quiet)]).await.unwrap().remove(0).unwrap();
        store.overview(Some(later)).await.unwrap();
        let before = scripts(&redis);
        let overview = store.overview(Some(later)).await.unwrap();
        let due: Vec<_> =
            overview.lanes.iter().map(|lane| (lane.task.as_str(), lane.first_due)).collect();
        assert_eq!(due, [("quiet", Some(later)), ("t", Some(Rig::START))]);
        let scripts = scripts(&redis) - before;
        assert!(scripts <= 4 + size / 1_000, "{scripts} scripts for {size} partitions");
    }
}

#[tokio::test]
async fn r27_an_overview_reads_queues_in_portions() {
    for size in SIZES {
        let (redis, store) = start(&[ANSWER]).await;
        let of_queue = |number| {
            let queue = QueueName::new(format!("queue-{number}")).unwrap();
            NewTrigger { queue, ..plain("1") }
        };
        trigger(&store, size, of_queue).await;
        store.set_queue(Some(Rig::START), &queue(), &Default::default()).await.unwrap();
        let before = scripts(&redis);
        let overview = store.overview(Some(Rig::START)).await.unwrap();
        assert_eq!(overview.lanes.len() as u64, size);
        assert!(overview.lanes.iter().all(|lane| lane.first_due == Some(Rig::START)));
        let scripts = scripts(&redis) - before;
        assert!(scripts <= 8 + size / 50, "{scripts} scripts for {size} queues");
    }
}

/// The moment `seconds` after the start.
fn after(seconds: u64) -> Timestamp {
    Rig::START + secs(seconds)
}

/// No call may be longer than 1 MB: that is the least that the server takes for a limit.
const CALL: &str = "client-query-buffer-limit 1mb";

#[tokio::test]
async fn r36_what_has_fired_with_gaps_is_read_in_portions() {
    for size in [200, 1_000] {
        let (redis, store) = start(&[CALL, ANSWER]).await;
        let (name, spec) = (ScheduleName::new("beat").unwrap(), Spec::every(secs(20), Rig::START));
        let (spec, trigger) = (spec.unwrap(), keyed("tick"));
        let one = Schedule { name, spec, catch_up: CatchUp::Latest, trigger, declared: None };
        store.set_schedule(Some(Rig::START), &one).await.unwrap();
        // Every other tick is missed, so that none follows another.
        for tick in 1..=size {
            store.tick(Some(after(40 * tick)), 9).await.unwrap();
        }
        let now = Some(after(40 * size));
        let backfill = async |from, to, missed: u64| {
            let before = scripts(&redis);
            let fired = store.backfill(now, &one.name, after(from), after(to)).await.unwrap();
            assert_eq!(fired, missed);
            scripts(&redis) - before
        };
        let scripts = backfill(220, 400, 5).await;
        assert!(scripts <= 9, "{scripts} scripts for a range with ten ticks, of {size}");
        let scripts = backfill(1, 40 * size, size - 5).await;
        assert!(scripts <= 8 + size / 200, "{scripts} scripts for {size} spans");
        let scripts = backfill(1, 40 * size, 0).await;
        assert!(scripts <= 8, "{scripts} scripts for a span");
    }
}
