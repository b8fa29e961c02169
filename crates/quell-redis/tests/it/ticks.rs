//! What is kept of the ticks that fired: as many bytes whatever their number, and all that the model
//! knows.

use std::collections::BTreeMap;

use quell_conformance::effort::cases;
use quell_conformance::rig::{Rig, key, keyed, keyed_with, lease, plain, secs, task};
use quell_core::schedule::{CatchUp, RECORD, Schedule, ScheduleState, Spec, Tick, TickedBy};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    ErrorKind, ExplainTarget, Fold, JobId, MemoryStore, NewTrigger, Outcome, QueueName, Retention,
    ScheduleName, Settlement, Store, Timestamp,
};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::Redis;
use redis::AsyncCommands;

use crate::place::{Place, commands, server, since, without_probes};

const DAY: u64 = 86_400;

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

fn every(seconds: u64) -> Spec {
    Spec::every(secs(seconds), Rig::START).unwrap()
}

/// A schedule whose triggers share one window, however many they are.
fn schedule(text: &str, spec: Spec, catch_up: CatchUp) -> Schedule {
    let year = Debounce::new(Thresholds::new(secs(500 * DAY), secs(500 * DAY)).unwrap());
    let trigger = keyed_with("k", year, Fold::Last, "1");
    Schedule { name: name(text), spec, catch_up, trigger, declared: None }
}

async fn set(store: &dyn Store, second: u64, schedule: &Schedule) {
    store.set_schedule(at(second), schedule).await.unwrap();
}

fn at(second: u64) -> Option<Timestamp> {
    Some(Rig::START + secs(second))
}

/// Fires all ticks that are due; returns their seconds.
async fn tick(store: &dyn Store, second: u64) -> Vec<u64> {
    let mut seconds = Vec::new();
    loop {
        let ticked = store.tick(at(second), 1_000).await.unwrap();
        seconds.extend(ticked.fired.iter().map(|fired| Rig::second(fired.tick)));
        if ticked.next.is_none_or(|next| next > ticked.now) {
            return seconds;
        }
    }
}

async fn backfill(store: &dyn Store, second: u64, of: &str, range: (u64, u64)) -> u64 {
    let (from, to) = (Rig::START + secs(range.0), Rig::START + secs(range.1));
    store.backfill(at(second), &name(of), from, to).await.unwrap()
}

/// The seconds of the ticks that are shown with the window of a key.
async fn shown(store: &dyn Store, k: &str) -> Vec<(String, u64)> {
    let target = ExplainTarget::Key { task: Some(task("t")), key: key(k) };
    let reported = store.explain(None, &target).await.unwrap().unwrap();
    reported.ticks.iter().map(|tick| (tick.schedule.to_string(), Rig::second(tick.tick))).collect()
}

async fn start() -> (Redis, RedisStore) {
    let redis = server(&[]);
    let store = RedisOptions::from_url(&redis.url()).unwrap().open().await.unwrap();
    (redis, store)
}

/// The bytes of each key in which a schedule has something, by what follows the hash tag.
fn bytes(redis: &Redis) -> BTreeMap<String, u64> {
    let keys = redis.command(&["KEYS", "*"]).unwrap();
    let of_schedules = ["schedules", "plan", "tick", "fired"];
    let keys = keys.split_whitespace().filter(|key| {
        key.split("}:")
            .nth(1)
            .is_some_and(|rest| of_schedules.iter().any(|of| rest.starts_with(of)))
    });
    let usage = |key: &str| {
        let bytes = redis.command(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).unwrap();
        let rest = key.split("}:").nth(1).unwrap().to_owned();
        (rest, bytes.trim().parse().unwrap())
    };
    keys.map(usage).collect()
}

/// The commands that a call has the server do.
async fn cost(redis: &Redis, call: impl Future<Output = ()>) -> BTreeMap<String, u64> {
    let before = commands(redis);
    call.await;
    without_probes(since(&before, commands(redis)))
}

/// Every ten seconds, each at its time: 20,000 ticks are two days and eight hours.
#[tokio::test]
async fn r36_what_has_fired_takes_the_same_bytes_whatever_its_number() {
    let (redis, store) = start().await;
    set(&store, 0, &schedule("beat", every(10), CatchUp::All)).await;
    let (mut sizes, mut costs) = (Vec::new(), Vec::new());
    let mut fired = 0;
    for size in [1_000, 20_000] {
        while fired < size {
            // Each batch is as if its ticks had come one after the other.
            let ticks = tick(&store, (fired + 100) * 10).await;
            assert_eq!(ticks.len(), 100);
            fired += 100;
        }
        costs.push(cost(&redis, async { drop(tick(&store, fired * 10 + 10).await) }).await);
        fired += 1;
        sizes.push(bytes(&redis));
        assert_eq!(backfill(&store, fired * 10, "beat", (10, 10_000)).await, 0);
    }
    let sum = |sizes: &BTreeMap<String, u64>| sizes.values().sum::<u64>();
    let [small, large] = &sizes[..] else { panic!("{sizes:?}") };
    assert!(sum(large) <= sum(small) + 64, "{small:?} {large:?}");
    assert!(sum(large) <= 2_048, "{large:?}");
    assert_eq!(costs[0], costs[1], "a tick costs the same");
}

#[tokio::test]
async fn r36_a_schedule_is_deleted_by_as_many_commands_whatever_it_fired() {
    let mut costs = Vec::new();
    for size in [50_u64, 1_000] {
        let (redis, store) = start().await;
        // Every other tick is missed, so that none follows another.
        set(&store, 0, &schedule("gaps", every(1), CatchUp::Latest)).await;
        set(&store, 0, &schedule("beat", every(1), CatchUp::All)).await;
        for second in (2..=size * 2).step_by(2) {
            tick(&store, second).await;
        }
        let end = size * 2;
        assert_eq!(backfill(&store, end, "gaps", (size, size + 1)).await, 1);
        let mut deletes = Vec::new();
        for of in ["beat", "gaps"] {
            let delete = async { store.delete_schedule(at(end), &name(of)).await.unwrap() };
            deletes.push(cost(&redis, delete).await);
            assert!(deletes.iter().all(|cost| cost["evalsha"] <= 4), "{deletes:?}");
        }
        costs.push(deletes);
        assert_eq!(shown(&store, "k").await, [], "they are forgotten");
        let left = bytes(&redis);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["ticks:1"], "which goes with the job");
        store.cancel(at(end), JobId::new(1), "enough").await.unwrap();
        store.prune(at(end + DAY), &Retention::default(), 99).await.unwrap();
        assert_eq!(bytes(&redis), BTreeMap::new());
    }
    assert_eq!(costs[0], costs[1]);
}

#[tokio::test]
async fn r36_a_schedule_that_moves_to_another_shard_leaves_none_of_its_ticks() {
    let redis = server(&[]);
    let url = format!("{}?layout=queues", redis.url());
    let store = RedisOptions::from_url(&url).unwrap().open().await.unwrap();
    let one = schedule("s", every(10), CatchUp::Latest);
    set(&store, 0, &one).await;
    for second in [10, 20, 40] {
        assert_eq!(tick(&store, second).await, [second]);
    }
    let all = ["fired:s", "plan", "schedules", "tick-times", "ticks", "ticks:"];
    let kept = |redis: &Redis| -> Vec<String> {
        let without_number = |key: &String| key.trim_end_matches(char::is_numeric).to_owned();
        bytes(redis).keys().map(without_number).collect()
    };
    assert_eq!(kept(&redis), all);
    let trigger = NewTrigger {
        queue: QueueName::new("other").unwrap(),
        task: task("other"),
        ..one.trigger.clone()
    };
    set(&store, 45, &Schedule { trigger, ..one }).await;
    // What is left goes with its job.
    assert_eq!(kept(&redis), ["plan", "schedules", "ticks:"]);
    assert_eq!(shown(&store, "k").await, []);
    assert_eq!(backfill(&store, 45, "s", (0, 45)).await, 5, "it is another one");
    assert_eq!(kept(&redis), ["plan", "schedules", "tick-times", "ticks", "ticks:", "ticks:"]);
}

/// What a backfill adds joins what it fills, whatever had left the gaps.
#[tokio::test]
async fn r36_a_backfill_fires_what_an_outage_a_pause_and_another_plan_left_out() {
    let (redis, store) = start().await;
    let ten = schedule("s", every(10), CatchUp::Latest);
    set(&store, 0, &ten).await;
    assert_eq!(tick(&store, 10).await, [10]);
    assert_eq!(tick(&store, 20).await, [20]);
    assert_eq!(tick(&store, 55).await, [50], "30 and 40 are skipped");
    let pause = async |second, state| {
        store.set_schedule_state(at(second), &name("s"), state).await.unwrap();
    };
    pause(55, ScheduleState::Paused).await;
    pause(85, ScheduleState::Active).await;
    assert_eq!(tick(&store, 90).await, [90], "60, 70 and 80 passed by");
    set(&store, 95, &Schedule { spec: every(4), ..ten.clone() }).await;
    assert_eq!(tick(&store, 96).await, [96]);
    assert_eq!(tick(&store, 100).await, [100]);
    // 20 has fired, by the plan before; 12, 16, 24 and 28 have not.
    assert_eq!(backfill(&store, 101, "s", (12, 29)).await, 4);
    assert_eq!(backfill(&store, 101, "s", (12, 29)).await, 0);
    set(&store, 102, &ten).await;
    // 40 is a tick of both plans that no one has fired, 100 one that has.
    assert_eq!(backfill(&store, 110, "s", (10, 100)).await, 5);
    assert_eq!(tick(&store, 110).await, [110]);
    assert_eq!(backfill(&store, 110, "s", (0, 110)).await, 1, "the tick of the start");
    assert_eq!(backfill(&store, 110, "s", (0, 110)).await, 0);
    set(&store, 115, &Schedule { spec: every(4), ..ten.clone() }).await;
    // Of 4, 8, …, 112 those are left that were in no backfill and are no tick of ten seconds.
    let left = (4..=112).step_by(4).filter(|tick| !(12..29).contains(tick) && tick % 10 > 0);
    let left = left.filter(|tick| ![96, 100].contains(tick)).count();
    assert_eq!(backfill(&store, 115, "s", (1, 115)).await, u64::try_from(left).unwrap());
    // Each plan is one span now.
    let spans = redis.command(&["ZCARD", "quell:{all}:fired:s"]).unwrap();
    assert_eq!(spans.trim(), "1");
}

#[tokio::test]
async fn r36_r37_spans_go_when_no_backfill_can_reach_them() {
    let (redis, store) = start().await;
    set(&store, 0, &schedule("gaps", every(10), CatchUp::Latest)).await;
    set(&store, 0, &schedule("ends", every(10), CatchUp::Latest)).await;
    let end = 600 * 20;
    for second in (20..=end).step_by(20) {
        tick(&store, second).await;
    }
    store.set_schedule_state(at(end), &name("ends"), ScheduleState::Paused).await.unwrap();
    let spans = |of: &str| {
        let count = redis.command(&["ZCARD", &format!("quell:{{all}}:fired:{of}")]).unwrap();
        count.trim().parse::<u64>().unwrap()
    };
    assert_eq!((spans("gaps"), spans("ends")), (599, 599));
    let year = RECORD.as_secs();
    let prune = async |second: u64, limit| {
        let (mut expired, mut calls) = (0, 0);
        loop {
            let pruned = store.prune(at(second), &Retention::default(), limit).await.unwrap();
            (expired, calls) = (expired + pruned.expired, calls + 1);
            assert!(calls < 100, "it comes to an end");
            if !pruned.more {
                return (expired, calls);
            }
        }
    };
    assert_eq!(prune(year, 100).await.0, 0);
    assert_eq!(prune(20 + year, 100).await.0, 0, "the oldest is just within reach");
    // Those of 20, …, 2,000 of each.
    let (expired, calls) = prune(2_010 + year, 50).await;
    assert_eq!(expired, 200);
    assert!(calls >= 4, "{calls} calls for 200 spans, 50 of them each");
    assert_eq!((spans("gaps"), spans("ends")), (499, 499));
    let now = 2_015 + year;
    assert_eq!(backfill(&store, now, "ends", (2_015, 2_025)).await, 0, "2,020 is known");
    assert_eq!(tick(&store, now).await.len(), 1, "the plan goes on");
    assert_eq!(prune(end + 10 + year, 1_000).await.0, 500 + 500);
    assert_eq!((spans("gaps"), spans("ends")), (0, 0));
    let kept = redis.command(&["HKEYS", "quell:{all}:ticks"]).unwrap();
    assert_eq!(kept.trim(), "gaps", "which has fired since");
    assert_eq!(backfill(&store, now + 20_000, "ends", (now, now + 5)).await, 1, "again");
}

/// The newest of each schedule are kept, so that they are there when another one is deleted.
#[tokio::test]
async fn r15_r36_the_newest_ticks_are_shown_with_a_job() {
    let (redis, store) = start().await;
    set(&store, 0, &schedule("a", every(10), CatchUp::All)).await;
    set(&store, 0, &schedule("b", every(100), CatchUp::All)).await;
    tick(&store, 305).await;
    let of_a = |seconds: &[u64]| -> Vec<(String, u64)> {
        seconds.iter().map(|second| ("a".to_owned(), *second)).collect()
    };
    let newest = shown(&store, "k").await;
    let expected = [of_a(&[220, 230, 240, 250, 260, 270, 280, 290, 300])].concat();
    assert_eq!(newest[..9], expected);
    assert_eq!(newest[9], ("b".to_owned(), 300));
    // An older one is shown only where there are not as many newer ones.
    assert_eq!(backfill(&store, 305, "b", (0, 0)).await, 1);
    assert_eq!(shown(&store, "k").await, newest);
    store.delete_schedule(at(306), &name("a")).await.unwrap();
    let of_b: Vec<_> = [0, 100, 200, 300].map(|second| ("b".to_owned(), second)).into();
    assert_eq!(shown(&store, "k").await, of_b);
    // One of the same name has fired none of what is kept with the job.
    let again = schedule("a", every(10), CatchUp::All);
    set(&store, 307, &Schedule { trigger: keyed("other"), ..again.clone() }).await;
    assert_eq!(tick(&store, 310).await, [310]);
    assert_eq!(shown(&store, "other").await, of_a(&[310]));
    assert_eq!(shown(&store, "k").await, of_b);
    set(&store, 315, &again).await;
    assert_eq!(tick(&store, 320).await, [320]);
    assert_eq!(shown(&store, "k").await, [of_b, of_a(&[320])].concat());
    let target = ExplainTarget::Key { task: Some(task("t")), key: key("k") };
    let reported = store.explain(None, &target).await.unwrap().unwrap();
    let by = reported.ticks.iter().map(|tick| tick.by).collect::<Vec<_>>();
    let plan = TickedBy::Plan;
    assert_eq!(by, [TickedBy::Backfill, plan, plan, plan, plan]);
    let fields = redis.command(&["HLEN", "quell:{all}:ticks:1"]).unwrap();
    assert_eq!(fields.trim(), "2");
}

/// The record of one schedule that a newer Quell wrote stops no other.
#[tokio::test]
async fn r25_r36_a_record_of_ticks_that_cannot_be_decoded_harms_its_schedule_only() {
    let place = Place::shared();
    let store = place.open().await;
    for of in ["a", "b"] {
        set(&store, 0, &schedule(of, every(10), CatchUp::All)).await;
    }
    assert_eq!(tick(&store, 10).await, [10, 10]);
    let mut db = place.connect().await;
    let ticks = format!("{}:{{all}}:ticks", place.prefix);
    let record: String = db.hget(&ticks, "a").await.unwrap();
    let fired = async |second: u64| {
        let ticked = store.tick(at(second), 9).await.unwrap();
        ticked.fired.iter().map(|fired| fired.schedule.to_string()).collect::<Vec<_>>()
    };
    // A plan that cannot be decoded says nothing of later ticks; what asks for earlier ones fails.
    let unknown = record.replace("\"every\"", "\"sundial\"");
    for (damaged, second, fires) in
        [(unknown, 20, vec!["a", "b"]), ("{}".to_owned(), 30, vec!["b"])]
    {
        let _: () = db.hset(&ticks, "a", &damaged).await.unwrap();
        let range = (Rig::START, Rig::START + secs(10));
        let error = store.backfill(at(10), &name("a"), range.0, range.1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(fired(second).await, fires);
    }
    assert_eq!(backfill(&store, 20, "b", (10, 20)).await, 0);
    // Upkeep goes on, too.
    let year = RECORD.as_secs();
    store.set_schedule_state(at(20), &name("b"), ScheduleState::Paused).await.unwrap();
    store.prune(at(year + 100), &Retention::default(), 99).await.unwrap();
    let kept: Vec<String> = db.hkeys(&ticks).await.unwrap();
    assert_eq!(kept, ["a"]);
    // A process that knows it goes on.
    let _: () = db.hset(&ticks, "a", &record).await.unwrap();
    let ticked = store.tick(at(year + 200), 9).await.unwrap();
    assert_eq!(ticked.fired.first().map(|fired| Rig::second(fired.tick)), Some(30));
    let _: () = db.hset(&ticks, "a", "{}").await.unwrap();
    store.delete_schedule(at(year + 300), &name("a")).await.unwrap();
    let kept: Vec<String> = db.hkeys(&ticks).await.unwrap();
    assert_eq!(kept, [""; 0]);
}

/// Both stores as one: each call must come to the same.
struct Both {
    model: MemoryStore,
    store: RedisStore,
    second: u64,
    random: fastrand::Rng,
    trail: Vec<String>,
}

impl Both {
    fn now(&self) -> Timestamp {
        Rig::START + secs(self.second)
    }

    fn one(&mut self) -> ScheduleName {
        name(self.random.choice(["a", "b"]).unwrap())
    }

    fn schedule(&mut self) -> Schedule {
        let spec = match self.random.u8(..6) {
            0 => Spec::cron("*/20 * * * * *", "UTC").unwrap(),
            1 => Spec::cron("30 */2 * * *", "Europe/Berlin").unwrap(),
            2 => every(5),
            3 => every(4 * 3_600),
            _ => every(10),
        };
        let catch_up = *self.random.choice(&CatchUp::ALL).unwrap();
        let trigger = if self.random.u8(..4) == 0 { plain("1") } else { keyed("k") };
        Schedule { name: self.one(), spec, catch_up, trigger, declared: None }
    }

    async fn tick(&mut self) {
        for _ in 0..1_000 {
            let limit = self.random.usize(1..150);
            let (now, of) = (Some(self.now()), [&self.model as &dyn Store, &self.store]);
            let [expected, found] = [of[0].tick(now, limit).await, of[1].tick(now, limit).await];
            let (expected, found) = (expected.unwrap(), found.unwrap());
            self.trail.push(format!("{} ticks at {}", expected.fired.len(), self.second));
            assert_eq!(found, expected, "{:#?}", self.trail);
            if found.next.is_none_or(|next| next > found.now) {
                return;
            }
        }
        panic!("it ticks without end");
    }

    async fn backfill(&mut self) {
        let back = *self.random.choice(&[60, 600, 7_200, DAY, 30 * DAY]).unwrap();
        let long = *self.random.choice(&[40, 400, 4_000, DAY]).unwrap();
        let (back, long) = (self.random.u64(..back), self.random.u64(..long));
        let from = self.second.saturating_sub(back);
        let to = (from + long).min(self.second);
        let (name, now) = (self.one(), Some(self.now()));
        let (from, to) = (Rig::START + secs(from), Rig::START + secs(to));
        let expected = self.model.backfill(now, &name, from, to).await;
        let found = self.store.backfill(now, &name, from, to).await;
        self.trail.push(format!("{name} at {}, {from} to {to}: {expected:?}", self.second));
        let kind = |answer: quell_core::Result<u64>| answer.map_err(|error| error.kind());
        assert_eq!(kind(found), kind(expected), "{:#?}", self.trail);
    }

    /// Changes a schedule, or lets one come or go.
    async fn change(&mut self) {
        let (now, name, schedule) = (Some(self.now()), self.one(), self.schedule());
        let state = *self.random.choice(&[ScheduleState::Paused, ScheduleState::Active]).unwrap();
        let choice = self.random.u8(..8);
        self.trail.push(format!("{choice} at {}: {name} {state:?} {schedule:?}", self.second));
        for store in [&self.model as &dyn Store, &self.store] {
            match choice {
                0 => drop(store.delete_schedule(now, &name).await),
                1..=3 => drop(store.set_schedule_state(now, &name, state).await),
                _ => store.set_schedule(now, &schedule).await.unwrap(),
            }
        }
    }

    /// Starts what is due and ends it, so that other jobs take the next triggers.
    async fn work(&mut self) {
        let now = Some(self.now());
        for store in [&self.model as &dyn Store, &self.store] {
            loop {
                let jobs = store.claim(now, &Rig::claim_of(50)).await.unwrap().jobs;
                if jobs.is_empty() {
                    break;
                }
                let end = |job| Settlement { lease: lease(job), outcome: Outcome::succeeded() };
                store.settle(now, jobs.iter().map(end).collect()).await.unwrap();
            }
        }
    }

    async fn compare(&self) {
        let schedules =
            [self.model.schedules().await.unwrap(), self.store.schedules().await.unwrap()];
        assert_eq!(schedules[1], schedules[0], "{:#?}", self.trail);
        let target = ExplainTarget::Key { task: Some(task("t")), key: key("k") };
        let ticks = async |store: &dyn Store| -> Option<Vec<Tick>> {
            store.explain(None, &target).await.unwrap().map(|reported| reported.ticks)
        };
        let (expected, found) = (ticks(&self.model).await, ticks(&self.store).await);
        assert_eq!(found, expected, "{:#?}", self.trail);
    }

    async fn play(&mut self) {
        self.second += *self.random.choice(&[0, 1, 5, 10, 25, 100, 1_000, 10_000]).unwrap();
        match self.random.u8(..20) {
            0 => {
                // For spans in the other set.
                self.second += 50 * 3_600;
                self.tick().await;
            }
            1 => self.work().await,
            2..=6 => self.change().await,
            7..=13 => self.backfill().await,
            _ => self.tick().await,
        }
        self.compare().await;
    }
}

async fn play(seed: u64, steps: usize) {
    let place = Place::shared();
    let model = MemoryStore::new(Rig::START);
    let random = fastrand::Rng::with_seed(seed);
    let trail = vec![format!("seed {seed}")];
    let mut both = Both { model, store: place.open().await, second: 0, random, trail };
    for _ in 0..steps {
        both.play().await;
    }
}

#[tokio::test]
async fn r36_ticks_fire_as_the_model_fires_them() {
    for seed in 0..cases(3, 30) {
        play(seed, 100).await;
    }
}
