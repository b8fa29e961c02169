//! Rows that cannot be decoded are set aside, and harm no other job.

use async_trait::async_trait;
use quell_conformance::Rig;
use quell_conformance::rig::keyed;
use quell_conformance::unreadable::Damage;
use quell_core::{Batch, ErrorKind, JobId, Store, UnreadablePage};
use sqlx::AssertSqlSafe;

use crate::counts::expect_exact;
use crate::scene::Scene;

#[tokio::test]
async fn a_broken_row_is_corrupt_and_names_its_job() {
    for damage in [
        "update quell_job set state = 77",
        "update quell_job set reason = 77",
        "update quell_job set shape = '{oops'",
        "update quell_job set lane_id = 77",
        "update quell_job set due_at = 'soon'",
        "update quell_job set worker = '<no name>'",
    ] {
        let scene = Scene::new();
        let rig = scene.rig().await;
        rig.trigger(keyed("k")).await;
        scene.execute(damage).await;
        let error = rig.store.job(JobId::new(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error}");
        assert!(error.to_string().contains("job 1"), "{damage}: {error}");
    }
}

/// The last write and the commit are one trip: what fails before the commit was surely not accepted.
#[tokio::test]
async fn r01_a_write_that_fails_before_its_commit_has_a_known_outcome() {
    let fails = "begin select json('{oops'); end";
    for (what, sql) in [
        ("a new job", format!("create trigger refuse before insert on quell_job {fails}")),
        ("a join", format!("create trigger refuse before update of triggers on quell_job {fails}")),
        (
            "the counts",
            format!("create trigger refuse before update of recent on quell_meta {fails}"),
        ),
    ] {
        let scene = Scene::new();
        let rig = scene.rig().await;
        rig.trigger(keyed("k")).await;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut scene.connect().await).await.unwrap();
        let trigger = keyed(if what == "a new job" { "new" } else { "k" });
        let batches = vec![Batch::one(trigger)];
        let error = rig.store.enqueue(Some(rig.now()), batches).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal, "{what}: {error}");
        assert!(!error.is_unknown_outcome(), "{what}: {error}");
        let jobs = rig.jobs().await;
        assert_eq!((jobs.len(), jobs[0].window.triggers), (1, 1), "{what}: {jobs:?}");
        scene.execute("drop trigger refuse").await;
        // The writer's connection is in no transaction.
        rig.trigger(keyed("k")).await;
    }
}

/// Rows whose shape is no JSON; whatever is done to them, the counts are those of the rows.
struct Shapes(Scene);

impl Drop for Shapes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            expect_exact(&self.0.path());
        }
    }
}

#[async_trait]
impl Damage for Shapes {
    async fn damage(&self, job: JobId) {
        self.run("update quell_job set shape = '{oops' || coalesce(shape, '') where id = ?1", job)
            .await;
    }

    async fn repair(&self, job: JobId) {
        self.run("update quell_job set shape = nullif(substr(shape, 6), '') where id = ?1", job)
            .await;
    }
}

impl Shapes {
    async fn run(&self, sql: &'static str, job: JobId) {
        let id = i64::try_from(job.get()).unwrap();
        sqlx::query(sql).bind(id).execute(&mut self.0.connect().await).await.unwrap();
    }
}

async fn damageable() -> (Rig, Shapes) {
    let scene = Scene::new();
    (scene.rig().await, Shapes(scene))
}

quell_conformance::unreadable_scenes!(damageable());

#[tokio::test]
async fn r25_rubbish_in_any_column_is_set_aside() {
    for damage in [
        "update quell_job set state = 77 where id = 1",
        "update quell_job set reason = 77 where id = 1",
        "update quell_job set lane_id = 77 where id = 1",
        "update quell_job set due_at = 'soon' where id = 1",
        "update quell_job set worker = '<no name>' where id = 1",
    ] {
        let scene = Scene::new();
        let rig = scene.rig().await;
        rig.trigger(keyed("k")).await;
        scene.execute(damage).await;
        let error = rig.cancel(JobId::new(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{damage}: {error}");
        rig.trigger(keyed("k")).await;
        let aside = rig.store.unreadable(&UnreadablePage::default()).await.unwrap();
        assert_eq!(aside.len(), 1, "{damage}");
    }
}

#[tokio::test]
async fn a_lost_meta_row_is_corrupt() {
    let scene = Scene::new();
    let store = scene.open().await;
    scene.execute("delete from quell_meta").await;
    let error = store.claim(None, &quell_conformance::Rig::claim_of(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
