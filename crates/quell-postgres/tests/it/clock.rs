//! The store's time is the server's, never goes back, and costs no write of its own (R38).

use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::rig::plain;
use quell_core::{Batch, Now, QueueSettings, Rate, Receipt, Store, Timestamp};
use quell_postgres::PostgresStore;
use tokio::task::JoinSet;

use crate::scene::Scene;

/// How long a test waits for the server's clock.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time of a trigger, on the store's clock or asked for.
async fn time_of_a_trigger(store: &PostgresStore, now: Now) -> Timestamp {
    let receipts = store.enqueue(now, vec![Batch::one(plain("1"))]).await.unwrap().remove(0);
    match receipts.unwrap().remove(0) {
        Receipt::Accepted { due, .. } => due,
        other => panic!("a plain trigger was answered by {other:?}"),
    }
}

/// The server's clock.
fn host(scene: &Scene) -> Timestamp {
    let micros = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
    Timestamp::from_micros(scene.sql(micros).parse().unwrap())
}

/// Makes the store one that has promised time up to so far from now, as where the server's clock went
/// back since.
fn promise(scene: &Scene, ahead: &str) -> Timestamp {
    let set = "select setval('quell.promised', (extract(epoch from clock_timestamp() + interval '";
    Timestamp::from_micros(
        scene.sql(&format!("{set}{ahead}') * 1000000)::bigint)")).parse().unwrap(),
    )
}

/// The stores' time stays at `upto` until the server's clock reaches it, then follows that clock.
async fn holds_until_the_clock_is_there(scene: &Scene, stores: &[&PostgresStore], upto: Timestamp) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let store = stores[fastrand::usize(..stores.len())];
        let now = time_of_a_trigger(store, None).await;
        let after = host(scene);
        assert!(now >= upto, "{now} went back behind {upto}");
        assert!(now == upto || now <= after, "{now} runs ahead of {after}");
        if now > upto {
            return;
        }
        assert!(Instant::now() < deadline, "the clock stays at {now}");
    }
}

/// The blocks that a call of the clock touches in a session that has planned it.
fn blocks(scene: &Scene, function: &str) -> u64 {
    let call =
        format!("explain (analyze, buffers, costs off) select quell.{function}(null, null);");
    let read = |text: &str| -> Option<u64> {
        let line = text.lines().rfind(|line| line.contains("Buffers: shared hit="))?;
        let (_, rest) = line.split_once("hit=")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    // One in a second promises more time.
    let texts = (0..5).map(|_| scene.sql(&call.repeat(3)));
    texts.filter_map(|text| read(&text)).min().expect("the plan shows buffers")
}

#[tokio::test]
async fn r38_writes_under_a_held_snapshot_leave_the_clock_as_it_was() {
    let scene = Scene::new();
    let store = scene.store().await;
    let mut report = scene.connect().await;
    let snapshot = "begin isolation level repeatable read; select 1";
    sqlx::raw_sql(snapshot).execute(&mut report).await.unwrap();
    let mut touched = Vec::new();
    for writes in [20, 600] {
        for _ in 0..writes {
            time_of_a_trigger(&store, None).await;
        }
        let sizes = scene.sql(
            "select pg_relation_size('quell.clock') / 8192, pg_relation_size('quell.promised') / 8192",
        );
        assert_eq!(sizes, "1|1", "after {writes} writes");
        touched.push((blocks(&scene, "tick"), blocks(&scene, "peek")));
    }
    assert_eq!(touched[0], touched[1], "blocks of a tick and a peek, after 20 writes and 620");
    let updated = scene.sql("select max(ctid) from quell.clock");
    assert_eq!(updated, "(0,1)", "a write changed the row of the clock");
}

#[tokio::test]
async fn r38_time_is_promised_for_a_second_and_never_given_out_beyond() {
    let scene = Scene::new();
    let store = scene.store().await;
    let promised = || {
        let micros = scene.sql("select last_value from quell.promised").parse().unwrap();
        Timestamp::from_micros(micros)
    };
    let ends = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < ends {
        let before = host(&scene);
        let now = time_of_a_trigger(&store, None).await;
        let after = host(&scene);
        assert!(before <= now && now <= after, "{before} {now} {after}");
        assert!(now <= promised(), "{now} was given out, {} promised", promised());
        assert!(promised() <= after + Duration::from_secs(1), "{} at {after}", promised());
    }
}

#[tokio::test]
async fn r38_where_the_servers_clock_went_back_time_holds_and_then_goes_on() {
    let scene = Scene::new();
    let (one, other) = (scene.store().await, scene.store().await);
    time_of_a_trigger(&one, None).await;
    let upto = promise(&scene, "3 seconds");
    for store in [&one, &other, &scene.store().await] {
        let now = time_of_a_trigger(store, None).await;
        assert!(now == upto || host(&scene) > upto, "{now}, though {upto} was promised");
    }
    holds_until_the_clock_is_there(&scene, &[&one, &other], upto).await;
}

/// A step that is shorter than what is promised ahead.
#[tokio::test]
async fn r38_a_process_that_saw_a_later_time_holds_it_for_all() {
    let scene = Scene::new();
    let (one, other) = (scene.store().await, scene.store().await);
    let later = host(&scene) + Duration::from_millis(900);
    assert_eq!(time_of_a_trigger(&one, Some(later)).await, later);
    assert!(time_of_a_trigger(&one, None).await >= later);
    for store in [&other, &scene.store().await] {
        let now = time_of_a_trigger(store, None).await;
        assert!(now >= later, "{now} is before {later}");
    }
    holds_until_the_clock_is_there(&scene, &[&one], later).await;
}

/// What two processes promise at once never lowers what was promised.
#[tokio::test]
async fn r38_promises_only_grow() {
    let scene = Scene::new();
    drop(scene.store().await);
    let lowered = "do $$ begin
             perform quell.promise(2000); perform quell.promise(1000);
         end $$;
         select last_value from quell.promised";
    assert!(scene.sql(lowered).ends_with("2000"));
    assert_eq!(
        scene.sql(
            "select count(*) from pg_locks where locktype = 'advisory'
                           and pid = pg_backend_pid()"
        ),
        "0"
    );
}

/// Others promise more all the time, between any two steps of a call.
#[tokio::test]
async fn r38_calls_beside_promises_never_run_ahead_of_the_clock() {
    let scene = Scene::new();
    drop(scene.store().await);
    let schema = scene.schema();
    let host = "(extract(epoch from clock_timestamp()) * 1000000)::bigint";
    let promises = format!(
        "do $$ begin for n in 1..60000 loop
             perform {schema}.promise({host} + 1000000);
         end loop; end $$"
    );
    let mut promising = scene.connect().await;
    let mut others = JoinSet::new();
    others.spawn(async move {
        sqlx::raw_sql(sqlx::AssertSqlSafe(promises)).execute(&mut promising).await.unwrap();
    });
    let ticks = format!(
        "select count(*) from (
             select {schema}.tick(null, null) as now, n, {host} as after
               from generate_series(1, 5000) n offset 0) t where now > after"
    );
    let mut db = scene.connect().await;
    let mut rounds = 0;
    while others.try_join_next().transpose().unwrap().is_none() {
        let query = sqlx::query_scalar(sqlx::AssertSqlSafe(ticks.as_str()));
        let ahead: i64 = query.fetch_one(&mut db).await.unwrap();
        assert_eq!(ahead, 0, "times that had not come yet, of 5,000 in round {rounds}");
        rounds += 1;
    }
    assert!(rounds > 0);
}

/// A claim of several statements goes on at its own time, not at what was promised: by then fewer
/// starts would count.
#[tokio::test]
async fn r31_r38_a_rate_counts_by_the_time_of_the_claim() {
    const LIMIT: usize = 3;
    let period = Duration::from_secs(1);
    let scene = Scene::new();
    let store = scene.store().await;
    let rate = Some(Rate { limit: 3, period });
    let settings = QueueSettings { rate, ..QueueSettings::default() };
    store.set_queue(Some(Rig::START), &Rig::claim_of(1).queue, &settings).await.unwrap();
    let jobs = 3 * LIMIT;
    store.enqueue(None, (0..jobs).map(|_| Batch::one(plain("1"))).collect()).await.unwrap();
    let mut starts: Vec<Timestamp> = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while starts.len() < jobs {
        assert!(Instant::now() < deadline, "{starts:?}");
        promise(&scene, "1 second");
        // The first ones a third of the period apart, then as many as there may be.
        let (limit, apart) = if starts.len() < LIMIT { (1, period / 3) } else { (9, period / 50) };
        let claimed = store.claim(None, &Rig::claim_of(limit)).await.unwrap();
        starts.extend(claimed.jobs.iter().map(|_| claimed.now));
        tokio::time::sleep(apart).await;
    }
    for four in starts.windows(LIMIT + 1) {
        let took = four[LIMIT].since(four[0]);
        assert!(took >= period, "four starts within {took:?}: {starts:?}");
    }
}
