//! One shard: keys that live on one node, and what this process knows of them.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quell_core::{Now, Result, Timestamp};
use tokio::sync::{OwnedMutexGuard, OwnedRwLockWriteGuard};

use crate::hot::{Held, Lines};
use crate::keys::Keys;
use crate::known::Known;
use crate::link::{Link, Scripts};
use crate::look::Read;
use crate::open::VERSION;

/// How all shards of a store reach their servers.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) link: Link,
    pub(crate) scripts: Arc<Scripts>,
    /// Where hints to other processes go.
    pub(crate) channel: String,
    /// Identifies the notifications that this process sent.
    pub(crate) origin: String,
    /// The highest time that this process has seen on any shard, in microseconds (R38).
    pub(crate) seen: Arc<AtomicI64>,
    /// Whether triggers lately took steps.
    pub(crate) steps: Arc<Steps>,
    /// Whether each write waits for the disk.
    pub(crate) syncs: bool,
    /// Whether common calls, too, are made by steps.
    pub(crate) steps_only: bool,
}

/// How many more calls with triggers are to be made one by one because one took a step: steps of one
/// process only wait for each other, and two small ones cost more than a large one.
#[derive(Debug, Default)]
pub(crate) struct Steps(AtomicU32);

impl Steps {
    /// How many calls must do without a step before they are made two at a time again.
    const CALLS: u32 = 4;

    pub(crate) fn are_common(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// A call took a step.
    pub(crate) fn taken(&self) {
        self.0.store(Steps::CALLS, Ordering::Relaxed);
    }

    /// A call did without.
    pub(crate) fn spared(&self) {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(1);
        self.0.store(left, Ordering::Relaxed);
    }
}

/// From this number of steps on whose ids others took, steps reserve ids.
const RESERVE_FROM: u32 = 3;
/// How many steps reserve ids then, before one tries without again.
const RESERVING: u32 = 64;
/// Ids that are reserved at a time, unless a step needs more. Those that it does not need are left out, and
/// a listing looks for each (`listing`).
const FEW_IDS: u64 = 16;

/// Which ids a shard hands out: the shards of a Cluster take turns, so that an id says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnIds {
    /// The id before the first one.
    pub(crate) first: u64,
    /// From one id to the next.
    pub(crate) step: u64,
}

/// Keys that one script may touch together.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) ids: OwnIds,
    pub(crate) keys: Keys,
    pub(crate) link: Link,
    pub(crate) scripts: Arc<Scripts>,
    /// Where hints to other processes go.
    pub(crate) channel: String,
    /// Identifies the notifications that this process sent.
    pub(crate) origin: String,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Scripts that accept triggers share it, a step has it alone: each new job would make the step
    /// retry.
    pub(crate) accepting: Arc<tokio::sync::RwLock<()>>,
    known: Mutex<Arc<Known>>,
    /// How many steps that make jobs have lost their ids to others lately; from [`RESERVE_FROM`] on, for how
    /// many more they are reserved.
    losing_ids: AtomicU32,
    /// How many ids the next of them needs, where the last one had reserved too few.
    wanted_ids: AtomicU64,
    seen: Arc<AtomicI64>,
    pub(crate) steps: Arc<Steps>,
    pub(crate) syncs: bool,
    pub(crate) steps_only: bool,
    /// The jobs that this process was given.
    pub(crate) held: Held,
    /// The lines of partitions that claims of this process may need next.
    pub(crate) lines: Lines,
}

/// Whose time a call goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Time {
    /// The server's own clock.
    Server,
    /// What a test says.
    At(Timestamp),
    /// The highest that was seen: for what has no time of its own, such as settings.
    Last,
}

impl From<Option<Timestamp>> for Time {
    fn from(now: Now) -> Self {
        now.map_or(Time::Server, Time::At)
    }
}

impl Shard {
    pub(crate) fn new(keys: Keys, ids: OwnIds, way: &Way) -> Self {
        let Way { link, scripts, channel, origin, seen, steps, syncs, steps_only } = way.clone();
        let known = Mutex::default();
        Shard {
            ids,
            keys,
            link,
            scripts,
            channel,
            origin,
            turn: Arc::default(),
            accepting: Arc::default(),
            known,
            losing_ids: AtomicU32::new(0),
            wanted_ids: AtomicU64::new(0),
            seen,
            steps,
            syncs,
            steps_only,
            held: Held::default(),
            lines: Lines::default(),
        }
    }

    /// How many ids a step reserves that makes at most this number of jobs. None where it reserves none,
    /// but begins again where another step took its ids: that is seldom, and no id is left out.
    pub(crate) fn reserves(&self, jobs: u64) -> Option<u64> {
        let loses = self.losing_ids.load(Ordering::Relaxed) >= RESERVE_FROM;
        (jobs > 0 && loses).then(|| self.block(jobs))
    }

    /// How many of the ids that a step may need are reserved: few make as many jobs as they may.
    pub(crate) fn block(&self, jobs: u64) -> u64 {
        jobs.min(self.wanted_ids.load(Ordering::Relaxed).max(FEW_IDS))
    }

    /// Notes that a step has reserved too few ids for the jobs that it makes: the next reserves as many.
    pub(crate) fn want_ids(&self, jobs: u64) {
        self.wanted_ids.store(jobs, Ordering::Relaxed);
    }

    /// Notes that a step made this number of jobs with its ids; none where another step took them.
    pub(crate) fn note_ids(&self, made: Option<u64>) {
        let losses = self.losing_ids.load(Ordering::Relaxed);
        let losses = if let Some(made) = made {
            // The next may be as large, and a number of small ones makes fewer do.
            let wanted = self.wanted_ids.load(Ordering::Relaxed) / 2;
            self.wanted_ids.store(wanted.max(made), Ordering::Relaxed);
            losses.saturating_sub(1)
        } else if losses.saturating_add(1) < RESERVE_FROM {
            losses.saturating_add(1)
        } else {
            RESERVE_FROM.saturating_add(RESERVING)
        };
        self.losing_ids.store(losses, Ordering::Relaxed);
    }

    /// Whether the last connection to the shard's server could be made.
    pub(crate) fn is_reachable(&self) -> bool {
        self.link.is_reachable(&self.keys.meta())
    }

    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn know(&self, known: Arc<Known>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// The time, as an argument of a script.
    pub(crate) fn time_argument(&self, time: Time) -> String {
        match time {
            Time::Server => "server".to_owned(),
            Time::Last => "last".to_owned(),
            Time::At(now) => now.max(self.seen()).as_micros().to_string(),
        }
    }

    /// The highest time that this process has seen.
    fn seen(&self) -> Timestamp {
        Timestamp::from_micros(self.seen.load(Ordering::Relaxed))
    }

    /// Takes note of a time; returns the highest that was seen.
    pub(crate) fn see(&self, now: Timestamp) -> Timestamp {
        let now = now.as_micros();
        Timestamp::from_micros(self.seen.fetch_max(now, Ordering::Relaxed).max(now))
    }

    /// Waits until no other step of this process is in flight: they would only get in each other's
    /// way.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Waits until no script of this process accepts triggers, and keeps others from it.
    pub(crate) async fn accept_alone(&self) -> OwnedRwLockWriteGuard<()> {
        self.steps.taken();
        Arc::clone(&self.accepting).write_owned().await
    }
}

impl Shard {
    /// Reads names and settings again. Their version is that of before it began: where they change
    /// meanwhile, they are read again when that is noticed.
    pub(crate) async fn learn(&self) -> Result<Arc<Known>> {
        let keys = &self.keys;
        let version = vec![Read::Fields(keys.meta(), vec![VERSION.to_owned()])];
        let hashes = [keys.lanes(), keys.shapes(), keys.queues(), keys.tasks()];
        let what = "read names and settings";
        let (mut looked, pairs) = self.read_hashes(what, version, hashes).await?;
        let known = Arc::new(Known::read(looked.text()?, pairs)?);
        self.know(Arc::clone(&known));
        Ok(known)
    }
}
