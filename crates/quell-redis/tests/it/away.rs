//! A Cluster with one unreachable master, either killed or paused. Work on the other masters goes on in
//! time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::effort::cases;
use quell_conformance::rig::fails;
use quell_core::alert::Overview;
use quell_core::heartbeat::Heartbeat;
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{
    Batch, Claim, ErrorKind, Lease, NewTrigger, Outcome, Payload, QueueName, Retention,
    ScheduleName, Settlement, Store, TaskName, WorkerId,
};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::RedisCluster;
use tokio::task::JoinSet;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How late a tick may be: the goal.
const LATE: Duration = Duration::from_secs(2);
/// For how many seconds the master is away, in a usual run and in a long one.
const AWAY: (u64, u64) = (12, 20);

/// How a master is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Silent,
}

fn cluster() -> RedisCluster {
    let settings = ["appendonly yes", "appendfsync always", "cluster-require-full-coverage no"];
    RedisCluster::start(3, 0, &settings).unwrap()
}

/// With the deadline that calls have by default.
async fn open(cluster: &RedisCluster, query: &str) -> RedisStore {
    let url = format!("redis-cluster://{}?{query}", cluster.nodes());
    RedisOptions::from_url(&url).unwrap().open().await.unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn task() -> TaskName {
    TaskName::new("t").unwrap()
}

fn plain(name: &str) -> NewTrigger {
    NewTrigger::new(task(), queue(name), Payload::from_stored("1".to_owned()))
}

async fn take(store: &RedisStore, name: &str) {
    store.enqueue(None, vec![Batch::one(plain(name))]).await.unwrap().remove(0).unwrap();
}

/// The names of `count` queues on one master.
fn queues_on(cluster: &RedisCluster, node: usize, count: usize) -> Vec<String> {
    let names = (0..).map(|number| format!("q{number}"));
    let is_there = |name: &String| cluster.master_of(&format!("{{{name}}}")).unwrap() == node;
    names.filter(is_there).take(count).collect()
}

/// Two masters: the first has the directory of shards.
fn two_masters(cluster: &RedisCluster) -> (usize, usize) {
    let directory = cluster.master_of("{#}").unwrap();
    (directory, (directory + 1) % 3)
}

fn hurt(cluster: &mut RedisCluster, node: usize, fault: Fault) {
    let node = cluster.node_mut(node).unwrap();
    match fault {
        Fault::Killed => node.kill().unwrap(),
        Fault::Silent => node.pause().unwrap(),
    }
}

fn beat(queues: Vec<QueueName>) -> Heartbeat {
    Heartbeat {
        worker: WorkerId::new("w").unwrap(),
        incarnation: 1,
        host: "h".to_owned(),
        pid: 1,
        version: "1".to_owned(),
        queues,
        tasks: None,
        slots: 1,
        busy: 0,
        lease: Duration::from_secs(30),
        age: Duration::ZERO,
    }
}

/// What a worker asks for beside ticks, again and again.
async fn upkeep(store: Arc<RedisStore>, queues: Vec<QueueName>) {
    let beat = beat(queues);
    loop {
        let _some_are_away = store.heartbeat(None, &beat).await;
        let _some_are_away = store.reap(None, 100).await;
        let keep = Retention { succeeded: Some(PATIENCE), dead: None };
        let _some_are_away = store.prune(None, &keep, 100).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Eight queues are on the master that is away, a schedule of a tick each second is on another one.
async fn schedules_go_on(fault: Fault, with_directory: bool) {
    let mut cluster = cluster();
    let (directory, other) = two_masters(&cluster);
    let (away, near) = if with_directory { (directory, other) } else { (other, directory) };
    let store = Arc::new(open(&cluster, "").await);
    let far = queues_on(&cluster, away, 8);
    let home = queues_on(&cluster, near, 1).remove(0);
    for name in far.iter().chain([&home]) {
        take(&store, name).await;
    }
    let name = ScheduleName::new("each-second").unwrap();
    let now = store.tick(None, 0).await.unwrap().now;
    let spec = Spec::every(Duration::from_secs(1), now).unwrap();
    let schedule =
        Schedule { name, spec, catch_up: CatchUp::All, trigger: plain(&home), declared: None };
    store.set_schedule(None, &schedule).await.unwrap();
    let mut beside = JoinSet::new();
    let queues = far.iter().chain([&home]).map(|name| queue(name)).collect();
    beside.spawn(upkeep(Arc::clone(&store), queues));
    store.tick(None, 100).await.unwrap();
    hurt(&mut cluster, away, fault);
    let away = cases(AWAY.0, AWAY.1);
    let (began, mut ticks) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(away) {
        let ticked = store.tick(None, 100).await.unwrap();
        for fired in &ticked.fired {
            let late = ticked.now.since(fired.tick);
            assert!(late <= LATE, "a tick is {late:?} late after {:?}", began.elapsed());
            ticks += 1;
        }
        // A worker sleeps until the next tick that the store returned, or looks again.
        let next = ticked.next.map_or(LATE, |next| next.since(ticked.now));
        tokio::time::sleep(next.min(LATE)).await;
    }
    assert!(ticks >= away * 3 / 4, "{ticks} ticks in {away} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r36_r39_schedules_fire_in_time_while_another_master_is_dead() {
    schedules_go_on(Fault::Killed, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r36_r39_schedules_fire_in_time_while_another_master_is_silent() {
    schedules_go_on(Fault::Silent, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r36_r39_schedules_fire_in_time_while_the_master_of_the_directory_is_silent() {
    schedules_go_on(Fault::Silent, true).await;
}

/// How many jobs there are on the masters that run.
fn jobs_on_others(cluster: &RedisCluster, away: usize) -> u64 {
    let mut jobs = 0;
    for node in (0..3).filter(|node| *node != away) {
        let node = cluster.node(node).unwrap();
        let keys = node.command(&["KEYS", "quell:*:jobs"]).unwrap();
        for key in keys.lines().filter(|key| !key.is_empty()) {
            jobs += node.command(&["HLEN", key]).unwrap().parse::<u64>().unwrap();
        }
    }
    jobs
}

async fn claims_go_on(fault: Fault) {
    let mut cluster = cluster();
    let (_, away) = two_masters(&cluster);
    let store = open(&cluster, "shards.wide=6").await;
    // Those without a key go to few shards together: one by one they go to all.
    for _ in 0..60 {
        take(&store, "wide").await;
    }
    let (mut left, mut seen) = (jobs_on_others(&cluster, away), BTreeSet::new());
    assert!((1..60).contains(&left), "{left} jobs are on the others");
    hurt(&mut cluster, away, fault);
    let worker = WorkerId::new("w").unwrap();
    let tasks = Arc::from([task()]);
    let claim =
        Claim { queue: queue("wide"), tasks, worker, limit: 1, lease: PATIENCE, draw: Rig::DRAW };
    let began = Instant::now();
    while left > 0 {
        assert!(began.elapsed() < PATIENCE / 2, "{left} jobs of healthy shards are not claimed");
        // The call that finds out that the master is silent lasts to its deadline.
        let Ok(claimed) = store.claim(None, &claim).await else { continue };
        for job in claimed.jobs {
            assert!(seen.insert(job.id), "{} was claimed twice", job.id);
            let lease = Lease { job: job.id, token: job.token };
            let end = vec![Settlement { lease, outcome: Outcome::succeeded() }];
            store.settle(None, end).await.unwrap();
            left -= 1;
        }
    }
    // From now on no claim waits for the one that is away.
    for _ in 0..20 {
        let asked = Instant::now();
        store.claim(None, &claim).await.unwrap();
        assert!(asked.elapsed() < LATE, "a claim waits for a master that is away");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_a_spread_queue_goes_on_while_a_master_of_it_is_dead() {
    claims_go_on(Fault::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_a_spread_queue_goes_on_while_a_master_of_it_is_silent() {
    claims_go_on(Fault::Silent).await;
}

/// Without the directory, the process cannot find out whether there are more shards than it knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_r39_known_shards_get_heartbeats_and_claims_while_the_directory_is_dead() {
    let mut cluster = cluster();
    let (directory, other) = two_masters(&cluster);
    let store = open(&cluster, "shards.wide=12").await;
    let near = queues_on(&cluster, other, 1).remove(0);
    take(&store, &near).await;
    while jobs_on_others(&cluster, directory) < 2 {
        take(&store, "wide").await;
    }
    hurt(&mut cluster, directory, Fault::Killed);
    let beat = beat(vec![queue("never"), queue(&near)]);
    let began = Instant::now();
    while let Err(error) = store.heartbeat(None, &beat).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
    }
    let row = cluster.node(other).unwrap().command(&["HLEN", &format!("quell:{{{near}}}:workers")]);
    assert_eq!(row.unwrap(), "1");
    let worker = WorkerId::new("w").unwrap();
    let tasks = Arc::from([task()]);
    let claim =
        Claim { queue: queue("wide"), tasks, worker, limit: 1, lease: PATIENCE, draw: Rig::DRAW };
    let mut last = None;
    loop {
        assert!(began.elapsed() < PATIENCE, "no job of a known shard is claimed: {last:?}");
        match store.claim(None, &claim).await {
            Ok(claimed) if !claimed.jobs.is_empty() => break,
            other => last = Some(other.map(|claimed| claimed.jobs.len())),
        }
    }
}

/// Alerts go on, and dead jobs are no fewer because their shard is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r27_r39_alerts_count_a_shard_that_is_away_as_it_was() {
    let mut cluster = cluster();
    let (near, away) = two_masters(&cluster);
    let store = open(&cluster, "").await;
    let queues = [near, away].map(|node| queues_on(&cluster, node, 1).remove(0));
    for name in &queues {
        take(&store, name).await;
        let (worker, tasks) = (WorkerId::new("w").unwrap(), Arc::from([task()]));
        let claim =
            Claim { queue: queue(name), tasks, worker, limit: 1, lease: PATIENCE, draw: Rig::DRAW };
        let job = store.claim(None, &claim).await.unwrap().jobs.remove(0);
        let lease = Lease { job: job.id, token: job.token };
        let end = Settlement { lease, outcome: fails(Duration::ZERO, true) };
        store.settle(None, vec![end]).await.unwrap();
    }
    let dead = |overview: &Overview| overview.lanes.iter().map(|lane| lane.dead).sum::<u64>();
    assert_eq!(dead(&store.overview(None).await.unwrap()), 2);
    hurt(&mut cluster, away, Fault::Silent);
    for _ in 0..5 {
        let asked = Instant::now();
        assert_eq!(dead(&store.overview(None).await.unwrap()), 2);
        assert!(asked.elapsed() < 2 * LATE, "a look waits for a master that is away");
    }
    // The other one is looked at all the same.
    take(&store, &queues[0]).await;
    let overview = store.overview(None).await.unwrap();
    let lane = overview.lanes.iter().find(|lane| lane.queue.as_str() == queues[0]).unwrap();
    assert!(lane.first_due.is_some(), "{overview:?}");
    assert_eq!(dead(&overview), 2);
}

/// It has met no shard yet, and meets the job's alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_a_new_process_reads_and_cancels_a_job_while_another_master_is_dead() {
    let mut cluster = cluster();
    let (near, away) = two_masters(&cluster);
    let store = open(&cluster, "").await;
    let queues = [away, near].map(|node| queues_on(&cluster, node, 1).remove(0));
    let mut jobs = Vec::new();
    for name in &queues {
        let receipts = store.enqueue(None, vec![Batch::one(plain(name))]).await.unwrap().remove(0);
        jobs.push(receipts.unwrap().remove(0).job().unwrap());
    }
    hurt(&mut cluster, away, Fault::Killed);
    let new = open(&cluster, "timeout_ms=1000").await;
    let [far, job] = jobs[..] else { panic!("{jobs:?}") };
    assert_eq!(new.job(job).await.unwrap().unwrap().id, job);
    assert_eq!(new.job(far).await.unwrap_err().kind(), ErrorKind::Unavailable);
    new.cancel(None, job, "asked").await.unwrap();
}
