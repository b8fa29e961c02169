//! The world between processes: its time, messages in flight, chance, and the record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use quell_core::history::{Event, History};
use quell_core::{Key, Result, Store, Timestamp};

use super::place::Stores;
use super::plan::{BrokenCall, Network, Plan};
use crate::check::Line;

/// What arrives at its time.
type Arrival = Box<dyn FnOnce(&Arc<World>) + Send>;

/// Everything that processes share.
pub(super) struct World {
    state: Mutex<State>,
    record: Record,
    stores: Stores,
}

struct State {
    now: Timestamp,
    rng: Rng,
    arrivals: BTreeMap<(Timestamp, u64), Arrival>,
    next_arrival: u64,
    network: Network,
    broken_call: Option<BrokenCall>,
    /// How many calls were made.
    calls: u64,
    /// How far the store's clock is off, in milliseconds.
    store_off: i64,
    /// Until when the store answers no call.
    down_until: Timestamp,
    healed: bool,
    harmed: bool,
    /// Whether nothing is in flight any more that was harmed before.
    calm: bool,
    /// The keys that the outside knows.
    charged: BTreeSet<Key>,
    /// Processes that may have something to do.
    stirred: Vec<usize>,
}

/// How a message fares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// How long it takes to the store.
    pub(super) there: Duration,
    /// How long the answer takes.
    pub(super) back: Duration,
    /// Whether either is long.
    pub(super) slow: bool,
    /// The call fails before the store did anything.
    pub(super) fails_before: bool,
    /// The answer is lost.
    pub(super) fails_after: bool,
    /// It arrives twice.
    pub(super) twice: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl World {
    /// Stands for every process: see [`World::stir`].
    pub(super) const ALL: usize = usize::MAX;

    pub(super) fn new(plan: &Plan, now: Timestamp, record: Record, stores: Stores) -> Arc<Self> {
        let state = State {
            now,
            rng: Rng::with_seed(plan.seed ^ 0x9e37_79b9_7f4a_7c15),
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            network: plan.network,
            broken_call: plan.broken_call,
            calls: 0,
            store_off: 0,
            down_until: Timestamp::MIN,
            healed: false,
            harmed: false,
            calm: false,
            charged: BTreeSet::new(),
            stirred: Vec::new(),
        };
        Arc::new(World { state: Mutex::new(state), record, stores })
    }

    pub(super) fn now(&self) -> Timestamp {
        self.locked().now
    }

    /// What the store's clock shows; a store keeps it from going back.
    pub(super) fn store_time(&self) -> Timestamp {
        let state = self.locked();
        let off = Duration::from_millis(state.store_off.unsigned_abs());
        if state.store_off < 0 { state.now.before(off) } else { state.now + off }
    }

    pub(super) fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The store, for operators.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.stores.store()
    }

    /// Makes a call of the store and sends the wake-ups that follow.
    pub(super) fn perform<R>(&self, call: impl Future<Output = Result<R>>) -> Result<R> {
        let before = self.record.len();
        let answer = self.stores.perform(call);
        self.record.since(before, |recorded| self.stores.wake(recorded.iter().map(|l| &l.event)));
        answer
    }

    /// Draws something.
    pub(super) fn draw<R>(&self, draw: impl FnOnce(&mut Rng) -> R) -> R {
        draw(&mut self.locked().rng)
    }

    pub(super) fn is_healed(&self) -> bool {
        self.locked().healed
    }

    /// From here on nothing goes wrong.
    pub(super) fn heal(&self) {
        let mut state = self.locked();
        state.healed = true;
        state.network = Network::default();
        state.down_until = Timestamp::MIN;
        // A clock that was set back is set right, a jump ahead; one that ran ahead is left alone.
        let was_back = state.store_off < 0;
        state.store_off = state.store_off.max(0);
        drop(state);
        if was_back {
            self.fault("clock jumped", "store");
        }
    }

    pub(super) fn is_calm(&self) -> bool {
        self.locked().calm
    }

    /// What was harmed before the world healed is over, too.
    pub(super) fn say_calm(&self) {
        if !std::mem::replace(&mut self.locked().calm, true) {
            let t = self.store_time();
            self.record(Event::Heal { t });
        }
    }

    /// The outside does something once for each key, and says whether this was the time.
    pub(super) fn charge(&self, key: Key) -> bool {
        self.locked().charged.insert(key)
    }

    /// Whether the outside knows the key.
    pub(super) fn has_charged(&self, key: &Key) -> bool {
        self.locked().charged.contains(key)
    }

    /// The store's clock jumps.
    pub(super) fn jump_store(&self, by: i64) {
        self.locked().store_off += by;
    }

    /// The store answers no call for a while.
    pub(super) fn take_store_down(&self, time: Duration) {
        let mut state = self.locked();
        state.down_until = state.now + time;
    }

    /// Whether the store is down now.
    pub(super) fn is_down(&self) -> bool {
        let state = self.locked();
        state.now < state.down_until
    }

    /// How the next message fares.
    pub(super) fn fate(&self, from: &str) -> Fate {
        let mut state = self.locked();
        let network = state.network;
        let broken = state.broken_call.filter(|broken| broken.number == state.calls);
        state.calls += 1;
        let rng = &mut state.rng;
        let mut happens = |thousandths: u16| thousandths > 0 && rng.u16(..1_000) < thousandths;
        let fails_before = happens(network.fails_before) || broken.is_some_and(|call| !call.done);
        let fails_after =
            !fails_before && (happens(network.fails_after) || broken.is_some_and(|call| call.done));
        let (slow_there, slow_back) = (happens(network.slow), happens(network.slow));
        let twice = happens(network.twice);
        let mut takes = |slow: bool| {
            let micros = if slow { rng.u64(20_000..1_500_000) } else { rng.u64(20..900) };
            Duration::from_micros(micros)
        };
        let (there, back) = (takes(slow_there), takes(slow_back));
        drop(state);
        if fails_before || slow_there {
            self.fault("network", from);
        }
        Fate { there, back, slow: slow_there || slow_back, fails_before, fails_after, twice }
    }

    /// Whether a wake-up gets lost, and how long it takes.
    pub(super) fn receives(&self, who: &str) -> Option<Duration> {
        let mut state = self.locked();
        let deaf = state.network.deaf;
        let lost = deaf > 0 && state.rng.u16(..1_000) < deaf;
        let delay = Duration::from_micros(state.rng.u64(20..900));
        drop(state);
        if lost {
            self.fault("wake-up lost", who);
        }
        (!lost).then_some(delay)
    }

    /// Something arrives after `delay`.
    pub(super) fn after(
        &self,
        delay: Duration,
        arrival: impl FnOnce(&Arc<World>) + Send + 'static,
    ) {
        let mut state = self.locked();
        let place = (state.now + delay, state.next_arrival);
        state.next_arrival += 1;
        state.arrivals.insert(place, Box::new(arrival));
    }

    /// When the next message arrives.
    pub(super) fn next_arrival(&self) -> Option<Timestamp> {
        self.locked().arrivals.first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves time on and hands over what arrives then.
    pub(super) fn pass(self: &Arc<Self>, now: Timestamp) {
        self.locked().now = now;
        loop {
            let mut state = self.locked();
            let Some(entry) = state.arrivals.first_entry().filter(|entry| entry.key().0 <= now)
            else {
                return;
            };
            let arrival = entry.remove();
            drop(state);
            arrival(self);
        }
    }

    /// A process may have something to do.
    pub(super) fn stir(&self, process: usize) {
        self.locked().stirred.push(process);
    }

    /// The processes that were stirred since the last call.
    pub(super) fn take_stirred(&self) -> Vec<usize> {
        std::mem::take(&mut self.locked().stirred)
    }

    /// Whether anything has gone wrong so far.
    pub(super) fn was_harmed(&self) -> bool {
        self.locked().harmed
    }

    /// A process is asked to end, which is no excuse for a lost lease.
    pub(super) fn record_stop(&self, whom: &str) {
        let t = self.store_time();
        self.record(Event::Fault { t, what: "stop".to_owned(), whom: whom.to_owned() });
    }

    pub(super) fn fault(&self, what: &str, whom: &str) {
        self.locked().harmed = true;
        let t = self.store_time();
        self.record(Event::Fault { t, what: what.to_owned(), whom: whom.to_owned() });
    }

    /// Writes an event of the world itself.
    pub(super) fn record(&self, event: Event) {
        self.record.line("world", event);
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The history of all processes in one order.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    lines: Arc<Mutex<Vec<Line>>>,
}

impl Record {
    /// A sink that writes in the name of a process.
    pub(super) fn sink(&self, process: &str) -> Arc<dyn History> {
        Arc::new(Named { record: self.clone(), process: process.to_owned() })
    }

    pub(super) fn line(&self, process: &str, event: Event) {
        let mut lines = self.locked();
        push(&mut lines, process, event);
    }

    /// Ends the record of every process: nothing of it is lost with a process that is killed.
    pub(super) fn end(&self) {
        let mut lines = self.locked();
        let processes: BTreeSet<String> = lines.iter().map(|line| line.p.clone()).collect();
        processes.iter().for_each(|process| push(&mut lines, process, Event::End));
    }

    pub(super) fn take(&self) -> Vec<Line> {
        std::mem::take(&mut *self.locked())
    }

    fn len(&self) -> usize {
        self.locked().len()
    }

    /// Looks at what was recorded after this number of lines.
    fn since(&self, count: usize, look: impl FnOnce(&[Line])) {
        look(self.locked().get(count..).unwrap_or_default());
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn push(lines: &mut Vec<Line>, process: &str, event: Event) {
    let n = u64::try_from(lines.len()).ok();
    lines.push(Line { n, ..Line::new(process, event) });
}

#[derive(Debug)]
struct Named {
    record: Record,
    process: String,
}

impl History for Named {
    fn record(&self, event: &Event) {
        self.record.line(&self.process, event.clone());
    }

    fn wants_payloads(&self) -> bool {
        true
    }
}
