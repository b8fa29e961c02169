//! Queues that limit their partitions read few of them, and pass over no job (R31).

use quell_conformance::Rig;
use quell_conformance::rig::{plain, secs};
use quell_core::{
    Batch, Claimed, Key, NewTrigger, Now, Outcome, PartitionOrder, QueueSettings, Rate, Store,
    Timestamp, When,
};
use quell_postgres::PostgresStore;
use sqlx::AssertSqlSafe;

use crate::scene::{Scene, claim, end};

/// What a claim under a limit of partitions reads.
const TABLES: [&str; 2] = ["job", "head"];

fn of(partition: &str) -> NewTrigger {
    NewTrigger { partition: Some(Key::new(partition).unwrap()), ..plain(&format!("{partition:?}")) }
}

fn due_at(seconds: i64, partition: &str) -> NewTrigger {
    NewTrigger { when: When::At(Timestamp::from_secs(seconds)), ..of(partition) }
}

async fn trigger(store: &PostgresStore, now: Now, triggers: Vec<NewTrigger>) {
    let batch = Batch { triggers, dedup: None };
    store.enqueue(now, vec![batch]).await.unwrap().remove(0).unwrap();
}

async fn limit_partitions(store: &PostgresStore, limit: u32) {
    set(store, &QueueSettings::default().partition_concurrency(limit)).await;
}

async fn set(store: &PostgresStore, settings: &QueueSettings) {
    store
        .set_queue(Some(Timestamp::from_secs(1)), &Rig::claim_of(1).queue, settings)
        .await
        .unwrap();
}

fn payloads(claimed: &Claimed) -> Vec<&str> {
    claimed.jobs.iter().map(|job| job.payload.as_str().trim_matches('"')).collect()
}

/// Inserts the given number of partitions, each with a job that waits, due one after the other.
fn crowd(scene: &Scene, partitions: u64) {
    scene.sql(&format!(
        "insert into quell.partition (name) select 'c' || n from generate_series(1, {partitions}) n;
         insert into quell.job (id, due_at, first_at, lane_id, task_id, payload, partition, partition_id)
         select nextval('quell.job_id'), 1000000 + p.id, 1000000, j.lane_id, j.task_id, '1', p.name, p.id
           from (select * from quell.job limit 1) j, quell.partition p where p.name like 'c%'"
    ));
}

/// The blocks that each claim reads that starts one job of a partition and ends it, beside the given
/// number of partitions in which a job waits.
async fn blocks_for_each_claim(partitions: u64, settings: &QueueSettings) -> u64 {
    const CLAIMS: u64 = 40;
    let scene = Scene::new();
    let store = scene.one_session().await;
    set(&store, settings).await;
    trigger(&store, None, vec![of("first")]).await;
    crowd(&scene, partitions);
    scene.close(store).await;
    let before = scene.blocks_touched(&TABLES);
    let store = scene.one_session().await;
    for _ in 0..CLAIMS {
        let claimed = claim(&store, None, 1).await;
        assert_eq!(claimed.jobs.len(), 1);
        end(&store, None, &claimed, Outcome::succeeded()).await;
    }
    scene.close(store).await;
    (scene.blocks_touched(&TABLES) - before) / CLAIMS
}

#[tokio::test]
async fn r31_a_claim_reads_few_of_the_partitions_that_wait() {
    let one = QueueSettings::default().partition_concurrency(1);
    let few = blocks_for_each_claim(200, &one).await;
    let many = blocks_for_each_claim(10_000, &one).await;
    assert!(many < 2 * few, "{few} blocks a claim beside 200 partitions, {many} beside 10,000");
}

#[tokio::test]
async fn r41_a_claim_reads_few_of_the_partitions_of_strict_order() {
    let strict = QueueSettings::default().partition_order(PartitionOrder::Strict);
    let few = blocks_for_each_claim(200, &strict).await;
    let many = blocks_for_each_claim(10_000, &strict).await;
    assert!(many < 2 * few, "{few} blocks a claim beside 200 partitions, {many} beside 10,000");
}

/// The blocks that a claim reads that passes over partitions whose slots are taken. In each of these
/// partitions `waiting` jobs wait that come first.
async fn blocks_behind_full_partitions(waiting: i64) -> u64 {
    const FULL: usize = 5;
    const CLAIMS: u64 = 20;
    let scene = Scene::new();
    let store = scene.one_session().await;
    limit_partitions(&store, 1).await;
    let full = |n: i64| (0..FULL).map(move |p| due_at(1 + n / 100, &format!("full{p}")));
    trigger(&store, None, (0..=waiting).flat_map(full).collect()).await;
    assert_eq!(claim(&store, None, 2 * FULL).await.jobs.len(), FULL);
    scene.close(store).await;
    let before = scene.blocks_touched(&TABLES);
    let store = scene.one_session().await;
    for n in 0..CLAIMS {
        let open = format!("open{n}");
        trigger(&store, None, vec![of(&open)]).await;
        let claimed = claim(&store, None, 9).await;
        assert_eq!(payloads(&claimed), [open], "a full partition holds up no other job");
        end(&store, None, &claimed, Outcome::succeeded()).await;
    }
    scene.close(store).await;
    (scene.blocks_touched(&TABLES) - before) / CLAIMS
}

#[tokio::test]
async fn r31_a_claim_does_not_read_what_waits_in_full_partitions() {
    let (few, many) =
        (blocks_behind_full_partitions(20).await, blocks_behind_full_partitions(2_000).await);
    assert!(many < 2 * few, "{few} blocks a claim behind 100 jobs, {many} behind 10,000");
}

/// More partitions than are read at once, whose jobs are due in another order than they were triggered.
#[tokio::test]
async fn r30_r31_jobs_of_many_partitions_start_in_their_order() {
    const PARTITIONS: i64 = 700;
    let scene = Scene::new();
    let store = scene.store().await;
    limit_partitions(&store, 2).await;
    let now = Timestamp::from_secs(10_000);
    // Each partition has three jobs; the last one is due at the same moment as those of the others.
    let name = |n: i64| format!("p{n:04}");
    let mut triggers = Vec::new();
    for n in 0..PARTITIONS {
        let first = (n * 37) % PARTITIONS;
        triggers.push(due_at(1 + first, &name(n)));
        triggers.push(due_at(1 + first + PARTITIONS / 2, &name(n)));
        triggers.push(due_at(9_000, &name(n)));
    }
    trigger(&store, Some(Timestamp::from_secs(0)), triggers).await;
    let mut started = Vec::new();
    loop {
        let claimed = claim(&store, Some(now), 90).await;
        if claimed.jobs.is_empty() {
            break;
        }
        started.extend(claimed.jobs.iter().map(|job| (job.due_at, job.id)));
        end(&store, Some(now), &claimed, Outcome::succeeded()).await;
    }
    assert_eq!(started.len(), usize::try_from(3 * PARTITIONS).unwrap());
    assert!(started.is_sorted(), "{started:?}");
    scene.check_heads();
    assert_eq!(scene.sql("select count(*) from quell.head"), "0", "nothing waits");
}

/// Full partitions, more than are read at once, come before the one that may start something.
#[tokio::test]
async fn r31_partitions_without_room_in_their_rate_hold_up_nobody() {
    const FULL: i64 = 1_500;
    let scene = Scene::new();
    let store = scene.store().await;
    let settings = QueueSettings {
        partition_rate: Some(Rate { limit: 1, period: secs(10) }),
        ..QueueSettings::default()
    };
    store
        .set_queue(Some(Timestamp::from_secs(1)), &Rig::claim_of(1).queue, &settings)
        .await
        .unwrap();
    let now = Timestamp::from_secs(1_000);
    let name = |n: i64| format!("p{n}");
    let twice = (0..FULL).flat_map(|n| [due_at(1, &name(n)), due_at(2, &name(n))]).collect();
    trigger(&store, Some(Timestamp::from_secs(0)), twice).await;
    let all = claim(&store, Some(now), 5_000).await;
    assert_eq!(all.jobs.len(), usize::try_from(FULL).unwrap(), "one of each partition");
    trigger(&store, Some(now), vec![of("open")]).await;
    let next = claim(&store, Some(now), 5_000).await;
    assert_eq!(payloads(&next), ["open"]);
    assert_eq!(next.next.due, Some(Timestamp::from_secs(1_010)), "when the rate lets them start");
}

fn text(scene: &Scene, text: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(text.replace("quell.", &format!("{}.", scene.schema())))
}

/// A statement that writes the job `2` of the only partition, which is due at this second.
fn insert(scene: &Scene, due: i64) -> AssertSqlSafe<String> {
    let insert = format!(
        "insert into quell.job (id, due_at, first_at, lane_id, task_id, payload, partition,
                                partition_id)
         select nextval('quell.job_id'), {due} * 1000000, 1000000, lane_id, task_id, '2', 'p',
                (select id from quell.partition)
           from (select * from quell.job union all select * from quell.ended limit 1) j"
    );
    text(scene, &insert)
}

/// A job that another call is writing is found once it has committed, whatever claims do meanwhile.
#[tokio::test]
async fn r31_a_job_that_is_being_written_is_not_passed_over() {
    let now = Some(Timestamp::from_secs(1_000));
    for (due, before) in [(500, true), (2, false)] {
        let scene = Scene::new();
        let store = scene.store().await;
        limit_partitions(&store, 9).await;
        trigger(&store, Some(Timestamp::from_secs(0)), vec![due_at(1, "p")]).await;
        let mut other = scene.connect().await;
        if before {
            // It is written while the head before it is still there.
            sqlx::raw_sql("begin").execute(&mut other).await.unwrap();
            sqlx::raw_sql(insert(&scene, due)).execute(&mut other).await.unwrap();
        }
        let first = claim(&store, now, 9).await;
        assert_eq!(payloads(&first), ["p"]);
        if !before {
            // And here, after the head is gone.
            assert_eq!(scene.sql("select count(*) from quell.head"), "0");
            sqlx::raw_sql("begin").execute(&mut other).await.unwrap();
            sqlx::raw_sql(insert(&scene, due)).execute(&mut other).await.unwrap();
        }
        assert_eq!(payloads(&claim(&store, now, 9).await), [""; 0], "it is not committed");
        sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
        scene.check_heads();
        assert_eq!(payloads(&claim(&store, now, 9).await), ["2"]);
        end(&store, now, &first, Outcome::succeeded()).await;
    }
}

/// A job that comes back to a partition stands before those that were triggered later.
#[tokio::test]
async fn r30_r31_a_job_that_is_put_back_is_the_next_of_its_partition() {
    let scene = Scene::new();
    let store = scene.store().await;
    limit_partitions(&store, 1).await;
    for now in [Some(Timestamp::from_secs(1_000)), None] {
        trigger(&store, now, vec![of("p")]).await;
        trigger(&store, now, vec![of("p")]).await;
        let first = claim(&store, now, 1).await;
        end(&store, now, &first, Outcome::Released).await;
        let again = claim(&store, now, 9).await;
        assert_eq!(again.jobs.len(), 1, "one at a time");
        assert_eq!(again.jobs[0].id, first.jobs[0].id);
        end(&store, now, &again, Outcome::succeeded()).await;
        let second = claim(&store, now, 9).await;
        assert_eq!(second.jobs.len(), 1);
        end(&store, now, &second, Outcome::succeeded()).await;
        scene.check_heads();
    }
}

/// A queue that limited nothing has heads that were never replaced: its first claims under a limit do.
#[tokio::test]
async fn r31_a_limit_of_partitions_that_is_set_later_finds_every_job() {
    let scene = Scene::new();
    let store = scene.store().await;
    let now = Some(Timestamp::from_secs(1_000));
    for round in 0..3 {
        let all = (0..200).map(|n| of(&format!("p{n}"))).collect();
        trigger(&store, now, all).await;
        if round < 2 {
            let claimed = claim(&store, now, 500).await;
            assert_eq!(claimed.jobs.len(), 200);
            end(&store, now, &claimed, Outcome::succeeded()).await;
        }
    }
    limit_partitions(&store, 1).await;
    let claimed = claim(&store, now, 500).await;
    assert_eq!(claimed.jobs.len(), 200);
    end(&store, now, &claimed, Outcome::succeeded()).await;
    assert!(claim(&store, now, 500).await.jobs.is_empty());
    assert_eq!(scene.sql("select count(*) from quell.head"), "0", "nothing waits");
}

/// A transaction that keeps its snapshot sees a head that is gone.
#[tokio::test]
async fn r22_r31_a_job_of_a_transaction_of_any_isolation_is_not_passed_over() {
    let now = Some(Timestamp::from_secs(1_000));
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let scene = Scene::new();
        let store = scene.store().await;
        limit_partitions(&store, 9).await;
        trigger(&store, Some(Timestamp::from_secs(0)), vec![due_at(1, "p")]).await;
        let mut other = scene.connect().await;
        let begin = format!("begin isolation level {isolation}; select count(*) from quell.head");
        sqlx::raw_sql(text(&scene, &begin)).execute(&mut other).await.unwrap();
        assert_eq!(payloads(&claim(&store, now, 9).await), ["p"]);
        assert_eq!(scene.sql("select count(*) from quell.head"), "0");
        sqlx::raw_sql(insert(&scene, 2)).execute(&mut other).await.unwrap();
        sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
        scene.check_heads();
        assert_eq!(payloads(&claim(&store, now, 9).await), ["2"], "{isolation}");
    }
}

/// A partition whose rate is used up, or whose jobs are due twice, hides no later one.
#[tokio::test]
async fn r31_r34_a_due_time_beyond_a_partition_without_room_is_slept_to() {
    let scene = Scene::new();
    let store = scene.store().await;
    let settings = QueueSettings {
        partition_rate: Some(Rate { limit: 1, period: secs(1_000) }),
        ..QueueSettings::default()
    };
    store
        .set_queue(Some(Timestamp::from_secs(1)), &Rig::claim_of(1).queue, &settings)
        .await
        .unwrap();
    let start = Timestamp::from_secs(1);
    let triggers = vec![due_at(1, "a"), due_at(1, "a"), due_at(200, "a"), due_at(300, "b")];
    trigger(&store, Some(start), triggers).await;
    let (mut now, mut started) = (start, Vec::new());
    for _ in 0..20 {
        let claimed = claim(&store, Some(now), 9).await;
        started.extend(claimed.jobs.iter().map(|job| (now, job.payload.as_str().to_owned())));
        let Some(due) = claimed.next.due else { break };
        now = due.max(now);
    }
    let at = |second, of: &str| (Timestamp::from_secs(second), format!("{of:?}"));
    assert_eq!(started, [at(1, "a"), at(300, "b"), at(1_001, "a"), at(2_001, "a")]);
}
