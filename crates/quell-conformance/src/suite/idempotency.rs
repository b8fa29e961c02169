//! Idempotency keys: which trigger wins, what later callers receive, and for how long (R19, R20, R37).

use std::time::Duration;

use futures_util::future::join_all;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::{DerivedKey, Fingerprint, Idempotency};
use quell_core::{
    Batch, ErrorKind, Fold, JobId, JobResult, JobState, NewTrigger, Outcome, Payload, Receipt,
    Retention,
};

use crate::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, plain, secs, task};

/// Keeps nothing that may go.
const NOTHING: Retention =
    Retention { succeeded: Some(Duration::ZERO), dead: Some(Duration::ZERO) };

/// A trigger with idempotency key `k`, kept for 100 s.
fn with_key(k: &str, trigger: NewTrigger) -> NewTrigger {
    let idempotency = Idempotency { key: key(k), retention: secs(100) };
    NewTrigger { idempotency: Some(idempotency), ..trigger }
}

fn existing(job: JobId, state: JobState, output: Option<&str>) -> Receipt {
    Receipt::Existing { job, state, output: output.map(json) }
}

fn json(text: &str) -> Payload {
    Payload::from_text(text).expect("JSON")
}

fn returns(output: &str) -> Outcome {
    Outcome::Succeeded { output: Some(json(output)) }
}

impl Rig {
    async fn result(&self, job: JobId) -> Option<JobResult> {
        self.store.result(job).await.expect("the store reads")
    }
}

/// Later triggers get the first one's job, however it stands, and what it returned.
pub async fn r19_later_triggers_get_the_first_ones_job_and_output(rig: Rig) {
    let trigger = || with_key("i", plain(r#"{"a":1,"b":[2]}"#));
    let job = rig.trigger(trigger()).await.job().expect("a job");
    assert_eq!(rig.trigger(trigger()).await, existing(job, JobState::Scheduled, None));
    let other_spelling = with_key("i", plain("{ \"b\" : [2.0], \"a\": 1 }"));
    assert_eq!(rig.trigger(other_spelling).await, existing(job, JobState::Scheduled, None));
    let run = rig.claim_one().await;
    assert_eq!(rig.trigger(trigger()).await, existing(job, JobState::Running, None));
    rig.settle(lease(&run), returns(r#"{"n": 7}"#)).await;
    let reported = existing(job, JobState::Succeeded, Some(r#"{"n": 7}"#));
    assert_eq!(rig.trigger(trigger()).await, reported);
    assert_eq!(rig.jobs().await.len(), 1);
    let other_task = NewTrigger { task: task("u"), ..trigger() };
    assert_eq!(rig.trigger(other_task).await.outcome(), "accepted", "keys are their task's own");
}

/// What a handler returned is kept with its job, and every caller can read it.
pub async fn r19_an_output_is_kept_with_its_job(rig: Rig) {
    for output in [Some(r#"{"n":[1,"zwei"]}"#), Some("\"\\u0000'\\\"\""), None] {
        let job = rig.trigger(plain("1")).await.job().expect("a job");
        assert_eq!(
            rig.result(job).await.map(|r| (r.state, r.output)),
            Some((JobState::Scheduled, None))
        );
        let run = rig.claim_one().await;
        rig.settle(lease(&run), Outcome::Succeeded { output: output.map(json) }).await;
        assert_eq!(rig.job(job).await.output, output.map(json));
        let result = rig.result(job).await.expect("a result");
        assert_eq!((result.job, result.state), (job, JobState::Succeeded));
        assert_eq!(result.output, output.map(json));
    }
    assert_eq!(rig.result(JobId::new(9_999)).await, None);
}

/// Many attempts that end in one call keep each its own output.
pub async fn r19_outputs_of_one_call_do_not_mix(rig: Rig) {
    for n in 0..40 {
        rig.trigger(with_key(&format!("i{n}"), plain(&n.to_string()))).await;
    }
    let mut ends = Vec::new();
    for run in rig.claim().await {
        let n: u64 = run.payload.decode().expect("a number");
        let outcome = match n % 4 {
            0 => Outcome::succeeded(),
            1 if n > 30 => fails(secs(1), true),
            _ => returns(&format!("\"of {n}\"")),
        };
        ends.push(quell_core::Settlement { lease: lease(&run), outcome });
    }
    rig.store.settle(Some(rig.now()), ends).await.expect("settles");
    for n in 0..40_u64 {
        let receipt = rig.trigger(with_key(&format!("i{n}"), plain(&n.to_string()))).await;
        let Receipt::Existing { state, output, .. } = receipt else { panic!("{receipt:?}") };
        let expected = match n % 4 {
            0 => (JobState::Succeeded, None),
            1 if n > 30 => (JobState::Dead, None),
            _ => (JobState::Succeeded, Some(json(&format!("\"of {n}\"")))),
        };
        assert_eq!((state, output), expected, "{n}");
    }
}

/// The refusal names the key, the job and both fingerprints, and nothing is written.
pub async fn r19_another_payload_is_refused(rig: Rig) {
    let job = rig.trigger(with_key("i", plain("1"))).await.job().expect("a job");
    let before = rig.jobs().await;
    let refused =
        rig.try_batch(Batch::one(with_key("i", plain("2")))).await.expect_err("a conflict");
    assert_eq!(refused.kind(), ErrorKind::IdempotencyConflict);
    let said = refused.to_string();
    let of = |text| Fingerprint::of(&json(text)).to_string();
    for part in [of("1"), of("2"), format!("job {job}"), "\"i\"".to_owned()] {
        assert!(said.contains(&part), "{part} is not in: {said}");
    }
    assert_eq!(rig.jobs().await, before);
    assert_eq!(rig.trigger(with_key("i", plain("1"))).await.outcome(), "existing");
}

/// A member that conflicts refuses its batch, by its place, and no key of the batch is burned; the
/// other callers of the same store call are accepted.
pub async fn r05_r19_a_conflict_refuses_its_batch_and_no_other(rig: Rig) {
    rig.trigger(with_key("i", plain("1"))).await;
    let before = Batch::one(with_key("before", plain("1")));
    let after = Batch::one(with_key("after", plain("1")));
    let triggers = vec![plain("0"), with_key("free", plain("1")), with_key("i", plain("2"))];
    let call = vec![before, Batch { triggers, dedup: None }, after];
    let answers = rig.store.enqueue(Some(rig.now()), call).await.expect("answers");
    let [Ok(first), Err(refused), Ok(last)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((first[0].outcome(), last[0].outcome()), ("accepted", "accepted"));
    assert!(refused.to_string().starts_with("triggers[2]: "), "{refused}");
    assert_eq!(rig.claim().await.len(), 3);
    let free = rig.trigger(with_key("free", plain("\"anything\""))).await;
    assert_eq!(free.outcome(), "accepted", "a refused batch takes no key");
}

/// A key that comes twice in a batch, or in the batches of one call, is taken once.
pub async fn r19_a_key_counts_within_one_call_too(rig: Rig) {
    let one = || with_key("i", plain("1"));
    let batch = || Batch { triggers: vec![one(), one()], dedup: None };
    let answers = rig.store.enqueue(Some(rig.now()), vec![batch(), batch()]).await;
    let receipts: Vec<_> = answers.expect("accepts").into_iter().flatten().flatten().collect();
    let job = receipts[0].job().expect("a job");
    assert_eq!(receipts[0].outcome(), "accepted");
    assert_eq!(receipts[1..], vec![existing(job, JobState::Scheduled, None); 3]);
    let torn = vec![plain("0"), with_key("k", plain("1")), with_key("k", plain("2"))];
    let refused =
        rig.try_batch(Batch { triggers: torn, dedup: None }).await.expect_err("a conflict");
    assert_eq!(refused.kind(), ErrorKind::IdempotencyConflict);
    assert!(refused.to_string().starts_with("triggers[2]: "), "{refused}");
    assert_eq!(rig.claim().await.len(), 1);
}

/// Of many callers at once one is accepted, and the others get its job.
pub async fn r19_callers_that_race_for_a_key_get_one_job(rig: Rig) {
    let receipts = join_all((0..32).map(|_| rig.trigger(with_key("i", plain("1"))))).await;
    let accepted: Vec<_> = receipts.iter().filter(|r| r.outcome() == "accepted").collect();
    assert_eq!(accepted.len(), 1, "{receipts:?}");
    assert!(receipts.iter().all(|r| r.job() == accepted[0].job()), "{receipts:?}");
    assert_eq!(rig.jobs().await.len(), 1);
}

/// Kept from acceptance for its retention, to the microsecond, and not extended by later triggers.
pub async fn r19_a_key_is_kept_for_its_retention(mut rig: Rig) {
    let trigger = || with_key("i", plain("1"));
    let job = rig.trigger(trigger()).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), returns("7")).await;
    let reported = existing(job, JobState::Succeeded, Some("7"));
    rig.at_time(Rig::START + secs(100).saturating_sub(Duration::from_micros(1)));
    assert_eq!(rig.trigger(trigger()).await, reported);
    rig.at(100);
    assert_eq!(rig.trigger(with_key("i", plain("2"))).await.outcome(), "accepted");
}

/// A job that has not ended holds its key, however old.
pub async fn r19_a_key_is_kept_until_its_job_has_ended(mut rig: Rig) {
    let trigger = || with_key("i", plain("1"));
    let job = rig.trigger(trigger()).await.job().expect("a job");
    assert_eq!(rig.prune(500, &NOTHING, 99).await, 0);
    assert_eq!(rig.at(500).trigger(trigger()).await, existing(job, JobState::Scheduled, None));
    let run = rig.claim_one().await;
    rig.prune(510, &NOTHING, 99).await;
    assert_eq!(rig.at(510).trigger(trigger()).await, existing(job, JobState::Running, None));
    rig.succeed(&run).await;
    assert_eq!(rig.trigger(trigger()).await.outcome(), "accepted");
}

/// Dead and cancelled jobs are answered as such; a redrive makes the same job run again.
pub async fn r19_every_end_is_told(rig: Rig) {
    let trigger = || with_key("dead", plain("1"));
    let dead = rig.trigger(trigger()).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    assert_eq!(rig.trigger(trigger()).await, existing(dead, JobState::Dead, None));
    assert_eq!(rig.result(dead).await.and_then(|r| r.error).as_deref(), Some("boom"));
    rig.redrive(dead).await.expect("redrives");
    assert_eq!(rig.trigger(trigger()).await, existing(dead, JobState::Scheduled, None));
    let cancelled = rig.trigger(with_key("off", plain("1"))).await.job().expect("a job");
    rig.cancel(cancelled).await.expect("cancels");
    let reported = rig.trigger(with_key("off", plain("1"))).await;
    assert_eq!(reported, existing(cancelled, JobState::Cancelled, None));
}

/// A key that was free while its job was dead is not taken again when the job is redriven.
pub async fn r19_a_key_that_was_free_stays_free_after_a_redrive(mut rig: Rig) {
    for (k, prunes) in [("a", true), ("b", false)] {
        let job = rig.trigger(with_key(k, plain("1"))).await.job().expect("a job");
        let run = rig.claim_one().await;
        rig.settle(lease(&run), fails(secs(1), true)).await;
        let later = rig.now() + secs(100);
        rig.at_time(later);
        if prunes {
            let keep = Retention { succeeded: None, dead: None };
            rig.store.prune(Some(later), &keep, 99).await.expect("prunes");
        }
        rig.redrive(job).await.expect("redrives");
        assert_eq!(rig.trigger(with_key(k, plain("2"))).await.outcome(), "accepted", "{k}");
        for run in rig.claim().await {
            rig.succeed(&run).await;
        }
    }
}

/// An absorbed job's key names the window that took the job in, and so does its result.
pub async fn r19_a_key_follows_its_job_to_the_successor(mut rig: Rig) {
    let trigger = || with_key("i", keyed("a"));
    let first = rig.trigger(trigger()).await.job().expect("a job");
    let failed = rig.at(10).claim_one().await;
    let successor = rig.at(12).trigger(keyed("a")).await.job().expect("a job");
    rig.fail(&failed, secs(1)).await;
    assert_eq!(rig.trigger(trigger()).await, existing(successor, JobState::Scheduled, None));
    assert_eq!(
        rig.result(first).await.map(|r| (r.job, r.state)),
        Some((successor, JobState::Scheduled))
    );
    let run = rig.at(22).claim_one().await;
    rig.settle(lease(&run), returns("\"both\"")).await;
    let reported = existing(successor, JobState::Succeeded, Some("\"both\""));
    assert_eq!(rig.trigger(trigger()).await, reported);
    assert_eq!(rig.result(first).await.and_then(|r| r.output), Some(json("\"both\"")));
    assert_eq!(rig.prune(30, &NOTHING, 99).await, 2);
    assert_eq!(rig.at(30).trigger(trigger()).await, reported);
}

/// Every trigger of a window has its own key; all of them receive what the window's run returned.
pub async fn r19_a_window_answers_for_each_of_its_keys(mut rig: Rig) {
    let joins = |k: &str, n: &str| with_key(k, keyed_with("a", debounce(), Fold::Merge, n));
    let job = rig.trigger(joins("i", r#"{"a":1}"#)).await.job().expect("a job");
    let joined = rig.at(3).trigger(joins("j", r#"{"b":2}"#)).await;
    assert_eq!((joined.outcome(), joined.job()), ("debounced", Some(job)));
    rig.at(6);
    for (k, n) in [("i", r#"{"a":1}"#), ("j", r#"{"b":2}"#)] {
        assert_eq!(rig.trigger(joins(k, n)).await, existing(job, JobState::Scheduled, None));
    }
    let window = rig.job(job).await.window;
    assert_eq!((window.triggers, Rig::second(window.due_at)), (2, 13), "repeats move nothing");
    let run = rig.at(13).claim_one().await;
    rig.settle(lease(&run), returns("3")).await;
    for (k, n) in [("i", r#"{"a":1}"#), ("j", r#"{"b":2}"#)] {
        let reported = existing(job, JobState::Succeeded, Some("3"));
        assert_eq!(rig.trigger(joins(k, n)).await, reported);
    }
}

/// A trigger that a leading edge did not run names the job that led its burst.
pub async fn r13_r19_a_suppressed_triggers_key_names_the_leader(mut rig: Rig) {
    let edge = quell_core::edge::Edge::Leading;
    let leading = quell_core::window::Debounce { edge, ..debounce() };
    let trigger = |k: &str| with_key(k, keyed_with("a", leading, Fold::Last, "1"));
    let lead = rig.trigger(trigger("i")).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), returns("1")).await;
    let late = rig.at(3).trigger(trigger("j")).await;
    assert_eq!((late.outcome(), late.job()), ("debounced", Some(lead)));
    let reported = existing(lead, JobState::Succeeded, Some("1"));
    assert_eq!(rig.trigger(trigger("j")).await, reported);
    assert_eq!(rig.prune(4, &NOTHING, 99).await, 1);
    assert_eq!(rig.at(4).trigger(trigger("j")).await, reported);
}

/// Idempotency first, then dedup, then debounce; a duplicate takes no idempotency key.
pub async fn r03_idempotency_is_checked_before_dedup_and_debounce(mut rig: Rig) {
    let dedup = Some(Dedup { key: key("d"), until: HoldUntil::Elapsed(secs(50)) });
    let deduped = |k: &str, n: &str| {
        let base = keyed_with("a", debounce(), Fold::Last, n);
        with_key(k, NewTrigger { dedup: dedup.clone(), ..base })
    };
    let job = rig.trigger(deduped("i", "1")).await.job().expect("a job");
    assert_eq!(rig.trigger(deduped("i", "1")).await, existing(job, JobState::Scheduled, None));
    let refused = rig.try_batch(Batch::one(deduped("i", "2"))).await.expect_err("a conflict");
    assert_eq!(refused.kind(), ErrorKind::IdempotencyConflict);
    assert_eq!(rig.trigger(deduped("j", "1")).await, Receipt::Duplicate { job });
    rig.at(50);
    let next = rig.trigger(deduped("j", "2")).await;
    assert_eq!(next.outcome(), "debounced", "the duplicate took no key");
    assert_eq!(rig.trigger(deduped("j", "2")).await, existing(job, JobState::Scheduled, None));
}

/// A batch that is a duplicate as a whole still names the keys that are taken.
pub async fn r03_r17_a_duplicate_batch_tells_of_known_keys(rig: Rig) {
    let known = rig.trigger(with_key("i", plain("1"))).await.job().expect("a job");
    let batch = |triggers| Batch { triggers, dedup: Some(Dedup::new(key("batch"))) };
    let own = rig.trigger_batch(batch(vec![plain("2")])).await[0].job().expect("a job");
    let again = batch(vec![with_key("i", plain("1")), with_key("k", plain("2")), plain("3")]);
    let receipts = rig.trigger_batch(again).await;
    let duplicate = Receipt::Duplicate { job: own };
    assert_eq!(
        receipts,
        [existing(known, JobState::Scheduled, None), duplicate.clone(), duplicate]
    );
    assert_eq!(rig.trigger(with_key("k", plain("3"))).await.outcome(), "accepted");
}

/// The record keeps state and output when the job's row is gone, and for as long as its retention.
pub async fn r37_an_output_outlives_its_jobs_row(mut rig: Rig) {
    let trigger = || with_key("i", plain("1"));
    let job = rig.trigger(trigger()).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), returns(r#"{"n":1}"#)).await;
    let dead = rig.trigger(with_key("dead", plain("1"))).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    assert_eq!(rig.prune(50, &NOTHING, 99).await, 2);
    assert_eq!(rig.jobs().await.len(), 0);
    let reported = existing(job, JobState::Succeeded, Some(r#"{"n":1}"#));
    assert_eq!(rig.at(99).trigger(trigger()).await, reported);
    let reported = existing(dead, JobState::Dead, None);
    assert_eq!(rig.trigger(with_key("dead", plain("1"))).await, reported);
    assert!(rig.try_batch(Batch::one(with_key("i", plain("2")))).await.is_err(), "a conflict");
    let result = rig.result(job).await.expect("a result");
    assert_eq!((result.state, result.output), (JobState::Succeeded, Some(json(r#"{"n":1}"#))));
    rig.prune(99, &NOTHING, 99).await;
    assert!(rig.result(job).await.is_some(), "an early prune leaves it alone");
    rig.prune(100, &NOTHING, 99).await;
    assert_eq!(rig.result(job).await, None);
    assert_eq!(rig.at(100).trigger(trigger()).await.outcome(), "accepted");
}

/// Without a key an output goes with its job's row.
pub async fn r37_an_output_without_a_key_goes_with_its_job(rig: Rig) {
    let job = rig.trigger(plain("1")).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), returns("1")).await;
    assert_eq!(rig.prune(10, &NOTHING, 99).await, 1);
    assert_eq!(rig.result(job).await, None);
}

/// A late or repeated end changes neither the state nor the output that callers received.
pub async fn r19_r21_only_the_end_that_counts_leaves_its_output(mut rig: Rig) {
    let trigger = || with_key("i", plain("1"));
    let job = rig.trigger(trigger()).await.job().expect("a job");
    let zombie = rig.claim_one().await;
    rig.at(30).reap().await;
    let run = rig.claim_one().await;
    rig.settle(lease(&zombie), returns("\"late\"")).await;
    assert_eq!(rig.trigger(trigger()).await, existing(job, JobState::Running, None));
    let one = |output| quell_core::Settlement { lease: lease(&run), outcome: returns(output) };
    let twice = vec![one("\"first\""), one("\"second\"")];
    rig.store.settle(Some(rig.now()), twice).await.expect("settles");
    let reported = existing(job, JobState::Succeeded, Some("\"first\""));
    assert_eq!(rig.trigger(trigger()).await, reported);
}

/// A derived key makes equal payloads of one time window one trigger.
pub async fn r20_equal_payloads_of_a_window_are_one_trigger(mut rig: Rig) {
    let derived = DerivedKey::of_fields(["user"]).within(secs(60));
    let trigger = |rig: &Rig, payload: &str| {
        let trigger = plain(payload);
        let key = derived.key(&trigger.task, &trigger.payload, rig.now()).expect("a key");
        NewTrigger { idempotency: Some(Idempotency::new(key)), ..trigger }
    };
    let seven = r#"{"user":7,"n":1}"#;
    let job = rig.trigger(trigger(&rig, seven)).await.job();
    rig.at(59);
    let again = rig.trigger(trigger(&rig, r#"{"n":1.0,"user":7}"#)).await;
    assert_eq!((again.outcome(), again.job()), ("existing", job));
    let eight = rig.trigger(trigger(&rig, r#"{"user":8,"n":1}"#)).await;
    assert_eq!(eight.outcome(), "accepted");
    let differs = rig.try_batch(Batch::one(trigger(&rig, r#"{"user":7,"n":2}"#))).await;
    assert_eq!(differs.expect_err("a conflict").kind(), ErrorKind::IdempotencyConflict);
    rig.at(60);
    assert_eq!(rig.trigger(trigger(&rig, seven)).await.outcome(), "accepted");
}

/// A call that is cut off burns no key: the next one makes the job or receives it.
pub async fn r02_r19_a_call_that_was_cut_off_burns_no_key(mut rig: Rig) {
    for polls in [0_usize, 1, 2, 3, 5, 8, 13, 40] {
        let k = format!("i{polls}");
        rig.at(u64::try_from(polls).unwrap_or_default());
        rig.trigger_cut_off(with_key(&k, plain("1")), polls).await;
        let job = rig.trigger(with_key(&k, plain("1"))).await.job().expect("a job");
        let run = rig.claim_one().await;
        assert_eq!(run.id, job, "cut after {polls} polls");
        rig.settle(lease(&run), returns("1")).await;
        let reported = existing(job, JobState::Succeeded, Some("1"));
        assert_eq!(rig.trigger(with_key(&k, plain("1"))).await, reported);
    }
}
