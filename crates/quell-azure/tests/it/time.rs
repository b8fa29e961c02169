//! The table's time: that of the service, never ahead of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_azure::{Monotonic, TableStorage};
use quell_core::Timestamp;
use quell_portable::{Condition, Table, Version};

use crate::proxy::{Act, Proxy};
use crate::server::{Place, put, wrote};

/// The service's time in a version, with digits below a millisecond that are not of its clock.
fn stamp(version: &Version) -> Timestamp {
    let (_, time) = version.as_str().split_once('\'').unwrap();
    let time = time.trim_end_matches(['\'', '"']).replace("%3A", ":");
    Timestamp::from_micros(time.parse::<jiff::Timestamp>().unwrap().as_microsecond())
}

/// The service's time now, up to a millisecond later.
async fn service_time(table: &TableStorage) -> Timestamp {
    let stamp = stamp(&wrote(table, put("now", Condition::Any, "")).await).as_micros();
    Timestamp::from_micros(stamp - stamp % 1_000 + 1_000)
}

#[tokio::test]
async fn r38_the_time_never_exceeds_the_services() {
    let place = Place::new();
    let (table, other) = (place.open_table().await, place.open_table().await);
    for _ in 0..50 {
        let before = service_time(&other).await;
        let estimate = table.now().await.unwrap();
        let after = service_time(&other).await;
        assert!(estimate <= after, "{estimate:?} is after {after:?}");
        // The estimate advances without a write of this table's; it is late by a round trip, and by
        // a thousandth of the time since.
        assert!(before.since(estimate) < Duration::from_secs(1), "{estimate:?}, {before:?}");
    }
}

#[tokio::test]
async fn r38_a_local_clock_that_jumps_makes_the_service_be_asked() {
    let place = Place::new();
    place.open_table().await;
    let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
    let (jump, start) = (Arc::new(AtomicU64::new(1 << 40)), Instant::now());
    let shared = Arc::clone(&jump);
    let clock = Monotonic::new(move || {
        start.elapsed() + Duration::from_secs(shared.load(Ordering::Relaxed))
    });
    let options = place.through(proxy.port, Duration::from_secs(10)).monotonic(clock);
    let table = options.open_table().await.unwrap();
    let asked = || {
        let seen = proxy.seen();
        seen.iter().filter(|(_, request)| request.contains("RowKey='clock'")).count()
    };
    // Calls at one time ask once.
    let (first, second) = tokio::join!(table.now(), table.now());
    assert!(first.unwrap() <= second.unwrap());
    assert_eq!(asked(), 1);
    table.now().await.unwrap();
    assert_eq!(asked(), 1, "the estimate is good for a while");
    for jumps in 1..4 {
        jump.fetch_add(3_600, Ordering::Relaxed);
        let estimate = table.now().await.unwrap();
        assert_eq!(asked(), 1 + jumps);
        let after = service_time(&table).await;
        assert!(estimate <= after, "{estimate:?} is after {after:?}");
    }
    // The answer to a write has the time, too.
    jump.fetch_add(3_600, Ordering::Relaxed);
    service_time(&table).await;
    table.now().await.unwrap();
    assert_eq!(asked(), 4);
}
