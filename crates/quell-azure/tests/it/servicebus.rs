//! Timers in a queue, on a stand-in that Microsoft's SDKs accept.

use std::sync::Arc;
use std::time::Duration;

use quell_azure::servicebus::{ServiceBus, ServiceBusOptions};
use quell_portable::{Message, Timer};
use quell_services::servicebus::{Counts, QueueOptions, connection_string};
use quell_services::{SERVICE_BUS, ServiceBus as StandIn};
use tokio::task::JoinSet;

use crate::timers::{PATIENCE, Queue, message, none, now, one, send, send_later, send_now};

pub(crate) const QUEUE: &str = "timers";
/// The lock of the queue that `cargo xtask live` asks for.
const LIVE_LOCK: Duration = Duration::from_secs(10);

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

/// A queue of a stand-in of its own; or the real one of `cargo xtask live`, which has its own options and
/// one test at a time.
pub(crate) struct Bus {
    stand_in: Option<StandIn>,
    connection: String,
    queue: String,
    lock: Duration,
}

impl Bus {
    pub(crate) async fn with(options: QueueOptions) -> Self {
        let Some(connection) = std::env::var(SERVICE_BUS).ok() else {
            let stand_in = StandIn::start().unwrap();
            stand_in.create_queue(QUEUE, options).unwrap();
            let (connection, queue) = (stand_in.connection_string(), QUEUE.to_owned());
            return Bus { stand_in: Some(stand_in), connection, queue, lock: options.lock };
        };
        Bus::live(connection).await
    }

    async fn live(connection: String) -> Self {
        let queue = connection.split(';').find_map(|part| part.strip_prefix("EntityPath="));
        let queue = queue.unwrap().to_owned();
        let bus = Bus { stand_in: None, connection, queue, lock: LIVE_LOCK };
        let timer = bus.options().open().await.unwrap();
        // What a test that failed has left behind.
        loop {
            let left = timer.receive(32, Duration::from_secs(1)).await.unwrap();
            if left.is_empty() {
                return bus;
            }
            for received in left {
                timer.complete(&received.delivery).await.unwrap();
            }
        }
    }

    pub(crate) fn options(&self) -> ServiceBusOptions {
        let options = ServiceBusOptions::from_connection_string(&self.connection, &self.queue);
        options.unwrap().timeout(Duration::from_secs(5))
    }

    pub(crate) fn counts(&self) -> Option<Counts> {
        self.stand_in.as_ref().map(|stand_in| stand_in.counts(QUEUE).unwrap())
    }
}

impl Queue for Bus {
    async fn new(length: Duration) -> Self {
        Bus::with(lock(length)).await
    }

    fn lock(&self) -> Duration {
        self.lock
    }

    async fn timer(&self) -> Arc<dyn Timer> {
        Arc::new(self.options().open().await.unwrap())
    }

    async fn count(&self) -> Option<usize> {
        self.counts().map(|counts| counts.ready + counts.scheduled + counts.locked)
    }

    async fn dead(&self) -> Option<Vec<String>> {
        self.stand_in.as_ref().map(|stand_in| stand_in.dead_letters(QUEUE).unwrap())
    }
}

/// `cargo xtask live` runs these.
mod contract {
    crate::timers::timer_contract!(super::Bus);
}

/// As far as that can be seen without the real service.
#[tokio::test]
async fn the_queue_of_live_tests_is_emptied_before_each() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    for _ in 0..40 {
        send(&timer, "left behind").await;
    }
    let bus = Bus::live(format!("{};EntityPath={QUEUE}", stand_in.connection_string())).await;
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default());
    assert!(bus.counts().is_none() && bus.dead().await.is_none());
    send(&*bus.timer().await, "x").await;
    assert_eq!(stand_in.counts(QUEUE).unwrap().ready, 1);
}

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
        send_now(&timer, &named).await.unwrap();
    }
    // Those without a name differ.
    send(&timer, "more").await;
    send(&timer, "more").await;
    // One that is for a later time has the same names.
    let at = now() + PATIENCE;
    assert_eq!(timer.schedule(&named, now(), at).await.unwrap(), None);
    let later = Message { name: Some("tick 8".to_owned()), ..named };
    let kept = timer.schedule(&later, now(), at).await.unwrap();
    assert_eq!(timer.schedule(&later, now(), at).await.unwrap(), None);
    send_later(&timer, "more", at).await;
    let counts = Counts { ready: 3, scheduled: 2, ..Counts::default() };
    assert_eq!(stand_in.counts(QUEUE).unwrap(), counts);
    timer.cancel(&kept.unwrap()).await.unwrap();
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts { scheduled: 1, ..counts });
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
