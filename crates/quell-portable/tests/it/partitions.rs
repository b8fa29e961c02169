//! A store of several partitions: the whole suite, the simulation, and what partitions know of each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_conformance::rig::{keyed, plain, queue, secs};
use quell_conformance::sim::Place;
use quell_conformance::spread::{
    a_later_home_knows_which_tasks_are_paused, a_schedule_moves_to_the_home_of_its_queue,
    homes_share_the_limit_of_a_tick, ids_stay_with_their_home, keys_keep_their_homes,
    queues_without_a_home_are_empty, schedule, what_needs_one_home_is_refused,
};
use quell_conformance::{Opened, Rig};
use quell_core::heartbeat::Heartbeat;
use quell_core::history::Sink;
use quell_core::part::Ids;
use quell_core::{Batch, Claim, ErrorKind, JobId, NewTrigger, QueueName, Receipt, Result, Store};
use quell_engine::Engine;
use quell_portable::{Change, Condition, MemoryTable, Partition, Partitions, Range, Spread, Table};

/// An id modulo this is the number of its partition.
const PARTITIONS: u64 = 1_024;

/// The ids of the first of several.
const FIRST: Ids = Ids { next: 1_025, step: 1_024 };

fn table() -> MemoryTable {
    MemoryTable::new(Rig::START)
}

async fn open(table: &MemoryTable, spread: &[(&str, u32)]) -> Result<Partitions<MemoryTable>> {
    let spread = spread.iter().map(|(name, count)| (QueueName::new(*name).unwrap(), *count));
    Partitions::open(table.clone(), "p", spread.collect(), None).await
}

async fn wide(table: &MemoryTable) -> Partitions<MemoryTable> {
    open(table, &[(queue().as_str(), 4)]).await.unwrap()
}

async fn narrow(table: &MemoryTable) -> Partitions<MemoryTable> {
    open(table, &[]).await.unwrap()
}

async fn take(store: &dyn Store, triggers: Vec<NewTrigger>) -> Result<Vec<Receipt>> {
    let batch = vec![Batch { triggers, dedup: None }];
    store.enqueue(Some(Rig::START), batch).await?.pop().unwrap()
}

fn number(id: JobId) -> u64 {
    id.get() % PARTITIONS
}

fn to(name: &str, payload: &str) -> NewTrigger {
    NewTrigger { queue: QueueName::new(name).unwrap(), ..plain(payload) }
}

mod conformance {
    use super::*;

    async fn store(sink: Option<Sink>) -> Partitions<MemoryTable> {
        Partitions::open(table(), "p", Spread::new(), sink).await.unwrap()
    }

    /// The tests' queue has the first partition: the model knows no other ids. A schedule comes and
    /// goes, which writes nothing else.
    async fn plain() -> Opened {
        let store = store(None).await;
        let (schedule, now) = (schedule(queue()), Some(Rig::START));
        store.set_schedule(now, &schedule).await.unwrap();
        store.delete_schedule(now, &schedule.name).await.unwrap();
        Opened { store: Arc::new(store), guard: Box::new(()) }
    }

    async fn recorded(sink: Sink) -> Opened {
        Opened { store: Arc::new(store(Some(sink)).await), guard: Box::new(()) }
    }

    quell_conformance::suite!(plain, recorded, FIRST);
}

fn place() -> Place {
    let table = table();
    Place::new(move |sink| {
        let opened = Partitions::open(table.clone(), "p", Spread::new(), Some(sink));
        async move { Arc::new(opened.await.unwrap()) as Arc<dyn Store> }
    })
}

quell_conformance::simulation!("partitions", place);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r03_ids_stay_with_their_partition_however_many_call_at_once() {
    let table = table();
    let open = || {
        let table = table.clone();
        async move { narrow(&table).await }
    };
    ids_stay_with_their_home(8, open, number).await;
}

#[tokio::test]
async fn r07_r11_a_key_is_always_in_the_same_of_a_queues_partitions() {
    let table = table();
    // The other process goes by what is there.
    let (store, other) = (wide(&table).await, narrow(&table).await);
    keys_keep_their_homes(&store, &other, number).await;
}

#[tokio::test]
async fn r18_r31_a_spread_queue_refuses_what_would_need_one_partition() {
    let table = table();
    let store = wide(&table).await;
    what_needs_one_home_is_refused(&store).await;
    let two_queues = vec![plain("1"), to("other", "2")];
    let refused = take(&store, two_queues).await.unwrap_err();
    assert!(refused.to_string().contains("one batch for each queue"), "{refused}");
}

#[tokio::test]
async fn r40_processes_that_disagree_on_the_partitions_are_refused() {
    let table = table();
    take(&wide(&table).await, vec![keyed("k")]).await.unwrap();
    let other = open(&table, &[(queue().as_str(), 2)]).await.unwrap_err();
    assert_eq!(other.field(), Some("shards"));
    assert!(other.to_string().contains("4 shards"), "{other}");
    for count in [0, 65] {
        let refused = open(&table, &[("mail", count)]).await.unwrap_err();
        assert_eq!(refused.field(), Some("shards"));
        assert!(refused.to_string().contains("1 to 64"), "{refused}");
    }
    // The same table, as a store of one partition.
    let whole = Engine::new(Partition::new(table.clone(), "w"));
    take(&whole, vec![plain("1")]).await.unwrap();
    let refused = Partitions::open(table, "w", Spread::new(), None).await.unwrap_err();
    assert_eq!(refused.field(), Some("layout"));
    assert!(refused.to_string().contains("a store of one partition"), "{refused}");
}

#[tokio::test]
async fn r33_a_partition_that_is_made_later_knows_which_tasks_are_paused() {
    a_later_home_knows_which_tasks_are_paused(&narrow(&table()).await).await;
}

#[tokio::test]
async fn r25_a_partition_that_is_made_later_knows_the_workers_of_its_queue() {
    let table = table();
    let store = narrow(&table).await;
    let beat = |name: &str| {
        let worker = Rig::claim_of(1).worker;
        Heartbeat {
            worker,
            incarnation: 1,
            host: "h".to_owned(),
            pid: 1,
            version: "1".to_owned(),
            queues: vec![QueueName::new(name).unwrap()],
            tasks: None,
            slots: 1,
            busy: 0,
            lease: secs(30),
            age: secs(0),
        }
    };
    store.heartbeat(Some(Rig::START), &beat(queue().as_str())).await.unwrap();
    take(&narrow(&table).await, vec![plain("1")]).await.unwrap();
    let own = Engine::new(Partition::new(table, format!("p:{}", queue())));
    assert_eq!(own.worker_rows().await.unwrap().len(), 1);
    assert_eq!(store.workers(Some(Rig::START)).await.unwrap().rows.len(), 1, "each is shown once");
}

#[tokio::test]
async fn r36_a_schedule_moves_to_the_partition_of_its_queue() {
    a_schedule_moves_to_the_home_of_its_queue(&narrow(&table()).await).await;
}

#[tokio::test]
async fn r36_partitions_share_the_limit_of_a_tick() {
    homes_share_the_limit_of_a_tick(&narrow(&table()).await).await;
}

/// The tags that the list has numbered.
async fn numbered(table: &MemoryTable) -> usize {
    let page = table.range("p:~23", &Range::of("p:s:"), 100).await.unwrap();
    page.rows.len()
}

#[tokio::test]
async fn r40_a_queue_that_is_only_asked_about_takes_no_partition() {
    let table = table();
    let store = open(&table, &[("wide", 4)]).await.unwrap();
    queues_without_a_home_are_empty(&store).await;
    assert_eq!(numbered(&table).await, 0);
    // What is written takes one, and is found by who asked before.
    take(&narrow(&table).await, vec![to("typo", "1")]).await.unwrap();
    assert_eq!(numbered(&table).await, 1);
    let claim = Claim { queue: QueueName::new("typo").unwrap(), ..Rig::claim_of(9) };
    assert_eq!(store.claim(None, &claim).await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn r18_a_store_whose_numbers_are_all_given_takes_no_other_queue() {
    let table = table();
    let store = narrow(&table).await;
    take(&store, vec![plain("1")]).await.unwrap();
    let given = Change {
        row: "p:n".to_owned(),
        condition: Condition::Present,
        value: Some(Arc::from(b"1022".as_slice())),
    };
    table.commit("p:~23", vec![given]).await.unwrap();
    let last = take(&store, vec![to("last", "1")]).await.unwrap()[0].job().unwrap();
    assert_eq!(number(last), 1_023);
    let refused = take(&store, vec![to("more", "1")]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full);
    assert!(refused.to_string().contains("use fewer queues"), "{refused}");
    // Those that there are go on, also in a process that has met none of them.
    let other = narrow(&table).await;
    take(&other, vec![plain("2"), plain("3")]).await.unwrap();
    assert_eq!(other.job(last).await.unwrap().unwrap().id, last);
}

/// A failover may lose the last writes to the list. A number that is given twice would send the calls
/// about one queue's jobs to the other's partition.
#[tokio::test]
async fn r39_a_list_that_forgot_a_partition_is_told_and_not_believed() {
    let table = table();
    let first = narrow(&table).await;
    let job = take(&first, vec![to("x", "1")]).await.unwrap()[0].job().unwrap();
    assert_eq!(number(job), 1);
    let lost = ["p:s:x", "p:n"].map(|row| Change {
        row: row.to_owned(),
        condition: Condition::Present,
        value: None,
    });
    table.commit("p:~23", lost.to_vec()).await.unwrap();
    // Another process, which has met neither queue.
    let second = narrow(&table).await;
    let other = take(&second, vec![to("y", "2")]).await.unwrap()[0].job().unwrap();
    assert_eq!(number(other), 1);
    let error = take(&second, vec![to("x", "3")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("has number 1"), "{error}");
    assert!(error.to_string().contains("\"p:s:x\""), "{error}");
}

/// Names that are long or have other characters stay distinct, and are found again.
#[tokio::test]
async fn r06_partitions_of_long_names_never_meet() {
    let table = table();
    let long = "q".repeat(90);
    let names = [long.clone(), format!("{long}r"), "a.b".to_owned(), "a:b".to_owned()];
    let store = narrow(&table).await;
    let mut numbers = BTreeSet::new();
    for name in &names {
        let job = take(&store, vec![to(name, "1")]).await.unwrap()[0].job().unwrap();
        numbers.insert(number(job));
    }
    assert_eq!(numbers.len(), names.len());
    let found = narrow(&table).await.queues().await.unwrap();
    let found: BTreeSet<String> = found.into_iter().map(|info| info.name.to_string()).collect();
    assert_eq!(found, BTreeSet::from(names));
}
