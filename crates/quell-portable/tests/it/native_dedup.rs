//! Dedup keys that the timer keeps: a trigger with one travels in a message that is named after the key.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use quell_conformance::rig::{key, keyed, plain, secs, task};
use quell_conformance::{Opened, Rig};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::Idempotency;
use quell_core::schedule::{CatchUp, Every, Schedule, Spec};
use quell_core::{
    Batch, Error, ErrorKind, NewTrigger, Payload, QueueName, Receipt, Result, Retention,
    ScheduleName, Store, Wakeups, When,
};
use quell_engine::Engine;
use quell_portable::{
    Delivery, MemoryTable, MemoryTimer, Message, Partition, Received, Scheduled, Table, Timed,
    Timer,
};
use quell_testkit::{Around, Bent, Counted, Sending};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::between::{self as table, names, two};

const WINDOW: Duration = Duration::from_secs(600);
const LOCK: Duration = Duration::from_secs(30);
const DAY: u64 = 24 * 3_600;

/// A timer whose calls fail on request.
#[derive(Clone, Debug)]
struct Faulty {
    timer: MemoryTimer,
    /// What the next message with a name meets.
    sends: Arc<Mutex<Option<Fault>>>,
    /// Completions that are to fail.
    completes: Arc<AtomicU64>,
    /// How often one message was delivered at most.
    deliveries: Arc<AtomicU32>,
    /// The names that messages had.
    names: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Refused,
    AnswerLost,
}

#[async_trait]
impl Around for Faulty {
    fn timer(&self) -> &MemoryTimer {
        &self.timer
    }

    async fn send(&self, sending: Sending<'_>) -> Result<Option<Scheduled>> {
        let fault = match &sending.message.name {
            Some(name) => {
                self.names.lock().unwrap().push(name.clone());
                self.sends.lock().unwrap().take()
            }
            None => None,
        };
        match fault {
            None => sending.to(&self.timer).await,
            Some(Fault::Refused) => Err(Error::new(ErrorKind::Unavailable, "the timer is away")),
            Some(Fault::AnswerLost) => {
                sending.to(&self.timer).await?;
                Err(Error::new(ErrorKind::UnknownOutcome, "the answer was lost"))
            }
        }
    }

    async fn receive(&self, most: usize, wait: Duration) -> Result<Vec<Received>> {
        let received = self.timer.receive(most, wait).await?;
        for message in &received {
            self.deliveries.fetch_max(message.deliveries, Ordering::SeqCst);
        }
        Ok(received)
    }

    async fn complete(&self, delivery: &Delivery) -> Result<()> {
        let less = |count: u64| count.checked_sub(1);
        if self.completes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Err(Error::new(ErrorKind::Unavailable, "the timer is away"));
        }
        self.timer.complete(delivery).await
    }
}

/// A table and a timer, whose clocks go together.
struct Scene {
    table: Counted,
    timer: Faulty,
}

struct Process {
    rig: Rig,
    /// Kept by those with workers: they take messages.
    _wakeups: Option<Wakeups>,
}

impl Scene {
    fn new() -> Self {
        Self::with_most_deliveries(u32::MAX)
    }

    fn with_most_deliveries(most: u32) -> Self {
        let timer = MemoryTimer::new(Rig::START, LOCK).with_duplicate_window(WINDOW);
        let timer = timer.with_most_deliveries(most);
        let (sends, completes) = (Arc::default(), Arc::default());
        let (deliveries, names) = (Arc::default(), Arc::default());
        let timer = Faulty { timer, sends, completes, deliveries, names };
        Scene { table: Counted::new(Rig::START), timer }
    }

    fn store(&self) -> Timed<Counted> {
        let timer: Arc<dyn Timer> = Arc::new(Bent(self.timer.clone()));
        let partition = Partition::new(self.table.clone(), "p").with_timer(timer);
        Timed::new(Engine::new(partition)).unwrap()
    }

    async fn client(&self) -> Process {
        process(self.store().native_dedup().await.unwrap(), false)
    }

    async fn worker(&self) -> Process {
        process(self.store().native_dedup().await.unwrap(), true)
    }

    fn at(&self, second: u64, processes: &mut [&mut Process]) {
        let now = Rig::START + secs(second);
        self.table.table.advance(now);
        for process in processes {
            process.rig.at(second);
        }
        self.timer.timer.advance(now);
    }

    /// The jobs that are there once all messages of triggers were received.
    async fn taken_in(&self, by: &Process, jobs: usize) {
        let reached = async {
            while by.rig.jobs().await.len() < jobs {
                sleep(Duration::from_millis(10)).await;
            }
            // More would come by now.
            sleep(secs(5)).await;
        };
        let in_time = timeout(secs(600), reached).await;
        let found = by.rig.jobs().await;
        assert!(in_time.is_ok() && found.len() == jobs, "{jobs}: {found:#?}");
    }
}

fn process<T: Table>(store: Timed<T>, works: bool) -> Process {
    let store: Arc<dyn Store> = Arc::new(store);
    let wakeups = works.then(|| store.wakeups());
    Process { rig: Rig::new(Opened { store, guard: Box::new(()) }), _wakeups: wakeups }
}

fn dedup(name: &str) -> Dedup {
    Dedup { key: key(name), until: HoldUntil::Elapsed(WINDOW) }
}

fn unique(name: &str, payload: &str) -> NewTrigger {
    NewTrigger { dedup: Some(dedup(name)), ..plain(payload) }
}

fn batch(name: &str, payloads: &[&str]) -> Batch {
    let triggers = payloads.iter().map(|payload| plain(payload)).collect();
    Batch { triggers, dedup: Some(dedup(name)) }
}

async fn payloads(process: &Process) -> BTreeSet<String> {
    let jobs = process.rig.jobs().await;
    jobs.iter().map(|job| job.payload.as_str().to_owned()).collect()
}

/// Runs all jobs to their ends.
async fn works(process: &Process) {
    for job in process.rig.claim().await {
        process.rig.succeed(&job).await;
    }
}

#[tokio::test(start_paused = true)]
async fn r16_r18_a_key_is_forwarded_and_the_table_is_not_touched() {
    let scene = Scene::new();
    let client = scene.client().await;
    let (before, requests) =
        (names(&scene.table.table, "").await, scene.table.requests.load(Ordering::SeqCst));
    for payload in ["1", "2"] {
        assert_eq!(client.rig.trigger(unique("d", payload)).await, Receipt::Pending);
    }
    assert_eq!(scene.table.requests.load(Ordering::SeqCst), requests);
    assert_eq!(names(&scene.table.table, "").await, before);
    assert_eq!(scene.timer.timer.scheduled(), 1);
    let worker = scene.worker().await;
    scene.taken_in(&worker, 1).await;
    assert_eq!(payloads(&worker).await, ["1".to_owned()].into(), "the first one wins");
    works(&worker).await;
    assert!(scene.timer.timer.dead().is_empty());
}

/// The triggers of one call go their own ways, and receipts keep their order.
#[tokio::test(start_paused = true)]
async fn r05_r18_batches_without_a_key_of_the_same_call_go_to_the_table() {
    let scene = Scene::new();
    let client = scene.client().await;
    let batches =
        vec![Batch::one(plain("1")), Batch::one(unique("d", "2")), Batch::one(plain("3"))];
    let answers = client.rig.store.enqueue(Some(Rig::START), batches.clone()).await.unwrap();
    let reported: Vec<&str> =
        answers.iter().map(|one| one.as_ref().unwrap()[0].outcome()).collect();
    assert_eq!(reported, ["accepted", "pending", "accepted"]);
    // A table that is away fails its own batches alone.
    scene.table.refuses.store(1, Ordering::SeqCst);
    let answers = client.rig.store.enqueue(Some(Rig::START), batches).await.unwrap();
    let reported: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(reported, [false, true, false]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_r18_of_callers_in_two_processes_that_race_one_is_accepted() {
    let scene = Scene::new();
    let clients = [scene.client().await, scene.client().await];
    let mut calls = JoinSet::new();
    for number in 0..32 {
        let store = Arc::clone(&clients[number % 2].rig.store);
        let batch = Batch::one(unique("d", &number.to_string()));
        calls.spawn(async move { store.enqueue(Some(Rig::START), vec![batch]).await });
    }
    for answer in calls.join_all().await {
        assert_eq!(*answer.unwrap()[0].as_ref().unwrap(), [Receipt::Pending]);
    }
    assert_eq!(scene.timer.timer.scheduled(), 1);
    let worker = scene.worker().await;
    let all = async {
        while worker.rig.jobs().await.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(secs(20), all).await.unwrap();
    assert_eq!(worker.rig.jobs().await.len(), 1);
}

/// To the microsecond on the timer's clock; duplicates extend nothing.
#[tokio::test(start_paused = true)]
async fn r16_r18_a_key_is_free_after_the_window_and_not_before() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client().await, scene.worker().await);
    client.rig.trigger(unique("d", "1")).await;
    scene.taken_in(&worker, 1).await;
    works(&worker).await;
    scene.at(599, &mut [&mut client, &mut worker]);
    client.rig.trigger(unique("d", "2")).await;
    scene.taken_in(&worker, 1).await;
    scene.at(600, &mut [&mut client, &mut worker]);
    client.rig.trigger(unique("d", "3")).await;
    scene.taken_in(&worker, 2).await;
    assert_eq!(payloads(&worker).await, ["1".to_owned(), "3".to_owned()].into());
}

#[tokio::test(start_paused = true)]
async fn r17_r18_a_batch_is_one_message_with_one_key() {
    let scene = Scene::new();
    let client = scene.client().await;
    let receipts = client.rig.trigger_batch(batch("d", &["1", "2", "3"])).await;
    assert_eq!(receipts, vec![Receipt::Pending; 3]);
    assert_eq!(scene.timer.timer.scheduled(), 1);
    // A batch and a trigger with one key are duplicates of each other.
    client.rig.trigger_batch(batch("d", &["4", "5"])).await;
    client.rig.trigger(unique("d", "6")).await;
    assert_eq!(scene.timer.timer.scheduled(), 1);
    let worker = scene.worker().await;
    scene.taken_in(&worker, 3).await;
    let jobs = worker.rig.jobs().await;
    let mut order: Vec<_> = jobs.iter().map(|job| (job.id, job.payload.as_str())).collect();
    order.sort_unstable();
    assert_eq!(order.iter().map(|(_, payload)| *payload).collect::<Vec<_>>(), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn r16_r18_a_message_that_the_timer_refused_burns_no_key() {
    let scene = Scene::new();
    let client = scene.client().await;
    *scene.timer.sends.lock().unwrap() = Some(Fault::Refused);
    let refused = client.rig.try_batch(Batch::one(unique("d", "1"))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    client.rig.trigger(unique("d", "2")).await;
    let worker = scene.worker().await;
    scene.taken_in(&worker, 1).await;
    assert_eq!(payloads(&worker).await, ["2".to_owned()].into());
}

/// The caller gets an unknown outcome, and its key makes a retry safe.
#[tokio::test(start_paused = true)]
async fn r01_r18_a_lost_answer_of_the_timer_is_told_and_trying_again_makes_no_second_job() {
    let scene = Scene::new();
    let client = scene.client().await;
    *scene.timer.sends.lock().unwrap() = Some(Fault::AnswerLost);
    let unknown = client.rig.try_batch(batch("d", &["1", "2"])).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownOutcome);
    client.rig.trigger_batch(batch("d", &["1", "2"])).await;
    let worker = scene.worker().await;
    scene.taken_in(&worker, 2).await;
}

/// Processes die while the table is away, each with the message: a timer would put it aside.
#[tokio::test(start_paused = true)]
async fn r01_r18_a_message_outlives_the_processes_that_could_not_act_on_it() {
    let scene = Scene::with_most_deliveries(8);
    let client = scene.client().await;
    client.rig.trigger(unique("d", "1")).await;
    scene.table.refuses.store(1, Ordering::SeqCst);
    for _ in 0..12 {
        let dies = scene.worker().await;
        sleep(secs(5)).await;
        drop(dies);
        scene.timer.timer.lose_locks();
    }
    scene.table.refuses.store(0, Ordering::SeqCst);
    let worker = scene.worker().await;
    scene.taken_in(&worker, 1).await;
    assert_eq!(scene.timer.timer.dead(), []);
}

/// A message comes again whose completion was lost, while its job is there, and long after its row went.
#[tokio::test(start_paused = true)]
async fn r01_r18_a_message_that_comes_again_makes_no_second_job() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client().await, scene.worker().await);
    // The trigger's message, and not the one that wakes a worker, as no worker runs yet.
    scene.timer.completes.store(1, Ordering::SeqCst);
    client.rig.trigger_batch(batch("d", &["1", "2"])).await;
    scene.taken_in(&worker, 2).await;
    assert_eq!(scene.timer.completes.load(Ordering::SeqCst), 0);
    scene.timer.completes.store(1, Ordering::SeqCst);
    scene.at(31, &mut [&mut client, &mut worker]);
    scene.taken_in(&worker, 2).await;
    works(&worker).await;
    let none = Retention { succeeded: Some(Duration::ZERO), dead: None };
    for second in [3_600, DAY, 13 * DAY] {
        scene.timer.completes.store(10, Ordering::SeqCst);
        scene.at(second, &mut [&mut client, &mut worker]);
        worker.rig.prune(second, &none, 1_000).await;
        scene.taken_in(&worker, 0).await;
    }
    let carried = scene.timer.timer.waiting();
    assert!(!carried.is_empty(), "it comes again still");
    assert!(scene.timer.timer.dead().is_empty());
}

/// After 14 days the record may be gone: the message is put aside, where an operator finds it, and its
/// triggers do not run.
#[tokio::test(start_paused = true)]
async fn r18_a_message_that_is_too_old_is_put_aside() {
    let scene = Scene::new();
    let mut client = scene.client().await;
    client.rig.trigger(unique("d", "1")).await;
    scene.at(14 * DAY - 1, &mut [&mut client]);
    client.rig.trigger(unique("e", "2")).await;
    let mut worker = scene.worker().await;
    worker.rig.at(14 * DAY - 1);
    scene.taken_in(&worker, 2).await;
    drop(worker);
    let scene = Scene::new();
    let mut client = scene.client().await;
    client.rig.trigger(unique("d", "1")).await;
    scene.at(14 * DAY, &mut [&mut client]);
    let worker = scene.worker().await;
    scene.taken_in(&worker, 0).await;
    let dead = scene.timer.timer.dead();
    assert_eq!(dead.len(), 1);
    assert!(dead[0].1.contains("336 h old, the limit is 336 h"), "{}", dead[0].1);
}

/// A message is held while the table is unreachable: released each time, it would be put aside in the end.
#[tokio::test(start_paused = true)]
async fn r01_r18_r39_a_message_waits_for_a_table_that_is_away() {
    let scene = Scene::new();
    let (mut client, mut worker) = (scene.client().await, scene.worker().await);
    scene.table.refuses.store(1, Ordering::SeqCst);
    client.rig.trigger(unique("d", "1")).await;
    for second in (10..600).step_by(10) {
        sleep(secs(10)).await;
        scene.at(second, &mut [&mut client, &mut worker]);
    }
    assert_eq!(scene.timer.timer.waiting().len(), 1);
    assert_eq!(scene.timer.deliveries.load(Ordering::SeqCst), 1, "its lock is renewed");
    scene.table.refuses.store(0, Ordering::SeqCst);
    scene.taken_in(&worker, 1).await;
}

/// A commit whose answer was lost wrote the jobs and the record.
#[tokio::test(start_paused = true)]
async fn r01_r18_a_lost_answer_of_the_table_makes_no_second_job() {
    let two = two();
    let timer = MemoryTimer::new(Rig::START, LOCK).with_duplicate_window(WINDOW);
    let partition = Partition::new(two.between.clone(), "p").with_timer(Arc::new(timer.clone()));
    let store = Timed::new(Engine::new(partition)).unwrap().native_dedup().await.unwrap();
    let worker = process(store, true);
    two.between.fail(table::Fault::AnswerLost, "j:");
    worker.rig.trigger_batch(batch("d", &["1", "2"])).await;
    sleep(secs(30)).await;
    assert_eq!(worker.rig.jobs().await.len(), 2);
    assert!(!two.between.fails(), "the fault was met");
    assert!(timer.dead().is_empty());
}

/// Each refusal names the option, what was asked and what to do; nothing is sent or written.
#[tokio::test(start_paused = true)]
async fn r18_what_a_message_cannot_keep_is_refused_before_anything_is_sent() {
    let scene = Scene::new();
    let client = scene.client().await;
    let before = names(&scene.table.table, "").await;
    let held = |until| NewTrigger { dedup: Some(Dedup { key: key("d"), until }), ..plain("1") };
    let long = format!("\"{}\"", "x".repeat(64 << 10));
    let own = |count| Batch { triggers: vec![unique("d", "1"); count], dedup: None };
    let of = |trigger| Batch::one(trigger);
    let unable = ErrorKind::Unsupported;
    for (batch, kind, said) in [
        (of(held(HoldUntil::default())), unable, "taken for 3600s, the timer's queue remembers"),
        (of(held(HoldUntil::Elapsed(secs(599)))), unable, "taken for 599s"),
        (of(held(HoldUntil::Started)), unable, "until its job started"),
        (of(held(HoldUntil::Done)), unable, "until its job ended"),
        (of(NewTrigger { dedup: Some(dedup("d")), ..keyed("k") }), unable, "a debounce key"),
        (
            of(NewTrigger { idempotency: Some(Idempotency::new(key("i"))), ..unique("d", "1") }),
            unable,
            "an idempotency key",
        ),
        (own(2), unable, "2 of 2 triggers have their own"),
        (Batch { dedup: Some(dedup("e")), ..own(1) }, unable, "1 of 1 triggers have their own"),
        (
            Batch { triggers: vec![plain("1"), keyed("k")], dedup: Some(dedup("d")) },
            unable,
            "triggers[1]: `native_dedup`",
        ),
        (batch("d", &["1"; 48]), unable, "a batch of 48 triggers changes 102 rows"),
        (of(unique("d", &long)), ErrorKind::Invalid, "the limit is 65472"),
    ] {
        let error = client.rig.try_batch(batch).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(scene.timer.timer.scheduled(), 0);
    assert_eq!(names(&scene.table.table, "").await, before);
    client.rig.trigger(unique("d", "1")).await;
    assert_eq!(scene.timer.timer.scheduled(), 1, "no refusal took the key");
}

/// What is not refused is enqueued when it comes, as large as it may be.
#[tokio::test(start_paused = true)]
async fn r18_the_largest_batches_that_are_sent_are_enqueued() {
    let scene = Scene::new();
    let client = scene.client().await;
    let of = |place: usize| NewTrigger {
        task: task(&format!("t{place}")),
        queue: QueueName::new(format!("q{place}")).unwrap(),
        partition: Some(key(&format!("p{place}"))),
        when: When::After(secs(60)),
        ..plain("1")
    };
    let many: Vec<NewTrigger> = (0..23).map(of).collect();
    client.rig.trigger_batch(Batch { triggers: many, dedup: Some(dedup("many")) }).await;
    client.rig.trigger_batch(batch("same", &["1"; 46])).await;
    let long = format!("\"{}\"", "x".repeat(64_900));
    let trigger = NewTrigger { payload: Payload::from_text(long).unwrap(), ..unique("d", "1") };
    client.rig.trigger(trigger).await;
    let worker = scene.worker().await;
    scene.taken_in(&worker, 23 + 46 + 1).await;
    assert!(scene.timer.timer.dead().is_empty());
}

/// A delay counts from acceptance, however long the message is on its way.
#[tokio::test(start_paused = true)]
async fn r01_r18_a_delay_counts_from_acceptance() {
    let scene = Scene::new();
    let mut client = scene.client().await;
    let delayed = NewTrigger { when: When::After(secs(100)), ..unique("d", "1") };
    client.rig.trigger(delayed).await;
    scene.at(40, &mut [&mut client]);
    let mut worker = scene.worker().await;
    worker.rig.at(40);
    scene.taken_in(&worker, 1).await;
    assert_eq!(worker.rig.jobs().await[0].window.due_at, Rig::START + secs(100));
}

/// Names that would meet where their parts were only put together.
#[tokio::test(start_paused = true)]
async fn r16_r18_names_of_stores_tasks_and_keys_never_meet() {
    let scene = Scene::new();
    let one = scene.client().await;
    let other = Scene { table: Counted::new(Rig::START), timer: scene.timer.clone() };
    let other = other.client().await;
    let long = ["x".repeat(500), format!("{}y", "x".repeat(499))];
    let parts = ["t", ":", "::", "t:", ":t", "t:t", "/", "é", "e\u{301}", "T", "-"];
    let keys: Vec<&str> = parts.into_iter().chain(long.iter().map(String::as_str)).collect();
    let mut sent = 0;
    for process in [&one, &other] {
        for name in ["t", "t:t", "tt", "t-t", "T"] {
            for key in &keys {
                let trigger = NewTrigger { task: task(name), ..unique(key, "1") };
                process.rig.trigger(trigger).await;
                sent += 1;
                assert_eq!(scene.timer.timer.scheduled(), sent, "{name} {key}");
            }
        }
    }
    let names = scene.timer.names.lock().unwrap();
    let prefix = |name: &&String| name.starts_with("quell-dedup-") && name.len() == 76;
    assert!(names.iter().all(|name| prefix(&name)), "{names:?}");
}

/// Two stores on one queue are a mistake, and lose nothing.
#[tokio::test(start_paused = true)]
async fn r01_r18_a_message_of_another_store_reaches_that_one() {
    let scene = Scene::new();
    let other = Scene { table: Counted::new(Rig::START), timer: scene.timer.clone() };
    let (mine, theirs) = (scene.worker().await, other.client().await);
    theirs.rig.trigger(unique("d", "1")).await;
    sleep(secs(5)).await;
    assert!(mine.rig.jobs().await.is_empty());
    assert_eq!(scene.timer.timer.waiting(), [Rig::START + secs(1)], "it is sent on");
    drop(mine);
    let worker = other.worker().await;
    scene.at(2, &mut []);
    other.at(2, &mut []);
    other.taken_in(&worker, 1).await;
}

/// Who turns the option off leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn r01_r18_a_process_without_the_option_acts_on_messages() {
    let scene = Scene::new();
    let client = scene.client().await;
    client.rig.trigger(unique("d", "1")).await;
    drop(client);
    let worker = process(scene.store(), true);
    scene.taken_in(&worker, 1).await;
    let receipt = worker.rig.trigger(unique("d", "2")).await;
    assert_eq!(receipt.outcome(), "accepted", "its keys are in the table");
}

#[tokio::test(start_paused = true)]
async fn r18_a_newer_form_of_a_message_is_put_aside() {
    let scene = Scene::new();
    let _worker = scene.worker().await;
    let message = Message { body: br#"{"carried":2,"other":"fields"}"#.to_vec(), name: None };
    scene.timer.timer.schedule(&message, Rig::START, Rig::START).await.unwrap();
    sleep(secs(5)).await;
    let dead = scene.timer.timer.dead();
    assert_eq!(dead.len(), 1);
    assert!(dead[0].1.contains("it has form 2, this build reads 1"), "{}", dead[0].1);
}

fn schedule(trigger: NewTrigger) -> Schedule {
    let name = ScheduleName::new("nightly").unwrap();
    let spec = Spec::Every(Every::new(secs(60), Rig::START).unwrap());
    Schedule { name, spec, catch_up: CatchUp::default(), trigger, declared: None }
}

/// Its ticks would take their keys in the table, so a caller with the same key would be accepted, too.
#[tokio::test(start_paused = true)]
async fn r18_r36_a_schedule_has_no_dedup_key_where_the_timer_keeps_them() {
    let scene = Scene::new();
    let client = scene.client().await;
    let set = async |process: &Process, trigger| {
        process.rig.store.set_schedule(Some(Rig::START), &schedule(trigger)).await
    };
    let refused = set(&client, unique("d", "1")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("schedule nightly has the dedup key d"), "{refused}");
    set(&client, plain("1")).await.unwrap();
    drop(client);
    let without = process(scene.store(), false);
    set(&without, unique("d", "1")).await.unwrap();
    let refused = scene.store().native_dedup().await.unwrap_err();
    assert!(refused.to_string().contains("schedule nightly"), "{refused}");
}

#[tokio::test]
async fn r18_a_timer_that_remembers_no_names_keeps_no_keys() {
    let timer: Arc<dyn Timer> = Arc::new(MemoryTimer::new(Rig::START, LOCK));
    let table = MemoryTable::new(Rig::START);
    let store = Timed::new(Engine::new(Partition::new(table.clone(), "p").with_timer(timer)));
    let refused = store.unwrap().native_dedup().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("`native_dedup`"), "{refused}");
    assert!(names(&table, "").await.is_empty(), "nothing is written");
}

#[tokio::test(start_paused = true)]
async fn r18_a_checkup_says_who_keeps_the_keys() {
    let facts = |process: Process| async move { process.rig.store.checkup().await.unwrap().facts };
    let scene = Scene::new();
    let with = facts(scene.client().await).await;
    let fact = with.iter().find(|fact| fact.name == "dedup keys").unwrap();
    assert_eq!(fact.value, "by the timer, for 600s from acceptance");
    let without = facts(process(scene.store(), false)).await;
    assert!(without.iter().all(|fact| fact.name != "dedup keys"));
}
