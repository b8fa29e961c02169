//! Stores whose workers a timer wakes: a queue of Azure Storage on Azurite, and Service Bus by the
//! stand-in. Both by what a user opens.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quell::store::Store;
use quell::trigger::Dedup;
use quell::{Ctx, ErrorKind, HoldUntil, JobState, Payload, Policy, Quell, TaskError, TaskName};
use quell_azure::AzureOptions;
use quell_portable::Timer;
use quell_services::ServiceBus as StandIn;
use quell_services::servicebus::QueueOptions;
use reqwest::Method;

use crate::queue::StoredQueue;
use crate::server::Place;
use crate::servicebus::{Bus, QUEUE, lock, options_at};
use crate::timers::Queue;

/// On a busy machine everything is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// The URL of a new table with a queue of Azure Storage.
fn url(place: &Place) -> String {
    let (name, account) = (&place.name, place.account());
    let store = format!("azure://{account}/{name}?connection={}", quell_services::AZURITE);
    format!("{store}&timeout_ms=60000&timer=storage-queue://{name}")
}

async fn open(url: &str) -> quell::Result<Arc<dyn Store>> {
    AzureOptions::from_url(url)?.open_store().await
}

async fn open_owned(url: String) -> quell::Result<Arc<dyn Store>> {
    open(&url).await
}

fn client(store: Arc<dyn Store>) -> Quell {
    Quell::with_store(store).build().unwrap()
}

fn task() -> TaskName {
    TaskName::new("t").unwrap()
}

fn policy() -> Policy {
    Policy::default().debounce(Duration::from_millis(300)..=Duration::from_secs(5))
}

async fn works(_: Payload, _: Ctx<()>) -> Result<(), TaskError> {
    Ok(())
}

/// A burst that one process triggers runs once, at the worker of another.
async fn a_burst_wakes_the_other_process(triggers: &Quell, works_there: &Quell) {
    assert!(works_there.store().capabilities().timed);
    let worker = works_there.worker(()).register_raw(task(), &policy(), works);
    let asked = async {
        for burst in 0..3 {
            let mut job = None;
            for _ in 0..5 {
                let key = quell::Key::new(format!("k{burst}")).unwrap();
                let payload = Payload::encode(&burst).unwrap();
                let trigger = policy().trigger(task(), payload, Some(key)).unwrap();
                let receipts = triggers.enqueue(quell::Batch::one(trigger)).await.unwrap();
                job = receipts[0].job();
            }
            let result = triggers.result(job.unwrap(), PATIENCE).await.unwrap();
            assert_eq!(result.state, JobState::Succeeded, "{result:?}");
        }
    };
    worker.run_until(asked).await.unwrap();
}

/// The same where both processes open these options with a timer in Service Bus, which buries no message.
async fn service_bus_wakes_the_other_process(
    stand_in: &StandIn,
    options: impl Fn() -> AzureOptions,
) {
    let open = async || {
        let timer: Arc<dyn Timer> = Arc::new(options_at(stand_in.port()).open().await.unwrap());
        let options = options().timeout(PATIENCE).timer("servicebus://stand-in/q", timer);
        client(options.open_store().await.unwrap())
    };
    let (one, other) = (open().await, open().await);
    a_burst_wakes_the_other_process(&one, &other).await;
    let counts = stand_in.counts(QUEUE).unwrap();
    assert_eq!(counts.dead, 0, "{counts:?}");
}

#[tokio::test]
async fn r34_a_storage_queue_of_a_url_wakes_workers_of_other_processes() {
    let url = url(&Place::new());
    let (one, other) = (client(open(&url).await.unwrap()), client(open(&url).await.unwrap()));
    a_burst_wakes_the_other_process(&one, &other).await;
}

#[tokio::test]
async fn r34_service_bus_wakes_workers_of_other_processes() {
    let (place, stand_in) = (Place::new(), StandIn::start().unwrap());
    stand_in.create_queue(QUEUE, lock(Duration::from_secs(60))).unwrap();
    service_bus_wakes_the_other_process(&stand_in, || place.options()).await;
}

/// One queue of messages for the store, whatever its partitions.
#[tokio::test]
async fn r34_one_timer_wakes_workers_of_all_partitions() {
    let (place, stand_in) = (Place::new(), StandIn::start().unwrap());
    stand_in.create_queue(QUEUE, lock(Duration::from_secs(60))).unwrap();
    let url = url(&place);
    let in_partitions = |url: &str| open_owned(format!("{url}&layout=queues&shards.default=3"));
    let (one, other) = (in_partitions(&url).await.unwrap(), in_partitions(&url).await.unwrap());
    a_burst_wakes_the_other_process(&client(one), &client(other)).await;
    let (without, _) = url.split_once("&timer=").unwrap();
    let refused = in_partitions(without).await.unwrap_err();
    assert_eq!(refused.field(), Some("timer"), "{refused}");
    let place = Place::new();
    let options = || place.options().layout(quell_azure::Layout::Queues);
    service_bus_wakes_the_other_process(&stand_in, options).await;
}

/// A process without the timer would write jobs and wake no worker.
#[tokio::test]
async fn r34_all_processes_of_a_store_have_the_same_timer() {
    let place = Place::new();
    let with = url(&place);
    let (without, timer) = with.split_once("&timer=").unwrap();
    // The store has no timer yet: a process that has one may set it, but not one that only reads.
    drop(open(without).await.unwrap());
    let looks = |url: &str| open_owned(format!("{url}&set_timer=false"));
    let refused = looks(&with).await.unwrap_err();
    assert!(refused.to_string().contains("has no timer yet"), "{refused}");
    drop(open(without).await.unwrap());
    drop(open(&with).await.unwrap());
    drop(open(&with).await.unwrap());
    let refused = open(without).await.unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some("timer")));
    let said = refused.to_string();
    assert!(said.contains(&format!("give timer={timer}")), "{said}");
    assert!(said.contains("timer=none"), "{said}");
    let another = format!("{without}&timer=storage-queue://{}b", place.name);
    let refused = open(&another).await.unwrap_err().to_string();
    assert!(refused.contains(&format!("{timer}, this is storage-queue://")), "{refused}");
    drop(looks(&with).await.unwrap());
    let refused = looks(&format!("{without}&timer=none")).await.unwrap_err();
    assert!(refused.to_string().contains(&format!("give timer={timer}")), "{refused}");
    drop(open(&format!("{without}&timer=none")).await.unwrap());
    drop(open(without).await.unwrap());
    drop(open(&another).await.unwrap());
    assert!(open(&with).await.is_err());
}

/// A key is taken once, whichever process asks, and is free again after the queue's window.
#[tokio::test]
async fn r16_r17_r18_service_bus_keeps_dedup_keys() {
    // The shortest one that Azure has, and that of the queue of `cargo xtask live`.
    let window = Duration::from_secs(20);
    let queue = QueueOptions { duplicate_window: Some(window), ..QueueOptions::default() };
    let (place, bus) = (Place::new(), Bus::with(queue).await);
    let open = || async {
        let timer = bus.options().duplicate_window(window).open().await.unwrap();
        let options = place.options().timeout(PATIENCE).native_dedup(true);
        let options = options.timer("servicebus://stand-in/q", Arc::new(timer) as Arc<dyn Timer>);
        client(options.open_store().await.unwrap())
    };
    let (one, other) = (open().await, open().await);
    let batch = |number: u8| {
        let trigger = Policy::default().trigger(task(), Payload::encode(&number).unwrap(), None);
        let triggers = vec![trigger.unwrap(); 2];
        let until = HoldUntil::Elapsed(window);
        quell::Batch { triggers, dedup: Some(Dedup { key: quell::Key::new("d").unwrap(), until }) }
    };
    let began = Instant::now();
    for (number, process) in [&one, &other, &one].into_iter().enumerate() {
        let receipts = process.enqueue(batch(u8::try_from(number).unwrap())).await.unwrap();
        assert_eq!(receipts, [quell::Receipt::Pending, quell::Receipt::Pending]);
    }
    assert!(began.elapsed() < window, "the machine is too slow for this test");
    let worker = other.worker(()).register_raw(task(), &Policy::default(), works);
    let ended = async |count: usize| {
        let all = async || one.jobs(&quell::job::JobFilter::default()).await.unwrap();
        let begun = Instant::now();
        loop {
            let jobs = all().await;
            if jobs.len() >= count && jobs.iter().all(|job| job.state == JobState::Succeeded) {
                assert_eq!(jobs.len(), count, "{jobs:#?}");
                return jobs;
            }
            assert!(begun.elapsed() < PATIENCE, "{jobs:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let asked = async {
        let jobs = ended(2).await;
        assert!(
            jobs.iter().all(|job| job.payload.as_str() == "0"),
            "the first one wins: {jobs:#?}"
        );
        tokio::time::sleep(window.saturating_sub(began.elapsed()) + Duration::from_secs(1)).await;
        one.enqueue(batch(9)).await.unwrap();
        ended(4).await;
    };
    worker.run_until(asked).await.unwrap();
    assert_eq!(bus.counts().unwrap_or_default().dead, 0);
}

/// Where only one of two processes keeps keys in the table, both would accept one key.
#[tokio::test]
async fn r18_all_processes_of_a_store_keep_dedup_keys_in_the_same_place() {
    let (place, stand_in) = (Place::new(), StandIn::start().unwrap());
    stand_in.create_queue(QUEUE, QueueOptions::default()).unwrap();
    let open = async |window: Option<u64>, native: bool| {
        let options = options_at(stand_in.port());
        let options = match window {
            Some(secs) => options.duplicate_window(Duration::from_secs(secs)),
            None => options,
        };
        let timer: Arc<dyn Timer> = Arc::new(options.open().await.unwrap());
        let options = place.options().timer("servicebus://ns/q", timer).native_dedup(native);
        options.open_store().await
    };
    let none = open(None, true).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Unsupported);
    assert!(none.to_string().contains("`native_dedup`"), "{none}");
    drop(open(Some(600), true).await.unwrap());
    drop(open(Some(600), true).await.unwrap());
    for (window, native) in [(Some(600), false), (Some(3_600), true)] {
        let refused = open(window, native).await.unwrap_err();
        assert_eq!((refused.kind(), refused.field()), (ErrorKind::Invalid, Some("timer")));
        let said = refused.to_string();
        assert!(said.contains("give timer=servicebus://ns/q&native_dedup=600;"), "{said}");
    }
    let without = place.options().native_dedup(true).open_store().await.unwrap_err();
    assert_eq!(without.kind(), ErrorKind::Unsupported);
    let without = place.options().native_dedup(true).open().await.unwrap_err();
    assert_eq!(without.kind(), ErrorKind::Unsupported);
}

/// What was there before the timer has messages, too.
#[tokio::test]
async fn r01_r34_a_store_that_gets_a_timer_leaves_nothing_behind() {
    let place = Place::new();
    let with = url(&place);
    let (without, _) = with.split_once("&timer=").unwrap();
    let before = client(open(without).await.unwrap());
    let delay = Duration::from_secs(2);
    let trigger = Policy::default().trigger(task(), Payload::encode(&1).unwrap(), None).unwrap();
    let later = quell::trigger::NewTrigger { when: quell::When::After(delay), ..trigger.clone() };
    let began = Instant::now();
    let mut jobs = Vec::new();
    for trigger in [trigger, later] {
        let receipts = before.enqueue(quell::Batch::one(trigger)).await.unwrap();
        jobs.push(receipts[0].job().unwrap());
    }
    let now = client(open(&with).await.unwrap());
    let worker = now.worker(()).register_raw(task(), &Policy::default(), works);
    let asked = async {
        for job in jobs {
            let result = before.result(job, PATIENCE).await.unwrap();
            assert_eq!(result.state, JobState::Succeeded, "{result:?}");
        }
    };
    worker.run_until(asked).await.unwrap();
    assert!(began.elapsed() >= delay, "never early");
}

/// A trigger that is due at once.
async fn trigger_now(client: &Quell) {
    let trigger = Policy::default().trigger(task(), Payload::encode(&1).unwrap(), None).unwrap();
    client.enqueue(quell::Batch::one(trigger)).await.unwrap();
}

#[tokio::test]
async fn r40_a_storage_queue_of_another_application_is_refused_and_keeps_its_messages() {
    let queue = StoredQueue::new(Duration::from_secs(300)).await;
    let foreign = "<QueueMessage><MessageText>{\"order\": 7}</MessageText></QueueMessage>";
    queue.raw(Method::POST, "/messages", foreign.to_owned()).await;
    let url = url(&queue.place);
    let error = open(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    let name = format!("timer storage-queue://{}: none of the 1 messages", queue.place.name);
    assert!(error.to_string().starts_with(&name), "{error}");
    assert_eq!((queue.messages().await, queue.dead_letters().await.len()), (1, 0));
    // A message of Quell's says that the queue is for such.
    let timer = queue.open().await;
    let notice = quell_portable::Message {
        body: br#"{"v":1,"queue":"q","at":0,"sent":0,"jobs":[]}"#.to_vec(),
        name: None,
    };
    let now = quell::Timestamp::from_secs(0);
    timer.schedule(&notice, now, now).await.unwrap();
    open(&url).await.unwrap();
}

#[tokio::test]
async fn r40_a_queue_of_service_bus_of_another_application_is_refused() {
    let stand_in = StandIn::start().unwrap();
    stand_in.create_queue(QUEUE, lock(Duration::from_secs(60))).unwrap();
    let open = async |place: &Place| {
        let timer: Arc<dyn Timer> = Arc::new(options_at(stand_in.port()).open().await.unwrap());
        let options = place.options().timeout(PATIENCE).timer("servicebus://stand-in/q", timer);
        options.open_store().await
    };
    let timer = options_at(stand_in.port()).open().await.unwrap();
    let foreign = quell_portable::Message { body: br#"{"order": 7}"#.to_vec(), name: None };
    let now = quell::Timestamp::from_secs(0);
    timer.schedule(&foreign, now, now).await.unwrap();
    let error = open(&Place::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    let counts = stand_in.counts(QUEUE).unwrap();
    assert_eq!((counts.ready, counts.dead), (1, 0));
    // Once it is taken away, a store has the queue, and so has another one beside its messages.
    let received = timer.receive(1, PATIENCE).await.unwrap();
    timer.complete(&received[0].delivery).await.unwrap();
    let first = client(open(&Place::new()).await.unwrap());
    trigger_now(&first).await;
    open(&Place::new()).await.unwrap();
}
