//! The oldest server that is promised, and Valkey: random operations beside the model, and in `long`
//! every rule, on one node and on a Cluster.

use std::sync::Arc;

use quell_conformance::effort::cases;
use quell_conformance::rig::until;
use quell_conformance::{Opened, oracle, report};
use quell_services::{Redis, Release};

use crate::place::Place;

/// A server of the release, as a Cluster of one node where that is asked for.
async fn start(release: Release, is_cluster: bool) -> Redis {
    if !is_cluster {
        return Redis::start_release(release, &[]).unwrap();
    }
    let server = Redis::start_release(release, &["cluster-enabled yes"]).unwrap();
    let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let words: Vec<&str> =
        ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
    server.command(&words).unwrap();
    until("the Cluster is up", async || {
        server.command(&["CLUSTER", "INFO"]).unwrap().contains("cluster_state:ok")
    })
    .await;
    server
}

/// A prefix of its own.
fn fresh(server: &Redis, is_cluster: bool) -> Place {
    let scheme = if is_cluster { "redis-cluster" } else { "redis" };
    let url = format!("{scheme}://{}/", server.address());
    Place { url, prefix: format!("t{:016x}", fastrand::u64(..)) }
}

async fn opened(place: Place) -> Opened {
    Opened { store: Arc::new(place.open().await), guard: Box::new(()) }
}

fn answers_like_the_model(release: Release) {
    let server = Redis::start_release(release, &[]).unwrap();
    let scripts = u32::try_from(cases(4, 64)).unwrap();
    let ran = oracle::run(|| opened(fresh(&server, false)), oracle::COUNTED, scripts, None);
    assert!(ran.is_ok(), "{}", ran.unwrap_err());
}

#[test]
fn redis_6_2_answers_like_the_model() {
    answers_like_the_model(Release::Redis6);
}

#[test]
fn valkey_9_answers_like_the_model() {
    answers_like_the_model(Release::Valkey9);
}

/// The whole suite on each release, on one node and on a Cluster: `cargo xtask test --long` runs these.
mod long {
    use super::*;

    async fn passes_the_suite(release: Release, version: &str) {
        for is_cluster in [false, true] {
            let server = Arc::new(start(release, is_cluster).await);
            let about = server.command(&["INFO", "server"]).unwrap();
            assert!(about.contains(version), "{about}");
            let report = report::run("redis", move || opened(fresh(&server, is_cluster))).await;
            assert_eq!(report.failures().count(), 0, "a Cluster: {is_cluster}\n{report}");
        }
    }

    #[tokio::test]
    async fn r39_redis_6_2_passes_the_suite() {
        passes_the_suite(Release::Redis6, "redis_version:6.2.").await;
    }

    #[tokio::test]
    async fn r39_valkey_9_passes_the_suite() {
        passes_the_suite(Release::Valkey9, "valkey_version:9.").await;
    }
}
