//! Made-up events for the judges' own tests: times in microseconds, leases of 100, one key.

use quell::history::Event;
use quell::job::{AttemptOutcome, SettledAs};
use quell::store::{Draw, LeaseToken, MemoryStore, Store};
use quell::trigger::{NewTrigger, Traces};
use quell::worker::WorkerId;
use quell::{Batch, Job, JobId, JobState, Key, Payload, QueueName, TaskName, Timestamp};

use crate::chaos::workload::record::Entry;

pub(super) const LEASE: i64 = 100;

pub(super) fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(super) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).unwrap()
}

/// A claim of a job of the one key in the queue `narrow`.
pub(super) fn claimed(t: i64, job: u64, token: u64) -> Event {
    claimed_by("w", t, job, token)
}

pub(super) fn claimed_by(name: &str, t: i64, job: u64, token: u64) -> Event {
    Event::Claimed {
        t: at(t),
        job: JobId::new(job),
        token: LeaseToken::of(token, Draw::MIN),
        task: TaskName::new("stamped").unwrap(),
        queue: QueueName::new("narrow").unwrap(),
        key: Some(Key::new("k").unwrap()),
        worker: worker(name),
        count: 1,
        due: at(t),
        attempt: 1,
        until: at(t + LEASE),
    }
}

pub(super) fn started(t: i64, job: u64, token: u64) -> Event {
    Event::Start {
        t: at(t),
        job: JobId::new(job),
        token: LeaseToken::of(token, Draw::MIN),
        task: TaskName::new("stamped").unwrap(),
        key: Some(Key::new("k").unwrap()),
        worker: worker("w"),
        count: 1,
        due: at(t),
        attempt: 1,
        until: at(t + LEASE),
        payload: None,
        traces: Traces::default(),
    }
}

pub(super) fn renew(t: i64, job: u64, token: u64, until: i64) -> Event {
    let (job, token) = (JobId::new(job), LeaseToken::of(token, Draw::MIN));
    Event::Renew { t: at(t), job, token, until: at(until) }
}

pub(super) fn expiry(t: i64, job: u64, token: u64) -> Event {
    let (job, token) = (JobId::new(job), LeaseToken::of(token, Draw::MIN));
    Event::Expire { t: at(t), job, token, became: SettledAs::Scheduled { due: at(t) }, crash: true }
}

pub(super) fn settled(t: i64, job: u64, token: u64) -> Event {
    ended(t, job, token, AttemptOutcome::Succeeded, SettledAs::Succeeded)
}

pub(super) fn ended(
    t: i64,
    job: u64,
    token: u64,
    outcome: AttemptOutcome,
    became: SettledAs,
) -> Event {
    let (job, token) = (JobId::new(job), LeaseToken::of(token, Draw::MIN));
    Event::Settle {
        t: at(t),
        job,
        token,
        outcome,
        permanent: false,
        exhausted: false,
        asked: false,
        in_tx: false,
        became,
    }
}

/// A body of the one key.
pub(super) fn body(begin: i64, end: i64, job: u64, started: i64) -> Vec<Entry> {
    let started = at(started);
    let (task, key) = (TaskName::new("stamped").unwrap(), Some(Key::new("k").unwrap()));
    vec![
        Entry::Begin { at: at(begin), job, started, task, key },
        Entry::End { at: at(end), job, started },
    ]
}

/// The row of a job without a key that succeeded.
pub(super) fn job(id: u64, task: &str, payload: &str) -> Job {
    let (task, queue) = (TaskName::new(task).unwrap(), QueueName::new("q").unwrap());
    let trigger = NewTrigger::new(task, queue, Payload::from_text(payload).unwrap());
    let store = MemoryStore::new(at(0));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut job = runtime.block_on(async {
        let receipts = store.enqueue(Some(at(1)), vec![Batch::one(trigger)]).await;
        drop(receipts);
        store.job(JobId::new(1)).await.unwrap().unwrap()
    });
    (job.id, job.state) = (JobId::new(id), JobState::Succeeded);
    job
}
