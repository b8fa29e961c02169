//! A statement that the server undoes for a conflict with another call is run again (R35).

use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain};
use quell_core::{Batch, ErrorKind, Lease, Outcome, Renewal, Result, SettledAs, Settlement};

use crate::scene::Scene;

/// More conflicts than a call has tries in any case.
const MANY: usize = 12;

/// What the server undoes for a conflict: each of these writes jobs or leases by one statement.
const CODES: [&str; 3] = ["40P01", "40001", "23505"];

impl Scene {
    /// Lets the server undo all writes of jobs and leases for conflicts, as often as
    /// [`Scene::conflict`] says.
    fn make_conflicts(&self, code: &str) {
        self.sql(&format!(
            "create sequence quell.conflict;
             create function quell.conflict() returns trigger language plpgsql as $$
             begin
                 if nextval('quell.conflict') <= (select most from quell.conflicts) then
                     raise exception 'a conflict' using errcode = '{code}';
                 end if;
                 return null;
             end $$;
             create table quell.conflicts (most int not null);
             insert into quell.conflicts values (0);
             create trigger conflict before insert or update or delete on quell.job
                for each statement execute function quell.conflict();
             create trigger conflict before insert or update or delete on quell.lease
                for each statement execute function quell.conflict()"
        ));
    }

    /// The next `times` writes conflict.
    fn conflict(&self, times: usize) {
        self.sql(&format!(
            "select setval('quell.conflict', 1, false); update quell.conflicts set most = {times}"
        ));
    }
}

async fn try_trigger(rig: &Rig) -> Result<usize> {
    let receipts = rig.store.enqueue(Some(rig.now()), vec![Batch::one(plain("1"))]).await?;
    Ok(receipts.len())
}

async fn try_claim(rig: &Rig) -> Result<Vec<Lease>> {
    let claimed = rig.store.claim(Some(rig.now()), &Rig::claim_of(1)).await?;
    Ok(claimed.jobs.iter().map(lease).collect())
}

async fn try_renew(rig: &Rig, leases: &[Lease]) -> Result<Vec<Renewal>> {
    rig.store.renew(Some(rig.now()), leases, Rig::LEASE).await
}

async fn try_succeed(rig: &Rig, lease: Lease) -> Result<SettledAs> {
    let settlement = Settlement { lease, outcome: Outcome::succeeded() };
    let settled = rig.store.settle(Some(rig.now()), vec![settlement]).await?;
    Ok(settled[0].became)
}

#[tokio::test]
async fn r35_one_statement_meets_conflicts_and_is_run_again() {
    for code in CODES {
        let scene = Scene::new();
        let rig = scene.rig().await;
        // The names of the queue and the task are made first.
        rig.trigger(plain("1")).await;
        scene.make_conflicts(code);
        for times in [1, MANY] {
            scene.conflict(times);
            assert_eq!(try_trigger(&rig).await.unwrap(), 1, "{code}");
            scene.conflict(times);
            let leases = try_claim(&rig).await.unwrap();
            assert_eq!(leases.len(), 1, "{code}");
            scene.conflict(times);
            let renewed = try_renew(&rig, &leases).await.unwrap();
            assert!(matches!(renewed[..], [Renewal::Held(_)]), "{code}: {renewed:?}");
            scene.conflict(times);
            assert_eq!(try_succeed(&rig, leases[0]).await.unwrap(), SettledAs::Succeeded, "{code}");
        }
        scene.conflict(0);
        assert_eq!(rig.states().await.len(), 3, "{code}: each was done once");
    }
}

#[tokio::test]
async fn r35_a_conflict_that_does_not_end_is_reported_and_nothing_was_done() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    let leases = try_claim(&rig).await.unwrap();
    let before = scene.sql("select * from quell.job j order by id");
    scene.make_conflicts("40P01");
    scene.conflict(1_000_000);
    let contention = Err(ErrorKind::Contention);
    let (trigger, claim) = (try_trigger(&rig), try_claim(&rig));
    let (renew, succeed) = (try_renew(&rig, &leases), try_succeed(&rig, leases[0]));
    let (triggered, claimed, renewed, ended) = tokio::join!(trigger, claim, renew, succeed);
    assert_eq!(triggered.map_err(|e| e.kind()).map(drop), contention);
    assert_eq!(claimed.map_err(|e| e.kind()).map(drop), contention);
    assert_eq!(renewed.map_err(|e| e.kind()).map(drop), contention);
    assert_eq!(ended.map_err(|e| e.kind()).map(drop), contention);
    assert_eq!(scene.sql("select * from quell.job j order by id"), before);
}
