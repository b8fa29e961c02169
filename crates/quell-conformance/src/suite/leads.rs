//! Dedup and idempotency keys lead to the jobs that took them (R15, R16, R19).

use std::time::Duration;

use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::Idempotency;
use quell_core::{Error, ErrorKind, ExplainTarget, JobId, NewTrigger, Outcome, Retention};

use crate::rig::{Rig, fails, key, keyed, lease, plain, secs, task};

/// Keeps nothing that may go.
const NOTHING: Retention =
    Retention { succeeded: Some(Duration::ZERO), dead: Some(Duration::ZERO) };

fn recorded(k: &str, trigger: NewTrigger) -> NewTrigger {
    NewTrigger { idempotency: Some(Idempotency { key: key(k), retention: secs(100) }), ..trigger }
}

fn held(k: &str, until: HoldUntil, trigger: NewTrigger) -> NewTrigger {
    NewTrigger { dedup: Some(Dedup { key: key(k), until }), ..trigger }
}

fn idempotency(k: &str) -> ExplainTarget {
    ExplainTarget::IdempotencyKey { task: Some(task("t")), key: key(k) }
}

fn dedup(k: &str) -> ExplainTarget {
    ExplainTarget::DedupKey { task: Some(task("t")), key: key(k) }
}

impl Rig {
    async fn leads_to(&self, target: &ExplainTarget) -> Option<JobId> {
        self.explain(target).await.map(|shown| shown.job.id)
    }

    async fn refuses_to_explain(&self, target: &ExplainTarget) -> Error {
        let answer = self.store.explain(Some(self.now()), target).await;
        answer.expect_err("the job of a key that is taken was removed")
    }
}

/// Each of a window's keys leads to the one job that covers its trigger; a key is its task's own.
pub async fn r15_a_dedup_and_an_idempotency_key_lead_to_their_job(mut rig: Rig) {
    let until = HoldUntil::Elapsed(secs(100));
    let job = rig.trigger(recorded("i1", keyed("a"))).await.job().expect("a job");
    let same = rig.trigger(held("d2", until, recorded("i2", keyed("a")))).await.job();
    assert_eq!(same, Some(job));
    for target in [idempotency("i1"), idempotency("i2"), dedup("d2")] {
        let shown = rig.explain(&target).await.expect("is known");
        assert_eq!((shown.job.id, shown.job.window.triggers), (job, 2), "{target:?}");
    }
    // A debounce key, the other kind of key and a key of another task are other keys.
    let other = |name| ExplainTarget::IdempotencyKey { task: Some(task(name)), key: key("i1") };
    for target in [idempotency("a"), idempotency("d2"), dedup("i1"), dedup("x"), other("u")] {
        assert_eq!(rig.leads_to(&target).await, None, "{target:?}");
    }
    // Where the window ran and failed, its successor covers the triggers.
    let run = rig.at(60).claim_one().await;
    let successor = rig.at(61).trigger(keyed("a")).await.job().expect("a job");
    rig.settle(lease(&run), fails(secs(1), false)).await;
    for target in [idempotency("i1"), idempotency("i2"), dedup("d2")] {
        assert_eq!(rig.leads_to(&target).await, Some(successor), "{target:?}");
    }
}

/// Without a task, a key of any task is meant: of several, the newest job.
pub async fn r15_a_key_of_any_task_leads_to_the_newest_job(mut rig: Rig) {
    let both = |name: &str, payload: &str| {
        let trigger = NewTrigger { task: task(name), ..plain(payload) };
        held("d", HoldUntil::Done, recorded("i", trigger))
    };
    let first = rig.trigger(both("t", "1")).await.job().expect("a job");
    let newest = rig.at(1).trigger(both("u", "2")).await.job().expect("a job");
    let any = [
        ExplainTarget::IdempotencyKey { task: None, key: key("i") },
        ExplainTarget::DedupKey { task: None, key: key("d") },
    ];
    for target in &any {
        assert_eq!(rig.leads_to(target).await, Some(newest), "{target:?}");
    }
    for target in [idempotency("i"), dedup("d")] {
        assert_eq!(rig.leads_to(&target).await, Some(first), "{target:?}");
    }
    let none = ExplainTarget::DedupKey { task: None, key: key("i") };
    assert_eq!(rig.leads_to(&none).await, None);
}

/// A key that is free leads nowhere, to the microsecond, whether or not upkeep has come by.
pub async fn r15_a_key_that_is_free_leads_nowhere(mut rig: Rig) {
    let elapses = HoldUntil::Elapsed(secs(100));
    rig.trigger(held("d1", elapses, recorded("i1", plain("1")))).await;
    rig.trigger(held("d2", HoldUntil::Started, plain("2"))).await;
    rig.trigger(held("d3", HoldUntil::Done, recorded("i3", plain("3")))).await;
    let jobs = rig.claim().await;
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    assert_eq!(rig.leads_to(&dedup("d2")).await, None, "its job has started");
    assert_eq!(rig.leads_to(&dedup("d3")).await, Some(ids[2]), "its job runs");
    rig.succeed(&jobs[0]).await;
    rig.succeed(&jobs[1]).await;
    rig.at_time(Rig::START + secs(100).saturating_sub(Duration::from_micros(1)));
    for target in [dedup("d1"), idempotency("i1")] {
        assert_eq!(rig.leads_to(&target).await, Some(ids[0]), "{target:?}");
    }
    rig.at(100);
    for target in [dedup("d1"), idempotency("i1")] {
        assert_eq!(rig.leads_to(&target).await, None, "{target:?}");
    }
    assert_eq!(rig.leads_to(&idempotency("i3")).await, Some(ids[2]), "its job has not ended");
    rig.fail(&jobs[2], secs(1)).await;
    rig.cancel(ids[2]).await.expect("cancels");
    for target in [dedup("d3"), idempotency("i3")] {
        assert_eq!(rig.leads_to(&target).await, None, "{target:?}");
    }
}

/// A key outlives the row of its job, and then says what is known of that.
pub async fn r15_r37_a_key_tells_of_a_job_that_was_removed(mut rig: Rig) {
    let elapses = HoldUntil::Elapsed(secs(100));
    let job = rig.trigger(held("d", elapses, recorded("i", plain("1")))).await.job();
    let job = job.expect("a job");
    let run = rig.claim_one().await;
    rig.settle(lease(&run), Outcome::Succeeded { output: None }).await;
    assert_eq!(rig.leads_to(&idempotency("i")).await, Some(job));
    rig.prune(1, &NOTHING, 9).await;
    rig.at(2);
    assert_eq!(rig.explain(&ExplainTarget::Job(job)).await, None);
    for (target, needles) in [
        (idempotency("i"), ["ended as succeeded", "its row was removed"]),
        (dedup("d"), ["held by job", "its row was removed"]),
    ] {
        let error = rig.refuses_to_explain(&target).await;
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("job {job} of task t")), "{text}");
        for needle in needles {
            assert!(text.contains(needle), "{needle:?} is missing in: {text}");
        }
    }
    rig.at(100);
    for target in [dedup("d"), idempotency("i")] {
        assert_eq!(rig.leads_to(&target).await, None, "{target:?}");
    }
}
