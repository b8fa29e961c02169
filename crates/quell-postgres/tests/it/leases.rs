//! Leases, apart from jobs (R21): what renewals write, what waits for an open transaction, and that no
//! lease is left behind.

use std::sync::Arc;
use std::time::Duration;

use quell_conformance::rig::{fails, lease, plain, queue, task, until};
use quell_conformance::{Opened, Rig};
use quell_core::effect::EffectStart;
use quell_core::history::Event;
use quell_core::{
    Batch, Claim, Draw, EffectName, ErrorKind, JobId, JobState, Key, Lease, LeaseToken, Outcome,
    Renewal, SettledAs, Settlement, Store,
};
use quell_postgres::{PostgresOptions, PostgresStore, settle_in};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinSet;

use crate::scene::{Recorded, Scene};

/// So long a call may wait beside a transaction that is left open: it does not wait at all.
const AT_ONCE: Duration = Duration::from_secs(20);

async fn claim(rig: &Rig, limit: usize, draw: u64) -> Vec<Lease> {
    let claim = Claim { draw: Draw::new(draw), ..Rig::claim_of(limit) };
    let claimed = rig.store.claim(Some(rig.now()), &claim).await.unwrap();
    assert_eq!(claimed.jobs.len(), limit);
    claimed.jobs.iter().map(lease).collect()
}

async fn trigger(rig: &Rig, count: usize) {
    for _ in 0..count {
        rig.trigger(plain("1")).await;
    }
}

/// Whether each lease held, and got a new end.
async fn renew(rig: &Rig, leases: &[Lease]) -> Vec<bool> {
    let renewed = rig.store.renew(Some(rig.now()), leases, Rig::LEASE);
    let renewed = tokio::time::timeout(AT_ONCE, renewed).await.expect("nothing waits").unwrap();
    renewed.iter().map(|one| matches!(one, Renewal::Held(_))).collect()
}

/// Ends attempts well, and says how many of them it did.
async fn succeed(rig: &Rig, leases: &[Lease]) -> usize {
    let of = |lease: &Lease| Settlement { lease: *lease, outcome: Outcome::succeeded() };
    let settle = rig.store.settle(Some(rig.now()), leases.iter().map(of).collect());
    let settled = tokio::time::timeout(AT_ONCE, settle).await.expect("nothing waits").unwrap();
    settled.iter().filter(|one| one.became == SettledAs::Succeeded).count()
}

/// The second at which the first lease expires.
async fn expiry(rig: &Rig) -> Option<u64> {
    rig.next_due().await.expiry.map(Rig::second)
}

fn kept(scene: &Scene) -> String {
    scene.sql("select count(*) from quell.lease")
}

#[tokio::test]
async fn r22_an_open_settlement_delays_no_renewal_and_no_settlement_of_others() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 5).await;
    let leases = [claim(&rig, 3, 1).await, claim(&rig, 2, 2).await].concat();
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    settle_in(&mut tx, rig.store.location().unwrap(), &leases[0], Some(rig.now()), None)
        .await
        .unwrap();
    for second in [10, 35, 60] {
        assert_eq!(renew(rig.at(second), &leases).await, [true; 5]);
        assert!(rig.reap().await.is_empty());
    }
    assert_eq!(succeed(&rig, &leases[1..2]).await, 1);
    assert_eq!(renew(rig.at(85), &leases[2..]).await, [true; 3]);
    tx.commit().await.unwrap();
    assert_eq!(succeed(rig.at(90), &leases[2..]).await, 3);
    let states = rig.states().await;
    assert!(states.iter().all(|state| *state == JobState::Succeeded), "{states:?}");
    assert!(rig.at(200).reap().await.is_empty());
    assert_eq!(kept(&scene), "0", "what the transaction left behind went when its lease expired");
}

#[tokio::test]
async fn r21_a_renewal_writes_no_job() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 4).await;
    let leases = claim(&rig, 4, 1).await;
    let versions = "select string_agg(xmin || ' ' || ctid, ', ' order by id) from quell.job";
    let before = scene.sql(versions);
    for second in 1..5 {
        assert_eq!(renew(rig.at(second), &leases).await, [true; 4]);
        assert_eq!(renew(&rig, &leases[..2]).await, [true; 2]);
    }
    assert_eq!(scene.sql(versions), before);
}

/// Under these a transaction does not see what was committed since it began to read.
#[tokio::test]
async fn r22_settles_in_a_transaction_of_any_isolation_after_renewals() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let scene = Scene::new();
        let mut rig = scene.rig().await;
        trigger(&rig, 2).await;
        let leases = claim(&rig, 2, 1).await;
        let mut db = scene.connect().await;
        let begin = format!(
            "begin isolation level {isolation}; select count(*) from {}.job",
            scene.schema()
        );
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut db).await.unwrap();
        assert_eq!(renew(rig.at(20), &leases).await, [true; 2]);
        let location = rig.store.location().unwrap().clone();
        // The lease that the transaction saw has ended by now.
        let settled = settle_in(&mut db, &location, &leases[0], Some(rig.at(40).now()), None).await;
        settled.unwrap_or_else(|error| panic!("{isolation}: {error}"));
        sqlx::raw_sql("commit").execute(&mut db).await.unwrap();
        assert_eq!(rig.job(leases[0].job).await.state, JobState::Succeeded, "{isolation}");
        // R21: the other job is taken back while a transaction reads: it cannot end it any more.
        sqlx::raw_sql(AssertSqlSafe(format!(
            "begin isolation level {isolation}; select count(*) from {}.job",
            scene.schema()
        )))
        .execute(&mut db)
        .await
        .unwrap();
        assert_eq!(rig.at(50).reap().await.len(), 1, "{isolation}");
        let refused = settle_in(&mut db, &location, &leases[1], Some(rig.now()), None).await;
        // The server finds it first where the transaction keeps one snapshot.
        let kind = if isolation == "read committed" {
            ErrorKind::IllegalMove
        } else {
            ErrorKind::Contention
        };
        assert_eq!(refused.unwrap_err().kind(), kind, "{isolation}");
        sqlx::raw_sql("rollback").execute(&mut db).await.unwrap();
        assert_eq!(rig.job(leases[1].job).await.state, JobState::Scheduled, "{isolation}");
    }
}

#[tokio::test]
async fn r21_each_lease_of_a_claim_expires_at_its_own_time() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 4).await;
    let leases = claim(&rig, 4, 1).await;
    assert_eq!(renew(rig.at(10), &leases[1..2]).await, [true]);
    assert_eq!(renew(rig.at(20), &leases[2..]).await, [true; 2]);
    assert_eq!(expiry(&rig).await, Some(30));
    let expired: Vec<_> = rig.at(45).reap().await.into_iter().map(|one| one.lease).collect();
    assert_eq!(expired, leases[..2], "the oldest first");
    assert_eq!(renew(&rig, &leases).await, [false, false, true, true]);
    assert_eq!(expiry(&rig).await, Some(75));
    assert_eq!(succeed(&rig, &leases).await, 2);
    assert_eq!((expiry(&rig).await, kept(&scene)), (None, "0".to_owned()));
}

/// A draw has 39 bits: two claims that drew the same have leases of their own.
#[tokio::test]
async fn r21_two_claims_that_drew_the_same_have_their_own_leases() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 4).await;
    let early = claim(&rig, 2, 7).await;
    let late = claim(rig.at(20), 2, 7).await;
    assert_eq!(expiry(&rig).await, Some(30));
    let expired: Vec<_> = rig.at(40).reap().await.into_iter().map(|one| one.lease).collect();
    assert_eq!(expired, early);
    assert_eq!(expiry(&rig).await, Some(50));
    assert_eq!(renew(&rig, &late).await, [true; 2]);
    assert_eq!(succeed(rig.at(60), &late).await, 2);
    assert_eq!(kept(&scene), "0");
}

/// Two calls that end the last jobs of a claim at once may leave its lease behind.
#[tokio::test]
async fn r37_leases_that_were_left_behind_leave_and_hold_up_nothing() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 1).await;
    let left = Rig::START.as_micros();
    scene.sql(&format!(
        "insert into quell.lease (draw, job_id, until)
         select n, n % 2, {left} + n from generate_series(100, 2099) n"
    ));
    let lease = claim(rig.at(1), 1, 1).await;
    let now = rig.at(40).now();
    let reaped = rig.store.reap(Some(now), 10).await.unwrap();
    assert_eq!(reaped.iter().map(|one| one.lease).collect::<Vec<_>>(), lease);
    assert_eq!(kept(&scene), "0");
}

/// Many leases of one claim that were renewed one by one, so that each has a row of its own.
fn many_apart(scene: &Scene, draw: u64, first: u64, count: u64, until: i64) {
    let token = LeaseToken::of(1, Draw::new(draw)).get();
    scene.sql(&format!(
        "insert into quell.job (id, due_at, first_at, lane_id, task_id, payload, token, state,
                                attempt, worker, started_at)
         select n, j.due_at, j.first_at, j.lane_id, j.task_id, '1', {token}, 1, 1, 'w1', j.first_at
           from generate_series({first}, {first} + {count} - 1) n, quell.job j
          where j.id = (select min(id) from quell.job);
         insert into quell.lease (draw, job_id, until)
         select {draw}, n, {until} from generate_series({first}, {first} + {count} - 1) n"
    ));
}

/// A call ends within its deadline also where thousands of leases are of one claim.
#[tokio::test]
async fn r21_thousands_of_leases_are_renewed_and_taken_back_in_time() {
    const MANY: u64 = 6_000;
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 1).await;
    let until = (Rig::START + Rig::LEASE).as_micros();
    many_apart(&scene, 1, 1_000_000, MANY, until);
    let token = LeaseToken::of(1, Draw::new(1));
    let lease = |id: u64| Lease { job: JobId::new(id), token };
    let leases: Vec<Lease> = (1_000_000..1_000_000 + MANY).map(lease).collect();
    assert!(renew(rig.at(10), &leases).await.into_iter().all(|held| held));
    let now = rig.at(50).now();
    let mut taken = 0;
    while taken < MANY {
        let expired = rig.store.reap(Some(now), 1_000).await.unwrap();
        assert_eq!(expired.len(), 1_000, "after {taken}");
        taken += expired.len() as u64;
    }
    assert_eq!(kept(&scene), "0");
}

/// Leases whose jobs a transaction holds are passed over, however many they are.
#[tokio::test]
async fn r21_jobs_that_a_transaction_holds_keep_no_others_from_being_taken_back() {
    const HELD: u64 = 1_100;
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 1).await;
    many_apart(&scene, 2, 2_000_000, HELD, Rig::START.as_micros() + 1);
    let last = claim(&rig, 1, 1).await;
    let mut db = scene.connect().await;
    let hold =
        format!("begin; select from {}.job where id >= 2000000 for no key update", scene.schema());
    sqlx::raw_sql(AssertSqlSafe(hold)).execute(&mut db).await.unwrap();
    let expired: Vec<_> = rig.at(40).reap().await.into_iter().map(|one| one.lease).collect();
    assert_eq!(expired, last);
}

/// A renewal of the leases of draw 1, until this number of leases after the start, that has not committed.
async fn renewing(scene: &Scene, leases: u32) -> PgConnection {
    let mut db = scene.connect().await;
    let later = (Rig::START + leases * Rig::LEASE).as_micros();
    let schema = scene.schema();
    let renewal = format!("begin; update {schema}.lease set until = {later} where draw = 1");
    sqlx::raw_sql(AssertSqlSafe(renewal)).execute(&mut db).await.unwrap();
    db
}

/// Until a call waits for the renewal.
async fn awaited(scene: &Scene) {
    let waits = "select count(*) from pg_stat_activity
         where wait_event_type = 'Lock' and query like '%for share%'";
    until("it waits", async || scene.sql(waits) != "0").await;
}

/// Commits the renewal once a call waits for it.
async fn commit_once_awaited(scene: &Scene, db: &mut PgConnection) {
    awaited(scene).await;
    sqlx::raw_sql("commit").execute(db).await.unwrap();
}

/// Until the renewal has committed, a settlement does not see that the lease goes on.
#[tokio::test]
async fn r21_a_settlement_waits_for_a_renewal_that_is_under_way() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 1).await;
    let leases = claim(&rig, 1, 1).await;
    let mut db = renewing(&scene, 3).await;
    rig.at(40);
    let commits = commit_once_awaited(&scene, &mut db);
    let (settled, ()) = tokio::join!(succeed(&rig, &leases), commits);
    assert_eq!(settled, 1);
}

/// The same where another attempt of the call has failed, and where an attempt records an effect.
#[tokio::test]
async fn r21_each_call_of_an_attempt_waits_for_a_renewal_that_is_under_way() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 3).await;
    let leases = claim(&rig, 3, 1).await;
    let mut db = renewing(&scene, 3).await;
    rig.at(40);
    let (name, key) = (EffectName::new("charge").unwrap(), Key::new("4711").unwrap());
    let begins = rig.store.begin_effect(Some(rig.now()), &leases[2], &name, &key);
    let (began, ()) = tokio::join!(begins, commit_once_awaited(&scene, &mut db));
    assert_eq!(began.unwrap(), EffectStart::New { key });

    let mut db = renewing(&scene, 6).await;
    rig.at(100);
    let outcomes = [fails(Duration::ZERO, false), Outcome::succeeded()];
    let ends = leases.iter().zip(outcomes);
    let ends = ends.map(|(lease, outcome)| Settlement { lease: *lease, outcome });
    let settles = rig.store.settle(Some(rig.now()), ends.collect());
    let (settled, ()) = tokio::join!(settles, commit_once_awaited(&scene, &mut db));
    let became: Vec<SettledAs> = settled.unwrap().iter().map(|one| one.became).collect();
    assert_eq!(became, [SettledAs::Scheduled { due: rig.now() }, SettledAs::Succeeded]);
    // The attempt that is left has its lease, and no call holds it.
    assert_eq!(renew(&rig, &leases[2..]).await, [true]);
}

/// While a call waits for the renewal of one lease, the time goes past what it read of another one, which is
/// renewed meanwhile.
#[tokio::test]
async fn r21_a_lease_renewed_while_a_settlement_waits_for_another_counts() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 3).await;
    let first = claim(&rig, 1, 1).await;
    rig.at(15);
    let others = claim(&rig, 2, 2).await;
    let mut db = renewing(&scene, 3).await;
    rig.at(40);
    let ends = [(&first[0], fails(Duration::ZERO, false)), (&others[0], Outcome::succeeded())];
    let ends = ends.map(|(lease, outcome)| Settlement { lease: *lease, outcome });
    let settles = rig.store.settle(Some(rig.now()), ends.to_vec());
    let renews = async {
        awaited(&scene).await;
        assert_eq!(renew(&rig, &others).await, [true, true]);
        let later = Some(rig.now() + Duration::from_secs(20));
        rig.store.enqueue(later, vec![Batch::one(plain("1"))]).await.unwrap();
        sqlx::raw_sql("commit").execute(&mut db).await.unwrap();
    };
    let (settled, ()) = tokio::join!(settles, renews);
    let became: Vec<SettledAs> = settled.unwrap().iter().map(|one| one.became).collect();
    assert!(
        matches!(became[..], [SettledAs::Scheduled { .. }, SettledAs::Succeeded]),
        "{became:?}"
    );
}

/// Where the renewal takes longer than a statement may, the settlement has failed, and is not refused: its
/// lease may hold.
#[tokio::test]
async fn r21_r39_a_settlement_that_cannot_wait_for_a_renewal_is_not_refused() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    trigger(&rig, 2).await;
    let renewed = claim(&rig, 1, 1).await;
    rig.at(20);
    let other = claim(&rig, 1, 2).await;
    let mut db = renewing(&scene, 3).await;
    rig.at(40);
    let url = format!("{}&options[statement_timeout]=200", scene.url);
    let store = PostgresStore::open(&url).await.unwrap();
    let settle = async |leases: &[&Lease]| {
        let of = |lease: &&Lease| Settlement { lease: **lease, outcome: Outcome::succeeded() };
        store.settle(Some(rig.now()), leases.iter().map(of).collect()).await
    };
    let alone = settle(&[&renewed[0]]).await.unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::Unavailable, "{alone}");
    let beside = settle(&[&renewed[0], &other[0]]).await.unwrap_err();
    assert_eq!(beside.kind(), ErrorKind::Unavailable, "{beside}");
    assert_eq!(rig.job(other[0].job).await.state, JobState::Succeeded, "it has ended");
    sqlx::raw_sql("commit").execute(&mut db).await.unwrap();
    let settled = settle(&[&renewed[0], &other[0]]).await.unwrap();
    let became: Vec<SettledAs> = settled.iter().map(|one| one.became).collect();
    assert_eq!(became, [SettledAs::Succeeded; 2], "what has ended is answered");
}

/// Jobs that run without a lease would never be taken back.
const WITHOUT: &str = "select count(*) from quell.job j
     where j.state = 1 and not exists (
           select from quell.lease x
            where x.draw = (j.token & 549755813887) and x.job_id in (0, j.id))";

#[tokio::test]
async fn r21_every_running_job_has_a_lease_whatever_happens_at_once() {
    const WORKERS: u64 = 6;
    const ROUNDS: u64 = 30;
    /// Some expire while they are renewed.
    const SHORT: Duration = Duration::from_millis(20);
    let scene = Scene::new();
    let rig = scene.rig().await;
    trigger(&rig, 200).await;
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let store = Arc::clone(&rig.store);
        workers.spawn(async move {
            for round in 0..ROUNDS {
                // Some draws are drawn twice, and mostly several calls end the jobs of one claim.
                let draw = Draw::new((worker * ROUNDS + round) / 2);
                let claim = Claim { draw, lease: SHORT, ..Rig::claim_of(6) };
                let claimed = store.claim(None, &claim).await.unwrap();
                let leases: Vec<Lease> = claimed.jobs.iter().map(lease).collect();
                let (some, others) = leases.split_at(leases.len() / 2);
                let end = |leases: &[Lease], outcome: &Outcome| {
                    let of = |lease: &Lease| Settlement { lease: *lease, outcome: outcome.clone() };
                    store.settle(None, leases.iter().map(of).collect())
                };
                let renewed = async {
                    store.renew(None, some, SHORT).await.unwrap();
                    store.renew(None, &leases, SHORT).await.unwrap()
                };
                let soon = Outcome::Snoozed { delay: Duration::from_micros(1) };
                let well = Outcome::succeeded();
                let outcome = if round % 5 == 0 { &well } else { &soon };
                let (_, ended, back) =
                    tokio::join!(renewed, end(some, &soon), end(others, outcome));
                ended.unwrap();
                back.unwrap();
                store.reap(None, 10).await.unwrap();
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
        assert_eq!(scene.sql(WITHOUT), "0");
    }
    // Leases that were left behind are removed when they expire.
    let next = rig.store.next_due(None, &queue(), &[task("t")]).await.unwrap();
    let later = next.now + 10 * Rig::LEASE;
    rig.store.reap(Some(later), 1_000).await.unwrap();
    assert_eq!(kept(&scene), "0");
}

#[tokio::test]
async fn r11_an_end_is_on_record_at_its_own_time_though_another_was_tried_again() {
    let recorded = Arc::new(Recorded::default());
    let options = PostgresOptions::from_url(&quell_services::url_for_tests()).unwrap();
    let store = Arc::new(options.history(recorded.clone()).open().await.unwrap());
    let rig = Rig::new(Opened { store, guard: Box::new(()) });
    rig.store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    let claimed = rig.store.claim(None, &Rig::claim_of(1)).await.unwrap();
    let held = lease(&claimed.jobs[0]);
    let lost = Lease { job: JobId::new(999), token: held.token };
    let settlements = [held, lost].map(|lease| Settlement { lease, outcome: Outcome::succeeded() });
    let settled = rig.store.settle(None, settlements.to_vec()).await.unwrap();
    let became: Vec<SettledAs> = settled.iter().map(|one| one.became).collect();
    assert_eq!(became, [SettledAs::Succeeded, SettledAs::Refused]);
    let job = rig.store.job(held.job).await.unwrap().unwrap();
    let events = recorded.events();
    let reported = events.into_iter().find_map(|event| match event {
        Event::Settle { t, job, .. } => (job == held.job).then_some(t),
        _ => None,
    });
    assert_eq!(reported, job.ended_at, "what it held back may have started since");
}
