//! What the processes of a run wrote, and what the judges need to know of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use quell::history::Event;
use quell::job::{AttemptOutcome, SettledAs};
use quell::store::LeaseToken;
use quell::worker::WorkerId;
use quell::{Job, JobId, Key, TaskName, Timestamp};
use serde::de::DeserializeOwned;

use super::pauses::Pause;
use crate::chaos::workload::record::Entry;

/// Everything that a run left behind.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// Every event of every process.
    pub(crate) events: Vec<Event>,
    /// What callers and handlers recorded.
    pub(crate) entries: Vec<Entry>,
    /// The workers whose processes were killed or gave up.
    pub(crate) gone: BTreeSet<WorkerId>,
    /// What the operator paused.
    pub(crate) pauses: Vec<Pause>,
    /// The rows of jobs that died, as they were then.
    pub(crate) died: Vec<Job>,
    /// The store's rows.
    pub(crate) jobs: BTreeMap<JobId, Job>,
}

impl Story {
    /// Adds the files of a folder; `gone` are the numbers of the processes that did not end in
    /// order.
    pub(crate) fn read(mut self, folder: &Path, gone: &BTreeSet<usize>) -> Story {
        let story = &mut self;
        for path in files(folder, "record") {
            story.entries.extend(lines::<Entry>(&path));
        }
        for path in files(folder, "jsonl") {
            let events = lines::<Event>(&path);
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<usize>().ok());
            if number.is_some_and(|number| gone.contains(&number)) {
                let workers = events.iter().filter_map(|event| match event {
                    Event::Worker { worker, .. } => Some(worker.clone()),
                    _ => None,
                });
                story.gone.extend(workers);
            }
            story.events.extend(events);
        }
        self
    }
}

/// The files of this kind in a folder.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == ending)).collect()
}

/// Every line of a file; a torn last line is what a kill or a full disk may leave.
fn lines<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut parsed = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(line) => parsed.push(line),
            Err(error) => assert_eq!(index + 1, lines.len(), "{}: {error}", path.display()),
        }
    }
    parsed
}

/// Every event of every process.
pub(crate) fn events(folder: &Path) -> Vec<Event> {
    files(folder, "jsonl").iter().flat_map(|path| lines::<Event>(path)).collect()
}

/// One attempt's right, as the store granted, extended and ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) job: JobId,
    pub(crate) token: LeaseToken,
    pub(crate) task: TaskName,
    pub(crate) key: Option<Key>,
    pub(crate) queue: String,
    pub(crate) worker: WorkerId,
    pub(crate) from: Timestamp,
    /// When the lease expires, as far as it was extended on record.
    pub(crate) until: Timestamp,
    /// When the attempt was settled or its lease taken back, if that is on record.
    pub(crate) ended: Option<Timestamp>,
    pub(crate) expired: bool,
    /// Whether the expiry counts as a crash of the worker (R25).
    pub(crate) crash: bool,
    /// Whether the attempt reported: it succeeded, failed or was snoozed.
    pub(crate) reported: bool,
}

impl Held {
    /// The end of the right: its settlement, or its expiry where that came first. None where the
    /// record does not say, because a process was killed between a commit and its record.
    pub(crate) fn end(&self) -> Option<Timestamp> {
        self.ended.map(|ended| ended.min(self.until))
    }
}

/// Every lease that was granted on record, by its start.
pub(crate) fn leases(events: &[Event]) -> Vec<Held> {
    let mut held = BTreeMap::new();
    for event in events {
        if let Event::Claimed { t, job, token, task, queue, key, worker, until, .. } = event {
            let lease = Held {
                job: *job,
                token: *token,
                task: task.clone(),
                key: key.clone(),
                queue: queue.to_string(),
                worker: worker.clone(),
                from: *t,
                until: *until,
                ended: None,
                expired: false,
                crash: false,
                reported: false,
            };
            held.insert((*job, *token), lease);
        }
    }
    for event in events {
        match event {
            Event::Renew { job, token, until, .. } => {
                if let Some(lease) = held.get_mut(&(*job, *token)) {
                    lease.until = lease.until.max(*until);
                }
            }
            Event::Expire { t, job, token, crash, .. } => {
                if let Some(lease) = held.get_mut(&(*job, *token)) {
                    (lease.ended, lease.expired, lease.crash) = (Some(*t), true, *crash);
                }
            }
            Event::Settle { t, job, token, outcome, became, .. }
                if *became != SettledAs::Refused =>
            {
                if let Some(lease) = held.get_mut(&(*job, *token)) {
                    let released = *outcome == AttemptOutcome::Released;
                    lease.ended = Some(*t);
                    lease.reported = !released && *became != SettledAs::Dead;
                }
            }
            _ => {}
        }
    }
    let mut leases: Vec<Held> = held.into_values().collect();
    leases.sort_by_key(|lease| lease.from);
    leases
}
