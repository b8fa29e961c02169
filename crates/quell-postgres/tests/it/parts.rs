//! Parts of the ended jobs leave as a whole (R37).

use std::sync::Arc;
use std::time::Duration;

use quell_conformance::budget::Ledger;
use quell_conformance::rig::{fails, plain, secs, until};
use quell_core::history::Event;
use quell_core::idempotency::Idempotency;
use quell_core::{
    Batch, JobFilter, JobState, Key, NewTrigger, Outcome, Payload, Pruned, Receipt, Retention,
    Store,
};
use quell_postgres::{PostgresOptions, PostgresStore};
use sqlx::Connection;

use crate::budget::Books;
use crate::counts::expect_exact;
use crate::scene::{Recorded, Scene, claim, end, jobs};
use crate::schema::report;

/// As many as make a part leave as a whole.
const MANY: u64 = 10_000;
const HOUR: Duration = Duration::from_secs(3_600);
/// So long ago that a job has expired.
const EXPIRED: Duration = Duration::from_secs(4_000);
const KEEP: Retention = Retention { succeeded: Some(HOUR), dead: None };

/// Adds jobs like the newest that has succeeded, which ended so long before it.
fn fill(scene: &Scene, jobs: u64, ago: Duration) {
    scene.sql(&format!(
        "insert into quell.ended
                (id, part, due_at, first_at, ended_at, state, lane_id, task_id, payload)
         select nextval('quell.job_id'), part, due_at, first_at, ended_at - {}, 2, lane_id, task_id, '1'
           from (select * from quell.ended where state = 2 order by id desc limit 1) j,
                generate_series(1, {jobs}) n",
        ago.as_micros()
    ));
}

/// From here on, jobs that end come into the next part.
fn turn(scene: &Scene) {
    scene.sql("select setval('quell.ended_part', 2)");
}

async fn succeed(store: &PostgresStore, trigger: NewTrigger) {
    store.enqueue(None, vec![Batch::one(trigger)]).await.unwrap().remove(0).unwrap();
    let claimed = claim(store, None, 1).await;
    end(
        store,
        None,
        &claimed,
        Outcome::Succeeded { output: Some(Payload::from_text("7").unwrap()) },
    )
    .await;
}

/// Removes what there is to remove; fails where that takes too many calls.
async fn prune(store: &PostgresStore, calls: usize) -> u64 {
    let mut removed = 0;
    for _ in 0..calls {
        let pruned = store.prune(None, &KEEP, 1_000).await.unwrap();
        removed += pruned.jobs;
        if !pruned.more {
            return removed;
        }
    }
    panic!("{removed} jobs were removed in {calls} calls, and there is more");
}

fn part(scene: &Scene) -> String {
    scene.sql("select last_value from quell.ended_part")
}

#[tokio::test]
async fn r37_a_part_whose_jobs_have_expired_leaves_as_a_whole_with_what_hangs_on_them() {
    let scene = Scene::new();
    let store = scene.store().await;
    let paid = NewTrigger {
        idempotency: Some(Idempotency::new(Key::new("order-7").unwrap())),
        ..plain("1")
    };
    succeed(&store, paid.clone()).await;
    // One that failed before, and one that dies: both have attempts on record.
    for retries in [true, false] {
        let trigger = vec![Batch::one(plain("2"))];
        store.enqueue(None, trigger).await.unwrap().remove(0).unwrap();
        end(&store, None, &claim(&store, None, 1).await, fails(Duration::ZERO, !retries)).await;
        if retries {
            end(&store, None, &claim(&store, None, 1).await, Outcome::succeeded()).await;
        }
    }
    fill(&scene, MANY, secs(1));
    scene.sql(&format!("update quell.ended set ended_at = ended_at - {}", EXPIRED.as_micros()));
    turn(&scene);
    assert_eq!(prune(&store, 3).await, MANY + 2);
    expect_exact(&scene);
    assert_eq!(scene.sql("select count(*), min(state), max(part) from quell.ended"), "1|3|0");
    assert_eq!(scene.sql("select pg_relation_size('quell.ended_1')"), "0", "it was truncated");
    let of_the_dead = "select count(*), count(e.id) from quell.attempt a
                         left join quell.ended e on e.id = a.job_id";
    assert_eq!(scene.sql(of_the_dead), "1|1", "attempts of jobs that are gone are gone");
    let reported = store.enqueue(None, vec![Batch::one(paid)]).await.unwrap().remove(0).unwrap();
    assert!(
        matches!(&reported[0], Receipt::Existing { state: JobState::Succeeded, output: Some(output), .. }
                 if output.as_str() == "7"),
        "{reported:?}"
    );
}

#[tokio::test]
async fn r37_removals_that_go_on_record_name_each_job() {
    let scene = Scene::new();
    let recorded = Arc::new(Recorded::default());
    let options = PostgresOptions::from_url(&scene.url).unwrap().connections(2);
    let store = options.history(recorded.clone()).open().await.unwrap();
    succeed(&store, plain("1")).await;
    fill(&scene, MANY, EXPIRED);
    turn(&scene);
    assert_eq!(prune(&store, 11).await, MANY);
    let events = recorded.events();
    let pruned = events.iter().filter(|event| matches!(event, Event::Prune { .. })).count();
    assert_eq!(pruned as u64, MANY);
}

#[tokio::test]
async fn r19_r37_a_part_that_another_process_emptied_is_begun_anew() {
    let scene = Scene::new();
    let [one, other] = [scene.one_session().await, scene.one_session().await];
    let paid = |key: &str| NewTrigger {
        idempotency: Some(Idempotency::new(Key::new(key).unwrap())),
        ..plain("1")
    };
    let age = || {
        scene.sql(&format!(
            "update quell.ended set ended_at = ended_at - {};
             insert into quell.attempt (job_id, token, started_at, outcome, worker)
             select id, 1, 0, 1, 'w' from quell.ended limit 1500",
            EXPIRED.as_micros()
        ))
    };
    // A job whose id is less than all that come, and whose key is taken until tomorrow.
    one.enqueue(None, vec![Batch::one(paid("late"))]).await.unwrap().remove(0).unwrap();
    let late = claim(&one, None, 1).await;
    succeed(&one, plain("2")).await;
    fill(&scene, MANY, secs(1));
    age();
    turn(&scene);
    assert!(one.prune(None, &KEEP, 1_000).await.unwrap().more);
    assert_eq!(prune(&other, 4).await, MANY + 1);
    // The part comes again, with the job of the least id.
    scene.sql("select setval('quell.ended_part', 1)");
    end(&one, None, &late, Outcome::Succeeded { output: Some(Payload::from_text("7").unwrap()) })
        .await;
    fill(&scene, MANY, secs(1));
    scene.sql(&format!("update quell.ended set ended_at = ended_at - {}", EXPIRED.as_micros()));
    turn(&scene);
    assert_eq!(prune(&one, 4).await, MANY + 1);
    let reported =
        one.enqueue(None, vec![Batch::one(paid("late"))]).await.unwrap().remove(0).unwrap();
    assert!(
        matches!(
            &reported[0],
            Receipt::Existing { state: JobState::Succeeded, output: Some(_), .. }
        ),
        "{reported:?}"
    );
}

#[tokio::test]
async fn r37_what_hangs_on_the_jobs_of_a_part_leaves_in_batches() {
    const ATTEMPTS: u64 = 5_000;
    let scene = Scene::new();
    let store = scene.store().await;
    succeed(&store, plain("1")).await;
    fill(&scene, MANY, EXPIRED);
    scene.sql(&format!(
        "delete from quell.ended where ended_at > (select min(ended_at) from quell.ended);
         insert into quell.attempt (job_id, token, started_at, outcome, worker)
         select id, 1, 0, 1, 'w' from (select id from quell.ended order by id limit {ATTEMPTS}) e"
    ));
    turn(&scene);
    let first = store.prune(None, &KEEP, 1_000).await.unwrap();
    assert_eq!(first, Pruned { jobs: 0, expired: 0, more: true });
    let left: u64 = scene.sql("select count(*) from quell.attempt").parse().unwrap();
    assert!((ATTEMPTS - 1_001..ATTEMPTS).contains(&left), "{left} attempts are left");
    assert_eq!(prune(&store, 6).await, MANY);
    assert_eq!(scene.sql("select count(*) from quell.attempt"), "0");
}

#[tokio::test]
async fn r37_jobs_that_are_few_leave_by_themselves() {
    let scene = Scene::new();
    let store = scene.store().await;
    succeed(&store, plain("1")).await;
    fill(&scene, 1_500, EXPIRED);
    assert_eq!(store.prune(None, &KEEP, 1_000).await.unwrap().jobs, 1_000);
    assert_eq!(prune(&store, 2).await, 500);
    assert_eq!((jobs(&*store).await, part(&scene).as_str()), (1, "1"));
    expect_exact(&scene);
}

#[tokio::test]
async fn r37_jobs_come_into_the_next_part_after_a_quarter_of_the_retention() {
    let scene = Scene::new();
    let store = scene.store().await;
    succeed(&store, plain("1")).await;
    fill(&scene, MANY, HOUR / 5);
    assert_eq!((prune(&store, 1).await, part(&scene).as_str()), (0, "1"));
    fill(&scene, 1, HOUR / 4);
    assert_eq!((prune(&store, 1).await, part(&scene).as_str()), (0, "2"));
    succeed(&store, plain("2")).await;
    let parts = "select part, count(*) from quell.ended group by 1 order by 1";
    assert_eq!(scene.sql(parts), format!("1|{}\n2|1", MANY + 2));
    // A job is found wherever it is, and the newest come first.
    let newest = store.jobs(&JobFilter { limit: 2, ..JobFilter::default() }).await.unwrap();
    assert!(newest[0].id > newest[1].id, "{newest:?}");
    for job in newest {
        assert_eq!(store.job(job.id).await.unwrap().map(|job| job.id), Some(job.id));
    }
}

#[tokio::test]
async fn r37_r39_nobody_waits_while_a_part_is_in_use() {
    let scene = Scene::new();
    let store = scene.store().await;
    succeed(&store, plain("1")).await;
    fill(&scene, MANY, EXPIRED);
    scene.sql("delete from quell.ended where id = (select min(id) from quell.ended)");
    turn(&scene);
    let report = report(&scene).await;
    assert_eq!(store.prune(None, &KEEP, 1_000).await.unwrap(), Pruned::default());
    succeed(&store, plain("2")).await;
    report.close().await.unwrap();
    until("the part is empty", async || {
        store.prune(None, &KEEP, 1_000).await.unwrap().jobs == MANY
    })
    .await;
    assert_eq!(jobs(&*store).await, 1);
    expect_exact(&scene);
}

#[tokio::test]
async fn r37_r39_jobs_leave_though_their_part_is_in_use_all_the_time() {
    let scene = Scene::new();
    let store = scene.store().await;
    succeed(&store, plain("1")).await;
    fill(&scene, MANY, 2 * HOUR + HOUR / 60);
    scene.sql("delete from quell.ended where id = (select min(id) from quell.ended)");
    turn(&scene);
    let report = report(&scene).await;
    assert_eq!(prune(&store, 11).await, MANY);
    assert_eq!(jobs(&*store).await, 0);
    report.close().await.unwrap();
}

/// The blocks that are touched where `many` expired jobs are removed.
async fn blocks_of_emptying(many: u64) -> u64 {
    let scene = Scene::new();
    let store = scene.store().await;
    succeed(&store, plain("1")).await;
    fill(&scene, many, EXPIRED);
    scene.sql("delete from quell.ended where id = (select min(id) from quell.ended)");
    turn(&scene);
    store.counts().await.unwrap();
    scene.close(store).await;
    let books = Books(scene);
    let prune = async |store: &dyn Store| {
        let pruned = store.prune(None, &KEEP, 1_000).await?;
        assert_eq!((pruned.jobs, pruned.more), (many, false));
        Ok(())
    };
    books.count(prune).await.unwrap()
}

#[tokio::test]
async fn r37_emptying_a_part_costs_the_same_with_more_jobs() {
    let few = blocks_of_emptying(MANY).await;
    let more = blocks_of_emptying(5 * MANY).await;
    assert!(more < few + 60, "{few} blocks, and {more} for five times as many jobs");
    assert!(more < MANY / 10, "{more} blocks");
}
