//! Every rule on a fresh schema.

use std::sync::Arc;

use quell_conformance::Opened;
use quell_core::history::Sink;
use quell_postgres::PostgresOptions;

async fn open() -> Opened {
    open_with(|options| options).await
}

async fn open_recorded(sink: Sink) -> Opened {
    open_with(|options| options.history(sink)).await
}

async fn open_with(set: impl FnOnce(PostgresOptions) -> PostgresOptions) -> Opened {
    let options = PostgresOptions::from_url(&quell_services::url_for_tests()).unwrap();
    let store = set(options).open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

quell_conformance::suite!(open, open_recorded);
