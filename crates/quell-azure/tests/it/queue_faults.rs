//! Queues whose answers are lost, and a service that is busy or silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_azure::StorageQueue;
use quell_core::ErrorKind;
use quell_portable::Timer;

use crate::proxy::{Act, Proxy, failure};
use crate::queue::StoredQueue;
use crate::timers::{Queue, lost, message, none, now, one, send, send_later, send_now, text};

/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(300);

/// A proxy that does these to the first requests that begin so, and forwards the rest.
async fn proxy(queue: &StoredQueue, start: &'static str, acts: impl Into<Vec<Act>>) -> Proxy {
    let mut acts = acts.into().into_iter();
    Proxy::start(queue.port(), move |request| match request.starts_with(start) {
        true => acts.next().unwrap_or(Act::Forward),
        false => Act::Forward,
    })
    .await
}

/// A queue, and a timer in it behind such a proxy.
async fn timer(
    start: &'static str,
    acts: impl Into<Vec<Act>>,
) -> (StoredQueue, StorageQueue, Proxy) {
    let queue = StoredQueue::new(LONG).await;
    let proxy = proxy(&queue, start, acts).await;
    let timer = queue.through(proxy.port).open().await.unwrap();
    (queue, timer, proxy)
}

fn busy(status: &str, headers: &str) -> Act {
    Act::Answer(failure(status, "ServerBusy", headers))
}

fn timed_out() -> String {
    failure("500 Internal Server Error", "OperationTimedOut", "")
}

#[tokio::test]
async fn a_message_whose_answer_is_lost_is_sent_again() {
    for (loss, stored) in [
        (Act::LoseAnswer, 2),
        (Act::ForwardAndAnswer(timed_out()), 2),
        (Act::LoseRequest, 1),
        (Act::Answer(timed_out()), 1),
        (busy("503 Service Unavailable", ""), 1),
        (busy("429 Too Many Requests", ""), 1),
    ] {
        let (queue, timer, _proxy) = timer("POST ", [loss.clone()]).await;
        send(&timer, "x").await;
        assert_eq!(queue.messages().await, stored, "{loss:?}");
    }
}

#[tokio::test]
async fn a_message_without_any_answer_has_an_unknown_outcome() {
    let limit = Duration::from_secs(3);
    for (act, kind) in [
        (Act::LoseAnswer, ErrorKind::UnknownOutcome),
        (Act::LoseRequest, ErrorKind::UnknownOutcome),
        (busy("503 Service Unavailable", ""), ErrorKind::Unavailable),
        (busy("503 Service Unavailable", "retry-after: 60\r\n"), ErrorKind::Unavailable),
    ] {
        let queue = StoredQueue::new(LONG).await;
        let proxy = proxy(&queue, "POST ", vec![act.clone(); 1_000]).await;
        let timer = queue.through(proxy.port).timeout(limit).open().await.unwrap();
        let began = Instant::now();
        let error = send_now(&timer, &message("x")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{act:?}: {error}");
        assert!(began.elapsed() < limit + SLACK, "{:?}", began.elapsed());
        let is_stored = queue.messages().await > 0;
        assert_eq!(is_stored, matches!(act, Act::LoseAnswer), "{act:?}");
    }
}

#[tokio::test]
async fn a_busy_service_is_asked_again_when_it_says() {
    let acts = [
        busy("503 Service Unavailable", "retry-after: 1\r\n"),
        busy("429 Too Many Requests", ""),
        Act::LoseRequest,
    ];
    let (queue, timer, proxy) = timer("DELETE ", acts).await;
    send(&timer, "x").await;
    let received = one(&timer).await;
    timer.complete(&received.delivery).await.unwrap();
    assert_eq!(queue.messages().await, 0);
    let seen = proxy.seen().into_iter();
    let deletes: Vec<_> = seen.filter(|(_, request)| request.starts_with("DELETE ")).collect();
    assert_eq!(deletes.len(), 4);
    assert!(deletes[1].0 - deletes[0].0 >= Duration::from_secs(1));
}

#[tokio::test]
async fn an_operation_whose_answer_is_lost_has_an_unknown_outcome() {
    for loss in [Act::LoseAnswer, Act::ForwardAndAnswer(timed_out())] {
        let (queue, timer, _proxy) = timer("DELETE ", [loss.clone()]).await;
        send(&timer, "x").await;
        let received = one(&timer).await;
        let error = timer.complete(&received.delivery).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{loss:?}: {error}");
        assert_eq!(queue.messages().await, 0);
        lost(timer.complete(&received.delivery)).await;

        let (queue, timer, _proxy) = self::timer("DELETE ", [loss.clone()]).await;
        let scheduled = send_later(&timer, "x", now() + LONG).await;
        let error = timer.cancel(&scheduled).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{loss:?}: {error}");
        assert_eq!(queue.count().await, Some(0));
        lost(timer.cancel(&scheduled)).await;

        let (_queue, timer, _proxy) = self::timer("PUT ", [loss.clone(), Act::Forward, loss]).await;
        send(&timer, "x").await;
        let received = one(&timer).await;
        let error = timer.abandon(&received.delivery).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
        let again = one(&timer).await;
        assert_eq!(again.deliveries, 2, "it was done");
        let error = timer.renew(&again.delivery).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
        lost(timer.complete(&again.delivery)).await;
    }
}

#[tokio::test]
async fn messages_of_an_answer_that_was_lost_come_again() {
    let queue = StoredQueue::new(Duration::from_secs(1)).await;
    // The first two requests look for the queues.
    let acts = [Act::Forward, Act::Forward, Act::LoseAnswer];
    let proxy = proxy(&queue, "GET ", acts).await;
    let timer = queue.through(proxy.port).open().await.unwrap();
    send(&timer, "x").await;
    assert_eq!(one(&timer).await.deliveries, 2);
}

#[tokio::test]
async fn a_message_that_cannot_be_put_off_is_not_delivered_and_delays_no_other() {
    let queue = StoredQueue::new(Duration::from_secs(1)).await;
    let proxy = proxy(&queue, "PUT ", [Act::LoseRequest, Act::LoseAnswer]).await;
    let timer = queue.through(proxy.port).open().await.unwrap();
    // It may be received from now on, and is received before its time.
    let at = now() + Duration::from_secs(8);
    timer.schedule(&message("later"), at, at).await.unwrap();
    send(&timer, "at once").await;
    let first = one(&timer).await;
    assert_eq!(text(&first), "at once");
    timer.complete(&first.delivery).await.unwrap();
    let later = one(&timer).await;
    assert!(now() >= at, "it came early");
    assert_eq!(text(&later), "later");
    let puts = proxy.seen().into_iter().filter(|(_, request)| request.starts_with("PUT "));
    assert!(puts.count() >= 2);
}

#[tokio::test]
async fn a_dead_letter_may_be_in_both_queues_and_never_in_neither() {
    let limit = Duration::from_secs(3);
    let queue = StoredQueue::new(Duration::from_secs(2)).await;
    let direct = queue.open().await;
    // The copy is not stored: nothing has happened.
    let refused = proxy(&queue, "POST ", vec![busy("503 Service Unavailable", ""); 1_000]).await;
    let timer = queue.through(refused.port).timeout(limit).open().await.unwrap();
    send(&direct, "x").await;
    let received = one(&direct).await;
    let error = timer.dead_letter(&received.delivery, "r").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let delivery = direct.renew(&received.delivery).await.unwrap();
    direct.abandon(&delivery).await.unwrap();
    assert_eq!(queue.count_of("-dead").await, 0);
    // The copy is stored, and the message is not deleted: it comes again.
    let silent = proxy(&queue, "DELETE ", vec![Act::Silence; 1_000]).await;
    let timer = queue.through(silent.port).timeout(limit).open().await.unwrap();
    let received = one(&direct).await;
    let error = timer.dead_letter(&received.delivery, "r").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
    assert_eq!((queue.messages().await, queue.count_of("-dead").await), (1, 1));
    let again = one(&direct).await;
    direct.dead_letter(&again.delivery, "again").await.unwrap();
    assert_eq!(
        (queue.messages().await, queue.dead().await),
        (0, Some(vec!["r".into(), "again".into()]))
    );
}

#[tokio::test]
async fn a_silent_peer_holds_no_call_up() {
    let queue = StoredQueue::new(LONG).await;
    let is_silent = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&is_silent);
    let proxy = Proxy::start(queue.port(), move |_| match shared.load(Ordering::Relaxed) {
        false => Act::Forward,
        true => Act::Silence,
    })
    .await;
    let limit = Duration::from_secs(3);
    let options = queue.through(proxy.port);
    // A busy machine may be slow before the silence.
    let received = {
        let timer = options.clone().open().await.unwrap();
        send(&timer, "x").await;
        one(&timer).await
    };
    let timer = options.timeout(limit).open().await.unwrap();
    is_silent.store(true, Ordering::Relaxed);
    let (delivery, x) = (&received.delivery, message("y"));
    let began = Instant::now();
    let kinds = tokio::join!(
        async { send_now(&timer, &x).await.unwrap_err().kind() },
        async { timer.renew(delivery).await.unwrap_err().kind() },
        async { timer.complete(delivery).await.unwrap_err().kind() },
        async { timer.abandon(delivery).await.unwrap_err().kind() },
        async { timer.dead_letter(delivery, "r").await.unwrap_err().kind() },
        async { timer.receive(1, Duration::ZERO).await.unwrap_err().kind() },
    );
    let unknown = ErrorKind::UnknownOutcome;
    assert_eq!(kinds, (unknown, unknown, unknown, unknown, unknown, ErrorKind::Unavailable));
    assert!(began.elapsed() < limit + SLACK, "{:?}", began.elapsed());
    is_silent.store(false, Ordering::Relaxed);
    // Nothing was done.
    assert_eq!((queue.messages().await, queue.count_of("-dead").await), (1, 0));
    let direct = queue.open().await;
    none(&direct).await;
    direct.complete(delivery).await.unwrap();
}

#[tokio::test]
async fn nothing_that_listens_means_that_nothing_was_done() {
    let (_queue, timer, proxy) = {
        let queue = StoredQueue::new(LONG).await;
        let proxy = proxy(&queue, "", []).await;
        let options = queue.through(proxy.port).timeout(Duration::from_secs(3));
        let timer = options.open().await.unwrap();
        (queue, timer, proxy)
    };
    drop(proxy);
    // The first call may find a connection that was open.
    let _first = send_now(&timer, &message("x")).await;
    let error = send_now(&timer, &message("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = timer.receive(1, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
