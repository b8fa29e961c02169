//! Rows that cannot be decoded are set aside, and harm no other job.

use async_trait::async_trait;
use quell_conformance::Rig;
use quell_conformance::unreadable::Damage;
use quell_core::JobId;

use crate::scene::Scene;

/// Rows whose shape is no JSON.
struct Shapes(Scene);

#[async_trait]
impl Damage for Shapes {
    async fn damage(&self, job: JobId) {
        self.run("shape = '{oops' || coalesce(shape, '')", job);
    }

    async fn repair(&self, job: JobId) {
        self.run("shape = nullif(substr(shape, 6), '')", job);
    }
}

impl Shapes {
    fn run(&self, change: &str, job: JobId) {
        for table in ["job", "ended"] {
            let schema = self.0.schema();
            self.0.sql(&format!("update \"{schema}\".{table} set {change} where id = {job}"));
        }
    }
}

async fn damageable() -> (Rig, Shapes) {
    let scene = Scene::new();
    (scene.rig().await, Shapes(scene))
}

quell_conformance::unreadable_scenes!(damageable());
