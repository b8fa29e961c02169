//! Callers' transactions with and without notifications: what a commit sends, and how workers find what
//! was triggered (R4, R22, R34).

use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::rig::{keyed, lease, plain, until};
use quell_core::{Batch, ErrorKind, Store, Wakeups};
use quell_postgres::{PostgresOptions, PostgresStore, settle_in, trigger_in, trigger_in_silently};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::scene::{Scene, jobs};

/// How long a wake-up may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Begins a notification that a caller's transaction sends.
const OF_CALLERS: &str = "0 ";

async fn run(db: &mut PgConnection, scene: &Scene, text: &str) {
    let text = text.replace("quell.", &format!("{}.", scene.schema()));
    sqlx::raw_sql(AssertSqlSafe(text)).execute(db).await.unwrap();
}

/// A listener like those of workers.
struct Ear {
    listener: PgListener,
    channel: String,
}

impl Ear {
    async fn new(scene: &Scene) -> Self {
        let channel = scene.sql(&format!(
            "select substring(prosrc from 'quell_[0-9a-f]{{16}}') from pg_proc
              where proname = 'hint' and pronamespace = '{}'::regnamespace",
            scene.schema()
        ));
        let mut listener = PgListener::connect(scene.plain_url()).await.unwrap();
        listener.listen(&channel).await.unwrap();
        Ear { listener, channel }
    }

    /// The notifications of callers' transactions that have committed by now. Notifications arrive in the
    /// order of the commits, so one more shows that there are no others.
    async fn of_callers(&mut self, db: &mut PgConnection) -> Vec<String> {
        let fence = format!("fence {}", fastrand::u64(..));
        let notify = sqlx::query("select pg_notify($1, $2)").bind(&self.channel).bind(&fence);
        notify.execute(db).await.unwrap();
        let mut received = Vec::new();
        loop {
            let next = tokio::time::timeout(PATIENCE, self.listener.recv()).await;
            let payload = next.expect("the fence arrives").unwrap().payload().to_owned();
            if payload == fence {
                return received;
            }
            received.extend(payload.starts_with(OF_CALLERS).then_some(payload));
        }
    }
}

impl Ear {
    /// Waits for a notification that ends like this.
    async fn expect(&mut self, end: &str) {
        let received = tokio::time::timeout(PATIENCE, async {
            while !self.listener.recv().await.unwrap().payload().ends_with(end) {}
        });
        assert!(received.await.is_ok(), "no notification ends with {end:?}");
    }
}

async fn expect_woken(wakeups: &mut Wakeups, why: &str) {
    let woken = tokio::time::timeout(PATIENCE, wakeups.next()).await;
    assert!(woken.unwrap_or_else(|_| panic!("no worker was woken: {why}")).is_some());
}

async fn payloads(store: &PostgresStore) -> Vec<String> {
    let claimed = store.claim(None, &quell_conformance::Rig::claim_of(9)).await.unwrap();
    claimed.jobs.iter().map(|job| job.payload.as_str().to_owned()).collect()
}

/// Each way to trigger or to settle, and the number of notifications that its commit sends.
#[tokio::test]
async fn r04_r22_r34_commits_notify_as_the_store_is_set() {
    for (enabled, notified) in [(true, 1), (false, 0)] {
        let scene = Scene::new();
        let mut rig = scene.rig().await;
        let mut db = scene.connect().await;
        let mut ear = Ear::new(&scene).await;
        rig.trigger(keyed("k")).await;
        let held = rig.at(10).claim_one().await;
        rig.trigger(keyed("k")).await;
        scene.sql(&format!("select quell.notify_in_transactions({enabled})"));
        for way in ["trigger_in", "trigger", "trigger_many", "settle_in"] {
            let mut tx = db.begin().await.unwrap();
            let store = rig.store.location().unwrap();
            match way {
                "trigger_in" => {
                    trigger_in(&mut tx, store, &Batch::one(plain("1"))).await.unwrap();
                }
                "trigger" => run(&mut tx, &scene, "select quell.trigger('t', '1')").await,
                "trigger_many" => {
                    let many = r#"select quell.trigger_many('[{"task": "t"}, {"task": "t"}]')"#;
                    run(&mut tx, &scene, many).await;
                }
                _ => settle_in(&mut tx, store, &lease(&held), Some(rig.now()), None).await.unwrap(),
            }
            tx.commit().await.unwrap();
            let received = ear.of_callers(&mut db).await;
            assert_eq!(received.len(), notified, "{way}, {enabled}: {received:?}");
        }
    }
}

#[tokio::test]
async fn r04_r34_without_notifications_another_process_finds_what_was_committed() {
    let scene = Scene::new();
    let (store, other) = (scene.store().await, scene.store().await);
    let mut wakeups = other.wakeups();
    store.notify_in_transactions(false).await.unwrap();
    let mut db = scene.connect().await;
    for round in 0..3 {
        let location = store.location().unwrap();
        let mut undone = db.begin().await.unwrap();
        trigger_in(&mut undone, location, &Batch::one(plain("0"))).await.unwrap();
        undone.rollback().await.unwrap();
        let mut tx = db.begin().await.unwrap();
        trigger_in(&mut tx, location, &Batch::one(plain("1"))).await.unwrap();
        tx.commit().await.unwrap();
        run(&mut db, &scene, "select quell.trigger('t', '2', queue => 'q')").await;
        expect_woken(&mut wakeups, "the inbox has rows").await;
        assert_eq!(payloads(&other).await, ["1", "2"], "round {round}");
    }
    assert_eq!(scene.sql("select count(*) from quell.inbox"), "0");
}

/// Another transaction took a later id, committed and was taken in before.
#[tokio::test]
async fn r04_r34_without_notifications_a_commit_that_comes_late_is_found() {
    let scene = Scene::new();
    let store = scene.store().await;
    store.notify_in_transactions(false).await.unwrap();
    let mut wakeups = store.wakeups();
    let (mut db, mut other) = (scene.connect().await, scene.connect().await);
    for between in [1, 3_000] {
        let mut late = db.begin().await.unwrap();
        let location = store.location().unwrap();
        trigger_in(&mut late, location, &Batch::one(plain("1"))).await.unwrap();
        let many = "select quell.put('[[],null]') from generate_series(1, COUNT)";
        run(&mut other, &scene, &many.replace("COUNT", &between.to_string())).await;
        let is_empty = "select count(*) from quell.inbox";
        until("the others are taken in", async || {
            payloads(&store).await;
            scene.sql(is_empty) == "0"
        })
        .await;
        late.commit().await.unwrap();
        // Earlier wake-ups may wait in the stream.
        let found = async {
            loop {
                wakeups.next().await.unwrap();
                if payloads(&store).await == ["1"] {
                    return;
                }
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        assert!(found.is_ok(), "after {between} others it is not found");
    }
}

#[tokio::test]
async fn r22_r34_without_notifications_a_settlement_wakes_who_waits_for_its_key() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    let other = scene.store().await;
    other.notify_in_transactions(false).await.unwrap();
    rig.trigger(keyed("k")).await;
    let first = rig.at(10).claim_one().await;
    rig.trigger(keyed("k")).await;
    rig.at(25).claim_none().await;
    let mut wakeups = other.wakeups();
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let store = rig.store.location().unwrap();
    settle_in(&mut tx, store, &lease(&first), Some(rig.now()), None).await.unwrap();
    assert_eq!(scene.sql("select count(*) from quell.inbox"), "0", "not before the commit");
    tx.commit().await.unwrap();
    expect_woken(&mut wakeups, "the key is free").await;
    let mut ear = Ear::new(&scene).await;
    rig.claim_one().await;
    // The process that takes it in notifies the others, which may have claimed past the window of the key.
    ear.expect(&format!("{} q", i64::MIN)).await;
    assert_eq!(scene.sql("select count(*) from quell.inbox"), "0");
    assert_eq!(scene.sql("select count(*) from quell.job"), "1");
}

#[tokio::test]
async fn r04_r34_a_silent_trigger_wakes_workers_when_its_caller_says_that_it_committed() {
    let scene = Scene::new();
    let (store, other) = (scene.store().await, scene.store().await);
    let (mut here, mut elsewhere) = (store.wakeups(), other.wakeups());
    let mut ear = Ear::new(&scene).await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let location = store.location().unwrap();
    trigger_in_silently(&mut tx, location, &Batch::one(plain("1"))).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ear.of_callers(&mut db).await, [""; 0]);
    store.transaction_committed();
    expect_woken(&mut here, "in this process").await;
    expect_woken(&mut elsewhere, "in another process").await;
    assert_eq!(payloads(&other).await, ["1"]);
}

#[tokio::test]
async fn r04_a_transaction_that_does_not_notify_can_be_prepared() {
    let server = quell_services::Postgres::start(&["fsync=off", "max_prepared_transactions=1"]);
    let server = server.unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let store = scene.store().await;
    store.notify_in_transactions(false).await.unwrap();
    let mut wakeups = store.wakeups();
    scene.sql("begin; select quell.trigger('t', '1', queue => 'q'); prepare transaction 'p'");
    assert_eq!(payloads(&store).await, [""; 0]);
    scene.sql("commit prepared 'p'");
    expect_woken(&mut wakeups, "it is committed").await;
    assert_eq!(payloads(&store).await, ["1"]);
}

#[tokio::test]
async fn r34_the_setting_is_the_stores_and_stays_until_it_is_set_again() {
    let scene = Scene::new();
    let is = || scene.sql("select notifies from quell.meta");
    drop(scene.store().await);
    assert_eq!(is(), "t");
    for (word, expected) in [("off", "f"), ("on", "t"), ("off", "f")] {
        let url = format!("{}&notify_in_transactions={word}", scene.url);
        drop(PostgresStore::open(&url).await.unwrap());
        assert_eq!(is(), expected, "{word}");
    }
    let store = scene.store().await;
    assert_eq!(is(), "f", "a process that says nothing leaves it");
    store.notify_in_transactions(true).await.unwrap();
    assert_eq!(is(), "t");
    let options = PostgresOptions::from_url(&scene.url).unwrap();
    drop(options.notify_in_transactions(false).open().await.unwrap());
    assert_eq!(is(), "f");
    let null = scene.psql("select quell.notify_in_transactions(null)");
    assert!(String::from_utf8_lossy(&null.stderr).contains("enabled is null"));
}

/// R34: a role that only reads may open the URL that others have, and sets nothing.
#[tokio::test]
async fn r34_a_reader_cannot_change_the_setting() {
    let scene = Scene::new();
    let name = format!("r_{}", fastrand::u64(..));
    drop(scene.store().await);
    scene.sql(&format!("create role {name} login; select quell.grant_part('reader', '{name}')"));
    let reader = scene.url.replace("quell@", &format!("{name}@"));
    PostgresStore::open(&format!("{reader}&notify_in_transactions=on")).await.unwrap();
    let refused = PostgresStore::open(&format!("{reader}&notify_in_transactions=off")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// What a caller's transaction pays: the functions that it runs, and the tables that it reads and writes.
#[tokio::test]
async fn r04_a_trigger_in_a_transaction_is_one_row_and_reads_nothing_that_grows() {
    let scene = Scene::new();
    let store = scene.store().await;
    for (enabled, functions) in [(true, "hint 1, put 1"), (false, "put 1")] {
        // Another session: the counts of one may go beyond its transaction.
        let mut db = scene.connect().await;
        run(&mut db, &scene, "set track_functions = 'pl'").await;
        store.notify_in_transactions(enabled).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        let location = store.location().unwrap();
        trigger_in(&mut tx, location, &Batch::one(plain("1"))).await.unwrap();
        let mut reported = async |what: &str| -> String {
            let text = what.replace("SCHEMA", scene.schema());
            sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(&mut *tx).await.unwrap()
        };
        let called = "select string_agg(funcname || ' ' || calls, ', ' order by funcname)
                        from pg_stat_xact_user_functions where schemaname = 'SCHEMA'";
        assert_eq!(reported(called).await, functions);
        let touched = "select string_agg(format('%s: %s rows written, %s scans', relname,
                              n_tup_ins + n_tup_upd + n_tup_del,
                              coalesce(seq_scan, 0) + coalesce(idx_scan, 0)),
                              '; ' order by relname)
                         from pg_stat_xact_user_tables
                        where schemaname = 'SCHEMA'
                          and n_tup_ins + n_tup_upd + n_tup_del + coalesce(seq_scan, 0)
                              + coalesce(idx_scan, 0) > 0";
        let expected = "inbox: 1 rows written, 0 scans; meta: 0 rows written, 2 scans";
        assert_eq!(reported(touched).await, expected, "notifies: {enabled}");
        tx.commit().await.unwrap();
    }
}

/// R40: what is too large for a fold is refused before it is written; what only the fold can judge is
/// set aside by it, with the reason.
#[tokio::test]
async fn r40_put_refuses_what_is_too_large_and_leaves_the_rest_to_the_fold() {
    let scene = Scene::new();
    let store = scene.store().await;
    let refused = scene.psql_verbose("select quell.put(repeat('x', 134217729))");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("22023") && error.contains("the limit is 134217728"), "{error}");
    let null = scene.psql("select quell.put(null)");
    assert!(!null.status.success());
    assert_eq!(scene.sql("select count(*) from quell.inbox"), "0");
    scene.sql("select quell.put('no triggers')");
    assert_eq!(jobs(&*store).await, 0);
    payloads(&store).await;
    let reason = scene.sql("select refused from quell.inbox");
    assert!(reason.contains("not Quell's writing"), "{reason}");
}

/// A number that the server counts for a table of the schema.
fn counted(scene: &Scene, view: &str, what: &str, table: &str) -> u64 {
    let sum = format!(
        "select coalesce(sum({what}), 0)::bigint from {view}
          where schemaname = '{}' and relname like '{table}'",
        scene.schema()
    );
    scene.sql(&sum).parse().unwrap()
}

/// The blocks of the inbox that a process touches in each look, while a snapshot keeps `dead` dead rows, and
/// those that one full look touches.
async fn blocks_of_a_look(dead: u64) -> (u64, u64) {
    const LOOKS: u64 = 60;
    const BLOCKS: &str = "heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read";
    const WRITES: &str = "n_tup_ins + n_tup_upd + n_tup_del";
    let scene = Scene::new();
    let store = scene.store().await;
    store.notify_in_transactions(false).await.unwrap();
    let mut report = scene.connect().await;
    run(&mut report, &scene, "begin isolation level repeatable read; select 1").await;
    scene.close(store).await;
    let rows = format!("select quell.put('[[],null]') from generate_series(1, {dead})");
    scene.sql(&format!("{rows}; delete from quell.inbox"));
    let tables = "pg_stat_all_tables";
    until("all is counted", async || counted(&scene, tables, WRITES, "inbox") >= 2 * dead).await;
    let explain = "set enable_seqscan = off; set enable_bitmapscan = off;
                   explain (analyze, buffers, costs off, timing off, summary off, format json)
                   select id from quell.inbox where refused is null and id > 0
                    order by id desc limit 1";
    let plan = scene.sql(explain);
    let number = |name: &str| -> u64 {
        let (_, rest) = plan.split_once(&format!("\"{name}\": ")).expect("a plan with buffers");
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    };
    let full = number("Shared Hit Blocks") + number("Shared Read Blocks");
    let scans = "coalesce(seq_scan, 0) + coalesce(idx_scan, 0)";
    let looked = || counted(&scene, tables, scans, "meta");
    let touched = || counted(&scene, "pg_statio_all_tables", BLOCKS, "inbox");
    let store = scene.store().await;
    until("its opening is counted", async || looked() > 0).await;
    let (looks, blocks, writes) = (looked(), touched(), counted(&scene, tables, WRITES, "%"));
    let wakeups = store.wakeups();
    until("it has looked often", async || looked() >= looks + LOOKS).await;
    scene.close((wakeups, store)).await;
    assert_eq!(counted(&scene, tables, WRITES, "%"), writes, "it writes nothing");
    ((touched() - blocks) / (looked() - looks), full)
}

#[tokio::test]
async fn r34_looks_at_the_inbox_do_not_walk_what_an_open_snapshot_keeps() {
    let (few, full_few) = blocks_of_a_look(1_000).await;
    let (many, full) = blocks_of_a_look(20_000).await;
    assert!(full > 10 * full_few, "{full_few} and {full} blocks: the rows are not dead");
    assert!(
        many < few + full / 4,
        "{few} blocks a look behind 1,000 dead rows, {many} behind 20,000; a full look has {full}"
    );
}
