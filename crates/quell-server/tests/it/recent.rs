//! The record of what was seen lately: its bounds, and what a timeline of a million triggers costs.

use std::time::Duration;

use quell::store::{Answer, Claim, Lease, MemoryStore, Now, Observer, Operation, Store};
use quell::trigger::{NewTrigger, TriggerId};
use quell::{Batch, JobId, Key, Payload, QueueName, Receipt, TaskName, Timestamp};
use quell_server::history::host_time;
use quell_server::recent::{Limits, Recent, Span};

fn task(name: &str) -> TaskName {
    TaskName::new(name).unwrap()
}

/// After the beginning of any record here.
fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(10_000_000_000) + Duration::from_millis(millis)
}

/// A claim of one job.
fn claim() -> Claim {
    Claim {
        queue: QueueName::new("q").unwrap(),
        tasks: [task("t")].into(),
        worker: quell_core::WorkerId::new("w").unwrap(),
        limit: 1,
        lease: Duration::from_secs(30),
        draw: quell_core::Draw::MIN,
    }
}

/// Notes `count` triggers of a task at a moment, spread over this number of keys.
fn note(recent: &Recent, name: &str, moment: Timestamp, count: u64, keys: u64) {
    note_at(recent, name, Some(moment), count, keys);
}

/// The same; where no moment is given, when they are answered.
fn note_at(recent: &Recent, name: &str, moment: Now, count: u64, keys: u64) {
    let debounce =
        quell::Policy::default().debounce(Duration::from_secs(1)..=Duration::from_secs(2));
    let one = |number: u64| {
        let key = Key::new(format!("k{}", number % keys)).unwrap();
        debounce.trigger(task(name), Payload::encode(&0).unwrap(), Some(key)).unwrap()
    };
    let triggers: Vec<NewTrigger> = (0..count).map(one).collect();
    let receipt = |_| {
        let trigger = TriggerId { job: JobId::new(1), seq: 1 };
        Receipt::Accepted { job: JobId::new(1), trigger, due: at(0) }
    };
    let receipts = triggers.iter().map(receipt).collect();
    let batch = Batch { triggers, dedup: None };
    let operation = Operation::Enqueue { batches: vec![batch] };
    let seen = recent.call(moment, &operation).unwrap();
    seen(&Answer::Enqueue(vec![Ok(receipts)]));
}

fn timeline(recent: &Recent, name: &str, span: Span) -> quell_server::recent::Timeline {
    recent.timeline(&task(name), |_: &QueueName| true, None, span)
}

#[test]
fn a_loud_task_makes_the_record_forget_its_own_triggers_and_says_so() {
    let recent = Recent::new(Limits { triggers: 1_600, runs: 10, lanes: 2, queues: 64 });
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
    let recent = Recent::new(Limits { triggers: 1_000_000, runs: 1_000, lanes: 10, queues: 64 });
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

#[test]
fn a_task_that_names_ever_new_queues_takes_no_place_of_another() {
    let recent = Recent::new(Limits { triggers: 1_000, runs: 10, lanes: 10, queues: 3 });
    let receipt = Receipt::Accepted {
        job: JobId::new(1),
        trigger: TriggerId { job: JobId::new(1), seq: 1 },
        due: at(0),
    };
    for number in 0..50 {
        let queue = QueueName::new(format!("q{number}")).unwrap();
        let trigger = NewTrigger::new(task("greedy"), queue, Payload::encode(&0).unwrap());
        let operation = Operation::Enqueue { batches: vec![Batch::one(trigger)] };
        let seen = recent.call(Some(at(0)), &operation).unwrap();
        seen(&Answer::Enqueue(vec![Ok(vec![receipt.clone()])]));
    }
    assert!(recent.left_out().is_some(), "it says that something is missing");
    note(&recent, "modest", at(0), 5, 1);
    let whole = Span { from: at(0), to: at(1), steps: 1 };
    assert_eq!(timeline(&recent, "greedy", whole).triggers, 3);
    assert_eq!(timeline(&recent, "modest", whole).triggers, 5);
}

#[tokio::test]
async fn r21_an_attempt_whose_worker_fell_silent_is_lost_when_its_lease_ends() {
    let recent = Recent::default();
    // The lease ended long before the record is looked at, and no one has noticed.
    let then = Timestamp::from_secs(1_000_000);
    let store = MemoryStore::new(then);
    let call = async |now: Timestamp, operation: Operation| {
        let seen = recent.call(Some(now), &operation);
        let answer = Store::call(&store, Some(now), operation).await.unwrap();
        if let Some(seen) = seen {
            seen(&answer);
        }
        answer
    };
    let queue = QueueName::new("q").unwrap();
    let trigger = NewTrigger::new(task("t"), queue.clone(), Payload::encode(&0).unwrap());
    call(then, Operation::Enqueue { batches: vec![Batch::one(trigger)] }).await;
    let lease = Duration::from_secs(30);
    let claim = Claim { queue, lease, ..claim() };
    let Answer::Claim(claimed) = call(then, Operation::Claim { claim: claim.clone() }).await else {
        panic!("a claim is answered by another operation's answer")
    };
    let leases = vec![Lease { job: claimed.jobs[0].id, token: claimed.jobs[0].token }];
    let renewed = then + Duration::from_secs(20);
    call(renewed, Operation::Renew { leases, lease }).await;
    // Another queue's claim says how late it is, and reaps nothing.
    let claim = Claim { queue: QueueName::new("other").unwrap(), ..claim };
    call(then + Duration::from_secs(100), Operation::Claim { claim }).await;
    let span = Span { from: then, to: then + Duration::from_secs(100), steps: 10 };
    let bar = timeline(&recent, "t", span).bars[0].run;
    assert_eq!((bar.lost, bar.ended), (true, Some(renewed + lease)));
}

/// The answer to a claim of an empty store by whose clock it is `now`.
async fn nothing(now: Timestamp) -> Answer {
    let operation = Operation::Claim { claim: claim() };
    Store::call(&MemoryStore::new(now), Some(now), operation).await.unwrap()
}

/// On a busy machine an answer may come long after the store read its clock.
#[tokio::test]
async fn a_trigger_is_in_a_timeline_though_an_earlier_claim_is_answered_after_it() {
    let recent = Recent::default();
    let seen = recent.call(None, &Operation::Claim { claim: claim() }).unwrap();
    let read = host_time();
    let answer = nothing(read).await;
    while host_time().since(read) < Duration::from_millis(20) {
        tokio::task::yield_now().await;
    }
    note_at(&recent, "t", None, 1, 1);
    seen(&answer);
    let to = recent.now();
    let span = Span { from: to.before(Duration::from_secs(600)), to, steps: 10 };
    assert_eq!(timeline(&recent, "t", span).triggers, 1);
}

#[tokio::test]
async fn the_record_goes_by_the_clock_of_the_store() {
    let recent = Recent::default();
    for ahead in [7_200, 3_600] {
        let seen = recent.call(None, &Operation::Claim { claim: claim() }).unwrap();
        seen(&nothing(host_time() + Duration::from_secs(ahead)).await);
        let known = recent.now().since(host_time()).as_secs();
        assert!(known.abs_diff(ahead) < 600, "{known} s, and the store is {ahead} s ahead");
    }
}

#[test]
fn habits_count_the_keys_of_a_task_and_those_that_came_once() {
    let recent = Recent::default();
    note(&recent, "t", at(0), 100, 5);
    note(&recent, "t", at(1), 7, 7);
    note(&recent, "other", at(1), 50, 50);
    let habits = recent.habits(&task("t"), |_: &QueueName| true);
    assert_eq!((habits.triggers, habits.keys), (107, (7, 2)));
    let most: Vec<u64> = habits.most.iter().map(|key| key.triggers).collect();
    assert_eq!(most, [21, 21, 21, 21, 21, 1, 1]);
    assert_eq!((habits.took.len(), habits.longest), (0, None));
}

#[tokio::test]
async fn where_attempts_are_too_many_to_draw_the_starts_of_each_key_are_counted() {
    let recent = Recent::default();
    let store = MemoryStore::new(at(0));
    let call = async |now: Timestamp, operation: Operation| {
        let seen = recent.call(Some(now), &operation).unwrap();
        let answer = Store::call(&store, Some(now), operation).await.unwrap();
        seen(&answer);
        answer
    };
    let debounce =
        quell::Policy::default().debounce(Duration::from_secs(1)..=Duration::from_secs(1));
    let one = |number: u64| {
        let key = Key::new(format!("k{number:03}")).unwrap();
        debounce.trigger(task("t"), Payload::encode(&0).unwrap(), Some(key)).unwrap()
    };
    let claim = Claim { queue: one(0).queue, limit: 500, ..claim() };
    let whole = Span { from: at(0), to: at(4_000), steps: 4 };
    for (count, moment) in [(100, 0), (500, 2_000)] {
        let batches = (0..count).map(|number| Batch::one(one(number))).collect();
        call(at(moment), Operation::Enqueue { batches }).await;
        call(at(moment + 1_500), Operation::Claim { claim: claim.clone() }).await;
        let seen = timeline(&recent, "t", whole);
        // The busiest keys are those of the first round, whose attempts go on.
        let started = seen.keys.iter().filter(|key| key.starts.0 == [(1, 1)]).count();
        match count {
            100 => assert_eq!((seen.bars.len(), started), (100, 0), "each is drawn"),
            _ => assert_eq!((seen.runs, seen.bars.len(), started), (500, 0, 12)),
        }
    }
}
