//! Claims that begin where the last one left off still find everything (R30).

use std::time::{Duration, Instant};

use quell_conformance::rig::{plain, until};
use quell_core::{Batch, Outcome, Store, When};
use quell_core::{NewTrigger, Timestamp};
use quell_postgres::PostgresStore;

use crate::scene::{Scene, claim, end};

/// How long a claim may pass over a job that no process was notified of.
const LONGEST: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);

async fn trigger(store: &PostgresStore, trigger: NewTrigger) {
    store.enqueue(None, vec![Batch::one(trigger)]).await.unwrap().remove(0).unwrap();
}

/// Runs the given number of jobs, one after the other.
async fn run(store: &PostgresStore, jobs: usize) {
    for _ in 0..jobs {
        trigger(store, plain("2")).await;
        let claimed = claim(store, None, 1).await;
        assert_eq!(claimed.jobs.len(), 1);
        end(store, None, &claimed, Outcome::succeeded()).await;
    }
}

/// A job that was due long ago, without a word to anyone.
fn slip_in(scene: &Scene) {
    scene.sql(
        "insert into quell.job (id, due_at, first_at, lane_id, task_id, payload)
         select nextval('quell.job_id'), 1000000, 1000000, lane_id, task_id, '1'
           from quell.ended limit 1",
    );
}

/// How a job comes to stand before those that were started.
#[derive(Clone, Copy, Debug)]
enum Comes {
    /// A worker gives it back.
    Back,
    /// It was due long before.
    Late,
}

/// Other jobs are started by `other`, and then one comes before them.
async fn comes_before(store: &PostgresStore, other: &PostgresStore, comes: Comes) {
    match comes {
        Comes::Back => {
            trigger(store, plain("1")).await;
            let first = claim(store, None, 1).await;
            run(other, 3).await;
            end(store, None, &first, Outcome::Released).await;
        }
        Comes::Late => {
            run(other, 3).await;
            let when = When::At(Timestamp::from_secs(1));
            trigger(store, NewTrigger { when, ..plain("1") }).await;
        }
    }
}

#[tokio::test]
async fn r30_what_comes_to_stand_before_others_is_started_next() {
    for comes in [Comes::Back, Comes::Late] {
        let scene = Scene::new();
        let store = scene.store().await;
        for _ in 0..20 {
            comes_before(&store, &store, comes).await;
            trigger(&store, plain("2")).await;
            let next = claim(&store, None, 1).await;
            assert_eq!(next.jobs[0].payload.as_str(), "1", "{comes:?}");
            end(&store, None, &next, Outcome::succeeded()).await;
            let rest = claim(&store, None, 9).await;
            end(&store, None, &rest, Outcome::succeeded()).await;
        }
    }
}

#[tokio::test]
async fn r30_r34_another_process_is_told_of_what_comes_to_stand_before_others() {
    for comes in [Comes::Back, Comes::Late] {
        let scene = Scene::new();
        let (store, other) = (scene.store().await, scene.store().await);
        comes_before(&store, &other, comes).await;
        is_started(&other).await;
    }
}

/// Others come all the time, and are started one by one.
async fn is_started(store: &PostgresStore) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        trigger(store, plain("2")).await;
        let claimed = claim(store, None, 1).await;
        end(store, None, &claimed, Outcome::succeeded()).await;
        if claimed.jobs.iter().any(|job| job.payload.as_str() == "1") {
            return;
        }
        assert!(Instant::now() < deadline, "it is never started");
    }
}

/// A join, a flush or a claim that is undone holds a job's row for a moment, and sends no notification
/// where it changes nothing.
#[tokio::test]
async fn r30_a_job_that_was_locked_while_claims_went_by_is_started_next() {
    let scene = Scene::new();
    let store = scene.store().await;
    let mut other = scene.connect().await;
    for several in [true, false] {
        run(&store, 3).await;
        trigger(&store, plain("1")).await;
        let lock =
            format!("begin; select from {}.job where payload = '1' for update", scene.schema());
        sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut other).await.unwrap();
        // Longer than what any commit takes.
        tokio::time::sleep(Duration::from_millis(60)).await;
        for _ in 0..3 {
            trigger(&store, plain("2")).await;
            let claimed = claim(&store, None, if several { 9 } else { 1 }).await;
            assert_eq!(claimed.jobs.len(), 1);
            end(&store, None, &claimed, Outcome::succeeded()).await;
        }
        sqlx::raw_sql("rollback").execute(&mut other).await.unwrap();
        trigger(&store, plain("2")).await;
        let next = claim(&store, None, 1).await;
        assert_eq!(next.jobs[0].payload.as_str(), "1", "several at once: {several}");
        end(&store, None, &next, Outcome::succeeded()).await;
        let rest = claim(&store, None, 9).await;
        end(&store, None, &rest, Outcome::succeeded()).await;
    }
}

/// A job that no process was notified of is found all the same, beside others.
#[tokio::test]
async fn r30_r39_a_job_that_nobody_was_told_of_is_started_beside_others() {
    let scene = Scene::new();
    let store = scene.store().await;
    run(&store, 3).await;
    slip_in(&scene);
    is_started(&store).await;
}

/// A claim reads the clock after its rows, on a busy machine long after. It has not seen what is committed
/// in between.
#[tokio::test]
async fn r30_r39_a_job_that_is_committed_before_a_claim_reads_the_clock_is_started_next() {
    const DELAY: Duration = Duration::from_secs(2);
    let scene = Scene::new();
    let store = scene.store().await;
    trigger(&store, NewTrigger { when: When::After(DELAY), ..plain("2") }).await;
    let lock = format!("(hashtext('{}'))", scene.schema());
    scene.sql(&format!(
        "create or replace function quell.peek(asked bigint, seen bigint) returns bigint
         language plpgsql volatile as $$
         begin
             perform pg_advisory_xact_lock_shared{lock};
             return (select r.now from quell.reckon(asked, seen) r);
         end
         $$"
    ));
    let mut db = scene.connect().await;
    let call = |name: &str| sqlx::AssertSqlSafe(format!("select {name}{lock}"));
    sqlx::raw_sql(call("pg_advisory_lock")).execute(&mut db).await.unwrap();
    let meanwhile = async {
        let waits = format!(
            "select count(*) from pg_stat_activity
              where wait_event = 'advisory' and query like '%{}%peek(%'",
            scene.schema()
        );
        until("the claim waits", async || scene.sql(&waits) != "0").await;
        scene.sql(
            "insert into quell.job (id, due_at, first_at, lane_id, task_id, payload)
             select nextval('quell.job_id'), now, now, lane_id, task_id, '1'
               from quell.job, (select (extract(epoch from clock_timestamp()) * 1000000)::bigint) c (now)",
        );
        // By longer than what any commit takes.
        let past = "select max(due_at) + 60000 < extract(epoch from clock_timestamp()) * 1000000
                      from quell.job";
        until("the job of before is due", async || scene.sql(past) == "t").await;
        sqlx::raw_sql(call("pg_advisory_unlock")).execute(&mut db).await.unwrap();
    };
    let (first, ()) = tokio::join!(claim(&store, None, 1), meanwhile);
    assert_eq!(first.jobs[0].payload.as_str(), "2");
    trigger(&store, plain("2")).await;
    let next = claim(&store, None, 1).await;
    assert_eq!(next.jobs[0].payload.as_str(), "1");
}

/// A claim that finds nothing says when to look again, where it has not looked at everything.
#[tokio::test]
async fn r34_a_claim_that_may_have_passed_over_a_job_says_when_to_look_again() {
    let scene = Scene::new();
    let store = scene.store().await;
    for _ in 0..20 {
        run(&store, 1).await;
        slip_in(&scene);
        let looked = Instant::now();
        loop {
            let claimed = claim(&store, None, 9).await;
            if !claimed.jobs.is_empty() {
                end(&store, None, &claimed, Outcome::succeeded()).await;
                break;
            }
            let due = claimed.next.due.expect("nothing was found, and nothing is expected");
            assert!(due <= claimed.now + LONGEST, "{due} at {}", claimed.now);
            // To a worker, what is due now and was not started is held back by a limit.
            assert!(due > claimed.now, "{due}");
            assert!(looked.elapsed() < PATIENCE, "it is never found");
            tokio::time::sleep(due.since(claimed.now)).await;
        }
    }
}

#[tokio::test]
async fn r34_a_worker_that_is_idle_for_long_is_told_of_nothing() {
    let scene = Scene::new();
    let store = scene.store().await;
    trigger(&store, plain("2")).await;
    let claimed = claim(&store, None, 1).await;
    end(&store, None, &claimed, Outcome::succeeded()).await;
    let looked = Instant::now();
    while let Some(due) = claim(&store, None, 9).await.next.due {
        assert!(looked.elapsed() < PATIENCE, "an idle queue is due at {due}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
