//! Accepting triggers: receipts, batches, delays, the clock.

use std::time::Duration;

use quell_core::dedup::Dedup;
use quell_core::edge::Edge;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    AttemptOutcome, Batch, ClaimedJob, ErrorKind, Failure, FailureKind, Fold, JobState, NewTrigger,
    Outcome, Payload, QueueSettings, Receipt, Redrive, When,
};

use crate::rig::{Rig, debounce, key, keyed, keyed_with, lease, plain, secs, task};

/// A task that collects is given an array without a debounce key, too: at once, later, in a batch,
/// and after its death, when it is edited.
pub async fn r09_r10_a_task_that_collects_gets_an_array_without_a_key_too(mut rig: Rig) {
    let collects = |payload: &str| NewTrigger { fold: Fold::Collect { cap: 9 }, ..plain(payload) };
    let later = NewTrigger { when: When::After(secs(5)), ..collects("[2]") };
    rig.trigger(collects("1")).await;
    rig.trigger_batch(Batch { triggers: vec![later, collects("{}")], dedup: None }).await;
    rig.trigger(plain("4")).await;
    let merges = NewTrigger { fold: Fold::Merge, ..plain(r#"{"a":null}"#) };
    rig.trigger(merges).await;
    let payloads = |jobs: &[ClaimedJob]| -> Vec<String> {
        jobs.iter().map(|job| job.payload.as_str().to_owned()).collect()
    };
    let first = rig.claim().await;
    assert_eq!(payloads(&first), ["[1]", "[{}]", "4", r#"{"a":null}"#]);
    rig.fail(&first[0], secs(3)).await;
    let again = rig.at(5).claim().await;
    assert_eq!(payloads(&again), ["[1]", "[[2]]"]);
    let kind = FailureKind::Permanent;
    let failure = Failure { error: "boom".to_owned(), ended: AttemptOutcome::Failed, kind };
    rig.settle(lease(&again[0]), Outcome::Failed(failure)).await;
    let edit =
        |text| Redrive { id: again[0].id, payload: Some(Payload::from_text(text).expect("JSON")) };
    let refused = rig.store.redrive(Some(rig.now()), &edit("7")).await;
    assert_eq!(refused.expect_err("it is no array").field(), Some("payload"));
    rig.store.redrive(Some(rig.now()), &edit("[7,8]")).await.expect("is redriven");
    assert_eq!(payloads(&rig.claim().await), ["[7,8]"]);
}

/// A delay or a moment beyond the trigger's own max is refused by its field and its place, and the
/// whole batch with it. One within max, or without a key, is kept to the second.
pub async fn r07_r40_a_delay_beyond_max_is_refused_and_one_within_it_is_kept(mut rig: Rig) {
    let hour = NewTrigger { when: When::After(secs(3_600)), ..keyed("a") };
    let late = NewTrigger { when: When::At(rig.now() + secs(61)), ..keyed("a") };
    let throttle = Debounce::throttle(secs(8)).expect("valid");
    let throttled =
        NewTrigger { when: When::After(secs(9)), ..keyed_with("a", throttle, Fold::Last, "1") };
    let leading = Debounce { edge: Edge::Leading, ..debounce() };
    let leads =
        NewTrigger { when: When::After(secs(61)), ..keyed_with("a", leading, Fold::Last, "1") };
    for (trigger, field) in
        [(hour, "delay"), (late, "run_at"), (throttled, "delay"), (leads, "delay")]
    {
        let triggers = vec![plain("1"), trigger];
        let refused = rig.try_batch(Batch { triggers, dedup: None }).await;
        let refused = refused.expect_err("the delay is too long");
        assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some(field)));
        assert!(refused.to_string().starts_with("triggers[1]: "), "{refused}");
        assert!(refused.to_string().contains("without debounce"), "{refused}");
    }
    assert!(rig.jobs().await.is_empty(), "{}", rig.dump().await);

    let kept = [
        (keyed("b"), When::After(secs(60)), 60),
        (keyed("c"), When::At(rig.now() + secs(60)), 60),
        (plain("1"), When::After(secs(3_600)), 3_600),
        (keyed_with("d", throttle, Fold::Last, "1"), When::After(secs(8)), 8),
    ];
    for (trigger, when, second) in kept {
        let receipt = rig.trigger(NewTrigger { when, ..trigger }).await;
        let Receipt::Accepted { due, .. } = receipt else { panic!("{receipt:?}") };
        assert_eq!(Rig::second(due), second);
    }
    // A delay that an older window's bound cuts is in the receipt.
    let receipt =
        rig.at(10).trigger(NewTrigger { when: When::After(secs(55)), ..keyed("b") }).await;
    let Receipt::Debounced { due, .. } = receipt else { panic!("{receipt:?}") };
    assert_eq!(Rig::second(due), 60);
}

/// The thresholds that count are those of the queue, where the task names none (R14).
pub async fn r14_r40_a_delay_is_judged_by_the_queues_thresholds(rig: Rig) {
    let default = Debounce { from_default: true, ..debounce() };
    let after = |delay| NewTrigger {
        when: When::After(secs(delay)),
        ..keyed_with("a", default, Fold::Last, "1")
    };
    let thresholds = Thresholds::new(secs(10), secs(7_200)).expect("valid");
    rig.set_queue(QueueSettings { debounce: Some(thresholds), ..QueueSettings::default() }).await;
    let receipt = rig.trigger(after(7_200)).await;
    let Receipt::Accepted { due, .. } = receipt else { panic!("{receipt:?}") };
    assert_eq!(Rig::second(due), 7_200);
    let refused = rig.try_batch(Batch::one(after(7_201))).await;
    assert_eq!(refused.expect_err("the delay is too long").field(), Some("delay"));
}

/// Whatever happens in between, each accepted trigger is counted by a job whose attempt began after
/// it, or that ended on record.
pub async fn r02_every_accepted_trigger_is_covered_by_a_later_attempt(mut rig: Rig) {
    let mut accepted = 0;
    for second in 0..200_u64 {
        rig.at(second);
        let jobs = rig.claim().await;
        for job in &jobs {
            match second % 5 {
                0 => drop(rig.fail(job, secs(3)).await),
                1 => {} // Its lease expires.
                _ => rig.succeed(job).await,
            }
        }
        rig.store.reap(Some(rig.now()), 100).await.expect("reaps");
        if second % 3 != 2 && second < 100 {
            rig.trigger(keyed(if second % 2 == 0 { "a" } else { "b" })).await;
            accepted += 1;
        }
    }
    rig.at(201).run_until(400).await;
    let jobs = rig.jobs().await;
    let ended_well = jobs.iter().filter(|job| job.state == JobState::Succeeded);
    let covered: u64 = ended_well.clone().map(|job| job.window.triggers).sum();
    assert_eq!(covered, accepted, "{}", rig.dump().await);
    for job in ended_well {
        assert!(job.started_at >= Some(job.window.last_at), "{job:?}");
    }
}

/// A trigger is accepted, debounced or a duplicate, and says so; ids count the triggers of a job.
pub async fn r03_receipts_tell_what_became_of_each_trigger(mut rig: Rig) {
    let dedup = Some(Dedup::new(key("d")));
    let first = rig.trigger(NewTrigger { dedup: dedup.clone(), ..keyed("a") }).await;
    let Receipt::Accepted { job, trigger, due } = first else { panic!("{first:?}") };
    assert_eq!((trigger.job, trigger.seq, due), (job, 1, rig.now() + secs(10)));
    rig.at(4);
    let second = rig.trigger(keyed("a")).await;
    let Receipt::Debounced { job: same, trigger, triggers, due } = second else {
        panic!("{second:?}")
    };
    assert_eq!((same, trigger.seq, triggers, due), (job, 2, 2, rig.now() + secs(10)));
    let third = rig.trigger(NewTrigger { dedup, ..keyed("a") }).await;
    assert_eq!(third, Receipt::Duplicate { job });
    assert_eq!(rig.job(job).await.window.triggers, 2, "a duplicate is not counted");
}

/// Receipts come in order; a duplicate member gets its own.
pub async fn r05_a_batch_keeps_its_order_and_a_duplicate_fails_nobody(rig: Rig) {
    let dedup = || Some(Dedup::new(key("d")));
    let triggers = vec![
        keyed("a"),
        NewTrigger { dedup: dedup(), ..plain("1") },
        keyed("b"),
        NewTrigger { dedup: dedup(), ..plain("2") },
        keyed("a"),
        plain("3"),
    ];
    let receipts = rig.trigger_batch(Batch { triggers, dedup: None }).await;
    let outcomes: Vec<_> = receipts.iter().map(Receipt::outcome).collect();
    let expected = ["accepted", "accepted", "accepted", "duplicate", "debounced", "accepted"];
    assert_eq!(outcomes, expected);
    let jobs: Vec<_> = receipts.iter().map(|receipt| receipt.job().expect("a job")).collect();
    assert_eq!((jobs[0], jobs[1]), (jobs[4], jobs[3]));
    assert!(jobs[0] < jobs[1] && jobs[1] < jobs[2] && jobs[2] < jobs[5], "{jobs:?}");

    let many: Vec<_> = (0..1_000).map(|n| plain(&n.to_string())).collect();
    let receipts = rig.trigger_batch(Batch { triggers: many, dedup: None }).await;
    for (n, receipt) in receipts.iter().enumerate() {
        let job = rig.store.job(receipt.job().expect("a job")).await.expect("reads");
        assert_eq!(job.expect("is there").payload.as_str(), n.to_string());
    }
}

/// Two triggers without a key are two jobs, ready at once.
pub async fn r09_a_trigger_without_a_key_is_its_own_job_at_once(rig: Rig) {
    for payload in ["1", "2"] {
        rig.trigger(plain(payload)).await;
    }
    let jobs = rig.claim().await;
    let payloads: Vec<_> = jobs.iter().map(|job| job.payload.as_str().to_owned()).collect();
    assert_eq!(payloads, ["1", "2"]);
    assert!(jobs.iter().all(|job| job.due_at == rig.now() && job.triggers == 1));
}

/// A delay and a moment are kept exactly.
pub async fn r09_a_delay_holds_to_the_microsecond(mut rig: Rig) {
    let delay = Duration::from_micros(1_000_001);
    rig.trigger(NewTrigger { when: When::After(delay), ..plain("1") }).await;
    let moment = rig.now() + secs(5);
    rig.trigger(NewTrigger { when: When::At(moment), ..plain("2") }).await;
    let start = rig.now();
    rig.at_time(start + Duration::from_micros(1_000_000)).claim_none().await;
    let job = rig.at_time(start + delay).claim_one().await;
    assert_eq!((job.payload.as_str(), job.due_at), ("1", start + delay));
    rig.at_time(moment.before(Duration::from_micros(1))).claim_none().await;
    assert_eq!(rig.at_time(moment).claim_one().await.payload.as_str(), "2");
}

/// Where the clock goes back, the highest time seen holds.
pub async fn r38_store_time_never_goes_back(mut rig: Rig) {
    rig.at(100).trigger(keyed("a")).await;
    rig.at(40);
    let Receipt::Debounced { due, .. } = rig.trigger(keyed("a")).await else { panic!("no join") };
    assert_eq!(Rig::second(due), 110, "the trigger counts as of second 100");
    rig.claim_none().await;
    let next = rig.store.next_due(Some(rig.now()), &crate::rig::queue(), &[task("t")]).await;
    assert_eq!(Rig::second(next.expect("looks").now), 100);
    rig.at(110).claim_one().await;
}

/// A known failure elsewhere: a key is one glued text, so the keys of different tasks collide, or
/// (`a`, `b-c`) and (`a-b`, `c`) do.
pub async fn r06_keys_of_different_tasks_and_parts_never_meet(rig: Rig) {
    let other = NewTrigger { task: task("u"), ..keyed("a") };
    let parts = |a, b| quell_core::Key::from_parts([a, b]).expect("a valid key");
    let triggers = [
        keyed("a"),
        other,
        keyed(parts("a", "b-c").as_str()),
        keyed(parts("a-b", "c").as_str()),
        keyed(parts("a/b", "c").as_str()),
    ];
    for trigger in triggers {
        let receipt = rig.trigger(trigger).await;
        assert!(matches!(receipt, Receipt::Accepted { .. }), "{receipt:?}");
    }
}

/// Keys and payloads may hold anything.
pub async fn r40_hostile_text_is_only_text(mut rig: Rig) {
    let keys = ["'; drop table quell_job; --", "a}{b", "\n", "ключ", "%00", "\"", "{{ x }}"];
    for text in keys {
        let payload = Payload::encode(text).expect("JSON");
        rig.trigger(NewTrigger { payload, ..keyed(text) }).await;
    }
    let jobs = rig.at(10).claim().await;
    assert_eq!(jobs.len(), keys.len());
    for (job, text) in jobs.iter().zip(keys) {
        assert_eq!(job.key.as_ref().map(quell_core::Key::as_str), Some(text));
        assert_eq!(job.payload.decode::<String>().expect("JSON"), text);
    }
}

/// Members need not be alike: each goes to its own task and queue, with its own priority and delay.
pub async fn r05_a_batch_may_mix_tasks_queues_priorities_and_delays(rig: Rig) {
    let other = quell_core::QueueName::new("other").expect("a name");
    let members = [
        plain("1"),
        NewTrigger { task: task("u"), ..plain("2") },
        NewTrigger { queue: other.clone(), ..plain("3") },
        NewTrigger { when: When::After(secs(5)), ..plain("4") },
        plain("5"),
        NewTrigger { task: task("u"), queue: other, when: When::After(secs(7)), ..plain("6") },
    ];
    let triggers = members.to_vec();
    let receipts = rig.trigger_batch(Batch { triggers, dedup: None }).await;
    for (member, receipt) in members.iter().zip(&receipts) {
        let job = rig.job(receipt.job().expect("a job")).await;
        assert_eq!((&job.task, &job.queue), (&member.task, &member.queue));
        assert_eq!(job.payload, member.payload);
        let due = member.when.earliest(rig.now()).max(rig.now());
        assert_eq!(job.window.due_at, due, "{member:?}");
    }
}
