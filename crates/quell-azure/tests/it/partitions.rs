//! A store that has a partition for each queue, on Azurite.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quell_azure::{AzureOptions, Layout};
use quell_conformance::effort::cases;
use quell_conformance::rig::{keyed, plain, queue};
use quell_conformance::sim::Place as SimPlace;
use quell_conformance::{Opened, Rig, oracle};
use quell_core::part::Ids;
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{
    Batch, ErrorKind, JobId, NewTrigger, QueueName, Receipt, Result, ScheduleName, Store,
};
use quell_services::AZURITE;

use crate::server::Place;

/// On a busy machine, Azurite is slow: no test here is about how long a call may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(place: &Place) -> AzureOptions {
    place.options().timeout(PATIENCE).layout(Layout::Queues)
}

async fn take(store: &dyn Store, trigger: NewTrigger) -> Result<JobId> {
    let taken = store.enqueue(Some(Rig::START), vec![Batch::one(trigger)]).await?.pop().unwrap()?;
    Ok(taken.first().and_then(Receipt::job).unwrap())
}

/// The tests' queue has the first partition: the model knows no other ids.
async fn open() -> Opened {
    let store = options(&Place::new()).open_store().await.unwrap();
    let schedule = Schedule {
        name: ScheduleName::new("none").unwrap(),
        spec: Spec::every(Duration::from_secs(60), Rig::START).unwrap(),
        catch_up: CatchUp::None,
        trigger: plain("1"),
        declared: None,
    };
    store.set_schedule(Some(Rig::START), &schedule).await.unwrap();
    store.delete_schedule(Some(Rig::START), &schedule.name).await.unwrap();
    Opened { store, guard: Box::new(()) }
}

#[test]
fn partitions_answer_like_the_model() {
    let first = Ids { next: 1_025, step: 1_024 };
    // What once failed runs on partitions of a table in memory.
    let scripts = u32::try_from(cases(2, 40)).unwrap();
    let ran = oracle::run(open, first, scripts, None).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(ran > 0, "the scripts do nothing");
}

fn place() -> SimPlace {
    let place = Place::new();
    SimPlace::new(move |sink| {
        let options = options(&place).history(sink);
        async move { options.open_store().await.unwrap() as Arc<dyn Store> }
    })
}

#[test]
fn r39_some_seeds_hold_on_partitions() {
    quell_conformance::sim::some_seeds("azure-partitions", place, 1);
}

#[tokio::test]
async fn r07_a_url_spreads_a_queue_over_partitions_and_others_go_by_it() {
    let place = Place::new();
    let url = |query: &str| {
        let (account, name) = (place.account(), &place.name);
        format!("azure://{account}/{name}?connection={AZURITE}&timeout_ms=60000{query}")
    };
    let open = async |query: &str| AzureOptions::from_url(&url(query))?.open_store().await;
    let spread = format!("&shards.{}=4&layout=queues", queue());
    let first = open(&spread).await.unwrap();
    let other = open("&layout=queues").await.unwrap();
    let mut numbers = BTreeSet::new();
    for number in 0..16 {
        let key = format!("customer-{number}");
        let opened = take(&*first, keyed(&key)).await.unwrap();
        assert_eq!(take(&*other, keyed(&key)).await.unwrap(), opened, "{key} in one window");
        assert_eq!(other.job(opened).await.unwrap().unwrap().id, opened);
        numbers.insert(opened.get() % 1_024);
    }
    assert_eq!(numbers.len(), 4, "16 keys are in every partition");
    let refused = open(&format!("&layout=queues&shards.{}=2", queue())).await.unwrap_err();
    assert_eq!(refused.field(), Some("shards"));
    assert!(refused.to_string().contains("4 shards"), "{refused}");
    AzureOptions::from_url(&url("&layout=queues")).unwrap().skip_ids().await.unwrap();
    let after = open("&layout=queues").await.unwrap();
    assert!(take(&*after, keyed("new")).await.unwrap().get() > 1_024 * 1_000_000);
}

#[tokio::test]
async fn r40_a_table_has_the_layout_that_it_was_made_with() {
    let (one, queues) = (Place::new(), Place::new());
    drop(one.options().open().await.unwrap());
    drop(options(&queues).open_store().await.unwrap());
    for (place, wanted, remedy) in [
        (&one, Layout::Queues, "open it with layout=one"),
        (&queues, Layout::One, "open it with layout=queues"),
    ] {
        let refused = place.options().layout(wanted).open_store().await.unwrap_err();
        assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some("layout")));
        assert!(refused.to_string().contains(remedy), "{refused}");
    }
    let refused = options(&queues).open().await.unwrap_err();
    assert!(refused.to_string().contains("use `open_store`"), "{refused}");
    let refused = one.options().open_partitions().await.unwrap_err();
    assert_eq!(refused.field(), Some("layout"));
}

/// The process that writes the table's first row decides; the others get an error.
#[tokio::test]
async fn r40_processes_that_make_a_table_at_once_agree_on_its_layout() {
    for _ in 0..4 {
        let place = Place::new();
        let (one, queues) = (place.options().timeout(PATIENCE), options(&place));
        let (one, queues) = tokio::join!(one.open_store(), queues.open_store());
        assert!(one.is_ok() != queues.is_ok(), "{:?} and {:?}", one.err(), queues.err());
    }
}

#[tokio::test]
async fn r40_a_layout_that_cannot_be_is_refused() {
    let refused = Place::new().options().shards(&queue(), 2).unwrap_err();
    assert!(refused.to_string().contains("only layout `queues`"), "{refused}");
    let place = Place::new();
    let window = Duration::from_secs(600);
    let timer =
        quell_portable::MemoryTimer::new(Rig::START, PATIENCE).with_duplicate_window(window);
    let with_timer = || options(&place).timer("memory", Arc::new(timer.clone()));
    let refused = with_timer().native_dedup(true).open_store().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("one partition for all queues"), "{refused}");
    let refused = with_timer().open_partitions().await.unwrap_err();
    assert!(refused.to_string().contains("use `open_store`"), "{refused}");
    let other = NewTrigger { queue: QueueName::new("other").unwrap(), ..keyed("k") };
    let store = options(&place).open_store().await.unwrap();
    take(&*store, keyed("k")).await.unwrap();
    let refused = take(&*store, other).await.unwrap_err();
    assert!(refused.to_string().contains("has its keys in queue"), "{refused}");
}
