//! What must hold of the rig's queue where its jobs are spread over four homes: partitions of a table, or
//! shards of a server.

use std::collections::BTreeSet;

use quell_core::dedup::Dedup;
use quell_core::{
    Batch, Claim, ErrorKind, JobId, NewTrigger, QueueSettings, Receipt, Result, Store,
};

use crate::rig::{Rig, key, keyed, queue, secs};

/// How many homes the queue has.
pub const HOMES: usize = 4;

async fn take(store: &dyn Store, triggers: Vec<NewTrigger>) -> Result<Vec<Receipt>> {
    let batch = Batch { triggers, dedup: None };
    store.enqueue(Some(Rig::START), vec![batch]).await.and_then(|mut answers| answers.remove(0))
}

/// Triggers of one key meet in one home, also those of another process, `other`; and claims find the jobs
/// of all homes. Answers with the jobs; `home` says where a job is.
pub async fn keys_keep_their_homes(
    store: &dyn Store,
    other: &dyn Store,
    home: impl Fn(JobId) -> u64,
) -> BTreeSet<JobId> {
    let keys: Vec<String> = (0..64).map(|number| format!("customer-{number}")).collect();
    let mut jobs = BTreeSet::new();
    for name in &keys {
        let opened = take(store, vec![keyed(name)]).await.expect("is accepted");
        let joined = take(other, vec![keyed(name)]).await.expect("is accepted");
        assert!(matches!(joined[0], Receipt::Debounced { triggers: 2, .. }), "{joined:?}");
        assert_eq!(opened[0].job(), joined[0].job());
        jobs.extend(opened[0].job());
    }
    let homes: BTreeSet<u64> = jobs.iter().map(|id| home(*id)).collect();
    assert_eq!(homes.len(), HOMES, "64 keys are in every home");
    let page = store.jobs(&Default::default()).await.expect("lists jobs");
    assert_eq!(page.len(), 50, "one page of all");
    let mut claimed = BTreeSet::new();
    while claimed.len() < keys.len() {
        let later = Some(Rig::START + secs(3_600));
        let claim = Claim { limit: 20, ..Rig::claim_of(20) };
        let found = other.claim(later, &claim).await.expect("hands out jobs").jobs;
        assert!(!found.is_empty(), "only {} were found", claimed.len());
        claimed.extend(found.iter().map(|job| job.id));
    }
    assert_eq!(claimed, jobs);
    jobs
}

/// What would need all jobs in one home is refused with the remedy, and writes nothing.
pub async fn what_needs_one_home_is_refused(store: &dyn Store) {
    let limited = QueueSettings { concurrency: Some(2), ..QueueSettings::default() };
    let refused = store.set_queue(&queue(), &limited).await.expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("4 shards"), "{refused}");
    // Of many pairs of keys, some meet in one home and most do not.
    let (mut together, mut apart) = (0, 0);
    for number in 0..40 {
        let dedup = Some(Dedup::new(key(&format!("d{number}"))));
        match take(store, vec![NewTrigger { dedup, ..keyed(&format!("k{number}")) }]).await {
            Ok(_) => together += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().contains("belong on different ones"), "{error}");
                apart += 1;
            }
        }
    }
    assert!(together > 0 && apart > together, "{together} together, {apart} apart");
    let several: Vec<NewTrigger> = (0..9).map(|number| keyed(&format!("b{number}"))).collect();
    let refused = take(store, several).await.expect_err("is refused");
    assert!(refused.to_string().contains("one batch for each key"), "{refused}");
    let counts = store.counts().await.expect("counts jobs");
    let counted: u64 = counts.iter().map(|counts| counts.jobs).sum();
    assert_eq!(counted, together, "what was refused wrote nothing");
}
