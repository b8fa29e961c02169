//! A real Cluster of three masters and three replicas: slots that move, masters that die, a shard
//! that is away. Callers and workers go on meanwhile; afterwards everything that was accepted must
//! have run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quell_core::{
    Batch, Claim, JobFilter, JobId, JobState, Lease, NewTrigger, Outcome, Payload, QueueName,
    Receipt, Renewal, SettledAs, Settlement, Store, TaskName, WorkerId,
};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::RedisCluster;
use tokio::task::JoinSet;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// Leases that end within the test where a worker's claim got lost.
const LEASE: Duration = Duration::from_secs(5);
/// Each has a slot of its own.
const QUEUES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// The answers that callers received, and the jobs that workers ran, by payload.
#[derive(Debug, Default)]
struct Book {
    accepted: BTreeSet<u64>,
    unknown: BTreeSet<u64>,
    refused: u64,
    ran: BTreeMap<u64, BTreeSet<JobId>>,
}

/// Callers and workers on one store.
struct Scene {
    store: Arc<RedisStore>,
    book: Arc<Mutex<Book>>,
    /// Signals callers to stop.
    stop: Arc<AtomicBool>,
    /// Signals workers that no caller is left.
    is_over: Arc<AtomicBool>,
    callers: JoinSet<()>,
    workers: JoinSet<()>,
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// The key by which the Cluster finds a queue's slot.
fn tag(name: &str) -> String {
    format!("{{{name}}}")
}

async fn open(cluster: &RedisCluster, query: &str) -> RedisStore {
    let url = format!("redis-cluster://{}?timeout_ms=2000{query}", cluster.nodes());
    RedisOptions::from_url(&url).unwrap().open().await.unwrap()
}

fn trigger(name: &str, payload: u64) -> Batch {
    let task = TaskName::new(format!("task.{name}")).unwrap();
    Batch::one(NewTrigger::new(task, queue(name), Payload::from_stored(payload.to_string())))
}

fn claim_of(name: &str, worker: WorkerId) -> Claim {
    let tasks = Arc::from([TaskName::new(format!("task.{name}")).unwrap()]);
    let draw = quell_conformance::Rig::DRAW;
    Claim { queue: queue(name), tasks, worker, limit: 20, lease: LEASE, draw }
}

async fn call(store: Arc<RedisStore>, name: &'static str, number: u64, book: Arc<Mutex<Book>>) {
    let answer = store.enqueue(None, vec![trigger(name, number)]).await;
    let answer = answer.and_then(|mut each| each.pop().unwrap());
    let mut book = book.lock().unwrap();
    match answer {
        Ok(receipts) => {
            assert!(matches!(receipts[..], [Receipt::Accepted { .. }]), "{receipts:?}");
            book.accepted.insert(number);
        }
        Err(error) if error.is_unknown_outcome() => drop(book.unknown.insert(number)),
        Err(error) => {
            assert!(error.is_retryable(), "{error:?}");
            book.refused += 1;
        }
    }
}

/// Takes jobs of a queue and ends them, until nothing is left after the callers have stopped.
async fn work(
    store: Arc<RedisStore>,
    name: &'static str,
    book: Arc<Mutex<Book>>,
    is_over: Arc<AtomicBool>,
) {
    let claim = claim_of(name, WorkerId::new(format!("w-{name}")).unwrap());
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "the queue {name} is never empty");
        // The claim that follows finds every trigger that was acknowledged before this.
        let is_last = is_over.load(Ordering::SeqCst);
        let _expired = store.reap(None, 100).await;
        let Ok(claimed) = store.claim(None, &claim).await else { continue };
        let is_idle = claimed.jobs.is_empty();
        for job in &claimed.jobs {
            let number = job.payload.as_str().parse().unwrap();
            book.lock().unwrap().ran.entry(number).or_default().insert(job.id);
        }
        let ends: Vec<Settlement> = claimed
            .jobs
            .iter()
            .map(|job| Settlement {
                lease: Lease { job: job.id, token: job.token },
                outcome: Outcome::succeeded(),
            })
            .collect();
        // A job that is not ended becomes due again when its lease expires.
        let _ended = store.settle(None, ends).await;
        let is_done = claimed.next.due.is_none() && claimed.next.expiry.is_none();
        if is_idle && is_done && is_last {
            return;
        }
        if is_idle {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Scene {
    fn begin(store: RedisStore) -> Self {
        let store = Arc::new(store);
        let (book, stop) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::new(AtomicBool::new(false));
        let (mut callers, mut workers) = (JoinSet::new(), JoinSet::new());
        for (place, name) in QUEUES.into_iter().enumerate() {
            let (store_, book_, stop_) = (Arc::clone(&store), Arc::clone(&book), Arc::clone(&stop));
            callers.spawn(async move {
                for number in (place as u64..).step_by(QUEUES.len()) {
                    if stop_.load(Ordering::Relaxed) {
                        return;
                    }
                    call(Arc::clone(&store_), name, number, Arc::clone(&book_)).await;
                }
            });
            workers.spawn(work(Arc::clone(&store), name, Arc::clone(&book), Arc::clone(&is_over)));
        }
        Scene { store, book, stop, is_over, callers, workers }
    }

    /// Waits until `more` further triggers of a queue were accepted.
    async fn goes_on(&self, name: &str, more: usize) {
        let place = QUEUES.iter().position(|known| *known == name).unwrap() as u64;
        let count = || {
            let book = self.book.lock().unwrap();
            book.accepted.iter().filter(|number| **number % QUEUES.len() as u64 == place).count()
        };
        let (before, deadline) = (count(), Instant::now() + PATIENCE);
        while count() < before + more {
            assert!(Instant::now() < deadline, "no trigger of {name} is accepted any more");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lets callers stop and workers finish; returns the store and the recorded answers.
    async fn end(mut self) -> (Arc<RedisStore>, Book) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended.unwrap();
        }
        self.is_over.store(true, Ordering::SeqCst);
        while let Some(ended) = self.workers.join_next().await {
            ended.unwrap();
        }
        let book = std::mem::take(&mut *self.book.lock().unwrap());
        (self.store, book)
    }
}

impl Book {
    /// Accepted triggers that never ran.
    fn lost(&self) -> Vec<u64> {
        self.accepted.iter().copied().filter(|number| !self.ran.contains_key(number)).collect()
    }

    /// Triggers that became several jobs: their call was sent again though it had been done.
    fn repeated(&self) -> Vec<u64> {
        self.ran.iter().filter(|(_, jobs)| jobs.len() > 1).map(|(number, _)| *number).collect()
    }

    /// Triggers that ran and that no caller made.
    fn invented(&self) -> Vec<u64> {
        let made = |number: &&u64| self.accepted.contains(number) || self.unknown.contains(number);
        self.ran.keys().filter(|number| !made(number)).copied().collect()
    }
}

impl Book {
    /// Everything that was accepted ran, as one job each, and nothing else did.
    fn is_whole(&self) {
        assert_eq!((self.lost(), self.invented(), self.repeated()), (vec![], vec![], vec![]));
    }
}

/// Every job that the store lists, by its payload.
async fn known(store: &RedisStore) -> BTreeSet<u64> {
    let (mut known, mut before) = (BTreeSet::new(), None);
    loop {
        let filter = JobFilter { before, limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
        let page = store.jobs(&filter).await.unwrap();
        let Some(last) = page.last() else { return known };
        before = Some(last.id);
        known.extend(page.iter().map(|job| job.payload.as_str().parse::<u64>().unwrap()));
    }
}

/// After all of it, what is counted is what is there, and all of it has ended.
async fn is_coherent(store: &RedisStore) {
    let counted = store.counts().await.unwrap();
    assert!(counted.iter().all(|counts| counts.state == JobState::Succeeded), "{counted:?}");
    let total: u64 = counted.iter().map(|counts| counts.jobs).sum();
    assert_eq!(known(store).await.len() as u64, total);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r02_r39_slots_that_move_lose_and_repeat_nothing() {
    let cluster = RedisCluster::start(3, 0, &[]).unwrap();
    let scene = Scene::begin(open(&cluster, "").await);
    for name in QUEUES {
        scene.goes_on(name, 20).await;
    }
    for name in QUEUES {
        let slot = cluster.slot_of(&tag(name)).unwrap();
        let to = (cluster.master_of_slot(slot).unwrap() + 1) % 3;
        // Half of the keys are there and half are not: MOVED, ASK and TRYAGAIN come up.
        cluster.half_move_slot(slot, to).unwrap();
        let other = QUEUES.into_iter().find(|other| *other != name).unwrap();
        scene.goes_on(other, 10).await;
        cluster.move_slot(slot, to).unwrap();
        assert_eq!(cluster.master_of_slot(slot).unwrap(), to);
        scene.goes_on(name, 20).await;
    }
    let (store, book) = scene.end().await;
    book.is_whole();
    is_coherent(&store).await;
}

/// Pauses the replica of a queue's master, so that it receives no more writes until it takes over.
fn deafen_replica(cluster: &mut RedisCluster, name: &str) -> usize {
    cluster.await_replicas(&tag(name)).unwrap();
    let master = cluster.master_of(&tag(name)).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    cluster.node_mut(replica).unwrap().pause().unwrap();
    // What was on its way would still be read once it goes on.
    cluster.node(master).unwrap().command(&["CLIENT", "KILL", "TYPE", "replica"]).unwrap();
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r39_a_failover_that_writes_waited_for_loses_nothing_accepted() {
    let settings = ["appendonly yes", "appendfsync always"];
    let mut cluster = RedisCluster::start(3, 1, &settings).unwrap();
    let scene = Scene::begin(open(&cluster, "&wait_replicas=1").await);
    for name in QUEUES {
        scene.goes_on(name, 20).await;
    }
    let replica = deafen_replica(&mut cluster, "alpha");
    let deadline = Instant::now() + PATIENCE;
    while scene.book.lock().unwrap().unknown.is_empty() {
        assert!(Instant::now() < deadline, "no caller learns that the replica has not received it");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let dead = cluster.kill_master_of(&tag("alpha")).unwrap();
    cluster.node_mut(replica).unwrap().go_on().unwrap();
    assert_eq!(cluster.await_failover(&tag("alpha")).unwrap(), replica);
    // The promoted replica has no replica to wait for until the dead master is back as its replica.
    cluster.restart(dead).unwrap();
    scene.goes_on("alpha", 20).await;
    let (store, book) = scene.end().await;
    book.is_whole();
    is_coherent(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r39_a_failover_that_nothing_waited_for_loses_what_the_replica_had_not_heard() {
    let mut cluster = RedisCluster::start(3, 1, &[]).unwrap();
    let scene = Scene::begin(open(&cluster, "").await);
    for name in QUEUES {
        scene.goes_on(name, 50).await;
    }
    // What is accepted from here on may come too late for the replica.
    let received = scene.book.lock().unwrap().accepted.clone();
    let replica = deafen_replica(&mut cluster, "beta");
    scene.goes_on("beta", 30).await;
    cluster.kill_master_of(&tag("beta")).unwrap();
    cluster.node_mut(replica).unwrap().go_on().unwrap();
    assert_eq!(cluster.await_failover(&tag("beta")).unwrap(), replica);
    scene.goes_on("beta", 20).await;
    let (store, book) = scene.end().await;
    // Accepted, and run perhaps; but the store that lives on knows nothing of them.
    let known = known(&store).await;
    let lost: Vec<&u64> = book.accepted.iter().filter(|number| !known.contains(number)).collect();
    assert!(lost.len() >= 30, "only {} were lost", lost.len());
    let old: Vec<&&u64> = lost.iter().filter(|number| received.contains(number)).collect();
    assert!(old.is_empty(), "{old:?} had reached the replica before");
    assert_eq!(book.invented(), Vec::<u64>::new());
    is_coherent(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r39_a_shard_that_is_away_holds_up_nobody_elses_queue() {
    let settings = ["appendonly yes", "appendfsync always", "cluster-require-full-coverage no"];
    let mut cluster = RedisCluster::start(3, 0, &settings).unwrap();
    let scene = Scene::begin(open(&cluster, "").await);
    for name in QUEUES {
        scene.goes_on(name, 20).await;
    }
    let away = "gamma";
    let home = cluster.master_of(&tag(away)).unwrap();
    let others: Vec<&str> =
        QUEUES.into_iter().filter(|name| cluster.master_of(&tag(name)).unwrap() != home).collect();
    assert!(!others.is_empty(), "some queue is on another shard");
    let stopped = cluster.stop_shard(&tag(away)).unwrap();
    for name in &others {
        scene.goes_on(name, 20).await;
    }
    for node in stopped {
        cluster.restart(node).unwrap();
    }
    scene.goes_on(away, 20).await;
    let (store, book) = scene.end().await;
    book.is_whole();
    is_coherent(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_connections_that_break_repeat_no_call() {
    let cluster = RedisCluster::start(3, 0, &[]).unwrap();
    let scene = Scene::begin(open(&cluster, "").await);
    for _ in 0..40 {
        // A call whose answer is lost with its connection may have been done.
        for node in 0..3 {
            cluster.node(node).unwrap().command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        }
        scene.goes_on("alpha", 2).await;
    }
    let (store, book) = scene.end().await;
    book.is_whole();
    is_coherent(&store).await;
}

async fn start_one(store: &RedisStore, name: &str, number: u64) -> Lease {
    store.enqueue(None, vec![trigger(name, number)]).await.unwrap().remove(0).unwrap();
    let claim = claim_of(name, WorkerId::new("w").unwrap());
    let job = store.claim(None, &claim).await.unwrap().jobs.remove(0);
    Lease { job: job.id, token: job.token }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_r39_a_shard_that_is_away_costs_no_lease_of_another_shard() {
    let settings = ["appendonly yes", "appendfsync always", "cluster-require-full-coverage no"];
    let mut cluster = RedisCluster::start(3, 0, &settings).unwrap();
    let store = open(&cluster, "").await;
    let home = |name: &str| cluster.master_of(&tag(name)).unwrap();
    let away = home("gamma");
    let near = QUEUES.into_iter().find(|name| home(name) != away).unwrap();
    let leases = [start_one(&store, near, 1).await, start_one(&store, "gamma", 2).await];
    let began = Instant::now();
    let stopped = cluster.stop_shard(&tag("gamma")).unwrap();
    // An attempt of twice its lease. Renewals carry both leases, as a worker's do.
    let mut rounds = 0;
    while began.elapsed() < 2 * LEASE {
        let asked = Instant::now();
        let renewed = store.renew(None, &leases, LEASE).await.unwrap();
        assert!(matches!(renewed[..], [Renewal::Held(_), Renewal::Unknown]), "{renewed:?}");
        assert!(asked.elapsed() < LEASE / 2, "the answer comes too late for its lease");
        rounds += 1;
        tokio::time::sleep(LEASE / 10).await;
    }
    assert!(rounds >= 3, "{rounds}");
    // A call with this lease alone returns the failure.
    let error = store.renew(None, &leases[1..], LEASE).await.unwrap_err();
    assert!(error.is_retryable() || error.is_unknown_outcome(), "{error:?}");
    let settlement = Settlement { lease: leases[0], outcome: Outcome::succeeded() };
    let settled = store.settle(None, vec![settlement]).await.unwrap();
    assert_eq!(settled[0].became, SettledAs::Succeeded);
    for node in stopped {
        cluster.restart(node).unwrap();
    }
    let lost = until_known(&store, leases[1]).await;
    assert_eq!(lost, Renewal::Lost, "it expired while its shard was away");
}

/// What becomes of a lease once its shard answers again.
async fn until_known(store: &RedisStore, lease: Lease) -> Renewal {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(renewed) = store.renew(None, &[lease], LEASE).await {
            return renewed[0];
        }
        assert!(Instant::now() < deadline, "its shard never answers again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
