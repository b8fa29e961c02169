//! Attempts that end without a word, and how many attempts a job keeps on record.

use quell_core::crash::pause;
use quell_core::{Attempt, AttemptOutcome, ClaimedJob, ExplainTarget, Outcome, SettledAs};

use crate::rig::{Rig, fails, keyed, lease, plain, secs};

/// Claims one job and lets its lease lapse; says what was claimed and what became of the job.
async fn crash(rig: &mut Rig, second: u64) -> (ClaimedJob, SettledAs) {
    let job = rig.at(second).claim_one().await;
    let lapsed = rig.at(second + 30).reap().await;
    (job, lapsed[0].became)
}

/// Whoever claims a job is told how often in a row its attempts ended without a word; one that
/// reports ends the row, whatever it says.
pub async fn r21_r25_lapses_in_a_row_are_counted_until_an_attempt_reports(mut rig: Rig) {
    let id = rig.trigger(plain("1")).await.job().expect("a job");
    let mut told = Vec::new();
    let ends = [Outcome::Released, fails(secs(1), false), Outcome::Snoozed { delay: secs(1) }];
    for (round, end) in ends.into_iter().enumerate() {
        let begin = round as u64 * 10_000;
        for lapse in 0..2 {
            told.push(crash(&mut rig, begin + lapse * 2_000).await.0.lapses);
        }
        assert_eq!(rig.job(id).await.lapses, told.last().copied().unwrap_or_default() + 1);
        let job = rig.at(begin + 4_000).claim_one().await;
        told.push(job.lapses);
        rig.settle(lease(&job), end).await;
    }
    // A job that is given back was perhaps never begun: it says nothing.
    assert_eq!(told, [0, 1, 2, 2, 3, 4, 0, 1, 2]);
    let job = rig.at(90_000).claim_one().await;
    assert_eq!((job.lapses, job.attempt), (0, 2), "a lapse spends no attempt");
}

/// A first lapse waits for nothing; from the second in a row on a job waits, so that those which
/// one worker took with it come back apart.
pub async fn r21_r25_a_job_that_lapses_again_waits(mut rig: Rig) {
    let id = rig.trigger(plain("1")).await.job().expect("a job");
    let mut second = 0;
    for lapse in 1..=4 {
        let (_, became) = crash(&mut rig, second).await;
        let due = rig.now() + pause(lapse, id, Rig::LEASE);
        assert_eq!(became, SettledAs::Scheduled { due }, "after lapse {lapse}");
        assert_eq!(due == rig.now(), lapse == 1, "after lapse {lapse}");
        if lapse > 1 {
            rig.claim_none().await;
        }
        second += 10_000;
    }
}

/// What kills its worker goes on doing so in the window that takes it in, and a new trigger does not
/// change that.
pub async fn r12_r25_the_heir_takes_over_the_lapses(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let first = rig.at(10).claim_one().await;
    let heir = rig.at(11).trigger(keyed("a")).await.job().expect("a job");
    let lapsed = rig.at(40).reap().await;
    assert!(matches!(lapsed[0].became, SettledAs::Absorbed { by, .. } if by == heir), "{lapsed:?}");
    rig.trigger(keyed("a")).await;
    let next = rig.at(200).claim_one().await;
    assert_eq!((next.id, next.lapses), (heir, 1));
    assert_eq!(rig.job(first.id).await.lapses, 1);
}

/// A job that fails for ever keeps its first attempts and its last ones, and says how many it gave
/// up.
pub async fn r25_the_first_and_the_last_attempts_are_kept(mut rig: Rig) {
    let id = rig.trigger(plain("1")).await.job().expect("a job");
    let kept = Attempt::FIRST_KEPT + Attempt::LAST_KEPT;
    let mut second = 0;
    for round in 1..=kept + 7 {
        let job = rig.at(second).claim_one().await;
        match round {
            9 => drop(rig.at(second + 30).reap().await),
            _ => drop(rig.settle(lease(&job), fails(secs(1), false)).await),
        }
        let attempts = rig.store.attempts(id).await.expect("reads");
        assert_eq!(attempts.len() as u64, round.min(kept), "after {round} attempts");
        second += 40;
    }
    let target = ExplainTarget::Job(id);
    let told = rig.explain(&target).await.expect("is known");
    let tokens: Vec<u64> = told.attempts.iter().map(|one| one.token.get()).collect();
    let expected: Vec<u64> = (1..=5).chain(13..=57).collect();
    assert_eq!((tokens, told.dropped_attempts()), (expected, 7));
    let text = told.to_string();
    assert!(
        text.contains("...        7 attempts more, which are not kept\n  attempt 13"),
        "{text}"
    );
    // The one that runs, and at last succeeds, is there beside them.
    let job = rig.at(second).claim_one().await;
    assert_eq!(rig.store.attempts(id).await.expect("reads").len() as u64, kept + 1);
    rig.succeed(&job).await;
    let attempts = rig.store.attempts(id).await.expect("reads");
    assert_eq!(attempts.last().and_then(|one| one.outcome), Some(AttemptOutcome::Succeeded));
}
