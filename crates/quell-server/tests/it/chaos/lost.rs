//! A replica that knows nothing of the newest writes takes over, and all processes live on: whatever is
//! promised of what comes afterwards holds, also beside workers and callers of the lost time.
//!
//! Judged are calls that were made, and leases that were granted, after the server had ended. What was
//! before is to the checker the work of a process that was killed then.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell::history::Event;
use quell::{JobId, Receipt, Timestamp};
use quell_check::Line;
use serde::de::DeserializeOwned;

use super::ground::Ground;
use super::judge::{checked, events, files};
use super::outage::accepted_more;
use super::processes::PATIENCE;
use super::run::{begin, come_to_rest, verdict};
use super::workload::record::{Entry, now};

/// What the checker must judge of the time after a loss.
const JUDGED: &[&str] =
    &["P1", "P2", "P4", "P5", "P6", "P8", "P9", "P10", "P11", "P23", "P24", "P32"];

/// When nothing of the lost time went on any more, and how long each file was then.
struct Mark {
    /// When the server had ended: a process may record later what it had answered before.
    ended: Timestamp,
    at: Timestamp,
    lengths: BTreeMap<PathBuf, u64>,
}

impl Mark {
    fn now(folder: &Path, ended: Timestamp) -> Self {
        Mark { ended, at: now(), lengths: lengths(folder) }
    }

    /// Whether an event is of the store's time before the server had ended.
    fn is_lost(&self, event: &Event) -> bool {
        let event = serde_json::to_value(event).unwrap();
        event["t"].as_i64().is_some_and(|t| Timestamp::from_micros(t) <= self.ended)
    }
}

fn lengths(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let files = [files(folder, "jsonl"), files(folder, "record")].concat();
    let length = |file: &PathBuf| std::fs::metadata(file).unwrap().len();
    files.into_iter().map(|file| (file.clone(), length(&file))).collect()
}

/// The lines of a file, and whether each was written after the mark.
fn lines<T: DeserializeOwned>(file: &Path, mark: &Mark) -> Vec<(bool, T)> {
    let text = std::fs::read_to_string(file).unwrap();
    let (mut begins, from) = (0, mark.lengths.get(file).copied().unwrap_or_default());
    let mut lines = Vec::new();
    // The last line may be half written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        lines.push((begins >= from, serde_json::from_str(line).unwrap()));
        begins += line.len() as u64 + 1;
    }
    lines
}

/// Waits until a call of each caller failed since the server ended: then no earlier call is in flight.
async fn callers_get_errors(folder: &Path, since: &Mark) {
    let deadline = Instant::now() + PATIENCE;
    // Not parsed: the histories are long, and are read many times.
    let is = |line: &str, event: &str| line.contains(&format!("\"event\":\"{event}\""));
    let has_error = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        let from = since.lengths.get(file).copied().unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let (mut begins, mut calls, mut fails) = (0, false, false);
        for line in whole.lines() {
            calls |= is(line, "trigger_invoke");
            fails |= begins >= from && is(line, "trigger_fail");
            begins += line.len() as u64 + 1;
        }
        !calls || fails
    };
    while !files(folder, "jsonl").iter().all(has_error) {
        assert!(Instant::now() < deadline, "a caller gets no error");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The order that an entry is about.
fn order(entry: &Entry) -> Option<u64> {
    match entry {
        Entry::Ask { order }
        | Entry::Answer { order, .. }
        | Entry::Unanswered { order, .. }
        | Entry::Conflict { order }
        | Entry::Taken { order }
        | Entry::Committed { order }
        | Entry::RolledBack { order } => Some(*order),
        Entry::Begin { .. } | Entry::End { .. } => None,
    }
}

/// Orders of the lost time: the replica may have them or not.
fn old_orders(folder: &Path, mark: &Mark) -> BTreeSet<u64> {
    let entries = files(folder, "record").into_iter().flat_map(|file| lines::<Entry>(&file, mark));
    let old = entries.filter(|(is_new, _)| !is_new);
    old.filter_map(|(_, entry)| order(&entry)).collect()
}

/// Writes what was recorded of the time after the mark to another folder.
fn cut(folder: &Path, mark: &Mark) -> PathBuf {
    let after = folder.join("after");
    std::fs::create_dir(&after).unwrap();
    let old = old_orders(folder, mark);
    for file in files(folder, "jsonl") {
        write(&after, &file, events_after(lines(&file, mark), &old, mark));
    }
    for file in files(folder, "record") {
        let entries = lines::<Entry>(&file, mark).into_iter().filter(|(is_new, entry)| {
            *is_new && order(entry).is_none_or(|order| !old.contains(&order))
        });
        write(&after, &file, entries.map(|(_, entry)| entry));
    }
    let of_lost = |event| Line::new("the lost time", event);
    let (what, whom) = ("kill".to_owned(), "the lost time".to_owned());
    let lost = [Event::Begin { t: Timestamp::MIN }, Event::Fault { t: mark.at, what, whom }];
    write(&after, Path::new("lost.jsonl"), lost.map(of_lost));
    after
}

/// The new events of one process, of those calls that it made after the mark.
fn events_after(
    lines: Vec<(bool, Line)>,
    old: &BTreeSet<u64>,
    mark: &Mark,
) -> impl Iterator<Item = Line> {
    let [mut called, mut stamped, mut read] = [(); 3].map(|()| BTreeSet::new());
    let is_old = |key: &str| key.parse().is_ok_and(|order| old.contains(&order));
    let kept = lines.into_iter().filter(move |(is_new, line)| match &line.event {
        // What was set up before is known to the replica, too.
        Event::Begin { .. }
        | Event::Worker { .. }
        | Event::Record { .. }
        | Event::Queue { .. }
        | Event::TaskChanged { .. }
        | Event::Schedule { .. } => true,
        // A call without an answer: the replica may know of it.
        Event::TriggerInvoke { .. } if !is_new => true,
        _ if !is_new || mark.is_lost(&line.event) => false,
        Event::TriggerInvoke { idempotency: Some(one), .. } if is_old(one.key.as_str()) => false,
        Event::TriggerInvoke { op, .. } => called.insert(*op),
        Event::TriggerOk { op, .. } | Event::TriggerFail { op, .. } | Event::TriggerInfo { op } => {
            called.contains(op)
        }
        Event::Stamp { op, .. } => stamped.insert(*op),
        Event::StampOk { op } => stamped.contains(op),
        Event::Read { run, .. } => read.insert(*run),
        Event::ReadOk { run } => read.contains(run),
        _ => true,
    });
    kept.map(|(_, line)| line)
}

fn write<T: serde::Serialize>(folder: &Path, of: &Path, lines: impl IntoIterator<Item = T>) {
    let mut file = File::create(folder.join(of.file_name().unwrap())).unwrap();
    for line in lines {
        writeln!(file, "{}", serde_json::to_string(&line).unwrap()).unwrap();
    }
}

/// The jobs of triggers that were accepted.
fn accepted(folder: &Path) -> BTreeSet<JobId> {
    let jobs = events(folder).into_iter().filter_map(|event| match event {
        Event::TriggerOk { receipt: Receipt::Accepted { trigger, .. }, .. } => Some(trigger.job),
        _ => None,
    });
    jobs.collect()
}

async fn lose_the_newest(mut ground: Ground) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (operator, mut processes) = begin(folder, &ground).await;
    accepted_more(folder, 200).await;
    ground.gray().split();
    let known = accepted(folder);
    accepted_more(folder, 100).await;
    // One worker holds leases of the lost time, and stands still.
    processes.stand_still(0, true);
    let new = ground.gray().lose();
    let ended = now();
    let lost = &accepted(folder) - &known;
    callers_get_errors(folder, &Mark::now(folder, ended)).await;
    let mark = Mark::now(folder, ended);
    quell::checkup::skip_ids(&new).await.unwrap();
    ground.gray().lead();
    accepted_more(folder, 200).await;
    processes.stand_still(0, false);
    accepted_more(folder, 200).await;
    assert_eq!(processes.revive(), 0, "a process that lived through the loss gave up");
    processes.deploy().await;
    accepted_more(folder, 100).await;
    // One that begins on a busy machine may give up in order.
    processes.revive();

    let rested = come_to_rest(&mut ground, &mut processes, &operator).await;
    let after = cut(folder, &mark);
    let gone: Vec<_> = lost.iter().filter(|job| !rested.has(**job)).collect();
    assert!(gone.len() >= 20, "nothing was lost: {gone:?} of {}", lost.len());
    eprintln!("{}", checked(&after, &ground.url(), JUDGED));
    let counts = verdict(&after, &mut ground, &processes, rested).await;
    eprintln!("{} jobs were lost; {counts}", gone.len());
    let needs = [
        ("accepted triggers found in their jobs", 200),
        ("leases of one key compared", 50),
        ("bodies compared", 20),
        ("answers compared with their job", 10),
    ];
    assert_eq!(counts.missing(&needs), Vec::<String>::new());
}

#[tokio::test]
async fn r21_r39_what_comes_after_a_promoted_replica_lost_writes_is_kept_on_postgres() {
    lose_the_newest(Ground::gray_postgres()).await;
}

#[tokio::test]
async fn r21_r39_what_comes_after_a_promoted_replica_lost_writes_is_kept_on_redis() {
    lose_the_newest(Ground::gray_redis()).await;
}
