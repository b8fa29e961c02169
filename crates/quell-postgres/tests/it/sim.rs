//! Simulated clients and workers on one schema, each with a store of its own.

use std::sync::Arc;

use quell_conformance::sim::Place;
use quell_core::Store;
use quell_postgres::PostgresOptions;

/// A fresh schema. A process makes one call at a time, so few connections do.
fn place() -> Place {
    let url = quell_services::url_for_tests();
    Place::new(move |sink| {
        let options = PostgresOptions::from_url(&url).unwrap().connections(3).history(sink);
        async move { Arc::new(options.open().await.unwrap()) as Arc<dyn Store> }
    })
}

quell_conformance::simulation!("postgres", place);
