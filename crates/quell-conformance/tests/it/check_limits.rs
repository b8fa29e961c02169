//! The checker on limits (P21, P23, P24): a run of the model is judged by the limits that it had, and
//! by some that it had not.

use futures_util::FutureExt;
use quell_conformance::check::{Report, check, parse};
use quell_conformance::history::Recorder;
use quell_conformance::rig::{plain, queue, secs, task};
use quell_conformance::{Opened, Rig};
use quell_core::history::{Event, WorkerTask};
use quell_core::retry::Retry;
use quell_core::{
    Claim, MemoryStore, NewTrigger, QueueSettings, Rate, TaskSettings, Timestamp, WorkerId,
};

/// What a run of two workers and two partitions under these limits leaves on record.
async fn run(settings: &QueueSettings) -> Vec<Event> {
    let recorder = Recorder::default();
    let store = MemoryStore::new(Rig::START).with_history(recorder.sink());
    let mut rig = Rig::new(Opened { store: std::sync::Arc::new(store), guard: Box::new(()) });
    rig.set_queue(settings.clone()).await;
    for n in 0..12 {
        let partition = quell_conformance::rig::key(["a", "b"][n % 2]);
        rig.trigger(NewTrigger { partition: Some(partition), ..plain("1") }).await;
    }
    for second in 0..30 {
        for name in ["w1", "w2"] {
            let asked = Claim { worker: WorkerId::new(name).unwrap(), ..Rig::claim_of(2) };
            let jobs = rig.at(second).claim_with(&asked).await;
            for job in jobs.iter().filter(|_| second % 3 == 0) {
                rig.succeed(job).await;
            }
        }
    }
    recorder.take()
}

/// The verdict on a run by a record that says `settings`.
fn judged(events: &[Event], settings: &QueueSettings) -> Report {
    let worker = |name| Event::Worker {
        worker: WorkerId::new(name).unwrap(),
        tasks: vec![WorkerTask { task: task("t"), queue: queue(), retry: Retry::default() }],
    };
    let t: Timestamp = Rig::START;
    let head = [
        Event::Record { faults: true, punctual: None },
        worker("w1"),
        worker("w2"),
        Event::Queue { t, queue: queue(), settings: settings.clone() },
    ];
    let without_own = events.iter().filter(|event| !matches!(event, Event::Queue { .. }));
    let lines: Vec<String> =
        head.iter().chain(without_own).map(|event| serde_json::to_string(event).unwrap()).collect();
    check(&parse("store", &lines.join("\n")).unwrap())
}

fn limits() -> [QueueSettings; 5] {
    let none = QueueSettings::default;
    let rate = |limit| Some(Rate { limit, period: secs(2) });
    [
        QueueSettings { concurrency: Some(3), ..none() },
        QueueSettings { worker_concurrency: Some(1), ..none() },
        QueueSettings { partition_concurrency: Some(1), ..none() },
        QueueSettings { rate: rate(3), ..none() },
        QueueSettings { partition_rate: rate(1), ..none() },
    ]
}

#[test]
fn checker_finds_each_limit_that_was_exceeded() {
    let unlimited = run(&QueueSettings::default()).now_or_never().unwrap();
    for settings in limits() {
        let report = judged(&unlimited, &settings);
        assert!(report.broke("P21"), "{settings:?} was not missed");
    }
}

#[test]
fn checker_accuses_nobody_who_kept_the_limits() {
    for settings in limits() {
        let events = run(&settings).now_or_never().unwrap();
        let report = judged(&events, &settings);
        let wrong = |property: &&str| report.broke(property);
        assert_eq!(["P21", "P23", "P24"].iter().find(|p| wrong(p)), None, "{settings:?}");
    }
}

#[test]
fn checker_finds_starts_of_a_paused_task_and_in_a_deleted_queue() {
    let events = run(&QueueSettings::default()).now_or_never().unwrap();
    let t = Rig::START;
    let paused = TaskSettings::default().paused(true);
    for closing in [
        Event::TaskChanged { t, task: task("t"), settings: paused },
        Event::QueueDeleted { t, queue: queue() },
    ] {
        let reported: Vec<Event> = std::iter::once(closing.clone()).chain(events.clone()).collect();
        assert!(judged(&reported, &QueueSettings::default()).broke("P24"), "{closing:?}");
    }
}
