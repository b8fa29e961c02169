//! Calls that are cut off half-way: what a crash or a caller that gives up leaves behind.
//!
//! A call is polled a few times and dropped, so it is cut somewhere between its first and its last
//! step; wherever that was, it happened as a whole or not at all (R1).

use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::FutureExt;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::{Batch, NewTrigger, Receipt};

use crate::rig::{Rig, key, keyed, plain};

/// After how many polls calls are cut off.
const CUTS: [usize; 10] = [1, 2, 3, 5, 8, 20, 60, 200, 600, 2_000];

/// Polls a call so often, then drops it.
async fn cut_off<T>(call: impl Future<Output = T>, polls: usize) {
    let mut call = pin!(call);
    for _ in 0..polls {
        if call.as_mut().now_or_never().is_some() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

impl Rig {
    /// Triggers, and is cut off.
    pub(crate) async fn trigger_cut_off(&self, trigger: NewTrigger, polls: usize) {
        let call = self.store.enqueue(Some(self.now()), vec![Batch::one(trigger)]);
        cut_off(call, polls).await;
    }
}

/// A known failure elsewhere: a crash between writing the key and pushing its message loses the
/// burst, and the key goes on swallowing triggers that no worker will run.
pub async fn r01_r02_a_crash_between_key_and_message_cannot_exist(mut rig: Rig) {
    for (round, polls) in CUTS.into_iter().enumerate() {
        let (begin, k) = (round as u64 * 100, format!("k{polls}"));
        rig.at(begin).trigger_cut_off(keyed(&k), polls).await;
        let next = rig.trigger(keyed(&k)).await;
        let job = rig.at(begin + 10).claim_one().await;
        assert_eq!(next.job(), Some(job.id), "cut after {polls} polls: {next:?}");
        assert!(job.triggers <= 2, "cut after {polls} polls: {job:?}");
        assert_eq!(next.trigger().map(|id| id.seq), Some(job.triggers), "{next:?}");
        rig.succeed(&job).await;
    }
}

/// A known failure elsewhere: a dedup marker blocks its key after its enqueue failed or crashed,
/// until its TTL, though nothing will ever run.
pub async fn r16_a_call_that_was_cut_off_burns_no_key(mut rig: Rig) {
    for (round, polls) in CUTS.into_iter().enumerate() {
        let dedup = Some(Dedup { key: key(&format!("d{polls}")), until: HoldUntil::Done });
        let trigger = || NewTrigger { dedup: dedup.clone(), ..plain("1") };
        rig.at(round as u64).trigger_cut_off(trigger(), polls).await;
        let next = rig.trigger(trigger()).await;
        let job = rig.claim_one().await;
        assert_eq!(next.job(), Some(job.id), "the holder of the key is what runs: {next:?}");
        assert!(!matches!(next, Receipt::Debounced { .. }), "{next:?}");
        rig.succeed(&job).await;
    }
}

/// A batch that was cut off is there whole or not at all.
pub async fn r05_a_batch_that_was_cut_off_is_whole_or_never_was(mut rig: Rig) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (round, polls) in CUTS.into_iter().enumerate() {
        let payload = format!("\"cut after {polls} polls\"");
        let triggers = (0..20).map(|_| plain(&payload)).collect();
        let batch = Batch { triggers, dedup: None };
        rig.at(round as u64);
        let call = rig.store.enqueue(Some(rig.now()), vec![batch]);
        cut_off(call, polls).await;
        rig.trigger(plain("\"after\"")).await;
        // A server may end what was cut off later than another call: a round may see the last one's.
        for job in rig.claim().await {
            *seen.entry(job.payload.as_str().to_owned()).or_default() += 1;
            rig.succeed(&job).await;
        }
    }
    assert_eq!(seen.remove("\"after\""), Some(CUTS.len()));
    assert!(seen.values().all(|jobs| *jobs == 20), "{seen:?}");
}
