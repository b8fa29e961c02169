//! Timers in a queue, on a stand-in that Microsoft's SDKs accept.

use std::sync::Arc;
use std::time::Duration;

use quell_azure::servicebus::{ServiceBus, ServiceBusOptions};
use quell_portable::{Message, Timer};
use quell_services::ServiceBus as StandIn;
use quell_services::servicebus::{Counts, QueueOptions, connection_string};
use tokio::task::JoinSet;

use crate::timers::{PATIENCE, Queue, message, none, now, one, send, timer_contract};

pub(crate) const QUEUE: &str = "timers";

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

pub(crate) fn lock(lock: Duration) -> QueueOptions {
    QueueOptions { lock, ..QueueOptions::default() }
}

/// A stand-in with one queue.
struct StandInQueue(StandIn);

impl Queue for StandInQueue {
    async fn new(length: Duration) -> Self {
        let stand_in = StandIn::start().unwrap();
        stand_in.create_queue(QUEUE, lock(length)).unwrap();
        StandInQueue(stand_in)
    }

    async fn timer(&self) -> Arc<dyn Timer> {
        Arc::new(options_at(self.0.port()).open().await.unwrap())
    }

    async fn count(&self) -> usize {
        let counts = self.0.counts(QUEUE).unwrap();
        counts.ready + counts.scheduled + counts.locked
    }

    async fn dead(&self) -> Vec<String> {
        self.0.dead_letters(QUEUE).unwrap()
    }
}

timer_contract!(StandInQueue);

#[tokio::test]
async fn a_message_that_is_delivered_too_often_is_dead() {
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
async fn messages_of_one_name_are_kept_once() {
    let window = Duration::from_secs(60);
    let (stand_in, timer) =
        timer(QueueOptions { duplicate_window: Some(window), ..QueueOptions::default() }).await;
    assert_eq!(timer.duplicate_window(), None, "the queue's property is given by options");
    let knows = options_at(stand_in.port()).duplicate_window(window).open().await;
    assert_eq!(knows.unwrap().duplicate_window(), Some(window));
    let named = Message { name: Some("tick 7".to_owned()), ..message("once") };
    for _ in 0..3 {
        timer.schedule(&named, now(), now()).await.unwrap();
    }
    // Those without a name differ.
    send(&timer, "more").await;
    send(&timer, "more").await;
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts { ready: 3, ..Counts::default() });
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
                send(&*timer, "x").await;
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
