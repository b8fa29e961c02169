//! Timers in a queue, on a stand-in that Microsoft's SDKs accept.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_azure::servicebus::{ServiceBus, ServiceBusOptions};
use quell_core::{ErrorKind, Timestamp};
use quell_portable::{Delivery, Message, Received, Timer};
use quell_services::ServiceBus as StandIn;
use quell_services::servicebus::{Counts, QueueOptions, connection_string};
use tokio::task::JoinSet;

pub(crate) const QUEUE: &str = "timers";
/// A wait that ends early where all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A wait in which nothing must arrive.
const BRIEF: Duration = Duration::from_millis(300);

/// A stand-in with one queue, and a timer in it.
pub(crate) async fn timer(options: QueueOptions) -> (StandIn, ServiceBus) {
    let stand_in = StandIn::start().unwrap();
    stand_in.create_queue(QUEUE, options).unwrap();
    let timer = options_at(stand_in.port()).open().await.unwrap();
    (stand_in, timer)
}

pub(crate) fn options_at(port: u16) -> ServiceBusOptions {
    let connection = connection_string(port);
    let options = ServiceBusOptions::from_connection_string(&connection, QUEUE).unwrap();
    options.timeout(Duration::from_secs(5))
}

pub(crate) fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_micros(now.as_micros().try_into().unwrap())
}

pub(crate) fn message(body: &str) -> Message {
    Message { body: body.as_bytes().to_vec(), name: None }
}

pub(crate) async fn send(timer: &ServiceBus, body: &str) {
    timer.schedule(&message(body), now(), now()).await.unwrap();
}

pub(crate) async fn one(timer: &ServiceBus) -> Received {
    let mut found = timer.receive(1, PATIENCE).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

pub(crate) async fn none(timer: &ServiceBus) {
    assert_eq!(timer.receive(1, BRIEF).await.unwrap(), []);
}

pub(crate) fn text(received: &Received) -> &str {
    std::str::from_utf8(&received.body).unwrap()
}

pub(crate) fn lock(lock: Duration) -> QueueOptions {
    QueueOptions { lock, ..QueueOptions::default() }
}

async fn lost(result: impl Future<Output = quell_core::Result<()>>) {
    assert_eq!(result.await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Every use of a lock that has ended.
async fn is_lost(timer: &ServiceBus, delivery: &Delivery) {
    lost(async { timer.renew(delivery).await.map(drop) }).await;
    lost(timer.complete(delivery)).await;
    lost(timer.abandon(delivery)).await;
    lost(timer.dead_letter(delivery, "late")).await;
}

#[tokio::test]
async fn a_message_arrives_at_its_time_and_never_before() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    let at = now() + Duration::from_secs(1);
    timer.schedule(&message("later"), now(), at).await.unwrap();
    send(&timer, "at once").await;
    let past = now().before(Duration::from_secs(60));
    timer.schedule(&message("past"), now(), past).await.unwrap();
    let mut early: Vec<Received> = Vec::new();
    while early.len() < 2 {
        early.extend(timer.receive(10, PATIENCE).await.unwrap());
    }
    let mut texts: Vec<&str> = early.iter().map(text).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["at once", "past"]);
    assert!(now() < at, "the machine is too slow to tell");
    let later = one(&timer).await;
    assert!(now() >= at, "it came early");
    assert_eq!((text(&later), later.deliveries), ("later", 1));
    for received in early.iter().chain([&later]) {
        timer.complete(&received.delivery).await.unwrap();
    }
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default());
}

#[tokio::test]
async fn a_receiver_takes_at_most_as_many_as_it_asks_for() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    for number in 0..7 {
        send(&timer, &number.to_string()).await;
    }
    assert_eq!(timer.receive(0, PATIENCE).await.unwrap(), []);
    let mut found = timer.receive(3, PATIENCE).await.unwrap();
    assert!((1..=3).contains(&found.len()), "{found:?}");
    let counts = stand_in.counts(QUEUE).unwrap();
    assert_eq!((counts.locked, counts.ready), (found.len(), 7 - found.len()));
    while found.len() < 7 {
        found.extend(timer.receive(3, PATIENCE).await.unwrap());
    }
    let mut texts: Vec<&str> = found.iter().map(text).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["0", "1", "2", "3", "4", "5", "6"]);
    // The credit of a receiver that found nothing is taken back: another timer gets what comes next.
    none(&timer).await;
    let other = options_at(stand_in.port()).open().await.unwrap();
    send(&timer, "next").await;
    assert_eq!(text(&one(&other).await), "next");
}

#[tokio::test]
async fn a_lock_that_ends_gives_the_message_to_another_receiver() {
    let (stand_in, timer) = timer(lock(Duration::from_millis(500))).await;
    send(&timer, "slow").await;
    let first = one(&timer).await;
    let again = one(&timer).await;
    assert_eq!((text(&again), again.deliveries), ("slow", 2));
    is_lost(&timer, &first.delivery).await;
    timer.complete(&again.delivery).await.unwrap();
    is_lost(&timer, &again.delivery).await;
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default());
    lost(timer.complete(&Delivery::new("of another timer"))).await;
}

#[tokio::test]
async fn a_lock_that_is_renewed_keeps_the_message() {
    let length = Duration::from_secs(2);
    let (_stand_in, timer) = timer(lock(length)).await;
    send(&timer, "long").await;
    let mut delivery = one(&timer).await.delivery;
    let began = Instant::now();
    while began.elapsed() < length + BRIEF {
        delivery = timer.renew(&delivery).await.unwrap();
        none(&timer).await;
    }
    timer.complete(&delivery).await.unwrap();
}

#[tokio::test]
async fn a_message_that_is_abandoned_comes_again_and_at_last_is_dead() {
    let options = QueueOptions { max_deliveries: 3, ..QueueOptions::default() };
    let (stand_in, timer) = timer(options).await;
    send(&timer, "poison").await;
    for deliveries in 1..=3 {
        let received = one(&timer).await;
        assert_eq!(received.deliveries, deliveries);
        timer.abandon(&received.delivery).await.unwrap();
    }
    none(&timer).await;
    assert_eq!(stand_in.counts(QUEUE).unwrap().dead, 1);
}

#[tokio::test]
async fn a_dead_letter_is_put_aside_with_its_reason() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    send(&timer, "poison").await;
    let received = one(&timer).await;
    timer.dead_letter(&received.delivery, "cannot be read").await.unwrap();
    none(&timer).await;
    let dead = stand_in.dead_letters(QUEUE).unwrap();
    assert_eq!(dead, ["cannot be read"]);
}

#[tokio::test]
async fn messages_of_one_name_are_kept_once() {
    let window = Some(Duration::from_secs(60));
    let (stand_in, timer) =
        timer(QueueOptions { duplicate_window: window, ..QueueOptions::default() }).await;
    assert!(!timer.deduplicates(), "the queue's property is given by options");
    assert!(options_at(1).deduplicates(true).open().await.is_err());
    let named = Message { name: Some("tick 7".to_owned()), ..message("once") };
    for _ in 0..3 {
        timer.schedule(&named, now(), now()).await.unwrap();
    }
    // Those without a name differ.
    send(&timer, "more").await;
    send(&timer, "more").await;
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts { ready: 3, ..Counts::default() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_share_a_connection_and_lose_nothing() {
    const EACH: usize = 50;
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    let timer = Arc::new(timer);
    let mut senders = JoinSet::new();
    for sender in 0..4 {
        let timer = Arc::clone(&timer);
        senders.spawn(async move {
            for number in 0..EACH {
                send(&timer, &format!("{sender} {number}")).await;
            }
        });
    }
    let mut receivers = JoinSet::new();
    for _ in 0..3 {
        let timer = Arc::clone(&timer);
        receivers.spawn(async move {
            let mut found = Vec::new();
            loop {
                let batch = timer.receive(8, Duration::from_secs(2)).await.unwrap();
                if batch.is_empty() {
                    return found;
                }
                for received in batch {
                    timer.complete(&received.delivery).await.unwrap();
                    found.push(text(&received).to_owned());
                }
            }
        });
    }
    senders.join_all().await;
    let mut found = receivers.join_all().await.concat();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 4 * EACH, "{:?}", stand_in.counts(QUEUE));
    assert_eq!(stand_in.stats().unwrap().connections, 1);
}

/// A link keeps a record of each delivery until it is settled there too: the stand-in and the client
/// have room for about two thousand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_outlives_thousands_of_messages() {
    const ALL: usize = 2_400;
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    let timer = Arc::new(timer);
    let mut senders = JoinSet::new();
    for _ in 0..8 {
        let timer = Arc::clone(&timer);
        senders.spawn(async move {
            for _ in 0..ALL / 8 {
                send(&timer, "x").await;
            }
        });
    }
    senders.join_all().await;
    let mut found = 0;
    while found < ALL {
        let batch = timer.receive(32, PATIENCE).await.unwrap();
        assert!((1..=32).contains(&batch.len()), "{found} of {ALL}");
        found += batch.len();
        let mut completes = JoinSet::new();
        for received in batch {
            let timer = Arc::clone(&timer);
            completes.spawn(async move { timer.complete(&received.delivery).await });
        }
        for completed in completes.join_all().await {
            completed.unwrap();
        }
    }
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default());
    assert_eq!(stand_in.stats().unwrap().connections, 1);
}
