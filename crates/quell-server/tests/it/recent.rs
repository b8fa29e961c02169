//! The record of what was seen lately: its bounds, and what a timeline of a million triggers costs.

use std::time::Duration;

use quell::store::{Answer, Observer, Operation};
use quell::trigger::{NewTrigger, TriggerId};
use quell::{Batch, JobId, Key, Payload, QueueName, Receipt, TaskName, Timestamp};
use quell_server::recent::{Limits, Recent, Span};

fn task(name: &str) -> TaskName {
    TaskName::new(name).unwrap()
}

/// After the beginning of any record here.
fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(10_000_000_000) + Duration::from_millis(millis)
}

/// Notes `count` triggers of a task at a moment, spread over this number of keys.
fn note(recent: &Recent, name: &str, moment: Timestamp, count: u64, keys: u64) {
    let debounce =
        quell::Policy::default().debounce(Duration::from_secs(1)..=Duration::from_secs(2));
    let one = |number: u64| {
        let key = Key::new(format!("k{}", number % keys)).unwrap();
        debounce.trigger(task(name), Payload::encode(&0).unwrap(), Some(key)).unwrap()
    };
    let triggers: Vec<NewTrigger> = (0..count).map(one).collect();
    let receipt = |_| {
        let trigger = TriggerId { job: JobId::new(1), seq: 1 };
        Receipt::Accepted { job: JobId::new(1), trigger, due: moment }
    };
    let receipts = triggers.iter().map(receipt).collect();
    let batch = Batch { triggers, dedup: None };
    let operation = Operation::Enqueue { batches: vec![batch] };
    let seen = recent.call(Some(moment), &operation).unwrap();
    seen(&Answer::Enqueue(vec![Ok(receipts)]));
}

fn timeline(recent: &Recent, name: &str, span: Span) -> quell_server::recent::Timeline {
    recent.timeline(&task(name), |_: &QueueName| true, None, span)
}

#[test]
fn a_loud_task_makes_the_record_forget_its_own_triggers_and_says_so() {
    let recent = Recent::new(Limits { triggers: 1_600, runs: 10, lanes: 2 });
    note(&recent, "quiet", at(0), 10, 2);
    for minute in 0..50 {
        note(&recent, "loud", at(minute * 60_000), 100, 5);
    }
    let whole = Span { from: at(0), to: at(60 * 60_000), steps: 60 };
    let (quiet, loud) = (timeline(&recent, "quiet", whole), timeline(&recent, "loud", whole));
    assert_eq!((quiet.triggers, quiet.distinct), (10, 2));
    assert!((1_400..=1_590).contains(&loud.triggers), "{}", loud.triggers);
    let (complete, _) = loud.complete;
    assert!(complete > at(0) && complete < at(50 * 60_000), "{complete}");
    let first = loud.ticks.first().unwrap().0;
    assert!(first >= 30, "the oldest are forgotten: {first}");

    // A third task has no place, and harms no one.
    note(&recent, "third", at(0), 10, 1);
    let third = timeline(&recent, "third", whole);
    assert_eq!(third.triggers, 0);
    assert!(
        third.complete.0 > recent.since(),
        "it does not claim to have all: {:?}",
        third.complete
    );
    assert_eq!(recent.activities().len(), 2);
}

#[test]
fn a_view_of_a_million_triggers_is_as_small_as_one_of_a_thousand() {
    let recent = Recent::new(Limits { triggers: 1_000_000, runs: 1_000, lanes: 10 });
    for step in 0..100 {
        note(&recent, "t", at(step * 1_000), 10_000, 5_000);
    }
    let whole = Span { from: at(0), to: at(100_000), steps: 1_000 };
    let seen = timeline(&recent, "t", whole);
    assert_eq!((seen.triggers, seen.distinct, seen.ticks.len()), (1_000_000, 5_000, 100));
    assert!(seen.keys.len() <= 12);
    let one = Key::new("k7").unwrap();
    let of_key = recent.timeline(&task("t"), |_: &QueueName| true, Some(&one), whole);
    assert_eq!((of_key.triggers, of_key.keys.len()), (200, 0));
    let part = Span { from: at(10_000), to: at(20_000), steps: 10 };
    assert_eq!(timeline(&recent, "t", part).triggers, 100_000);
}

#[test]
fn a_trigger_without_a_key_is_counted_under_none() {
    let recent = Recent::default();
    let trigger =
        NewTrigger::new(task("t"), QueueName::new("q").unwrap(), Payload::encode(&0).unwrap());
    let receipts = vec![Receipt::Accepted {
        job: JobId::new(1),
        trigger: TriggerId { job: JobId::new(1), seq: 1 },
        due: at(0),
    }];
    let operation = Operation::Enqueue { batches: vec![Batch::one(trigger)] };
    recent.call(Some(at(0)), &operation).unwrap()(&Answer::Enqueue(vec![Ok(receipts)]));
    let span = Span { from: at(0), to: at(1), steps: 1 };
    let seen = timeline(&recent, "t", span);
    assert_eq!((seen.triggers, seen.distinct, seen.ticks), (1, 0, vec![(0, 1)]));
}
