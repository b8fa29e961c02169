//! Dead letters through the client: at a rate, in virtual time, stopped and started again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use quell::testing::TestClock;
use quell::{
    AttemptOutcome, Batch, Claim, DeadFilter, ErrorKind, Failure, FailureKind, JobId, JobState,
    Lease, MemoryStore, NewTrigger, Outcome, Pace, Payload, Progress, Quell, QueueName, Redrive,
    Settlement, Store, TaskName, Timestamp, WorkerId,
};

const START: Timestamp = Timestamp::from_secs(1_000);

/// A client whose store has so many dead jobs, and its clock.
async fn with_dead(count: usize) -> (Quell, Arc<TestClock>) {
    let clock = Arc::new(TestClock::new(START));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(START));
    let quell = Quell::with_store(store).clock(clock.clone()).build().unwrap();
    let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
    let one = NewTrigger::new(task.clone(), queue.clone(), Payload::from_text("1").unwrap());
    quell.enqueue(Batch { triggers: vec![one; count], dedup: None }).await.unwrap();
    let worker = WorkerId::new("w").unwrap();
    let lease = Duration::from_secs(30);
    let claim = Claim { queue, tasks: [task].into(), worker, limit: count, lease };
    let runs = quell.store().claim(Some(START), &claim).await.unwrap().jobs;
    let ends = runs.iter().map(|run| Settlement {
        lease: Lease { job: run.id, token: run.token },
        outcome: Outcome::Failed(Failure {
            error: "no".to_owned(),
            ended: AttemptOutcome::Failed,
            kind: FailureKind::Permanent,
        }),
    });
    quell.store().settle(Some(START), ends.collect()).await.unwrap();
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
    assert_eq!(Pace::new(0).unwrap_err().field(), Some("rate"));
    assert_eq!([1, 10, 11, 9_999].map(|rate| Pace::new(rate).unwrap().batch()), [1, 1, 2, 200]);
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
    let unknown = dead.letter(JobId::new(77)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert_eq!(dead.discard(job.id, "").await.unwrap_err().field(), Some("reason"));

    let mut lines = Vec::new();
    let each = |line: &str| {
        lines.push(line.to_owned());
        Ok(())
    };
    assert_eq!(dead.export(&DeadFilter::default(), each).await.unwrap(), 1);
    let letters = quell::letters::read(&lines.join("\n"), &quell::Limits::default()).unwrap();
    assert_eq!(letters, [dead.letter(job.id).await.unwrap()]);
    dead.redrive(job.id).await.unwrap();
    for refused in [dead.letter(job.id).await.err(), dead.discard(job.id, "no").await.err()] {
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), ErrorKind::IllegalMove, "{refused}");
        assert!(refused.to_string().contains("is scheduled, not dead"), "{refused}");
    }
    let back = dead.import(&letters).await.unwrap();
    assert!(back[0].known && back[0].id == job.id, "it never left");
    let mut wrong = letters;
    wrong[0].job.state = JobState::Running;
    let refused = dead.import(&wrong).await.unwrap_err();
    assert!(refused.to_string().starts_with("letters[0]: "), "{refused}");
}
