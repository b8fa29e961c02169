//! Recorded effects: intents, results, and who may record them.

use quell_core::effect::{EffectStart, MAX_EFFECTS, MAX_RESULT_BYTES};
use quell_core::{
    ClaimedJob, Draw, Effect, EffectName, ErrorKind, ExplainTarget, JobId, Lease, LeaseToken,
    Outcome, Payload, Result, Retention, SettledAs,
};

use crate::rig::{Rig, fails, key, keyed, lease, plain, secs};

fn effect(name: &str) -> EffectName {
    EffectName::new(name).expect("a valid name")
}

fn json(text: &str) -> Payload {
    Payload::from_text(text).expect("JSON")
}

fn new(k: &str) -> EffectStart {
    EffectStart::New { key: key(k) }
}

fn intended(k: &str) -> EffectStart {
    EffectStart::Intended { key: key(k) }
}

fn done(k: &str, result: &str) -> EffectStart {
    EffectStart::Done { key: key(k), result: json(result) }
}

fn kind<T>(answer: Result<T>) -> Option<ErrorKind> {
    answer.err().map(|error| error.kind())
}

impl Rig {
    async fn try_begin(&self, lease: Lease, name: &str, k: &str) -> Result<EffectStart> {
        self.store.begin_effect(Some(self.now()), &lease, &effect(name), &key(k)).await
    }

    async fn begin(&self, job: &ClaimedJob, name: &str, k: &str) -> EffectStart {
        self.try_begin(lease(job), name, k).await.expect("the store records an intent")
    }

    async fn try_end(&self, lease: Lease, name: &str, result: &str) -> Result<()> {
        self.store.end_effect(Some(self.now()), &lease, &effect(name), &json(result)).await
    }

    async fn end(&self, job: &ClaimedJob, name: &str, result: &str) {
        self.try_end(lease(job), name, result).await.expect("the store records a result");
    }

    async fn effects(&self, id: JobId) -> Vec<Effect> {
        self.store.effects(id).await.expect("the store reads effects")
    }
}

/// An intent is on record before it is answered, a result stays, and both show who wrote them when.
pub async fn r23_an_intent_and_its_result_are_on_record(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    assert_eq!(rig.effects(run.id).await, []);
    assert_eq!(rig.at(1).begin(&run, "charge", "k1").await, new("k1"));
    let intent = Effect::intended(rig.now(), run.token, &effect("charge"), &key("k1"));
    assert_eq!(rig.effects(run.id).await, std::slice::from_ref(&intent));
    rig.at(2).end(&run, "charge", r#"{"id":5}"#).await;
    let ended =
        quell_core::effect::Done { at: rig.now(), by: run.token, result: json(r#"{"id":5}"#) };
    let ended = Effect { done: Some(ended), ..intent };
    assert_eq!(rig.effects(run.id).await, std::slice::from_ref(&ended));
    rig.fail(&run, secs(1)).await;
    let again = rig.at(3).claim_one().await;
    assert_eq!(rig.begin(&again, "charge", "k2").await, done("k1", r#"{"id":5}"#));
    rig.succeed(&again).await;
    assert_eq!(
        rig.effects(run.id).await,
        std::slice::from_ref(&ended),
        "nothing of it changes any more"
    );
    let shown = rig.explain(&ExplainTarget::Job(run.id)).await.expect("the job is known");
    assert!(shown.to_string().contains("effect     charge: done"), "{shown}");
    assert_eq!(shown.effects, [ended]);
    assert_eq!(rig.effects(JobId::new(999)).await, []);
}

/// The next attempt receives a bare intent with the key of the first, whichever worker it is.
pub async fn r23_a_bare_intent_keeps_its_key(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let first = rig.claim_one().await;
    assert_eq!(rig.begin(&first, "charge", "k1").await, new("k1"));
    assert_eq!(rig.at(40).reap().await.len(), 1);
    let second = rig.claim_one().await;
    assert_eq!(rig.begin(&second, "charge", "k2").await, intended("k1"));
    rig.settle(lease(&second), Outcome::Released).await;
    let third = rig.claim_one().await;
    assert_eq!(rig.begin(&third, "charge", "k3").await, intended("k1"));
    rig.end(&third, "charge", "7").await;
    let known = rig.effects(first.id).await.remove(0);
    let by = known.done.map(|done| (done.by, done.result));
    assert_eq!((known.begun_by, by), (first.token, Some((third.token, json("7")))));
}

/// A caller that received no answer asks again with its key, and receives the same one.
pub async fn r23_the_same_intent_twice_is_one(rig: Rig) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    for _ in 0..2 {
        assert_eq!(rig.begin(&run, "charge", "k1").await, new("k1"));
    }
    assert_eq!(rig.effects(run.id).await.len(), 1);
    for _ in 0..2 {
        rig.end(&run, "charge", "7").await;
    }
    assert_eq!(rig.begin(&run, "charge", "k1").await, done("k1", "7"));
}

/// Intents of one effect that race agree on one key.
pub async fn r23_intents_that_race_have_one_key(rig: Rig) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    let keys = ["k0", "k1", "k2", "k3", "k4", "k5"];
    let begun = keys.map(|k| rig.begin(&run, "charge", k));
    let begun = futures_util::future::join_all(begun).await;
    let known = rig.effects(run.id).await;
    assert_eq!(known.len(), 1);
    let news = begun.iter().filter(|one| matches!(one, EffectStart::New { .. })).count();
    assert_eq!(news, 1, "{begun:?}");
    let agree = |one: &EffectStart| match one {
        EffectStart::New { key } | EffectStart::Intended { key } => {
            known.first().map(|k| &k.key) == Some(key)
        }
        EffectStart::Done { .. } => false,
    };
    assert!(begun.iter().all(agree), "{begun:?} but on record is {known:?}");
}

/// Without its lease an attempt records neither intent nor result, and nothing changes.
pub async fn r21_r23_an_attempt_without_its_lease_records_nothing(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let zombie = rig.claim_one().await;
    rig.begin(&zombie, "charge", "k1").await;
    let before = rig.effects(zombie.id).await;
    let refused = Some(ErrorKind::IllegalMove);
    rig.at(30);
    for reaped in [false, true] {
        if reaped {
            assert_eq!(rig.reap().await.len(), 1);
        }
        for name in ["charge", "mail"] {
            let begun = rig.try_begin(lease(&zombie), name, "k2").await;
            assert_eq!(kind(begun), refused, "{name}");
            assert_eq!(kind(rig.try_end(lease(&zombie), name, "7").await), refused, "{name}");
        }
    }
    let owner = rig.claim_one().await;
    let forged = Lease { job: owner.id, token: LeaseToken::of(owner.token.starts(), Draw::MIN) };
    let nowhere = Lease { job: JobId::new(99), token: owner.token };
    for lease in [lease(&zombie), forged, nowhere] {
        assert_eq!(kind(rig.try_begin(lease, "charge", "k2").await), refused, "{lease:?}");
        assert_eq!(kind(rig.try_end(lease, "charge", "7").await), refused, "{lease:?}");
    }
    assert_eq!(rig.effects(owner.id).await, before);
    rig.succeed(&owner).await;
    assert_eq!(kind(rig.try_begin(lease(&owner), "charge", "k2").await), refused);
    assert_eq!(kind(rig.try_end(lease(&owner), "charge", "7").await), refused);
    assert_eq!(rig.effects(owner.id).await, before, "it has ended");
}

/// No result without an intent, and none in place of another.
pub async fn r23_a_result_needs_its_intent_and_stays(rig: Rig) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    let refused = Some(ErrorKind::IllegalMove);
    assert_eq!(kind(rig.try_end(lease(&run), "charge", "7").await), refused);
    assert_eq!(rig.effects(run.id).await, []);
    rig.begin(&run, "charge", "k1").await;
    rig.end(&run, "charge", "7").await;
    let before = rig.effects(run.id).await;
    assert_eq!(kind(rig.try_end(lease(&run), "charge", "8").await), refused);
    rig.fail(&run, secs(0)).await;
    let again = rig.claim_one().await;
    assert_eq!(kind(rig.try_end(lease(&again), "charge", "7").await), refused);
    assert_eq!(rig.effects(run.id).await, before);
}

/// A job keeps its effects through retries, snoozes, expired leases, its death and a redrive.
pub async fn r23_r26_effects_outlast_every_way_back(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let first = rig.claim_one().await;
    rig.begin(&first, "charge", "k1").await;
    rig.end(&first, "charge", "7").await;
    rig.begin(&first, "mail", "m1").await;
    rig.settle(lease(&first), Outcome::Snoozed { delay: secs(1) }).await;
    rig.at(1).claim_one().await;
    assert_eq!(rig.at(40).reap().await.len(), 1);
    let third = rig.claim_one().await;
    assert_eq!(rig.settle(lease(&third), fails(secs(1), true)).await, SettledAs::Dead);
    let before = rig.effects(first.id).await;
    assert_eq!(before.len(), 2);
    rig.redrive(first.id).await.expect("a dead job is redriven");
    assert_eq!(rig.effects(first.id).await, before);
    let last = rig.claim_one().await;
    assert_eq!(rig.begin(&last, "charge", "k2").await, done("k1", "7"));
    assert_eq!(rig.begin(&last, "mail", "m2").await, intended("m1"));
}

/// An effect's name is its job's own, and a job's effects are shown by name.
pub async fn r23_names_are_each_jobs_own(rig: Rig) {
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    let [one, other]: [ClaimedJob; 2] = rig.claim().await.try_into().expect("two jobs");
    for (n, name) in ["b", "B", "a_1", "a-1", "a"].into_iter().enumerate() {
        let mine = format!("k{n}");
        assert_eq!(rig.begin(&one, name, &mine).await, new(&mine), "{name}");
    }
    rig.end(&one, "b", "7").await;
    assert_eq!(rig.begin(&other, "b", "x").await, new("x"));
    let names = |effects: Vec<Effect>| -> Vec<String> {
        effects.iter().map(|effect| effect.name.to_string()).collect()
    };
    assert_eq!(names(rig.effects(one.id).await), ["B", "a", "a-1", "a_1", "b"]);
    assert_eq!(names(rig.effects(other.id).await), ["b"]);
}

/// The window that absorbs a failed job is another job: it has effects of its own.
pub async fn r12_r23_a_successor_has_effects_of_its_own(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let failed = rig.at(10).claim_one().await;
    rig.begin(&failed, "charge", "k1").await;
    rig.end(&failed, "charge", "7").await;
    rig.trigger(keyed("a")).await;
    let became = rig.fail(&failed, secs(1)).await;
    assert!(matches!(became, SettledAs::Absorbed { .. }), "{became:?}");
    let successor = rig.at(20).claim_one().await;
    assert_eq!(rig.effects(successor.id).await, []);
    assert_eq!(rig.begin(&successor, "charge", "k2").await, new("k2"));
    assert_eq!(rig.effects(failed.id).await.len(), 1);
}

/// A job's effects are kept as long as its row and go with it.
pub async fn r23_r37_effects_go_with_their_jobs_row(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    let [ended, waits]: [ClaimedJob; 2] = rig.claim().await.try_into().expect("two jobs");
    for run in [&ended, &waits] {
        rig.begin(run, "charge", "k").await;
        rig.end(run, "charge", "7").await;
    }
    rig.succeed(&ended).await;
    rig.at(1).fail(&waits, secs(500)).await;
    let keep = Retention { succeeded: Some(secs(100)), dead: Some(secs(100)) };
    assert_eq!(rig.prune(99, &keep, 99).await, 0);
    assert_eq!(rig.effects(ended.id).await.len(), 1);
    assert_eq!(rig.prune(100, &keep, 99).await, 1);
    assert_eq!(rig.effects(ended.id).await, []);
    assert_eq!(rig.effects(waits.id).await.len(), 1);
}

/// The largest result is kept whole; a larger one, and one effect too many, are refused.
pub async fn r23_r40_what_is_too_large_is_refused(rig: Rig) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    rig.begin(&run, "charge", "k1").await;
    let text = |bytes: usize| format!("\"é\\u0000'{}\"", "x".repeat(bytes - 11));
    let largest = text(MAX_RESULT_BYTES);
    assert_eq!(largest.len(), MAX_RESULT_BYTES);
    let before = rig.effects(run.id).await;
    let refused = rig.try_end(lease(&run), "charge", &text(MAX_RESULT_BYTES + 1)).await;
    let error = refused.expect_err("one byte too many");
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("result")));
    assert_eq!(rig.effects(run.id).await, before);
    rig.end(&run, "charge", &largest).await;
    assert_eq!(rig.begin(&run, "charge", "k2").await, done("k1", &largest));

    for n in 1..MAX_EFFECTS {
        rig.begin(&run, &format!("e{n}"), "k").await;
    }
    let error = rig.try_begin(lease(&run), "more", "k").await.expect_err("one effect too many");
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("effect")));
    assert_eq!(rig.effects(run.id).await.len(), MAX_EFFECTS);
    assert_eq!(rig.begin(&run, "e1", "k").await, new("k"), "what is known is no more");
}

/// A dead job that has acted does not act again where it is imported: not here after a
/// discard, not elsewhere.
pub async fn r23_r26_effects_travel_with_their_export(rig: Rig) {
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    rig.begin(&run, "charge", "k1").await;
    rig.end(&run, "charge", "7").await;
    rig.begin(&run, "mail", "m1").await;
    assert_eq!(rig.settle(lease(&run), fails(secs(1), true)).await, SettledAs::Dead);
    let exports = rig.store.exports(&[run.id]).await.expect("the store exports");
    let before = rig.effects(run.id).await;
    assert_eq!(exports[0].effects, before);
    exports[0].validate(&quell_core::Limits::default()).expect("an exported job is valid");

    let now = Some(rig.now());
    rig.store.discard(now, &[run.id], "a test").await.expect("the store discards");
    let came = rig.store.import_dead(now, &exports).await.expect("the store imports");
    assert!(came[0].id != run.id && !came[0].known, "{came:?}");
    assert_eq!(rig.effects(came[0].id).await, before);
    rig.redrive(came[0].id).await.expect("a dead job is redriven");
    let again = rig.claim_one().await;
    assert_eq!(rig.begin(&again, "charge", "k2").await, done("k1", "7"));
    assert_eq!(rig.begin(&again, "mail", "m2").await, intended("m1"));
}
