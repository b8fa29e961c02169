//! The checker on closed windows (P8): a run of the model is judged as it was, and as if two windows
//! of a key had started in another order.

use std::sync::Arc;

use futures_util::FutureExt;
use quell_conformance::check::{Report, check, parse};
use quell_conformance::history::Recorder;
use quell_conformance::rig::{debounce, keyed_with};
use quell_conformance::{Opened, Rig};
use quell_core::history::Event;
use quell_core::{Fold, JobId, MemoryStore};

/// Three windows of a key that run one after the other.
async fn run() -> Vec<Event> {
    let recorder = Recorder::default();
    let store = MemoryStore::new(Rig::START).with_history(recorder.sink());
    let mut rig = Rig::new(Opened { store: Arc::new(store), guard: Box::new(()) });
    for payload in ["1", "2", "3"] {
        rig.trigger(keyed_with("k", debounce(), Fold::Collect { cap: 1 }, payload)).await;
    }
    for second in [20, 21, 22] {
        let run = rig.at(second).claim_one().await;
        rig.succeed(&run).await;
    }
    recorder.take()
}

fn judged(events: &[Event]) -> Report {
    let head = Event::Record { faults: true, punctual: None };
    let lines: Vec<String> = std::iter::once(&head)
        .chain(events)
        .map(|event| serde_json::to_string(event).unwrap())
        .collect();
    check(&parse("store", &lines.join("\n")).unwrap())
}

/// Another job than this, of the first two.
fn other(job: JobId) -> JobId {
    JobId::new(3 - job.get())
}

#[test]
fn checker_finds_windows_of_a_key_that_overtake_each_other() {
    let mut events = run().now_or_never().unwrap();
    assert!(!judged(&events).broke("P8"));
    for event in &mut events {
        match event {
            Event::Claimed { job, .. } | Event::Settle { job, .. } if job.get() < 3 => {
                *job = other(*job);
            }
            _ => {}
        }
    }
    assert!(judged(&events).broke("P8"));
}
