//! When a step is tried, and tried again after a conflict.
//!
//! Triggers of one hot key conflict in every process, so each process learns how far their tries must be
//! spread: a conflict doubles the time over which it spreads them, a first try that commits shortens it a
//! little. Then about one try in eight conflicts, however many processes there are.
//!
//! Invariant: pauses decide when a step is tried and nothing of what it does.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_core::{Batch, Key, TaskName};
use tokio::time::Instant;

/// How often a step is tried.
const TRIES: u32 = 40;
/// The first pause between two tries; each that follows may be twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// Keys are distinguished by their hash, so that what is learned has a bound.
const SLOTS: u64 = 256;
/// After a first conflict tries are spread over this multiple of what the try took.
const FIRST_SPREAD: u32 = 16;
/// The longest time over which tries are spread.
const MOST_SPREAD: Duration = Duration::from_secs(2);
/// What was learned is forgotten after this multiple of the spread without a conflict.
const FORGET: u32 = 20;

/// What a process has learned of conflicts at keys.
#[derive(Debug, Default)]
pub(crate) struct Contention(Mutex<BTreeMap<u64, Spread>>);

#[derive(Clone, Copy, Debug)]
struct Spread {
    over: Duration,
    /// The last conflict.
    at: Instant,
}

impl Contention {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<u64, Spread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no conflict is known.
    fn is_calm(&self) -> bool {
        self.slots().is_empty()
    }

    /// The time over which tries at these keys are spread.
    fn spread(&self, keys: &[u64]) -> Duration {
        let mut slots = self.slots();
        for key in keys {
            let is_old = |one: &Spread| one.at.elapsed() > one.over.saturating_mul(FORGET);
            if slots.get(key).is_some_and(is_old) {
                slots.remove(key);
            }
        }
        keys.iter().filter_map(|key| slots.get(key)).map(|one| one.over).max().unwrap_or_default()
    }

    /// A try that took so long has conflicted.
    fn conflicted(&self, keys: &[u64], took: Duration) {
        let first = took.saturating_mul(FIRST_SPREAD).max(FIRST_PAUSE);
        let mut slots = self.slots();
        for key in keys {
            let known = slots.get(key).map_or(Duration::ZERO, |one| one.over);
            let over = known.saturating_mul(2).max(first).min(MOST_SPREAD);
            slots.insert(*key, Spread { over, at: Instant::now() });
        }
    }

    /// A first try has committed.
    fn committed(&self, keys: &[u64]) {
        let mut slots = self.slots();
        for key in keys {
            if let Some(one) = slots.get_mut(key) {
                one.over = one.over.saturating_mul(9) / 10;
            }
        }
    }
}

/// The tries of one step.
#[derive(Debug)]
pub(crate) struct Backoff<'c> {
    tries: u32,
    pause: Duration,
    longest: Duration,
    learned: Option<Learned<'c>>,
}

/// What a step learns of conflicts at the keys of the batches that it accepts.
#[derive(Debug)]
struct Learned<'c> {
    contention: &'c Contention,
    batches: &'c [Batch],
    /// When the try began.
    began: Instant,
}

impl Learned<'_> {
    fn slots(&self) -> Vec<u64> {
        let slot = |of: (&TaskName, &Key)| {
            let mut hasher = DefaultHasher::new();
            of.hash(&mut hasher);
            hasher.finish() % SLOTS
        };
        let slots: BTreeSet<u64> = keys_of(self.batches).map(slot).collect();
        slots.into_iter().collect()
    }

    fn spread(&self) -> Duration {
        // Most processes meet no conflict, and need no hashes.
        if self.contention.is_calm() {
            return Duration::ZERO;
        }
        self.contention.spread(&self.slots())
    }
}

/// The debounce keys of batches.
fn keys_of(batches: &[Batch]) -> impl Iterator<Item = (&TaskName, &Key)> {
    let triggers = batches.iter().flat_map(|batch| &batch.triggers);
    triggers.filter_map(|trigger| Some((&trigger.task, &trigger.keyed.as_ref()?.key)))
}

impl<'c> Backoff<'c> {
    /// The tries of a step whose conflicts say nothing of the next one.
    pub(crate) fn new(longest: Duration) -> Self {
        Backoff { tries: 0, pause: FIRST_PAUSE, longest, learned: None }
    }

    /// The tries of a step that accepts these batches. A backend that needs no pauses has no conflicts.
    pub(crate) fn of(longest: Duration, contention: &'c Contention, batches: &'c [Batch]) -> Self {
        let learns = !longest.is_zero() && keys_of(batches).next().is_some();
        let learned = learns.then(|| Learned { contention, batches, began: Instant::now() });
        Backoff { learned, ..Backoff::new(longest) }
    }

    /// Waits before the first try, where those before it have conflicted.
    pub(crate) async fn begin(&mut self) {
        let Some(learned) = &mut self.learned else { return };
        let spread = learned.spread();
        if !spread.is_zero() {
            wait(spread).await;
            learned.began = Instant::now();
        }
    }

    /// Waits before the next try; says whether there is one.
    pub(crate) async fn again(&mut self) -> bool {
        self.tries += 1;
        if self.tries >= TRIES {
            return false;
        }
        let most = match &self.learned {
            Some(learned) => {
                learned.contention.conflicted(&learned.slots(), learned.began.elapsed());
                learned.spread()
            }
            None => self.pause.min(self.longest),
        };
        wait(most).await;
        self.pause = self.pause.saturating_mul(2);
        if let Some(learned) = &mut self.learned {
            learned.began = Instant::now();
        }
        true
    }

    /// The step has committed.
    pub(crate) fn done(&self) {
        let learned = self.learned.as_ref().filter(|_| self.tries == 0);
        if let Some(learned) = learned.filter(|learned| !learned.contention.is_calm()) {
            learned.contention.committed(&learned.slots());
        }
    }
}

/// Waits at random for at most so long.
async fn wait(most: Duration) {
    let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    if most > 0 {
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..=most))).await;
    }
}
