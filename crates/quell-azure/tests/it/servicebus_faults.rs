//! Connections that break, a service that is busy or silent, and credentials that are wrong.

use std::time::{Duration, Instant};

use quell_azure::servicebus::ServiceBusOptions;
use quell_core::ErrorKind;
use quell_portable::Timer;
use quell_services::Proxy;
use quell_services::servicebus::{Counts, Fault, QueueOptions};

use crate::opening::printed;
use crate::server::until_in;
use crate::servicebus::{QUEUE, lock, options_at, timer};
use crate::timers::{PATIENCE, lost, message, none, now, one, send, send_later, send_now, text};

/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(300);

#[tokio::test]
async fn a_send_whose_acknowledgement_is_lost_has_an_unknown_outcome() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    for (fault, stored) in [(Fault::DropAfter, 1), (Fault::DropBefore, 1), (Fault::NoAnswer, 2)] {
        stand_in.fault(QUEUE, fault, 1).unwrap();
        let error = send_now(&timer, &message("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{fault:?}: {error}");
        // It was not sent again by itself.
        let counts = stand_in.counts(QUEUE).unwrap();
        assert_eq!(counts, Counts { ready: stored, ..Counts::default() }, "{fault:?}");
    }
    // The next call has a connection of its own.
    send(&timer, "after").await;
    assert_eq!(stand_in.counts(QUEUE).unwrap().ready, 3);
}

#[tokio::test]
async fn an_operation_whose_answer_is_lost_has_an_unknown_outcome() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    for fault in [Fault::NoAnswerManagement, Fault::TimeoutManagement] {
        send(&timer, "x").await;
        let received = one(&timer).await;
        stand_in.fault(QUEUE, fault, 1).unwrap();
        let error = timer.complete(&received.delivery).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{fault:?}: {error}");
        let error = timer.complete(&received.delivery).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{fault:?}: it was done: {error}");
    }
}

#[tokio::test]
async fn a_message_for_later_whose_answer_is_lost_has_an_unknown_outcome() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    let at = now() + LONG;
    for fault in [Fault::NoAnswerManagement, Fault::TimeoutManagement] {
        let scheduled = send_later(&timer, "x", at).await;
        stand_in.fault(QUEUE, fault, 1).unwrap();
        let error = timer.cancel(&scheduled).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{fault:?}: {error}");
        assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default(), "{fault:?}: it was done");
        lost(timer.cancel(&scheduled)).await;
    }
    stand_in.fault(QUEUE, Fault::NoAnswerManagement, 1).unwrap();
    let error = timer.schedule(&message("x"), now(), at).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
    // It was not sent again by itself.
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts { scheduled: 1, ..Counts::default() });
    let scheduled = send_later(&timer, "y", at).await;
    // A busy service has done nothing, and is asked again.
    stand_in.fault(QUEUE, Fault::BusyManagement, 2).unwrap();
    let other = send_later(&timer, "z", at).await;
    stand_in.fault(QUEUE, Fault::BusyManagement, 2).unwrap();
    timer.cancel(&scheduled).await.unwrap();
    timer.cancel(&other).await.unwrap();
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts { scheduled: 1, ..Counts::default() });
}

#[tokio::test]
async fn a_connection_that_was_closed_is_replaced_and_locks_outlive_it() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    send(&timer, "kept").await;
    let received = one(&timer).await;
    for _ in 0..3 {
        stand_in.disconnect().unwrap();
        // The client may not know yet: such a call is not sent twice.
        match timer.renew(&received.delivery).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}"),
        }
        timer.renew(&received.delivery).await.unwrap();
    }
    timer.complete(&received.delivery).await.unwrap();
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default());
}

#[tokio::test]
async fn a_receiver_whose_connection_closes_waits_on_another() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    let cuts = async {
        // The receiver waits by now, or finds a closed connection: both recover.
        stand_in.disconnect().unwrap();
        send(&options_at(stand_in.port()).open().await.unwrap(), "first").await;
    };
    let (found, ()) = tokio::join!(one(&timer), cuts);
    assert_eq!(text(&found), "first");
    timer.complete(&found.delivery).await.unwrap();
}

#[tokio::test]
async fn a_silent_peer_holds_no_call_up() {
    let (stand_in, direct) = timer(QueueOptions::default()).await;
    send(&direct, "x").await;
    let proxy = Proxy::start(stand_in.port()).unwrap();
    let limit = Duration::from_secs(2);
    let through = options_at(proxy.port()).timeout(limit).open().await.unwrap();
    let received = one(&through).await;
    let later = &send_later(&direct, "later", now() + LONG).await;
    proxy.hold(true);
    let (delivery, x) = (&received.delivery, message("y"));
    let began = Instant::now();
    let kinds = tokio::join!(
        async { send_now(&through, &x).await.unwrap_err().kind() },
        async { through.renew(delivery).await.unwrap_err().kind() },
        async { through.complete(delivery).await.unwrap_err().kind() },
        async { through.abandon(delivery).await.unwrap_err().kind() },
        async { through.dead_letter(delivery, "r").await.unwrap_err().kind() },
        async { through.cancel(later).await.unwrap_err().kind() },
    );
    let unknown = ErrorKind::UnknownOutcome;
    assert_eq!(kinds, (unknown, unknown, unknown, unknown, unknown, unknown));
    assert!(began.elapsed() < limit + SLACK, "{:?}", began.elapsed());
    // The next ones cannot even connect.
    let began = Instant::now();
    let (sent, found) = tokio::join!(send_now(&through, &x), through.receive(1, limit / 2));
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(found.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() < limit + SLACK, "{:?}", began.elapsed());
    let error = options_at(proxy.port()).timeout(limit).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn nothing_that_listens_means_that_nothing_was_done() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    drop(stand_in);
    // The first call may find a connection that was open.
    let _first = send_now(&timer, &message("x")).await;
    let error = send_now(&timer, &message("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = timer.receive(1, SLACK).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// Of each kind of call, one that the service refuses a few times, and one that it refuses for good.
#[tokio::test]
async fn r39_a_busy_service_is_asked_again_until_the_deadline() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    stand_in.fault(QUEUE, Fault::Busy, 3).unwrap();
    send(&timer, "x").await;
    let received = one(&timer).await;
    stand_in.fault(QUEUE, Fault::BusyManagement, 3).unwrap();
    timer.renew(&received.delivery).await.unwrap();
    stand_in.fault(QUEUE, Fault::BusyManagement, 3).unwrap();
    timer.complete(&received.delivery).await.unwrap();
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default());
    assert_eq!(stand_in.stats().unwrap().connections, 1, "the connection was well");
    stand_in.fault(QUEUE, Fault::BusyAttach, 3).unwrap();
    let limit = Duration::from_secs(2);
    let timer = options_at(stand_in.port()).timeout(limit).open().await.unwrap();
    for fault in [Fault::Busy, Fault::BusyManagement, Fault::BusyAttach] {
        send(&timer, "y").await;
        let received = one(&timer).await;
        stand_in.fault(QUEUE, fault, u32::MAX).unwrap();
        let began = Instant::now();
        let error = match fault {
            Fault::Busy => send_now(&timer, &message("z")).await.unwrap_err(),
            Fault::BusyManagement => timer.complete(&received.delivery).await.unwrap_err(),
            _ => options_at(stand_in.port()).timeout(limit).open().await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}: {error}");
        assert!(error.to_string().contains("50004"), "{fault:?}: {error}");
        assert!(began.elapsed() < limit + SLACK, "{fault:?}: {:?}", began.elapsed());
        stand_in.fault(QUEUE, fault, 0).unwrap();
        timer.complete(&received.delivery).await.unwrap();
    }
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default(), "nothing was done");
}

#[tokio::test]
async fn a_message_that_was_completed_may_come_once_more() {
    let (stand_in, timer) = timer(QueueOptions::default()).await;
    stand_in.fault(QUEUE, Fault::Twice, 1).unwrap();
    send(&timer, "x").await;
    for deliveries in 1..=2 {
        let received = one(&timer).await;
        assert_eq!(received.deliveries, deliveries);
        timer.complete(&received.delivery).await.unwrap();
    }
    none(&timer).await;
}

#[tokio::test]
async fn a_schedule_may_be_late_and_locks_may_end_at_once() {
    let (stand_in, timer) = timer(lock(Duration::from_secs(60))).await;
    stand_in.shift_schedule(QUEUE, 700).unwrap();
    let at = now() + Duration::from_millis(300);
    timer.schedule(&message("late"), now(), at).await.unwrap();
    let received = one(&timer).await;
    assert!(now() >= at + Duration::from_millis(700));
    stand_in.expire_locks(QUEUE).unwrap();
    let error = timer.complete(&received.delivery).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(one(&timer).await.deliveries, 2);
}

#[tokio::test]
async fn tokens_are_replaced_before_they_expire() {
    let (stand_in, _) = timer(QueueOptions::default()).await;
    let lifetime = Duration::from_secs(2);
    let timer = options_at(stand_in.port()).token_lifetime(lifetime).open().await.unwrap();
    let connections = stand_in.stats().unwrap().connections;
    let began = Instant::now();
    // A wait longer than a token, and calls after several: the stand-in closes links without one.
    assert_eq!(timer.receive(1, lifetime * 2).await.unwrap(), []);
    while began.elapsed() < lifetime * 3 {
        send(&timer, "x").await;
        let received = one(&timer).await;
        timer.complete(&received.delivery).await.unwrap();
    }
    assert_eq!(stand_in.stats().unwrap().connections, connections, "it was never replaced");
    // A token that is never replaced ends its links.
    assert!(stand_in.stats().unwrap().tokens >= 8);
}

/// A host whose clock is two hours off signs tokens that the service takes.
#[tokio::test]
async fn r39_a_clock_that_is_off_does_not_spoil_tokens() {
    let (stand_in, _) = timer(QueueOptions::default()).await;
    for hours in [2, -2, 200] {
        stand_in.shift_clock(hours * 3_600_000).unwrap();
        let timer = options_at(stand_in.port()).open().await;
        let timer = timer.unwrap_or_else(|error| panic!("{hours} h: {error}"));
        send(&timer, "x").await;
        timer.complete(&one(&timer).await.delivery).await.unwrap();
    }
    // Where a clock is set while a connection lives, the next token is longer.
    stand_in.shift_clock(0).unwrap();
    let lifetime = Duration::from_secs(2);
    let timer = options_at(stand_in.port()).token_lifetime(lifetime).open().await.unwrap();
    stand_in.shift_clock(2 * 3_600_000).unwrap();
    let tokens = stand_in.stats().unwrap().tokens;
    let began = Instant::now();
    while stand_in.stats().unwrap().tokens < tokens + 4 {
        assert!(began.elapsed() < PATIENCE, "tokens are no longer replaced");
        send(&timer, "x").await;
        timer.complete(&one(&timer).await.delivery).await.unwrap();
    }
}

/// A key that is replaced while a connection lives: the renewal of its token is refused, and the error
/// says which key. A message that was received is not lost, and with the key again calls go on.
#[tokio::test]
async fn r39_a_token_that_is_no_longer_renewed_is_named() {
    let (stand_in, _) = timer(QueueOptions::default()).await;
    let lifetime = Duration::from_secs(2);
    let timer = options_at(stand_in.port()).token_lifetime(lifetime).open().await.unwrap();
    send(&timer, "x").await;
    let received = one(&timer).await;
    stand_in.fault(QUEUE, Fault::Token, u32::MAX).unwrap();
    let refused = async || {
        let renewed = timer.renew(&received.delivery).await.err();
        renewed.is_some_and(|error| {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            error.to_string().contains("rejects the credentials")
        })
    };
    until_in(PATIENCE, refused).await;
    let calls = [
        timer.renew(&received.delivery).await.map(drop),
        timer.complete(&received.delivery).await,
        timer.schedule(&message("y"), now(), now()).await.map(drop),
        timer.receive(1, SLACK).await.map(drop),
    ];
    for error in calls.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let printed = printed(&error);
        assert!(printed.contains("check SharedAccessKey of \"quell\""), "{printed}");
        assert!(!printed.contains("sig="), "{printed}");
    }
    stand_in.fault(QUEUE, Fault::Token, 0).unwrap();
    timer.complete(&received.delivery).await.unwrap();
    send(&timer, "y").await;
    timer.complete(&one(&timer).await.delivery).await.unwrap();
    assert_eq!(stand_in.counts(QUEUE).unwrap(), Counts::default());
}

#[tokio::test]
async fn wrong_credentials_and_missing_queues_are_named() {
    let (stand_in, _) = timer(QueueOptions::default()).await;
    let place = format!("Endpoint=sb://127.0.0.1:{};UseDevelopmentEmulator=true", stand_in.port());
    let wrong = format!("{place};SharedAccessKeyName=quell;SharedAccessKey=CANARY");
    let options = ServiceBusOptions::from_connection_string(&wrong, QUEUE).unwrap();
    let error = options.open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let printed = format!("{error} {error:?}");
    assert!(printed.contains("rejects the credentials"), "{printed}");
    assert!(printed.contains("check SharedAccessKey of"), "{printed}");
    assert!(!printed.contains("CANARY") && !printed.contains("sig="), "{printed}");
    let connection = stand_in.connection_string();
    let options = ServiceBusOptions::from_connection_string(&connection, "missing").unwrap();
    let error = options.open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("queue \"missing\" does not exist"), "{error}");
}

#[tokio::test]
async fn nothing_is_said_to_a_peer_without_tls() {
    let (stand_in, _) = timer(QueueOptions::default()).await;
    let connection = stand_in.connection_string().replace(";UseDevelopmentEmulator=true", "");
    let options = ServiceBusOptions::from_connection_string(&connection, QUEUE).unwrap();
    let tokens = stand_in.stats().unwrap().tokens;
    let error = options.timeout(SLACK).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(stand_in.stats().unwrap().tokens, tokens, "a token was sent in the clear");
}
