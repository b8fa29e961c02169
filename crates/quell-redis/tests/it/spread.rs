//! Shards: a queue that is spread over several, stores that must agree on how, and what the shards
//! know of each other.

use std::collections::BTreeSet;

use quell_conformance::Rig;
use quell_conformance::rig::{key, keyed, plain, queue, secs, task};
use quell_conformance::spread::{
    a_later_home_knows_which_tasks_are_paused, a_schedule_moves_to_the_home_of_its_queue,
    homes_share_the_limit_of_a_tick, ids_stay_with_their_home, keys_keep_their_homes,
    queues_without_a_home_are_empty, what_needs_one_home_is_refused,
};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{
    Batch, Claim, ErrorKind, JobId, NewTrigger, QueueName, Receipt, Result, ScheduleName, Store,
};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::RedisCluster;
use tokio::task::JoinSet;

/// An id modulo this is the number of its shard.
const SHARDS: u64 = 1_024;

fn at(prefix: &str, query: &str) -> RedisOptions {
    let (url, _) = quell_services::redis_url_for_tests();
    RedisOptions::from_url(&format!("{url}?prefix={prefix}&{query}")).unwrap()
}

fn prefix() -> String {
    quell_services::redis_url_for_tests().1
}

async fn spread() -> RedisStore {
    at(&prefix(), &format!("layout=queues&shards.{}=4", queue())).open().await.unwrap()
}

async fn take(store: &RedisStore, triggers: Vec<NewTrigger>) -> Result<Vec<Receipt>> {
    let batch = vec![Batch { triggers, dedup: None }];
    store.enqueue(Some(Rig::START), batch).await?.pop().unwrap()
}

fn shard(id: JobId) -> u64 {
    id.get() % SHARDS
}

/// Calls that others overtake again and again draw their ids before they decide.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r03_ids_stay_with_their_shard_however_many_call_at_once() {
    let prefix = prefix();
    let open = || {
        let options = at(&prefix, "layout=queues");
        async move { options.open().await.unwrap() }
    };
    ids_stay_with_their_home(16, open, shard).await;
}

/// A step that may fire a thousand ticks, and fires one, takes no thousand ids: each that is left out makes
/// a list of jobs longer to read.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r03_ticks_beside_busy_callers_leave_few_ids_out() {
    const CALLERS: usize = 8;
    const CALLS: usize = 12;
    const MOST: usize = 1_000;
    let prefix = prefix();
    let schedule = Schedule {
        name: ScheduleName::new("s").unwrap(),
        spec: Spec::every(secs(1), Rig::START).unwrap(),
        catch_up: CatchUp::All,
        trigger: plain("1"),
        declared: None,
    };
    let first = at(&prefix, "").open().await.unwrap();
    first.set_schedule(Some(Rig::START), &schedule).await.unwrap();
    let begins = take(&first, vec![plain("1")]).await.unwrap()[0].job().unwrap();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let options = at(&prefix, "");
        callers.spawn(async move {
            let store = options.open().await.unwrap();
            for call in 0..CALLS {
                let dedup = Dedup { key: key(&format!("{caller}-{call}")), until: HoldUntil::Done };
                take(&store, vec![NewTrigger { dedup: Some(dedup), ..plain("1") }]).await.unwrap();
                let after = u64::try_from(call * CALLERS + caller).unwrap();
                // Another process may have fired it by then.
                store.tick(Some(Rig::START + secs(after)), MOST).await.unwrap();
            }
        });
    }
    callers.join_all().await;
    let ends = take(&first, vec![plain("1")]).await.unwrap()[0].job().unwrap();
    let took = ends.get() - begins.get();
    let calls = u64::try_from(CALLERS * CALLS).unwrap();
    assert!(took < calls * 200, "{took} ids for {calls} triggers and as many ticks");
}

#[tokio::test]
async fn r07_r11_a_key_is_always_on_the_same_of_a_queues_shards() {
    let store = spread().await;
    for id in keys_keep_their_homes(&store, &store, shard).await {
        assert_eq!(store.job(id).await.unwrap().unwrap().id, id);
    }
    assert!(store.flush(None, &task("t"), &key("customer-1")).await.unwrap().is_none());
}

#[tokio::test]
async fn r18_r31_a_spread_queue_refuses_what_would_need_one_shard() {
    let store = spread().await;
    what_needs_one_home_is_refused(&store).await;
    // Without keys, a batch is on one shard, whichever that is.
    let free = take(&store, (0..9).map(|_| plain("1")).collect()).await.unwrap();
    let shards: BTreeSet<u64> =
        free.iter().map(|reported| shard(reported.job().unwrap())).collect();
    assert_eq!(shards.len(), 1);
}

#[tokio::test]
async fn r40_processes_that_disagree_on_the_shards_are_refused() {
    let prefix = prefix();
    let query = |count: u32| format!("layout=queues&shards.{}={count}", queue());
    let first = at(&prefix, &query(4)).open().await.unwrap();
    let reported = take(&first, vec![keyed("k")]).await.unwrap();
    let other = at(&prefix, &query(2)).open().await.unwrap_err();
    assert_eq!(other.field(), Some("shards"));
    assert!(other.to_string().contains("4 shards"), "{other}");
    // Who does not say goes by what is there.
    let silent = at(&prefix, "layout=queues").open().await.unwrap();
    let joined = take(&silent, vec![keyed("k")]).await.unwrap();
    assert_eq!(joined[0].job(), reported[0].job());
    let one = at(&prefix, "layout=one").open().await.unwrap_err();
    assert_eq!(one.field(), Some("layout"));
    assert!(one.to_string().contains("`queues`"), "{one}");
}

#[tokio::test]
async fn r33_a_shard_that_is_made_later_knows_which_tasks_are_paused() {
    let store = at(&prefix(), "layout=queues").open().await.unwrap();
    a_later_home_knows_which_tasks_are_paused(&store).await;
}

#[tokio::test]
async fn r36_a_schedule_moves_to_the_shard_of_its_queue() {
    let store = at(&prefix(), "layout=queues").open().await.unwrap();
    a_schedule_moves_to_the_home_of_its_queue(&store).await;
}

#[tokio::test]
async fn r36_shards_share_the_limit_of_a_tick() {
    let store = at(&prefix(), "layout=queues").open().await.unwrap();
    homes_share_the_limit_of_a_tick(&store).await;
}

/// Makes a queue over `shards` shards; returns how many of them each of the masters has.
async fn masters_of_shards(masters: usize, shards: usize) -> Vec<usize> {
    let cluster = RedisCluster::start(masters, 0, &[]).unwrap();
    let url = format!("redis-cluster://{}?shards.{}={shards}", cluster.nodes(), queue());
    let store = RedisOptions::from_url(&url).unwrap().open().await.unwrap();
    for number in 0..64 {
        take(&store, vec![keyed(&format!("customer-{number}"))]).await.unwrap();
    }
    let on = |node: usize| {
        let keys = cluster.node(node).unwrap().command(&["KEYS", "quell:*:jobs"]).unwrap();
        keys.lines().filter(|line| !line.is_empty()).count()
    };
    (0..masters).map(on).collect()
}

#[tokio::test]
async fn each_master_has_as_many_of_a_queues_shards() {
    assert_eq!(masters_of_shards(2, 2).await, [1, 1]);
    assert_eq!(masters_of_shards(3, 3).await, [1, 1, 1]);
    assert_eq!(masters_of_shards(3, 12).await, [4, 4, 4]);
}

#[tokio::test]
async fn triggers_without_keys_that_ride_together_go_to_few_shards() {
    let store = spread().await;
    for (together, shards) in [(1, 1), (64, 1), (65, 2), (1_000, 4)] {
        let batches = (0..together).map(|_| Batch::one(plain("1"))).collect();
        let taken = store.enqueue(Some(Rig::START), batches).await.unwrap();
        let of = |one: Result<Vec<Receipt>>| shard(one.unwrap()[0].job().unwrap());
        let met: BTreeSet<u64> = taken.into_iter().map(of).collect();
        assert_eq!(met.len(), shards, "{together} triggers");
    }
}

#[tokio::test]
async fn r17_a_batch_goes_where_its_key_is_wherever_in_it_the_key_stands() {
    let store = spread().await;
    for number in 0..16 {
        let name = format!("k{number}");
        let receipts = take(&store, vec![plain("1"), keyed(&name), plain("2")]).await.unwrap();
        let shards: BTreeSet<u64> = receipts.iter().filter_map(Receipt::job).map(shard).collect();
        assert_eq!(shards.len(), 1, "a batch is one step: {receipts:?}");
    }
}

/// A failover may lose the last writes to the directory. A number that is given twice would send the
/// calls about one queue's jobs to the other's shard.
#[tokio::test]
async fn r39_a_directory_that_forgot_a_shard_is_told_and_not_believed() {
    let prefix = prefix();
    let to = |name: &str, payload: &str| NewTrigger {
        queue: QueueName::new(name).unwrap(),
        ..plain(payload)
    };
    let first = at(&prefix, "layout=queues").open().await.unwrap();
    let job = take(&first, vec![to("x", "1")]).await.unwrap()[0].job().unwrap();
    assert_eq!(shard(job), 1);
    let client = redis::Client::open(quell_services::redis_url_for_tests().0).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let meta = format!("{prefix}:{{#}}:meta");
    let mut lose = redis::pipe();
    lose.hdel(&meta, "shard x").hset(&meta, "shards", 0);
    lose.exec_async(&mut redis).await.unwrap();
    // Another process, which has met neither queue.
    let second = at(&prefix, "layout=queues").open().await.unwrap();
    let other = take(&second, vec![to("y", "2")]).await.unwrap()[0].job().unwrap();
    assert_eq!(shard(other), 1);
    let error = take(&second, vec![to("x", "3")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("shard \"x\" has number 1"), "{error}");
    assert!(error.to_string().contains(&format!("HSET {meta} \"shard x\" 1")), "{error}");
}

/// The shards that the directory has numbered.
async fn numbered(prefix: &str) -> Vec<String> {
    let (url, _) = quell_services::redis_url_for_tests();
    let client = redis::Client::open(url).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let meta = format!("{prefix}:{{#}}:meta");
    let fields: Vec<String> = redis::cmd("HKEYS").arg(meta).query_async(&mut redis).await.unwrap();
    fields.into_iter().filter(|field| field.starts_with("shard ")).collect()
}

#[tokio::test]
async fn r40_a_queue_that_is_only_asked_about_takes_no_shard() {
    let prefix = prefix();
    let store = at(&prefix, "layout=queues&shards.wide=4").open().await.unwrap();
    queues_without_a_home_are_empty(&store).await;
    assert_eq!(numbered(&prefix).await, [""; 0]);
    // What is written takes one, and is found by who asked before.
    let trigger = |name: &str| NewTrigger { queue: QueueName::new(name).unwrap(), ..plain("1") };
    take(&at(&prefix, "layout=queues").open().await.unwrap(), vec![trigger("typo")]).await.unwrap();
    assert_eq!(numbered(&prefix).await, ["shard typo"]);
    let claim = Claim { queue: QueueName::new("typo").unwrap(), ..Rig::claim_of(9) };
    assert_eq!(store.claim(None, &claim).await.unwrap().jobs.len(), 1);
}
