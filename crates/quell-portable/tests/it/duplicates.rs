//! A timer in memory that deduplicates messages by their names.

use std::sync::Arc;
use std::time::Duration;

use quell_conformance::Rig;
use quell_core::Timestamp;
use quell_portable::{MemoryTimer, Message, Timer};
use tokio::task::JoinSet;

const WINDOW: Duration = Duration::from_secs(600);
const LOCK: Duration = Duration::from_secs(30);

fn timer() -> MemoryTimer {
    MemoryTimer::new(Rig::START, LOCK).with_duplicate_window(WINDOW)
}

async fn send(timer: &MemoryTimer, body: &str, name: Option<&str>, now: Timestamp) {
    let message = Message { body: body.into(), name: name.map(str::to_owned) };
    timer.schedule(&message, now, now).await.unwrap();
}

/// Takes and completes all messages that wait.
async fn bodies(timer: &MemoryTimer) -> Vec<String> {
    let mut bodies = Vec::new();
    for received in timer.receive(100, Duration::ZERO).await.unwrap() {
        timer.complete(&received.delivery).await.unwrap();
        bodies.push(String::from_utf8(received.body).unwrap());
    }
    bodies
}

#[tokio::test]
async fn a_timer_deduplicates_where_it_says_so() {
    let plain = MemoryTimer::new(Rig::START, LOCK);
    assert_eq!(plain.duplicate_window(), None);
    assert_eq!(timer().duplicate_window(), Some(WINDOW));
    for (timer, expected) in [(plain, ["1", "2"].as_slice()), (timer(), &["1"])] {
        send(&timer, "1", Some("a"), Rig::START).await;
        send(&timer, "2", Some("a"), Rig::START).await;
        assert_eq!(bodies(&timer).await, expected);
    }
}

#[tokio::test]
async fn messages_of_other_names_and_of_none_all_come() {
    let timer = timer();
    for (body, name) in [("1", Some("a")), ("2", Some("b")), ("3", None), ("4", None)] {
        send(&timer, body, name, Rig::START).await;
    }
    assert_eq!(bodies(&timer).await, ["1", "2", "3", "4"]);
    assert_eq!(timer.scheduled(), 4);
}

/// The window begins with the first message, whether that is there or not, and duplicates do not
/// extend it.
#[tokio::test]
async fn a_name_is_free_again_after_the_window_and_not_before() {
    let timer = timer();
    send(&timer, "1", Some("a"), Rig::START).await;
    assert_eq!(bodies(&timer).await, ["1"]);
    let end = Rig::START + WINDOW;
    timer.advance(end.before(Duration::from_micros(1)));
    send(&timer, "2", Some("a"), end).await;
    assert_eq!(bodies(&timer).await, [""; 0]);
    timer.advance(end);
    send(&timer, "3", Some("a"), end).await;
    assert_eq!(bodies(&timer).await, ["3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_senders_that_race_for_a_name_one_is_kept() {
    let timer = Arc::new(timer());
    let mut senders = JoinSet::new();
    for _ in 0..16 {
        let timer = Arc::clone(&timer);
        senders.spawn(async move { send(&timer, "x", Some("a"), Rig::START).await });
    }
    senders.join_all().await;
    assert_eq!(timer.scheduled(), 1);
    assert_eq!(bodies(&timer).await, ["x"]);
}
