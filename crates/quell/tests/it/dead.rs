//! Dead jobs through the client: at a rate, in virtual time, stopped and started again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell::clock::Clock;
use quell::dead::{DeadCauses, DeadFilter, Progress, Redrive, RedriveRate};
use quell::job::AttemptOutcome;
use quell::store::{Claim, Failure, FailureKind, Lease, MemoryStore, Outcome, Settlement, Store};
use quell::testing::TestClock;
use quell::trigger::NewTrigger;
use quell::worker::WorkerId;
use quell::{Batch, ErrorKind, JobId, JobState, Payload, Quell, QueueName, TaskName, Timestamp};

use crate::tasks::secs;

const START: Timestamp = Timestamp::from_secs(1_000);

/// A client whose store has this number of dead jobs, and its clock.
async fn with_dead(count: usize) -> (Quell, Arc<TestClock>) {
    with_errors(&vec!["no"; count]).await
}

/// The same, with dead jobs of these errors, a thousand at a time.
async fn with_errors(errors: &[&str]) -> (Quell, Arc<TestClock>) {
    let clock = Arc::new(TestClock::new(START));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(START));
    let quell = Quell::with_store(store).clock(clock.clone()).build().unwrap();
    let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
    let one = NewTrigger::new(task.clone(), queue.clone(), Payload::from_text("1").unwrap());
    let worker = WorkerId::new("w").unwrap();
    let lease = Duration::from_secs(30);
    let claim = Claim {
        queue,
        tasks: [task].into(),
        worker,
        limit: 1_000,
        lease,
        draw: quell::store::Draw::MIN,
    };
    for errors in errors.chunks(1_000) {
        let triggers = vec![one.clone(); errors.len()];
        quell.enqueue(Batch { triggers, dedup: None }).await.unwrap();
        let runs = quell.store().claim(Some(clock.now()), &claim).await.unwrap().jobs;
        let ends = runs.iter().zip(errors).map(|(run, error)| Settlement {
            lease: Lease { job: run.id, token: run.token },
            outcome: Outcome::Failed(Failure {
                error: (*error).to_owned(),
                ended: AttemptOutcome::Failed,
                kind: FailureKind::Permanent,
            }),
        });
        quell.store().settle(Some(clock.now()), ends.collect()).await.unwrap();
        if errors.len() == 1_000 {
            clock.set(clock.now() + Duration::from_secs(1));
        }
    }
    (quell, clock)
}

#[tokio::test]
async fn r26_many_are_put_back_at_the_rate_that_was_asked_for() {
    let (quell, clock) = with_dead(25).await;
    let mut sweep = quell.dead().redrive_all(DeadFilter::default(), 100).unwrap();
    let step = |done| Some(Progress { matched: 25, done, skipped: 0, failed: 0 });
    assert_eq!(sweep.step().await.unwrap(), step(10));
    for done in [20, 25] {
        assert!(sweep.step().now_or_never().is_none(), "ten jobs take 100 ms");
        let waited = Duration::from_millis(if done == 20 { 100 } else { 200 });
        clock.set(START + waited);
        assert_eq!(sweep.step().await.unwrap(), step(done));
    }
    assert_eq!(sweep.step().await.unwrap(), None);
    assert_eq!(quell.dead().count(&DeadFilter::default()).await.unwrap(), 0);
    assert_eq!(RedriveRate::new(0).unwrap_err().field(), Some("rate"));
    assert_eq!(
        [1, 10, 11, 9_999].map(|rate| RedriveRate::new(rate).unwrap().batch()),
        [1, 1, 2, 200]
    );
}

#[tokio::test]
async fn r26_a_redrive_of_many_may_stop_and_start_again() {
    let (quell, clock) = with_dead(25).await;
    let mut first = quell.dead().redrive_all(DeadFilter::default(), 100).unwrap();
    first.step().await.unwrap();
    drop(first);
    // Someone else was there meanwhile.
    let rest = quell.dead().list(&DeadFilter::default()).await.unwrap();
    quell.dead().discard(rest[0].id, "a test message").await.unwrap();
    let second = quell.dead().redrive_all(DeadFilter::default(), 1_000).unwrap();
    let done = second.run().await.unwrap();
    assert_eq!(done, Progress { matched: 14, done: 14, skipped: 0, failed: 0 });
    assert_eq!(clock.next_sleeper(), None);
}

#[tokio::test]
async fn r26_r40_one_job_answers_for_itself() {
    let (quell, _clock) = with_dead(1).await;
    let dead = quell.dead();
    let job = dead.list(&DeadFilter::default()).await.unwrap().remove(0);
    let large = Payload::from_text(format!("\"{}\"", "x".repeat(1 << 20))).unwrap();
    let refused = dead.redrive(Redrive { id: job.id, payload: Some(large) }).await.unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some("payload")));
    let unknown = dead.export(JobId::new(77)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert_eq!(dead.discard(job.id, "").await.unwrap_err().field(), Some("reason"));

    let mut lines = Vec::new();
    let each = |line: &str| {
        lines.push(line.to_owned());
        Ok(())
    };
    assert_eq!(dead.export_lines(&DeadFilter::default(), each).await.unwrap(), 1);
    let exports =
        quell::dead::exports::read(&lines.join("\n"), &quell::trigger::Limits::default()).unwrap();
    assert_eq!(exports, [dead.export(job.id).await.unwrap()]);
    dead.redrive(job.id).await.unwrap();
    for refused in [dead.export(job.id).await.err(), dead.discard(job.id, "no").await.err()] {
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), ErrorKind::IllegalMove, "{refused}");
        assert!(refused.to_string().contains("is scheduled, not dead"), "{refused}");
    }
    let back = dead.import(&exports).await.unwrap();
    assert!(back[0].known && back[0].id == job.id, "it never left");
    let mut wrong = exports;
    wrong[0].job.state = JobState::Running;
    let refused = dead.import(&wrong).await.unwrap_err();
    assert!(refused.to_string().starts_with("exports[0]: "), "{refused}");
}

#[tokio::test]
async fn r25_the_dead_are_counted_by_cause_the_most_frequent_first() {
    let errors = [
        "disk full",
        "job 7 not found",
        "the target answered 503: \"busy\"",
        "job 812 not found",
        "the target answered 500: \"busy\"",
        "job 9 not found",
        "the target answered 503: \"down\"",
    ];
    let (quell, clock) = with_errors(&errors).await;
    let found = quell.dead().causes(&DeadFilter::default()).await.unwrap();
    let counts: Vec<_> = found.causes.iter().map(|one| (one.cause.as_str(), one.jobs)).collect();
    assert_eq!(
        counts[..2],
        [("job N not found", 3), ("the target answered 503: \"…\"", 2)],
        "{found:#?}"
    );
    assert_eq!((found.causes.len(), found.jobs, found.next), (4, 7, None));
    let first = &found.causes[0];
    assert_eq!((first.task.as_str(), first.queue.as_str()), ("t", "q"));
    assert_eq!((first.first_died_at, first.last_died_at), (clock.now(), clock.now()));
    let example = quell.dead().export(first.example).await.unwrap().job;
    assert_eq!(example.error.as_deref(), Some("job 9 not found"), "the last of them");
    let busy = DeadFilter { error: Some("BUSY".to_owned()), limit: 1, ..DeadFilter::default() };
    let found = quell.dead().causes(&busy).await.unwrap();
    assert_eq!((found.causes.len(), found.jobs), (2, 2));
    let wrong = DeadFilter { error: Some(String::new()), ..busy };
    assert_eq!(quell.dead().causes(&wrong).await.unwrap_err().field(), Some("error"));
}

#[tokio::test]
async fn r25_of_very_many_dead_the_latest_are_looked_at_and_it_says_so() {
    let mut errors = vec!["an old one"; 300];
    errors.resize(1_000 + DeadCauses::MAX_JOBS, "a new one");
    let (quell, clock) = with_errors(&errors).await;
    let found = quell.dead().causes(&DeadFilter::default()).await.unwrap();
    let looked_at = DeadCauses::MAX_JOBS as u64;
    assert_eq!((found.causes.len(), found.causes[0].jobs, found.jobs), (1, looked_at, looked_at));
    let new = &found.causes[0];
    assert_eq!(
        (new.first_died_at, new.last_died_at),
        (START + secs(1), clock.now().before(secs(1)))
    );
    let rest = DeadFilter { before: found.next, ..DeadFilter::default() };
    let rest = quell.dead().causes(&rest).await.unwrap();
    let counts: Vec<_> = rest.causes.iter().map(|one| (one.cause.as_str(), one.jobs)).collect();
    assert_eq!((counts, rest.next), (vec![("a new one", 700), ("an old one", 300)], None));
}
