//! Operations as data: what each is called, that methods are operations, and that they cross a wire.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::{
    Answer, BacklogOf, Batch, Capabilities, Claim, Draw, EndNotification, ErrorKind, JobFilter,
    JobId, JobState, Lease, LeaseToken, MemoryStore, NewTrigger, Operation, OperationKind, Outcome,
    Payload, QueueName, Receipt, Redrive, Result, Settlement, Store, TaskName, Timestamp, WakeHub,
    Wakeups, WorkerId,
};

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn claim() -> Claim {
    Claim {
        queue: queue(),
        tasks: Arc::from([TaskName::new("t").unwrap()]),
        worker: WorkerId::new("w").unwrap(),
        limit: 9,
        lease: Duration::from_secs(30),
        draw: Draw::new(7),
    }
}

fn batch() -> Batch {
    let payload = Payload::from_stored("{\"n\":1}");
    Batch::one(NewTrigger::new(TaskName::new("t").unwrap(), queue(), payload))
}

/// A store that answers each operation by another's answer.
#[derive(Debug, Default)]
struct Mistaken(WakeHub);

#[async_trait]
impl Store for Mistaken {
    fn capabilities(&self) -> Capabilities {
        MemoryStore::new(Timestamp::MIN).capabilities()
    }

    async fn call(&self, _: Option<Timestamp>, _: Operation) -> Result<Answer> {
        Ok(Answer::DeleteQueue(true))
    }

    fn wakeups(&self) -> Wakeups {
        self.0.subscribe()
    }

    fn ended(&self, _: JobId) -> EndNotification {
        Box::pin(std::future::pending())
    }
}

#[test]
fn each_operation_has_a_name_of_its_own() {
    let names: BTreeSet<&str> = Operation::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), Operation::ALL.len());
    let hot = Operation::ALL
        .iter()
        .filter(|(_, kind)| *kind == OperationKind::Hot)
        .map(|(name, _)| *name);
    assert_eq!(hot.collect::<Vec<_>>(), ["enqueue", "claim", "renew", "settle"]);
    let operation = Operation::DeleteQueue { queue: queue() };
    assert_eq!((operation.name(), operation.kind()), ("delete_queue", OperationKind::Write));
    assert!(operation.kind().writes() && !Operation::Queues {}.kind().writes());
}

#[tokio::test]
async fn a_method_of_a_store_is_its_operation() {
    let store = MemoryStore::new(Timestamp::from_secs(0));
    let now = Some(Timestamp::from_secs(1));
    let accepted = store.enqueue(now, vec![batch()]).await.unwrap();
    let Receipt::Accepted { job, .. } = accepted[0].as_ref().unwrap()[0] else {
        panic!("{accepted:?}")
    };
    let answer = store.call(now, Operation::Claim { claim: claim() }).await.unwrap();
    let Answer::Claim(claimed) = answer else { panic!("{answer:?}") };
    assert_eq!(claimed.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [job]);
    assert_eq!(store.job(job).await.unwrap().unwrap().state, JobState::Running);
    let refused =
        store.call(now, Operation::Redrive { redrive: Redrive { id: job, payload: None } });
    assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::IllegalMove);
}

#[tokio::test]
async fn an_operation_and_its_answer_cross_a_wire() {
    let store = MemoryStore::new(Timestamp::from_secs(0));
    let now = Some(Timestamp::from_secs(1));
    let outcome = Outcome::succeeded();
    let operations = [
        Operation::Enqueue { batches: vec![batch()] },
        Operation::Claim { claim: claim() },
        Operation::Settle {
            settlements: vec![Settlement {
                lease: Lease { job: JobId::new(1), token: LeaseToken::of(1, Draw::new(7)) },
                outcome,
            }],
        },
        Operation::Jobs { filter: JobFilter { queue: Some(queue()), ..JobFilter::default() } },
        Operation::Peek { queues: vec![(queue(), claim().tasks)] },
        Operation::Backlog { of: BacklogOf::new(queue()) },
        Operation::Overview {},
    ];
    for operation in operations {
        let sent = serde_json::to_string(&operation).unwrap();
        let received: Operation = serde_json::from_str(&sent).unwrap();
        assert_eq!(received, operation);
        let answer = store.call(now, received).await.unwrap();
        assert_eq!(answer.name(), operation.name());
        let sent = serde_json::to_string(&answer).unwrap();
        let received: Answer = serde_json::from_str(&sent).unwrap();
        assert_eq!(format!("{received:?}"), format!("{answer:?}"));
    }
    let ended = store.job(JobId::new(1)).await.unwrap().unwrap();
    assert_eq!(ended.state, JobState::Succeeded);
}

#[tokio::test]
async fn an_answer_of_another_operation_is_an_error_and_no_panic() {
    let error = Mistaken::default().queues().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    let message = "the store answered `queues` with an answer to `delete_queue`";
    assert_eq!(error.to_string(), message);
    assert!(Mistaken::default().delete_queue(None, &queue()).await.unwrap());
}
