//! The scripts of one call against the steps that know all cases: the same calls, every answer
//! compared, and at the end every key in Redis.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use quell_conformance::effort::cases;
use quell_conformance::rig::{
    Rig, debounce, fails, key, keyed_with, lease, plain, queue, secs, task,
};
use quell_conformance::suite::history::Recorder;
use quell_core::trigger::Keyed;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    Batch, Claim, ExplainTarget, Fold, JobFilter, Lease, NewTrigger, Outcome, Payload, QueueName,
    QueueSettings, Rate, Result, Settlement, Store, TaskName, TaskSettings, Timestamp, When,
    WorkerId,
};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::Redis;
use redis::aio::MultiplexedConnection;

use crate::place::Place;

/// A store, what it records, and how to read its keys.
struct Opened {
    store: RedisStore,
    recorded: Recorder,
    prefix: String,
}

/// What most of the calls are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Common,
    /// The queue has limits, and most jobs have partitions.
    Limited,
    /// One key of a task, whose windows are full mostly (R10).
    Closing,
}

struct Pair {
    scripts: Opened,
    steps: Opened,
    now: Timestamp,
    leases: Vec<Lease>,
    random: fastrand::Rng,
    kind: Kind,
    /// What was done, to be shown where the two differ.
    story: Vec<String>,
}

fn throttle() -> Debounce {
    Debounce::throttle(secs(8)).unwrap()
}

fn same<T: Debug>(story: &[String], scripts: Result<T>, steps: Result<T>) -> Option<T> {
    let reported = |answer: &Result<T>| match answer {
        Ok(answer) => format!("{answer:#?}"),
        Err(error) => format!("{error}"),
    };
    assert_eq!(reported(&scripts), reported(&steps), "after {}", story.join("\n"));
    scripts.ok()
}

/// Asks both stores the same and compares the answers.
macro_rules! ask {
    ($pair:ident, $method:ident ( $($argument:expr),* )) => {{
        $pair.story.push(format!(
            concat!("at {} ", stringify!($method), ": {:?}"),
            $pair.now, ($(&$argument,)*),
        ));
        let scripts = $pair.scripts.store.$method($($argument),*).await;
        let steps = $pair.steps.store.$method($($argument),*).await;
        $pair.same_events();
        same(&$pair.story, scripts, steps)
    }};
}

impl Pair {
    async fn open(url: &str, seed: u64, kind: Kind) -> Self {
        let open = async |steps_only| {
            let prefix = format!("{}-{seed}", if steps_only { "steps" } else { "scripts" });
            let options = RedisOptions::from_url(url).unwrap().prefix(prefix.clone()).unwrap();
            let options = if steps_only { options.steps_only() } else { options };
            let recorded = Recorder::default();
            let store = options.history(recorded.sink()).open().await.unwrap();
            Opened { store, recorded, prefix }
        };
        let (scripts, steps) = (open(false).await, open(true).await);
        let random = fastrand::Rng::with_seed(seed);
        let (leases, story) = (Vec::new(), vec![format!("seed {seed}")]);
        let now = Rig::START;
        let mut pair = Pair { scripts, steps, now, leases, random, kind, story };
        pair.name_all().await;
        pair.same_events();
        pair
    }

    /// Compares what the last call recorded: a call of several ends may be made in another order.
    fn same_events(&self) {
        let events = |opened: &Opened| {
            let events = opened.recorded.take().into_iter();
            let mut events: Vec<String> = events.map(|event| format!("{event:?}")).collect();
            events.sort_unstable();
            events
        };
        let (scripts, steps) = (events(&self.scripts), events(&self.steps));
        assert_eq!(scripts, steps, "the events after {}", self.story.join("\n"));
    }

    /// Gives every lane and shape its number: one that a window only passes through within a call
    /// may have one or not.
    async fn name_all(&mut self) {
        let mut triggers = Vec::new();
        for number in 0..8 {
            let queue = if number % 2 == 0 { queue() } else { QueueName::new("other").unwrap() };
            let task = task(if number / 2 % 2 == 0 { "t" } else { "u" });
            let priority = if number / 4 == 0 { 0 } else { 5 };
            triggers.push(NewTrigger { queue, task, priority, ..plain("0") });
        }
        let full = Fold::Collect { cap: 2 };
        for (k, fold, overlap) in [
            ("x", Fold::First, false),
            ("y", Fold::First, true),
            ("z", Fold::Last, true),
            ("c", full.clone(), false),
            ("d", full, true),
        ] {
            let debounce = Debounce { overlap, ..debounce() };
            triggers.push(keyed_with(k, debounce, fold, "0"));
        }
        triggers.push(keyed_with("t", throttle(), Fold::Last, "0"));
        for trigger in triggers {
            for store in [&self.scripts.store, &self.steps.store] {
                let batches = vec![Batch::one(trigger.clone())];
                store.enqueue(Some(self.now), batches).await.unwrap();
            }
        }
    }

    fn trigger(&mut self) -> NewTrigger {
        let (is_limited, closes) = (self.kind == Kind::Limited, self.kind == Kind::Closing);
        let random = &mut self.random;
        let payload = Payload::from_stored(format!("\"{}\"", "x".repeat(random.usize(..60))));
        let task = task(["t", "t", "u"][random.usize(..3)]);
        let queue = if random.u8(..6) == 0 { QueueName::new("other").unwrap() } else { queue() };
        let mut trigger = NewTrigger { task, queue, payload, ..plain("0") };
        trigger.priority = [0, 0, 0, 5][random.usize(..4)];
        if random.u8(..5) == 0 || (is_limited && random.u8(..5) > 0) {
            let partitions = ["p", "q", "r s", "t", "u", "v\n", "w", "x"];
            let several = if is_limited { partitions.len() } else { 2 };
            trigger.partition = Some(key(partitions[random.usize(..several)]));
        }
        if closes || random.bool() {
            let (min, max) = [(5, 20), (5, 20), (5, 5), (1, 20), (5, 7_200)][random.usize(..5)];
            let debounce = Debounce::new(Thresholds::new(secs(min), secs(max)).unwrap());
            let from_default = random.u8(..6) == 0;
            let debounce = Debounce { from_default, ..debounce };
            let overlap = random.u8(..12) == 0;
            let debounce = Debounce { overlap, ..debounce };
            let fold = match random.u8(..12) {
                0 => Fold::First,
                // R10: windows of it close.
                1..=3 => Fold::Collect { cap: 2 },
                4..=9 if closes => Fold::Collect { cap: 2 },
                _ => Fold::Last,
            };
            let throttles = fold == Fold::Last && random.u8(..6) == 0;
            let debounce = if throttles { throttle() } else { debounce };
            let several = if closes { 1 } else { 3 };
            let key = key(["a", "b", "c"][random.usize(..several)]);
            trigger.keyed = Some(Keyed { key, debounce });
            trigger.fold = fold;
        } else {
            trigger.when = match random.u8(..6) {
                0 => When::After(secs(random.u64(1..20))),
                1 => When::At(self.now + secs(random.u64(..9))),
                2 => When::At(self.now.before(secs(random.u64(..9)))),
                _ => When::Now,
            };
        }
        trigger
    }

    fn batches(&mut self) -> Vec<Batch> {
        let count = self.random.usize(1..4);
        let mut batches = Vec::new();
        for _ in 0..count {
            let members = if self.random.u8(..4) == 0 { self.random.usize(2..5) } else { 1 };
            let triggers = (0..members).map(|_| self.trigger()).collect();
            batches.push(Batch { triggers, dedup: None });
        }
        batches
    }

    fn settlements(&mut self) -> Vec<Settlement> {
        let count = self.random.usize(1..4).min(self.leases.len());
        let mut settlements = Vec::new();
        for _ in 0..count {
            let back = self.random.usize(..self.leases.len().min(6));
            let lease = self.leases[self.leases.len() - 1 - back];
            let outcome = match self.random.u8(..8) {
                0 => fails(secs(self.random.u64(1..9)), false),
                1 => Outcome::Released,
                2 | 3 => Outcome::Succeeded { output: Some(Payload::from_stored("{\"n\":7}")) },
                _ => Outcome::succeeded(),
            };
            settlements.push(Settlement { lease, outcome });
        }
        settlements
    }

    async fn step(&mut self) {
        let now = Some(self.now);
        match self.random.u8(..20) {
            0..=5 => {
                let batches = self.batches();
                let reported = |answers: Vec<Result<_>>| -> Vec<_> {
                    answers
                        .into_iter()
                        .map(|answer| answer.map_err(|error| error.to_string()))
                        .collect()
                };
                self.story.push(format!("at {} enqueue: {batches:?}", self.now));
                let scripts = self.scripts.store.enqueue(now, batches.clone()).await.map(reported);
                let steps = self.steps.store.enqueue(now, batches).await.map(reported);
                self.same_events();
                same(&self.story, scripts, steps);
            }
            6..=10 => {
                let tasks: Vec<TaskName> =
                    if self.random.bool() { vec![task("t"), task("u")] } else { vec![task("t")] };
                let worker = WorkerId::new(["v", "w"][self.random.usize(..2)]).unwrap();
                let limit = self.random.usize(..5);
                let claim =
                    Claim { tasks: tasks.into(), worker, lease: secs(9), ..Rig::claim_of(limit) };
                let claimed = ask!(self, claim(now, &claim)).unwrap();
                self.leases.extend(claimed.jobs.iter().map(lease));
            }
            11..=14 => {
                let settlements = self.settlements();
                ask!(self, settle(now, settlements.clone()));
            }
            15 => {
                let leases = self.leases[self.leases.len().saturating_sub(3)..].to_vec();
                ask!(self, renew(now, &leases, secs(9)));
            }
            16 => {
                ask!(self, reap(now, 3));
            }
            17 if self.random.u8(..4) == 0 || self.kind == Kind::Limited => {
                self.change_settings().await
            }
            _ => self.now = self.now + secs(self.random.u64(..9)),
        }
    }

    async fn change_settings(&mut self) {
        let thresholds = self.random.bool().then(|| Thresholds::new(secs(2), secs(9)).unwrap());
        let concurrency = (self.random.u8(..3) == 0).then_some(2);
        let paused = self.random.u8(..4) == 0;
        let limits = if self.kind == Kind::Limited {
            self.limits()
        } else {
            QueueSettings { concurrency, ..QueueSettings::default() }
        };
        let settings = QueueSettings { debounce: thresholds, paused, ..limits };
        ask!(self, set_queue(Some(self.now), &queue(), &settings));
        let settings = TaskSettings::default().paused(self.random.u8(..4) == 0);
        ask!(self, set_task(Some(self.now), &task("u"), &settings));
    }

    /// Limits, most of them low enough to hold jobs back.
    fn limits(&mut self) -> QueueSettings {
        let random = &mut self.random;
        let rate = |random: &mut fastrand::Rng, most: u32| {
            let (limit, period) = (random.u32(1..=most), secs(random.u64(1..20)));
            random.bool().then_some(Rate { limit, period })
        };
        let (rate, partition_rate) =
            (rate(random, 9).map(|rate| Rate { limit: rate.limit + 3, ..rate }), rate(random, 3));
        QueueSettings {
            concurrency: random.bool().then(|| random.u32(4..9)),
            worker_concurrency: (random.u8(..3) == 0).then(|| random.u32(2..4)),
            partition_concurrency: random.bool().then(|| random.u32(1..3)),
            rate,
            partition_rate,
            ..QueueSettings::default()
        }
    }

    async fn same_views(&mut self) {
        let (now, all) = (Some(self.now), JobFilter { limit: 1_000, ..JobFilter::default() });
        ask!(self, jobs(&all));
        ask!(self, counts());
        let tasks = vec![task("t"), task("u")];
        for queue in [queue(), QueueName::new("other").unwrap()] {
            ask!(self, next_due(now, &queue, &tasks));
        }
        let target = ExplainTarget::Key { task: None, key: key("a") };
        ask!(self, explain(now, &target));
    }

    async fn same_keys(&self, connection: &mut MultiplexedConnection) {
        let scripts = dump(connection, &self.scripts.prefix).await;
        let steps = dump(connection, &self.steps.prefix).await;
        let names: BTreeSet<&String> = scripts.keys().chain(steps.keys()).collect();
        // Versions of names are drawn.
        for name in names.into_iter().filter(|name| !name.ends_with(":meta")) {
            let lines = |of: &BTreeMap<String, String>| -> BTreeSet<String> {
                of.get(name).into_iter().flat_map(|text| text.lines()).map(str::to_owned).collect()
            };
            let (scripts, steps) = (lines(&scripts), lines(&steps));
            let (only, other): (Vec<_>, Vec<_>) =
                (scripts.difference(&steps).collect(), steps.difference(&scripts).collect());
            assert_eq!(only, other, "after {}, in {name}", self.story.join("\n"));
        }
    }
}

/// Every key of a prefix with what is in it, and whether it expires. What runs of a key is a set.
async fn dump(connection: &mut MultiplexedConnection, prefix: &str) -> BTreeMap<String, String> {
    let pattern = format!("{prefix}:*");
    let names: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(connection).await.unwrap();
    let mut found = BTreeMap::new();
    for name in names {
        let kind: String = redis::cmd("TYPE").arg(&name).query_async(connection).await.unwrap();
        let command = match kind.as_str() {
            "string" => redis::cmd("GET").arg(&name).clone(),
            "hash" => redis::cmd("HGETALL").arg(&name).clone(),
            "set" => redis::cmd("SMEMBERS").arg(&name).clone(),
            "list" => redis::cmd("LRANGE").arg(&name).arg(0).arg(-1).clone(),
            "zset" => redis::cmd("ZRANGE").arg(&name).arg(0).arg(-1).arg("WITHSCORES").clone(),
            other => panic!("{name} is a {other}"),
        };
        let value: redis::Value = command.query_async(connection).await.unwrap();
        let ttl: i64 = redis::cmd("TTL").arg(&name).query_async(connection).await.unwrap();
        let value = match (kind.as_str(), value) {
            ("hash", redis::Value::Array(values)) => {
                let pairs = values.chunks(2).map(|pair| match pair {
                    [field, redis::Value::BulkString(ids)] if name.ends_with(":runs") => {
                        let mut ids: Vec<&[u8]> = ids.split(|byte| *byte == b' ').collect();
                        ids.sort_unstable();
                        format!("{field:?} {ids:?}")
                    }
                    [field, redis::Value::BulkString(row)] if name.ends_with(":jobs") => {
                        let values: serde_json::Value = rmp_serde::from_slice(row).unwrap();
                        // Scripts know rows again by their bytes.
                        let bytes: String = row.iter().map(|byte| format!("{byte:02x}")).collect();
                        format!("{field:?} {values} {bytes}")
                    }
                    // How often something began or ended: a call in two parts counts twice.
                    [redis::Value::BulkString(field), _] if field.ends_with(b" n") => {
                        format!("{field:?} counts")
                    }
                    pair => format!("{pair:?}"),
                });
                format!("{:#?}", pairs.collect::<BTreeSet<_>>())
            }
            (_, value) => format!("{value:#?}"),
        };
        let name = name.strip_prefix(prefix).unwrap().to_owned();
        found.insert(name, format!("{value} expires: {}", ttl >= 0));
    }
    found
}

/// Compares seeds from one on: this number of them in a usual run, and in a long one.
async fn compare(kind: Kind, from: u64, (usual, long): (u64, u64)) {
    // Of its own, so that all its keys are few.
    let server = Redis::start(&[]).unwrap();
    let mut connection = Place::on(&server).connect().await;
    for seed in from..from + cases(usual, long) {
        let mut pair = Pair::open(&server.url(), seed, kind).await;
        for _ in 0..70 {
            pair.step().await;
        }
        // The time of a call that changed nothing may be on record or not.
        let last = vec![Batch::one(plain("0"))];
        ask!(pair, enqueue(Some(pair.now), last.clone()));
        pair.same_views().await;
        pair.same_keys(&mut connection).await;
    }
}

#[tokio::test]
async fn r06_r07_r11_r21_r30_scripts_leave_in_redis_what_steps_leave() {
    compare(Kind::Common, 0, (8, 96)).await;
}

#[tokio::test]
async fn r10_r11_scripts_leave_keys_with_closed_windows_as_steps_do() {
    compare(Kind::Closing, 200, (8, 96)).await;
}

#[tokio::test]
async fn r13_r30_r31_scripts_within_limits_leave_in_redis_what_steps_leave() {
    compare(Kind::Limited, 100, (10, 96)).await;
}

/// Where MessagePack begins to write a number or a length in another way.
const EDGES: [u64; 13] = [
    31,
    32,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    // From here on a bound is stored in milliseconds.
    (1 << 32) + 704,
    1 << 40,
];

/// Text as a payload: its bytes, with its quotes, are `edge`, or 70,000 at most, plus `more`.
fn long(edge: u64, more: usize) -> Payload {
    let length = usize::try_from(edge).unwrap().min(70_000) + more;
    Payload::from_stored(format!("\"{}\"", "x".repeat(length.saturating_sub(2))))
}

#[tokio::test]
async fn r06_r07_r21_scripts_write_numbers_and_texts_of_all_lengths_as_steps_do() {
    let server = Redis::start(&[]).unwrap();
    let mut connection = Place::on(&server).connect().await;
    let mut pair = Pair::open(&server.url(), 0, Kind::Common).await;
    // Lanes whose numbers take two bytes, too, and windows whose numbers of triggers do.
    let lanes: Vec<Batch> =
        (10..140).map(|priority| Batch::one(NewTrigger { priority, ..plain("0") })).collect();
    for _ in 0..2 {
        ask!(pair, enqueue(Some(pair.now), lanes.clone()));
    }
    for count in [127, 1, 127, 1, 65_279, 1] {
        let window =
            NewTrigger { priority: 139, ..keyed_with("many", debounce(), Fold::Last, "0") };
        // Too many for the story.
        let batches = vec![Batch::one(window); count];
        let scripts = pair.scripts.store.enqueue(Some(pair.now), batches.clone()).await;
        let steps = pair.steps.store.enqueue(Some(pair.now), batches).await;
        same(&pair.story, scripts, steps);
    }
    for (number, edge) in EDGES.into_iter().enumerate() {
        let micros = std::time::Duration::from_micros;
        let thresholds = Thresholds::new(micros(edge), micros(edge.saturating_mul(2) + 1)).unwrap();
        let of_key = |more: usize, payload: Payload| {
            let length = usize::try_from(edge).unwrap().min(500) + more;
            let name = format!("{number:0length$}");
            let debounced = keyed_with(&name, Debounce::new(thresholds), Fold::Last, "0");
            NewTrigger { payload, ..debounced }
        };
        let in_partition = |trigger: NewTrigger| NewTrigger {
            partition: Some(key("p")),
            keyed: trigger.keyed.map(|keyed| Keyed { key: key("in a partition"), ..keyed }),
            ..trigger
        };
        let unkeyed = NewTrigger { payload: long(edge, 0), ..plain("0") };
        let (first, second) = (of_key(0, long(edge, 0)), of_key(1, long(edge, 0)));
        for triggers in [
            vec![unkeyed, first.clone(), second.clone(), in_partition(first.clone())],
            vec![first.clone(), in_partition(second.clone())],
            vec![of_key(1, long(edge, 1)), first],
        ] {
            let batches: Vec<Batch> = triggers.into_iter().map(Batch::one).collect();
            ask!(pair, enqueue(Some(pair.now), batches.clone()));
            pair.now = pair.now + micros(edge / 2 + 1);
        }
        pair.now = pair.now + micros(edge.saturating_mul(2));
        let length = usize::try_from(edge).unwrap().min(128);
        let worker = WorkerId::new("w".repeat(length)).unwrap();
        let claim = Claim { worker, ..Rig::claim_of(1_000) };
        let claimed = ask!(pair, claim(Some(pair.now), &claim)).unwrap();
        assert!(claimed.jobs.len() >= 4, "{} jobs at {edge}", claimed.jobs.len());
        pair.now = pair.now + micros(1);
        let ends: Vec<Settlement> = claimed
            .jobs
            .iter()
            .enumerate()
            .map(|(more, job)| {
                let output = (more > 0).then(|| long(edge, more - 1));
                Settlement { lease: lease(job), outcome: Outcome::Succeeded { output } }
            })
            .collect();
        ask!(pair, settle(Some(pair.now), ends.clone()));
        pair.same_keys(&mut connection).await;
    }
    pair.same_views().await;
}
