//! Answers that are lost, services that are busy, and peers that say nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quell_azure::TableStorage;
use quell_core::ErrorKind;
use quell_portable::{Change, Committed, Condition, Range, Row, Table};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::proxy::{Act, Proxy, failure, is_write};
use crate::server::{P, Place, at, done, put, remove, text, until, wrote};

/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_secs(2);

/// A proxy that does these to the first writes, and forwards the rest.
async fn proxy(place: &Place, acts: impl Into<Vec<Act>>) -> Proxy {
    let mut acts = acts.into().into_iter();
    Proxy::start(place.port(), move |request| match is_write(request) {
        true => acts.next().unwrap_or(Act::Forward),
        false => Act::Forward,
    })
    .await
}

/// A table, and the same one behind a proxy.
async fn tables(acts: impl Into<Vec<Act>>) -> (TableStorage, TableStorage, Proxy) {
    let place = Place::new();
    let direct = place.open_table().await;
    let proxy = proxy(&place, acts).await;
    let through = place.through(proxy.port, Duration::from_secs(10)).open_table().await.unwrap();
    (direct, through, proxy)
}

fn timed_out() -> String {
    failure("500 Internal Server Error", "OperationTimedOut", "")
}

fn busy(retry_after: &str) -> String {
    failure("503 Service Unavailable", "ServerBusy", retry_after)
}

/// One change, and several: they take different ways.
fn batches() -> [Vec<Change>; 2] {
    let one = vec![put("one", Condition::Absent, "1")];
    let more = vec![
        put("a", Condition::Absent, "1"),
        remove("old", Condition::Present),
        put("b", Condition::Any, "1"),
    ];
    [one, more]
}

#[tokio::test]
async fn a_batch_whose_answer_is_lost_is_found_in_its_rows() {
    let answer = |text: &str| Act::ForwardAndAnswer(format!("HTTP/1.1 {text}\r\n\r\n"));
    for loss in [
        Act::LoseAnswer,
        Act::ForwardAndAnswer(timed_out()),
        // One that is cut off, one without the parts of a batch, and one without a version.
        answer("202 Accepted\r\ncontent-length: 500"),
        answer("202 Accepted\r\ncontent-length: 0\r\nconnection: close"),
        answer("204 No Content\r\nconnection: close"),
    ] {
        for batch in batches() {
            let (direct, through, proxy) = tables([loss.clone()]).await;
            wrote(&direct, put("old", Condition::Absent, "0")).await;
            let versions = done(&through, batch.clone()).await;
            assert_eq!(proxy.writes(), 1, "{loss:?}: it was sent again");
            let found = |change: &Change| change.row.clone();
            let names: Vec<String> = batch.iter().map(found).collect();
            let rows = direct.get(P, &names).await.unwrap();
            let rows: Vec<_> = rows.into_iter().map(|row| row.map(|row| row.version)).collect();
            assert_eq!(versions, rows, "{loss:?}");
        }
    }
}

#[tokio::test]
async fn a_row_that_was_replaced_before_it_is_looked_for_has_a_version_that_never_holds() {
    let place = Place::new();
    let direct = place.open_table().await;
    let gate = Arc::new(Semaphore::new(0));
    let (writes, held) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&gate));
    let count = Arc::clone(&writes);
    let proxy = Proxy::start(place.port(), move |request| match is_write(request) {
        true if count.fetch_add(1, Ordering::Relaxed) == 0 => Act::LoseAnswer,
        false if count.load(Ordering::Relaxed) > 0 => Act::ForwardAfter(Arc::clone(&held)),
        _ => Act::Forward,
    })
    .await;
    let through = place.through(proxy.port, Duration::from_secs(20)).open_table().await.unwrap();
    let batch = vec![put("a", Condition::Absent, "1"), put("b", Condition::Absent, "1")];
    let commits = through.commit(P, batch);
    let replaces = async {
        until(|| async { text(&direct, "a").await.is_some() }).await;
        wrote(&direct, put("a", Condition::Present, "2")).await;
        gate.add_permits(100);
    };
    let (committed, ()) = tokio::join!(commits, replaces);
    let Committed::Done(versions) = committed.unwrap() else { panic!("a conflict") };
    let stale = versions[0].clone().unwrap();
    let refused = through.commit(P, vec![put("a", at(&stale), "3")]).await.unwrap();
    assert_eq!(refused, Committed::Conflict);
    wrote(&through, put("b", at(versions[1].as_ref().unwrap()), "3")).await;
    assert_eq!(text(&direct, "a").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_batch_that_was_certainly_not_made_is_sent_again() {
    for loss in [Act::LoseRequest, Act::Answer(timed_out())] {
        let (direct, through, proxy) = tables(vec![loss; 2]).await;
        let old = wrote(&direct, put("a", Condition::Absent, "1")).await;
        let batch = vec![put("a", at(&old), "2"), put("b", Condition::Absent, "2")];
        let versions = done(&through, batch).await;
        assert_eq!(proxy.writes(), 3);
        let deletes = vec![remove("a", at(versions[0].as_ref().unwrap()))];
        assert_eq!(done(&through, deletes).await, [None]);
    }
}

#[tokio::test]
async fn what_the_rows_do_not_tell_is_an_unknown_outcome() {
    // An insert whose row is absent, and deletes whose rows are gone.
    let (direct, through, proxy) = tables([Act::LoseRequest, Act::LoseAnswer]).await;
    let insert = vec![put("new", Condition::Absent, "1")];
    let error = through.commit(P, insert).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
    let old = wrote(&direct, put("old", Condition::Absent, "1")).await;
    let error = through.commit(P, vec![remove("old", at(&old))]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownOutcome);
    assert_eq!(proxy.writes(), 2, "neither may be sent again");
    assert_eq!((text(&direct, "new").await, text(&direct, "old").await), (None, None));
}

#[tokio::test]
async fn a_conflict_after_a_lost_request_may_be_with_the_same_batch() {
    // As where the first one arrives after its rows were read, before the second one: that conflicts.
    let late = Act::ForwardAndAnswer(failure("412 Precondition Failed", "ConditionNotMet", ""));
    let (direct, through, proxy) = tables([Act::LoseRequest, late.clone()]).await;
    let old = wrote(&direct, put("a", Condition::Absent, "1")).await;
    let version = wrote(&through, put("a", at(&old), "2")).await;
    assert_eq!(proxy.writes(), 2);
    wrote(&direct, put("a", at(&version), "3")).await;

    // A row that is as before proves that neither was made.
    let (direct, through, _proxy) = tables([Act::LoseRequest]).await;
    let old = wrote(&direct, put("a", Condition::Absent, "1")).await;
    wrote(&direct, put("b", Condition::Absent, "1")).await;
    let batch = vec![put("a", at(&old), "2"), put("b", Condition::Absent, "2")];
    assert_eq!(through.commit(P, batch).await.unwrap(), Committed::Conflict);
}

#[tokio::test]
async fn r39_a_busy_service_is_asked_again_when_it_says() {
    // Its own date and the one at which it may be asked again: the clock here is years ahead of both.
    let until =
        "date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:49:38 GMT\r\n";
    for (first, status) in [("retry-after: 1\r\n", 503), ("retry-after: 1\r\n", 429), (until, 429)]
    {
        let answer = |headers| match status {
            503 => busy(headers),
            _ => failure("429 Too Many Requests", "TooManyRequests", headers),
        };
        let acts = [Act::Answer(answer(first)), Act::Answer(answer(""))];
        let (_, through, proxy) = tables(acts).await;
        wrote(&through, put("a", Condition::Absent, "1")).await;
        let seen = proxy.seen();
        let writes: Vec<Instant> =
            seen.iter().filter(|(_, request)| is_write(request)).map(|(time, _)| *time).collect();
        assert_eq!(writes.len(), 3, "{status} {first}");
        let [pause, next] = [writes[1] - writes[0], writes[2] - writes[1]];
        assert!(pause >= Duration::from_secs(1), "{status} {first}: {pause:?}");
        assert!(next < Duration::from_secs(1), "{status} {first}: {next:?}");
    }
}

#[tokio::test]
async fn a_service_that_stays_busy_is_unavailable_within_the_deadline() {
    let place = Place::new();
    let direct = place.open_table().await;
    let limit = Duration::from_secs(3);
    let throttled = failure("429 Too Many Requests", "TooManyRequests", "");
    for (answer, least) in [(busy(""), 3), (throttled, 3), (busy("retry-after: 60\r\n"), 1)] {
        let proxy = proxy(&place, vec![Act::Answer(answer); 1_000]).await;
        let through = place.through(proxy.port, limit).open_table().await.unwrap();
        let began = Instant::now();
        let batch = vec![put("a", Condition::Absent, "1"), put("b", Condition::Any, "1")];
        let error = through.commit(P, batch).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(began.elapsed() < limit + SLACK, "{:?}", began.elapsed());
        let writes = proxy.writes();
        assert!((least..100).contains(&writes), "{writes} attempts");
    }
    assert_eq!(text(&direct, "a").await, None);
}

#[tokio::test]
async fn a_peer_that_falls_silent_does_not_hold_calls_up() {
    let place = Place::new();
    let direct = place.open_table().await;
    let old = wrote(&direct, put("a", Condition::Absent, "1")).await;
    let is_silent = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&is_silent);
    let proxy = Proxy::start(place.port(), move |_| match shared.load(Ordering::Relaxed) {
        0 => Act::Forward,
        _ => Act::Silence,
    })
    .await;
    let limit = Duration::from_secs(3);
    let through = place.through(proxy.port, limit).open_table().await.unwrap();
    is_silent.store(1, Ordering::Relaxed);
    let names = ["a".to_owned(), "b".to_owned()];
    let all = Range::of("");
    let batch = || vec![put("a", at(&old), "2"), put("b", Condition::Any, "2")];
    let calls = async {
        let began = Instant::now();
        let kinds = tokio::join!(
            async { through.get(P, &names).await.unwrap_err().kind() },
            async { through.range(P, &all, 10).await.unwrap_err().kind() },
            async { through.now().await.unwrap_err().kind() },
            async { through.commit(P, batch()).await.unwrap_err().kind() },
        );
        (kinds, began.elapsed())
    };
    let (kinds, took) = tokio::time::timeout(Duration::from_secs(20), calls).await.unwrap();
    let away = ErrorKind::Unavailable;
    assert_eq!(kinds, (away, away, away, ErrorKind::UnknownOutcome));
    assert!(took < limit + SLACK, "{took:?}");
    assert_eq!(text(&direct, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn nothing_that_listens_means_that_nothing_was_done() {
    let place = Place::new();
    place.open_table().await;
    let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
    let through = place.through(proxy.port, Duration::from_secs(3)).open_table().await.unwrap();
    drop(proxy);
    let change = put("a", Condition::Absent, "1");
    // The first call may find a connection that was open.
    let _first = through.commit(P, vec![change.clone()]).await;
    let error = through.commit(P, vec![change]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_increment_counts_twice_or_gets_lost_where_answers_do() {
    let place = Place::new();
    let direct = place.open_table().await;
    done(&direct, vec![put("n", Condition::Absent, "0"), put("m", Condition::Absent, "0")]).await;
    let mut random = fastrand::Rng::with_seed(7);
    let proxy = Proxy::start(place.port(), move |request| match random.u8(..10) {
        0 if is_write(request) => Act::LoseAnswer,
        1 if is_write(request) => Act::ForwardAndAnswer(timed_out()),
        2 if is_write(request) => Act::Answer(timed_out()),
        3 => Act::Answer(busy("")),
        4 => Act::LoseRequest,
        _ => Act::Forward,
    })
    .await;
    let through = place.through(proxy.port, Duration::from_secs(20)).open_table().await.unwrap();
    let through = Arc::new(through);
    let mut writers = JoinSet::new();
    for _ in 0..8 {
        let through = Arc::clone(&through);
        writers.spawn(async move {
            let (mut made, mut unknown) = (0_u32, 0_u32);
            while made + unknown < 20 {
                let names = ["n".to_owned(), "m".to_owned()];
                let rows = through.get(P, &names).await.unwrap();
                let [n, m] = <[_; 2]>::try_from(rows).unwrap().map(Option::unwrap);
                let next = |row: &Row| {
                    let number: u32 = std::str::from_utf8(&row.value).unwrap().parse().unwrap();
                    put(&row.name, at(&row.version), (number + 1).to_string())
                };
                let batch = vec![next(&n), next(&m)];
                match through.commit(P, batch).await {
                    Ok(Committed::Done(_)) => made += 1,
                    Ok(Committed::Conflict) => {}
                    Err(error) if error.is_unknown_outcome() => unknown += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            (made, unknown)
        });
    }
    let all = writers.join_all().await;
    let made: u32 = all.iter().map(|(made, _)| made).sum();
    let unknown: u32 = all.iter().map(|(_, unknown)| unknown).sum();
    let found: u32 = text(&direct, "n").await.unwrap().parse().unwrap();
    assert!((made..=made + unknown).contains(&found), "{found} of {made} and {unknown} unknown");
    assert_eq!(text(&direct, "m").await, Some(found.to_string()), "a batch was made in part");
}
