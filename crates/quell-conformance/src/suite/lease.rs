//! Leases, fences, and how attempts end.

use std::time::Duration;

use quell_core::window::Debounce;
use quell_core::{
    AttemptOutcome, ExplainTarget, Failure, FailureKind, Fold, JobState, Lease, Outcome, Payload,
    Renewal, SettledAs, Settlement,
};

use crate::rig::{Rig, debounce, fails, keyed, keyed_with, lease, plain, secs};

/// A known failure elsewhere: an outcome is written without a fence, so a zombie ends a job that
/// another worker holds. Here the job runs again under a new fence; the zombie changes nothing.
pub async fn r21_an_expired_lease_is_taken_back_and_nothing_it_reports_counts(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let zombie = rig.at(10).claim_one().await;
    rig.at(39);
    assert!(rig.store.reap(Some(rig.now()), 9).await.expect("reaps").is_empty());
    rig.at(40);
    let before = rig.jobs().await;
    let late = rig.settle(lease(&zombie), Outcome::succeeded()).await;
    assert_eq!(late, SettledAs::Refused, "an expired lease does not count, reaped or not");
    assert_eq!(rig.jobs().await, before, "a refused settlement changes nothing");
    let expired = rig.store.reap(Some(rig.now()), 9).await.expect("reaps");
    assert_eq!(expired[0].lease, lease(&zombie));
    let again = rig.claim_one().await;
    assert!(again.token > zombie.token);
    assert_eq!(again.attempt, 1, "an expired lease spends no attempt");
    let before = rig.jobs().await;
    for outcome in [Outcome::succeeded(), fails(secs(1), false), Outcome::Released] {
        assert_eq!(rig.settle(lease(&zombie), outcome).await, SettledAs::Refused);
    }
    assert_eq!(rig.jobs().await, before);
    rig.succeed(&again).await;
}

/// A zombie and the job's new owner may be one worker, which reports both ends in one call.
pub async fn r21_two_ends_of_one_job_in_a_call_go_by_their_tokens(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let zombie = rig.claim_one().await;
    rig.at(40).reap().await;
    let again = rig.claim_one().await;
    let outputs = ["\"of the lost lease\"", "\"of the current one\""].map(Payload::from_stored);
    let ends = [(&zombie, &outputs[0]), (&again, &outputs[1])]
        .map(|(one, output)| {
            let outcome = Outcome::Succeeded { output: Some(output.clone()) };
            Settlement { lease: lease(one), outcome }
        })
        .to_vec();
    let settled = rig.store.settle(Some(rig.now()), ends).await.expect("settles");
    let became: Vec<SettledAs> = settled.iter().map(|one| one.became).collect();
    assert_eq!(became, [SettledAs::Refused, SettledAs::Succeeded]);
    assert_eq!(rig.job(again.id).await.output.as_ref(), Some(&outputs[1]), "R19: whose output");
}

/// Renewal moves the end; an expired lease cannot be renewed.
pub async fn r21_a_renewed_lease_holds(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let job = rig.claim_one().await;
    let stranger = Lease { job: job.id, token: Rig::token(99) };
    rig.at(20);
    let leases = [lease(&job), stranger];
    let renewed = rig.store.renew(Some(rig.now()), &leases, Rig::LEASE).await.expect("renews");
    assert_eq!(renewed, [Renewal::Held(rig.now() + Rig::LEASE), Renewal::Lost]);
    rig.at(49);
    assert!(rig.store.reap(Some(rig.now()), 9).await.expect("reaps").is_empty());
    rig.at(50);
    let renewed = rig.store.renew(Some(rig.now()), &leases, Rig::LEASE).await.expect("renews");
    assert_eq!(renewed, [Renewal::Lost, Renewal::Lost]);
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
            (one.token.starts(), one.outcome, one.error.as_deref(), Rig::second(one.started_at))
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

/// A released job starts before those that became due after it.
pub async fn r29_r30_a_released_job_keeps_its_place(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let first = rig.claim_one().await;
    rig.at(1).trigger(plain("2")).await;
    rig.at(5).settle(lease(&first), Outcome::Released).await;
    let jobs = rig.claim().await;
    let found: Vec<_> = jobs.iter().map(|job| (job.id, job.due_at)).collect();
    assert_eq!(found.len(), 2, "{}", rig.dump().await);
    assert_eq!(found[0], (first.id, first.due_at), "{}", rig.dump().await);
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

/// To the microsecond, also when the clock below the store goes back.
pub async fn r21_a_lease_expires_at_its_end_and_no_sooner(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let job = rig.at(5).claim_one().await;
    assert_eq!(job.lease_until, Rig::START + secs(35));
    let microsecond = Duration::from_micros(1);
    rig.at_time(job.lease_until.before(microsecond));
    assert!(rig.reap().await.is_empty());
    let until = rig.renew(lease(&job)).await.expect("still held");
    assert_eq!(until, rig.now() + Rig::LEASE);
    rig.at(1);
    assert_eq!(rig.renew(lease(&job)).await, Some(until), "store time does not go back");
    rig.at_time(until.before(microsecond));
    assert!(rig.reap().await.is_empty());
    rig.at_time(until);
    assert_eq!(rig.renew(lease(&job)).await, None);
    assert_eq!(rig.settle(lease(&job), Outcome::Released).await, SettledAs::Refused);
    assert_eq!(rig.reap().await.len(), 1);
}

/// The oldest expired lease first, no more than asked for, each once.
pub async fn r21_expired_leases_are_taken_back_in_order(mut rig: Rig) {
    let mut jobs = Vec::new();
    for second in [0, 5, 10] {
        rig.trigger(plain("1")).await;
        jobs.push(rig.at(second).claim_one().await);
    }
    rig.at(20).renew(lease(&jobs[1])).await;
    rig.at(100);
    let mut taken = Vec::new();
    for _ in 0..4 {
        let expired = rig.store.reap(Some(rig.now()), 1).await.expect("reaps");
        taken.extend(expired.iter().map(|one| one.lease));
    }
    assert_eq!(taken, [&jobs[0], &jobs[2], &jobs[1]].map(lease));
    let attempts = rig.store.attempts(jobs[0].id).await.expect("reads");
    assert_eq!(
        attempts.iter().map(|one| one.outcome).collect::<Vec<_>>(),
        [Some(AttemptOutcome::LeaseExpired)]
    );
    assert_eq!(rig.job(jobs[0].id).await.crashes, 0, "no worker row says that it is gone");
}

/// The worker learns it at its next renewal; what it reports does not count.
pub async fn r21_a_cancelled_attempt_has_lost_its_lease(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let job = rig.at(10).claim_one().await;
    let window = rig.trigger(keyed("a")).await.job();
    rig.cancel(job.id).await.expect("cancels");
    assert_eq!(rig.renew(lease(&job)).await, None);
    assert_eq!(rig.settle(lease(&job), Outcome::succeeded()).await, SettledAs::Refused);
    assert!(rig.at(100).reap().await.is_empty());
    assert_eq!(rig.job(job.id).await.state, JobState::Cancelled);
    let attempts = rig.store.attempts(job.id).await.expect("reads");
    let reported: Vec<_> = attempts.iter().map(|one| (one.outcome, one.error.as_deref())).collect();
    assert_eq!(reported, [(Some(AttemptOutcome::Cancelled), Some("no longer wanted"))]);
    assert_eq!(Some(rig.claim_one().await.id), window);
}

/// A reason of any length cancels a job, from any caller, and is kept as an error is: up to 16 KiB,
/// whole characters only.
pub async fn r25_a_reason_of_any_length_is_kept_up_to_its_bound(mut rig: Rig) {
    let long = format!("x{}", "é".repeat(Failure::MAX_ERROR_BYTES));
    let kept = format!("x{}", "é".repeat(Failure::MAX_ERROR_BYTES / 2 - 1));
    for by in ["handler", "operator", "operator, before it runs"] {
        let id = rig.trigger(plain("1")).await.job().expect("a job");
        let ran = by != "operator, before it runs";
        if ran {
            let job = rig.claim_one().await;
            if by == "handler" {
                let outcome = Outcome::Cancelled { reason: long.clone() };
                assert_eq!(rig.settle(lease(&job), outcome).await, SettledAs::Cancelled);
            }
        }
        if by != "handler" {
            rig.store.cancel(Some(rig.now()), id, &long).await.expect("cancels");
        }
        let row = rig.job(id).await;
        assert_eq!((row.state, row.error.as_deref()), (JobState::Cancelled, Some(&*kept)), "{by}");
        let attempts = rig.store.attempts(id).await.expect("reads");
        let errors: Vec<_> = attempts.iter().map(|one| one.error.as_deref()).collect();
        assert_eq!(errors, if ran { vec![Some(&*kept)] } else { Vec::new() }, "{by}");
        rig.at_time(rig.now() + secs(1));
    }
}

/// However a handler fails, the record says how.
pub async fn r25_every_attempt_is_on_record(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let ends = [AttemptOutcome::Failed, AttemptOutcome::Panicked, AttemptOutcome::TimedOut];
    for (round, ended) in ends.into_iter().enumerate() {
        let job = rig.at(round as u64 * 10).claim_one().await;
        let kind = FailureKind::Transient { backoff: secs(10), last: round == 2, asked: false };
        let error = format!("error {round}\n  caused by: the weather");
        let failure = Failure { error, ended, kind };
        rig.settle(lease(&job), Outcome::Failed(failure)).await;
    }
    let id = rig.jobs().await[0].id;
    rig.redrive(id).await.expect("redrives");
    let job = rig.claim_one().await;
    rig.settle(lease(&job), Outcome::Snoozed { delay: secs(1) }).await;
    let job = rig.at(31).claim_one().await;
    rig.succeed(&job).await;
    let attempts = rig.store.attempts(id).await.expect("reads");
    let outcomes: Vec<_> = attempts.iter().filter_map(|one| one.outcome).collect();
    let expected = [&ends[..], &[AttemptOutcome::Snoozed, AttemptOutcome::Succeeded]].concat();
    assert_eq!(outcomes, expected, "a redrive forgets nothing");
    assert_eq!(attempts[1].error.as_deref(), Some("error 1\n  caused by: the weather"));
    assert!(attempts.windows(2).all(|pair| pair[0].token < pair[1].token), "{attempts:?}");
    assert!(attempts.iter().all(|one| one.ended_at >= Some(one.started_at)), "{attempts:?}");
}

/// A known failure elsewhere: a crashed worker's slot in a limit stays taken. Here it is free once
/// the lease expires.
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

/// An outcome that is written twice, or by someone who no longer holds the job, counts once.
pub async fn r21_a_settlement_counts_once(rig: Rig) {
    rig.trigger(plain("1")).await;
    let job = rig.claim_one().await;
    let twice = || Settlement { lease: lease(&job), outcome: Outcome::succeeded() };
    let settled = rig.store.settle(Some(rig.now()), vec![twice(), twice()]).await.expect("settles");
    let became: Vec<_> = settled.iter().map(|one| one.became).collect();
    assert_eq!(became, [SettledAs::Succeeded, SettledAs::Refused]);
    assert_eq!(rig.settle(lease(&job), Outcome::succeeded()).await, SettledAs::Refused);
    let target = ExplainTarget::Job(job.id);
    let reported =
        rig.store.explain(Some(rig.now()), &target).await.expect("explains").expect("is known");
    assert_eq!(reported.attempts.len(), 1);
}

/// A claim returns when the first of all leases ends, its own among them.
pub async fn r21_a_claim_says_when_the_next_lease_expires(mut rig: Rig) {
    let claim = async |rig: &Rig| {
        rig.store.claim(Some(rig.now()), &Rig::claim_of(1)).await.expect("claims").next.expiry
    };
    assert_eq!(claim(&rig).await, None);
    for _ in 0..2 {
        rig.trigger(plain("1")).await;
    }
    let first = rig.now() + Rig::LEASE;
    assert_eq!(claim(&rig).await, Some(first));
    rig.at(5);
    assert_eq!(claim(&rig).await, Some(first), "the earlier one");
    assert_eq!(claim(&rig).await, Some(first), "also where nothing is to claim");
}

/// The record says how each attempt ended, not only that it did.
pub async fn r25_an_attempt_is_on_record_as_it_ended(mut rig: Rig) {
    let ends = [
        (Outcome::Snoozed { delay: secs(1) }, AttemptOutcome::Snoozed, None),
        (Outcome::Released, AttemptOutcome::Released, None),
        (fails(secs(1), false), AttemptOutcome::Failed, Some("boom")),
        (Outcome::Cancelled { reason: "why".to_owned() }, AttemptOutcome::Cancelled, Some("why")),
    ];
    let job = rig.trigger(plain("1")).await.job().expect("a job");
    for (second, (outcome, _, _)) in ends.iter().enumerate() {
        let run = rig.at(10 * second as u64).claim_one().await;
        rig.settle(lease(&run), outcome.clone()).await;
    }
    let attempts = rig.store.attempts(job).await.expect("reads");
    let reported: Vec<_> = attempts.iter().map(|one| (one.outcome, one.error.as_deref())).collect();
    assert_eq!(reported, ends.each_ref().map(|(_, outcome, error)| (Some(*outcome), *error)));
}

/// Attempts that overlapped fail in one call: the first waits for the second, which frees it.
pub async fn r11_two_failures_of_one_key_in_a_call_leave_it_free(mut rig: Rig) {
    let beside = Debounce { overlap: true, ..debounce() };
    rig.trigger(keyed("a")).await;
    let first = rig.at(10).claim_one().await;
    rig.trigger(keyed_with("a", beside, Fold::Last, "2")).await;
    let second = rig.at(20).claim_one().await;
    let ends = [&first, &second]
        .map(|run| Settlement { lease: lease(run), outcome: fails(secs(1), false) })
        .to_vec();
    let settled = rig.store.settle(Some(rig.now()), ends).await.expect("settles");
    assert!(matches!(settled[0].became, SettledAs::Scheduled { .. }), "{settled:?}");
    assert!(matches!(settled[1].became, SettledAs::Absorbed { .. }), "{settled:?}");
    let run = rig.at(21).claim_one().await;
    assert_eq!((run.id, run.triggers), (first.id, 2));
}
