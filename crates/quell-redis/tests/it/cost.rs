//! What calls cost, by the counters of a server of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_conformance::rig::{
    Rig, debounce, fails, key, keyed_with, lease, plain, queue, secs, task,
};
use quell_conformance::suite::history::Recorder;
use quell_core::alert::Overview;
use quell_core::checkup::SKIPPED_IDS;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::Idempotency;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    BacklogOf, Batch, Claim, Claimed, ExplainTarget, Fold, JobFilter, JobId, NewTrigger, Outcome,
    PartitionOrder, Payload, Pruned, QueueName, QueueSettings, Rate, Redrive, Retention,
    Settlement, Store, TaskName, Timestamp, When,
};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::Redis;

use crate::place::{commands, since, without_probes};

struct Server {
    redis: Redis,
    store: RedisStore,
    /// How often each command was called by the last look.
    counted: BTreeMap<String, u64>,
}

impl Server {
    async fn start() -> Self {
        Server::start_with(|options| options).await
    }

    async fn start_with(change: impl FnOnce(RedisOptions) -> RedisOptions) -> Self {
        let redis = Redis::start(&[]).unwrap();
        let options = change(RedisOptions::from_url(&redis.url()).unwrap());
        let store = options.open().await.unwrap();
        let mut server = Server { redis, store, counted: BTreeMap::new() };
        server.calls();
        server
    }

    /// The commands that were called since the last look.
    fn calls(&mut self) -> BTreeMap<String, u64> {
        let counts = commands(&self.redis);
        let before = std::mem::replace(&mut self.counted, counts.clone());
        since(&before, counts)
    }

    /// The scripts that were run since the last look.
    fn scripts(&mut self) -> BTreeMap<String, u64> {
        self.calls().into_iter().filter(|(name, _)| name.starts_with("eval")).collect()
    }

    /// The bytes that the server has sent.
    fn sent(&self) -> u64 {
        self.total("total_net_output_bytes:")
    }

    /// The bytes that the server has sent and received.
    fn moved(&self) -> u64 {
        self.sent() + self.total("total_net_input_bytes:")
    }

    fn total(&self, name: &str) -> u64 {
        let stats = self.redis.command(&["INFO", "stats"]).unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    }

    async fn trigger(&self, triggers: Vec<NewTrigger>) {
        let batches = triggers.into_iter().map(Batch::one).collect();
        for answer in self.store.enqueue(Some(Rig::START), batches).await.unwrap() {
            answer.unwrap();
        }
    }

    async fn claim(&self, second: u64, limit: usize) -> Claimed {
        let now = Rig::START + secs(second);
        self.store.claim(Some(now), &Rig::claim_of(limit)).await.unwrap()
    }

    async fn succeed(&self, second: u64, claimed: &Claimed) {
        let ends = claimed
            .jobs
            .iter()
            .map(|job| Settlement { lease: lease(job), outcome: Outcome::succeeded() });
        let now = Rig::START + secs(second);
        self.store.settle(Some(now), ends.collect()).await.unwrap();
    }
}

fn debounced(k: &str) -> NewTrigger {
    let debounce = Debounce::new(Thresholds::new(secs(1_000), secs(2_000)).unwrap());
    keyed_with(k, debounce, Fold::Last, "1")
}

fn later(number: u64) -> NewTrigger {
    NewTrigger { when: When::After(secs(5_000 + number % 50)), ..plain("1") }
}

fn one() -> BTreeMap<String, u64> {
    [("evalsha".to_owned(), 1)].into()
}

#[tokio::test]
async fn r35_a_common_call_is_one_script() {
    common_calls_are_one_script(Server::start().await).await;
}

#[tokio::test]
async fn r35_a_common_call_is_one_script_with_a_history() {
    let recorder = Recorder::default();
    let server = Server::start_with(|options| options.history(recorder.sink())).await;
    common_calls_are_one_script(server).await;
}

async fn common_calls_are_one_script(mut server: Server) {
    // Names are new once.
    server.trigger(vec![plain("1"), debounced("k")]).await;
    server.claim(0, 9).await;
    server.calls();
    server.trigger(vec![plain("1")]).await;
    // The script itself is new once, too.
    server.scripts();
    server.trigger(vec![plain("1")]).await;
    assert_eq!(server.scripts(), one(), "a trigger");
    server.trigger(vec![debounced("k"), debounced("l"), debounced("k"), later(1)]).await;
    assert_eq!(server.scripts(), one(), "a call of several");
    let claimed = server.claim(1, 1).await;
    assert_eq!((claimed.jobs.len(), server.scripts()), (1, one()), "a claim");
    let (now, held) = (Some(Rig::START + secs(1)), lease(&claimed.jobs[0]));
    server.store.renew(now, &[held], secs(30)).await.unwrap();
    server.scripts();
    server.store.renew(now, &[held], secs(30)).await.unwrap();
    assert_eq!(server.scripts(), one(), "a renewal");
    server.succeed(1, &claimed).await;
    server.scripts();
    let claimed = server.claim(3_000, 5).await;
    server.scripts();
    assert!(claimed.jobs.iter().any(|job| job.key == Some(key("k"))), "{claimed:?}");
    server.succeed(3_000, &claimed).await;
    assert_eq!(server.scripts(), one(), "the end of several");
    server.claim(3_000, 5).await;
    assert_eq!(server.scripts(), one(), "a claim that finds nothing");
    let tasks: Arc<[TaskName]> = [task("t")].into();
    let queues: Vec<(QueueName, Arc<[TaskName]>)> = (0..50)
        .map(|number| (QueueName::new(format!("q{number}")).unwrap(), Arc::clone(&tasks)))
        .chain([(queue(), Arc::clone(&tasks))])
        .collect();
    let next = server.store.peek(now, &queues).await.unwrap();
    assert_eq!(server.scripts(), one(), "a look at 51 queues");
    assert_eq!(next.last().unwrap().due, Some(Rig::START + secs(5_001)));
    server.redis.command(&["SCRIPT", "FLUSH"]).unwrap();
    server.trigger(vec![plain("1")]).await;
    let forgotten = [("eval".to_owned(), 1), ("evalsha".to_owned(), 1)];
    assert_eq!(server.scripts(), forgotten.into(), "a trigger after the server forgot its scripts");
    server.trigger(vec![plain("1")]).await;
    assert_eq!(server.scripts(), one(), "the one after it");
}

/// What calls cost, by command: a trigger and a claim, the end of what was claimed, a debounced trigger.
type Costs = [BTreeMap<String, u64>; 3];

/// The costs of a usual round at a second.
async fn round_at(server: &mut Server, second: u64) -> Costs {
    server.calls();
    server.trigger((0..3).map(|_| plain("1")).collect()).await;
    let claimed = server.claim(second, 3).await;
    assert_eq!(claimed.jobs.len(), 3);
    let costs = server.calls();
    server.succeed(second, &claimed).await;
    let ends = server.calls();
    server.trigger(vec![debounced("k")]).await;
    [costs, ends, server.calls()]
}

/// The costs of a round without a probe of the subscription, which publishes too, every 5 s: only on
/// a busy machine does one fall into two rounds in a row.
async fn quiet_round(server: &mut Server, second: u64) -> Costs {
    let mut last = round_at(server, second).await;
    for _ in 0..20 {
        let next = round_at(server, second).await;
        if next == last {
            return next;
        }
        last = next;
    }
    panic!("no two rounds in a row cost the same: {last:?}");
}

#[tokio::test]
async fn r35_work_is_bounded_by_the_call_and_not_by_what_waits() {
    let mut server = Server::start().await;
    // Names and scripts are new.
    round_at(&mut server, 1).await;
    let alone = quiet_round(&mut server, 2).await;
    for chunk in 0..100 {
        let k = |number| format!("{chunk}-{number}");
        server.trigger((0..1_000).map(|number| debounced(&k(number))).collect()).await;
    }
    for _ in 0..10 {
        server.trigger((0..1_000).map(|_| plain("1")).collect()).await;
        server.trigger((0..1_000).map(later).collect()).await;
    }
    assert_eq!(quiet_round(&mut server, 3).await, alone);
    let due: Option<Timestamp> = server.claim(3, 0).await.next.due;
    assert_eq!(due, Some(Rig::START + secs(2)));
}

#[tokio::test]
async fn r05_batches_of_other_kinds_slow_nobody_down_and_answers_keep_their_order() {
    let mut server = Server::start().await;
    let capped = |payload: &str| {
        let debounce = Debounce { max_triggers: Some(100), ..debounce() };
        keyed_with("k", debounce, Fold::Last, payload)
    };
    let last = || keyed_with("k", debounce(), Fold::Last, "9");
    // Names and scripts are new once.
    server.trigger(vec![plain("1")]).await;
    server.trigger(vec![plain("1"), capped("0"), plain("1")]).await;
    server.scripts();
    let mut triggers = Vec::new();
    for number in 0..8 {
        let number = number.to_string();
        triggers.extend([plain(&number), capped(&number)]);
    }
    triggers.push(last());
    let batches = triggers.into_iter().map(Batch::one).collect();
    let answers = server.store.enqueue(Some(Rig::START), batches).await.unwrap();
    let scripts: u64 = server.scripts().values().sum();
    assert!(scripts <= 6, "17 batches took {scripts} scripts");
    let mut receipts = answers.into_iter().map(|answer| answer.unwrap().remove(0));
    let mut window = None;
    for number in 0..8 {
        let (plain, capped) = (receipts.next().unwrap(), receipts.next().unwrap());
        let job = server.store.job(plain.job().unwrap()).await.unwrap().unwrap();
        assert_eq!((job.key, job.payload.as_str()), (None, number.to_string().as_str()));
        assert_eq!(capped.trigger().unwrap().seq, number + 2);
        window = capped.job();
    }
    let last = receipts.next().unwrap().trigger().unwrap();
    assert_eq!((Some(last.job), last.seq), (window, 10));
    assert_eq!(server.store.job(last.job).await.unwrap().unwrap().payload.as_str(), "9");
}

/// Jobs of 5,000 partitions, two of each, 50 partitions at a time.
async fn many_partitions(server: &Server) {
    for chunk in 0..100_u64 {
        let one = |number: u64| {
            let partition = Some(key(&format!("p{}", 50 * chunk + number / 2)));
            Batch::one(NewTrigger { partition, ..plain(&(100 * chunk + number).to_string()) })
        };
        let now = Rig::START + Duration::from_millis(chunk);
        for answer in server.store.enqueue(Some(now), (0..100).map(one).collect()).await.unwrap() {
            answer.unwrap();
        }
    }
}

#[tokio::test]
async fn r30_r31_a_claim_is_one_script_however_many_partitions_are_full() {
    let mut server = Server::start().await;
    let settings = QueueSettings {
        concurrency: Some(401),
        partition_concurrency: Some(1),
        rate: Some(Rate { limit: 10_000, period: secs(60) }),
        partition_rate: Some(Rate { limit: 100, period: secs(60) }),
        ..QueueSettings::default()
    };
    server.trigger(vec![plain("1")]).await;
    server.store.set_queue(Some(Rig::START), &queue(), &settings).await.unwrap();
    server.claim(0, 1).await;
    many_partitions(&server).await;
    let mut expected = (0..10_000).step_by(2).map(|number: u64| number.to_string());
    for round in 0..40 {
        server.scripts();
        let claimed = server.claim(2, 10).await;
        let scripts: u64 = server.scripts().values().sum();
        // At first no line is known.
        assert!(scripts <= if round == 0 { 3 } else { 1 }, "{scripts} in round {round}");
        let payloads: Vec<&str> = claimed.jobs.iter().map(|job| job.payload.as_str()).collect();
        assert_eq!(payloads, expected.by_ref().take(10).collect::<Vec<_>>());
        assert_eq!(
            claimed.next.due,
            Some(Rig::START + Duration::from_millis(round / 5 + u64::from(round % 5 == 4)))
        );
    }
    server.scripts();
    // The queue is full, and so are 400 partitions.
    assert_eq!(server.claim(3, 10).await.jobs, []);
    assert_eq!(server.scripts(), one(), "a claim that finds no room");
    let tasks = [task("t")];
    let now = Some(Rig::START + secs(3));
    server.store.next_due(now, &queue(), &tasks).await.unwrap();
    server.scripts();
    let next = server.store.next_due(now, &queue(), &tasks).await.unwrap();
    assert_eq!(server.scripts(), one(), "a look");
    assert_eq!(next.due, Some(Rig::START + Duration::from_millis(8)));
}

/// The bytes that a claim of one job moves in a queue of strict order, beside this many partitions with
/// lines of this length, each of one of two tasks.
async fn moved_by_a_strict_claim(partitions: usize, each: usize) -> u64 {
    let server = Server::start().await;
    server.trigger(vec![plain("1")]).await;
    let strict = QueueSettings::default().partition_order(PartitionOrder::Strict);
    server.store.set_queue(Some(Rig::START), &queue(), &strict).await.unwrap();
    for chunk in 0..partitions / 20 {
        let names = (20 * chunk..20 * chunk + 20).map(|number| (number, format!("p{number}")));
        let line = |(number, name): (usize, String)| {
            let task = task(["t", "u"][number % 2]);
            vec![NewTrigger { partition: Some(key(&name)), task, ..plain("1") }; each]
        };
        // Lines that are due at one moment are read together.
        let now = Rig::START + Duration::from_millis(u64::try_from(chunk).unwrap());
        let batch = Batch { triggers: names.flat_map(line).collect(), dedup: None };
        server.store.enqueue(Some(now), vec![batch]).await.unwrap().remove(0).unwrap();
    }
    assert_eq!(server.claim(1, 1).await.jobs.len(), 1);
    let before = server.moved();
    for _ in 0..8 {
        assert_eq!(server.claim(2, 1).await.jobs.len(), 1);
    }
    (server.moved() - before) / 8
}

#[tokio::test]
async fn r41_a_claim_of_a_strict_queue_moves_no_more_beside_more_partitions_or_longer_lines() {
    let few = moved_by_a_strict_claim(80, 1).await;
    let many = moved_by_a_strict_claim(5_000, 1).await;
    assert!(many < 2 * few, "{few} bytes beside 80 partitions, {many} beside 5,000");
    let long = moved_by_a_strict_claim(80, 60).await;
    assert!(long < 2 * few, "{few} bytes beside lines of one job, {long} of sixty");
}

#[tokio::test]
async fn two_calls_at_a_time_are_made_where_they_pay() {
    let server = Server::start().await;
    // The first of a kind names its lane by a step.
    for _ in 0..9 {
        server.trigger(vec![plain("0"), debounced("k")]).await;
    }
    assert_eq!(server.store.concurrent_enqueues(), 2, "scripts only");
    let idempotency = Some(Idempotency::new(key("once")));
    server.trigger(vec![plain("0"), NewTrigger { idempotency, ..plain("0") }]).await;
    for _ in 0..4 {
        assert_eq!(server.store.concurrent_enqueues(), 1, "one took a step lately");
        server.trigger(vec![plain("0"), debounced("k")]).await;
    }
    assert_eq!(server.store.concurrent_enqueues(), 2, "scripts only, again");
    let options = || RedisOptions::from_url(&server.redis.url()).unwrap();
    assert_eq!(options().open().await.unwrap().concurrent_enqueues(), 2);
    let main = format!("replicaof 127.0.0.1 {}", server.redis.port());
    let _replica = Redis::start(&[&main]).unwrap();
    assert_eq!(options().wait_replicas(1).open().await.unwrap().concurrent_enqueues(), 1);
    let synced = Redis::start(&["appendonly yes", "appendfsync always"]).unwrap();
    let synced = RedisOptions::from_url(&synced.url()).unwrap().open().await.unwrap();
    assert_eq!(synced.concurrent_enqueues(), 1);
}

/// Two jobs die, and then `loud` jobs of another queue. Returns an overview and its cost: the commands
/// and the bytes that it brings.
async fn overview_beside(loud: u64) -> (Overview, u64, u64) {
    let mut server = Server::start().await;
    let of_loud = |_| NewTrigger { queue: QueueName::new("loud").unwrap(), ..plain("1") };
    server.trigger(vec![plain("1"), plain("2")]).await;
    for first in (0..loud).step_by(500) {
        server.trigger((first..loud.min(first + 500)).map(of_loud).collect()).await;
    }
    for name in ["q", "loud"] {
        let asked = Claim { queue: QueueName::new(name).unwrap(), ..Rig::claim_of(5_000) };
        let claimed = server.store.claim(Some(Rig::START), &asked).await.unwrap().jobs;
        for jobs in claimed.chunks(500) {
            let dies = |job| Settlement { lease: lease(job), outcome: fails(secs(1), true) };
            let ends = jobs.iter().map(dies).collect();
            server.store.settle(Some(Rig::START), ends).await.unwrap();
        }
    }
    server.store.overview(None).await.unwrap();
    server.calls();
    let before = server.sent();
    let overview = server.store.overview(None).await.unwrap();
    let sent = server.sent() - before;
    (overview, without_probes(server.calls()).values().sum(), sent)
}

#[tokio::test]
async fn r27_a_loud_queue_hides_no_quiet_one_and_costs_no_look_more() {
    let (_, few, short) = overview_beside(30).await;
    let (overview, many, long) = overview_beside(3_000).await;
    let dead: Vec<_> = overview.lanes.iter().map(|lane| (lane.queue.as_str(), lane.dead)).collect();
    assert_eq!(dead, [("loud", 3_000), (queue().as_str(), 2)]);
    assert_eq!(few, many);
    assert!(long < short + short / 10, "{short} bytes, and {long} with a hundred times as many");
}

/// What a metrics page reads beside this number of jobs: the commands and the bytes that they bring.
async fn scraped_beside(jobs: u64) -> (BTreeMap<String, u64>, u64) {
    let mut server = Server::start().await;
    for first in (0..jobs).step_by(500) {
        server.trigger((first..jobs.min(first + 500)).map(|_| plain("1")).collect()).await;
    }
    let scrape = async |server: &Server| {
        let counts = server.store.counts().await.unwrap();
        assert_eq!(counts.iter().map(|counts| counts.jobs).sum::<u64>(), jobs);
        server.store.checkup().await.unwrap();
    };
    scrape(&server).await;
    server.calls();
    let before = server.sent();
    scrape(&server).await;
    let sent = server.sent() - before;
    (without_probes(server.calls()), sent)
}

#[tokio::test]
async fn r27_the_counts_of_a_scrape_cost_the_same_before_any_number_of_jobs() {
    let (few, short) = scraped_beside(10).await;
    let (many, long) = scraped_beside(20_000).await;
    assert_eq!(few, many);
    assert!(long < short + 100, "{short} bytes beside 10 jobs, {long} beside 20,000");
}

/// How many bytes upkeep reads at most in a call that looks at `waiting` idempotency keys whose jobs
/// wait, and in 20 calls, a minute apart, after it has looked at them.
async fn read_by_upkeep(waiting: u64) -> (u64, u64) {
    let server = Server::start().await;
    let payload = format!("\"{}\"", "x".repeat(8_000));
    let keyed = |n: u64| {
        let idempotency = Some(Idempotency { key: key(&format!("i{n}")), retention: secs(1) });
        NewTrigger { idempotency, when: When::After(secs(900_000)), ..plain(&payload) }
    };
    for first in (0..waiting).step_by(500) {
        server.trigger((first..waiting.min(first + 500)).map(keyed).collect()).await;
    }
    let prune = async |second: u64| {
        let before = server.sent();
        let now = Some(Rig::START + secs(second));
        let pruned = server.store.prune(now, &Retention::default(), 1_000).await.unwrap();
        (pruned, server.sent() - before)
    };
    let drain = async |second: u64| {
        let (mut expired, mut most, mut sum) = (0, 0, 0);
        loop {
            let (pruned, sent) = prune(second).await;
            (expired, most, sum) = (expired + pruned.expired, sent.max(most), sum + sent);
            if !pruned.more {
                return (expired, most, sum);
            }
        }
    };
    // At first soon, then a day later.
    let (_, first, _) = drain(2).await;
    let (_, second, _) = drain(200_000).await;
    let mut later = 0;
    for minute in 1..=20 {
        let until = HoldUntil::Elapsed(secs(1));
        let dedup = Some(Dedup { key: key(&format!("d{minute}")), until });
        server.trigger(vec![NewTrigger { dedup, ..plain("1") }]).await;
        let (expired, _, sum) = drain(200_000 + 60 * minute).await;
        assert_eq!(expired, 1);
        later += sum;
    }
    (first.max(second), later)
}

#[tokio::test]
async fn r37_upkeep_reads_no_jobs_that_wait_and_their_keys_once_a_day() {
    let (_, few) = read_by_upkeep(30).await;
    let (most, many) = read_by_upkeep(3_000).await;
    assert!(many < few + few / 4, "{few} bytes with 30 keys, {many} with 3,000");
    assert!(most < 1_000_000, "{most} bytes in one call");
}

#[tokio::test]
async fn r37_upkeep_removes_large_rows_within_a_bound_of_bytes() {
    let server = Server::start().await;
    let output = format!("\"{}\"", "x".repeat(200_000));
    let idempotency = |n| Some(Idempotency { key: key(&format!("i{n}")), retention: secs(10) });
    for n in 0..60 {
        server.trigger(vec![NewTrigger { idempotency: idempotency(n), ..plain("1") }]).await;
    }
    let claimed = server.claim(1, 60).await;
    for job in &claimed.jobs {
        let output = Some(Payload::from_text(output.clone()).unwrap());
        let end = Settlement { lease: lease(job), outcome: Outcome::Succeeded { output } };
        server.store.settle(Some(Rig::START + secs(1)), vec![end]).await.unwrap();
    }
    // The jobs first, whose outputs their keys keep, and then those.
    for (second, jobs, expired) in [(5, 60, 0), (20, 0, 60)] {
        let keep = Retention { succeeded: Some(secs(1)), dead: None };
        let (mut gone, mut calls) = (Pruned::default(), 0);
        loop {
            let before = server.sent();
            let now = Some(Rig::START + secs(second));
            let pruned = server.store.prune(now, &keep, 1_000).await.unwrap();
            let sent = server.sent() - before;
            assert!(sent < 5_000_000, "{sent} bytes in one call");
            (gone, calls) = (gone.and(pruned), calls + 1);
            if !pruned.more {
                break;
            }
        }
        assert_eq!((gone.jobs, gone.expired), (jobs, expired));
        assert!(calls > 2, "{calls} calls");
    }
}

/// Windows that wait may be long.
#[tokio::test]
async fn r10_r27_an_overview_reads_waiting_windows_within_a_bound_of_bytes() {
    let server = Server::start().await;
    let payload = format!("\"{}\"", "x".repeat(200_000));
    let full = || keyed_with("k", debounce(), Fold::Collect { cap: 1 }, &payload);
    for _ in 0..60 {
        server.trigger(vec![full()]).await;
    }
    let before = server.sent();
    let seen = server.store.overview(Some(Rig::START + secs(20))).await.unwrap();
    let sent = server.sent() - before;
    assert!(sent < 5_000_000, "{sent} bytes in one call");
    assert_eq!(seen.lanes[0].first_due, Some(Rig::START));
}

/// The first round on one key has `closed` closed windows. Returns the cost of each call of the second
/// round: the commands and the bytes.
async fn beside_closed(closed: usize) -> Vec<(&'static str, BTreeMap<String, u64>, u64)> {
    let mut server = Server::start().await;
    let payload = format!("\"{}\"", "x".repeat(20_000));
    let debounce = Debounce { max_bytes: Some(30_000), ..debounce() };
    let collects = || keyed_with("k", debounce, Fold::Collect { cap: 1 }, &payload);
    for chunk in (0..closed + 8).step_by(100) {
        let triggers = chunk..(closed + 8).min(chunk + 100);
        server.trigger(triggers.map(|_| collects()).collect()).await;
    }
    let mut costs = Vec::new();
    let now = Some(Rig::START + secs(20));
    let mut ids = (1..).map(JobId::new);
    // In the first round, scripts are new.
    for _ in 0..2 {
        costs.clear();
        macro_rules! cost {
            ($what:literal, $call:expr) => {{
                server.calls();
                let before = server.moved();
                let answer = $call;
                let bytes = server.moved() - before;
                costs.push(($what, server.calls(), bytes));
                answer
            }};
        }
        cost!("a trigger", server.trigger(vec![collects()]).await);
        let run = cost!("a claim", server.claim(20, 9).await);
        assert_eq!(run.jobs.iter().map(|job| job.id).next(), ids.next());
        cost!("a trigger while it runs", server.trigger(vec![collects()]).await);
        cost!("its end", server.succeed(20, &run).await);
        let (first, second) = (ids.next().unwrap(), ids.next().unwrap());
        cost!("cancelling the second", server.store.cancel(now, second, "no").await.unwrap());
        cost!("cancelling the first", server.store.cancel(now, first, "no").await.unwrap());
        let run = server.claim(20, 9).await;
        assert_eq!(run.jobs.iter().map(|job| job.id).next(), ids.next());
        let end = Settlement { lease: lease(&run.jobs[0]), outcome: fails(secs(1), true) };
        cost!("a death", server.store.settle(now, vec![end]).await.unwrap());
        let redrive = Redrive { id: run.jobs[0].id, payload: None };
        cost!("a redrive", server.store.redrive(now, &redrive).await.unwrap());
        server.store.cancel(now, redrive.id, "no").await.unwrap();
    }
    costs
}

#[tokio::test]
async fn r10_a_call_costs_no_more_however_many_windows_of_its_key_are_closed() {
    let (few, many) = (beside_closed(10).await, beside_closed(1_000).await);
    for ((what, few, short), (_, many, long)) in few.into_iter().zip(many) {
        assert_eq!(without_probes(few), without_probes(many), "{what}");
        assert!(long < short + 1_000, "{what}: {short} bytes, and {long} with 1,000");
    }
}

/// What a window keeps of its own is in its row, and takes no number of its own.
/// What an explanation of a job and of a key reads: scripts and bytes.
async fn explained_beside(others: u64) -> (BTreeMap<String, u64>, u64) {
    let mut server = Server::start().await;
    let job = server.store.enqueue(Some(Rig::START), vec![Batch::one(debounced("k"))]).await;
    let job = job.unwrap().remove(0).unwrap()[0].job().unwrap();
    for round in 0..others / 100 {
        server.trigger((0..100).map(|number| later(100 * round + number)).collect()).await;
    }
    server.calls();
    let before = server.sent();
    let of_key = ExplainTarget::Key { task: None, key: key("k") };
    for target in [ExplainTarget::Job(job), of_key] {
        let explained = server.store.explain(None, &target).await.unwrap().unwrap();
        assert_eq!(explained.job.id, job);
    }
    (server.scripts(), server.sent() - before)
}

#[tokio::test]
async fn r15_an_explanation_reads_no_jobs_without_a_key() {
    let (few, many) = (explained_beside(100).await, explained_beside(2_000).await);
    assert_eq!(few.0, many.0, "scripts");
    assert!(many.1 < few.1 + 2_000, "{} bytes beside 2,000 jobs, {} beside 100", many.1, few.1);
}

/// What a look at 100 of this number of waiting jobs reads: scripts and bytes.
async fn backlog_of(jobs: u64) -> (BTreeMap<String, u64>, u64) {
    let mut server = Server::start().await;
    let one = |number: u64| {
        let partition = (!number.is_multiple_of(4)).then(|| key(&format!("p{}", number % 4)));
        NewTrigger { partition, ..later(number) }
    };
    for round in 0..jobs / 100 {
        server.trigger((0..100).map(|number| one(100 * round + number)).collect()).await;
    }
    server.calls();
    let before = server.sent();
    let of = BacklogOf::new(queue()).entries(100);
    let backlog = server.store.backlog(Some(Rig::START), &of).await.unwrap();
    let looked: u64 = backlog.partitions.iter().map(|one| one.waiting.jobs()).sum();
    assert!(!backlog.is_whole && (1..=100).contains(&looked), "{backlog:?}");
    (server.scripts(), server.sent() - before)
}

#[tokio::test]
async fn r31_a_look_at_a_backlog_costs_the_same_however_long_it_is() {
    let (few, many) = (backlog_of(300).await, backlog_of(5_000).await);
    // A page is read on in lines that end it, in a few rounds: that depends on how its lines mix.
    for scripts in [&few.0, &many.0] {
        assert!(scripts.values().sum::<u64>() <= 12, "{scripts:?}");
    }
    assert!(many.1 < 2 * few.1, "{} bytes of 5,000 jobs, {} of 300", many.1, few.1);
}

/// What explanations of a dedup and of an idempotency key read: scripts and bytes.
async fn led_beside(others: u64) -> (BTreeMap<String, u64>, u64) {
    let mut server = Server::start().await;
    let named = |number: u64, trigger: NewTrigger| {
        let own = key(&format!("k{number}"));
        let (dedup, idempotency) = (Dedup::new(own.clone()), Idempotency::new(own));
        NewTrigger { dedup: Some(dedup), idempotency: Some(idempotency), ..trigger }
    };
    let job = server.store.enqueue(Some(Rig::START), vec![Batch::one(named(0, plain("1")))]).await;
    let job = job.unwrap().remove(0).unwrap()[0].job().unwrap();
    for round in 0..others / 100 {
        let numbers = (1..=100).map(|number| 100 * round + number);
        server.trigger(numbers.map(|number| named(number, later(number))).collect()).await;
    }
    server.calls();
    let before = server.sent();
    let (task, key) = (Some(task("t")), key("k0"));
    for target in [
        ExplainTarget::DedupKey { task: task.clone(), key: key.clone() },
        ExplainTarget::IdempotencyKey { task, key },
    ] {
        let led = server.store.explain(Some(Rig::START), &target).await.unwrap().unwrap();
        assert_eq!(led.job.id, job);
    }
    (server.scripts(), server.sent() - before)
}

#[tokio::test]
async fn r15_a_key_that_leads_to_a_job_reads_one_row_and_that_job() {
    let (few, many) = (led_beside(100).await, led_beside(2_000).await);
    assert_eq!(few.0, many.0, "scripts");
    assert!(many.1 < few.1 + 500, "{} bytes beside 2,000 keys, {} beside 100", many.1, few.1);
}

#[tokio::test]
async fn r10_r26_windows_of_any_surplus_share_one_shape() {
    let server = Server::start().await;
    let collects = || keyed_with("k", debounce(), Fold::Collect { cap: 1_000 }, "0");
    let shapes = |server: &Server| server.redis.command(&["HLEN", "quell:{all}:shapes"]).unwrap();
    server.trigger(vec![collects()]).await;
    let before = shapes(&server);
    for round in 0..20_u64 {
        let second = 100 * (round + 1);
        let run = server.claim(second, 1).await.jobs.remove(0);
        let end = Settlement { lease: lease(&run), outcome: fails(secs(1), true) };
        let now = Some(Rig::START + secs(second));
        server.store.settle(now, vec![end]).await.unwrap();
        let elements = vec!["7"; usize::try_from(round + 3).unwrap()].join(",");
        let payload = Some(Payload::from_text(format!("[{elements}]")).unwrap());
        server.store.redrive(now, &Redrive { id: run.id, payload }).await.unwrap();
        let job = server.store.job(run.id).await.unwrap().unwrap();
        assert_eq!(
            (job.shape.surplus, job.shape.closed),
            (i64::try_from(round + 2).unwrap(), false)
        );
        // One of them is closed, and runs in the next round.
        if round % 2 == 1 {
            let full = keyed_with("k", debounce(), Fold::Collect { cap: 1 }, "1");
            let again = Batch::one(full);
            server.store.enqueue(now, vec![again]).await.unwrap().remove(0).unwrap();
            let job = server.store.job(run.id).await.unwrap().unwrap();
            assert!(job.is_closed_window() && job.shape.surplus > 0, "{job:?}");
            let claimed = server.claim(second, 1).await;
            assert_eq!(claimed.jobs[0].id, run.id);
            server.succeed(second, &claimed).await;
        }
    }
    // That of the cap of 1 came besides.
    let more = before.trim().parse::<u64>().unwrap() + 1;
    assert_eq!(shapes(&server).trim().parse::<u64>().unwrap(), more);
}

/// Every job of a store, page by page, and the scripts of each page.
async fn listed(
    server: &mut Server,
    store: &RedisStore,
    task: Option<&str>,
) -> (Vec<JobId>, Vec<u64>) {
    let (mut ids, mut scripts, mut before): (Vec<JobId>, Vec<u64>, _) = Default::default();
    server.calls();
    loop {
        let task = task.map(|name| TaskName::new(name).unwrap());
        let filter = JobFilter { before, task, limit: JobFilter::MAX_PAGE, ..Default::default() };
        let page = store.jobs(&filter).await.unwrap();
        scripts.push(server.scripts().into_values().sum());
        ids.extend(page.iter().map(|job| job.id));
        match page.last() {
            Some(last) => before = Some(last.id),
            None => return (ids, scripts),
        }
    }
}

/// Half of the jobs come before ids are left out, and half after it.
async fn listed_across_a_gap(jobs: u64, layout: &str) {
    let mut server = Server::start().await;
    let open = || {
        RedisOptions::from_url(&format!("{}?prefix=list&layout={layout}", server.redis.url()))
            .unwrap()
    };
    let store = open().open().await.unwrap();
    let trigger = async |count: u64| {
        for number in 0..count {
            let batch = Batch::one(later(number));
            if number % 1_000 == 0 {
                let many = (number..count.min(number + 1_000)).map(|_| batch.clone()).collect();
                store.enqueue(Some(Rig::START), many).await.unwrap();
            }
        }
    };
    let rare = NewTrigger { task: task("rare"), ..later(0) };
    store.enqueue(Some(Rig::START), vec![Batch::one(rare)]).await.unwrap();
    trigger(jobs / 2).await;
    open().skip_ids().await.unwrap();
    trigger(jobs / 2).await;

    let (ids, scripts) = listed(&mut server, &store, None).await;
    assert_eq!(ids.len() as u64, jobs + 1);
    assert!(ids.is_sorted_by(|newer, older| newer > older), "newest first, each once");
    assert!(ids[0].get() > SKIPPED_IDS && ids.last().unwrap().get() < SKIPPED_IDS);
    // A page, reads that find nothing, and all rows once.
    let most = scripts.iter().max().unwrap();
    assert!(*most <= 30 + 2 * jobs / 100, "{scripts:?} scripts for {jobs} jobs");
    let (oldest, scripts) = listed(&mut server, &store, Some("rare")).await;
    assert_eq!(oldest, ids[ids.len() - 1..]);
    assert!(scripts[0] <= 60 + 4 * jobs / 100, "{scripts:?} scripts for {jobs} jobs");
}

#[tokio::test]
async fn r39_a_list_of_jobs_costs_no_more_for_ids_that_were_left_out() {
    listed_across_a_gap(20, "one").await;
    listed_across_a_gap(4_000, "queues").await;
    // More than one look through the rows remembers.
    listed_across_a_gap(24_000, "one").await;
}
