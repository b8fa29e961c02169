//! Every rule on a fresh store: on one node, on one node with a shard for each queue, and on a
//! Cluster.

use std::sync::Arc;

use quell_conformance::Opened;
use quell_core::history::Sink;
use quell_core::part::Ids;
use quell_redis::RedisOptions;

async fn open(options: RedisOptions, sink: Option<Sink>) -> Opened {
    let options = match sink {
        Some(sink) => options.history(sink),
        None => options,
    };
    Opened { store: Arc::new(options.open().await.unwrap()), guard: Box::new(()) }
}

mod one {
    use super::*;

    fn options() -> RedisOptions {
        let (url, prefix) = quell_services::redis_url_for_tests();
        RedisOptions::from_url(&url).unwrap().prefix(prefix).unwrap()
    }

    async fn plain() -> Opened {
        open(options(), None).await
    }

    async fn recorded(sink: Sink) -> Opened {
        open(options(), Some(sink)).await
    }

    quell_conformance::suite!(plain, recorded);
}

/// The ids of the first shard of several.
const SHARDED: Ids = Ids { next: 1_025, step: 1_024 };

/// The store with the tests' queue on its first shard: the model knows no other ids.
async fn sharded(options: RedisOptions) -> Opened {
    let opened = open(options, None).await;
    crate::place::make_shard(&*opened.store).await;
    opened
}

mod queues {
    use super::*;

    fn options() -> RedisOptions {
        let (url, prefix) = quell_services::redis_url_for_tests();
        RedisOptions::from_url(&format!("{url}?layout=queues&prefix={prefix}")).unwrap()
    }

    async fn plain() -> Opened {
        sharded(options()).await
    }

    async fn recorded(sink: Sink) -> Opened {
        open(options(), Some(sink)).await
    }

    quell_conformance::suite!(plain, recorded, SHARDED);
}

mod cluster {
    use super::*;

    fn options() -> RedisOptions {
        let (nodes, prefix) = quell_services::redis_cluster_for_tests();
        RedisOptions::from_url(&format!("redis-cluster://{nodes}?prefix={prefix}")).unwrap()
    }

    async fn plain() -> Opened {
        sharded(options()).await
    }

    async fn recorded(sink: Sink) -> Opened {
        open(options(), Some(sink)).await
    }

    quell_conformance::suite!(plain, recorded, SHARDED);
}
