//! Leases, fences, and how attempts end.

use quell_core::{
    AttemptOutcome, ExplainTarget, Failure, FailureKind, JobState, Lease, LeaseToken, Outcome,
    SettledAs, Settlement,
};

use crate::rig::{Rig, fails, keyed, lease, plain, secs};

/// The job runs again under a new fence; the zombie changes nothing.
pub async fn r21_a_lapsed_lease_is_taken_back_and_nothing_it_reports_counts(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let zombie = rig.at(10).claim_one().await;
    rig.at(39);
    assert!(rig.store.reap(Some(rig.now()), 9).await.expect("reaps").is_empty());
    rig.at(40);
    let before = rig.jobs().await;
    let late = rig.settle(lease(&zombie), Outcome::Succeeded).await;
    assert_eq!(late, SettledAs::Refused, "a lapsed lease does not count, reaped or not");
    assert_eq!(rig.jobs().await, before, "a refused settlement changes nothing");
    let lapsed = rig.store.reap(Some(rig.now()), 9).await.expect("reaps");
    assert_eq!(lapsed[0].lease, lease(&zombie));
    let again = rig.claim_one().await;
    assert!(again.token > zombie.token);
    assert_eq!(again.attempt, 1, "a lapse spends no attempt");
    let before = rig.jobs().await;
    for outcome in [Outcome::Succeeded, fails(secs(1), false), Outcome::Released] {
        assert_eq!(rig.settle(lease(&zombie), outcome).await, SettledAs::Refused);
    }
    assert_eq!(rig.jobs().await, before);
    rig.succeed(&again).await;
}

/// Renewal moves the end; a lease that lapsed cannot be renewed.
pub async fn r21_a_renewed_lease_holds(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let job = rig.claim_one().await;
    let stranger = Lease { job: job.id, token: LeaseToken::new(99) };
    rig.at(20);
    let leases = [lease(&job), stranger];
    let renewed = rig.store.renew(Some(rig.now()), &leases, Rig::LEASE).await.expect("renews");
    assert_eq!(renewed, [Some(rig.now() + Rig::LEASE), None]);
    rig.at(49);
    assert!(rig.store.reap(Some(rig.now()), 9).await.expect("reaps").is_empty());
    rig.at(50);
    let renewed = rig.store.renew(Some(rig.now()), &leases, Rig::LEASE).await.expect("renews");
    assert_eq!(renewed, [None, None]);
    assert_eq!(rig.store.reap(Some(rig.now()), 9).await.expect("reaps").len(), 1);
}

/// A transient failure comes back after its backoff, with one attempt and one failure more.
pub async fn r24_a_retry_waits_for_its_backoff(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let first = rig.claim_one().await;
    assert_eq!((first.attempt, first.failures), (1, 0));
    rig.at(5).fail(&first, secs(30)).await;
    rig.at(34).claim_none().await;
    let second = rig.at(35).claim_one().await;
    assert_eq!((second.attempt, second.failures), (2, 1));
    rig.succeed(&second).await;
}

/// Permanent, or the last attempt; payload, every error and every time are kept.
pub async fn r25_a_dead_job_keeps_everything(mut rig: Rig) {
    rig.trigger(plain(r#"{"n":1}"#)).await;
    let first = rig.claim_one().await;
    rig.at(1).fail(&first, secs(1)).await;
    let second = rig.at(2).claim_one().await;
    assert_eq!(rig.settle(lease(&second), fails(secs(1), true)).await, SettledAs::Dead);
    let job = rig.job(first.id).await;
    assert_eq!((job.state, job.payload.as_str()), (JobState::Dead, r#"{"n":1}"#));
    assert_eq!(job.error.as_deref(), Some("boom"));
    let attempts = rig.store.attempts(job.id).await.expect("reads");
    let kept: Vec<_> = attempts
        .iter()
        .map(|one| {
            (one.token.get(), one.outcome, one.error.as_deref(), Rig::second(one.started_at))
        })
        .collect();
    let failed = Some(AttemptOutcome::Failed);
    assert_eq!(kept, [(1, failed, Some("boom"), 0), (2, failed, Some("boom"), 2)]);

    // At once, even while a newer window of its key is open: retrying would not help.
    rig.at(100).trigger(keyed("a")).await;
    let run = rig.at(110).claim_one().await;
    rig.trigger(keyed("a")).await;
    let long = "é".repeat(Failure::MAX_ERROR_BYTES);
    let kind = FailureKind::Permanent;
    let failure = Failure { error: long, ended: AttemptOutcome::Panicked, kind };
    assert_eq!(rig.settle(lease(&run), Outcome::Failed(failure)).await, SettledAs::Dead);
    let kept = rig.job(run.id).await.error.expect("an error").len();
    assert!(kept <= Failure::MAX_ERROR_BYTES && kept + 4 > Failure::MAX_ERROR_BYTES, "{kept}");
    rig.at(120).claim_one().await;
}

/// Neither a shutdown nor a snooze costs an attempt.
pub async fn r29_released_and_snoozed_attempts_are_not_spent(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let first = rig.claim_one().await;
    rig.settle(lease(&first), Outcome::Released).await;
    let second = rig.claim_one().await;
    let became = rig.settle(lease(&second), Outcome::Snoozed { delay: secs(7) }).await;
    assert_eq!(became, SettledAs::Scheduled { due: rig.now() + secs(7) });
    rig.at(6).claim_none().await;
    let third = rig.at(7).claim_one().await;
    assert_eq!((first.attempt, second.attempt, third.attempt), (1, 1, 1));
    assert!(first.token < second.token && second.token < third.token);
}

/// A crash gives the slot back once the lease lapses.
pub async fn r31_a_crashed_slot_comes_back(mut rig: Rig) {
    let settings =
        quell_core::QueueSettings { concurrency: Some(1), ..quell_core::QueueSettings::default() };
    rig.set_queue(settings).await;
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    let crashed = rig.claim_one().await;
    rig.at(29).claim_none().await;
    rig.at(30);
    rig.store.reap(Some(rig.now()), 9).await.expect("reaps");
    let next = rig.claim_one().await;
    assert_ne!((next.id, next.token), (crashed.id, crashed.token));
}

/// A known failure elsewhere: an outcome written twice, or by someone who no longer holds the job.
pub async fn a_settlement_counts_once(rig: Rig) {
    rig.trigger(plain("1")).await;
    let job = rig.claim_one().await;
    let twice = || Settlement { lease: lease(&job), outcome: Outcome::Succeeded };
    let settled = rig.store.settle(Some(rig.now()), vec![twice(), twice()]).await.expect("settles");
    let became: Vec<_> = settled.iter().map(|one| one.became).collect();
    assert_eq!(became, [SettledAs::Succeeded, SettledAs::Refused]);
    assert_eq!(rig.settle(lease(&job), Outcome::Succeeded).await, SettledAs::Refused);
    let target = ExplainTarget::Job(job.id);
    let told = rig.store.explain(&target).await.expect("explains").expect("is known");
    assert_eq!(told.attempts.len(), 1);
}
