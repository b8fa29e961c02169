//! How a file's health is read, and how its clock is set back (R38).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_conformance::Rig;
use quell_conformance::rig::{key, keyed, lease, plain};
use quell_core::checkup::{ClockReset, Measure};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::schedule::{CatchUp, Every, Schedule, Spec};
use quell_core::{Batch, ErrorKind, JobId, NewTrigger, ScheduleName, Store, Timestamp, When};
use quell_sqlite::SqliteStore;

use crate::scene::{Scene, trigger};

const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn wall() -> Timestamp {
    Timestamp::from_micros(0) + SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Once the connections of a closed store are gone.
async fn reset(scene: &Scene) -> ClockReset {
    let deadline = std::time::Instant::now() + secs(30);
    loop {
        match scene.options().busy_timeout(Duration::from_millis(50)).reset_clock().await {
            Err(error)
                if error.kind() == ErrorKind::Contention
                    && std::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            done => return done.unwrap(),
        }
    }
}

async fn due(store: &SqliteStore, job: JobId) -> Timestamp {
    store.job(job).await.unwrap().unwrap().window.due_at
}

#[tokio::test]
async fn r38_a_checkup_shows_the_store_and_its_clock() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let checkup = store.checkup().await.unwrap();
    assert_eq!(checkup.id.as_ref(), store.location().map(|place| &place.id));
    assert_eq!(checkup.problems().collect::<Vec<_>>(), Vec::<String>::new());
    let fact = |name: &str| {
        let fact = checkup.facts.iter().find(|fact| fact.name == name).unwrap();
        fact.value.clone()
    };
    assert_eq!((fact("journal").as_str(), fact("inbox").as_str()), ("wal", "0 set aside"));
    assert!(fact("wal bytes").parse::<u64>().unwrap() > 0);
    scene.execute("insert into quell_inbox (triggers, refused) values ('[]', 'why')").await;
    let checkup = store.checkup().await.unwrap();
    assert_eq!(checkup.problems().count(), 1, "{checkup}");
}

#[tokio::test]
async fn r38_a_checkup_has_numbers_to_watch() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    for sql in [
        "insert into quell_inbox (triggers, refused) values ('[]', 'why')",
        "insert into quell_inbox (triggers) values ('[]')",
    ] {
        scene.execute(sql).await;
    }
    let checkup = store.checkup().await.unwrap();
    let gauge = |metric: &str| {
        let gauge = checkup.gauges().find(|gauge| gauge.metric == metric);
        gauge.unwrap_or_else(|| panic!("{metric}: {checkup}")).measure
    };
    assert_eq!(gauge("quell_store_inbox_refused"), Measure::Count(1));
    assert_eq!(gauge("quell_store_inbox_waiting"), Measure::Count(1));
    for metric in ["quell_store_file_bytes", "quell_store_wal_bytes"] {
        let measure = gauge(metric);
        assert!(matches!(measure, Measure::Count(1..)), "{metric}: {measure:?}");
    }
}

/// The review's case: a time in a wrong unit moved the clock for good.
#[tokio::test]
async fn r38_a_clock_that_ran_ahead_is_set_back_with_the_times_that_it_made() {
    let scene = Scene::new();
    let store = scene.open().await;
    let later = NewTrigger { when: When::After(secs(7_200)), ..plain("1") };
    let stays = trigger(&store, later).await.job().unwrap();
    let stays_due = due(&store, stays).await;

    let ahead = wall() + YEAR;
    let accept = |new: NewTrigger| store.enqueue(Some(ahead), vec![Batch::one(new)]);
    let window = accept(keyed("k")).await.unwrap().remove(0).unwrap().remove(0).job().unwrap();
    let dedup = Some(Dedup { key: key("d"), until: HoldUntil::Done });
    accept(NewTrigger { dedup, ..plain("2") }).await.unwrap().remove(0).unwrap();
    let run = store.claim(Some(ahead), &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    let name = ScheduleName::new("s").unwrap();
    let every = Spec::Every(Every::new(secs(600), Timestamp::from_micros(0)).unwrap());
    let schedule = Schedule {
        name,
        spec: every,
        catch_up: CatchUp::default(),
        trigger: plain("3"),
        declared: None,
    };
    store.set_schedule(Some(ahead), &schedule).await.unwrap();

    let checkup = store.checkup().await.unwrap();
    assert!(checkup.clock.ahead() > YEAR - DAY, "{checkup}");
    assert!(checkup.problems().any(|problem| problem.contains("--reset-clock")), "{checkup}");
    let options = scene.options().busy_timeout(Duration::from_millis(50));
    let refused = options.reset_clock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Contention, "{refused}");
    drop(store);

    let done = reset(&scene).await;
    assert!(done.by > YEAR - DAY && done.to <= wall(), "{done:?}");
    let never = "select count(*) from quell_hold where expires_at = 9223372036854775807";
    let holds: sqlx::Result<i64> =
        sqlx::query_scalar(never).fetch_one(&mut scene.connect().await).await;
    assert_eq!(holds.unwrap(), 1, "a key that is taken until its job ends stays so");
    let store = scene.open().await;
    assert_eq!(store.checkup().await.unwrap().problems().count(), 0);
    assert_eq!(due(&store, stays).await, stays_due, "made before the clock ran ahead");
    assert_eq!(due(&store, window).await, done.to + secs(10), "as far away as before");
    let soon = Some(done.to + secs(29));
    assert!(store.reap(soon, 9).await.unwrap().is_empty(), "the lease has 30 s left");
    let expired = store.reap(Some(done.to + secs(31)), 9).await.unwrap();
    assert_eq!(expired.iter().map(|expired| expired.lease).collect::<Vec<_>>(), [lease(&run)]);
    let ticked = store.tick(Some(done.to + secs(601)), 9).await.unwrap();
    assert_eq!(ticked.fired.len(), 1, "the schedule goes on from now");
    drop(store);
    let again = loop {
        let options = scene.options().busy_timeout(Duration::from_millis(50));
        match options.reset_clock().await.unwrap_err() {
            error if error.kind() == ErrorKind::Contention => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            error => break error,
        }
    };
    assert_eq!(again.field(), Some("reset_clock"), "{again}");
}
