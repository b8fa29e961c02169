//! A server that is away, as in a failover, while triggers come in.

use std::path::Path;
use std::time::{Duration, Instant};

use quell::history::Event;
use quell::store::Store;
use quell_conformance::effort::cases;
use reqwest::Client;
use serde_json::Value;

use super::ground::Ground;
use super::judge::events;
use super::processes::PATIENCE;
use super::run::{begin, rest};
use super::seen::Tally;
use crate::binary::Process;
use crate::served::answer;

/// For how many seconds the server is away, in a usual run and in a long one.
const AWAY: (u64, u64) = (12, 30);
/// How many ticks of a schedule come in a second at least: one is due each 130 ms.
const TICKS: u64 = 7;

/// Some for each process: who comes back tries again after a pause, and not all the time.
const MOST_CONNECTIONS: usize = 60;

/// How many triggers were accepted, and the kinds of errors of those that were not.
fn answered(folder: &Path) -> (usize, Vec<String>) {
    let (mut accepted, mut failed) = (0, Vec::new());
    for event in events(folder) {
        match event {
            Event::TriggerOk { .. } => accepted += 1,
            // Callers ask for some keys with another payload.
            Event::TriggerFail { kind, .. } if kind != "IdempotencyConflict" => failed.push(kind),
            _ => {}
        }
    }
    (accepted, failed)
}

/// Waits until the callers had this many more triggers accepted.
pub(super) async fn accepted_more(folder: &Path, more: usize) -> usize {
    // Only what is new is read: the histories of a run are long.
    let mut tally = Tally::new(folder);
    let mut accepted = || tally.look().of("triggers accepted");
    let (deadline, before) = (Instant::now() + PATIENCE, accepted());
    loop {
        let now = accepted();
        if now >= before + more {
            return now;
        }
        assert!(Instant::now() < deadline, "no more triggers are accepted after {now}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the ticks have fired that were missed while the server was away.
pub(super) async fn caught_up(store: &dyn Store) {
    let (deadline, back) = (Instant::now() + PATIENCE, store.tick(None, 0).await);
    let back = back.unwrap().now;
    while store.schedules().await.unwrap()[0].last < Some(back) {
        assert!(Instant::now() < deadline, "the schedule does not go on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What `quell serve` says to a trigger over HTTP.
async fn trigger(server: &Process) -> (u16, Value) {
    let request = Client::new().post(format!("{}/v1/tasks/note/triggers", server.url));
    let request = request.header("content-type", "application/json");
    answer(request.body(r#"{"payload":{"k":"http"}}"#).send().await.unwrap()).await
}

#[tokio::test]
async fn r39_a_server_that_is_away_only_delays_and_callers_get_errors() {
    be_away(Ground::postgres()).await;
}

#[tokio::test]
async fn r39_a_redis_that_is_away_only_delays_and_callers_get_errors() {
    be_away(Ground::redis()).await;
}

async fn be_away(mut ground: Ground) {
    let folder = tempfile::tempdir().unwrap();
    let (operator, mut processes) = begin(folder.path(), &ground).await;
    let server = Process::serve(&processes.config(), &["--history", &file(folder.path())]);
    let before = accepted_more(folder.path(), 100).await;
    assert_eq!(trigger(&server).await.0, 202);

    let away = cases(AWAY.0, AWAY.1);
    ground.stop();
    let gone = Instant::now();
    let (status, refused) = trigger(&server).await;
    assert_eq!((status, &refused["error"]["kind"]), (503, &"unavailable".into()), "{refused}");
    tokio::time::sleep(Duration::from_secs(away).saturating_sub(gone.elapsed())).await;
    let (meanwhile, failed) = answered(folder.path());
    ground.resume();

    accepted_more(folder.path(), 100).await;
    if let Some(made) = ground.connections() {
        assert!(made <= MOST_CONNECTIONS, "all came back at once: {made} connections");
    }
    caught_up(&*ground.store().await).await;
    let (status, accepted) = trigger(&server).await;
    assert_eq!(status, 202, "{accepted}");
    assert_eq!(processes.revive(), 0, "a process gave up");
    server.signal("-TERM");
    let ended = ended(server).await;
    assert!(ended, "it was asked to end, and ends in order");
    let exercised = ["P1", "P2", "P4", "P6", "P9", "P10", "P11", "P23", "P24", "P25", "P32"];
    let counts = rest(folder.path(), &mut ground, &mut processes, &operator, &exercised).await;
    let beats = counts.of("ticks");
    eprintln!("{before} accepted before, {meanwhile} when it came back, {} refused", failed.len());
    eprintln!("{counts}");
    assert!(failed.len() >= 4, "each caller got errors, more than once: {failed:?}");
    assert!(failed.iter().all(|kind| kind == "Unavailable"), "{failed:?}");
    let expected = usize::try_from(away * TICKS).unwrap();
    assert!(beats > expected, "the ticks of the outage fire too: {beats}");
}

fn file(folder: &Path) -> String {
    folder.join("http.jsonl").to_str().unwrap().to_owned()
}

async fn ended(mut server: Process) -> bool {
    tokio::task::spawn_blocking(move || server.child.wait().unwrap().success()).await.unwrap()
}
