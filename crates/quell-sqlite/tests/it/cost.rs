//! What calls cost: no write while nothing happens, and no statement that walks all jobs.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{debounce, fails, key, keyed, keyed_with, lease, plain, queue, task};
use quell_core::dedup::Dedup;
use quell_core::edge::Edge;
use quell_core::schedule::{CatchUp, Schedule, ScheduleState, Spec};
use quell_core::window::Debounce;
use quell_core::{
    AlertName, AlertState, BacklogOf, Batch, DeadFilter, DeadPlace, ExplainTarget, Fold,
    NewTrigger, Outcome, PartitionOrder, Payload, QueueSettings, Rate, Receipt, Redrive, Retention,
    ScheduleName, Store, TaskSettings,
};
use quell_sqlite::trigger_in;
use sqlx::{AssertSqlSafe, Row, SqliteConnection};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::scene::{Scene, trigger};

async fn version(db: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("pragma data_version").fetch_one(db).await.unwrap()
}

fn every(interval: Duration) -> Schedule {
    let name = ScheduleName::new("s").unwrap();
    let spec = Spec::every(interval, Rig::START).unwrap();
    Schedule { name, spec, catch_up: CatchUp::All, trigger: plain("1"), declared: None }
}

#[tokio::test]
async fn an_idle_worker_writes_nothing() {
    let scene = Scene::new();
    let store = scene.open().await;
    let _listening = store.wakeups();
    trigger(&store, keyed("k")).await;
    store.set_queue(Some(Rig::START), &queue(), &QueueSettings::default()).await.unwrap();
    let century = Duration::from_secs(100 * 366 * 86_400);
    store.set_schedule(None, &every(century)).await.unwrap();
    let mut db = scene.connect().await;
    let before = version(&mut db).await;
    for _ in 0..20 {
        assert!(store.tick(None, 9).await.unwrap().fired.is_empty());
        store.set_schedule(None, &every(century)).await.unwrap();
        assert!(store.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.is_empty());
        store.reap(None, 9).await.unwrap();
        store.next_due(None, &queue(), &[task("t")]).await.unwrap();
        store.prune(None, &Retention::default(), 9).await.unwrap();
        store.renew(None, &[], Duration::from_secs(9)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(version(&mut db).await, before);
}

#[tokio::test]
async fn r33_a_paused_queue_with_due_jobs_is_idle_too() {
    let scene = Scene::new();
    let store = scene.open().await;
    trigger(&store, plain("1")).await;
    let paused = QueueSettings { paused: true, ..QueueSettings::default() };
    store.set_queue(Some(Rig::START), &queue(), &paused).await.unwrap();
    // The news of the trigger itself may cost one vain claim.
    store.claim(None, &Rig::claim_of(9)).await.unwrap();
    let mut db = scene.connect().await;
    let before = version(&mut db).await;
    for _ in 0..5 {
        assert!(store.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.is_empty());
    }
    assert_eq!(version(&mut db).await, before);
}

#[tokio::test]
async fn r31_a_worker_that_limits_hold_back_writes_nothing() {
    let none = QueueSettings::default;
    let hourly = Some(Rate { limit: 1, period: Duration::from_secs(3_600) });
    for settings in [
        QueueSettings { concurrency: Some(1), ..none() },
        QueueSettings { worker_concurrency: Some(1), ..none() },
        QueueSettings { partition_concurrency: Some(1), ..none() },
        none().partition_order(PartitionOrder::Strict),
        QueueSettings { rate: hourly, ..none() },
        QueueSettings { partition_rate: hourly, ..none() },
    ] {
        let scene = Scene::new();
        let store = scene.open().await;
        store.set_queue(Some(Rig::START), &queue(), &settings).await.unwrap();
        for _ in 0..3 {
            let partition = Some(key("a"));
            trigger(&store, NewTrigger { partition, ..plain("1") }).await;
        }
        assert_eq!(
            store.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.len(),
            1,
            "{settings:?}"
        );
        let mut db = scene.connect().await;
        let before = version(&mut db).await;
        for _ in 0..5 {
            assert!(store.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.is_empty());
        }
        assert_eq!(version(&mut db).await, before, "{settings:?}");
    }
}

/// Gathers the text of every statement that the driver runs, and counts the trips to a connection:
/// several statements may share one.
#[derive(Clone, Default)]
struct Statements {
    texts: Arc<Mutex<BTreeSet<String>>>,
    trips: Arc<AtomicUsize>,
}

impl Visit for Statements {
    fn record_str(&mut self, field: &Field, value: &str) {
        if ["db.statement", "summary"].contains(&field.name()) && !value.ends_with('…') {
            self.texts.lock().unwrap().insert(value.trim().to_owned());
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

impl Subscriber for Statements {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.trips.fetch_add(1, Ordering::SeqCst);
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One of everything that workers and clients do.
async fn a_days_work(scene: &Scene) {
    let mut rig = scene.rig().await;
    let throttle = Debounce::throttle(Duration::from_secs(5)).unwrap();
    let leading = Debounce { edge: Edge::Leading, ..debounce() };
    let once = NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain("1") };
    let urgent = NewTrigger { priority: 5, task: task("u"), ..plain("1") };
    for second in [0, 1] {
        for name in ["a", "b"] {
            rig.at(second).trigger(keyed(name)).await;
        }
        rig.trigger(keyed_with("merged", debounce(), Fold::Merge, "{}")).await;
        rig.trigger(keyed_with("throttled", throttle, Fold::Last, "1")).await;
        rig.trigger(keyed_with("leading", leading, Fold::Last, "1")).await;
        rig.trigger(once.clone()).await;
        rig.trigger(urgent.clone()).await;
        rig.trigger_batch(Batch { triggers: vec![plain("1"); 300], dedup: None }).await;
    }
    trigger_in(&mut scene.connect().await, rig.store.location().unwrap(), &Batch::one(plain("1")))
        .await
        .unwrap();
    let asked =
        quell_core::Claim { tasks: ["t", "u"].map(task).to_vec().into(), ..Rig::claim_of(7) };
    rig.claim_with(&asked).await;
    let jobs = rig.at(60).claim_with(&Rig::claim_of(500)).await;
    for name in ["a", "b"] {
        rig.trigger(keyed(name)).await;
    }
    for (index, job) in jobs.iter().enumerate() {
        match index % 5 {
            0 => drop(rig.fail(job, Duration::from_secs(1)).await),
            1 => drop(rig.settle(lease(job), fails(Duration::from_secs(1), true)).await),
            2 => drop(rig.settle(lease(job), Outcome::Released).await),
            3 => drop(rig.renew(lease(job)).await),
            _ => rig.succeed(job).await,
        }
    }
    limited_work(&mut rig).await;
    rig.at(200).reap().await;
    rig.flush("a").await;
    let dead = jobs.get(1).unwrap().id;
    dead_work(&rig).await;
    rig.redrive(dead).await.unwrap();
    rig.cancel(dead).await.unwrap();
    rig.explain(&ExplainTarget::Job(dead)).await;
    rig.explain(&ExplainTarget::Key { task: None, key: key("a") }).await;
    rig.explain(&ExplainTarget::Key { task: Some(task("t")), key: key("a") }).await;
    for task in [None, Some(task("t"))] {
        let key = key("d");
        rig.explain(&ExplainTarget::DedupKey { task: task.clone(), key: key.clone() }).await;
        rig.explain(&ExplainTarget::IdempotencyKey { task, key }).await;
    }
    rig.next_due().await;
    rig.store.backlog(Some(rig.now()), &BacklogOf::new(queue())).await.unwrap();
    let schedule = every(Duration::from_secs(10));
    let (name, now) = (&schedule.name, rig.now());
    rig.store.set_schedule(Some(now), &schedule).await.unwrap();
    rig.store.set_schedule(Some(now), &every(Duration::from_secs(20))).await.unwrap();
    let now = rig.at(300).now();
    assert!(!rig.store.tick(Some(now), 99).await.unwrap().fired.is_empty());
    rig.store.run_schedule(Some(now), name).await.unwrap();
    rig.store.backfill(Some(now), name, Rig::START, now).await.unwrap();
    rig.store.set_schedule_state(Some(now), name, ScheduleState::Paused).await.unwrap();
    rig.store.schedules().await.unwrap();
    rig.prune(99_999, &Retention::default(), 9).await;
    alerting_work(&rig).await;
}

/// Looking for alerts, and what is kept of one.
async fn alerting_work(rig: &Rig) {
    rig.store.overview(Some(rig.now())).await.unwrap();
    let name = AlertName::new("a").unwrap();
    for version in [0, 1] {
        let state = AlertState::default();
        assert!(rig.store.set_alert(&name, version, Some(&state)).await.unwrap());
    }
    assert!(rig.store.set_alert(&name, 2, None).await.unwrap());
    // A failure that a job's record has no more room for.
    rig.store.set_queue(Some(rig.now()), &queue(), &QueueSettings::default()).await.unwrap();
    rig.trigger(plain("1")).await;
    let asked = Rig::claim_of(1);
    for second in 100_000..100_060 {
        let now = Some(Rig::START + Duration::from_secs(second));
        for job in rig.store.claim(now, &asked).await.unwrap().jobs {
            let outcome = fails(Duration::from_micros(1), false);
            let end = quell_core::Settlement { lease: lease(&job), outcome };
            rig.store.settle(now, vec![end]).await.unwrap();
        }
    }
}

/// What an operator asks about the dead, and does to them.
async fn dead_work(rig: &Rig) {
    let (store, now) = (&rig.store, Some(rig.now()));
    let none = DeadFilter::default;
    let first = store.dead(&none()).await.unwrap();
    let before = DeadPlace::of(first.last().unwrap());
    for filter in [
        DeadFilter { before, ..none() },
        DeadFilter { task: Some(task("t")), queue: Some(queue()), ..none() },
        DeadFilter { error: Some("boom".into()), died_after: now, ..none() },
        DeadFilter { died_before: now, ..none() },
    ] {
        store.dead(&filter).await.unwrap();
        store.count_dead(&filter).await.unwrap();
    }
    let last = first.last().unwrap().id;
    let exports = store.exports(&[last]).await.unwrap();
    let payload = Some(Payload::from_stored("2"));
    store.import_dead(now, &exports).await.unwrap();
    assert_eq!(store.discard(now, &[last], "no use").await.unwrap(), [last]);
    let id = store.import_dead(now, &exports).await.unwrap().remove(0).id;
    store.redrive(now, &Redrive { id, payload }).await.unwrap();
}

/// The same under every limit.
async fn limited_work(rig: &mut Rig) {
    let rate = Some(Rate { limit: 3, period: Duration::from_secs(5) });
    rig.set_queue(QueueSettings {
        concurrency: Some(900),
        worker_concurrency: Some(900),
        partition_concurrency: Some(2),
        rate: rate.map(|rate| Rate { limit: 9, ..rate }),
        partition_rate: rate,
        ..QueueSettings::default()
    })
    .await;
    for n in 0..9 {
        let partition = Some(key(["a", "b", "c"][n % 3]));
        rig.trigger(NewTrigger { partition: partition.clone(), ..plain("1") }).await;
        rig.trigger(NewTrigger { partition, ..keyed("p") }).await;
    }
    rig.at(70).claim().await;
    rig.next_due().await;
    // R41, with one job that waits for its retry.
    rig.set_queue(QueueSettings::default().partition_order(PartitionOrder::Strict)).await;
    for job in rig.at(110).reap().await.iter().take(1) {
        rig.cancel(job.lease.job).await.unwrap();
    }
    rig.claim().await;
    rig.next_due().await;
    let longer = rate.map(|rate| Rate { period: Duration::from_secs(9), ..rate });
    rig.set_queue(QueueSettings { rate: longer, ..QueueSettings::default() }).await;
    rig.store.tasks().await.unwrap();
    rig.store
        .set_task(Some(rig.now()), &task("u"), &TaskSettings::default().paused(true))
        .await
        .unwrap();
    rig.store.delete_queue(Some(rig.now()), &queue()).await.unwrap();
}

/// Whether a line of a query plan walks, or sorts, what grows with the backlog or the past.
fn walks(statement: &str, line: &str) -> bool {
    // A queue's lanes are few, and so are the jobs of one key.
    // Ends of one moment are sorted among themselves only.
    let sorts_ties = statement.contains("order by j.ended_at") && line.contains("FOR LAST TERM");
    let sorts = line.contains("TEMP B-TREE")
        && !sorts_ties
        && !statement.contains("order by l.priority")
        && !statement.contains("j.key = ?")
        // The newest of the dead jobs, no more than that.
        && !statement.contains("order by ended_at desc limit ?1")
        // A look at a backlog, no more entries than it may read.
        && !statement.contains("group by p.name")
        // Running attempts, by partition.
        && !statement.contains("j.state = 1 and q.name = ?1");
    let Some(rest) = line.strip_prefix("SCAN ") else { return sorts };
    let table = rest.split(' ').next().unwrap_or_default();
    let tables = [
        "quell_job",
        "j",
        "r",
        "quell_attempt",
        "quell_hold",
        "h",
        "quell_memory",
        "quell_start",
        "s",
        "quell_partition",
        "quell_past",
        "quell_tick",
    ];
    // Windows that wait for a running attempt are as few as running attempts, and what waits in the
    // inbox is to be taken anyway.
    let few = ["INDEX quell_job_waits", "INDEX quell_inbox_waiting", "INDEX quell_job_lease"];
    let is_few = || few.iter().any(|index| rest.ends_with(index));
    sorts || (tables.contains(&table) || table == "quell_inbox") && !is_few()
}

/// Runs the test again in a process of its own, where no other test's statements are seen.
fn alone(test: &str) {
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("QUELL_TEST_ALONE", "1")
        .output()
        .unwrap();
    let text = [again.stdout, again.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(again.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
async fn no_statement_of_a_days_work_walks_all_jobs() {
    if std::env::var_os("QUELL_TEST_ALONE").is_none() {
        return alone("cost::no_statement_of_a_days_work_walks_all_jobs");
    }
    let scene = Scene::new();
    let statements = Statements::default();
    tracing::subscriber::set_global_default(statements.clone()).unwrap();
    a_days_work(&scene).await;
    let texts = statements.texts.lock().unwrap().clone();
    let mut db = scene.connect().await;
    let (mut seen, mut walking) = (0, Vec::new());
    let is_schema = |text: &str| text.contains("create ") || text.contains("alter table");
    let texts = texts.iter().filter(|text| text.contains("quell_") && !is_schema(text));
    for statement in texts.flat_map(|text| text.split(';')).map(str::trim) {
        if statement.is_empty() {
            continue;
        }
        let sql = format!("explain query plan {statement}");
        let plan = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut db).await.unwrap();
        let lines: Vec<String> = plan.iter().map(|row| row.get("detail")).collect();
        seen += 1;
        if lines.iter().any(|line| walks(statement, line)) {
            walking.push(format!("{statement}\n  {}", lines.join("\n  ")));
        }
    }
    assert!(seen > 30, "only {seen} statements were seen");
    assert!(walking.is_empty(), "{}", walking.join("\n\n"));
}

/// A statement with `limit ?1` is prepared again each time it is bound; `limit ?1 + 0` is not.
#[test]
fn no_statement_is_prepared_again_for_its_limit() {
    let folders = ["/src", "/src/hot"].map(|folder| env!("CARGO_MANIFEST_DIR").to_owned() + folder);
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    let mut limits = 0;
    for file in files.filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let statements = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for (_, rest) in statements.filter_map(|line| line.split_once("limit ?")) {
            let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            assert!(after.starts_with(" + 0"), "{}: limit ?{rest}", file.display());
            limits += 1;
        }
    }
    assert!(limits > 10, "only {limits} limits were found");
}

#[tokio::test]
async fn r01_a_trigger_takes_two_trips_to_the_connection() {
    if std::env::var_os("QUELL_TEST_ALONE").is_none() {
        return alone("cost::r01_a_trigger_takes_two_trips_to_the_connection");
    }
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    // The first of each kind makes names.
    rig.trigger(plain("1")).await;
    let Statements { trips, .. } = {
        let statements = Statements::default();
        tracing::subscriber::set_global_default(statements.clone()).unwrap();
        statements
    };
    let taken = || trips.swap(0, Ordering::SeqCst);
    for (what, trigger, expected) in [
        ("a job without a key", plain("1"), 2),
        ("a window that opens", keyed("a"), 2),
        ("a window that is joined", keyed("a"), 2),
        ("a dedup key", NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain("1") }, 5),
    ] {
        rig.at(1).trigger(trigger).await;
        assert_eq!(taken(), expected, "{what}");
    }
    // What a committed transaction has left comes first, and may have opened the window.
    let mut db = scene.connect().await;
    let inbox = Batch::one(keyed("b"));
    trigger_in(&mut db, rig.store.location().unwrap(), &inbox).await.unwrap();
    let receipt = rig.trigger(keyed("b")).await;
    assert!(matches!(receipt, Receipt::Debounced { triggers: 2, .. }), "{receipt:?}");
}
