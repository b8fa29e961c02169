//! How a store's health is read, and how its clock is set back (R38).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_conformance::Rig;
use quell_conformance::rig::{debounce, key, keyed, keyed_with, lease, plain, secs, until};
use quell_core::checkup::ClockReset;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::idempotency::Idempotency;
use quell_core::schedule::{CatchUp, Every, Schedule, Spec};
use quell_core::window::Debounce;
use quell_core::{
    Batch, ErrorKind, Fold, JobId, NewTrigger, Now, Outcome, QueueSettings, Rate, Receipt, Result,
    Retention, ScheduleName, Settlement, Store, Timestamp, When,
};
use quell_redis::{Layout, RedisOptions, RedisStore};

use crate::place::Place;

const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn wall() -> Timestamp {
    Timestamp::from_micros(0) + SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Where a time later than this is, as a score or as digits.
const TIMES: &str = "
local found = {}
local function note(key, text)
  for digits in string.gmatch(text, '%d+') do
    if #digits == 16 and tonumber(digits) > tonumber(ARGV[2]) then
      found[#found + 1] = key .. ' ' .. text
    end
  end
end
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'string' then note(key, redis.call('GET', key)) end
  if kind == 'hash' then
    for _, text in ipairs(redis.call('HGETALL', key)) do note(key, text) end
  end
  if kind == 'zset' then
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, ARGV[2], 9e18)) do
      found[#found + 1] = key .. ' ' .. member
    end
  end
end
return found";

async fn times_after(place: &Place, after: Timestamp) -> Vec<String> {
    let mut db = place.connect().await;
    let mut call = redis::cmd("EVAL");
    call.arg(TIMES).arg(0).arg(&place.prefix).arg(after.as_micros());
    call.query_async(&mut db).await.unwrap()
}

async fn accept(store: &RedisStore, now: Now, new: NewTrigger) -> Receipt {
    let mut answers = store.enqueue(now, vec![Batch::one(new)]).await.unwrap();
    answers.remove(0).unwrap().remove(0)
}

async fn due(store: &RedisStore, job: JobId) -> Timestamp {
    store.job(job).await.unwrap().unwrap().window.due_at
}

/// Once the server has seen that the store's connections are gone.
async fn reset(options: &RedisOptions) -> Result<ClockReset> {
    let last = std::cell::RefCell::new(None);
    until("the clock can be set back", async || {
        let done = options.clone().reset_clock().await;
        let waits = matches!(&done, Err(error) if error.kind() == ErrorKind::Contention);
        *last.borrow_mut() = Some(done);
        !waits
    })
    .await;
    last.into_inner().unwrap()
}

fn every(seconds: u64) -> Spec {
    Spec::Every(Every::new(secs(seconds), Rig::START).unwrap())
}

/// A schedule that fires before the clock runs ahead and meanwhile.
struct Steady {
    name: ScheduleName,
    /// What fired while the clock was right.
    past: (Timestamp, Timestamp),
}

impl Steady {
    async fn start(store: &RedisStore) -> Self {
        let name = ScheduleName::new("steady").unwrap();
        let (catch_up, trigger) = (CatchUp::Latest, keyed("steady"));
        let schedule =
            Schedule { name: name.clone(), spec: every(100), catch_up, trigger, declared: None };
        store.set_schedule(None, &schedule).await.unwrap();
        let past = (wall().before(secs(1_000)), wall().before(secs(1)));
        let fired = store.backfill(None, &name, past.0, past.1).await.unwrap();
        assert!((9..=10).contains(&fired), "{fired}");
        Steady { name, past }
    }

    /// Fires ticks of a time that never comes.
    async fn fire_ahead(&self, store: &RedisStore, ahead: Timestamp) {
        // 901 s have nine ticks or ten. The schedule may have fired some of these at their time.
        let (from, to) = (ahead.before(secs(300)), ahead + secs(601));
        let fired = store.backfill(Some(to), &self.name, from, to).await.unwrap();
        assert!((7..=10).contains(&fired), "{fired}");
    }

    /// What fired before stays known, and what has come since has not fired but for its newest tick.
    async fn knows_what_fired(&self, store: &RedisStore, reset_to: Timestamp) {
        let later = Some(reset_to + secs(601));
        assert_eq!(store.backfill(later, &self.name, self.past.0, self.past.1).await.unwrap(), 0);
        let (from, to) = (reset_to, reset_to + secs(500));
        let fired = store.backfill(later, &self.name, from, to).await.unwrap();
        assert!((5..=6).contains(&fired), "{fired}");
    }
}

/// A store whose clock ran ahead for a while is set back, and goes on as if it had not.
async fn set_back(options: RedisOptions, nothing_is_ahead: impl AsyncFn(Timestamp)) {
    let open = async || options.clone().open().await.unwrap();
    let store = open().await;
    let later = NewTrigger { when: When::After(secs(7_200)), ..plain("1") };
    let stays = accept(&store, None, later).await.job().unwrap();
    let stays_due = due(&store, stays).await;
    let steady = Steady::start(&store).await;

    let ahead = wall() + YEAR;
    let now = Some(ahead);
    let rate = Some(Rate { limit: 1, period: secs(600) });
    let limited = QueueSettings { rate, ..QueueSettings::default() };
    store.set_queue(Some(Rig::START), &Rig::claim_of(1).queue, &limited).await.unwrap();
    let window = accept(&store, now, keyed("k")).await.job().unwrap();
    let idempotency = Some(Idempotency { key: key("i"), retention: secs(60) });
    let dedup = |until| Some(Dedup { key: key(&format!("{until:?}")), until });
    accept(&store, now, NewTrigger { idempotency, ..plain("2") }).await;
    let held = NewTrigger { dedup: dedup(HoldUntil::Elapsed(secs(60))), ..plain("3") };
    accept(&store, now, held.clone()).await;
    let done = NewTrigger { dedup: dedup(HoldUntil::Done), ..plain("4") };
    accept(&store, now, done.clone()).await;
    let leading = Debounce { edge: Edge::Leading, ..debounce() };
    accept(&store, now, keyed_with("burst", leading, Fold::Last, "5")).await;
    let run = store.claim(now, &Rig::claim_of(1)).await.unwrap().jobs.remove(0);
    let name = ScheduleName::new("often").unwrap();
    let (spec, catch_up, trigger) = (every(600), CatchUp::Latest, plain("6"));
    let schedule = Schedule { name, spec, catch_up, trigger, declared: None };
    store.set_schedule(now, &schedule).await.unwrap();
    let ticked = store.tick(Some(ahead + secs(601)), 9).await.unwrap();
    assert_eq!(ticked.fired.len(), 2);
    steady.fire_ahead(&store, ahead).await;
    // Upkeep looks at the idempotency key again later than it expires.
    store.prune(Some(ahead + secs(601)), &Retention::default(), 99).await.unwrap();

    let checkup = store.checkup().await.unwrap();
    assert!(checkup.clock.ahead() > YEAR - DAY, "{checkup}");
    assert!(checkup.problems().any(|problem| problem.contains("--reset-clock")), "{checkup}");
    let refused = options.clone().reset_clock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Contention, "{refused}");
    drop(store);

    let reset_to = reset(&options).await.unwrap();
    nothing_is_ahead(reset_to.after).await;
    assert!(reset_to.by > YEAR - DAY, "{reset_to:?}");
    let again = reset(&options).await.unwrap_err();
    assert_eq!(again.field(), Some("reset_clock"), "{again}");

    let store = open().await;
    assert_eq!(store.checkup().await.unwrap().problems().count(), 0);
    assert_eq!(due(&store, stays).await, stays_due, "made before the clock ran ahead");
    // The clock stood 601 s past `ahead` at last.
    let at = |second: u64| Some((ahead + secs(second)).before(reset_to.by));
    let opened = at(10).unwrap();
    assert_eq!(due(&store, window).await, opened, "as far away as before");
    // What the clock had passed in its last ten minutes has passed.
    let expired = store.reap(None, 9).await.unwrap();
    assert_eq!(expired.iter().map(|expired| expired.lease).collect::<Vec<_>>(), [lease(&run)]);
    assert_eq!(accept(&store, None, held).await.outcome(), "accepted");
    assert_eq!(accept(&store, None, done).await.outcome(), "duplicate");
    let later = Some(reset_to.to + secs(601));
    let ticked = store.tick(later, 9).await.unwrap();
    assert_eq!(ticked.fired.len(), 2, "the schedules go on from now");
    steady.knows_what_fired(&store, reset_to.to).await;
    // A rate begins again, and every line knows its first job.
    for second in [0, 600, 1_200] {
        let now = Some(reset_to.to + secs(700 + second));
        let jobs = store.claim(now, &Rig::claim_of(9)).await.unwrap().jobs;
        assert_eq!(jobs.len(), 1, "after {second} s");
        let end = Settlement { lease: lease(&jobs[0]), outcome: Outcome::succeeded() };
        store.settle(now, vec![end]).await.unwrap();
    }
    let end = Some(reset_to.to + 3 * DAY);
    while store.prune(end, &Retention::default(), 99).await.unwrap().more {}
}

#[tokio::test]
async fn r38_a_clock_that_ran_ahead_is_set_back_with_the_times_that_it_made() {
    let place = Place::shared();
    set_back(place.options(), async |after| assert_eq!(times_after(&place, after).await, [""; 0]))
        .await;
}

#[tokio::test]
async fn r38_the_clocks_of_all_shards_are_set_back() {
    let place = Place::shared();
    let options = place.options().layout(Layout::Queues).unwrap();
    set_back(options, async |after| assert_eq!(times_after(&place, after).await, [""; 0])).await;
}

#[tokio::test]
async fn r38_the_clocks_of_a_cluster_are_set_back() {
    let (nodes, prefix) = quell_services::redis_cluster_for_tests();
    let url = format!("redis-cluster://{nodes}?prefix={prefix}");
    set_back(RedisOptions::from_url(&url).unwrap(), async |_| {}).await;
}

#[tokio::test]
async fn r25_r38_ticks_that_cannot_be_decoded_keep_no_clock_from_being_set_back() {
    let place = Place::shared();
    let store = place.open().await;
    let steady = Steady::start(&store).await;
    let ahead = wall() + YEAR;
    steady.fire_ahead(&store, ahead).await;
    drop(store);
    let damaged = format!("{}:{{all}}:fired:{}", place.prefix, steady.name);
    let mut db = place.connect().await;
    let mut call = redis::cmd("ZADD");
    call.arg(damaged).arg(ahead.as_micros()).arg("no span");
    let _: i64 = call.query_async(&mut db).await.unwrap();
    assert!(reset(&place.options()).await.unwrap().by > YEAR - DAY);
    let store = place.open().await;
    assert!(store.checkup().await.unwrap().clock.ahead() < DAY);
}
