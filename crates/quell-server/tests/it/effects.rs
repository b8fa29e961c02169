//! Recorded effects as operators see them (R15, R23).

use quell::effect::EffectName;
use quell::store::{Claim, Lease};
use quell::worker::WorkerId;
use quell::{Batch, Key, Payload, Policy, Quell, QueueName, TaskName};
use serde_json::json;

use crate::served::serve;

#[tokio::test]
async fn r15_r23_a_jobs_effects_are_shown_with_it() {
    let served = serve("[tasks.now]\nexec = { command = [\"true\"] }").await;
    let url = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let quell = Quell::open(&url).await.unwrap();
    // A task of the library, which the server's worker does not know.
    let (task, payload) = (TaskName::new("pay").unwrap(), Payload::encode(&1).unwrap());
    let trigger = Policy::default().trigger(task.clone(), payload, None).unwrap();
    let id = quell.enqueue(Batch::one(trigger)).await.unwrap()[0].job().unwrap();
    let claim = Claim {
        queue: QueueName::new("default").unwrap(),
        tasks: [task].into(),
        worker: WorkerId::new("w").unwrap(),
        limit: 1,
        lease: std::time::Duration::from_secs(60),
        draw: quell_core::Draw::MIN,
    };
    let run = quell.store().claim(None, &claim).await.unwrap().jobs.remove(0);
    let lease = Lease { job: run.id, token: run.token };
    let charge = EffectName::new("charge").unwrap();
    for (name, key) in [(charge.clone(), "k1"), (EffectName::new("mail").unwrap(), "k2")] {
        let key = Key::new(key).unwrap();
        quell.store().begin_effect(None, &lease, &name, &key).await.unwrap();
    }
    let result = Payload::encode(&"é".repeat(1_000)).unwrap();
    quell.store().end_effect(None, &lease, &charge, &result).await.unwrap();

    let (status, reply) = served.get(&format!("/v1/jobs/{id}")).await;
    let (charge, mail) = (&reply["effects"][0], &reply["effects"][1]);
    assert_eq!(
        (status, &charge["name"], &charge["state"]),
        (200, &json!("charge"), &json!("done"))
    );
    assert_eq!((&charge["key"], &charge["done_by"]), (&json!("k1"), &json!(1)));
    let shown = charge["result"].as_str().unwrap();
    assert!(shown.starts_with("\"é") && shown.len() <= 500, "{shown}");
    assert_eq!((&mail["state"], &mail["result"]), (&json!("intended"), &json!(null)));
    let text = reply["text"].as_str().unwrap();
    assert!(text.contains("effect     charge: done"), "{text}");
    assert!(text.contains("key k2: it may have happened"), "{text}");
    served.server.stop().await.unwrap();
}
