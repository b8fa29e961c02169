//! Limits under contention, judged by what the rows say when each attempt began and ended; and what
//! a claim within limits costs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_conformance::rig::{Rig, key, lease, plain, queue, task};
use quell_core::{
    Batch, Claim, ErrorKind, Job, JobFilter, JobState, Outcome, QueueSettings, Rate, Settlement,
    Store, Timestamp, WorkerId,
};
use quell_redis::{RedisOptions, RedisStore};
use tokio::task::JoinSet;

const WORKERS: usize = 8;
/// Longer than any of this takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const LIMITS: QueueSettings = QueueSettings {
    concurrency: Some(9),
    worker_concurrency: Some(3),
    partition_order: quell_core::PartitionOrder::ByPriority,
    partition_concurrency: Some(2),
    rate: Some(Rate { limit: 40, period: Duration::from_millis(100) }),
    partition_rate: Some(Rate { limit: 7, period: Duration::from_millis(100) }),
    paused: false,
    paused_since: None,
    paused_by: None,
    declared: None,
    debounce: None,
};

/// As many stores as there are workers, each with a connection of its own.
async fn open(is_step: bool) -> Vec<Arc<RedisStore>> {
    let (url, prefix) = quell_services::redis_url_for_tests();
    let mut stores = Vec::new();
    for _ in 0..WORKERS {
        let options = RedisOptions::from_url(&url).unwrap().prefix(prefix.clone()).unwrap();
        let options = if is_step { options.steps_only() } else { options };
        stores.push(Arc::new(options.open().await.unwrap()));
    }
    stores
}

async fn trigger(store: &RedisStore, jobs: usize, partitions: usize) {
    let one = |number: usize| {
        let partition =
            (!number.is_multiple_of(5)).then(|| key(&format!("p{}", number % partitions)));
        let priority = if number.is_multiple_of(3) { 5 } else { 0 };
        Batch::one(quell_core::NewTrigger { partition, priority, ..plain("1") })
    };
    for answer in store.enqueue(None, (0..jobs).map(one).collect()).await.unwrap() {
        answer.unwrap();
    }
}

/// More lines than a page of a lane has jobs, all due at one moment.
#[tokio::test]
async fn r30_any_number_of_partitions_may_be_due_at_one_moment() {
    const JOBS: usize = 700;
    for is_step in [false, true] {
        let store = open(is_step).await.remove(0);
        let one = |number: usize| quell_core::NewTrigger {
            partition: Some(key(&format!("p{number}"))),
            ..plain("1")
        };
        let triggers = (0..JOBS).map(one).collect();
        let batch = vec![Batch { triggers, dedup: None }];
        store.enqueue(Some(Rig::START), batch).await.unwrap().remove(0).unwrap();
        let mut started = std::collections::BTreeSet::new();
        while started.len() < JOBS {
            let claim = store.claim(Some(Rig::START), &Rig::claim_of(99));
            let claimed = tokio::time::timeout(PATIENCE, claim).await.unwrap().unwrap();
            assert!(!claimed.jobs.is_empty(), "{} of {JOBS} have started", started.len());
            started.extend(claimed.jobs.iter().map(|job| job.id));
        }
    }
}

async fn done(store: &RedisStore) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    loop {
        let before = jobs.last().map(|job| job.id);
        let filter = JobFilter {
            state: Some(JobState::Succeeded),
            limit: JobFilter::MAX_PAGE,
            before,
            ..JobFilter::default()
        };
        let page = store.jobs(&filter).await.unwrap();
        if page.is_empty() {
            return jobs;
        }
        jobs.extend(page);
    }
}

/// Claims and ends until nothing is left.
async fn work(store: Arc<RedisStore>, number: usize) {
    let worker = WorkerId::new(format!("w{number}")).unwrap();
    let claim = Claim { worker, tasks: [task("t")].into(), ..Rig::claim_of(1 + number % 4) };
    loop {
        let claimed = match store.claim(None, &claim).await {
            Ok(claimed) => claimed,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Contention, "{error}");
                continue;
            }
        };
        if claimed.jobs.is_empty() && claimed.next.due.is_none() && claimed.next.expiry.is_none() {
            return;
        }
        let end = |job| Settlement { lease: lease(job), outcome: Outcome::succeeded() };
        for settled in store.settle(None, claimed.jobs.iter().map(end).collect()).await.unwrap() {
            assert_eq!(settled.became, quell_core::SettledAs::Succeeded);
        }
        tokio::task::yield_now().await;
    }
}

/// The most of these attempts that ran at one moment.
fn most_at_once<'j>(jobs: impl Iterator<Item = &'j Job>) -> usize {
    let mut turns: Vec<(Timestamp, bool)> = Vec::new();
    for job in jobs {
        // An end comes before a start of the same moment.
        turns.extend([(job.started_at.unwrap(), true), (job.ended_at.unwrap(), false)]);
    }
    turns.sort_unstable();
    let (mut running, mut most) = (0_usize, 0);
    for (_, begins) in turns {
        running = if begins { running + 1 } else { running.saturating_sub(1) };
        most = most.max(running);
    }
    most
}

/// The most of these attempts that started in one period.
fn most_in(period: Duration, jobs: &[&Job]) -> usize {
    let mut starts: Vec<Timestamp> = jobs.iter().map(|job| job.started_at.unwrap()).collect();
    starts.sort_unstable();
    let within =
        |from: &Timestamp| starts.iter().filter(|at| from <= *at && **at < *from + period).count();
    starts.iter().map(within).max().unwrap_or_default()
}

fn by<K: Ord>(jobs: &[Job], name: impl Fn(&Job) -> Option<K>) -> Vec<Vec<&Job>> {
    let mut groups = BTreeMap::<K, Vec<&Job>>::new();
    for job in jobs {
        if let Some(name) = name(job) {
            groups.entry(name).or_default().push(job);
        }
    }
    groups.into_values().collect()
}

async fn contend(is_step: bool, count: usize) {
    let stores = open(is_step).await;
    stores[0].set_queue(Some(Rig::START), &queue(), &LIMITS).await.unwrap();
    trigger(&stores[0], count, 6).await;
    let mut workers = JoinSet::new();
    let mut last = None;
    for (number, store) in stores.into_iter().enumerate() {
        last = Some(Arc::clone(&store));
        workers.spawn(work(store, number));
    }
    tokio::time::timeout(PATIENCE, workers.join_all()).await.unwrap();
    let jobs = done(&last.unwrap()).await;
    assert_eq!(jobs.len(), count);
    assert!(jobs.iter().all(|job| job.starts() == 1), "each started once");
    let all: Vec<&Job> = jobs.iter().collect();
    assert!(most_at_once(jobs.iter()) <= 9, "{jobs:#?}");
    let rate = LIMITS.rate.unwrap();
    assert!(most_in(rate.period, &all) <= 40, "{jobs:#?}");
    for of_worker in by(&jobs, |job| job.worker.clone()) {
        assert!(most_at_once(of_worker.iter().copied()) <= 3, "{of_worker:#?}");
    }
    for of_partition in by(&jobs, |job| job.partition.clone()) {
        assert!(most_at_once(of_partition.iter().copied()) <= 2, "{of_partition:#?}");
        assert!(most_in(rate.period, &of_partition) <= 7, "{of_partition:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r31_processes_that_contend_keep_every_limit_at_every_moment() {
    contend(false, 600).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r31_r35_steps_that_contend_keep_every_limit_and_come_to_an_end() {
    contend(true, 60).await;
}
