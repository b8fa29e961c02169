//! What a call reads must not grow with what waits, even where its plan was made while the tables
//! were empty: the statistics of a queue are always late.

use quell_conformance::Rig;
use quell_conformance::rig::{debounce, fails, key, keyed, keyed_with, lease, plain, secs, task};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::idempotency::Idempotency;
use quell_core::window::Debounce;
use quell_core::{
    Batch, ClaimedJob, DeadFilter, DeadPlace, Fold, JobId, Key, NewTrigger, Outcome, QueueSettings,
    Redrive, Retention, Settlement, Store, When,
};
use quell_postgres::{PostgresOptions, PostgresStore};

use crate::scene::{self, Scene};

/// How many rows others have.
const OTHERS: u64 = 5_000;
/// How many calls are counted.
const CALLS: u64 = 20;
/// What a call may read.
const FEW: u64 = 50;
/// How many rows a table had that has none left.
const DRAINED: u64 = 100;

/// What the tables were when statistics were last taken, and with them the plans of the first calls.
#[derive(Clone, Copy, Debug)]
enum Were {
    New,
    Drained,
}

impl Were {
    const ALL: [Were; 2] = [Were::New, Were::Drained];

    /// A store with one session, so that its plans are those of the first calls.
    async fn open(self, scene: &Scene) -> PostgresStore {
        let store = scene.one_session().await;
        // The server would take statistics again at a moment of its own.
        scene.sql(&format!(
            "do $$ declare one regclass; begin
               for one in select oid from pg_class
                           where relkind = 'r' and relnamespace = '{}'::regnamespace loop
                 execute format('alter table %s set (autovacuum_enabled = false)', one);
               end loop;
             end $$",
            scene.schema()
        ));
        if matches!(self, Were::Drained) {
            let job = "(id, due_at, first_at, lane_id, task_id, payload) select -n, 0, 0, 0, 0, ''";
            let ended = "(id, part, due_at, first_at, lane_id, task_id, payload)
                         select -n, n % 2, 0, 0, 0, 0, ''";
            let key = "(job_id, expires_at, task_id, key, until) select n, 0, 0, n, ''";
            let memory = "(burst_at, last_at, started_at, leader, expires_at, task_id, key)
                          select 0, 0, 0, n, 0, 0, n";
            let of_claim = "(draw, job_id, until) select n, 0, 0";
            let record = "(job_id, expires_at, task_id, key, fingerprint) select n, 0, 0, n, ''";
            for (table, row) in [
                ("job", job),
                ("ended", ended),
                ("hold", key),
                ("memory", memory),
                ("idempotency", record),
                ("lease", of_claim),
            ] {
                scene.sql(&format!(
                    "insert into quell.{table} {row} from generate_series(1, {DRAINED}) n;
                     delete from quell.{table}"
                ));
            }
        }
        for table in ["job", "ended", "hold", "memory", "idempotency", "lease"] {
            scene.sql(&format!("analyze quell.{table}"));
        }
        store
    }

    /// Fails where more was read of the table than the calls need, by sessions that have ended.
    fn expect_few(self, scene: &Scene, table: &str) {
        let read = scene.rows_read(table);
        if read >= CALLS * FEW {
            let by = scene.sql(&format!(
                "select string_agg(indexrelname || ' ' || idx_scan || ' ' || idx_tup_fetch, ', ')
                   from pg_stat_all_indexes
                  where schemaname = '{}' and relname ~ '^{table}(_[0-8])?$'",
                scene.schema()
            ));
            panic!("{self:?}: {read} rows of {table} were read in {CALLS} calls, by index: {by}");
        }
    }
}

async fn trigger(store: &PostgresStore, trigger: NewTrigger) {
    store.enqueue(None, vec![Batch::one(trigger)]).await.unwrap();
}

async fn claim(store: &PostgresStore, limit: usize) -> Vec<ClaimedJob> {
    store.claim(None, &Rig::claim_of(limit)).await.unwrap().jobs
}

/// With a draw of its own.
async fn claim_apart(store: &PostgresStore, limit: usize) -> Vec<ClaimedJob> {
    scene::claim(store, None, limit).await.jobs
}

async fn settle(store: &PostgresStore, jobs: &[ClaimedJob], outcome: Outcome) {
    let ended = jobs.iter().map(|job| Settlement { lease: lease(job), outcome: outcome.clone() });
    store.settle(None, ended.collect()).await.unwrap();
}

/// Adds many jobs that wait, like one that is there.
fn crowd(scene: &Scene, key: &str, due: &str) {
    scene.sql(&format!(
        "insert into quell.job (id, due_at, first_at, lane_id, task_id, key, shape, payload)
         select nextval('quell.job_id'), {due}, first_at, lane_id, task_id, {key}, shape, payload
           from (select * from quell.job limit 1) j, generate_series(1, {OTHERS}) n"
    ));
}

fn with_edge(edge: Edge, key: &str) -> NewTrigger {
    keyed_with(key, Debounce { edge, ..debounce() }, Fold::Last, "1")
}

#[tokio::test]
async fn r07_a_join_reads_its_own_window_and_no_other() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        trigger(&store, keyed("first")).await;
        trigger(&store, keyed("first")).await;
        crowd(&scene, "'k' || n", "due_at");
        for n in 1..=CALLS {
            trigger(&store, keyed(&format!("k{n}"))).await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "job");
    }
}

#[tokio::test]
async fn r27_a_look_for_alerts_reads_no_backlog_and_no_past() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        trigger(&store, plain("1")).await;
        let jobs = claim(&store, 1).await;
        settle(&store, &jobs, Outcome::succeeded()).await;
        trigger(&store, plain("2")).await;
        store.overview(None).await.unwrap();
        crowd(&scene, "null", "due_at + n");
        scene.sql(&format!(
            "insert into quell.ended
                    (id, part, due_at, first_at, ended_at, state, lane_id, task_id, payload)
             select -n, part, due_at, first_at, ended_at + n, state, lane_id, task_id, payload
               from quell.ended, generate_series(1, {OTHERS}) n"
        ));
        for _ in 0..CALLS {
            let overview = store.overview(None).await.unwrap();
            assert_eq!((overview.lanes.len(), overview.lanes[0].dead), (1, 0));
        }
        scene.close(store).await;
        were.expect_few(&scene, "job");
        were.expect_few(&scene, "ended");
    }
}

#[tokio::test]
async fn r13_an_edge_reads_its_own_memory_and_no_other() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        let lead = async |key: &str| {
            trigger(&store, with_edge(Edge::Leading, key)).await;
            let jobs = claim(&store, 1).await;
            assert_eq!(jobs.len(), 1);
            settle(&store, &jobs, Outcome::succeeded()).await;
            trigger(&store, with_edge(Edge::Leading, key)).await;
        };
        lead("first").await;
        scene.sql(&format!(
            "insert into quell.memory
                    (burst_at, last_at, started_at, leader, expires_at, task_id, key)
             select burst_at, last_at, started_at, leader, expires_at, task_id, 'k' || n
               from quell.memory, generate_series(1, {OTHERS}) n;
             insert into quell.ended (id, part, due_at, first_at, lane_id, task_id, payload)
             select -n, part, due_at, first_at, lane_id, task_id, payload
               from quell.ended, generate_series(1, {OTHERS}) n"
        ));
        for n in 1..=CALLS {
            lead(&format!("new{n}")).await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "memory");
        were.expect_few(&scene, "ended");
        were.expect_few(&scene, "job");
    }
}

#[tokio::test]
async fn r16_a_dedup_key_reads_its_own_hold_and_no_other() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        let with = |key: &str, until| {
            let dedup = Dedup { key: Key::new(key).unwrap(), until };
            NewTrigger { dedup: Some(dedup), ..plain("1") }
        };
        // The key is free once the job has started, and taken again.
        let take_twice = async |key: &str| {
            trigger(&store, with(key, HoldUntil::Started)).await;
            assert_eq!(claim(&store, 1).await.len(), 1);
            trigger(&store, with(key, HoldUntil::Started)).await;
            assert_eq!(claim(&store, 1).await.len(), 1);
        };
        take_twice("first").await;
        scene.sql(&format!(
            "insert into quell.hold (job_id, expires_at, task_id, key, until)
             select job_id, expires_at, task_id, 'k' || n, until
               from quell.hold, generate_series(1, {OTHERS}) n"
        ));
        for n in 1..=CALLS {
            take_twice(&format!("new{n}")).await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "hold");
        were.expect_few(&scene, "job");
    }
}

#[tokio::test]
async fn r21_a_renewal_reads_its_own_job_and_no_other() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        trigger(&store, plain("1")).await;
        let leases: Vec<_> = claim(&store, 1).await.iter().map(lease).collect();
        let renew = async || {
            let renewed = store.renew(None, &leases, Rig::LEASE).await.unwrap();
            assert!(renewed.iter().all(|one| one.until().is_some()));
        };
        renew().await;
        crowd(&scene, "null", "due_at");
        for _ in 0..CALLS {
            renew().await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "job");
        were.expect_few(&scene, "lease");
    }
}

#[tokio::test]
async fn r34_a_claim_and_its_settlement_read_their_own_jobs_and_no_other() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        let run = async |failing: bool| {
            let jobs = claim(&store, 1).await;
            assert_eq!(jobs.len(), 1);
            let later = Outcome::Snoozed { delay: secs(3_600) };
            settle(&store, &jobs, if failing { later } else { Outcome::succeeded() }).await;
        };
        for n in 0..4 {
            trigger(&store, plain("1")).await;
            run(n % 2 == 0).await;
        }
        trigger(&store, plain("1")).await;
        crowd(&scene, "null", "(extract(epoch from clock_timestamp()) * 1000000)::bigint");
        for n in 0..CALLS {
            run(n % 2 == 0).await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "job");
        were.expect_few(&scene, "ended");
    }
}

#[tokio::test]
async fn r11_r34_a_claim_of_a_keyed_job_reads_no_other_job_that_runs() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        let run = async |key: &str| {
            trigger(&store, keyed(key)).await;
            store.flush(None, &task("t"), &Key::new(key).unwrap()).await.unwrap();
            let jobs = claim(&store, 1).await;
            assert_eq!(jobs.len(), 1);
            settle(&store, &jobs, Outcome::succeeded()).await;
        };
        run("first").await;
        trigger(&store, keyed("first")).await;
        scene.sql(&format!(
            "insert into quell.job
                    (id, due_at, first_at, lane_id, task_id, key, shape, payload, state, token)
             select nextval('quell.job_id'), 0, 0, lane_id, task_id, 'k' || n, shape, payload, 1, n
               from (select * from quell.job limit 1) j, generate_series(1, {OTHERS}) n"
        ));
        for n in 1..=CALLS {
            run(&format!("new{n}")).await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "job");
    }
}

/// A key with many closed windows (R10): those behind the first slow no call down.
#[tokio::test]
async fn r10_r11_closed_windows_are_not_read_until_it_is_their_turn() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        let full = || keyed_with("k", debounce(), Fold::Collect { cap: 1 }, "1");
        let triggers = (0..OTHERS).map(|_| full()).collect();
        let batch = Batch { triggers, dedup: None };
        store.enqueue(None, vec![batch]).await.unwrap()[0].as_ref().unwrap();
        for call in 0..CALLS {
            trigger(&store, full()).await;
            let jobs = claim(&store, 9).await;
            assert_eq!(jobs.len(), 1, "{call}");
            let outcome = if call % 2 == 0 { Outcome::succeeded() } else { fails(secs(0), false) };
            settle(&store, &jobs, outcome).await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "job");
    }
}

/// Windows that an operator redrives one after the other stand in a row as well, though the open window
/// comes before them.
#[tokio::test]
async fn r10_r26_redriven_windows_are_not_read_until_it_is_their_turn() {
    let scene = Scene::new();
    let store = Were::New.open(&scene).await;
    let full = || keyed_with("k", debounce(), Fold::Collect { cap: 1 }, "1");
    let mut dead = Vec::new();
    for _ in 0..CALLS {
        trigger(&store, full()).await;
        store.flush(None, &task("t"), &key("k")).await.unwrap();
        let jobs = claim(&store, 1).await;
        dead.push(jobs[0].id);
        settle(&store, &jobs, fails(secs(0), true)).await;
    }
    for id in dead {
        store.redrive(None, &Redrive { id, payload: None }).await.unwrap();
    }
    // Claims look at those that stand behind no other.
    let seen = "select count(*) from quell.job where state = 0 and behind is null";
    assert_eq!(scene.sql(seen), "2", "the open window and the first after it");
    for _ in 0..CALLS {
        let jobs = claim(&store, 9).await;
        assert_eq!(jobs.len(), 1);
        settle(&store, &jobs, Outcome::succeeded()).await;
        assert!(scene.sql(seen).parse::<u64>().unwrap() <= 1);
    }
}

#[tokio::test]
async fn r34_a_claim_of_many_jobs_reads_each_of_them_a_few_times() {
    for (were, is_limited) in
        [(Were::New, false), (Were::New, true), (Were::Drained, false), (Were::Drained, true)]
    {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        if is_limited {
            let settings = QueueSettings { concurrency: Some(1_000), ..QueueSettings::default() };
            store.set_queue(Some(Rig::START), &Rig::claim_of(1).queue, &settings).await.unwrap();
        }
        for _ in 0..2 {
            trigger(&store, keyed("first")).await;
            scene.sql("update quell.job set due_at = 0");
            let jobs = claim(&store, 1).await;
            assert_eq!(jobs.len(), 1);
            settle(&store, &jobs, Outcome::succeeded()).await;
        }
        trigger(&store, keyed("last")).await;
        crowd(&scene, "'k' || n", "0");
        let limit = usize::try_from(CALLS).unwrap();
        let jobs = claim(&store, limit).await;
        assert_eq!(jobs.len(), limit);
        settle(&store, &jobs, Outcome::succeeded()).await;
        scene.close(store).await;
        were.expect_few(&scene, "job");
    }
}

#[tokio::test]
async fn r26_a_job_dies_and_comes_back_without_a_look_at_others() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        let redrive = async || {
            let jobs = claim(&store, 1).await;
            assert_eq!(jobs.len(), 1);
            settle(&store, &jobs, fails(secs(1), true)).await;
            store.redrive(None, &jobs[0].id.into()).await.unwrap();
        };
        trigger(&store, with_edge(Edge::Leading, "first")).await;
        redrive().await;
        crowd(&scene, "'k' || n", "9223372036854775807");
        for _ in 0..CALLS {
            redrive().await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "job");
        were.expect_few(&scene, "ended");
    }
}

#[tokio::test]
async fn r25_the_dead_are_found_without_a_look_at_others() {
    for were in Were::ALL {
        let scene = Scene::new();
        let store = were.open(&scene).await;
        for _ in 0..3 {
            trigger(&store, plain("1")).await;
            let jobs = claim(&store, 1).await;
            settle(&store, &jobs, fails(secs(1), true)).await;
        }
        let look = async || {
            let none = DeadFilter::default;
            let dead = store.dead(&none()).await.unwrap();
            let before = DeadPlace::of(&dead[0]);
            assert_eq!(store.dead(&DeadFilter { before, ..none() }).await.unwrap().len(), 2);
            let error = Some("BOOM".to_owned());
            assert_eq!(store.count_dead(&DeadFilter { error, ..none() }).await.unwrap(), 3);
            let exports = store.exports(&[dead[1].id, dead[2].id]).await.unwrap();
            let known = store.import_dead(None, &exports).await.unwrap();
            assert!(known.iter().all(|one| one.known), "{known:?}");
            store.discard(None, &[JobId::new(999_999)], "no reason").await.unwrap();
        };
        look().await;
        scene.sql(&format!(
            "insert into quell.ended
                    (id, part, due_at, first_at, ended_at, lane_id, task_id, state, payload)
             select nextval('quell.job_id'), 1, due_at, first_at, ended_at, lane_id, task_id, 2, '1'
               from (select * from quell.ended limit 1) j, generate_series(1, {OTHERS}) n"
        ));
        for _ in 0..CALLS {
            look().await;
        }
        scene.close(store).await;
        were.expect_few(&scene, "ended");
    }
}

/// The rows of idempotency keys that upkeep reads in `CALLS` calls, where `waiting` keys have expired
/// whose jobs wait. In the first calls upkeep may look at each of them.
async fn read_by_upkeep(were: Were, waiting: u64) -> u64 {
    let scene = Scene::new();
    let store = were.open(&scene).await;
    let keyed = |name: String| {
        let idempotency = Some(Idempotency::new(Key::new(name).unwrap()));
        NewTrigger { idempotency, when: When::After(secs(9_000)), ..plain("1") }
    };
    trigger(&store, keyed("first".to_owned())).await;
    scene.sql(&format!(
        "insert into quell.idempotency (job_id, expires_at, task_id, key, fingerprint)
         select job_id, 0, task_id, 'k' || n, fingerprint
           from quell.idempotency, generate_series(1, {waiting}) n"
    ));
    let keep = Retention::default();
    while store.prune(None, &keep, 1_000).await.unwrap().more {}
    scene.close(store).await;
    let before = scene.rows_read("idempotency");
    let store = PostgresOptions::from_url(&scene.url).unwrap().connections(1).open().await.unwrap();
    for n in 1..=CALLS {
        // Something else is always due.
        scene.sql(&format!(
            "insert into quell.hold (job_id, expires_at, task_id, key, until)
             values (1, 0, 0, 'h{n}', 0)"
        ));
        assert_eq!(store.prune(None, &keep, 1_000).await.unwrap().expired, 1);
        trigger(&store, keyed(format!("new{n}"))).await;
    }
    scene.close(store).await;
    scene.rows_read("idempotency") - before
}

#[tokio::test]
async fn r37_upkeep_does_not_read_the_expired_keys_of_jobs_that_wait() {
    for were in Were::ALL {
        let (few, many) = (read_by_upkeep(were, 30).await, read_by_upkeep(were, 3_000).await);
        assert!(many < few + CALLS, "{were:?}: {few} rows with 30 keys, {many} with 3,000");
    }
}

fn of_partition(name: String) -> NewTrigger {
    NewTrigger { partition: Some(Key::new(name).unwrap()), ..plain("1") }
}

/// The number that was given out last for names of a kind.
fn last_number(scene: &Scene, table: &str) -> u64 {
    let last = format!("select last_value from quell.{table}_id_seq");
    scene.sql(&last).parse().unwrap()
}

#[tokio::test]
async fn r31_a_name_that_is_there_takes_no_further_number() {
    let scene = Scene::new();
    for processes in [1, 10] {
        for _ in 0..processes {
            // It knows no name yet.
            let store = PostgresStore::open(&scene.url).await.unwrap();
            let triggers = (0..30).map(|n| of_partition(format!("p{n}"))).collect();
            let batch = Batch { triggers, dedup: None };
            store.enqueue(None, vec![batch]).await.unwrap().remove(0).unwrap();
            let other = NewTrigger { priority: processes, ..plain("1") };
            trigger(&store, other).await;
        }
        assert_eq!(last_number(&scene, "partition"), 30);
        assert_eq!((last_number(&scene, "queue"), last_number(&scene, "task")), (1, 1));
    }
    assert_eq!(last_number(&scene, "lane"), 3, "two priorities and the default");
}

/// More partitions than a process keeps in mind, in one call and in one look at the inbox.
#[tokio::test]
async fn r05_r31_triggers_of_many_partitions_are_accepted_at_once() {
    const MANY: usize = 12_000;
    let scene = Scene::new();
    let store = PostgresStore::open(&scene.url).await.unwrap();
    let batches = |first: usize| -> Vec<Batch> {
        let of = |n: usize| Batch::one(of_partition(format!("p{n}")));
        (first..first + MANY).map(of).collect()
    };
    let accepted = store.enqueue(None, batches(0)).await.unwrap();
    assert!(accepted.iter().all(Result::is_ok));
    let keyed_too = vec![Batch::one(keyed("k"))].into_iter().chain(batches(MANY)).collect();
    let accepted = store.enqueue(None, keyed_too).await.unwrap();
    assert!(accepted.iter().all(Result::is_ok));
    assert_eq!(scene.sql("select count(*) from quell.partition"), (2 * MANY).to_string());
}

/// The blocks that one session reads while it triggers, starts and ends the given number of jobs, one
/// after the other. Its first claim begins at the head.
async fn blocks_of_jobs(scene: &Scene, jobs: u64) -> u64 {
    let before = scene.blocks_touched(&["job"]);
    let store = scene.one_session().await;
    for _ in 0..jobs {
        trigger(&store, plain("1")).await;
        let jobs = claim_apart(&store, 9).await;
        assert_eq!(jobs.len(), 1);
        settle(&store, &jobs, Outcome::succeeded()).await;
    }
    scene.close(store).await;
    scene.blocks_touched(&["job"]) - before
}

/// Claims begin at the head as often as their share of the time allows, which the machine decides. So
/// this counts how many of them do.
#[tokio::test]
async fn r30_claims_do_not_walk_what_an_open_snapshot_keeps() {
    const JOBS: u64 = 100;
    const DEAD: usize = 10_000;
    let scene = Scene::new();
    let store = scene.one_session().await;
    let mut report = scene.connect().await;
    let snapshot = "begin isolation level repeatable read; select 1";
    sqlx::raw_sql(snapshot).execute(&mut report).await.unwrap();
    let triggers = (0..DEAD).map(|_| plain("1")).collect();
    store.enqueue(None, vec![Batch { triggers, dedup: None }]).await.unwrap();
    let jobs = claim_apart(&store, DEAD).await;
    assert_eq!(jobs.len(), DEAD);
    settle(&store, &jobs, Outcome::succeeded()).await;
    scene.close(store).await;
    let walk = blocks_of_jobs(&scene, 1).await;
    assert!(walk > 150, "{walk} blocks: the snapshot keeps nothing");
    let blocks = blocks_of_jobs(&scene, JOBS).await;
    assert!(blocks < JOBS / 2 * walk, "{blocks} blocks for {JOBS} jobs, {walk} where one walks");
}
