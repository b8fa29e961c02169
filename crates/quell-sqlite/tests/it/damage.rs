//! Rows that break an invariant are reported, with the job, and never panic.

use quell_conformance::rig::{keyed, plain};
use quell_core::{ErrorKind, JobId, Store};

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

#[tokio::test]
async fn a_broken_shape_stops_its_claim_and_says_which_job() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    rig.trigger(plain("1")).await;
    scene.execute("update quell_job set shape = '{oops'").await;
    let error = rig.store.claim(Some(rig.now()), &quell_conformance::Rig::wish(1)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("job 1"), "{error}");
}

#[tokio::test]
async fn a_lost_meta_row_is_corrupt() {
    let scene = Scene::new();
    let store = scene.open().await;
    scene.execute("delete from quell_meta").await;
    let error = store.claim(None, &quell_conformance::Rig::wish(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
