//! Orders are charged once each, though workers die by SIGKILL before the intent, after it, after
//! the call and after the record, and the payment service loses answers (R23).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::get;
use quell::{Batch, JobId, JobState, Payload, Quell, TaskName};
use tokio::task::JoinSet;

use super::ground::Ground;
use super::workload;
use super::workload::till::{PAY, POINTS, policy};

const ORDERS: u64 = 64;
const WORKERS: usize = 3;

/// The payment service's own log.
#[derive(Debug, Default)]
struct Log {
    /// Each key with its order and its number.
    charges: BTreeMap<String, (String, usize)>,
    /// Calls with a key that it knew.
    repeated: usize,
    /// Calls that charged, and whose answer was lost.
    unanswered: usize,
    asked: usize,
    /// Calls to charge.
    calls: usize,
}

type Service = Arc<Mutex<Log>>;

/// A key that was charged before is not charged again.
async fn charge(
    State(log): State<Service>,
    UrlPath(key): UrlPath<String>,
    order: String,
) -> Result<String, StatusCode> {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(..10))).await;
    let mut log = log.lock().unwrap();
    log.calls += 1;
    let fate = log.calls % 10;
    if fate == 3 {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let next = log.charges.len() + 1;
    let known = log.charges.contains_key(&key);
    log.repeated += usize::from(known);
    let number = log.charges.entry(key).or_insert((order, next)).1;
    if fate == 7 {
        log.unanswered += 1;
        return Err(StatusCode::BAD_GATEWAY);
    }
    Ok(number.to_string())
}

async fn find(
    State(log): State<Service>,
    UrlPath(key): UrlPath<String>,
) -> Result<String, StatusCode> {
    let mut log = log.lock().unwrap();
    log.asked += 1;
    let found = log.charges.get(&key).map(|(_, number)| number.to_string());
    found.ok_or(StatusCode::NOT_FOUND)
}

/// Worker processes; one that dies is followed by another.
struct Tills {
    args: Vec<String>,
    folder: std::path::PathBuf,
    children: Vec<Child>,
    started: usize,
}

impl Tills {
    fn start(folder: &Path, store: &str, payments: &str) -> Self {
        let deaths = folder.join("deaths");
        std::fs::create_dir(&deaths).unwrap();
        let deaths = deaths.display().to_string();
        let args = ["pay", payments, &deaths, "--store", store];
        let args = args.map(str::to_owned).to_vec();
        let mut tills = Tills { args, folder: folder.to_owned(), children: Vec::new(), started: 0 };
        for _ in 0..WORKERS {
            let child = tills.spawn();
            tills.children.push(child);
        }
        tills
    }

    fn spawn(&mut self) -> Child {
        self.started += 1;
        let history = self.folder.join(format!("{}.jsonl", self.started));
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let mut command =
            workload::process(&[&args[..], &["--history", history.to_str().unwrap()]].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn revive(&mut self) {
        for index in 0..WORKERS {
            if self.children[index].try_wait().unwrap().is_some() {
                self.children[index] = self.spawn();
            }
        }
    }
}

impl Drop for Tills {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended by itself: then there is nothing to kill.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}

async fn each_order_is_charged_once(folder: &Path, ground: &Ground) {
    let log = Service::default();
    let routes = Router::new().route("/charges/{key}", get(find).post(charge));
    let routes = routes.with_state(Arc::clone(&log));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let payments = format!("http://{}", listener.local_addr().unwrap());
    let mut service = JoinSet::new();
    service.spawn(async move { axum::serve(listener, routes).await });

    let quell = Quell::open(&ground.url()).await.unwrap();
    let orders = (0..ORDERS).map(|order| {
        let payload = Payload::encode(&order).unwrap();
        policy().trigger(TaskName::new(PAY).unwrap(), payload, None).unwrap()
    });
    let batch = Batch { triggers: orders.collect(), dedup: None };
    let jobs: Vec<JobId> =
        quell.enqueue(batch).await.unwrap().iter().filter_map(|receipt| receipt.job()).collect();
    let mut tills = Tills::start(folder, &ground.url(), &payments);
    let deadline = Instant::now() + Duration::from_secs(300);
    let store = quell.store();
    let mut open = jobs.clone();
    while let Some(id) = open.last() {
        tills.revive();
        let state = store.job(*id).await.unwrap().unwrap().state;
        assert_ne!(state, JobState::Dead, "job {id}");
        if state == JobState::Succeeded {
            open.pop();
            continue;
        }
        assert!(Instant::now() < deadline, "it does not come to rest: {log:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(tills);

    let deaths: Vec<String> = std::fs::read_dir(folder.join("deaths"))
        .unwrap()
        .map(|death| death.unwrap().file_name().into_string().unwrap())
        .collect();
    for id in &jobs {
        let effects = quell.store().effects(*id).await.unwrap();
        assert!(effects.len() == 1 && effects[0].done.is_some(), "job {id}: {effects:?}");
    }
    let log = log.lock().unwrap();
    let charged: BTreeSet<&String> = log.charges.values().map(|(order, _)| order).collect();
    eprintln!(
        "{ORDERS} orders, {} deaths, {} answers lost, {} calls repeated, {} asked",
        deaths.len(),
        log.unanswered,
        log.repeated,
        log.asked
    );
    assert_eq!(log.charges.len(), jobs.len(), "one charge for each order");
    assert_eq!(charged.len(), jobs.len(), "and for each order one");
    for point in POINTS {
        assert!(deaths.iter().any(|death| death.starts_with(point)), "{point}: {deaths:?}");
    }
    assert!(log.unanswered > 0 && log.asked > 0, "nothing was in doubt: {log:?}");
}

#[tokio::test]
async fn r23_each_order_is_charged_once_whenever_workers_are_killed_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::sqlite(folder.path()).await;
    each_order_is_charged_once(folder.path(), &ground).await;
}

#[tokio::test]
async fn r23_each_order_is_charged_once_whenever_workers_are_killed_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    each_order_is_charged_once(folder.path(), &Ground::postgres()).await;
}

#[tokio::test]
async fn r23_each_order_is_charged_once_whenever_workers_are_killed_on_redis() {
    let folder = tempfile::tempdir().unwrap();
    each_order_is_charged_once(folder.path(), &Ground::redis()).await;
}
