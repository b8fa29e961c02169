//! Every rule on a fresh store.

use std::sync::Arc;

use quell_conformance::Opened;
use quell_core::history::Sink;
use quell_redis::RedisOptions;

async fn open() -> Opened {
    open_with(|options| options).await
}

async fn open_recorded(sink: Sink) -> Opened {
    open_with(|options| options.history(sink)).await
}

async fn open_with(set: impl FnOnce(RedisOptions) -> RedisOptions) -> Opened {
    let (url, prefix) = quell_services::redis_url_for_tests();
    let options = RedisOptions::from_url(&url).unwrap().prefix(prefix).unwrap();
    let store = set(options).open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

quell_conformance::suite!(open, open_recorded);
