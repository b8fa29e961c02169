//! Notifications from other processes (R34), each a store of its own here, and what becomes of them
//! where the connection that receives them is lost.

use futures_util::StreamExt;
use quell_conformance::rig::{plain, queue};
use quell_core::{Batch, Store, Timestamp, Wakeup, Wakeups};
use quell_redis::RedisStore;
use redis::aio::MultiplexedConnection;

use crate::place::{PATIENCE, Place, at_last, server};

async fn trigger(store: &RedisStore) {
    store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
}

/// The next hint that is about the tests' queue, or about any where `any` is asked for.
pub(crate) async fn received(wakeups: &mut Wakeups, any: bool) -> Wakeup {
    let next = async {
        loop {
            let hint = wakeups.next().await.unwrap();
            if hint.queue.is_none() == any && hint.cancelled.is_none() {
                return hint;
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.unwrap()
}

/// How many connections receive notifications.
async fn listeners(redis: &mut MultiplexedConnection) -> usize {
    let list: String =
        redis::cmd("CLIENT").arg(&["LIST", "TYPE", "PUBSUB"]).query_async(redis).await.unwrap();
    list.lines().filter(|line| !line.is_empty()).count()
}

#[tokio::test]
async fn r34_a_trigger_of_one_process_is_heard_by_the_others() {
    let place = Place::shared();
    let (one, other) = (place.open().await, place.open().await);
    let mut wakeups = other.wakeups();
    for _ in 0..3 {
        trigger(&one).await;
        let hint = received(&mut wakeups, false).await;
        assert_eq!(hint.queue, Some(queue()));
        assert!(hint.due > Timestamp::MIN, "{hint:?}");
    }
    let neighbour = Place { prefix: format!("{}-2", place.prefix), ..Place::shared() };
    let neighbour = neighbour.open().await;
    let mut elsewhere = neighbour.wakeups();
    trigger(&one).await;
    received(&mut wakeups, false).await;
    assert!(futures_util::FutureExt::now_or_never(elsewhere.next()).is_none(), "another store");
}

#[tokio::test]
async fn r34_r39_who_lost_the_hints_looks_at_once_and_hears_again() {
    let server = server(&[]);
    let place = Place::on(&server);
    let (one, other) = (place.open().await, place.open().await);
    let mut redis = place.connect().await;
    let mut wakeups = other.wakeups();
    for _ in 0..3 {
        assert_eq!(listeners(&mut redis).await, 2);
        let kill = ["KILL", "TYPE", "pubsub"];
        let killed: usize = redis::cmd("CLIENT").arg(&kill).query_async(&mut redis).await.unwrap();
        assert_eq!(killed, 2);
        // The process cannot know which notifications it missed meanwhile.
        let hint = received(&mut wakeups, true).await;
        assert_eq!(hint.due, Timestamp::MIN);
        let watch = redis.clone();
        at_last("no process listens any more", async || {
            match listeners(&mut watch.clone()).await {
                2 => Ok(()),
                count => Err(quell_core::Error::invalid("listeners", count.to_string())),
            }
        })
        .await;
        trigger(&one).await;
        received(&mut wakeups, false).await;
    }
}
