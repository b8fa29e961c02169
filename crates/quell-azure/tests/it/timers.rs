//! What every timer does, whichever service delivers its messages.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_core::{ErrorKind, Result, Timestamp};
use quell_portable::{Delivery, Message, Received, Scheduled, Timer};
use tokio::task::JoinSet;

/// A wait that ends early where all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A wait in which nothing must arrive.
const BRIEF: Duration = Duration::from_millis(300);
/// A lock that outlasts every test.
const LONG: Duration = Duration::from_secs(300);

/// A queue that no other test has, or that no other test has now.
pub(crate) trait Queue: Sized {
    /// An empty queue, with a lock of this duration where it is made for the test.
    fn new(lock: Duration) -> impl Future<Output = Self>;
    /// How long its locks are.
    fn lock(&self) -> Duration;
    /// Another timer in the queue.
    fn timer(&self) -> impl Future<Output = Arc<dyn Timer>>;
    /// The number of its messages, locked or not, without those in its dead-letter queue; none where the
    /// service does not return it.
    fn count(&self) -> impl Future<Output = Option<usize>>;
    /// The reasons of its dead-lettered messages; none where the service does not return them.
    fn dead(&self) -> impl Future<Output = Option<Vec<String>>>;
}

/// Checks the number of messages of a queue, and the reasons in its dead-letter queue.
async fn has(queue: &impl Queue, count: usize, dead: &[&str]) {
    assert_eq!(queue.count().await.unwrap_or(count), count);
    if let Some(found) = queue.dead().await {
        assert_eq!(found, dead);
    }
}

/// Runs these tests on a kind of queue.
macro_rules! timer_contract {
    ($queue:ty) => {
        crate::timers::timer_contract! { $queue:
            a_message_arrives_at_its_time_and_never_before
            a_message_that_is_cancelled_is_never_delivered
            a_body_is_any_bytes_up_to_a_length
            a_receiver_takes_at_most_as_many_as_it_asks_for
            a_lock_that_ends_gives_the_message_to_another_receiver
            a_lock_that_is_renewed_keeps_the_message
            a_message_that_is_abandoned_comes_again
            a_dead_letter_is_put_aside_with_its_reason
            concurrent_calls_lose_nothing
        }
    };
    ($queue:ty: $($test:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::timers::$test::<$queue>().await;
            }
        )*
    };
}
pub(crate) use timer_contract;

pub(crate) fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_micros(now.as_micros().try_into().unwrap())
}

pub(crate) fn message(body: &str) -> Message {
    Message { body: body.as_bytes().to_vec(), name: None }
}

pub(crate) async fn send(timer: &dyn Timer, body: &str) {
    send_now(timer, &message(body)).await.unwrap();
}

/// Sends a message that is due.
pub(crate) async fn send_now(timer: &dyn Timer, message: &Message) -> Result<Option<Scheduled>> {
    let now = now();
    timer.schedule(message, now, now).await
}

/// Schedules a message for a later time, which can be cancelled.
pub(crate) async fn send_later(timer: &dyn Timer, body: &str, at: Timestamp) -> Scheduled {
    timer.schedule(&message(body), now(), at).await.unwrap().unwrap()
}

pub(crate) async fn one(timer: &dyn Timer) -> Received {
    let mut found = timer.receive(1, PATIENCE).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

pub(crate) async fn none(timer: &dyn Timer) {
    assert_eq!(timer.receive(1, BRIEF).await.unwrap(), []);
}

pub(crate) fn text(received: &Received) -> &str {
    std::str::from_utf8(&received.body).unwrap()
}

pub(crate) async fn lost(result: impl Future<Output = Result<()>>) {
    assert_eq!(result.await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Every use of a lock that has ended.
async fn is_lost(timer: &dyn Timer, delivery: &Delivery) {
    lost(async { timer.renew(delivery).await.map(drop) }).await;
    lost(timer.complete(delivery)).await;
    lost(timer.abandon(delivery)).await;
    lost(timer.dead_letter(delivery, "late")).await;
}

/// Receives this many messages, each for the first time.
async fn receive(timer: &dyn Timer, most: usize, count: usize) -> Vec<Received> {
    let mut found: Vec<Received> = Vec::new();
    while found.len() < count {
        let more = timer.receive(most, PATIENCE).await.unwrap();
        assert!((1..=most).contains(&more.len()), "{found:?} {more:?}");
        assert!(more.iter().all(|received| received.deliveries == 1), "{more:?}");
        found.extend(more);
    }
    found
}

pub(crate) async fn a_message_arrives_at_its_time_and_never_before<Q: Queue>() {
    let queue = Q::new(LONG).await;
    let timer = queue.timer().await;
    let at = now() + Duration::from_secs(2);
    timer.schedule(&message("later"), now(), at).await.unwrap();
    send(&*timer, "at once").await;
    let past = now().before(Duration::from_secs(60));
    timer.schedule(&message("past"), now(), past).await.unwrap();
    for expected in [["at once", "past"].as_slice(), &["later"]] {
        let found = receive(&*timer, 10, expected.len()).await;
        let mut texts: Vec<&str> = found.iter().map(text).collect();
        texts.sort_unstable();
        assert_eq!(texts, expected);
        assert!(!texts.contains(&"later") || now() >= at, "it came early");
        for received in found {
            timer.complete(&received.delivery).await.unwrap();
        }
    }
    has(&queue, 0, &[]).await;
}

pub(crate) async fn a_message_that_is_cancelled_is_never_delivered<Q: Queue>() {
    let queue = Q::new(LONG).await;
    let timer = queue.timer().await;
    let at = now() + Duration::from_secs(3);
    let kept = send_later(&*timer, "kept", at).await;
    let cancelled = send_later(&*timer, "cancelled", at).await;
    let far = now() + Duration::from_secs(30 * 24 * 60 * 60);
    let far = send_later(&*timer, "far", far).await;
    has(&queue, 3, &[]).await;
    // Another timer may cancel it, once.
    let other = queue.timer().await;
    for scheduled in [&cancelled, &far] {
        other.cancel(scheduled).await.unwrap();
        lost(timer.cancel(scheduled)).await;
    }
    lost(timer.cancel(&Scheduled::new("of another timer"))).await;
    let received = one(&*timer).await;
    assert_eq!(text(&received), "kept");
    lost(timer.cancel(&kept)).await;
    none(&*timer).await;
    timer.complete(&received.delivery).await.unwrap();
    lost(timer.cancel(&kept)).await;
    assert_eq!(send_now(&*timer, &message("due")).await.unwrap(), None);
    has(&queue, 1, &[]).await;
}

pub(crate) async fn a_body_is_any_bytes_up_to_a_length<Q: Queue>() {
    let queue = Q::new(LONG).await;
    let timer = queue.timer().await;
    let most = timer.most_bytes();
    let any = (0..=255).collect();
    for body in [Vec::new(), any, b"<a> & \xff ]]>".to_vec(), vec![b'<'; most]] {
        let name = Some(format!("ignored {:x}", fastrand::u64(..)));
        let message = Message { body: body.clone(), name };
        send_now(&*timer, &message).await.unwrap();
        let received = one(&*timer).await;
        assert!(received.body == body, "{} of {} bytes", received.body.len(), body.len());
        timer.complete(&received.delivery).await.unwrap();
    }
    let long = Message { body: vec![0; most + 1], name: None };
    let error = send_now(&*timer, &long).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(&most.to_string()), "{error}");
}

pub(crate) async fn a_receiver_takes_at_most_as_many_as_it_asks_for<Q: Queue>() {
    let queue = Q::new(LONG).await;
    let timer = queue.timer().await;
    for number in 0..7 {
        send(&*timer, &number.to_string()).await;
    }
    assert_eq!(timer.receive(0, PATIENCE).await.unwrap(), []);
    let mut found = receive(&*timer, 3, 7).await;
    let mut texts: Vec<&str> = found.iter().map(text).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["0", "1", "2", "3", "4", "5", "6"]);
    has(&queue, 7, &[]).await;
    // A receiver that found nothing keeps nothing: another timer gets what comes next.
    none(&*timer).await;
    send(&*timer, "next").await;
    found.push(one(&*queue.timer().await).await);
    assert_eq!(text(&found[7]), "next");
    for received in found {
        timer.complete(&received.delivery).await.unwrap();
    }
}

pub(crate) async fn a_lock_that_ends_gives_the_message_to_another_receiver<Q: Queue>() {
    let queue = Q::new(Duration::from_secs(2)).await;
    let timer = queue.timer().await;
    send(&*timer, "slow").await;
    let first = one(&*timer).await;
    let again = one(&*queue.timer().await).await;
    assert_eq!((text(&again), first.deliveries, again.deliveries), ("slow", 1, 2));
    // Each timer may settle what the other received.
    timer.complete(&again.delivery).await.unwrap();
    is_lost(&*timer, &first.delivery).await;
    is_lost(&*timer, &again.delivery).await;
    lost(timer.complete(&Delivery::new("of another timer"))).await;
    has(&queue, 0, &[]).await;
}

pub(crate) async fn a_lock_that_is_renewed_keeps_the_message<Q: Queue>() {
    let queue = Q::new(Duration::from_secs(4)).await;
    let length = queue.lock();
    let timer = queue.timer().await;
    send(&*timer, "long").await;
    let mut delivery = one(&*timer).await.delivery;
    let began = Instant::now();
    while began.elapsed() < length + BRIEF {
        delivery = timer.renew(&delivery).await.unwrap();
        none(&*timer).await;
    }
    timer.complete(&delivery).await.unwrap();
    has(&queue, 0, &[]).await;
}

pub(crate) async fn a_message_that_is_abandoned_comes_again<Q: Queue>() {
    let queue = Q::new(LONG).await;
    let timer = queue.timer().await;
    send(&*timer, "again").await;
    for deliveries in 1..=3 {
        let received = one(&*timer).await;
        assert_eq!((text(&received), received.deliveries), ("again", deliveries));
        timer.abandon(&received.delivery).await.unwrap();
        lost(timer.complete(&received.delivery)).await;
    }
}

pub(crate) async fn a_dead_letter_is_put_aside_with_its_reason<Q: Queue>() {
    let queue = Q::new(LONG).await;
    let timer = queue.timer().await;
    send(&*timer, "poison").await;
    let received = one(&*timer).await;
    timer.dead_letter(&received.delivery, "cannot be read").await.unwrap();
    none(&*timer).await;
    has(&queue, 0, &["cannot be read"]).await;
    is_lost(&*timer, &received.delivery).await;
    has(&queue, 0, &["cannot be read"]).await;
}

pub(crate) async fn concurrent_calls_lose_nothing<Q: Queue>() {
    const SENDERS: usize = 4;
    const EACH: usize = 50;
    let queue = Q::new(LONG).await;
    let timer = queue.timer().await;
    let mut tasks = JoinSet::new();
    for sender in 0..SENDERS {
        let timer = Arc::clone(&timer);
        tasks.spawn(async move {
            for number in 0..EACH {
                send(&*timer, &format!("{sender} {number}")).await;
            }
            Vec::new()
        });
    }
    let (found, count) = (Arc::new(tokio::sync::Semaphore::new(0)), SENDERS * EACH);
    for _ in 0..3 {
        let (timer, found) = (Arc::clone(&timer), Arc::clone(&found));
        tasks.spawn(async move {
            let mut texts = Vec::new();
            while found.available_permits() < count {
                for received in timer.receive(8, BRIEF).await.unwrap() {
                    timer.complete(&received.delivery).await.unwrap();
                    texts.push(text(&received).to_owned());
                    found.add_permits(1);
                }
            }
            texts
        });
    }
    let all = tokio::time::timeout(PATIENCE * 6, tasks.join_all()).await;
    let mut texts = all.unwrap().concat();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), count);
    has(&queue, 0, &[]).await;
}
