//! Keys hold any text, and none of it is taken for SQL.

use quell_conformance::rig::keyed;
use quell_core::{Batch, Receipt, Store};

use crate::scene::{Scene, jobs};

/// What ends a text, an array or a statement, and what Quell replaces in statements of its own.
const KEYS: [&str; 12] = [
    "'",
    "''; drop table quell.job; --",
    "\\",
    "\\'; select 1; --",
    "\"",
    "\\\"},{",
    "{a,b}",
    "null",
    "quell.job {schema} {channel} $1",
    " k\n\t\u{1} ",
    "ключ 🔑 %s",
    "E'{\"k\"}'",
];

#[tokio::test]
async fn r06_keys_of_any_text_have_windows_of_their_own() {
    let scene = Scene::new();
    let store = scene.store().await;
    let batch = || KEYS.iter().map(|key| Batch::one(keyed(key))).collect();
    let first: Vec<_> =
        store.enqueue(None, batch()).await.unwrap().into_iter().flatten().flatten().collect();
    assert_eq!(jobs(&*store).await, KEYS.len() as u64);
    let second: Vec<_> =
        store.enqueue(None, batch()).await.unwrap().into_iter().flatten().flatten().collect();
    for ((key, first), second) in KEYS.iter().zip(first).zip(second) {
        let Receipt::Accepted { job, .. } = first else { panic!("{key:?}: {first:?}") };
        let trigger = second.trigger().unwrap();
        assert_eq!((trigger.job, trigger.seq), (job, 2), "{key:?}: {second:?}");
        assert_eq!(store.job(job).await.unwrap().unwrap().key.unwrap().as_str(), *key);
    }
}
