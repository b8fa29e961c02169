//! Attempts that end without a word, and how many attempts a job keeps on record.

use quell_core::crash::pause;
use quell_core::heartbeat::{Heartbeat, WorkerDrain, WorkerRow};
use quell_core::{
    Attempt, AttemptOutcome, Claim, ClaimedJob, ExplainTarget, Outcome, QueueName, SettledAs,
    WorkerId,
};

use crate::rig::{Rig, fails, heartbeat, keyed, lease, plain, secs, task};

/// Claims one job, after which its worker is gone while another one works on; returns what was
/// claimed and what became of the job.
async fn crash(rig: &mut Rig, second: u64) -> (ClaimedJob, SettledAs) {
    let job = rig.at(second).claim_one().await;
    rig.beat("w1", 1, second).await;
    rig.beat("w2", 1, second + 20).await;
    let expired = rig.at(second + 30).reap().await;
    assert!(expired[0].crash, "{expired:?}");
    (job, expired[0].became)
}

/// A claim shows how often in a row attempts of its job ended without a report; one that reports ends
/// the row, whatever its outcome is.
pub async fn r21_r25_crashes_in_a_row_are_counted_until_an_attempt_reports(mut rig: Rig) {
    let id = rig.trigger(plain("1")).await.job().expect("a job");
    let mut shown = Vec::new();
    let ends = [Outcome::Released, fails(secs(1), false), Outcome::Snoozed { delay: secs(1) }];
    for (round, end) in ends.into_iter().enumerate() {
        let begin = round as u64 * 10_000;
        for expiry in 0..2 {
            shown.push(crash(&mut rig, begin + expiry * 2_000).await.0.crashes);
        }
        assert_eq!(rig.job(id).await.crashes, shown.last().copied().unwrap_or_default() + 1);
        let job = rig.at(begin + 4_000).claim_one().await;
        shown.push(job.crashes);
        rig.settle(lease(&job), end).await;
    }
    // A job that is released was perhaps never begun: it proves nothing.
    assert_eq!(shown, [0, 1, 2, 2, 3, 4, 0, 1, 2]);
    let job = rig.at(90_000).claim_one().await;
    assert_eq!((job.crashes, job.attempt), (0, 2), "an expired lease spends no attempt");
}

/// After a first expired lease a job does not wait; from the second in a row on it does, so that those which
/// one worker took with it come back apart.
pub async fn r21_r25_a_job_whose_lease_expires_again_waits(mut rig: Rig) {
    let id = rig.trigger(plain("1")).await.job().expect("a job");
    let mut second = 0;
    for nth in 1..=4 {
        let (_, became) = crash(&mut rig, second).await;
        let due = rig.now() + pause(nth, id, Rig::LEASE);
        assert_eq!(became, SettledAs::Scheduled { due }, "after expiry {nth}");
        assert_eq!(due == rig.now(), nth == 1, "after expiry {nth}");
        if nth > 1 {
            rig.claim_none().await;
        }
        second += 10_000;
    }
}

/// What kills its worker goes on doing so in the window that takes it in, and a new trigger does not
/// change that.
pub async fn r12_r25_the_successor_takes_over_the_crashes(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    rig.beat("w1", 1, 10).await;
    let first = rig.at(10).claim_one().await;
    let successor = rig.at(11).trigger(keyed("a")).await.job().expect("a job");
    rig.beat("w2", 1, 30).await;
    let expired = rig.at(40).reap().await;
    assert!(
        matches!(expired[0].became, SettledAs::Absorbed { by, .. } if by == successor),
        "{expired:?}"
    );
    rig.trigger(keyed("a")).await;
    let next = rig.at(200).claim_one().await;
    assert_eq!((next.id, next.crashes), (successor, 1));
    assert_eq!(rig.job(first.id).await.crashes, 1);
}

/// One of several workers dies with the job each time: another one reaches the store
/// meanwhile.
pub async fn r25_a_crash_beside_other_workers_counts(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    for round in 0..3 {
        let (begin, names) = (u64::from(round) * 10_000, ["w1", "w2", "w3"]);
        for name in names {
            rig.beat(name, round, begin).await;
        }
        let holder = WorkerId::new(names[round as usize]).expect("a valid name");
        let asked = Claim { worker: holder, ..Rig::claim_of(1) };
        let job = rig.at(begin + 1).claim_with(&asked).await.remove(0);
        assert_eq!(job.crashes, round);
        for name in names.iter().filter(|name| **name != asked.worker.as_str()) {
            rig.beat(name, round, begin + 20).await;
        }
        rig.at(begin + 31).reap().await;
    }
    assert_eq!(rig.at(90_000).claim_one().await.crashes, 3);
}

/// The only worker, which its job kills: it counts although no other worker was there, whether its
/// supervisor starts the next one at once or after the lease.
pub async fn r25_the_crash_of_the_only_worker_counts_once_the_next_one_starts(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let mut second = 0;
    for (process, pause) in [(0, 5), (1, 600), (2, 40), (3, 10)] {
        rig.beat("w1", process, second).await;
        assert_eq!(rig.at(second).claim_one().await.crashes, process);
        let back = second + pause;
        rig.beat("w1", process + 1, back).await;
        let reaped_at = back.max(second + 30);
        rig.beat("w1", process + 1, reaped_at).await;
        assert!(rig.at(reaped_at).reap().await[0].crash, "{process}");
        second = reaped_at + 1_000;
    }
    rig.beat("w1", 4, second).await;
    assert_eq!(rig.at(second).claim_one().await.crashes, 4);
}

/// The store is away for five minutes, or locked, or all workers are suspended; all of them are
/// alive afterwards. Five times in a row: the sixth claim runs the handler.
pub async fn r39_an_outage_of_the_store_counts_no_crash(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    let mut second = 0;
    for round in 0..5 {
        for name in ["w1", "w2", "w3"] {
            rig.beat(name, 1, second).await;
        }
        let job = rig.at(second + 1).claim_one().await;
        assert_eq!(job.crashes, 0, "after {round} outages");
        // One more sign of another worker before it begins.
        rig.beat("w2", 1, second + 9).await;
        second += 300;
        // Not the holder is the first that is back.
        rig.beat("w2", 1, second).await;
        let expired = rig.at(second).reap().await;
        assert!(expired.len() == 1 && !expired[0].crash, "{expired:?}");
        second += 1;
    }
    let job = rig.at(second).claim_one().await;
    assert_eq!((job.crashes, job.attempt), (0, 1));
}

/// A worker that stops for a while, or cannot reach the store, and is back before its lease is taken
/// away lives. One that is still away then looks as a dead one does: the others reached the store.
pub async fn r21_r25_a_worker_that_is_back_has_not_crashed(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    rig.beat("w1", 1, 0).await;
    rig.claim_one().await;
    for second in [10, 20, 30, 40, 50, 60] {
        rig.beat("w2", 1, second).await;
    }
    rig.beat("w1", 1, 60).await;
    assert!(!rig.at(60).reap().await[0].crash, "it stopped and is back");
    let job = rig.claim_one().await;
    assert_eq!(job.crashes, 0);
    for second in [70, 80, 90] {
        rig.beat("w2", 1, second).await;
    }
    assert!(rig.at(90).reap().await[0].crash, "it hangs, or is cut off alone");
    assert_eq!(rig.at(200).claim_one().await.crashes, 1);
}

/// A worker's row shows what it reported and when it was seen; it goes when the worker stops, and a
/// day after it was last seen.
pub async fn r25_workers_are_listed_until_they_stop_or_stay_away(mut rig: Rig) {
    let names = async |rig: &Rig| -> Vec<(String, u32)> {
        let workers = rig.store.workers(Some(rig.now())).await.expect("the store lists");
        workers.rows.iter().map(|row| (row.worker.to_string(), row.incarnation)).collect()
    };
    rig.beat("w2", 1, 0).await;
    rig.beat("w1", 1, 0).await;
    rig.beat("w1", 2, 10).await;
    rig.beat("w1", 2, 20).await;
    let now = rig.at(20).now();
    let workers = rig.store.workers(Some(now)).await.expect("the store lists");
    let beat = heartbeat(&WorkerId::new("w1").expect("a valid name"), 2);
    let row = WorkerRow::first(Rig::START + secs(10), &beat).again(rig.now(), &beat);
    assert_eq!((workers.now, workers.rows.get(1)), (rig.now(), Some(&row)));
    assert_eq!(row.tasks, Some(vec![task("t")]));
    let named = |name: &str, process: u32| (name.to_owned(), process);
    assert_eq!(names(&rig).await, [named("w1", 1), named("w1", 2), named("w2", 1)]);
    rig.store.remove_worker(&beat.worker, 1).await.expect("the store removes");
    rig.store.remove_worker(&beat.worker, 7).await.expect("there is none");
    assert_eq!(names(&rig).await, [named("w1", 2), named("w2", 1)]);
    rig.at(86_401);
    assert_eq!(names(&rig).await, [named("w1", 2)]);
}

/// A worker's row names the tasks that the worker knows, and gains those that it reports later; it names
/// none where a heartbeat says nothing of them.
pub async fn r15_r25_a_worker_row_names_the_tasks_of_its_worker(mut rig: Rig) {
    let queues = ["q", "r"].map(|name| QueueName::new(name).expect("a valid name"));
    let beat = heartbeat(&WorkerId::new("w1").expect("a valid name"), 1);
    let first = Heartbeat { tasks: Some(vec![task("t"), task("u")]), ..beat.clone() };
    let more = Heartbeat { queues: queues.to_vec(), tasks: Some(vec![task("v")]), ..beat.clone() };
    let silent = Heartbeat { tasks: None, ..beat };
    let mut row = None;
    for (second, beat) in [(0, &first), (10, &first), (20, &more), (30, &first), (40, &silent)] {
        let now = rig.at(second).now();
        rig.store.heartbeat(Some(now), beat).await.expect("the store takes heartbeats");
        let expected = match row {
            None => WorkerRow::first(now, beat),
            Some(row) => WorkerRow::again(&row, now, beat),
        };
        let workers = rig.store.workers(Some(now)).await.expect("the store lists");
        assert_eq!(workers.rows, std::slice::from_ref(&expected), "at {second}");
        row = Some(expected);
    }
}

/// A drained worker learns it with its heartbeats, from the process of that name that was listed, until it
/// is resumed or its row goes; the list says since when and by whom.
pub async fn r29_a_worker_learns_with_its_heartbeats_that_it_is_drained(mut rig: Rig) {
    let worker = |name: &str| WorkerId::new(name).expect("a valid name");
    let beats = async |rig: &Rig, name: &str, incarnation: u32| {
        let beat = heartbeat(&worker(name), incarnation);
        let beaten = rig.store.heartbeat(Some(rig.now()), &beat).await;
        beaten.expect("the store takes heartbeats").drained
    };
    let set = async |rig: &Rig, name: &str, drains: bool, by: &str| {
        let drain = WorkerDrain::new(worker(name), drains).by(by.to_owned());
        rig.store.drain_worker(Some(rig.now()), &drain).await.expect("the store drains")
    };
    let shown = async |rig: &Rig| {
        let workers = rig.store.workers(Some(rig.now())).await.expect("the store lists");
        let drained = |row: WorkerRow| {
            let drained = row.drained.map(|drained| (drained.since, drained.by));
            (row.worker.to_string(), row.incarnation, drained)
        };
        workers.rows.into_iter().map(drained).collect::<Vec<_>>()
    };
    assert_eq!(set(&rig, "w1", true, "ann").await, 0, "it is not there");
    assert!(!beats(&rig, "w1", 1).await && !beats(&rig, "w1", 2).await);
    assert!(!beats(&rig, "w2", 1).await, "it was not there");
    rig.at(5);
    assert_eq!(set(&rig, "w1", true, "ann").await, 2);
    rig.at(10);
    assert_eq!(set(&rig, "w1", true, "bob").await, 2, "it stays as it is");
    assert!(beats(&rig, "w1", 1).await && beats(&rig, "w1", 2).await);
    assert!(!beats(&rig, "w2", 1).await, "another worker");
    assert!(!beats(&rig, "w1", 3).await, "a new process of that name");
    let by_ann = Some((Rig::START + secs(5), Some("ann".to_owned())));
    let row = |incarnation, drained| ("w1".to_owned(), incarnation, drained);
    let others = [row(3, None), ("w2".to_owned(), 1, None)];
    let expected = [vec![row(1, by_ann.clone()), row(2, by_ann)], others.to_vec()].concat();
    assert_eq!(shown(&rig).await, expected);

    rig.store.remove_worker(&worker("w1"), 2).await.expect("the store removes");
    assert!(!beats(&rig, "w1", 2).await, "its row was gone");
    assert_eq!(set(&rig, "w1", false, "cid").await, 3);
    assert!(!beats(&rig, "w1", 1).await);
    assert!(shown(&rig).await.iter().all(|(.., drained)| drained.is_none()));
    let long = WorkerDrain::new(worker("w1"), true).by("x".repeat(256));
    let refused = rig.store.drain_worker(Some(rig.now()), &long).await.expect_err("refused");
    assert_eq!(refused.field(), Some("by"));
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
    let shown = rig.explain(&target).await.expect("is known");
    let tokens: Vec<u64> = shown.attempts.iter().map(|one| one.token.starts()).collect();
    let expected: Vec<u64> = (1..=5).chain(13..=57).collect();
    assert_eq!((tokens, shown.dropped_attempts()), (expected, 7));
    let text = shown.to_string();
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
