//! How a schema's health is read, and how its clock is set back (R38).

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quell_conformance::Rig;
use quell_conformance::rig::{key, keyed, lease, plain, until};
use quell_core::checkup::Measure;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::{Batch, ErrorKind, JobId, NewTrigger, Now, Store, Timestamp, When};
use quell_postgres::{PostgresOptions, PostgresStore, trigger_in};

use crate::scene::Scene;

const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn accept(store: &PostgresStore, now: Now, new: NewTrigger) -> JobId {
    let mut answers = store.enqueue(now, vec![Batch::one(new)]).await.unwrap();
    answers.remove(0).unwrap().remove(0).job().unwrap()
}

async fn due(store: &PostgresStore, job: JobId) -> Timestamp {
    store.job(job).await.unwrap().unwrap().window.due_at
}

#[tokio::test]
async fn r38_a_checkup_shows_the_store_and_its_clock() {
    let scene = Scene::new();
    let store = scene.store().await;
    accept(&store, None, plain("1")).await;
    let checkup = store.checkup().await.unwrap();
    assert_eq!(checkup.id.as_ref(), store.location().map(|place| &place.id));
    assert_eq!(checkup.problems().collect::<Vec<_>>(), Vec::<String>::new());
    scene.sql("insert into quell.inbox (triggers, refused) values ('[]', 'why')");
    let checkup = store.checkup().await.unwrap();
    assert_eq!(checkup.problems().count(), 1, "{checkup}");
}

#[tokio::test]
async fn r38_a_checkup_has_numbers_to_watch() {
    let server = quell_services::Postgres::start(&["fsync=off", "max_prepared_transactions=1"]);
    let server = server.unwrap();
    let _standby = server.standby().unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let store = scene.store().await;
    let number = async |metric: &str| {
        let checkup = store.checkup().await.unwrap();
        let gauge = checkup.gauges().find(|gauge| gauge.metric == metric);
        gauge.map(|gauge| match gauge.measure {
            Measure::Count(count) => count as f64,
            Measure::Time(time) => time.as_secs_f64(),
        })
    };
    assert!(number("quell_store_clock_ahead_seconds").await.unwrap() < 60.0);
    assert_eq!(number("quell_store_connections_max").await, Some(100.0));
    let before = number("quell_store_connections").await.unwrap();
    let mut db = scene.connect().await;
    assert!(number("quell_store_connections").await.unwrap() > before);
    assert_eq!(number("quell_store_inbox_waiting").await, Some(0.0));
    trigger_in(&mut db, store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap();
    assert_eq!(number("quell_store_inbox_waiting").await, Some(1.0));
    assert_eq!(number("quell_store_names_left").await, Some(f64::from(i32::MAX) - 1.0));
    let customer = NewTrigger { partition: Some(key("customer")), ..plain("1") };
    for partition in ["a", "b", "c"] {
        let partition = Some(key(partition));
        accept(&store, None, NewTrigger { partition, ..customer.clone() }).await;
    }
    assert_eq!(number("quell_store_names_left").await, Some(f64::from(i32::MAX) - 3.0));
    assert_eq!(number("quell_store_dead_rows").await, Some(0.0));
    while !store.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.is_empty() {}
    until("dead rows are counted", async || number("quell_store_dead_rows").await > Some(0.0))
        .await;
    // The oldest of all snapshots counts, no matter which session holds it.
    let begin = "begin isolation level repeatable read; select 1";
    sqlx::raw_sql(begin).execute(&mut db).await.unwrap();
    let open_for = async || number("quell_store_oldest_snapshot_seconds").await.unwrap();
    until("the snapshot gets old", async || open_for().await > 1.0).await;
    sqlx::raw_sql("commit").execute(&mut db).await.unwrap();
    until("it is over", async || open_for().await < 1.0).await;
    sqlx::raw_sql("begin; create table t (); prepare transaction 'p'")
        .execute(&mut db)
        .await
        .unwrap();
    until("it is old, too", async || open_for().await > 1.0).await;
    // The standby reports how far behind it is while there is something to replay.
    until("the replica's lag is known", async || {
        accept(&store, None, plain("2")).await;
        number("quell_store_replica_lag_seconds").await.is_some()
    })
    .await;
}

#[tokio::test]
async fn r38_a_clock_that_ran_ahead_is_set_back_with_the_times_that_it_made() {
    let scene = Scene::new();
    let store = scene.store().await;
    let later = NewTrigger { when: When::After(secs(7_200)), ..plain("1") };
    let stays = accept(&store, None, later).await;
    let stays_due = due(&store, stays).await;

    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = Some(Timestamp::from_micros(0) + wall + YEAR);
    let window = accept(&store, ahead, keyed("k")).await;
    let dedup = Some(Dedup { key: key("d"), until: HoldUntil::Done });
    accept(&store, ahead, NewTrigger { dedup, ..plain("2") }).await;
    let run = store.claim(ahead, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);

    let checkup = store.checkup().await.unwrap();
    assert!(checkup.clock.ahead() > YEAR - DAY, "{checkup}");
    assert!(checkup.problems().any(|problem| problem.contains("--reset-clock")), "{checkup}");
    let options = || PostgresOptions::from_url(&scene.url).unwrap();
    let refused = options().reset_clock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Contention, "{refused}");
    drop(Arc::into_inner(store).expect("the only one"));

    // Once the server has seen that the store's connections are gone.
    let deadline = Instant::now() + secs(30);
    let done = loop {
        match options().reset_clock().await {
            Err(error) if error.kind() == ErrorKind::Contention && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => break done.unwrap(),
        }
    };
    assert!(done.by > YEAR - DAY, "{done:?}");
    let again = options().reset_clock().await.unwrap_err();
    assert_eq!(again.field(), Some("reset_clock"), "{again}");

    let never = "select count(*) from quell.hold where expires_at = 9223372036854775807";
    assert_eq!(scene.sql(never), "1", "a key that is taken until its job ends stays so");
    let store = scene.store().await;
    assert_eq!(store.checkup().await.unwrap().problems().count(), 0);
    assert_eq!(due(&store, stays).await, stays_due, "made before the clock ran ahead");
    assert_eq!(due(&store, window).await, done.to + secs(10), "as far away as before");
    let expired = store.reap(Some(done.to + secs(31)), 9).await.unwrap();
    assert_eq!(expired.iter().map(|expired| expired.lease).collect::<Vec<_>>(), [lease(&run)]);
}
