//! A store that claims less is asked less, and shows how it does without.

use std::collections::BTreeSet;

use quell_conformance::history::Recorder;
use quell_conformance::registry::{RuleTest, all};
use quell_conformance::report::{self, Verdict};
use quell_conformance::{Capability, Lesser, Rig};
use quell_core::MemoryStore;
use tokio::task::JoinSet;

fn without(hidden: &[Capability]) -> Lesser<MemoryStore> {
    Lesser::new(MemoryStore::new(Rig::START), hidden)
}

/// Whether the test holds on a store without this, asked or not.
async fn holds_without(test: &'static RuleTest, hidden: Capability) -> bool {
    let opened = super::opened(without(&[hidden]));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { test.run(opened, Recorder::default()).await });
    tasks.join_next().await.unwrap().is_ok()
}

/// Each test says what it needs, no less and no more: it fails where that is missing.
#[tokio::test]
async fn r18_what_a_test_needs_is_exact() {
    let mut wrong = Vec::new();
    for test in all().iter().filter(|test| !test.is_recorded()) {
        let needs: BTreeSet<_> = test.needs.iter().copied().collect();
        let mut found = BTreeSet::new();
        for hidden in Capability::ALL {
            if !holds_without(test, hidden).await {
                found.insert(hidden);
            }
        }
        if needs != found {
            wrong.push(format!("{test:?} says {needs:?} and needs {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn passes_without(hidden: &[Capability]) {
    let hidden_too = hidden.to_vec();
    let report = report::run("lesser", move || {
        let store = without(&hidden_too);
        async { super::opened(store) }
    })
    .await;
    assert_eq!(report.failures().count(), 0, "{report}");
    for row in &report.rows {
        let lacking = row.test.needs.iter().find(|needed| hidden.contains(needed));
        let expected = lacking.map_or(Verdict::Passed, |lacking| Verdict::Refused(*lacking));
        assert_eq!(row.verdict, expected, "{:?}", row.test);
    }
}

#[tokio::test]
async fn r18_a_store_without_dedup_refuses_keys() {
    passes_without(&[Capability::Dedup]).await;
}

#[tokio::test]
async fn r18_a_store_without_transactions_keeps_every_rule_of_the_trait() {
    passes_without(&[Capability::Transactions]).await;
}

#[tokio::test]
async fn r18_a_store_without_push_is_polled() {
    passes_without(&[Capability::Push]).await;
}

#[tokio::test]
async fn r18_a_store_without_priorities_goes_by_due_time() {
    passes_without(&[Capability::Priorities]).await;
}

#[tokio::test]
async fn r18_a_store_without_exact_limits_refuses_them() {
    passes_without(&[Capability::ExactLimits]).await;
}

#[tokio::test]
async fn r18_a_store_without_listing_refuses_lists() {
    passes_without(&[Capability::Listing]).await;
}

#[tokio::test]
async fn r18_a_store_that_cannot_reach_across_queues_keeps_tasks_to_one() {
    passes_without(&[Capability::AcrossQueues]).await;
}

#[tokio::test]
async fn r18_a_store_without_large_batches_refuses_them() {
    passes_without(&[Capability::LargeBatches]).await;
}

#[tokio::test]
async fn r18_a_store_that_claims_nothing_keeps_every_other_rule() {
    passes_without(&Capability::ALL).await;
}
