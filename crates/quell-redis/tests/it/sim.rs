//! Simulated clients and workers on one prefix, each with a store of its own.

use std::sync::Arc;

use quell_conformance::sim::Place;
use quell_core::Store;
use quell_redis::RedisOptions;

/// A fresh prefix.
fn place() -> Place {
    let (url, prefix) = quell_services::redis_url_for_tests();
    Place::new(move |sink| {
        let options = RedisOptions::from_url(&url).unwrap().prefix(prefix.clone()).unwrap();
        async move { Arc::new(options.history(sink).open().await.unwrap()) as Arc<dyn Store> }
    })
}

quell_conformance::simulation!("redis", place);
